"""Resamples: the same as sacreBLEU's, whatever their blocks; Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from phraseloom.errors import DataError
from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.compare import SEED, bootstrap_values, holm, resamples

from .test_bleu import corpus

METRICS = {"bleu": BLEU, "chrf": CHRF, "ter": TER}


def systems(noises: tuple[float, ...], sentences: int = 120) -> tuple[list[list[str]], list[str]]:
    _, references = corpus(11, sentences)
    texts = []
    for i, noise in enumerate(noises):
        rng = np.random.default_rng(100 + i)
        lines = []
        for reference in references:
            words = reference.split()
            lines.append(" ".join("wrong" if rng.random() < noise else w for w in words))
        texts.append(lines)
    return texts, references


@pytest.mark.parametrize("name", METRICS)
def test_the_same_as_sacrebleu_with_the_same_resamples(name: str) -> None:
    """Mean and interval of the resamples agree; sacreBLEU counts in float32, hence 1e-3."""
    (a, b, c), references = systems((0.25, 0.24, 0.1))
    scorer = make_scorer(name)
    statistics = [scorer.statistics(t, [references]) for t in (a, b, c)]
    values = bootstrap_values(scorer, statistics, samples=300)
    named: list[tuple[str, Sequence[str]]] = [("a", a), ("b", b), ("c", c)]
    _, theirs = PairedTest(named, {name: METRICS[name]()}, [references], test_type="bs", n_samples=300)()
    for counts, sampled, t in zip(statistics, values, theirs[scorer.name], strict=True):
        assert not isinstance(t, str)
        ordered = np.sort(sampled)
        assert scorer.value(counts.sum(0)) == pytest.approx(t.score, abs=1e-9)
        assert sampled.mean() == pytest.approx(t.mean, abs=1e-3)
        assert (ordered[-len(ordered) // 40] - ordered[len(ordered) // 40]) / 2 == pytest.approx(t.ci, abs=1e-3)


def test_values_are_the_scores_of_the_resampled_text() -> None:
    (a,), references = systems((0.2,), sentences=15)
    scorer = make_scorer("bleu")
    values = bootstrap_values(scorer, [scorer.statistics(a, [references])], samples=8, seed=5)
    indices = np.random.default_rng(5).choice(15, size=(8, 15), replace=True)
    for row, value in zip(indices, values[0], strict=True):
        again = scorer.corpus([a[i] for i in row], [[references[i] for i in row]])
        assert value == pytest.approx(again.value, abs=1e-9)


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_resamples_do_not_depend_on_the_block_size(rows: int) -> None:
    blocks = np.concatenate(list(resamples(13, 150, rows=rows)))
    whole = np.random.default_rng(SEED).choice(13, size=(150, 13), replace=True)
    assert np.array_equal(blocks, np.stack([np.bincount(r, minlength=13) for r in whole]))


def test_holm() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_other_numbers_of_sentences_are_refused() -> None:
    scorer = make_scorer("bleu")
    one, two = scorer.statistics(["a"], [["a"]]), scorer.statistics(["a", "b"], [["a", "b"]])
    with pytest.raises(DataError, match=r"\[1, 2\]"):
        bootstrap_values(scorer, [one, two], samples=5)
