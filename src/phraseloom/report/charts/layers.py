"""A value of each decoder layer as a picture: a line for each system over the layers, and apart from them the whole
mechanism (all layers together), as in Figure 1 of paper 004. Needs the extra `plot` (matplotlib).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phraseloom.errors import DataError, escape_controls
from phraseloom.report.charts import contrastive
from phraseloom.report.charts.plots import (
    COLOURS,
    GREY,
    NICE_STEPS,
    STYLE,
    _footnote,
    _grid,
    _legend_above,
    _save,
    _series,
    can_draw,
)

GAP = 0.9  # from the last layer to the line between the layers and the whole
SPREAD = 0.3  # of the distance of two layers, taken by the systems beside each other
LETTER = 0.085  # inches of a letter in the legend


class LayerSeries(NamedTuple):
    """The values of one system: of layers 1 … L, of the `whole` mechanism, and a `level` that is drawn across.

    `name`: a path; the picture has its last part where that tells the systems apart.
    """

    name: str
    layers: Sequence[float]
    whole: float | None = None
    level: float | None = None


def draw(
    systems: Sequence[LayerSeries], output: str | Path, *, quantity: str, title: str, level: str = "", note: str = ""
) -> Path:
    """Draw the systems to a .png, .svg or .pdf; `quantity` with its unit on the axis, `level` says what the levels are.

    Raises UsageError (see `can_draw`), DataError where no system has a layer.
    """
    can_draw(output, len(systems))
    num_layers = max((len(system.layers) for system in systems), default=0)
    if not num_layers:
        raise DataError("no system has a layer that attends, so there is nothing to draw")
    import matplotlib

    names = [escape_controls(name) for name in contrastive._short([system.name for system in systems])]
    label = 0.8 + LETTER * max(map(len, names))
    wide = max(5.6, 2.4 + 0.55 * num_layers, label + 0.6)
    columns = max(1, min(3, len(systems), int((wide - 0.6) / label)))
    rows = -(-len(systems) // columns)
    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none"}):
        figure, [[ax]] = _grid(1, 1, title, size=(wide, 4.0 + 0.22 * rows))
        for i, (system, name) in enumerate(zip(systems, names, strict=True)):
            aside = SPREAD * (i - (len(systems) - 1) / 2) / len(systems)
            _system(ax, system, name, i, whole_at=num_layers + 2 * GAP, aside=aside)
        _axes(ax, systems, num_layers, quantity)
        _levels(ax, systems, level)
        if len(systems) > 1:
            _legend_above(ax, columns, handlelength=3)
        if note:
            _footnote(figure, note)
        return _save(figure, Path(output))


def _system(ax: Any, system: LayerSeries, name: str, number: int, *, whole_at: float, aside: float) -> None:
    look = {**_series(number), "ms": 6.5}
    ax.plot([n + aside for n in range(1, len(system.layers) + 1)], system.layers, label=name, **look)
    if system.whole is not None:
        ax.plot([whole_at + aside], [system.whole], **look | {"ls": "none"})


def _axes(ax: Any, systems: Sequence[LayerSeries], num_layers: int, quantity: str) -> None:
    from matplotlib import ticker

    places, ticks = list(map(float, range(1, num_layers + 1))), [str(n) for n in range(1, num_layers + 1)]
    end = num_layers + 0.5
    if any(system.whole is not None for system in systems):
        ax.axvline(num_layers + GAP, color="#bbbbbb", lw=1)
        places, ticks, end = [*places, num_layers + 2 * GAP], [*ticks, "all"], num_layers + 2 * GAP + 0.5
    ax.set_xticks(places, ticks)
    ax.set_xlim(0.5, end)
    ax.set_xlabel("decoder layer")
    ax.set_ylabel(quantity, parse_math=False)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.yaxis.set_major_locator(ticker.MaxNLocator(7, steps=NICE_STEPS))
    ax.tick_params(axis="x", length=0)
    ax.grid(visible=False, axis="x")


def _levels(ax: Any, systems: Sequence[LayerSeries], label: str) -> None:
    """Thin lines in the colours of the systems, and above them what they are."""
    levels = [(i, system.level) for i, system in enumerate(systems) if system.level is not None]
    for i, level in levels:
        ax.axhline(level, color=COLOURS[i], lw=1, ls=(3 * i, (3, 3 * len(levels))))
    if levels and label:
        top = max(level for _, level in levels)
        ax.set_ylim(top=max(ax.get_ylim()[1], 1.08 * top))
        place = {"xy": (0, top), "xycoords": ax.get_yaxis_transform(), "xytext": (4, 3), "textcoords": "offset points"}
        ax.annotate(label, **place, size=8, color=GREY)
