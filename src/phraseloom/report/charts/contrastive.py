"""Accuracy on contrastive items by distance, one line per system, as PNG, SVG or PDF. Needs the extra `plot` (matplotlib).

The points of the systems are side by side at each distance, with their 95 % intervals; grey numbers count the items. There is
one panel for each category that has distances. Guessing gives 50 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phraseloom.errors import DataError, UsageError
from phraseloom.report.charts.plots import COLOURS, GREY, STYLE, _grid, _save, _series, can_draw
from phraseloom.results import ContrastiveGroup

MOST_PANELS = 12
MOST_TICKS = 31
SPREAD = 0.12  # between the points of two systems; a bin is 1 wide


def draw(groups: Sequence[ContrastiveGroup], output: str | Path, *, estimate: bool = False) -> Path:
    """Draw the groups of a result of `analyse contrastive` that have a distance.

    `estimate`: distances are positions of the changed word. Systems are named by the last part of their paths if these
    differ. Raises DataError without a distance, UsageError for too many categories.
    """
    can_draw(output)
    panels: dict[str, list[ContrastiveGroup]] = {}
    for group in groups:
        if group.distance is not None:
            panels.setdefault(group.category or "", []).append(group)
    if not panels:
        raise DataError("no item has a distance, so there is nothing to draw")
    if len(panels) > MOST_PANELS:
        raise UsageError(f"{len(panels)} categories have distances, a picture holds {MOST_PANELS}")
    import matplotlib

    labels = _short([entry.system for entry in groups[0].systems])
    shown = [group for panel in panels.values() for group in panel]
    lowest = 100 * min(0.5, *(entry.interval[0] for group in shown for entry in group.systems))
    widest = max(map(len, panels.values()))
    columns = 1 if len(panels) == 1 or widest > 12 else 2
    rows = -(-len(panels) // columns)
    size = (columns * max(5.6, min(11.0, 1.6 + 0.48 * widest)), rows * 3.3 + 0.7 + 0.25 * (len(labels) // 3))
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(rows, columns, "Contrastive accuracy by distance", size=size)
        cells = [ax for row in axes for ax in row]
        for ax, (category, subset) in zip(cells, panels.items(), strict=False):
            _panel(ax, subset, labels)
            ax.set_ylim(lowest // 10 * 10 - 2, 102)
            ax.set_title(category, parse_math=False)
            what = "position of the first changed word (estimate of the distance)" if estimate else "distance (words)"
            ax.set_xlabel(what, labelpad=14)
        for ax in cells[len(panels) :]:
            ax.set_axis_off()
        handles, named = cells[0].get_legend_handles_labels()
        legend = figure.legend(handles, named, loc="outside lower center", ncols=min(3, len(named)))
        for text in legend.get_texts():
            text.set_parse_math(False)
        return _save(figure, Path(output))


def _short(systems: Sequence[str]) -> list[str]:
    """The last part of each path, or the whole paths if two last parts are the same."""
    ends = [Path(system).name or system for system in systems]
    return ends if len(set(ends)) == len(ends) else list(systems)


def _panel(ax: Any, groups: Sequence[ContrastiveGroup], labels: Sequence[str]) -> None:
    """One category: lines of the systems over its bins, evenly spaced."""
    places = range(len(groups))
    for i, label in enumerate(labels):
        entries = [group.systems[i] for group in groups]
        values = [100 * e.accuracy for e in entries]
        low = [v - 100 * e.interval[0] for v, e in zip(values, entries, strict=True)]
        high = [100 * e.interval[1] - v for v, e in zip(values, entries, strict=True)]
        at = [p + SPREAD * (i - (len(labels) - 1) / 2) for p in places]
        ax.errorbar(at, values, yerr=[low, high], fmt="none", elinewidth=1, capsize=2, alpha=0.6, color=COLOURS[i % 7])
        ax.plot(at, values, label=label, **_series(i))
    ax.axhline(50, color=GREY, lw=1, ls=(0, (2, 2)), label="guessing")
    ax.set_xlim(-0.6, len(groups) - 0.4)
    ax.set_ylabel("right (%, 95 % interval)")
    ax.grid(visible=False, axis="x")
    step = -(-len(groups) // MOST_TICKS)
    ax.set_xticks(places[::step], [group.distance for group in groups[::step]])
    counts = [(place, f"{groups[place].items:,}") for place in places[::step]]
    for place, text in [(-0.9, "items"), *counts]:
        transform, below = ax.get_xaxis_transform(), (0, -19)
        style = {"size": 7, "color": GREY, "ha": "center", "va": "top"}
        ax.annotate(text, (place, 0), xycoords=transform, xytext=below, textcoords="offset points", **style)
