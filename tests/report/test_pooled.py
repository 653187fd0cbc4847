"""Scores of systems with several runs: one run is what `evaluate` says, several are their mean on the same resamples."""

from __future__ import annotations

import random
import statistics

import pytest

from phraseloom.errors import DataError
from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.compare import all_pairs, bootstrap_values, interval
from phraseloom.report.evaluation import ByLength, evaluate
from phraseloom.report.pooled import evaluate_systems

WORDS = ["the", "old", "man", "sees", "a", "small", "red", "house", "near", "big", "dark", "winter", "garden"]


def text(seed: int, wrong: float) -> list[str]:
    """Sixty lines; a share of the words is not that of the reference."""
    rng, noise = random.Random(0), random.Random(seed)
    lines = [rng.choices(WORDS, k=rng.randint(3, 24)) for _ in range(60)]
    return [" ".join(noise.choice(WORDS) if noise.random() < wrong else w for w in line) for line in lines]


REFERENCE, BASE, NEW, OTHER = text(0, 0), text(1, 0.4), text(2, 0.3), text(3, 0.35)
SCORED = ("value", "low", "high", "difference", "difference_low", "difference_high", "p_win", "p_null")


def test_one_run_each_is_what_evaluate_says() -> None:
    found = evaluate_systems({"base": [BASE], "new": [NEW]}, REFERENCE, source=REFERENCE, edges=(8, 16), samples=60)
    scorers = [make_scorer(name) for name in ("bleu", "chrf")]
    by = ByLength(REFERENCE, (8, 16), "13a")
    expected = evaluate({"base": BASE, "new": NEW}, [REFERENCE], scorers, by_length=by, bootstrap=60)
    for ours, theirs in zip(found["bootstrap"]["results"], expected["bootstrap"]["results"], strict=True):
        for key in SCORED:
            assert ours.get(key) == (pytest.approx(theirs[key]) if theirs[key] is not None else None), key
        assert ours["signature"] == theirs["signature"]
    for ours, theirs in zip(found["by_length"]["systems"], expected["by_length"]["systems"], strict=True):
        for a, b in zip(ours["groups"], theirs["groups"], strict=True):
            assert (a["label"], a["sentences"]) == (b["label"], b["sentences"])
            assert a["score"]["value"] == pytest.approx(b["score"]["value"])
            assert (a["bootstrap"] is None) == (b["bootstrap"] is None)
            if a["bootstrap"]:
                assert a["bootstrap"]["low"] == pytest.approx(b["bootstrap"]["low"])


def test_pairs_are_those_of_all_pairs() -> None:
    found = evaluate_systems({"a": [BASE], "b": [NEW], "c": [OTHER]}, REFERENCE, metrics=["bleu"], samples=60)
    scorer = make_scorer("bleu")
    rows = [scorer.statistics(lines, [REFERENCE]) for lines in (BASE, NEW, OTHER)]
    for ours, theirs in zip(found["bootstrap"]["pairs"], all_pairs(scorer, rows, samples=60), strict=True):
        assert ours["difference"] == pytest.approx(theirs.difference)
        assert ours["p_holm"] == pytest.approx(theirs.p_holm)


def test_the_same_run_twice_changes_nothing_but_the_deviation() -> None:
    once = evaluate_systems({"a": [BASE], "b": [NEW]}, REFERENCE, metrics=["bleu"], samples=60)
    twice = evaluate_systems({"a": [BASE], "b": [NEW, NEW]}, REFERENCE, metrics=["bleu"], samples=60)
    for a, b in zip(once["bootstrap"]["results"], twice["bootstrap"]["results"], strict=True):
        assert {k: a.get(k) for k in SCORED} == pytest.approx({k: b.get(k) for k in SCORED})
    assert once["systems"][1]["scores"][0]["deviation"] is None
    assert twice["systems"][1]["scores"][0]["deviation"] == 0.0


def test_several_runs_are_averaged() -> None:
    found = evaluate_systems({"a": [BASE], "b": [NEW, OTHER]}, REFERENCE, metrics=["bleu"], samples=60)
    scorer = make_scorer("bleu")
    values = [scorer.corpus(lines, [REFERENCE]).value for lines in (NEW, OTHER)]
    score = found["systems"][1]["scores"][0]
    assert score["runs"] == values
    assert score["value"] == pytest.approx(statistics.mean(values))
    assert score["deviation"] == pytest.approx(statistics.stdev(values))
    rows = [scorer.statistics(lines, [REFERENCE]) for lines in (BASE, NEW, OTHER)]
    base, *sampled = bootstrap_values(scorer, rows, samples=60)
    together = sum(sampled) / 2
    tested = found["bootstrap"]["results"][1]
    assert tested["difference"] == pytest.approx(score["value"] - scorer.corpus(BASE, [REFERENCE]).value)
    assert (tested["low"], tested["high"]) == pytest.approx(interval(together))
    ends = interval(together - base)
    assert (tested["difference_low"], tested["difference_high"]) == pytest.approx(ends)


def test_other_numbers_of_lines_are_refused() -> None:
    with pytest.raises(DataError, match="59 lines"):
        evaluate_systems({"a": [BASE[1:]]}, REFERENCE)


def test_without_resamples() -> None:
    found = evaluate_systems({"a": [BASE]}, REFERENCE, source=REFERENCE, samples=0)
    assert "bootstrap" not in found
    assert all(group["bootstrap"] is None for group in found["by_length"]["systems"][0]["groups"])
