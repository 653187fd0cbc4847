from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.toys import END, ToyModel, enumerate_outputs, random_table

from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.penalties import NoPenalty, SockeyePenalty, WuPenalty
from phraseloom.decoding.search import search
from phraseloom.errors import ModelError

PENALTIES = {
    "none": (NoPenalty(), lambda n: 1.0),
    "wu-0.6": (WuPenalty(0.6), lambda n: ((5 + n) / 6) ** 0.6),
    "wu-2": (WuPenalty(2.0), lambda n: ((5 + n) / 6) ** 2.0),
    "sockeye-mean": (SockeyePenalty(1.0, 0.0), lambda n: float(n)),
    "sockeye-5": (SockeyePenalty(0.8, 5.0), lambda n: ((5 + n) / 6) ** 0.8),
}


def options(beam=1, n_best=1, penalty=None, banned=(), exact=True):
    return SearchOptions(
        beam=beam, n_best=n_best, penalty=penalty or NoPenalty(), begin=0, end=END, banned=banned, exact=exact
    )


def run(table, sentences, longest, *, shortest=None, prefixes=None, **rest):
    model = ToyModel(table)
    longest = [longest] * len(sentences) if isinstance(longest, int) else longest
    return search(model, sentences, Limits.of(longest, shortest, prefixes), options(**rest)), model


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("seed", range(6))
def test_wide_beam_is_enumeration(name, seed):
    penalty, divisor = PENALTIES[name]
    table = random_table(4, seed)
    results, _ = run(table, [0, 1, 2], 4, beam=256, n_best=10, penalty=penalty)
    for sentence, found in enumerate(results):
        truth = enumerate_outputs(table, sentence, 4, 4, divisor)
        assert [h.tokens for h in found] == [t for _, _, t in truth[:10]]
        assert [h.score for h in found] == pytest.approx([s for s, _, _ in truth[:10]], abs=1e-9)
        assert [h.log_prob for h in found] == pytest.approx([p for _, p, _ in truth[:10]], abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(4, 5),
    longest=st.integers(1, 4),
    name=st.sampled_from(sorted(PENALTIES)),
    shortest=st.integers(0, 3),
    forced=st.lists(st.sampled_from([0, 1, 2]), max_size=2),
    n_best=st.integers(1, 6),
)
def test_wide_beam_is_enumeration_with_bounds_and_prefix(seed, size, longest, name, shortest, forced, n_best):
    penalty, divisor = PENALTIES[name]
    table = random_table(size, seed)
    longest = max(longest, len(forced))
    shortest = min(shortest, longest)
    results, _ = run(
        table, [7], longest, shortest=[shortest], prefixes=[forced], beam=700, n_best=n_best, penalty=penalty
    )
    truth = enumerate_outputs(table, 7, size, longest, divisor, shortest, tuple(forced))
    assert [h.tokens for h in results[0]] == [t for _, _, t in truth[:n_best]]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 6),
    size=st.integers(4, 7),
    name=st.sampled_from(sorted(PENALTIES)),
    data=st.data(),
)
def test_a_sentence_does_not_depend_on_its_batch(seed, beam, size, name, data):
    n_best = data.draw(st.integers(1, beam))
    longest = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    prefixes = [data.draw(st.lists(st.sampled_from([0, 1, 2]), max_size=2)) for _ in longest]
    shortest = [data.draw(st.integers(0, 2)) for _ in longest]
    table, sentences = random_table(size, seed), list(range(len(longest)))
    rest = {"beam": beam, "n_best": n_best, "penalty": PENALTIES[name][0]}
    together, _ = run(table, sentences, longest, shortest=shortest, prefixes=prefixes, **rest)
    for s in sentences:
        alone, _ = run(table, [s], [longest[s]], shortest=[shortest[s]], prefixes=[prefixes[s]], **rest)
        assert alone[0] == together[s]
        for h in together[s]:
            assert h.tokens[: len(prefixes[s])] == prefixes[s]
            assert len(h.tokens) <= max(longest[s], len(prefixes[s]))
            assert END not in h.tokens


