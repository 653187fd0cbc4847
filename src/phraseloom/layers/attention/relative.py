"""Relative scores: token attention that also sees the distance of query and key (Shaw et al. 2018).

    A[i,j] = q_i · (k_j + aK[c(j-i)]) / √E        z_i = Σ_j p[i,j] (v_j + aV[c(j-i)])        c clips to [-k, k]

The two tables (2k+1, E) are shared by the heads of a layer. The distance term is a product of each query with the table
followed by a gather, never an l×l×E tensor. For self-attention only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.fused import SlotProduct
from phraseloom.layers.attention.masks import SlotMasks
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.attention.token import TokenScore
from phraseloom.layers.initialisation import Draw, xavier_uniform


class RelativeScore(TokenScore):
    """Token scores plus learned vectors of the clipped distance, on keys and (by default) values.

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-4. `clip` is k; `on_values=False` leaves the values alone.
    """

    def __init__(self, *, width: int, structure: Structure, clip: int = 16, on_values: bool = True) -> None:
        super().__init__(width=width, structure=structure)
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

    def _distances(self, masks: SlotMasks, keys: int, queries: int) -> Tensor:
        """Table rows c(j-i)+k, (Q, K)."""
        device = self.weight.device
        i = torch.arange(masks.first_query, masks.first_query + queries, device=device)
        return (torch.arange(keys, device=device)[None] - i[:, None]).clamp(-self.clip, self.clip) + self.clip

    def scores(self, queries: list[Tensor], keys: list[Tensor], masks: SlotMasks, *, by_time: bool = False) -> Tensor:
        """Scores (B, H, Q, K) before masking; the queries come scaled."""
        content = queries[0] @ keys[0].transpose(-1, -2)
        rows_QK = self._distances(masks, *reversed(content.shape[-2:]))
        by_distance = queries[0] @ self.key_table.t()
        return content + by_distance.gather(-1, rows_QK.expand_as(content))

    def mix(self, weights_BHQK: Tensor, values: list[Tensor], masks: SlotMasks) -> Tensor:
        """Contexts (B, H, Q, E): values and distance vectors weighted by the attention."""
        context = weights_BHQK @ values[0]
        if self.value_table is None:
            return context
        rows_QK = self._distances(masks, weights_BHQK.shape[3], weights_BHQK.shape[2])
        by_distance = weights_BHQK.new_zeros(*weights_BHQK.shape[:3], 2 * self.clip + 1)
        by_distance = by_distance.scatter_add(-1, rows_QK.expand_as(weights_BHQK), weights_BHQK)
        return context + by_distance @ self.value_table
