"""Homogeneous arrangement: every head attends to one order; the heads are concatenated and mixed (P002 §3.2.1).

    head_h = Σ_j softmax_j(A_h[i,j]) V_h[j]        output = concat(head_1 … head_H) Wo

With an order-1 score (token, relative) this is ordinary multi-head attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.attention.token import TokenScore
from phraseloom.layers.dropout import dropout


class HomogeneousArrangement(nn.Module):
    """One softmax a head over the slots of its order, then the output projection Wo (D × D, no bias)."""

    def __init__(self, *, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        self.dropout = dropout
        nn.init.xavier_uniform_(self.weight)

    def forward(
        self, score: TokenScore, queries: Tensor, keys: Tensor, values: Tensor, visibility: Visibility
    ) -> tuple[Tensor, Tensor]:
        """Output (B, Q, D) and attention weights (B, H, Q, K), before dropout."""
        scores_BHQK = score.scores(queries, keys, visibility)
        weights_BHQK = masked_softmax(scores_BHQK, visibility.hidden(1))
        dropped = dropout(weights_BHQK, self.dropout, self.training)
        heads_BHQE = score.mix(dropped, values, visibility)
        batch, _, length, _ = heads_BHQE.shape
        joined_BQD = heads_BHQE.transpose(1, 2).reshape(batch, length, -1)
        return F.linear(joined_BQD, self.weight), weights_BHQK
