"""Charts as PNG, SVG or PDF files, by the name of the file. Needs the extra `plot` (matplotlib).

Colours are those of Okabe and Ito, told apart with any colour vision; every series also has its own marker and dash.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import Any

from phraseloom.errors import DataError, UsageError, escape_controls, plural
from phraseloom.files import atomic_write
from phraseloom.report.charts.chart import Axes, Chart, Series

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (7, 2)))
GREY = "#555555"
NICE_STEPS = [1, 2, 5, 10]
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "svg.fonttype": "none",  # letters stay text, which can be searched
    "svg.hashsalt": "phraseloom",
    "text.parse_math": False,
}
# Fonts that hold other scripts, taken where they are installed.
FONTS = (
    "Noto Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Noto Sans Arabic", "Noto Sans Devanagari",
)  # fmt: skip
PANEL = (5.3, 3.5)  # inches
LETTER, NOTE_LETTER, TITLE_LETTER = 0.085, 0.055, 0.105  # inches of a letter
NOT_THERE = "matplotlib is not installed"
INSTALL = "pip install 'phraseloom[plot]'"


def has_matplotlib() -> bool:
    """Whether pictures can be drawn at all."""
    return importlib.util.find_spec("matplotlib") is not None


def can_draw(path: str | Path, num_systems: int = 1) -> None:
    """Raise UsageError without matplotlib, for a name that is not that of a picture, and for too many systems."""
    if not has_matplotlib():
        raise UsageError(f"pictures cannot be drawn: {NOT_THERE}", hint=INSTALL)
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"pictures are .png, .svg or .pdf, not {Path(path).name!r}")
    if num_systems > len(COLOURS):
        raise UsageError(f"{num_systems} systems are too many for one picture, at most {len(COLOURS)}")


def draw(charts: Sequence[Chart], output: str | Path, *, title: str, note: str = "", columns: int = 1) -> Path:
    """Draw charts with a point to a file, row by row, under one title; `note` in small letters below.

    Charts in one column share the title and the legend above; in several columns, each has its own title. A chart that is alone
    shows its title if it is another one. Raises UsageError (`can_draw`), DataError if no chart has a point.
    """
    can_draw(output)
    charts = [chart for chart in charts if chart.shown]
    if not charts:
        raise DataError("there is nothing to draw: no system has a value")
    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)
    titled = columns > 1 or (len(charts) == 1 and charts[0].title != title)
    named = list(dict.fromkeys(series.name for chart in charts for series in chart.named))
    wide = max(_width(chart, named if columns == 1 else []) for chart in charts)
    fit = max(1, min(3, len(named), int((wide * columns - 0.6) / (0.8 + LETTER * max(map(len, named), default=0)))))
    legend_rows = -(-len(named) // fit) if len(named) > 1 else 0
    size = (wide * columns, PANEL[1] * rows + 0.5 + 0.22 * legend_rows)
    with figure(rows, columns, title, size=size) as (drawn, axes):
        cells = [cell for row in axes for cell in row]
        for cell, chart in zip_longest(cells, charts):
            if chart is None:
                cell.set_axis_off()
                continue
            _chart(cell, chart)
            if titled:
                cell.set_title(_text(chart.title))
        if legend_rows:
            entries = [entry for cell in cells for entry in zip(*cell.get_legend_handles_labels(), strict=True)]
            first = {label: handle for handle, label in reversed(entries)}
            handles = {_label(name): first[_label(name)] for name in named}
            if not titled:
                place = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderaxespad": 0.2}
                cells[0].legend(handles.values(), handles.keys(), ncols=fit, handlelength=3, **place)
            else:
                drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=fit)
        if note:
            drawn.supxlabel(_wrapped(note, wide * columns / NOTE_LETTER), x=0.01, ha="left", size=7, color=GREY)
        return save(drawn, Path(output))


@contextmanager
def figure(rows: int, columns: int, title: str, *, size: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """A matplotlib figure and its axes, (rows, columns), in our style."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=size, dpi=120, layout="constrained")
        drawn.suptitle(_wrapped(title, size[0] / TITLE_LETTER), x=0.01, ha="left", size=13)
        yield drawn, drawn.subplots(rows, columns, squeeze=False)


def save(figure: Any, path: Path) -> Path:
    """Write a figure; the same figure gives the same bytes. Characters without a glyph are looked for in other fonts."""
    missing = _write(figure, path)
    if missing and (others := _fonts()):
        from matplotlib.text import Text

        for text in figure.findobj(Text):
            text.set_family(["DejaVu Sans", *others])
        missing = _write(figure, path)
    if missing:
        what = f"{plural(missing, 'character')} {'is' if missing == 1 else 'are'} in no installed font"
        logging.getLogger("phraseloom").warning("%s: %s", path, what)
    return path


def _write(figure: Any, path: Path) -> int:
    """Write a figure; the number of characters that its fonts do not have."""
    form = path.suffix.lstrip(".").lower()
    made = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph", UserWarning)
        atomic_write(path, lambda temporary: figure.savefig(temporary, format=form, metadata=made))
    missing = {str(w.message) for w in caught if str(w.message).startswith("Glyph")}
    for other in caught:
        if str(other.message) not in missing:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return len(missing)


def _fonts() -> list[str]:
    """The fonts of `FONTS` that are installed."""
    from matplotlib import font_manager

    there = set(font_manager.get_font_names())
    return [font for font in FONTS if font in there]


