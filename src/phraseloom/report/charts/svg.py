"""Charts as inline SVG: lines (`chart.py`), dots with intervals, stacked bars.

They print as they are shown, need no script, and say each of their numbers in a `<title>`, for the pointer; the same numbers
stand in tables beside them. Colours are those of `assets/base.css`; every series also has a dash and a marker of its own.

From numbers to places on a chart: linear and logarithmic axes with round ticks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from phraseloom.errors import escape_controls
from phraseloom.report.charts.chart import NUM_STYLES, Axes, Chart, Series

WIDTH, HEIGHT = 560, 300
TOP, RIGHT, BOTTOM = 14, 14, 46
CROWDED = 24  # places × series that one column of a page has room for
LETTER = 6.6  # pixels of a letter of 12 px
LINE = 13  # pixels from one line of a label to the next
SLANT = math.sqrt(0.5)  # the sine of the angle of slanted labels, 45°
LONGEST = 30  # letters of a slanted label
DASHES = ("", "7 3", "7 3 1.5 3", "1.5 3", "12 3", "2 2", "9 2 2 2 2 2")


@dataclass(frozen=True)
class Dot:
    """One row of a dot chart."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    style: int = 0
    tip: str = ""


@dataclass(frozen=True)
class Bar:
    """One row of stacked shares in per cent; `gap`: some room above it."""

    name: str
    shares: Sequence[float]
    gap: bool = False
    tips: Sequence[str] = field(default_factory=tuple)


