"""Scores of systems with several runs: one run is what `evaluate` says, several are their mean on the same resamples."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from phraseloom.errors import DataError, UsageError
from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.compare import bootstrap_values, holm
from phraseloom.metrics.seeds import TWO_SEEDS, SeedScores, compare_seeds, compares_two_seeds
from phraseloom.report.evaluation import ByLength, evaluate, render
from phraseloom.reproduce.writing import LEGEND

WORDS = ["the", "old", "man", "sees", "a", "small", "red", "house", "near", "big", "dark", "winter", "garden"]


def text(seed: int, wrong: float) -> list[str]:
    """Sixty lines; a share of the words is not that of the reference."""
    rng, noise = random.Random(0), random.Random(seed)
    lines = [rng.choices(WORDS, k=rng.randint(3, 24)) for _ in range(60)]
    return [" ".join(noise.choice(WORDS) if noise.random() < wrong else w for w in line) for line in lines]


REFERENCE, BASE, NEW, OTHER = text(0, 0), text(1, 0.4), text(2, 0.3), text(3, 0.35)
SCORERS = [make_scorer("bleu")]


def rows(*texts: list[str]) -> list[np.ndarray]:
    return [SCORERS[0].statistics(lines, [REFERENCE]) for lines in texts]


def scores(*texts: list[str], samples: int = 60) -> SeedScores:
    values = [SCORERS[0].corpus(lines, [REFERENCE]).value for lines in texts]
    return SeedScores(np.array(values), bootstrap_values(SCORERS[0], rows(*texts), samples=samples))


def test_several_runs_are_compared_as_seeds() -> None:
    """Score, deviation and interval of three runs each are those of metrics/seeds.py, on the same resamples."""
    base, new = [BASE, text(4, 0.42), text(5, 0.38)], [NEW, OTHER, text(6, 0.28)]
    found = evaluate({"base": base, "new": new}, [REFERENCE], SCORERS, bootstrap=60)
    score = found.systems[1].scores[0]
    flat = bootstrap_values(SCORERS[0], rows(*base, *new), samples=60)
    first, second = scores(*base), scores(*new)
    wanted = compare_seeds(SeedScores(second.scores, flat[3:]), SeedScores(first.scores, flat[:3]))
    assert score.runs == pytest.approx(list(second.scores))
    assert score.value == pytest.approx(statistics.mean(second.scores))
    assert score.deviation == pytest.approx(statistics.stdev(second.scores))
    assert found.bootstrap is not None
    tested = found.bootstrap.results[1]
    assert not tested.one_seed
    for key, value in (("", wanted.mean), ("_low", wanted.low), ("_high", wanted.high)):
        assert getattr(tested, f"difference{key}") == pytest.approx(value)
    assert tested.p == pytest.approx(wanted.p)
    shown = render(found)
    assert "new (3 runs)" in shown and "± " in shown and "Intervals hold sentences and seeds" in shown


def test_one_run_is_between_these_two_runs() -> None:
    found = evaluate({"base": [BASE], "new": [NEW, OTHER]}, [REFERENCE], SCORERS, bootstrap=60)
    assert found.bootstrap is not None
    tested = found.bootstrap.results[1]
    assert tested.one_seed and tested.difference_low < tested.difference < tested.difference_high  # type: ignore[operator]
    assert "say nothing about other seeds" in render(found)
    assert found.systems[0].scores[0].deviation is None


@pytest.mark.parametrize("runs", [1, 3])
def test_the_interval_of_one_system_says_what_it_holds(runs: int) -> None:
    shown = render(evaluate({"new": [NEW, OTHER, BASE][:runs]}, [REFERENCE], SCORERS, bootstrap=60))
    assert "of no difference" not in shown
    assert ("say nothing about other seeds" in shown, "Intervals hold sentences and seeds" in shown) == (
        runs == 1,
        runs > 1,
    )


def test_two_runs_are_no_verdict() -> None:
    """Said in the words of `reproduce`, for the systems that are compared: each with the first, or all pairs."""
    two, three = [BASE, NEW], [NEW, OTHER, BASE]
    shown = render(evaluate({"base": three, "new": two}, [REFERENCE], SCORERS, bootstrap=60))
    assert TWO_SEEDS in shown and LEGEND["with two seeds"] == TWO_SEEDS
    assert TWO_SEEDS not in render(evaluate({"base": three, "new": three}, [REFERENCE], SCORERS, bootstrap=60))
    assert TWO_SEEDS not in render(evaluate({"base": three, "new": two}, [REFERENCE], SCORERS))
    assert not compares_two_seeds([1, 2, 3]) and not compares_two_seeds([3, 1, 3]) and not compares_two_seeds([2])
    assert compares_two_seeds([1, 2, 3], pairs=True) and compares_two_seeds([2, 3])


def test_pairs_have_the_p_of_holm() -> None:
    found = evaluate({"a": [BASE], "b": [NEW], "c": [OTHER]}, [REFERENCE], SCORERS, bootstrap=60, pairs=True)
    pairs = found.bootstrap and found.bootstrap.pairs
    assert pairs
    assert [(p.system, p.other) for p in pairs] == [("b", "a"), ("c", "a"), ("c", "b")]
    assert [p.p_holm for p in pairs] == holm([p.p for p in pairs])
    for pair, (one, other) in zip(pairs, ((NEW, BASE), (OTHER, BASE), (OTHER, NEW)), strict=True):
        wanted = compare_seeds(scores(one), scores(other))
        assert (pair.difference, pair.p) == pytest.approx((wanted.mean, wanted.p))


def test_groups_of_length_are_drawn_by_themselves() -> None:
    by = ByLength(REFERENCE, (8, 16))
    found = evaluate({"base": [BASE], "new": [NEW]}, [REFERENCE], SCORERS, by_length=by, bootstrap=60).by_length
    assert found is not None
    lengths = [len(line.split()) for line in REFERENCE]
    for g, group in enumerate(found.systems[1].groups):
        inside = [i for i, n in enumerate(lengths) if n > group.above and n <= (group.up_to or 99)]
        assert group.sentences == len(inside)
        assert (group.bootstrap is None) == (len(inside) < 30)
        assert found.systems[0].groups[g].label == group.label


def test_other_numbers_of_lines_are_refused() -> None:
    with pytest.raises(DataError, match="59 lines"):
        evaluate({"a": [BASE[1:]]}, [REFERENCE], SCORERS)


def test_two_metrics_of_one_name_are_refused() -> None:
    """One language would be scored with the tokens of the other."""
    both = [make_scorer(name) for name in ("t2t-de", "t2t-fr")]
    with pytest.raises(UsageError, match="two metrics have the name BLEU-t2t"):
        evaluate({"a": [BASE]}, [REFERENCE], both)


def test_without_resamples() -> None:
    found = evaluate({"a": [BASE]}, [REFERENCE], SCORERS, by_length=ByLength(REFERENCE, (8, 16)))
    assert "bootstrap" not in found.as_json() and found.by_length is not None
    assert all(group.bootstrap is None for group in found.by_length.systems[0].groups)
    with pytest.raises(UsageError, match="one resample"):
        evaluate({"a": [BASE]}, [REFERENCE], SCORERS, bootstrap=1)
