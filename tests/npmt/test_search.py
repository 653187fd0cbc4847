"""Search of segmental models against enumeration of all segmentations."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.npmt.toys import END, START, WORDS, ToySegmental

import phraseloom.npmt.candidates as segments_module
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.penalties import NoPenalty, SockeyePenalty, WuPenalty
from phraseloom.decoding.search import search
from phraseloom.errors import ModelError, UsageError
from phraseloom.npmt.candidates import best_segments, greedy_segments

WIDE = 300
BANNED = (0, 1, 2)
PENALTIES = {"none": NoPenalty(), "wu": WuPenalty(1.0), "sockeye": SockeyePenalty(1.0, 0.0)}


def run(model, lengths, *, names=None, longest=100, shortest=None, prefixes=None, **options):
    longest = [longest] * len(lengths) if isinstance(longest, int) else longest
    wanted = SearchOptions(banned=BANNED, **options)
    return search(model, model.memory(lengths, names), Limits.of(longest, shortest, prefixes), wanted)


def truth(model, sentence, positions, *, penalty=None, bonus=0.0, keep=lambda words: True):
    """(score, log p, words, ends) of all outputs, best first."""
    divisor = (penalty or NoPenalty()).divisor
    found = [
        ((p + bonus * len(words)) / float(divisor(torch.tensor(len(words) + 1.0, dtype=torch.float64))), p, words, ends)
        for words, (p, ends, _) in model.outputs(sentence, positions).items()
        if keep(words)
    ]
    return sorted(found, key=lambda f: -f[0])


def ends_of(hypothesis, positions):
    """The end of the segment of every position, empty ones too."""
    ends, here = {s.source: s.end for s in hypothesis.segments}, 0
    result = []
    for t in range(positions):
        here = ends.get(t, here)
        result.append(here)
    return tuple(result)


def assert_is(found, expected, positions):
    assert [tuple(h.tokens) for h in found] == [words for _, _, words, _ in expected]
    assert [h.score for h in found] == pytest.approx([s for s, _, _, _ in expected], abs=1e-9)
    assert [h.log_prob for h in found] == pytest.approx([p for _, p, _, _ in expected], abs=1e-9)
    assert [ends_of(h, positions) for h in found] == [ends for _, _, _, ends in expected]


@pytest.mark.parametrize("connects", [False, True])
@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("seed", range(3))
def test_wide_beam_is_enumeration(seed, name, connects):
    model, lengths = ToySegmental(seed, connects=connects), [3, 1, 2]
    found = run(model, lengths, beam=WIDE, n_best=40, penalty=PENALTIES[name], word_bonus=0.3 * seed)
    for b, positions in enumerate(lengths):
        expected = truth(model, b, positions, penalty=PENALTIES[name], bonus=0.3 * seed)
        assert_is(found[b], expected[:40], positions)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    connects=st.booleans(),
    positions=st.integers(1, 3),
    longest=st.integers(0, 7),
    shortest=st.integers(0, 7),
    prefix=st.lists(st.sampled_from([*WORDS]), max_size=3),
)
def test_wide_beam_is_enumeration_with_bounds_and_a_beginning(seed, connects, positions, longest, shortest, prefix):
    model = ToySegmental(seed, connects=connects)
    prefix = tuple(prefix[: 2 * positions])
    limits = {"longest": [9, longest], "shortest": [0, shortest], "prefixes": [(), prefix]}
    found = run(model, [2, positions], beam=WIDE, n_best=WIDE, **limits)
    high = max(longest, len(prefix))
    low = min(max(shortest, len(prefix)), high, 2 * positions)

    def keep(words):
        return words[: len(prefix)] == prefix and low <= len(words) <= high

    assert_is(found[0], truth(model, 0, 2), 2)
    assert_is(found[1], truth(model, 1, positions, keep=keep), positions)
    assert [h.cut for h in found[1]] == [len(h.tokens) == high < 2 * positions for h in found[1]]


@pytest.mark.parametrize("connects", [False, True])
def test_a_beam_never_claims_more_than_there_is(connects):
    short = 0
    for seed in range(12):
        model = ToySegmental(seed, connects=connects, sharpness=0.7)
        (found,) = run(model, [3], beam=3, n_best=3)
        every = model.outputs(0, 3)
        assert len({tuple(h.tokens) for h in found}) == 3
        for h in found:
            assert h.log_prob <= every[tuple(h.tokens)][0] + 1e-12
            short += h.log_prob < every[tuple(h.tokens)][0] - 1e-6
            assert h.log_prob >= sum_of(model, 0, h, 3) - 1e-12
    assert short  # the beams here are narrow enough to lose something


def sum_of(model, sentence, hypothesis, positions):
    """log p of the segmentation of a hypothesis; its segments say the same."""
    total, begin, words = 0.0, 0, tuple(hypothesis.tokens)
    told = {s.source: s for s in hypothesis.segments}
    for t, end in enumerate(ends_of(hypothesis, positions)):
        own = model.segment_log_prob(sentence, t, words[:begin], words[begin:end])
        if t in told:
            assert (told[t].start, told[t].end) == (begin, end)
            assert told[t].log_prob == pytest.approx(own, abs=1e-9)
        total, begin = total + own, end
    assert begin == len(words)
    return total


def slow_greedy(model, sentence, positions, bonus):
    words, total = (), 0.0
    for t in range(positions):
        segment = ()
        while True:
            row = model.log_probs(sentence, t, words, segment)
            allowed = [END] if len(segment) == model.max_segment else [*WORDS, END]
            best = max(allowed, key=lambda i: (float(row[i]) + bonus * (i != END), -i))
            total += float(row[best])
            if best == END:
                break
            segment += (best,)
        words += segment
    return words, total


@pytest.mark.parametrize("bonus", [0.0, 0.8, -0.5])
@pytest.mark.parametrize("connects", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_greedy_is_the_loop(seed, connects, bonus):
    model, lengths = ToySegmental(seed, max_segment=3, connects=connects), [4, 0, 2, 5]
    found = run(model, lengths, word_bonus=bonus)
    for b, positions in enumerate(lengths):
        words, total = slow_greedy(model, b, positions, bonus)
        (hypothesis,) = found[b]
        assert hypothesis.score == pytest.approx(total + bonus * len(words), abs=1e-9)
        assert tuple(hypothesis.tokens) == words
        assert hypothesis.log_prob == pytest.approx(total, abs=1e-9)
        assert hypothesis.log_prob == pytest.approx(sum_of(model, b, hypothesis, positions), abs=1e-9)


def test_greedy_keeps_the_bounds():
    for seed in range(12):
        model = ToySegmental(seed)
        limits = {"longest": [3, 9, 2], "shortest": [1, 5, 2], "prefixes": [(), (), (5, 4)]}
        found = [some[0] for some in run(model, [3, 3, 3], **limits)]
        assert 1 <= len(found[0].tokens) <= 3
        assert len(found[1].tokens) >= 5
        assert found[2].tokens == [5, 4]
        for b in (0, 1):
            assert found[b].log_prob == pytest.approx(sum_of(model, b, found[b], 3), abs=1e-9)


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("connects", [False, True])
def test_a_sentence_does_not_depend_on_the_others(beam, connects):
    lengths, prefixes = [3, 5, 1, 0, 4, 2], [(), (4,), (), (), (), (5, 5)]
    limits = {"longest": [9, 9, 9, 9, 3, 9], "shortest": [1, 0, 2, 1, 3, 0]}
    together = run(ToySegmental(1, connects=connects), lengths, beam=beam, n_best=beam, prefixes=prefixes, **limits)
    for b, positions in enumerate(lengths):
        own = {name: [values[b]] for name, values in limits.items()}
        alone = run(
            ToySegmental(1, connects=connects),
            [positions],
            names=[b],
            beam=beam,
            n_best=beam,
            prefixes=[prefixes[b]],
            **own,
        )
        assert alone[0] == together[b]


def slow_beam(model, sentence, positions, beam, bonus):
    """Words → log p; at each position the hypotheses share one beam over prefixes, which is never cut short."""
    hypotheses = {(): 0.0}
    for t in range(positions):
        row_of = functools.partial(model.log_probs, sentence, t)
        live = [(p + bonus * len(before), before, ()) for before, p in hypotheses.items()]
        finished = []
        merged = {before: p + float(row_of(before, ())[END]) for before, p in hypotheses.items()}
        for length in range(model.max_segment + 1):
            if length:
                finished += [
                    (score + float(row_of(before, words)[END]), before, words) for score, before, words in live
                ]
            longer = [
                (score + float(row_of(before, words)[w]) + bonus, before, (*words, w))
                for score, before, words in live
                for w in WORDS
            ]
            live = sorted(longer, key=lambda found: -found[0])[:beam]
        for score, before, words in sorted(finished, key=lambda found: -found[0])[:beam]:
            joined = before + words
            merged[joined] = math.log(math.exp(merged.get(joined, -math.inf)) + math.exp(score - bonus * len(joined)))
        hypotheses = dict(sorted(merged.items(), key=lambda item: -(item[1] + bonus * len(item[0])))[:beam])
    return hypotheses


@pytest.mark.parametrize("bonus", [0.0, 0.8, -0.5])
@pytest.mark.parametrize("beam", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_hypotheses_share_the_beam_over_prefixes_if_segments_depend_on_the_words_before(seed, beam, bonus):
    model, lengths = ToySegmental(seed, max_segment=3, connects=True), [4, 0, 2, 5]
    found = run(model, lengths, beam=beam, n_best=beam, word_bonus=bonus)
    for b, positions in enumerate(lengths):
        expected = slow_beam(model, b, positions, beam, bonus)
        assert {tuple(h.tokens): h.log_prob for h in found[b]} == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("beam", [1, WIDE])
def test_all_positions_at_once_find_what_the_walk_finds(beam):
    class Walked(ToySegmental):
        """The same probabilities, but the search cannot know that they need no history."""

        def log_probs(self, sentence, position, before, words):
            return ToySegmental.log_probs(plain, sentence, position, (), words)

    for seed in range(6):
        plain = ToySegmental(seed, max_segment=3)
        walked, at_once = (run(m, [2, 1], beam=beam, n_best=40) for m in (Walked(seed, 3, connects=True), plain))
        for some, others in zip(walked, at_once, strict=True):
            assert [h.tokens for h in some] == [h.tokens for h in others]
            assert [h.log_prob for h in some] == pytest.approx([h.log_prob for h in others], abs=1e-12)


def test_the_segments_of_all_positions_come_from_one_call_a_word():
    model = ToySegmental(3, max_segment=3)
    run(model, [4, 2, 7], beam=4)
    assert len(model.calls) <= 4
    assert model.calls[0] == 13
    assert max(model.calls) <= 13 * 4
    connected = ToySegmental(3, max_segment=3, connects=True)
    run(connected, [4, 2, 7], beam=4)
    assert len(connected.calls) <= 4 * 7
    assert connected.calls[0] == 3
    assert max(connected.calls) <= 3 * 4


def row_of(**chances):
    """Log-probabilities of `end`, `w4`, `w5`; nothing else is likely."""
    row = torch.full((END + 1,), -60.0)
    for name, chance in chances.items():
        row[END if name == "end" else int(name[1:])] = math.log(chance)
    return row


def test_the_word_bonus_counts_whenever_something_is_left_out():
    """Of hypotheses and of segments: two are kept, and with the bonus they are the longer ones."""
    spoiled = {(0, 1, ()): row_of(end=1.0), (0, 0, ()): row_of(end=0.6, w4=0.25, w5=0.15)}
    spoiled |= {(0, 0, (4,)): row_of(end=0.9, w4=0.1), (0, 0, (5,)): row_of(end=0.9, w4=0.1)}
    spoiled |= {(0, 0, w): row_of(end=1.0) for w in _products(2)}
    words = [
        [tuple(h.tokens) for h in run(ToySegmental(0, spoiled=spoiled), [2], beam=2, n_best=2, word_bonus=bonus)[0]]
        for bonus in (0.0, 1.5, 5.0)
    ]
    assert words == [[(), (4,)], [(4,), (5,)], [(4, 4), (5, 4)]]
    states = ToySegmental(0).memory([1]).states_BSD[0]
    for bonus in (-2.0, 0.7, 5.0):
        model = ToySegmental(7, max_segment=3)
        (some,) = best_segments(model, states, None, count=20, banned=(*BANNED, 3), bonus=bonus)
        ranked = sorted(some, key=lambda c: -(c.log_prob + bonus * len(c.words)))
        assert some == ranked
        assert [c.log_prob for c in some] == pytest.approx([model.segment_log_prob(0, 0, (), c.words) for c in some])
        (few,) = best_segments(model, states, None, count=8, banned=(*BANNED, 3), bonus=bonus)
        assert [c.words for c in few if c.words] == [c.words for c in ranked if c.words][:8]


def test_a_prefix_lives_on_for_the_bonus_of_longer_segments():
    """Two words are worth less than one here, three are worth most."""
    spoiled = {(0, 0, ()): row_of(end=0.1, w4=0.9), (0, 0, (4,)): row_of(end=0.999, w4=0.001)}
    spoiled |= {(0, 0, (4, 4)): row_of(end=0.001, w4=0.999), (0, 0, (4, 4, 4)): row_of(end=1.0)}
    model = ToySegmental(0, max_segment=3, spoiled=spoiled)
    states = model.memory([1]).states_BSD[0]
    (some,) = best_segments(model, states, None, count=1, banned=(*BANNED, 3), bonus=5.0)
    assert [c.words for c in some] == [(4, 4, 4), ()]


def test_segments_are_those_of_enumeration(monkeypatch):
    model = ToySegmental(5, max_segment=3)
    states = model.memory([4]).states_BSD[0]
    every = [(), *[w for n in (1, 2, 3) for w in _products(n)]]
    for chunk in (2**24, 1, 100):
        monkeypatch.setattr(segments_module, "CHUNK", chunk)
        for count in (1, 2, 8, 20):
            for t, some in enumerate(best_segments(model, states, None, count=count, banned=(*BANNED, 3))):
                truths = sorted(((model.segment_log_prob(0, t, (), w), w) for w in every), reverse=True)
                if count >= 8:
                    kept = [w for _, w in truths if w][:count]
                    assert [c.words for c in some] == [w for _, w in truths if w in kept or not w]
                assert len(some) == min(count, 14) + 1
                assert () in [c.words for c in some]
                for words, log_prob in some:
                    assert log_prob == pytest.approx(model.segment_log_prob(0, t, (), words), abs=1e-9)


def _products(size):
    if not size:
        return [()]
    return [(*w, x) for w in _products(size - 1) for x in WORDS]


def test_a_prefix_that_cannot_become_a_segment_is_not_fed():
    sure = torch.full((END + 1,), -50.0)
    sure[END] = math.log(0.9)
    sure[4] = math.log(0.06)
    sure[5] = math.log(0.04)
    model = ToySegmental(0, max_segment=6, spoiled={(0, 0, ()): sure, (0, 0, (4,)): sure, (0, 0, (5,)): sure})
    states = model.memory([1]).states_BSD[0]
    (some,) = best_segments(model, states, None, count=2, banned=(*BANNED, 3))
    assert [c.words for c in some] == [(), (4,), (5,)]
    assert len(model.calls) == 2


def test_equals_go_by_rank_and_lower_id():
    even = torch.full((END + 1,), -math.log(END + 1))
    spoiled = {(0, t, words): even for t in range(2) for n in range(3) for words in _products(n)}
    model = ToySegmental(0, spoiled=spoiled)
    states = model.memory([1]).states_BSD[0]
    (some,) = best_segments(model, states, None, count=20, banned=(*BANNED, 3))
    assert [c.words for c in some] == [(), (4,), (5,), (4, 4), (4, 5), (5, 4), (5, 5)]
    assert greedy_segments(model, states, None, banned=(*BANNED, 3))[0].words == (4, 4)


@pytest.mark.parametrize("beam", [1, 4])
def test_banned_words_and_the_end_of_sentence_are_never_emitted(beam):
    loud = torch.full((END + 1,), -9.0)
    loud[[0, 1, 2, 3, START]] = -0.1
    spoiled = {(0, t, words): loud for t in range(2) for n in range(3) for words in _products(n)}
    for h in run(ToySegmental(0, spoiled=spoiled), [2], beam=beam, n_best=beam)[0]:
        assert set(h.tokens) <= {4, 5}
    (forced, *_) = run(ToySegmental(0, spoiled=spoiled), [2], beam=beam, prefixes=[(1,)])[0]
    assert forced.tokens[0] == 1


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_the_end_of_the_longest_segment_counts(beam):
    words = torch.full((END + 1,), -20.0)
    words[4] = math.log(0.99)
    spoiled = {(0, 0, w): words for n in range(3) for w in _products(n)}
    best = run(ToySegmental(0, spoiled=spoiled), [1], beam=beam, shortest=[2])[0][0]
    assert best.tokens == [4, 4]
    assert best.log_prob == pytest.approx(2 * math.log(0.99) - 20.0)


def test_float32_probabilities_above_one_do_not_count_as_such():
    above = torch.full((END + 1,), -30.0)
    above[END] = 1e-6
    model = ToySegmental(0, dtype=torch.float32, spoiled={(0, 0, ()): above})
    assert run(model, [1])[0][0].log_prob == 0.0
    assert run(model, [1], beam=3)[0][0].log_prob == 0.0


@pytest.mark.parametrize("beam", [1, 3])
def test_a_broken_model_is_refused(beam):
    broken = torch.full((END + 1,), math.nan)
    with pytest.raises(ModelError, match="NaN"):
        run(ToySegmental(0, spoiled={(0, 1, ()): broken}), [2], beam=beam)
    silent = torch.full((END + 1,), -math.inf)
    with pytest.raises(ModelError, match="no output of the allowed length"):
        run(ToySegmental(0, spoiled={(0, 1, ()): silent}), [2], beam=beam)


def test_a_beginning_longer_than_the_source_can_emit_is_refused():
    with pytest.raises(UsageError, match="prefix of 5 subwords, but 2 source subwords emit at most 4"):
        run(ToySegmental(0), [2], prefixes=[(4, 4, 4, 4, 4)])


def test_nothing_to_search():
    assert run(ToySegmental(0), []) == []
    assert run(ToySegmental(0), [0], beam=3, shortest=[1])[0][0].tokens == []


@pytest.mark.parametrize("beam", [1, 2])
def test_segments_that_are_too_long_take_no_place_from_those_that_fit(beam):
    longer = {w: row_of(end=0.01, w4=0.98, w5=0.01) for n in (0, 2, 3) for w in _products(n)}
    longer |= {w: row_of(end=0.001, w4=0.5, w5=0.499) for w in _products(1)}
    model = ToySegmental(0, max_segment=3, spoiled={(0, 0, words): row for words, row in longer.items()})
    best = run(model, [1], beam=beam, longest=1, shortest=[1])[0][0]
    assert best.tokens == [4]
    assert best.log_prob == pytest.approx(math.log(0.98 * 0.001))


@pytest.mark.parametrize("connects", [False, True])
@pytest.mark.parametrize("beam", [1, 2])
def test_a_beginning_loses_none_of_its_probability(beam, connects):
    """However narrow the beam: the sum over all cuts of the beginning is there."""
    model = ToySegmental(2, max_segment=3, connects=connects)
    prefix = (4, 5, 4, 4, 5)
    (found,) = run(model, [3], prefixes=[prefix], longest=5, beam=beam)[0]
    assert tuple(found.tokens) == prefix
    assert found.log_prob == pytest.approx(model.outputs(0, 3)[prefix][0], abs=1e-9)
