"""What a chart of lines shows. `svg.lines` draws it inside a page, `picture.draw` as a PNG, SVG or PDF file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

NUM_STYLES = 7

Interval = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line: points (x, y), and of each the ends of an interval, None where unknown (shown as a band or as whiskers).

    `style` numbers colour, dash and marker; two series of one system share it, the second one `faint` and not in the legend.
    `tips`: what each point says under the pointer, by default its numbers. `level`: a thin line across the chart.
    A point without an interval has a hollow mark where others of the series have one.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: int = 0
    intervals: Sequence[Interval | None] = ()
    band: bool = False
    marked: bool = True
    joined: bool = True
    faint: bool = False
    tips: Sequence[str] = ()
    level: float | None = None

    def interval(self, i: int) -> Interval | None:
        """The interval of point `i`."""
        return self.intervals[i] if self.intervals else None

    def is_hollow(self, i: int) -> bool:
        """Whether the mark of point `i` is hollow."""
        return not self.band and self.interval(i) is None and any(self.intervals)

    def parts(self, breaks: Sequence[float]) -> Iterator[Sequence[tuple[float, float]]]:
        """The runs of points between `breaks`, which no line crosses."""
        edges = [float("-inf"), *sorted(breaks), float("inf")]
        for low, high in pairwise(edges):
            if part := [point for point in self.points if low <= point[0] < high]:
                yield part


@dataclass(frozen=True)
class Axes:
    """What the axes say.

    `places`: labelled positions in place of a scale of x; a label may have two lines. `breaks`: positions between them that a
    thin line marks and no series crosses. `level`: a line across, with what it is; `levels`: what the levels of series are.
    """

    x: str
    y: str
    x_log: bool = False
    y_log: bool = False
    x_zero: bool = False
    y_zero: bool = False
    places: Sequence[tuple[float, str]] = ()
    breaks: Sequence[float] = ()
    level: tuple[float, str] | None = None
    levels: str = ""
    digits: int = 2


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes."""

    title: str
    series: Sequence[Series]
    axes: Axes

    @property
    def shown(self) -> list[Series]:
        """The series that have a point."""
        return [series for series in self.series if series.points]

    @property
    def named(self) -> list[Series]:
        """The series of the legend."""
        return [series for series in self.shown if not series.faint]

    def heights(self) -> Iterator[float]:
        """All values of y, with the ends of intervals and the levels."""
        for series in self.shown:
            yield from (y for _, y in series.points)
            yield from (y for interval in series.intervals if interval for y in interval)
            if series.level is not None:
                yield series.level
        if self.axes.level:
            yield self.axes.level[0]
