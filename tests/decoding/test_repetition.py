"""`no_repeat_ngram_size`: no n-gram twice, by greedy search, beam search and sampling; EOS is never banned."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.decoding.conftest import lines_of_words
from tests.decoding.test_sampled_translations import Sentences
from tests.decoding.toys import END, ToyModel, random_table

from phraseloom.decoding.limits import Limits, SampleSeed, Sampling, SearchOptions
from phraseloom.decoding.repetition import ban_repeats_, repeated_tokens
from phraseloom.decoding.search import search
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ModelError

SEARCHES = {"greedy": {"beam": 1}, "beam": {"beam": 3, "n_best": 3}, "samples": {"n_best": 5, "sampling": Sampling()}}


def ngrams(tokens: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


def test_banned_tokens_by_definition() -> None:
    rows = torch.tensor([[4, 5, 4, 6, 4], [5, 5, 5, 5, 5], [4, 5, 6, 7, 8]])
    for size in (1, 2, 3):
        found = repeated_tokens(rows, size)
        for row, banned in zip(rows.tolist(), found.tolist(), strict=True):
            known = set(ngrams(row, size))
            expected = {v for v in range(10) if (*row[len(row) - size + 1 :], v) in known}
            assert set(banned) - {-1} == expected
    assert repeated_tokens(rows, 0).shape == repeated_tokens(rows, 6).shape == (3, 0)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("how", SEARCHES)
def test_no_ngram_comes_twice(how: str, size: int) -> None:
    """A model that likes two tokens much more than the others repeats them unless it may not."""
    base = random_table(40, 1, 0.5)

    def table(sentence: int, prefix: tuple[int, ...]) -> torch.Tensor:
        row = base(sentence, prefix).clone()
        row[[5, 6]] += 5.0
        return row.log_softmax(-1)

    outcomes = []
    for guard in (0, size):
        options = SearchOptions(
            end=END, begin=0, banned=(0, 1, 2), no_repeat_ngram_size=guard, seeds=[SampleSeed(1, n) for n in range(3)],
            **SEARCHES[how],
        )  # fmt: skip
        found = search(ToyModel(table), Sentences([0, 1, 2]), Limits.of([9] * 3, [8] * 3), options)
        outcomes.append([ngrams(h.tokens, size) for hypotheses in found for h in hypotheses])
    assert any(len(set(one)) < len(one) for one in outcomes[0])
    assert all(len(set(one)) == len(one) for one in outcomes[1])


def test_candidates_that_repeat_are_banned_but_never_eos() -> None:
    log_probs, ids = torch.zeros(2, 3), torch.tensor([[END, 4, 5], [5, END, 6]])
    ban_repeats_(log_probs, ids, torch.tensor([[END, 5, -1], [-1, -1, 6]]), END)
    assert log_probs.isinf().tolist() == [[False, False, True], [False, False, True]]


@pytest.mark.parametrize("how", SEARCHES)
def test_eos_is_never_banned_and_a_prefix_may_repeat(how: str) -> None:
    options = SearchOptions(
        end=END, begin=0, banned=(0, 1, 2), no_repeat_ngram_size=1, seeds=[SampleSeed(1, 0)], **SEARCHES[how]
    )
    model = ToyModel(random_table(6, 0))  # two ordinary tokens
    limits = Limits.of([9], prefixes=[[4, 5, 4]])
    for [*found] in search(model, Sentences([0]), limits, options):
        assert found and all(h.tokens == [4, 5, 4] and not h.cut for h in found)
    with pytest.raises(
        ModelError, match=r"no output of the allowed length .* relax min_length or no_repeat_ngram_size"
    ):
        search(model, Sentences([0]), Limits.of([9], [4]), options)


def test_a_beam_is_that_of_enumeration() -> None:
    """A beam as wide as the space: the best of all outputs without a repeated bigram."""
    table = random_table(6, 2)
    options = SearchOptions(beam=200, end=END, begin=0, banned=(0, 1, 2), no_repeat_ngram_size=2)
    [[best]] = search(ToyModel(table), [0], Limits.of([5]), options)

    def outputs(prefix: tuple[int, ...], total: float) -> list[tuple[float, list[int]]]:
        row = table(0, prefix)
        result = [(total + float(row[END]), list(prefix))]
        for v in (4, 5):
            longer = (*prefix, v)
            if len(longer) <= 5 and len(set(pairwise(longer))) == len(longer) - 1:
                result += outputs(longer, total + float(row[v]))
        return result

    log_prob, tokens = max(outputs((), 0.0))
    assert (best.tokens, best.log_prob) == (tokens, pytest.approx(log_prob))


def test_by_the_translator(translator: Translator) -> None:
    lines = lines_of_words(10, seed=2)
    options = {
        "no_repeat_ngram_size": 2,
        "min_length": {"factor": 0.0, "constant": 12},
        "max_length": {"factor": 0.0, "constant": 20},
    }
    for more in ({"beam": 1}, {"beam": 4}, {"sample": True}):
        for t in translator.translate(lines, **options, **more):
            assert len(set(pairwise(t.tokens))) == len(t.tokens) - 1
