"""Token embeddings and sinusoid positions.

    x_p = √D · E[token_p] + sinusoid(p)         then dropout; positions count from 0
    x_p = LN(x_p)                               with a `norm` (P001)

Layouts of the sinusoid, angle = p / 10000^(2c/D) for c < D/2:
    halves       sin in the first half, cos in the second            (Sockeye)
    interleaved  sin in the even channels, cos in the odd            (Vaswani et al. 2017, Neutron)
    t2t          halves with the denominator D/2 - 1 in the exponent (tensor2tensor)
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.feedforward import dropout

Layout = Literal["halves", "interleaved", "t2t"]


def sinusoid(positions: int, width: int, layout: Layout = "halves", *, first: int = 0) -> Tensor:
    """Position vectors (positions, width) in float32, for positions `first` …; `width` is even."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float64) / (max(half - 1, 1) if layout == "t2t" else half)
    angles = torch.arange(first, first + positions, dtype=torch.float64)[:, None] * torch.exp(
        -math.log(10000.0) * steps
    )
    pair = (angles.sin(), angles.cos())
    joined = torch.stack(pair, -1).flatten(1) if layout == "interleaved" else torch.cat(pair, -1)
    return joined.float()


class Sinusoid(nn.Module):
    """Position vectors, computed on demand and cached; no parameters, nothing in a model file."""

    def __init__(self, *, width: int, layout: Layout) -> None:
        super().__init__()
        self.width, self.layout = width, layout
        self.table: Tensor
        self.register_buffer("table", sinusoid(128, width, layout), persistent=False)

    def forward(self, first: int, length: int) -> Tensor:
        """The vectors of positions first … first+length-1, (length, D)."""
        table = self.table
        if first + length > len(table):
            table = sinusoid(max(first + length, 2 * len(table)), self.width, self.layout).to(table)
            self.table = table
        return table[first : first + length]


class TokenEmbedding(nn.Module):
    """Token vectors, times √D if `scaled`, plus positions. The other side or the output may share the matrix (V, D)."""

    def __init__(
        self,
        weight: nn.Parameter,
        *,
        positions: Sinusoid | None,
        dropout: float = 0.0,
        norm: nn.LayerNorm | None = None,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        self.weight, self.positions, self.dropout, self.norm = weight, positions, dropout, norm
        self.scale = math.sqrt(weight.shape[1]) if scaled else 1.0

    def forward(self, tokens_BS: Tensor, *, first: int = 0) -> Tensor:
        """(B, S) ids → (B, S, D); `first` is the position of column 0."""
        x = F.embedding(tokens_BS, self.weight) * self.scale
        if self.positions is not None:
            x = x + self.positions(first, tokens_BS.shape[1])
        x = dropout(x, self.dropout, self.training)
        return x if self.norm is None else self.norm(x)