# --- parts ------------------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    return "\n".join(escape_controls(line) for line in text.split("\n"))


def _label(name: str) -> str:
    """A name in a legend; matplotlib leaves out those that begin with an underscore."""
    return f" {_text(name)}" if name.startswith("_") else _text(name)


def _wrapped(text: str, width: float) -> str:
    return "\n".join(piece for line in text.split("\n") for piece in wrap(_text(line), int(width)))


def _width(chart: Chart, names: Sequence[str]) -> float:
    """Inches: room for the labels of places, and for the whiskers of systems beside each other."""
    labels = [line for _, label in chart.axes.places for line in label.split("\n")]
    whiskers = any(any(series.intervals) for series in chart.shown)
    each = max(LETTER * max(map(len, labels), default=0) + 0.1, 0.26 * len(chart.named) if whiskers else 0.4)
    legend = 1.4 + LETTER * max(map(len, names), default=0)
    return max(PANEL[0], min(11.0, 1.3 + each * len(chart.axes.places)), legend)


def _chart(ax: Any, chart: Chart) -> None:
    for series in chart.shown:
        _series(ax, series, chart.axes)
    _axes(ax, chart)
    _levels(ax, chart)


def _series(ax: Any, series: Series, axes: Axes) -> None:
    colour = COLOURS[series.style % 7]
    marker = MARKERS[(series.style + series.style // 7) % 7]  # beyond seven series the shapes go with other colours
    dash = DASHES[(series.style + 2 * (series.style // 7)) % 7]
    marked, strength = series.marked or len(series.points) == 1, 0.45 if series.faint else 1.0
    whole = [(at, interval) for (at, _), interval in zip(series.points, series.intervals, strict=False) if interval]
    if series.band and len(whole) > 1:
        lows, highs = zip(*(interval for _, interval in whole), strict=True)
        ax.fill_between([at for at, _ in whole], lows, highs, color=colour, alpha=0.18, linewidth=0)
    elif not series.band:
        for at, (low, high) in whole:
            ax.vlines(at, low, high, color=colour, lw=1.4)
    width = 1.2 if whole and not series.band else 1.8
    for part in series.parts(axes.breaks) if series.joined else ():
        ax.plot(*zip(*part, strict=True), color=colour, ls=dash, alpha=strength, lw=width)
    look = {"color": colour, "ls": "none", "marker": marker, "ms": 6 if marked else 0, "alpha": strength, "zorder": 4}
    for i, (x, y) in enumerate(series.points) if marked else ():
        ax.plot([x], [y], **look, mfc="white" if series.faint or series.is_hollow(i) else colour)
    if not series.faint:
        entry = {**look, "ls": dash if series.joined else "none", "lw": 1.5}
        ax.plot([], [], **entry, label=_label(series.name))


def _axes(ax: Any, chart: Chart) -> None:
    from matplotlib import ticker

    axes = chart.axes
    ax.set_xlabel(_text(axes.x))
    ax.set_ylabel(_text(axes.y))
    if axes.y_log:
        _log_axis(ax)
    else:
        ax.yaxis.set_major_locator(ticker.MaxNLocator(7, steps=NICE_STEPS))
    if axes.y_zero:
        low, high = ax.get_ylim()
        ax.set_ylim(min(0.0, low), max(0.0, high))
    if axes.places:
        room = LETTER * max(len(line) for _, label in axes.places for line in label.split("\n")) + 0.1
        slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if room * len(axes.places) > 9.5 else {}
        ax.set_xticks([at for at, _ in axes.places], [_text(label) for _, label in axes.places], **slanted)
        ax.set_xlim(axes.places[0][0] - 0.5, axes.places[-1][0] + 0.5)
        ax.tick_params(axis="x", length=0)
        ax.grid(visible=False, axis="x")
    else:
        if axes.x_log:
            ax.set_xscale("log")
        else:
            ax.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=NICE_STEPS))
            ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:,.10g}"))
        if axes.x_zero:
            ax.set_xlim(left=0)
    for at in axes.breaks:
        ax.axvline(at, color="#bbbbbb", lw=1)


def _log_axis(ax: Any) -> None:
    from matplotlib import ticker

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    digits = (1.0, 2.0, 5.0) if high / low > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=digits))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_minor_locator(ticker.NullLocator())


def _levels(ax: Any, chart: Chart) -> None:
    """Lines across, each kind with its label: that of the axes in grey, those of series in their colours."""
    labels = []
    if chart.axes.level:
        ax.axhline(chart.axes.level[0], color=GREY, lw=1, ls=(0, (2, 2)))
        labels.append(chart.axes.level)
    levels = [(i, series) for i, series in enumerate(chart.shown) if series.level is not None]
    for i, series in levels:
        ax.axhline(series.level, color=COLOURS[series.style % 7], lw=1, ls=(3 * i, (3, 3 * len(levels))))
    if levels:
        top = max(series.level for _, series in levels if series.level is not None)
        ax.set_ylim(top=max(ax.get_ylim()[1], 1.08 * top))
        labels.append((top, chart.axes.levels))
    for at, label in labels:
        place = {"xy": (0, at), "xycoords": ax.get_yaxis_transform(), "xytext": (4, 3), "textcoords": "offset points"}
        ax.annotate(_text(label), **place, size=8, color=GREY)
