"""Charts over layers, over groups of source lengths and over groups of items: a line for each system.

`styles` gives each system its number (colour, marker, dash). Points of systems at one place are beside each other, so that
their intervals do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phraseloom.report.charts.chart import Axes, Chart, Series

if TYPE_CHECKING:
    from phraseloom.report.run.parts import ContrastivePart, GroupAccuracy, ScoredLengthGroup, ScoresByLength

DISTANCES = {
    "given": "distance in words",
    "position": "position of the first changed word (estimate of the distance)",
}
SPREAD = 0.6  # of the distance of two places, taken by the systems beside each other


@dataclass(frozen=True)
class LayerValues:
    """The values of one system: of decoder layers 1, 2, …; `whole`: of all layers together; `level`: a value to compare with.

    `deviations`: of the layers, and of the whole. `others`: (layer, value, what it is) of values shown pale.
    """

    name: str
    layers: Sequence[float]
    whole: float | None = None
    level: float | None = None
    deviations: Sequence[float] = ()
    others: Sequence[tuple[int, float, str]] = ()


def by_layer(
    title: str, systems: Sequence[LayerValues], styles: Mapping[str, int], *, y: str, digits: int, levels: str = ""
) -> Chart:
    """Values by decoder layer and, behind a thin line, of all layers together. `y`: with the unit; `levels`: what they are."""
    num_layers = max((len(system.layers) for system in systems), default=0)
    has_whole = any(system.whole is not None for system in systems)
    places = [(float(layer), str(layer)) for layer in range(1, num_layers + 1)] + [
        (num_layers + 1.0, "all")
    ] * has_whole
    series = []
    for i, system in enumerate(systems):
        aside = _aside(i, len(systems), 0.3)
        values = [(float(layer), value) for layer, value in enumerate(system.layers, 1)]
        values += [] if system.whole is None else [(num_layers + 1.0, system.whole)]
        names = [label for at, _ in values for place, label in places if place == at]
        names = [name if name == "all" else f"layer {name}" for name in names]
        points = [(at + aside, value) for at, value in values]
        ends = [(v - d, v + d) for (_, v), d in zip(values, system.deviations, strict=False)]
        tips = [f"{system.name}, {where}: {v:.{digits}f}" for where, (_, v) in zip(names, values, strict=True)]
        series.append(Series(system.name, points, styles[system.name], ends, tips=tips, level=system.level))
        pale = [(layer + aside, value) for layer, value, _ in system.others]
        tips = [f"{system.name}, layer {layer}, {what}: {v:.{digits}f}" for layer, v, what in system.others]
        series.append(Series(system.name, pale, styles[system.name], joined=False, faint=True, tips=tips))
    breaks = (num_layers + 0.5,) if has_whole else ()
    axes = Axes(x="decoder layer", y=y, y_zero=True, places=places, breaks=breaks, levels=levels, digits=digits)
    return Chart(title, series, axes)


def by_length(part: ScoresByLength, baseline: str | None, styles: Mapping[str, int]) -> list[Chart]:
    """A metric by source length and, with intervals, the differences to the baseline."""
    groups = [group for group in part.groups if any(entry.value is not None for entry in group.systems)]
    places = [(float(i), f"{group.label}\n{_sentences(group.sentences)}") for i, group in enumerate(groups)]
    names = [entry.name for entry in groups[0].systems] if groups else []
    title, x = f"{part.metric} by source length", "source tokens before subwords"

    def series(*keys: str) -> list[Series]:
        return [_length_series(groups, name, _aside(i, len(names)), styles, keys) for i, name in enumerate(names)]

    charts = [Chart(title, series("value", "low", "high"), Axes(x, part.metric, places=places))]
    differences = series("difference", "difference_low", "difference_high")
    if baseline is not None and any(one.points for one in differences):
        axes = Axes(x, f"difference to {baseline}", places=places, level=(0.0, baseline), y_zero=True)
        charts.append(Chart(f"{title}: difference to {baseline}", differences, axes))
    return charts


def by_distance(part: ContrastivePart, styles: Mapping[str, int]) -> list[Chart]:
    """Accuracy on contrastive items by distance, a chart for each category that has distances."""
    charts = []
    for category in dict.fromkeys(group.category for group in part.groups):
        found = [g for g in part.groups if g.category == category and g.distance is not None]
        groups = [(g.distance or "", g.items, g.systems) for g in found]
        if groups:
            title = f"Accuracy by distance: {category}" if category else "Accuracy by distance"
            charts.append(by_group(title, groups, styles, f"{DISTANCES[part.distance or 'given']}; below: items"))
    return charts


def by_group(
    title: str,
    groups: Sequence[tuple[str, int, Sequence[GroupAccuracy]]],
    styles: Mapping[str, int],
    x: str,
    *,
    joined: bool = True,
) -> Chart:
    """Accuracy in per cent with its interval. `groups`: (label, number of items, the systems); `joined`: they have an order."""
    names = list(dict.fromkeys(entry.name for _, _, entries in groups for entry in entries))
    series = []
    for i, name in enumerate(names):
        found = [next(e for e in entries if e.name == name) for _, _, entries in groups]
        points = [(place + _aside(i, len(names)), 100 * e.accuracy) for place, e in enumerate(found)]
        ends = [(100 * e.low, 100 * e.high) for e in found]
        tips = [
            f"{name}, {label} ({items:,}): {100 * e.accuracy:.1f} % ({100 * e.low:.1f} … {100 * e.high:.1f})"
            for (label, items, _), e in zip(groups, found, strict=True)
        ]
        series.append(Series(name, points, styles[name], ends, joined=joined, tips=tips))
    places = [(float(i), f"{label}\n{items:,}") for i, (label, items, _) in enumerate(groups)]
    level = (50.0, "guessing") if joined else None
    return Chart(title, series, Axes(x=x, y="right (%)", places=places, level=level))


def last_parts(paths: Sequence[str]) -> dict[str, str]:
    """Path → its last part, or the whole path if two last parts are the same."""
    ends = [Path(path).name or path for path in paths]
    return dict(zip(paths, ends if len(set(ends)) == len(ends) else paths, strict=True))


def without_endings(paths: Sequence[str]) -> dict[str, str]:
    """Path → file name without folder and ending, where these stay different; else as `last_parts`."""
    stems = {path: name.removesuffix(Path(name).suffix) for path, name in last_parts(paths).items()}
    return stems if len(set(stems.values())) == len(paths) else last_parts(paths)


def _aside(i: int, systems: int, spread: float = SPREAD) -> float:
    return spread * (i - (systems - 1) / 2) / max(1, systems)


def _sentences(number: int) -> str:
    return f"{number:,} sentence" + "s" * (number != 1)


def _length_series(
    groups: Sequence[ScoredLengthGroup], name: str, aside: float, styles: Mapping[str, int], keys: Sequence[str]
) -> Series:
    points, ends, tips = [], [], []
    for place, group in enumerate(groups):
        entry = next((e for e in group.systems if e.name == name), None)
        value, below, above = (getattr(entry, key, None) for key in keys)
        if value is None:
            continue
        points.append((place + aside, value))
        ends.append(None if below is None or above is None else (below, above))
        interval = "" if below is None else f" ({below:.2f} … {above:.2f})"
        tips.append(f"{name}, {group.label}: {value:.2f}{interval}")
    return Series(name, points, styles[name], ends, tips=tips)