def lines(chart: Chart, *, legend: bool = False) -> str:
    """A chart of lines; "" where no series has a point. Many places make it twice as wide. `legend`: also of one series."""
    series, axes = chart.shown, chart.axes
    if not series:
        return ""
    y = scale_of(chart.heights(), HEIGHT - BOTTOM, TOP, log=axes.y_log, zero=axes.y_zero)
    ticks = _labelled(y.ticks())
    left = 26 + LETTER * max((len(label) for _, label in ticks), default=1)
    left, right, below = _frame(axes, len(series), left)
    x = _x_scale(series, axes, left, right)
    parts = [*_y_axis(y, ticks, (left, right), axes.y)]
    parts += _x_axis(x, axes, (left, right), height=HEIGHT + below, bottom=BOTTOM + below)
    for at in axes.breaks:
        parts.append(f'<line class="grid" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    parts += _levels(chart, y, (left, right))
    for one in series:
        parts += _series(one, x, y, axes)
    key = _legend([(s.name, s.style) for s in chart.named]) if legend or len(chart.named) > 1 else ""
    return _figure(chart.title, "".join(parts), right + RIGHT, HEIGHT + below, key)


def dots(title: str, rows: Sequence[Dot], *, x: str, zero: bool = False, digits: int = 2) -> str:
    """A chart of one row a system: the value as a dot, its interval as a whisker; `zero` draws a line at 0.

    `digits`: decimal places of values where a row has no text of its own.
    """
    if not rows:
        return ""
    left = 16 + LETTER * min(34, max(len(r.name) for r in rows))
    height = 20 + 30 * len(rows) + BOTTOM
    ends = [v for r in rows for v in (r.value, r.low, r.high) if v is not None]
    scale = scale_of([*ends, 0.0] if zero else ends, left + 12, WIDTH - RIGHT, pad=0.08)
    parts = [*_x_axis(scale, Axes(x=x, y=""), (left, WIDTH - RIGHT), height=height)]
    if zero:
        parts.append(f'<line class="level" x1="{scale(0):.1f}" x2="{scale(0):.1f}" y1="6" y2="{height - BOTTOM}"/>')
    for i, row in enumerate(rows):
        at = 22 + 30 * i
        ends_said = f" ({row.low:.{digits}f} … {row.high:.{digits}f})" if _both(row.low, row.high) else ""
        tip = row.tip or f"{row.name}: {row.value:.{digits}f}{ends_said}"
        name = row.name if len(row.name) <= 34 else row.name[:33] + "…"
        parts.append(f'<text class="end" x="{left:.1f}" y="{at + 4}">{_text(name)}</text><g class="s{row.style % 7}">')
        if row.low is not None and row.high is not None:
            parts.append(
                f'<line class="whisker" x1="{scale(row.low):.1f}" x2="{scale(row.high):.1f}" y1="{at}" y2="{at}"/>'
            )
        parts.append(_mark(scale(row.value), at, row.style, tip) + "</g>")
    return _figure(title, "".join(parts), WIDTH, height)


def bars(title: str, rows: Sequence[Bar], names: Sequence[str]) -> str:
    """Stacked shares that add up to 100 %, one row a bar; the share is written into every part that has room for it."""
    if not rows:
        return ""
    left = 16 + LETTER * min(30, max(len(r.name) for r in rows))
    scale, parts, at = Scale(0, 100, left + 6, WIDTH - RIGHT), [], 8.0
    for row in rows:
        at += 10 if row.gap else 0
        name = row.name if len(row.name) <= 30 else row.name[:29] + "…"
        parts.append(f'<text class="end" x="{left:.1f}" y="{at + 15:.1f}">{_text(name)}</text>')
        begin = 0.0
        for i, share in enumerate(row.shares):
            a, b = scale(begin), scale(begin + share)
            tip = row.tips[i] if i < len(row.tips) else f"{row.name}: {names[i]} {share:.1f} %"
            parts.append(
                f'<g class="b{i % 7}"><rect x="{a:.1f}" y="{at:.1f}" width="{max(0.0, b - a):.1f}" height="20">'
                f"<title>{_text(tip)}</title></rect>"
            )
            if b - a > 30:
                parts.append(f'<text class="in" x="{(a + b) / 2:.1f}" y="{at + 14.5:.1f}">{share:.1f}</text>')
            parts.append("</g>")
            begin += share
        at += 25
    key = "".join(f'<span class="key"><i class="b{i % 7}"></i>{_text(n)}</span>' for i, n in enumerate(names))
    return _figure(title, "".join(parts), WIDTH, math.ceil(at + 6), f'<p class="keys">{key}</p>')


# --- parts ------------------------------------------------------------------------------------------------------------


def _both(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None


def _room(labels: Iterable[str]) -> float:
    """The width that each of some labels needs in a row."""
    return max((len(line) for label in labels for line in label.split("\n")), default=1) * LETTER + 8


def _is_slanted(axes: Axes, width: float) -> bool:
    """Whether the labels of places are too wide for one row of them."""
    return _room(label for _, label in axes.places) * len(axes.places) > width


def _frame(axes: Axes, num_series: int, left: float) -> tuple[float, int, int]:
    """Both ends of the x axis, with room for the label of every place, and the height of labels beyond one line."""
    labels = [label for _, label in axes.places]
    crowded = len(labels) * num_series > CROWDED or _is_slanted(axes, WIDTH - RIGHT - left)
    rows = max((label.count("\n") for label in labels), default=0)
    each = min(_room(labels), LINE * (rows + 1.2) / SLANT)
    right = max((2 * WIDTH if crowded else WIDTH) - RIGHT, math.ceil(left + each * len(labels)))
    if not _is_slanted(axes, right - left):
        return left, right, LINE * rows
    longest = min(LETTER * LONGEST, _room(labels) - 8)
    margin = max(0, math.ceil(SLANT * longest - left - each / 2))
    return left + margin, right + margin, math.ceil(SLANT * (longest + LINE * rows) - 4)


def _x_scale(series: Sequence[Series], axes: Axes, left: float, right: float) -> Scale:
    if axes.places:
        at = [p for p, _ in axes.places]
        return Scale(min(at) - 0.5, max(at) + 0.5, left, right)
    values = [x for s in series for x, _ in s.points]
    return scale_of(values, left, right, log=axes.x_log, zero=axes.x_zero, pad=0.02)


def _y_axis(y: Scale, ticks: Sequence[tuple[float, str]], ends: tuple[float, float], label: str) -> Iterator[str]:
    left, right = ends
    for tick, text in ticks:
        at = y(tick)
        yield f'<line class="grid" x1="{left:.1f}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text class="end" x="{left - 6:.1f}" y="{at + 4:.1f}">{text}</text>'
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<text class="mid" transform="translate(11 {middle:.0f}) rotate(-90)">{_text(label)}</text>'


def _x_axis(
    x: Scale, axes: Axes, ends: tuple[float, float], *, height: int = HEIGHT, bottom: int = BOTTOM
) -> Iterator[str]:
    (left, right), bottom = ends, height - bottom
    yield f'<line class="axis" x1="{left:.1f}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    ticks = list(axes.places)
    slanted = _is_slanted(axes, right - left)
    if not ticks:
        ticks = _labelled(x.ticks(7))
        ticks = ticks[:: max(1, math.ceil(_room([label for _, label in ticks]) * len(ticks) / (right - left)))]
    for tick, text in ticks:
        yield f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield from _slanted(text, x(tick), bottom) if slanted else _upright(text, x(tick), bottom)
    yield f'<text class="mid" x="{(left + right) / 2:.1f}" y="{height - 8}">{_text(axes.x)}</text>'


def _upright(text: str, at: float, bottom: int) -> Iterator[str]:
    """A label below its tick; its second line is small."""
    for i, line in enumerate(text.split("\n")):
        kind = "mid small" if i else "mid"
        yield f'<text class="{kind}" x="{at:.1f}" y="{bottom + 17 + LINE * i}">{_text(line)}</text>'


def _slanted(text: str, at: float, bottom: int) -> Iterator[str]:
    """A label that rises to its tick from the left, with its lines beside each other."""
    rows = text.split("\n")
    yield f'<g transform="translate({at - 5 * (len(rows) - 2):.1f} {bottom + 13}) rotate(-45)">'
    for i, line in enumerate(rows):
        kind = "end small" if i else "end"
        short = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
        yield f'<text class="{kind}" x="0" y="{LINE * i}">{_text(short)}</text>'
    yield "</g>"


def _levels(chart: Chart, y: Scale, ends: tuple[float, float]) -> Iterator[str]:
    """The lines across: that of the axes with its label, and those of series in their colours, labelled once."""
    left, right = ends
    axes = chart.axes
    labels = [axes.level] if axes.level else []
    if labels:
        at = y(labels[0][0])
        yield f'<line class="level" x1="{left:.1f}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
    levels = [(series.style, series.level) for series in chart.shown if series.level is not None]
    for style, level in levels:
        line = f'<line class="line" x1="{left:.1f}" x2="{right}" y1="{y(level):.1f}" y2="{y(level):.1f}"'
        yield f'<g class="s{style % NUM_STYLES} faint">{line} stroke-dasharray="3 4"/></g>'
    labels += [(max(level for _, level in levels), axes.levels)] if levels else []
    for level, label in labels:
        yield f'<text class="small" x="{left + 4:.1f}" y="{y(level) - 4:.1f}">{_text(label)}</text>'


def _series(series: Series, x: Scale, y: Scale, axes: Axes) -> Iterator[str]:
    yield f'<g class="s{series.style % NUM_STYLES}{" faint" if series.faint else ""}">'
    ends = zip(series.points, series.intervals, strict=False)
    whole = [(x(at), y(interval[0]), y(interval[1])) for (at, _), interval in ends if interval]
    if series.band and len(whole) > 1:
        border = [(at, high) for at, _, high in whole] + [(at, low) for at, low, _ in reversed(whole)]
        yield f'<path class="band" d="{_path(border)}Z"/>'
    elif not series.band:
        yield from (f'<line class="whisker" x1="{a:.1f}" x2="{a:.1f}" y1="{b:.1f}" y2="{c:.1f}"/>' for a, b, c in whole)
    for part in series.parts(axes.breaks) if series.joined else ():
        if len(part) > 1:
            dash = _dash(series.style)
            line = f'<path class="line" d="{_path([(x(a), y(b)) for a, b in part])}"'
            yield line + (f' stroke-dasharray="{dash}"/>' if dash else "/>")
    for i, (value_x, value_y) in enumerate(series.points):
        a, b = x(value_x), y(value_y)
        tip = series.tips[i] if i < len(series.tips) else _tip(series, i, value_x, value_y, axes.digits)
        if series.marked or len(series.points) == 1:
            mark = _mark(a, b, series.style, tip)
            yield f'<g class="hollow">{mark}</g>' if series.is_hollow(i) else mark
        elif tip:
            yield f'<circle class="hit" cx="{a:.1f}" cy="{b:.1f}" r="6"><title>{_text(tip)}</title></circle>'
    yield "</g>"


def _tip(series: Series, i: int, x: float, y: float, digits: int) -> str:
    interval = series.interval(i)
    ends = "" if interval is None else f" ({interval[0]:.{digits}f} … {interval[1]:.{digits}f})"
    return f"{series.name}, {number(x)}: {y:.{digits}f}{ends}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)


def _mark(x: float, y: float, style: int, tip: str = "") -> str:
    """One of seven shapes, with what it says; beyond seven series the shapes go with other colours."""
    r, a = 4.2, 1.4
    title = f"<title>{_text(tip)}</title>" if tip else ""
    shape = (style + style // NUM_STYLES) % NUM_STYLES
    if shape == 0:
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{r}">{title}</circle>'
    corners: dict[int, list[tuple[float, float]]] = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -r - 1), (r + 0.6, r), (-r - 0.6, r)],
        3: [(0, -r - 1.4), (r + 1.4, 0), (0, r + 1.4), (-r - 1.4, 0)],
        4: [(0, r + 1), (r + 0.6, -r), (-r - 0.6, -r)],
        5: [(-a, -r), (a, -r), (a, -a), (r, -a), (r, a), (a, a), (a, r), (-a, r), (-a, a), (-r, a), (-r, -a), (-a, -a)],
        6: [(-r, -r - 1), (0, -1.8), (r, -r - 1), (1.8, 0), (r, r + 1), (0, 1.8), (-r, r + 1), (-1.8, 0)],
    }
    d = _path([(x + right, y + down) for right, down in corners[shape]])
    return f'<path class="mark" d="{d}Z">{title}</path>'


