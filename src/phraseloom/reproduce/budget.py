"""What the rows of a table gain, and at what cost: learning curves, gain by budget, score by parameters, in one picture.

    validation by updates, by minutes    mean over seeds, band ± one standard deviation s
    gain by updates                      BLEU of a row − that of the baseline at the same update; without validation BLEU,
                                         ln perplexity of the baseline − that of the row (nats a token)
                                         band ± the standard error of the difference over seeds (metrics/seeds.py)
    score by parameters                  the first single number of the table, mean over seeds, whiskers ± s

A gain at an update is between unfinished trainings of one length; it is not that of shorter trainings. The curves come from
table.json, so the picture can be made without the runs. One seed has no band. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phraseloom.metrics.seeds import SeedScores, compare_seeds, seed_deviation
from phraseloom.report.charts.chart import Axes, Chart, Series
from phraseloom.report.charts.picture import draw, has_matplotlib
from phraseloom.reproduce.measure import ValidationCurves
from phraseloom.reproduce.result import PARAMETERS, Result, mean_and_deviation

TITLES = {
    "updates": "Validation {what} by updates",
    "minutes": "Validation {what} by minutes of training",
    "gain": "Gain over {base} at the same update",
    "parameters": "{what} by parameters",
}
NAMES = {"bleu": "BLEU", "perplexity": "perplexity"}


@dataclass(frozen=True)
class Band:
    """A mean over seeds: `places` (updates or minutes), `values`, and the `reach` of the band either side (one seed: None)."""

    places: np.ndarray
    values: np.ndarray
    reach: np.ndarray | None


@dataclass(frozen=True)
class SeedCurves:
    """The values (seeds, points) of a row at the updates that all its seeds have; `minutes` (seeds, points) or None."""

    updates: np.ndarray
    values: np.ndarray
    minutes: np.ndarray | None

    @property
    def deviation(self) -> np.ndarray | None:
        """The standard deviation over seeds at each update."""
        return None if len(self.values) < 2 else np.array([seed_deviation(column) for column in self.values.T])


def of_seeds(curves: Mapping[int, ValidationCurves], key: str) -> SeedCurves | None:
    """The curves of a row for `perplexity` or `bleu`; None if no seed has one, or the seeds share no update."""
    found = [points for of_run in curves.values() if (points := of_run.get(key))]
    updates = [{point[0] for point in points if point[0] is not None} for points in found]
    shared = sorted(set.intersection(*updates)) if updates else []
    if not shared:
        return None
    rows = [{point[0]: point for point in points} for points in found]
    values = np.array([[row[update][2] for update in shared] for row in rows], dtype=float)
    seconds = [[row[update][1] for update in shared] for row in rows]
    timed = all(second is not None for row in seconds for second in row)
    return SeedCurves(np.array(shared, dtype=float), values, np.array(seconds, dtype=float) / 60 if timed else None)


def gain(row: SeedCurves, base: SeedCurves, *, log: bool) -> Band | None:
    """The gain of a row over the baseline at the updates of both; `log`: of ln perplexity, where less is better."""
    updates, mine, theirs = np.intersect1d(row.updates, base.updates, return_indices=True)
    if not len(updates):
        return None
    a, b = row.values[:, mine], base.values[:, theirs]
    a, b = (-np.log(a), -np.log(b)) if log else (a, b)
    found = [compare_seeds(SeedScores(x), SeedScores(y)) for x, y in zip(a.T, b.T, strict=True)]
    errors = [difference.standard_error for difference in found]
    reach = None if None in errors else np.array(errors, dtype=float)
    return Band(updates, np.array([difference.mean for difference in found]), reach)


def draw_budget(result: Result, path: Path) -> bool:
    """Draw the picture as SVG, a row of panels for each task; False where there is nothing to draw (with)."""
    if not has_matplotlib():
        return False
    tasks = {task: panels for task in (list(result.table.tasks) or [""]) if (panels := _panels(result, task))}
    if not tasks:
        return False
    charts = [_chart(result, task, panel, len(tasks) > 1) for task, panels in tasks.items() for panel in panels]
    draw(charts, path, title=f"{result.table.title} — scale {result.scale}", columns=2)
    return True


def _panels(result: Result, task: str) -> list[str]:
    """The panels that have something to show."""
    _, curves = _curves(result, task)
    panels = ["updates"] if curves else []
    panels += ["minutes"] if any(curve.minutes is not None for curve in curves.values()) else []
    panels += ["gain"] if result.table.baseline in curves and len(curves) > 1 else []
    return panels + (["parameters"] if len(_sized(result, task)) > 1 else [])


def _curves(result: Result, task: str) -> tuple[str, dict[str, SeedCurves]]:
    """`bleu` if every row with curves has it, else `perplexity`; and the curves by row."""
    rows = {row: result.curves[task, row] for t, row in result.places() if t == task and (task, row) in result.curves}
    for key in ("bleu", "perplexity"):
        curves = {row: curve for row, seeds in rows.items() if (curve := of_seeds(seeds, key)) is not None}
        if curves and (key == "perplexity" or len(curves) == len(rows)):
            return key, curves
    return "perplexity", {}


def _sized(result: Result, task: str) -> dict[str, tuple[float, float, float | None]]:
    """Row → parameters in millions, and mean and deviation of the first single number."""
    key = _score(result)
    if key is None:
        return {}
    sized = {}
    for t, row in result.places():
        known = result.fact(task, row, PARAMETERS)
        number = known[0] if known else result.counted.get((task, row))
        found = mean_and_deviation(result.numbers((task, row, key)))
        if t == task and number is not None and found is not None:
            sized[row] = (number / 1e6, *found)
    return sized


def _score(result: Result) -> str | None:
    singles = (key for key, metric in result.table.metrics.items() if not metric.is_series)
    return next((key for key in singles if any(result.numbers(c) for c in result.measured if c[2] == key)), None)


def _chart(result: Result, task: str, panel: str, named: bool) -> Chart:
    """One panel; `named`: with the name of the task."""
    key, curves = _curves(result, task)
    base, numbers = result.table.baseline, {row: i for i, row in enumerate(result.table.rows)}
    bands: dict[str, Band | None] = {}
    score = _score(result)
    if panel == "updates":
        bands = {row: Band(curve.updates, curve.values.mean(0), curve.deviation) for row, curve in curves.items()}
    elif panel == "minutes":
        for row, curve in curves.items():
            if curve.minutes is not None:
                bands[row] = Band(curve.minutes.mean(0), curve.values.mean(0), curve.deviation)
    elif panel == "gain" and base is not None:
        bands = {row: gain(c, curves[base], log=key == "perplexity") for row, c in curves.items() if row != base}
    series = [
        _line(result.table.rows[row].label, band, numbers[row]) for row, band in bands.items() if band is not None
    ]
    if panel == "gain":
        axes = Axes("updates", "BLEU" if key == "bleu" else "nats a token", x_zero=True, y_zero=True, level=(0.0, ""))
    elif panel == "parameters" and score is not None:
        what = result.table.metrics[score].title
        for row, (millions, mean, deviation) in _sized(result, task).items():
            ends = [(mean - deviation, mean + deviation)] if deviation is not None else []
            series.append(Series(result.table.rows[row].label, [(millions, mean)], numbers[row], ends, joined=False))
        axes = Axes("parameters, millions", what)
    else:
        log = key == "perplexity"
        axes = Axes(panel, NAMES[key] + " (log scale)" * log, x_zero=True, y_log=log)
    what = axes.y if panel == "parameters" else NAMES[key]
    title = TITLES[panel].format(what=what, base=base)
    return Chart(f"{task}: {title}" if named and task else title, series, axes)


def _line(label: str, band: Band, style: int) -> Series:
    points = list(zip(band.places.tolist(), band.values.tolist(), strict=True))
    reach = () if band.reach is None else band.reach.tolist()
    ends = [(value - r, value + r) for (_, value), r in zip(points, reach, strict=False)]
    return Series(label, points, style, ends, band=True)
