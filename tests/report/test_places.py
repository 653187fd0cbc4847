"""Charts over layers, source lengths and distances: what stands where."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from phraseloom.analysis.contrastive import JudgedItem, contrastive_report
from phraseloom.analysis.contrastive_items import Item
from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.ratio import wilson
from phraseloom.report.charts.chart import Series
from phraseloom.report.charts.places import (
    LayerValues,
    by_distance,
    by_layer,
    by_length,
    last_parts,
    without_endings,
)
from phraseloom.report.evaluation import ByLength, evaluate
from phraseloom.report.run.measured import contrastive_part
from phraseloom.report.run.parts import ContrastivePart, ScoresByLength, contrastive, length_scores
from phraseloom.results import ContrastiveResult, LengthScores


def lengths(systems: int = 3, bootstrap: int = 20, *, long: int = 2) -> LengthScores:
    """40 short sentences, 40 longer ones and `long` with more tokens, each system with more errors than the one before."""
    rng = np.random.default_rng(1)
    words = [5] * 40 + [20] * 40 + [40] * long
    references = [" ".join(rng.choice(list("abcdefgh"), n)) for n in words]
    texts = {
        f"system{i}": [" ".join("x" if rng.random() < 0.1 * (i + 1) else w for w in r.split()) for r in references]
        for i in range(systems)
    }
    by = ByLength(references, [15, 30, 45], "13a")
    report = evaluate(
        {name: [lines] for name, lines in texts.items()},
        [references],
        [make_scorer("bleu")],
        by_length=by,
        bootstrap=bootstrap,
    )
    assert report.by_length is not None
    return report.by_length


def by_lengths(systems: int = 3, bootstrap: int = 20) -> tuple[ScoresByLength, dict[str, int]]:
    return length_scores(lengths(systems, bootstrap)), {f"system{i}": i for i in range(systems)}


def judged(categories: Iterable[str] = "a", systems: tuple[str, ...] = ("one", "two")) -> ContrastivePart:
    items = [Item("s", "c", "w", c, d) for c in categories for d in range(7) for _ in range(d + 11)]
    half = JudgedItem([n % 2 + 0.0 for n in range(len(items))], [0.5] * len(items), [False] * len(items), 0)
    groups = contrastive_report(items, dict.fromkeys(systems, half), range(4))
    result = {"items": len(items), "distance": "given", "groups": groups}
    return contrastive(ContrastiveResult.model_validate(result), "items", "here")


def of_system(series: Iterable[Series], name: str) -> Series:
    return next(one for one in series if one.name == name and not one.faint)


def test_layers_stand_at_their_numbers_and_the_whole_apart() -> None:
    values = [
        LayerValues("base", [2.0, 1.3, 1.5], 1.7, 2.8, deviations=[0.1, 0.2, 0.3, 0.05]),
        LayerValues("rnn", [1.1], others=[(1, 0.9, "head 2")]),
    ]
    chart = by_layer("Entropy", values, {"base": 0, "rnn": 1}, y="nats", digits=2, levels="uniform")
    assert chart.axes.places == [(1.0, "1"), (2.0, "2"), (3.0, "3"), (4.0, "all")]
    assert chart.axes.breaks == (3.5,)
    base = of_system(chart.series, "base")
    assert [y for _, y in base.points] == [2.0, 1.3, 1.5, 1.7]
    assert [round(x) for x, _ in base.points] == [1, 2, 3, 4]
    assert base.level == 2.8
    assert base.intervals == [pytest.approx(ends) for ends in ((1.9, 2.1), (1.1, 1.5), (1.2, 1.8), (1.65, 1.75))]
    assert base.tips[0] == "base, layer 1: 2.00" and base.tips[-1] == "base, all: 1.70"
    rnn = of_system(chart.series, "rnn")
    assert rnn.points[0][0] != base.points[0][0]
    pale = next(one for one in chart.series if one.name == "rnn" and one.faint)
    assert pale.points[0][1] == 0.9 and pale.tips == ["rnn, layer 1, head 2: 0.90"] and not pale.joined
    alone = by_layer("t", [LayerValues("a", [1.0, 2.0])], {"a": 0}, y="y", digits=1)
    assert [label for _, label in alone.axes.places] == ["1", "2"] and not alone.axes.breaks


def test_lengths_have_the_intervals_of_the_resamples_and_differences() -> None:
    part, styles = by_lengths(2)
    scores, differences = by_length(part, "system0", styles)
    assert [label for _, label in scores.axes.places] == [
        "≤15\n40 sentences",
        "16–30\n40 sentences",
        "31–45\n2 sentences",
    ]
    for chart, keys in (
        (scores, ("value", "low", "high")),
        (differences, [f"difference{e}" for e in ("", "_low", "_high")]),
    ):
        series = of_system(chart.series, "system1")
        entries = [next(e for e in group.systems if e.name == "system1") for group in part.groups]
        told = [[getattr(entry, key) for key in keys] for entry in entries]
        assert [y for _, y in series.points] == [value for value, _, _ in told if value is not None]
        assert list(series.intervals) == [
            None if low is None else (low, high) for value, low, high in told if value is not None
        ]
    assert of_system(scores.series, "system1").is_hollow(2)  # too few sentences to resample
    assert not of_system(scores.series, "system1").is_hollow(0)
    assert not of_system(differences.series, "system0").points
    assert differences.axes.level == (0.0, "system0")


def test_without_resamples_there_are_no_intervals_and_no_differences() -> None:
    part, styles = by_lengths(bootstrap=0)
    (chart,) = by_length(part, None, styles)
    assert not any(any(series.intervals) for series in chart.series)
    assert not any(series.is_hollow(0) for series in chart.series)


def test_distances_have_a_chart_for_each_category() -> None:
    charts = by_distance(judged("ab"), {"one": 0, "two": 1})
    assert [chart.title for chart in charts] == ["Accuracy by distance: a", "Accuracy by distance: b"]
    assert [label for _, label in charts[0].axes.places] == ["0\n11", "1\n12", "2\n13", "3\n14", ">3\n48"]
    for chart in charts:
        for series in chart.series:
            for (_, y), interval in zip(series.points, series.intervals, strict=True):
                assert interval is not None and interval[0] <= y <= interval[1]
        assert chart.axes.level == (50.0, "guessing")


def test_short_names() -> None:
    assert list(without_endings(["o/base.de", "o/new.1.de"]).values()) == ["base", "new.1"]
    assert list(without_endings(["o/test.de", "o/test.en"]).values()) == ["test.de", "test.en"]
    assert list(last_parts(["a/test", "b/test"]).values()) == ["a/test", "b/test"]
    assert list(last_parts(["runs/base.1", "runs/base.2"]).values()) == ["base.1", "base.2"]


def test_runs_that_differ_widen_the_interval_of_an_accuracy() -> None:
    """The mean of 40 and 80 % is not as sure as 60 % of one run; runs that agree have the interval of the items."""
    items = [Item("s", "c", "w", "a", 1) for _ in range(200)]

    def run(right: int) -> JudgedItem:
        return JudgedItem([float(n < right) for n in range(200)], [0.5] * 200, [False] * 200, 0)

    judged = {"differ": [run(80), run(120), run(160)], "agree": [run(120)] * 3, "perfect": [run(200)] * 3}
    differ, agree, perfect = contrastive_part(judged, items, [2], "items").groups[0].systems
    assert differ.accuracy == agree.accuracy == pytest.approx(0.6)
    assert (differ.deviation, agree.deviation) == (pytest.approx(0.2), 0.0)
    low, high = wilson(120, 200)
    assert agree.low == pytest.approx(low, abs=0.005) and agree.high == pytest.approx(high, abs=0.005)
    error = 0.2 / math.sqrt(3)  # of the runs alone: t with 2 degrees of freedom
    assert differ.high - differ.low > 2 * 2.5 * error and differ.high <= 1.0
    for single in (
        {"one": [run(80)], "three": [run(80), run(120), run(160)]},
        {"three": [run(80)] * 3, "one": [run(80)]},
    ):
        assert [system.name for system in contrastive_part(single, items, [2], "items").groups[0].systems] == list(
            single
        )
    assert (perfect.low, perfect.high) == (pytest.approx(wilson(200, 200)[0]), 1.0)
