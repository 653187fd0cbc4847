"""Attention heat maps with the quadrants of the papers' figures, as PNG, SVG or PDF. Needs the extra `plot` (matplotlib).

One hue from white to dark blue: the order of the colours is that of their brightness, for any colour vision and in grey print.
In SVG the labels are text, so that they can be searched and take the fonts of the viewer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from phraseloom.errors import UsageError, escape_controls, plural
from phraseloom.report.charts.picture import GREY, STYLE, can_draw, save

if TYPE_CHECKING:
    from phraseloom.analysis.heatmap import Axis, HeatMap

CELL = 0.19  # inches
MOST_CELLS = 300  # rows or columns; beyond it no picture could be read
LONGEST_LABEL = 28
COLOURS = "Blues"
HIDDEN = "#eeeeee"
USES = {
    "encoder-self": ("Encoder self-attention", "source (queries)", "source (slots)"),
    "decoder-self": ("Decoder self-attention", "decoder input (queries)", "decoder input (slots)"),
    "cross": ("Cross-attention", "target (queries)", "source (slots)"),
    "encoder-phrases": ("Encoder attention to phrases", "source (queries)", "source phrases"),
    "decoder-phrases": ("Decoder attention to phrases", "target (queries)", "source phrases"),
}
LOOK = {
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.08,
    "axes.grid": False,
    "axes.spines.top": True,
    "axes.spines.right": True,
}


def draw(heat_map: HeatMap, output: str | Path, *, title: str | None = None) -> Path:
    """Draw a map to a `.png`, `.svg` or `.pdf` file; the picture grows with the sentence.

    Raises UsageError for another ending, a map too large to be read, and without matplotlib.
    """
    can_draw(output)
    rows, columns = heat_map.weights.shape
    if max(rows, columns) > MOST_CELLS:
        hint = "take a shorter sentence"
        raise UsageError(f"a map of {rows} x {columns} cells cannot be read, at most {MOST_CELLS} each", hint=hint)
    import matplotlib

    with matplotlib.rc_context(STYLE | LOOK):
        return save(_figure(heat_map, title or title_of(heat_map)), Path(output))


def title_of(heat_map: HeatMap) -> str:
    """Which attention it is: use, layer, head."""
    head = (
        f"mean of {plural(heat_map.heads, 'head')}"
        if heat_map.head is None
        else f"head {heat_map.head} of {heat_map.heads}"
    )
    return f"{USES[heat_map.use][0]}, layer {heat_map.layer}, {head}"


def _figure(heat_map: HeatMap, title: str) -> Any:
    from matplotlib.figure import Figure

    rows, columns = heat_map.weights.shape
    left = 0.075 * min(LONGEST_LABEL, max(map(len, heat_map.rows.labels))) + 0.9
    below = 0.075 * min(LONGEST_LABEL, max(map(len, heat_map.columns.labels))) + 1.0
    size = (max(4.6, CELL * columns + left + 0.9), CELL * rows + below)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    ax = figure.add_subplot()
    _, y_label, x_label = USES[heat_map.use]
    image = _cells(ax, heat_map)
    _ticks(ax.xaxis, heat_map.columns, rotation=90)
    _ticks(ax.yaxis, heat_map.rows, rotation=0)
    _quadrants(ax, heat_map)
    ax.set_xlabel(x_label, color=GREY)
    ax.set_ylabel(y_label, color=GREY)
    ax.set_title(title, pad=18 if _titled(heat_map.columns) else 8, x=-0.02)
    bar = figure.colorbar(image, ax=ax, shrink=min(0.8, 2.2 / (CELL * rows)), aspect=14, pad=0.02)
    bar.set_label("weight", color=GREY)
    bar.outline.set_linewidth(0.6)
    bar.ax.tick_params(labelsize=8, length=2)
    return figure


def _cells(ax: Any, heat_map: HeatMap) -> Any:
    import matplotlib
    import numpy as np

    rows, columns = heat_map.weights.shape
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=HIDDEN)
    shown = np.ma.masked_array(heat_map.weights, heat_map.hidden)
    largest = max(float(heat_map.weights.max(initial=0.0)), 1e-6)
    image = ax.pcolormesh(shown, cmap=colours, vmin=0, vmax=largest, edgecolors="#e4e4e4", linewidth=0.3)
    ax.set_facecolor(HIDDEN)
    ax.set_xlim(0, columns)
    ax.set_ylim(rows, 0)
    ax.set_aspect("equal")
    return image


def _ticks(axis: Any, labels: Axis, *, rotation: int) -> None:
    texts = [_short(label) for label in labels.labels]
    axis.set_ticks([i + 0.5 for i in range(len(texts))], texts, rotation=rotation, size=7.5)
    axis.set_tick_params(length=0, pad=2)


def _short(label: str) -> str:
    text = escape_controls(label)
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


def _titled(axis: Axis) -> bool:
    return len(axis.blocks()) > 1 or axis.orders[:1] != [1]


def _quadrants(ax: Any, heat_map: HeatMap) -> None:
    """Lines between the blocks, and the name of each block above and at the right."""
    for axis, line, is_row in ((heat_map.columns, ax.axvline, False), (heat_map.rows, ax.axhline, True)):
        for order, first, end in axis.blocks():
            if first:
                line(first, color="black", lw=1.4)
            if _titled(axis):
                name = {0: "phrases", 1: "tokens"}.get(order, f"{order}-grams")
                middle = (first + end) / 2
                place = (1.0, middle) if is_row else (middle, 1.0)
                kind = {"rotation": -90, "va": "center", "ha": "left"} if is_row else {"va": "bottom", "ha": "center"}
                transform = ax.get_yaxis_transform() if is_row else ax.get_xaxis_transform()
                offset = {"xytext": (4, 0) if is_row else (0, 3), "textcoords": "offset points"}
                ax.annotate(name, place, xycoords=transform, size=8.5, color=GREY, **offset, **kind)
