"""Samples of translations: their distribution, what they depend on, bounds, prefixes, and n-best lists."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from tests.decoding.conftest import lines_of_words
from tests.decoding.toys import END, ToyModel, random_table

from phraseloom.decoding.limits import Limits, SampleSeed, Sampling, SearchOptions
from phraseloom.decoding.penalties import WuPenalty
from phraseloom.decoding.search import search
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ConfigError, ModelError, UsageError

SIZE, BANNED = 7, (0, 1, 2)


class Sentences(list):
    """The memory of a toy model: the numbers of its sentences."""

    def select(self, rows: torch.Tensor) -> Sentences:
        return Sentences(self[i] for i in rows.tolist())


def sampled(
    sentences: list[int], seeds: list[SampleSeed], count: int = 1, *, longest: int = 6, table: Any = None,
    limits: Limits | None = None, sampling: Sampling | None = None, **options: Any,
) -> Any:  # fmt: skip
    model = ToyModel(table or random_table(SIZE, 3, 1.0))
    chosen = SearchOptions(
        n_best=count, end=END, begin=0, banned=BANNED, sampling=sampling or Sampling(), seeds=seeds, **options
    )
    return search(model, Sentences(sentences), limits or Limits.of([longest] * len(sentences)), chosen)


def chi_square(counts: Counter, p: torch.Tensor, total: int) -> float:
    return sum((counts[t] - total * float(p[t])) ** 2 / (total * float(p[t])) for t in range(SIZE) if p[t] > 0)


def allowed(prefix: tuple[int, ...], temperature: float = 1.0) -> torch.Tensor:
    p = random_table(SIZE, 3, 1.0)(0, prefix).exp() ** (1 / temperature)
    p[list(BANNED)] = 0.0
    return p / p.sum()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_samples_follow_the_distribution(temperature: float) -> None:
    """First tokens, and second tokens after one of them: chi-square far below its 99.9 % limit of 16.3 (3 degrees)."""
    count = 3000
    [samples] = sampled([0], [SampleSeed(1, 0)], count, sampling=Sampling(temperature))
    firsts = Counter((s.tokens or [END])[0] for s in samples)
    assert chi_square(firsts, allowed((), temperature), count) < 12
    first = firsts.most_common(1)[0][0] if firsts.most_common(1)[0][0] != END else firsts.most_common(2)[1][0]
    seconds = Counter(s.tokens[1] if len(s.tokens) > 1 else END for s in samples if s.tokens[:1] == [first])
    assert chi_square(seconds, allowed((first,), temperature), seconds.total()) < 12
    assert chi_square(firsts, allowed((), temperature * 1.5), count) > 30


def test_the_log_probability_is_that_of_the_model() -> None:
    table = random_table(SIZE, 3, 1.0)
    [samples] = sampled([4], [SampleSeed(2, 0)], 30, longest=4, sampling=Sampling(2.0, 3), penalty=WuPenalty(0.6))
    for s in samples:
        total = sum(float(table(4, tuple(s.tokens[:i]))[t]) for i, t in enumerate([*s.tokens, END]))
        assert s.log_prob == pytest.approx(total)
        assert s.score == pytest.approx(total / ((5 + len(s.tokens) + 1) / 6) ** 0.6)
        assert len(s.tokens) <= 4
    assert any(s.cut for s in samples) and not all(s.cut for s in samples)


def test_a_sample_depends_on_seed_line_part_and_its_number_only() -> None:
    seeds = [SampleSeed(1, n) for n in range(5)]
    together = sampled([0, 1, 2, 3, 4], seeds, 3)
    for sentence, seed, samples in zip(range(5), seeds, together, strict=True):
        assert sampled([sentence], [seed], 3) == [samples]
        assert sampled([sentence], [seed], 2) == [samples[:2]]
    order = [3, 0, 4, 1, 2]
    assert sampled(order, [seeds[n] for n in order], 3) == [together[n] for n in order]
    same = [s.tokens for [s] in sampled([0] * 40, [SampleSeed(1, 0)] * 40)]
    assert all(tokens == same[0] for tokens in same)
    for others in (
        [SampleSeed(1, n) for n in range(40)],
        [SampleSeed(n, 0) for n in range(40)],
        [SampleSeed(1, 0, n) for n in range(40)],
    ):
        assert len({tuple(s.tokens) for [s] in sampled([0] * 40, others)}) > 5


def test_bounds_and_prefixes_hold() -> None:
    limits = Limits.of([5, 5, 2], [4, 0, 0], [[], [6, 5], []])
    low, forced, short = sampled([0, 1, 2], [SampleSeed(1, n) for n in range(3)], 40, limits=limits)
    assert {len(s.tokens) for s in low} == {4, 5}
    assert all(s.tokens[:2] == [6, 5] for s in forced) and len({tuple(s.tokens) for s in forced}) > 5
    assert max(len(s.tokens) for s in short) == 2
    table = random_table(SIZE, 3, 1.0)
    for s in forced:
        total = sum(float(table(1, tuple(s.tokens[:i]))[t]) for i, t in enumerate([*s.tokens, END]))
        assert s.log_prob == pytest.approx(total)


def test_a_model_without_an_allowed_token_is_refused() -> None:
    only_end = torch.full((SIZE,), float("-inf"), dtype=torch.float64)
    only_end[END] = 0.0
    with pytest.raises(ModelError, match="no output of the allowed length"):
        sampled([0], [SampleSeed(1, 0)], table=lambda *_: only_end, limits=Limits.of([4], [2]))
    with pytest.raises(ModelError, match="NaN"):
        sampled([0], [SampleSeed(1, 0)], table=lambda *_: only_end * float("nan"))


def texts(found: list[Any]) -> list[list[str]]:
    return [[t.text for t in one.n_best] for one in found]


def test_translations_do_not_depend_on_batches(translator: Translator) -> None:
    lines = [*lines_of_words(12), "", "sleeps"]
    options = {"sample": True, "n_best": 3, "seed": 5, "top_p": 0.9, "max_length": {"factor": 0.0, "constant": 9}}
    whole = translator.translate(lines, **options)
    assert len({t.text for t in whole}) > 8 and whole[12].blank
    for batch, workers in ((1, 1), (3, 2)):
        assert texts(translator.translate(lines, batch_sentences=batch, workers=workers, **options)) == texts(whole)
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = translator.translate([lines[i] for i in order], numbers=order, **options)
    assert texts(shuffled) == texts([whole[i] for i in order])
    assert texts(translator.translate_iterable(lines, window=4, **options)) == texts(whole)
    for found in whole:
        assert [t.log_prob for t in found.n_best] == sorted((t.log_prob for t in found.n_best), reverse=True)
    assert texts(translator.translate(lines, **options | {"seed": 6})) != texts(whole)


def test_a_line_has_its_own_seed(translator: Translator) -> None:
    first, again, other = translator.translate(["a cow is small"] * 3, sample=True, seeds=[3, 3, 4], top_k=20)
    assert first == again != other
    numbered = translator.translate(["a cow is small"] * 2, sample=True, top_k=20, seed=3)
    assert numbered[0] == first != numbered[1]
    with pytest.raises(UsageError, match="1 line, but 2 seeds"):
        translator.translate(["a"], seeds=[1, 2])


def test_parts_of_a_line_are_drawn_apart(translator: Translator) -> None:
    [found] = translator.translate(["a cow"] * 0 + ["cow " * 40], sample=True, max_input_tokens=8, long_lines="split")
    assert found.parts > 3
    assert len(set(found.text.split())) > 3


def test_what_comes_with_a_translation_comes_with_a_sample(translator: Translator) -> None:
    [found] = translator.translate(["a cow"], sample=True, n_best=2, alignments=True)
    assert all(t.alignment is not None and len(t.alignment) == len(t.words) for t in found.n_best)
    [greedy] = translator.translate(["a cow"], beam=1)
    [cold] = translator.translate(["a cow"], sample=True, temperature=0.001)
    assert cold.text == greedy.text and cold.log_prob == pytest.approx(greedy.log_prob, abs=1e-4)
    [one] = translator.translate(["a cow"], sample=True, top_k=1)
    assert one.text == greedy.text


@pytest.mark.parametrize("options", [{"top_p": 0.0}, {"top_p": 1.1}, {"top_k": 0}, {"temperature": 0.0}, {"seed": -1}])
def test_bad_options_are_refused(translator: Translator, options: dict) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(options))}: should be"):
        translator.translate(["a"], sample=True, **options)