def _dash(style: int) -> str:
    return DASHES[(style + 2 * (style // NUM_STYLES)) % NUM_STYLES]


def _legend(names: Sequence[tuple[str, int]]) -> str:
    return f'<p class="keys">{"".join(key(name, style) for name, style in names)}</p>'


def key(name: str, style: int) -> str:
    """The entry of a legend: line, marker and name of a series."""
    dash = _dash(style)
    line = '<path class="line" d="M1 8L31 8"' + (f' stroke-dasharray="{dash}"/>' if dash else "/>")
    mark = _mark(16, 8, style)
    svg = f'<svg class="s{style % NUM_STYLES}" width="32" height="16" aria-hidden="true">{line}{mark}</svg>'
    return f'<span class="key">{svg}{_text(name)}</span>'


def _text(text: str) -> str:
    return escape(escape_controls(text))


def _figure(title: str, inside: str, width: int, height: int, legend: str = "") -> str:
    svg = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{_text(title)}">{inside}</svg>'
    kind = "chart wide" if width > WIDTH else "chart"
    return f'<figure class="{kind}"><figcaption>{_text(title)}</figcaption>{legend}{svg}</figure>'


STEPS = (1.0, 2.0, 5.0, 10.0)
MOST = 1e300  # greater values stand on the border: their sums and products overflow
SAME = 1e-9  # of a value: those that are closer count as one, because 12 digits of a tick do not tell them apart


@dataclass(frozen=True)
class Scale:
    """The values from `low` to `high` (low < high) on the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; a value outside is put on the border."""
        value = min(max(value, self.low), self.high)
        if self.log:
            low = math.log(self.low)
            share = (math.log(value) - low) / (math.log(self.high) - low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """At most `most` round values that are on the scale, in rising order."""
        return _log_ticks(self.low, self.high, most) if self.log else _ticks(self.low, self.high, most)


def scale_of(
    values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = False, pad: float = 0.05
) -> Scale:
    """A scale that holds all finite values (on a logarithmic one, the positive ones) with some room; `zero`: and 0."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = (min(max(v, 1 / MOST if log else -MOST), MOST) for v in (min(known), max(known)))
    if zero and not log:
        low, high = min(low, 0.0), max(high, 0.0)
    same = high - low <= SAME * max(abs(low), abs(high))
    if log:
        room = math.log(1.2) if same else max(pad, 0.02) * (math.log(high) - math.log(low))
        return Scale(max(low / math.exp(room), 1e-307), min(high * math.exp(room), 1e308), start, end, log=True)
    if same:
        half = abs(low) * 0.1 or 1.0
        return Scale(low - half, high + half, start, end)
    room = pad * (high - low)
    keep_low, keep_high = zero and low == 0, zero and high == 0
    return Scale(low if keep_low else low - room, high if keep_high else high + room, start, end)


def _ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (s * power for s in (*STEPS, 20.0, 50.0)):
        first = math.ceil(low / step - 1e-9)
        count = math.floor(high / step + 1e-9) - first + 1
        if count <= most:
            return [float(f"{(first + i) * step:.12g}") + 0.0 for i in range(count)]
    return [low]  # not reached: a step of 50 powers leaves one tick at most


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [float(f"{d * 10.0**p:.12g}") for p in decades for d in digits if low <= d * 10.0**p <= high]
        if 2 <= len(found) <= most:
            return found
    some = [10.0**p for p in decades if low <= 10.0**p <= high]
    return some[:: -(-len(some) // most)] if len(some) > most else some or _ticks(low, high, most)


def _labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with their labels, all with as many digits as it takes to write each of them."""
    digits = next((d for d in range(4, 12) if all(float(f"{tick:.{d}g}") == tick for tick in ticks)), 12)
    return [(tick, number(tick, digits)) for tick in ticks]


SIZES = ((1e15, 1.0, ""), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def number(value: float, digits: int = 4) -> str:
    """A tick as short text with `digits` digits, beyond 9,999 at least six: 0.002, 15, 1,500, 20k, 1.5M, 1e+20."""
    for least, unit, letter in SIZES:
        if abs(value) >= least:
            return f"{value / unit:.{max(6, digits)}g}{letter}".replace("-", "\u2212")
    return f"{value:,.{digits}g}".replace("-", "\u2212")
