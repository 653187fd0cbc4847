"""The attention block: a score and an arrangement put together; one forward, one incremental step.

attention = score (what queries, keys, values and their products are) × arrangement (how orders and heads are joined). The
block knows neither; `layers/attention/__init__.py` names the entries of both tables.
"""

from __future__ import annotations

from torch import Tensor, nn

from phraseloom.layers.attention.cache import FixedCache, GrowingCache
from phraseloom.layers.attention.homogeneous import HomogeneousArrangement
from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.attention.token import TokenScore


class MultiHeadAttention(nn.Module):
    """Multi-head attention of queries over a memory (cross) or over themselves (self).

    What stands at padded positions never matters: they are taken as zero vectors and hidden from every query.
    """

    def __init__(self, *, score: TokenScore, arrangement: HomogeneousArrangement) -> None:
        super().__init__()
        self.score, self.arrangement = score, arrangement

    def forward(self, x_BQD: Tensor, memory_BKD: Tensor | None, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Output (B, Q, D) and weights (B, H, Q, K); `memory_BKD` None means self-attention."""
        if memory_BKD is None:
            queries, keys, values = self.score.project_self(visibility.without_padding(x_BQD))
        else:
            queries = self.score.project_queries(x_BQD)
            keys, values = self.score.project_memory(visibility.without_padding(memory_BKD))
        return self.arrangement(self.score, queries, keys, values, visibility)

    def start(self, rows: int, capacity: int) -> GrowingCache:
        """An empty cache for causal self-attention, step by step."""
        return self.score.start(rows, capacity)

    def remember(self, memory_BKD: Tensor, visibility: Visibility) -> FixedCache:
        """The keys and values of a source, for cross-attention step by step."""
        return self.score.remember(visibility.without_padding(memory_BKD))

    def step_self(self, x_RD: Tensor, cache: GrowingCache) -> Tensor:
        """One causal self-attention step of every row; the cache grows by it. (R, D)."""
        queries, keys, values = self.score.project_self(x_RD[:, None])
        keys, values = cache.append(keys, values)
        visibility = Visibility(key_length=cache.length, first_query=cache.length - 1, device=x_RD.device)
        return self.arrangement(self.score, queries, keys, values, visibility)[0][:, 0]

    def step_cross(self, x_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """One cross-attention step: rows (B*W) are taken as W queries of their sentence. (R, D), (R, H, K)."""
        sentences = len(cache.keys)
        x_BWD = x_RD.view(sentences, -1, x_RD.shape[-1])
        queries = self.score.project_queries(x_BWD)
        output, weights = self.arrangement(self.score, queries, cache.keys, cache.values, visibility)
        return output.reshape(x_RD.shape), weights.transpose(1, 2).flatten(0, 1)
