"""Neighbours of embeddings as a picture. Needs the extra `plot` (matplotlib).

Two models: how many neighbours of a token are the same in both, and the cosine of each pair of tokens in one against the
other. One model: the cosines of all pairs, and of the tokens with their nearest and their last neighbour.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phraseloom.errors import escape_controls, plural
from phraseloom.report.charts.picture import COLOURS, DASHES, GREY, can_draw, figure, save
from phraseloom.report.charts.places import last_parts

if TYPE_CHECKING:
    from phraseloom.analysis.neighbours import Neighbours

BINS = 40
CELLS = 60  # of the picture of all pairs, a side


def draw(found: Neighbours, output: str | Path, *, title: str) -> Path:
    """Draw what `analysis.neighbours.compare` found. Raises UsageError without matplotlib and for another kind of file."""
    can_draw(output)
    alone = len(found.models) == 1
    with figure(1, 1 if alone else 2, title, size=(6.4, 4.2) if alone else (10.4, 4.6)) as (drawn, axes):
        if alone:
            _cosines(axes[0][0], found)
        else:
            _shared(axes[0][0], found)
            _pairs(drawn, axes[0][1], found)
        return save(drawn, Path(output))


def _cosines(ax: Any, found: Neighbours) -> None:
    """Densities over the cosine."""
    series = {"all pairs of these tokens": found.pairs[0]}
    series["with the nearest neighbour"] = np.array([t.neighbours[0][0].cosine for t in found.tokens])
    if found.count > 1:
        name = f"with neighbour {found.count}"
        series[name] = np.array([t.neighbours[0][-1].cosine for t in found.tokens])
    low = min((float(values.min()) for values in series.values() if len(values)), default=0.0)
    edges = np.linspace(min(low, 0.0), 1.0, BINS + 1)
    for i, (label, values) in enumerate(series.items()):
        if len(values):
            style = {"color": COLOURS[i], "ls": DASHES[i], "lw": 1.8}
            ax.hist(values, edges, density=True, histtype="step", label=f"{label} ({len(values):,})", **style)
    ax.set_xlabel("cosine")
    ax.set_ylabel("density")
    ax.legend()


def _shared(ax: Any, found: Neighbours) -> None:
    """How many tokens share how many neighbours."""
    counts = np.bincount([token.shared for token in found.tokens], minlength=found.count + 1)
    bars = ax.bar(range(found.count + 1), counts, color=COLOURS[0], width=0.8)
    ax.bar_label(bars, [str(n) if n else "" for n in counts], size=8, color=GREY)
    ax.set_title(f"Overlap {found.overlap:.3f} (by chance {found.chance:.2g})")
    ax.set_xlabel(f"neighbours in common, of {found.count}")
    ax.set_ylabel("tokens")
    ax.set_xticks(range(0, found.count + 1, -(-found.count // 20)))
    ax.grid(visible=False, axis="x")


def _pairs(drawn: Any, ax: Any, found: Neighbours) -> None:
    """Pairs of tokens by their cosines in both models."""
    first, second = found.pairs
    names = [escape_controls(name) for name in last_parts(found.models).values()]
    if len(first):
        cells = ax.hexbin(first, second, gridsize=CELLS, bins="log", mincnt=1, cmap="viridis", linewidths=0)
        drawn.colorbar(cells, ax=ax, label="pairs", shrink=0.8)
        low = min(float(first.min()), float(second.min()))
        high = max(float(first.max()), float(second.max()))
        ax.plot([low, high], [low, high], color=GREY, lw=1, ls=(0, (2, 2)))
    values = [
        f"{name} {value:.3f}" for name, value in (("r", found.pearson), ("ρ", found.spearman)) if value is not None
    ]
    ax.set_title(f"{plural(len(first), 'pair')} of tokens" + f": {', '.join(values)}" * bool(values))
    ax.set_xlabel(f"cosine in {names[0]}")
    ax.set_ylabel(f"cosine in {names[1]}")
    ax.set_aspect("equal", adjustable="box")
