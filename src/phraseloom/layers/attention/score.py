"""What all scores share: one packed matrix, laid out by structure, and scores that are products of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.fused import SlotProduct
from phraseloom.layers.attention.masks import SlotMasks
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.attention.windows import Layout
from phraseloom.layers.initialisation import Draw, xavier_uniform


class AttentionScore(nn.Module):
    """The packed matrix (rows, D) of a layout. A score says what the rows are, and what differs from plain products."""

    def __init__(self, *, structure: Structure, layout: Layout) -> None:
        super().__init__()
        self.structure, self.layout, self.size = structure, layout, layout.size
        self.weight = nn.Parameter(torch.empty(layout.rows, layout.width))
        AttentionScore.initialise(self, xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw the matrices of the layout."""
        self.layout.initialise(self.weight, draw)

    def matrices(self) -> dict[str, Tensor]:
        """The matrices by name, as views of the parameter used as x @ W; see the score for names and shapes."""
        return self.layout.matrices(self.weight)

    @property
    def products(self) -> tuple[SlotProduct, ...]:
        """The products of queries and keys from which fused kernels compute each block of scores; empty if they cannot.

        A score that overrides `scores`, `compare` or `mix` is computed explicitly unless it overrides `products` too.
        """
        return tuple(
            SlotProduct(g, part, first_head=part.first, key_block=g)
            for g, block in enumerate(self.structure.blocks)
            for part in block
        )

    def scores(self, queries: list[Tensor], keys: list[Tensor], masks: SlotMasks, *, by_time: bool = False) -> Tensor:
        """Scores (B, H, J·Q, G·K) before masking, with `by_time` (…, K·G); the queries come scaled."""
        return self.compare(queries[0], keys[0], masks, by_time=by_time)

    def compare(self, queries: Tensor, keys: Tensor, masks: SlotMasks, *, by_time: bool = False) -> Tensor:
        """What each query vector (B, H, R, E) has with each key vector (B, H, C, E): (B, H, R, C)."""
        return queries @ keys.transpose(-1, -2)

    def mix(self, weights: Tensor, values: list[Tensor], masks: SlotMasks, *, by_time: bool = False) -> Tensor:
        """Contexts (B, H, J·Q, E): the values weighted by the attention (B, H, J·Q, G·K), with `by_time` (…, K·G)."""
        return weights @ values[0]
