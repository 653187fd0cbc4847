"""Relative positions: attention that also sees the distance of query and key (Shaw et al. 2018), to tokens and to n-grams.

    A[i,j] = q_i · (k_j + aK[c(j-i)]) / √E        z_i = Σ_j p[i,j] (v_j + aV[c(j-i)])        c clips to [-k, k]

The two tables (2k+1, E) are shared by the heads of a layer. With n-grams, every vector that a query is compared with has the
distance of the token where it ends: the convolved key of a slot (ConvKV), or each token key under the query kernel (QueryK);
the value of a slot has that of its last token. The distance of a query n-gram is that from its last token. The distance term
is a product of each query with the table followed by a gather, never an l×l×E tensor. For self-attention only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.convkv import ConvKVScore
from phraseloom.layers.attention.fused import SlotProduct
from phraseloom.layers.attention.masks import SlotMasks
from phraseloom.layers.attention.queryk import QueryKScore
from phraseloom.layers.attention.score import AttentionScore
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.attention.token import TokenScore
from phraseloom.layers.initialisation import Draw, xavier_uniform


class RelativePositions(AttentionScore):
    """Learned vectors of the clipped distance, on the keys and (by default) values of the score that follows in the bases.

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-4. `clip` is k; `on_values=False` leaves the values alone.
    """

    def __init__(
        self, *, width: int, structure: Structure, clip: int = 16, on_values: bool = True, **of_score: Any
    ) -> None:
        super().__init__(width=width, structure=structure, **of_score)  # type: ignore[call-arg]  # of the next base
        self.clip = clip
        self.key_table = nn.Parameter(torch.empty(2 * clip + 1, self.size))
        self.value_table = nn.Parameter(torch.empty(2 * clip + 1, self.size)) if on_values else None
        self._draw_tables(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw the matrices of the layout, then the tables of distances."""
        super().initialise(draw)
        self._draw_tables(draw)

    def _draw_tables(self, draw: Draw) -> None:
        for table in (self.key_table, self.value_table):
            if table is not None:
                draw(table, fan_in=self.size, fan_out=len(table))

    @property
    def products(self) -> tuple[SlotProduct, ...]:
        """None: what distances add to the scores is no product of queries and keys."""
        return ()

    def _distances(self, masks: SlotMasks) -> Tensor:
        """Table rows c(j-i)+k, (Q, K)."""
        device = self.weight.device
        i = torch.arange(masks.first_query, masks.first_query + masks.query_length, device=device)
        j = torch.arange(masks.key_length, device=device)
        return (j[None] - i[:, None]).clamp(-self.clip, self.clip) + self.clip

    def compare(self, queries: Tensor, keys: Tensor, masks: SlotMasks, *, by_time: bool = False) -> Tensor:
        """See AttentionScore."""
        content = queries @ keys.transpose(-1, -2)
        if not content.numel():
            return content
        index_QK = self._distances(masks)
        windows, blocks = content.shape[-2] // masks.query_length, content.shape[-1] // masks.key_length
        index_RK = index_QK.repeat(windows, 1)
        index = index_RK.repeat_interleave(blocks, 1) if by_time else index_RK.repeat(1, blocks)
        by_distance = queries @ self.key_table.t()
        return content + by_distance.gather(-1, index.expand_as(content))

    def mix(self, weights: Tensor, values: list[Tensor], masks: SlotMasks, *, by_time: bool = False) -> Tensor:
        """Contexts (B, H, J·Q, E): values and distance vectors weighted by the attention."""
        context = super().mix(weights, values, masks, by_time=by_time)
        if self.value_table is None or not weights.numel():
            return context
        shape = (masks.key_length, -1) if by_time else (-1, masks.key_length)
        weights_BHRK = weights.unflatten(-1, shape).sum(-1 if by_time else -2)
        index_QK = self._distances(masks)
        index_RK = index_QK.repeat(weights.shape[2] // masks.query_length, 1)
        by_distance = weights.new_zeros(*weights.shape[:3], 2 * self.clip + 1)
        by_distance = by_distance.scatter_add(-1, index_RK.expand_as(weights_BHRK), weights_BHRK)
        return context + by_distance @ self.value_table


class RelativeScore(RelativePositions, TokenScore):
    """Token scores with relative positions."""


class RelativeConvKVScore(RelativePositions, ConvKVScore):
    """ConvKV scores with relative positions."""


class RelativeQueryKScore(RelativePositions, QueryKScore):
    """QueryK scores with relative positions."""

    def __init__(
        self, *, width: int, structure: Structure, share_keys: bool = True, clip: int = 16, on_values: bool = True
    ) -> None:
        super().__init__(width=width, structure=structure, clip=clip, on_values=on_values, share_keys=share_keys)