@pytest.mark.parametrize("name", PENALTIES)
def test_more_hypotheses_asked_for_leave_the_first_as_they_are(name):
    table = random_table(6, 11)
    lists = [run(table, [0, 1], 6, beam=5, n_best=n, penalty=PENALTIES[name][0])[0] for n in range(1, 6)]
    for n, found in enumerate(lists, start=1):
        for s in (0, 1):
            assert len(found[s]) == n
            assert found[s] == lists[-1][s][:n]
            assert [h.score for h in found[s]] == sorted((h.score for h in found[s]), reverse=True)


@pytest.mark.parametrize("beam", range(1, 6))
@pytest.mark.parametrize("n_best", range(1, 6))
def test_vocabulary_smaller_than_the_beam(beam, n_best):
    table = random_table(4, 3)
    banned = (0, 1)  # leaves one ordinary token and the end
    found = run(table, [0], 3, beam=beam, n_best=n_best, banned=banned)[0][0]
    assert 1 <= len(found) <= min(n_best, beam)
    if beam >= 4:
        assert len(found) == min(n_best, 4)  # the outputs of 0, 1, 2 and 3 tokens
    assert all(set(h.tokens) <= {2} for h in found)


def _table(rows):
    return lambda sentence, prefix: torch.tensor(rows(sentence, prefix), dtype=torch.float64).log()


@pytest.mark.parametrize("beam", [1, 2, 3])
@pytest.mark.parametrize("impossible", [0.0, 1e-30])
def test_a_model_that_never_ends_is_cut_at_the_bound_and_flagged(beam, impossible):
    table = _table(lambda s, p: [0.1, 0.2, 0.7, impossible])
    results, model = run(table, [0, 1], [4, 6], beam=beam)
    assert [(h[0].tokens, h[0].cut) for h in results] == [([2] * 4, True), ([2] * 6, True)]
    assert model.steps == 7
    end = torch.tensor(impossible, dtype=torch.float64).log().item() if impossible else 0.0
    assert results[0][0].log_prob == pytest.approx(4 * torch.tensor(0.7, dtype=torch.float64).log().item() + end)


@pytest.mark.parametrize("beam", [1, 3])
def test_an_output_that_ends_by_itself_at_the_bound_is_not_flagged(beam):
    table = _table(lambda s, p: [0.0, 0.05, 0.05, 0.9] if len(p) == 3 else [0.1, 0.2, 0.69, 0.01])
    found = run(table, [0], 3, beam=beam)[0][0][0]
    assert (found.tokens, found.cut) == ([2, 2, 2], False)


def test_equal_scores_go_to_the_lower_beam_then_the_lower_token():
    table = _table(lambda s, p: [0.25, 0.25, 0.25, 0.25])
    found = run(table, [0], 2, beam=3, n_best=3, penalty=SockeyePenalty(1.0, 0.0))[0][0]
    # Every output scores log 1/4: those that finish first are kept; of the first step only ranks 0-2 live on.
    assert [h.tokens for h in found] == [[0, 0], [0, 1], [0, 2]]
    greedy = run(table, [0], 2, beam=1)[0][0][0]
    assert (greedy.tokens, greedy.cut) == ([0, 0], True)


def test_equal_finished_scores_keep_the_one_that_finished_first():
    table = _table(lambda s, p: [0.5, 0.0, 0.0, 0.5] if len(p) == 0 else [0.0, 0.0, 0.0, 1.0])
    found = run(table, [0], 3, beam=2, n_best=2)[0][0]
    assert [h.tokens for h in found] == [[], [0]]
    assert found[0].score == found[1].score


def test_greedy_takes_the_best_token_at_each_step():
    table = random_table(8, 5)
    found = run(table, [0, 1, 2, 3], 6)[0]
    for sentence, hypotheses in enumerate(found):
        tokens: list[int] = []
        while len(tokens) < 6:
            best = int(table(sentence, tuple(tokens)).argmax())
            if best == END:
                break
            tokens.append(best)
        assert hypotheses[0].tokens == tokens


def test_the_search_goes_on_while_a_live_hypothesis_can_win():
    # The short output finishes first and is probable; the long one costs nothing more and wins by the penalty.
    def rows(sentence, prefix):
        if len(prefix) == 0:
            return [0.4, 0.0, 0.0, 0.6]
        return [1.0, 0.0, 0.0, 0.0] if len(prefix) < 6 else [0.0, 0.0, 0.0, 1.0]

    assert run(_table(rows), [0], 6, beam=2)[0][0][0].tokens == []
    assert run(_table(rows), [0], 6, beam=2, penalty=WuPenalty(1.0))[0][0][0].tokens == [0] * 6


