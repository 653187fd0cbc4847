"""Token scores: ordinary scaled dot-product attention (Vaswani et al. 2017), the n-gram score of order 1.

    A[i,j] = q_i · k_j / √E        q = x_q Wq,  k = x_k Wk,  v = x_k Wv        (no biases: spec §1.1)

One parameter holds the three matrices, rows Wq | Wk | Wv, so that self-attention makes them in one product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.attention.windows import Layout, Output, Window


class TokenScore(nn.Module):
    """Queries, keys, values of single tokens, and their scores. Source: Vaswani et al. 2017, §3.2.

    Raises ValueError for a structure with n-grams.
    """

    def __init__(self, *, width: int, structure: Structure) -> None:
        super().__init__()
        if not structure.is_token:
            raise ValueError("token scores know no n-grams: every order must be 1")
        self.structure, self.size = structure, width // structure.heads
        self.layout = _layout(width, structure.heads, self.size)
        self.weight = nn.Parameter(torch.empty(self.layout.rows, width))
        self.layout.initialise(self.weight)

    def matrices(self) -> dict[str, Tensor]:
        """Wq, Wk, Wv as views (D, D) of the parameter."""
        return self.layout.matrices(self.weight)

    def scores(
        self, queries: list[Tensor], keys: list[Tensor], visibility: Visibility, *, by_time: bool = False
    ) -> Tensor:
        """Scores (B, H, Q, K) before masking."""
        return queries[0] @ keys[0].transpose(-1, -2)

    def mix(self, weights_BHQK: Tensor, values: list[Tensor], visibility: Visibility) -> Tensor:
        """Contexts (B, H, Q, E): the values weighted by the attention."""
        return weights_BHQK @ values[0]


def _layout(width: int, heads: int, size: int) -> Layout:
    layout = Layout(width, size)

    def one(name: str, scale: float = 1.0) -> tuple[Output, ...]:
        return (Output(heads, 1, (Window(0, 0, heads, tuple(layout.add(name, heads)), scale),)),)

    layout.queries = one("Wq", size**-0.5)
    layout.split = layout.rows
    layout.keys, layout.values = one("Wk"), one("Wv")
    return layout
