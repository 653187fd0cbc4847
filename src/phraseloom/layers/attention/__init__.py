"""Attention = score × arrangement. A new one is one file here and one line in its table in `options/attention.py`."""

from __future__ import annotations

from typing import Any

from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.relative import RelativeScore
from phraseloom.layers.attention.structure import Structure
from phraseloom.options.attention import ARRANGEMENTS, SCORES


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
    gated: bool = False,
    bias: bool = False,
    backend: str = "auto",
    **score_options: Any,
) -> MultiHeadAttention:
    """A block by the names of its score and arrangement.

    `split` (homogeneous) or `orders` (the others), `reads_ahead`: see the arrangement; `gated`: see the block;
    `score_options`: see the score; `bias`: of every projection and of the output; `backend`: auto, explicit or
    fused (backend.py).
    Raises ValueError where they do not fit together.
    """
    given = {"split": split, "orders": orders}
    options = {name: value for name, value in given.items() if value is not None}
    arranged = ARRANGEMENTS[arrangement].load()
    structure = arranged.structure(heads=heads, reads_ahead=reads_ahead, **options)
    return MultiHeadAttention(
        score=SCORES[score].load()(width=width, structure=structure, **score_options),
        arrangement=arranged(width=width, structure=structure, dropout=dropout, **({"bias": True} if bias else {})),
        gated=gated,
        bias=bias,
        backend=backend,
    )


__all__ = ["ARRANGEMENTS", "SCORES", "MultiHeadAttention", "RelativeScore", "Structure", "build_attention"]
