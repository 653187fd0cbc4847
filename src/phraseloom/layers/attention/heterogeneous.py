"""Heterogeneous arrangement: every head attends to slots of several orders in one softmax (P000 §3.2, P002 §3.2.2; spec
§1.3).

    head_h = Σ_n Σ_j p_h[i,(n,j)] V_h^(n)[j]      p_h[i,·] = softmax over the slots of all orders
    output = concat(head_1 … head_H) Wo

A sentence of length l has l-n+1 slots of order n, none if l < n. Where order 1 is left out a query may see no slot at
all; its context is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from phraseloom.layers.attention.heads import ConcatenatedHeads
from phraseloom.layers.attention.structure import Structure


def check_orders(orders: Sequence[int]) -> list[int]:
    """The orders, ascending; ValueError unless they are different numbers from 1."""
    if not orders or min(orders) < 1 or len(set(orders)) != len(orders):
        raise ValueError(f"orders {'-'.join(map(str, orders)) or '(none)'} are not different numbers from 1")
    return sorted(orders)


class HeterogeneousArrangement(ConcatenatedHeads):
    """Heads that see all orders, concatenated."""

    @staticmethod
    def structure(*, heads: int, reads_ahead: bool = False, orders: Sequence[int] = (1, 2)) -> Structure:
        """Every head sees all `orders`. ValueError where they are not different numbers from 1."""
        return Structure.of_orders(heads, check_orders(orders))
