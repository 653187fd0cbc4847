"""BLEU by source length as a picture: a line for each system, and below it the differences to the first system.

It draws `by_length` of a result of `phraseloom evaluate`, so you can draw the picture again from its JSON. Whiskers are the
central 95 % of the resamples of each group's sentences (with `--bootstrap`); groups too small for that have hollow marks. The
whiskers of two systems can overlap although one is clearly better, because both depend on the choice of sentences; the
differences are paired and show it. Needs the extra `plot` (matplotlib).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phraseloom.errors import DataError, escape_controls
from phraseloom.metrics.compare import FEWEST
from phraseloom.report.charts.plots import (
    COLOURS,
    DASHES,
    MARKERS,
    NICE_STEPS,
    STYLE,
    _footnote,
    _grid,
    _legend_above,
    _save,
    can_draw,
)
from phraseloom.results import LengthGroupScore, LengthScores, SystemLengths

LETTER = 0.085  # inches of a letter in the legend
SPREAD = 0.62  # of the distance of two groups, taken by the systems beside each other


def draw(part: LengthScores, output: str | Path, *, title: str | None = None) -> Path:
    """Draw scores by length to a file; with resamples and several systems, also the differences.

    Raises UsageError for another ending, for too many systems and without matplotlib; DataError if no group has a
    sentence.
    """
    can_draw(output, len(part.systems))
    systems = [s.model_copy(update={"groups": [g for g in s.groups if g.score]}) for s in part.systems]
    groups = systems[0].groups
    if not groups:
        raise DataError("no group of source lengths holds a sentence")
    import matplotlib

    differences = len(systems) > 1 and any(g.bootstrap for g in groups)
    names = short_names([s.name for s in systems])
    label = 0.7 + LETTER * max(map(len, names))
    wide = max(5.6, 1.6 + len(groups) * max(1.3, 0.26 * len(systems)), label + 0.6)
    size = (wide, 7.2 if differences else 4.4)
    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none"}):
        figure, axes = _grid(1 + differences, 1, title or f"{part.metric} by source length", size=size)
        _panel(axes[0][0], systems, names, ("value", "low", "high"))
        axes[0][0].set_ylabel(part.metric)
        if differences:
            below = axes[1][0]
            below.axhline(0, color=COLOURS[0], lw=1.2)
            _panel(below, systems, names, ("difference", "difference_low", "difference_high"))
            below.set_ylabel(f"difference to {names[0]}", parse_math=False)
        for ax in (a for (a,) in axes):
            _ticks(ax, groups)
        axes[-1][0].set_xlabel("source tokens before subwords")
        if len(systems) > 1:
            _legend_above(axes[0][0], max(1, min(3, len(systems), int((wide - 0.6) / label))))
        _footnote(figure, _footnote_text(part))
        return _save(figure, Path(output))


def short_names(names: Sequence[str]) -> list[str]:
    """File names without folders and endings, where they stay different."""
    bare = [Path(n).name for n in names]
    stems = [n.rsplit(".", 1)[0] or n for n in bare]
    for short in (stems, bare):
        if len(set(short)) == len(names):
            return [escape_controls(n) for n in short]
    return [escape_controls(n) for n in names]


def _panel(ax: Any, systems: Sequence[SystemLengths], names: Sequence[str], keys: tuple[str, str, str]) -> None:
    """A line through the groups for each system, beside each other where there are whiskers; `keys`: value, low, high."""
    whiskers = any(g.bootstrap for g in systems[0].groups)
    step = SPREAD / len(systems) if whiskers else 0.0
    for i, (system, name) in enumerate(zip(systems, names, strict=True)):
        aside = step * (i - (len(systems) - 1) / 2)
        style = {"color": COLOURS[i], "marker": MARKERS[i], "ms": 6, "ls": "none", "zorder": 4}
        points = [(place + aside, *_values(group, keys)) for place, group in enumerate(system.groups)]
        points = [p for p in points if p[1] is not None]
        ax.plot([p[0] for p in points], [p[1] for p in points], color=COLOURS[i], ls=DASHES[i], lw=0.9, alpha=0.55)
        for x, value, low, high in points:
            ax.plot([x], [value], **style, mfc="white" if whiskers and low is None else COLOURS[i])
            if low is not None:
                ax.vlines(x, low, high, color=COLOURS[i], lw=1.4, zorder=3)
        ax.plot([], [], **style | {"ls": DASHES[i], "lw": 1.2}, label=name)


def _values(group: LengthGroupScore, keys: tuple[str, str, str]) -> tuple[float | None, ...]:
    """Value and ends of a group. Without resamples it has only a value."""
    if group.bootstrap is not None:
        return tuple(getattr(group.bootstrap, key) for key in keys)
    return (group.score.value if keys[0] == "value" and group.score else None, None, None)


def _ticks(ax: Any, groups: Sequence[LengthGroupScore]) -> None:
    from matplotlib import ticker

    counts = [f"{g.sentences:,} sentence" + "s" * (g.sentences != 1) for g in groups]
    ax.set_xticks(range(len(groups)), [f"{g.label}\n{n}" for g, n in zip(groups, counts, strict=True)])
    ax.set_xlim(-0.5, len(groups) - 0.5)
    ax.tick_params(axis="x", length=0)
    ax.yaxis.set_major_locator(ticker.MaxNLocator(7, steps=NICE_STEPS))
    ax.grid(visible=False, axis="x")
    for place in range(1, len(groups)):
        ax.axvline(place - 0.5, color="#e4e4e4", lw=1, zorder=0)


def _footnote_text(part: LengthScores) -> str:
    text = f"{part.metric}: {part.signature}"
    if part.samples is not None:
        text += (
            f"\nwhiskers: central 95 % of {part.samples:,} resamples of the sentences of each group, seed {part.seed}"
        )
        if any(g.score and not g.bootstrap for g in part.systems[0].groups):
            text += f"; hollow: fewer than {FEWEST} sentences, not resampled"
    return text
