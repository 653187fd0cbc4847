"""Homogeneous arrangement: every head attends to one order; the heads are concatenated and mixed (P002 §3.2.1; spec
§1.2).

    head_h = Σ_j softmax_j(A_h[i,j]) V_h[j]        output = concat(head_1 … head_H) Wo

The heads are divided among the orders in ascending order: 44 is four heads of tokens, then four of bigrams. Windows
that begin before the sentence hold zero vectors and are slots like any other. With all heads of order 1 this is
ordinary multi-head attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from phraseloom.layers.attention.heads import ConcatenatedHeads
from phraseloom.layers.attention.structure import HeadGroup, Structure


class HomogeneousArrangement(ConcatenatedHeads):
    """Heads of one order each, concatenated."""

    @staticmethod
    def structure(*, heads: int, reads_ahead: bool = False, split: Sequence[int] | None = None) -> Structure:
        """`split`: how many heads attend to order 1, 2, …; by default all to order 1. ValueError where it does not
        fit."""
        split = [heads] if split is None else list(split)
        if sum(split) != heads or min(split) < 0:
            raise ValueError(
                f"split {'-'.join(map(str, split))} does not divide {heads} heads among the orders 1, 2, …"
            )
        parts, first = [], 0
        for order, count in enumerate(split, 1):
            if count:
                parts.append(HeadGroup(order, first, first + count))
            first += count
        return Structure(heads, (tuple(parts),), zero_extended=True)
