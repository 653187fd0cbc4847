"""The plot of a table: numbers here beside those of the paper, row by row; series as lines by label. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from phraseloom.files import atomic_write_bytes
from phraseloom.report.plots import COLOURS, DASHES, GREY, MARKERS, STYLE
from phraseloom.reproduce.result import Result, mean_and_deviation

ROW_HEIGHT, WIDTH = 0.34, 9.0


def draw(result: Result, path: Path) -> bool:
    """Draw the first metric that has numbers here, for each task, as SVG; False where there is nothing to draw (with)."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    key = next((k for k in result.table.metrics if _has(result, k)), None)
    if key is None:
        return False
    import matplotlib
    from matplotlib.figure import Figure

    metric = result.table.metrics[key]
    series = metric.is_series
    tasks = [task for task in (list(result.table.tasks) or [""]) if _has(result, key, task)]
    with matplotlib.rc_context(STYLE):
        height = 3.6 if series else max(2.0, 1.1 + ROW_HEIGHT * max(len(_rows(result, task, key)) for task in tasks))
        figure = Figure(figsize=(WIDTH, height * len(tasks)), layout="constrained")
        axes: Any = figure.subplots(len(tasks), 1, squeeze=False)
        for task, ax in zip(tasks, axes[:, 0], strict=True):
            (_lines if series else _dots)(ax, result, task, key)
            ax.set_title(f"{task}: {metric.title}".removeprefix(": "))
        figure.suptitle(f"{result.table.title} — scale {result.scale}", fontsize=10)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    atomic_write_bytes(path, buffer.getvalue())
    return True


def _has(result: Result, key: str, task: str | None = None) -> bool:
    """Whether there is a number here, of a task or of any."""
    cells = (cell for cell in result.measured if cell[2] == key and task in (None, cell[0]))
    return any(result.numbers(cell) or result.series(cell) for cell in cells)


def _rows(result: Result, task: str, key: str) -> list[str]:
    """The rows of a task with a number here or in the paper."""
    found = []
    for t, row in result.places():
        cell = (task, row, key)
        told = result.table.paper_of(row, task).get(key) if t == task else None
        if t == task and (result.numbers(cell) or result.series(cell) or told is not None):
            found.append(row)
    return found


def _dots(ax: Any, result: Result, task: str, key: str) -> None:
    """Rows from top to bottom; here with its deviation over seeds, the paper's on an axis of its own above."""
    rows = _rows(result, task, key)
    places = list(range(len(rows)))
    ax.set_yticks(places, [result.table.rows[row].label for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    for place, row in zip(places, rows, strict=True):
        found = mean_and_deviation(result.numbers((task, row, key)))
        if found is not None:
            ax.errorbar(found[0], place, xerr=found[1] or 0, color=COLOURS[0], marker=MARKERS[0], capsize=3)
    ax.set_xlabel("here", color=COLOURS[0])
    told = [(place, result.table.paper_of(row, task).get(key)) for place, row in zip(places, rows, strict=True)]
    points = [(place, value) for place, value in told if isinstance(value, float | int)]
    if points:
        above = ax.twiny()
        above.grid(visible=False)
        above.spines["top"].set_visible(True)
        above.plot(
            [v for _, v in points], [p for p, _ in points], color=COLOURS[1], marker=MARKERS[1], linestyle="none"
        )
        above.set_xlabel("paper", color=COLOURS[1])


def _lines(ax: Any, result: Result, task: str, key: str) -> None:
    """One line a row over the labels; the paper's in grey where it gives numbers."""
    for number, row in enumerate(_rows(result, task, key)):
        here = {label: sum(v) / len(v) for label, v in result.series((task, row, key)).items()}
        look = {"marker": MARKERS[number % len(MARKERS)], "linestyle": DASHES[number % len(DASHES)]}
        if here:
            label, colour = result.table.rows[row].label, COLOURS[number % len(COLOURS)]
            ax.plot(list(here), list(here.values()), label=label, color=colour, **look)
        told = result.table.paper_of(row, task).get(key)
        if isinstance(told, dict):
            ax.plot(list(told), list(told.values()), label=f"{result.table.rows[row].label}, paper", color=GREY, **look)
    ax.legend(fontsize=8)
