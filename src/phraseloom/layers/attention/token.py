"""Token scores: ordinary scaled dot-product attention (Vaswani et al. 2017), the n-gram score of order 1.

    A[i,j] = q_i · k_j / √E        q = x_q Wq,  k = x_k Wk,  v = x_k Wv        (no biases: spec §1.1)

One parameter holds the three matrices, rows Wq | Wk | Wv, so that self-attention makes them in one product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.cache import FixedCache, GrowingCache
from phraseloom.layers.attention.masks import Visibility


class TokenScore(nn.Module):
    """Queries, keys, values of single tokens, and their scores. Source: Vaswani et al. 2017, §3.2."""

    orders = (1,)

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads, self.size = width, heads, width // heads
        self.weight = nn.Parameter(torch.empty(3 * width, width))
        self.reset()

    def reset(self) -> None:
        """Glorot-uniform, each of the three square matrices by itself."""
        for part in self.weight.detach().split(self.width):
            nn.init.xavier_uniform_(part)

    def _split(self, projected: Tensor, parts: int) -> list[Tensor]:
        """(B, K, parts*D) → parts × (B, H, K, E)."""
        batch, length, _ = projected.shape
        return list(projected.view(batch, length, parts, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0))

    def project_self(self, x_BKD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, K, E) of self-attention."""
        queries, keys, values = self._split(F.linear(x_BKD, self.weight), 3)
        return queries, keys, values

    def project_queries(self, x_BQD: Tensor) -> Tensor:
        """Queries (B, H, Q, E) of cross-attention."""
        return self._split(F.linear(x_BQD, self.weight[: self.width]), 1)[0]

    def project_memory(self, x_BKD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, K, E) of cross-attention."""
        keys, values = self._split(F.linear(x_BKD, self.weight[self.width :]), 2)
        return keys, values

    def scores(self, queries_BHQE: Tensor, keys_BHKE: Tensor, visibility: Visibility) -> Tensor:
        """Scores (B, H, Q, K) before masking."""
        return (queries_BHQE @ keys_BHKE.transpose(-1, -2)).mul_(self.size**-0.5)

    def mix(self, weights_BHQK: Tensor, values_BHKE: Tensor, visibility: Visibility) -> Tensor:
        """Contexts (B, H, Q, E): the values weighted by the attention."""
        return weights_BHQK @ values_BHKE

    def start(self, rows: int, capacity: int) -> GrowingCache:
        """The empty cache of causal self-attention for `rows` hypotheses."""
        return GrowingCache.empty(rows, self.heads, self.size, capacity=capacity, like=self.weight)

    def remember(self, memory_BKD: Tensor) -> FixedCache:
        """The cache of cross-attention, made once from the source."""
        keys, values = self.project_memory(memory_BKD)
        return FixedCache(keys.contiguous(), values.contiguous())
