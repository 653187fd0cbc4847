"""What the rows of a table gain, and at what cost: learning curves, gain by budget, score by parameters, in one picture.

    validation by updates, by minutes    mean over seeds, band ± one standard deviation s
    gain by updates                      BLEU of a row − that of the baseline at the same update; without validation BLEU,
                                         ln perplexity of the baseline − that of the row (nats a token)
                                         band ± √(s_A²/K_A + s_B²/K_B), the standard error of the difference
    score by parameters                  the first single number of the table, mean over seeds, whiskers ± s

A gain at an update is between unfinished trainings of one length; it is not that of shorter trainings. The curves come from
table.json, so the picture needs no runs. One seed has no band. Needs matplotlib.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phraseloom.files import atomic_write_bytes
from phraseloom.report.charts.plots import COLOURS, DASHES, GREY, MARKERS, STYLE
from phraseloom.reproduce.measure import ValidationCurves
from phraseloom.reproduce.result import PARAMETERS, Result, mean_and_deviation

PANELS = ("updates", "minutes", "gain", "parameters")
TITLES = {
    "updates": "Validation {what} by updates",
    "minutes": "Validation {what} by minutes of training",
    "gain": "Gain over {base} at the same update",
    "parameters": "{what} by parameters",
}
PANEL_SIZE = (5.4, 3.5)
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
        return None if len(self.values) < 2 else self.values.std(0, ddof=1)


def of_seeds(curves: Mapping[int, ValidationCurves], key: str) -> SeedCurves | None:
    """The curves of a row for `perplexity` or `bleu`; None if no seed has one, or the seeds share no update."""
    found = [points for of_run in curves.values() if (points := of_run.get(key))]
    if not found:
        return None
    shared = sorted(set.intersection(*({float(point[0] or 0) for point in points} for points in found)))
    if not shared:
        return None
    rows = [{float(point[0] or 0): point for point in points} for points in found]
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
    reach = None
    if len(a) > 1 and len(b) > 1:
        reach = np.sqrt(a.var(0, ddof=1) / len(a) + b.var(0, ddof=1) / len(b))
    return Band(updates, a.mean(0) - b.mean(0), reach)


def draw_budget(result: Result, path: Path) -> bool:
    """Draw the picture as SVG, a row of panels for each task; False where there is nothing to draw (with)."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    tasks = {task: panels for task in (list(result.table.tasks) or [""]) if (panels := _panels(result, task))}
    if not tasks:
        return False
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(2, max(map(len, tasks.values())))
    heights = [-(-len(panels) // columns) for panels in tasks.values()]
    with matplotlib.rc_context(STYLE):
        size = (PANEL_SIZE[0] * columns, PANEL_SIZE[1] * sum(heights) + 0.8)
        figure = Figure(figsize=size, layout="constrained")
        axes: Any = figure.subplots(sum(heights), columns, squeeze=False)
        for ax in axes.flat:
            ax.set_visible(False)
        above = 0
        for (task, panels), height in zip(tasks.items(), heights, strict=True):
            for place, panel in enumerate(panels):
                ax = axes[above + place // columns][place % columns]
                ax.set_visible(True)
                DRAW[panel](ax, result, task)
                if len(tasks) > 1 and task:
                    ax.set_title(f"{task}: {ax.get_title(loc='left')}")
            above += height
        _legend(figure, axes.flat)
        figure.suptitle(f"{result.table.title} — scale {result.scale}", fontsize=10)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    atomic_write_bytes(path, buffer.getvalue())
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


def _look(result: Result, row: str) -> dict[str, Any]:
    number = list(result.table.rows).index(row)
    turn = number + number // len(COLOURS)  # a second row of one colour has another marker
    look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[turn % len(MARKERS)]}
    return {**look, "label": result.table.rows[row].label}


def _line(ax: Any, result: Result, row: str, band: Band) -> None:
    number = list(result.table.rows).index(row)
    look = _look(result, row)
    ax.plot(band.places, band.values, linestyle=DASHES[number % len(DASHES)], **look)
    if band.reach is not None:
        low, high = band.values - band.reach, band.values + band.reach
        ax.fill_between(band.places, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _by_updates(ax: Any, result: Result, task: str) -> None:
    key, curves = _curves(result, task)
    for row, curve in curves.items():
        _line(ax, result, row, Band(curve.updates, curve.values.mean(0), curve.deviation))
    _validation_axes(ax, key, "updates")


def _by_minutes(ax: Any, result: Result, task: str) -> None:
    key, curves = _curves(result, task)
    for row, curve in curves.items():
        if curve.minutes is not None:
            _line(ax, result, row, Band(curve.minutes.mean(0), curve.values.mean(0), curve.deviation))
    _validation_axes(ax, key, "minutes")


def _validation_axes(ax: Any, key: str, by: str) -> None:
    ax.set_title(TITLES[by].format(what=NAMES[key]))
    ax.set_xlabel(by)
    ax.set_ylabel(NAMES[key] + (" (log scale)" if key == "perplexity" else ""))
    ax.set_xlim(left=0)
    if key == "perplexity":
        _log_ticks(ax)


def _log_ticks(ax: Any) -> None:
    from matplotlib import ticker

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(ticker.NullLocator())


def _gains(ax: Any, result: Result, task: str) -> None:
    key, curves = _curves(result, task)
    base = result.table.baseline
    assert base is not None
    ax.axhline(0, color=GREY, linewidth=1)
    for row, curve in curves.items():
        band = None if row == base else gain(curve, curves[base], log=key == "perplexity")
        if band is not None:
            _line(ax, result, row, band)
    ax.set_title(TITLES["gain"].format(base=base))
    ax.set_xlabel("updates")
    ax.set_ylabel("BLEU" if key == "bleu" else "nats a token")
    ax.set_xlim(left=0)


def _by_parameters(ax: Any, result: Result, task: str) -> None:
    key = _score(result)
    assert key is not None
    for row, (millions, mean, deviation) in _sized(result, task).items():
        ax.errorbar(millions, mean, yerr=deviation, capsize=3, linestyle="none", **_look(result, row))
    title = result.table.metrics[key].title
    ax.set_title(TITLES["parameters"].format(what=title))
    ax.set_xlabel("parameters, millions")
    ax.set_ylabel(title)


DRAW = {"updates": _by_updates, "minutes": _by_minutes, "gain": _gains, "parameters": _by_parameters}


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """One legend for all panels."""
    handles: dict[str, Any] = {}
    for ax in axes:
        if ax.get_visible():
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=8)
