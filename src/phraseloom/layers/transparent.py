"""Transparent attention: every decoder layer has its own mixture of all levels of the encoder (P001 eq. 6; spec §3.4).

R̃^j = Σ_{i=0}^{L} softmax_i(w)[i, j] R^i        level 0 is the embeddings; w (L+1, decoder layers)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phraseloom.layers.dropout import dropout


class TransparentAttention(nn.Module):
    """Mixes L+1 levels for each of the decoder layers; `dropout` acts on the raw weights."""

    def __init__(self, *, levels: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight, self.dropout = nn.Parameter(torch.empty(levels, layers)), dropout
        nn.init.uniform_(self.weight, -math.sqrt(1 / levels), math.sqrt(1 / levels))

    def shares(self) -> Tensor:
        """How much of each level each decoder layer gets, (L+1, decoder layers); columns sum to 1."""
        return self.weight.softmax(0)

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of one shape, one a level → the mixture for each decoder layer."""
        shares = dropout(self.weight, self.dropout, self.training).softmax(0)
        stacked = torch.stack(tuple(levels))
        mixed = shares.t().to(stacked.dtype) @ stacked.flatten(1)
        return list(mixed.view(-1, *stacked.shape[1:]).unbind(0))
