"""Attention = score × arrangement. A new mechanism is one file and one line in the table it belongs to."""

from __future__ import annotations

from typing import Any

from phraseloom.layers.attention.convkv import ConvKVScore
from phraseloom.layers.attention.heterogeneous import HeterogeneousArrangement
from phraseloom.layers.attention.homogeneous import HomogeneousArrangement
from phraseloom.layers.attention.interleaved import InterleavedArrangement
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.queryk import QueryKScore
from phraseloom.layers.attention.relative import RelativeScore
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.attention.token import TokenScore

SCORES: dict[str, Any] = {
    "token": TokenScore,
    "relative": RelativeScore,
    "convkv": ConvKVScore,
    "queryk": QueryKScore,
}
ARRANGEMENTS: dict[str, Any] = {
    "homogeneous": HomogeneousArrangement,
    "heterogeneous": HeterogeneousArrangement,
    "interleaved": InterleavedArrangement,
}


def build_attention(
    *,
    width: int,
    heads: int,
    score: str = "token",
    arrangement: str = "homogeneous",
    reads_ahead: bool = False,
    dropout: float = 0.0,
    split: list[int] | None = None,
    orders: list[int] | None = None,
    **score_options: Any,
) -> MultiHeadAttention:
    """A block by the names of its score and arrangement.

    `split` (homogeneous) or `orders` (the others), `reads_ahead`: see the arrangement; `score_options`: see the score.
    Raises ValueError where they do not fit together.
    """
    given = {"split": split, "orders": orders}
    options = {name: value for name, value in given.items() if value is not None}
    structure = ARRANGEMENTS[arrangement].structure(heads=heads, reads_ahead=reads_ahead, **options)
    return MultiHeadAttention(
        score=SCORES[score](width=width, structure=structure, **score_options),
        arrangement=ARRANGEMENTS[arrangement](width=width, structure=structure, dropout=dropout),
    )


__all__ = [
    "ARRANGEMENTS",
    "SCORES",
    "ConvKVScore",
    "HeterogeneousArrangement",
    "HomogeneousArrangement",
    "InterleavedArrangement",
    "MultiHeadAttention",
    "QueryKScore",
    "RelativeScore",
    "Structure",
    "TokenScore",
    "build_attention",
]