def test_the_search_stops_when_nothing_can_win():
    table = _table(lambda s, p: [0.001, 0.0005, 0.0005, 0.998])
    _, model = run(table, [0], 500, beam=4, penalty=WuPenalty(0.6))
    assert model.steps == 1


def test_without_the_exact_stop_a_full_beam_of_finished_hypotheses_ends_a_sentence():
    """One hypothesis finishes a step; the live ones stay probable enough to keep the exact search going to the bound."""
    table = _table(lambda s, p: [0.0, 0.5, 0.05, 0.45] if p else [0.0, 0.6, 0.4, 0.0])
    steps = {}
    for exact in (False, True):
        found, model = run(table, [0], 60, beam=2, penalty=WuPenalty(1.0), exact=exact)
        steps[exact] = model.steps
        assert found[0][0].score <= 0
    assert steps[False] < steps[True]
    wide = {
        exact: run(random_table(4), [0], 4, beam=256, penalty=WuPenalty(0.6), exact=exact)[0] for exact in (False, True)
    }
    assert wide[False] == wide[True]


def test_finished_sentences_leave_the_batch():
    def rows(sentence, prefix):
        return [0.0, 0.0, 0.0, 1.0] if len(prefix) == sentence else [0.0, 0.1, 0.9, 0.0]

    for beam in (1, 2):
        _, model = run(_table(rows), [1, 4], 9, beam=beam)
        assert model.rows[-1] == beam
        assert model.steps == 5


@pytest.mark.parametrize("beam", [1, 4])
def test_nan_is_refused(beam):
    table = _table(lambda s, p: [0.3, 0.3, float("nan"), 0.4])
    with pytest.raises(ModelError, match="NaN"):
        run(table, [0], 4, beam=beam)


def test_no_sentences():
    assert run(random_table(4), [], 3, beam=1)[0] == []
    assert run(random_table(4), [], 3, beam=3)[0] == []


def as_transformers(table, sentence, *, beam, longest, alpha):
    """`_beam_search` of transformers with `early_stopping=False` in plain Python: scores of sums, one sentence, no tensors."""
    live, kept = [(0.0, ())], []
    for step in range(longest + 1):
        extended = []
        for total, tokens in live:
            row = table(sentence, tokens).tolist()
            if step == longest:
                row = [0.0 if token == END else float("-inf") for token in range(len(row))]
            extended += [(total + value, (*tokens, token)) for token, value in enumerate(row)]
        ranked = sorted(extended, key=lambda o: -o[0])[: 2 * beam]
        ends = [(t / (step + 1) ** alpha, tokens[:-1]) for t, tokens in ranked[:beam] if tokens[-1] == END]
        kept = sorted(kept + [e for e in ends if e[0] > float("-inf")], key=lambda k: -k[0])[:beam]
        live = [o for o in ranked if o[1][-1] != END][:beam]
        if step == longest or (len(kept) == beam and live[0][0] / (step + 1) ** alpha <= kept[-1][0]):
            return kept
    raise AssertionError


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beam", [2, 4])
def test_the_rules_of_transformers(alpha: float, beam: int) -> None:
    table, sentences, longest = random_table(6, seed=5), list(range(60)), 9
    chosen = SearchOptions(
        beam=beam, n_best=beam, penalty=SockeyePenalty(alpha, 0.0), end=END, begin=2, banned=(), transformers=True
    )
    found = search(ToyModel(table), sentences, Limits.of([longest] * len(sentences)), chosen)
    for sentence, hypotheses in zip(sentences, found, strict=True):
        expected = as_transformers(table, sentence, beam=beam, longest=longest, alpha=alpha)
        assert [tuple(h.tokens) for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected])
    best = search(ToyModel(table), sentences, Limits.of([longest] * len(sentences)), replace(chosen, n_best=1))
    assert [h[0].tokens for h in best] == [h[0].tokens for h in found] and all(len(h) == 1 for h in best)
