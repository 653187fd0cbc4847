"""The paired bootstrap: the same numbers as sacreBLEU's, Koehn's p, and the behaviour at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from phraseloom.errors import DataError, UsageError
from phraseloom.metrics.bleu import Scorer, bleu_by_length, make_scorer
from phraseloom.metrics.compare import (
    SEED,
    all_pairs,
    bootstrap_by_length,
    bootstrap_values,
    holm,
    interval,
    paired_bootstrap,
    resamples,
)

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
    """Mean, interval and p-value agree; sacreBLEU counts in float32, hence 1e-4 on scores (and equal counts for p)."""
    (a, b, c), references = systems((0.25, 0.24, 0.1))
    scorer = make_scorer(name)
    statistics = [scorer.statistics(t, [references]) for t in (a, b, c)]
    mine = paired_bootstrap(scorer, statistics, samples=300)
    named = [("a", a), ("b", b), ("c", c)]
    _, theirs = PairedTest(named, {name: METRICS[name]()}, [references], test_type="bs", n_samples=300)()
    for m, t in zip(mine, theirs[scorer.name], strict=True):
        assert m.value == pytest.approx(t.score, abs=1e-9)
        assert m.mean == pytest.approx(t.mean, abs=1e-3)
        assert m.half_width == pytest.approx(t.ci, abs=1e-3)
        assert m.p_null == (pytest.approx(t.p_value, abs=1.5 / 301) if t.p_value is not None else None)


def test_another_seed_agrees_within_monte_carlo_error() -> None:
    (a, b), references = systems((0.25, 0.235))
    scorer = make_scorer("bleu")
    statistics = [scorer.statistics(t, [references]) for t in (a, b)]
    first, second = (paired_bootstrap(scorer, statistics, samples=2000, seed=s)[1] for s in (1, 2))
    assert first.p_win is not None
    assert second.p_win is not None
    error = np.sqrt(2 * max(first.p_win, 0.01) * (1 - first.p_win) / 2000)
    assert 0.001 < first.p_win < 0.5
    assert abs(first.p_win - second.p_win) < 5 * error
    assert first.mean == pytest.approx(second.mean, abs=5 * first.half_width / np.sqrt(2000))


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


@pytest.mark.parametrize("name", METRICS)
def test_the_better_system_wins_whichever_comes_first(name: str) -> None:
    (good, bad), references = systems((0.1, 0.4))
    scorer = make_scorer(name)
    statistics = [scorer.statistics(t, [references]) for t in (good, bad)]
    for order in (statistics, statistics[::-1]):
        result = paired_bootstrap(scorer, order, samples=200)[1]
        assert result.wins == 200
        assert result.p_win == 0.0
        assert result.p_null == pytest.approx(1 / 201, abs=1 / 201)


def test_a_system_against_itself_never_wins() -> None:
    (a,), references = systems((0.2,))
    scorer = make_scorer("bleu")
    statistics = scorer.statistics(a, [references])
    result = paired_bootstrap(scorer, [statistics, statistics.copy()], samples=50)[1]
    assert (result.difference, result.wins, result.ties, result.p_win) == (0.0, 0, 50, 1.0)
    assert result.p_null == pytest.approx(1 / 51)


def test_the_p_value_has_the_right_size_without_a_difference() -> None:
    """Two systems that are equally good: p(no win) below 0.05 about 1 time in 10 (two-sided), not much more."""
    scorer = Scorer("mean", _Mean())
    rng = np.random.default_rng(3)
    small = 0
    for trial in range(100):
        pair = [rng.normal(50, 5, size=(60, 1)) for _ in range(2)]
        p = paired_bootstrap(scorer, pair, samples=200, seed=trial)[1].p_win
        assert p is not None
        assert p <= 0.75
        small += p < 0.05
    assert 2 <= small <= 20


class _Mean:
    """A metric whose score is the mean of one number per sentence."""

    def _compute_score_from_stats(self, sums: list[float]) -> _Result:
        return _Result(sums[0] / 60)


class _Result:
    def __init__(self, score: float) -> None:
        self.score = score


def test_interval_is_the_central_95_percent() -> None:
    assert interval(np.arange(1000.0)) == (25, 974)
    assert interval(np.arange(999.0, -1, -1)) == (25, 974)


@pytest.mark.parametrize("name", METRICS)
def test_every_pair_has_sacrebleus_p(name: str) -> None:
    """sacreBLEU compares with its first system only: it is run once with each system in that place."""
    texts, references = systems((0.25, 0.24, 0.22, 0.1))
    scorer = make_scorer(name)
    pairs = all_pairs(scorer, [scorer.statistics(t, [references]) for t in texts], samples=300)
    assert [(p.system, p.other) for p in pairs] == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    for pair in pairs:
        two = [(str(i), texts[i]) for i in (pair.other, pair.system)]
        _, theirs = PairedTest(two, {name: METRICS[name]()}, [references], test_type="bs", n_samples=300)()
        first, second = theirs[scorer.name]
        assert pair.difference == pytest.approx(second.score - first.score, abs=1e-9)
        assert pair.p_null == pytest.approx(second.p_value, abs=1.5 / 301)


def test_pairs_are_paired_bootstraps_with_each_system_in_turn_as_the_baseline() -> None:
    texts, references = systems((0.25, 0.24, 0.1))
    scorer = make_scorer("bleu")
    statistics = [scorer.statistics(t, [references]) for t in texts]
    for pair in all_pairs(scorer, statistics, samples=100, seed=3):
        _, alone = paired_bootstrap(scorer, [statistics[pair.other], statistics[pair.system]], samples=100, seed=3)
        both = ("difference", "difference_low", "difference_high", "wins", "ties", "p_win", "p_null")
        assert [getattr(pair, f) for f in both] == [getattr(alone, f) for f in both]
        assert pair.difference_low < pair.difference < pair.difference_high


def test_holm() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_few_of_many_equal_systems_differ_after_holm() -> None:
    scorer, rng, found = Scorer("mean", _Mean()), np.random.default_rng(4), 0
    for trial in range(40):
        pairs = all_pairs(scorer, [rng.normal(50, 5, size=(60, 1)) for _ in range(6)], samples=200, seed=trial)
        assert all(p.p_holm >= p.p_null for p in pairs)
        found += any(p.p_holm < 0.05 for p in pairs)
    assert found <= 6


def test_groups_of_length_are_bootstrapped_alone() -> None:
    texts, references = systems((0.25, 0.1), sentences=180)
    scorer, lengths = make_scorer("bleu"), [len(r.split()) for r in references]
    statistics = [scorer.statistics(t, [references]) for t in texts]
    groups = bleu_by_length(scorer, statistics[0], lengths, edges=[7, 14, 19, 99])
    found = bootstrap_by_length(scorer, statistics, lengths, groups, samples=50)
    assert [g.sentences >= 30 for g in groups] == [f is not None for f in found] == [True, True, True, False, False]
    assert 0 < groups[3].sentences < 30
    for group, tested in zip(groups[:3], found, strict=False):
        inside = [i for i, n in enumerate(lengths) if n > group.above and n <= (group.up_to or 99)]
        alone = [scorer.statistics([t[i] for i in inside], [[references[i] for i in inside]]) for t in texts]
        assert tested == paired_bootstrap(scorer, alone, samples=50)
        assert tested is not None
        assert group.score is not None
        assert tested[0].value == group.score.value
        assert tested[0].low <= tested[0].mean <= tested[0].high


def test_one_sentence_and_empty_hypotheses() -> None:
    scorer = make_scorer("bleu")
    empty = scorer.statistics([""], [["a b c d"]])
    whole = scorer.statistics(["a b c d"], [["a b c d"]])
    result = paired_bootstrap(scorer, [empty, whole], samples=10)
    assert result[0].value == 0.0
    assert result[1].p_win == 0.0


def test_misuse() -> None:
    scorer = make_scorer("bleu")
    one, two = scorer.statistics(["a"], [["a"]]), scorer.statistics(["a", "b"], [["a", "b"]])
    with pytest.raises(UsageError, match="at least 1"):
        paired_bootstrap(scorer, [one], samples=0)
    with pytest.raises(UsageError, match="at least 1"):
        all_pairs(scorer, [one], samples=0)
    with pytest.raises(DataError, match=r"\[1, 2\]"):
        paired_bootstrap(scorer, [one, two], samples=5)
