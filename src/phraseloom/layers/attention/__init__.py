"""Attention = score × arrangement. A new mechanism is one file and one line in the table it belongs to."""

from __future__ import annotations

from phraseloom.layers.attention.homogeneous import HomogeneousArrangement
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.relative import RelativeScore
from phraseloom.layers.attention.token import TokenScore

SCORES = {"token": TokenScore, "relative": RelativeScore}
ARRANGEMENTS = {"homogeneous": HomogeneousArrangement}

__all__ = [
    "ARRANGEMENTS",
    "SCORES",
    "HomogeneousArrangement",
    "MultiHeadAttention",
    "RelativeScore",
    "TokenScore",
]
