"""Heterogeneous arrangement: every head attends to slots of several orders in one softmax (P000 §3.2, P002 §3.2.2; spec
§1.3).

    head_h = Σ_n Σ_j p_h[i,(n,j)] V_h^(n)[j]      p_h[i,·] = softmax over the slots of all orders
    output = concat(head_1 … head_H) Wo

A sentence of length l has l-n+1 slots of order n, none if l < n. Where order 1 is left out a query may see no slot at
all; its context is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.packed import Packed, linear


def check_orders(orders: Sequence[int]) -> list[int]:
    """The orders, ascending; ValueError unless they are different numbers from 1."""
    if not orders or min(orders) < 1 or len(set(orders)) != len(orders):
        raise ValueError(f"orders {'-'.join(map(str, orders)) or '(none)'} are not different numbers from 1")
    return sorted(orders)


class HeterogeneousArrangement(nn.Module):
    """The output projection Wo (D × D, no bias) of concatenated heads."""

    def __init__(self, *, width: int, structure: Structure, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.weight = nn.Parameter(torch.empty(width, width))
        nn.init.xavier_uniform_(self.weight)
        self._packed: Packed | None = None

    @staticmethod
    def structure(*, heads: int, reads_ahead: bool = False, orders: Sequence[int] = (1, 2)) -> Structure:
        """Every head sees all `orders`. ValueError where they are not different numbers from 1."""
        return Structure.of_orders(heads, check_orders(orders))

    def matrices(self) -> dict[str, Tensor]:
        """Wo (D, D) as a view of the parameter, used as x @ Wo."""
        return {"Wo": self.weight.t()}

    def pack(self) -> None:
        """Lay out the matrix for inference (`layers/packed.py`)."""
        self._packed = Packed(self.weight, None)

    def forward(self, contexts_BHQE: Tensor) -> Tensor:
        """Contexts of the heads → output (B, Q, D)."""
        return linear(contexts_BHQE.transpose(1, 2).flatten(2), self.weight, packed=self._packed)
