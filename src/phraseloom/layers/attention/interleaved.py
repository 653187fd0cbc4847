"""Interleaved arrangement: n-gram queries attend to n-gram slots, and a convolution joins their contexts (P002 §3.3).

Each query order m gives one context v^(m) an m-gram: heterogeneous attention whose query is the m-gram. The m-grams
that contain token i, and do not reach beyond i where the future is hidden, make its output:

    encoder            o_i = Σ_m Σ_{a<m} v^(m)[ends at i+a] W_{m,a}
    decoder, cross     o_i = Σ_m v^(m)[ends at i] W_{m,0}

For orders {1, 2}, with u = v^(1) and b = v^(2), this is the paper's sequence 0, u_1, b_1, u_2, …, u_N, 0 under a
convolution of window 3 and stride 2 (window 2 without look-ahead), which takes the place of Wo. For more orders see
docs/decisions/0007-interleaved-orders.md. m-grams that begin before the sentence or end on padding do not exist: their
contexts are zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from phraseloom.layers.attention.heads import ConcatenatedHeads
from phraseloom.layers.attention.heterogeneous import check_orders
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.packed import linear


class InterleavedArrangement(ConcatenatedHeads):
    """The output convolution: one D × D matrix a query order and tap, side by side in one parameter (D, taps·D)."""

    def __init__(self, *, width: int, structure: Structure, dropout: float = 0.0, bias: bool = False) -> None:
        orders = structure.query_orders
        taps = [(m, a) for m, order in enumerate(orders) for a in range(order if structure.reads_ahead else 1)]
        super().__init__(width=width, structure=structure, dropout=dropout, bias=bias, taps=len(taps))
        self.width, self.orders, self.taps = width, orders, taps

    @staticmethod
    def structure(*, heads: int, reads_ahead: bool = False, orders: Sequence[int] = (1, 2)) -> Structure:
        """Queries and slots of all `orders`, of which 1 is one. ValueError where they do not fit."""
        orders = check_orders(orders)
        if 1 not in orders:
            raise ValueError("interleaved attention needs order 1: a sentence of one token has no other query")
        return Structure.of_orders(heads, orders, query_orders=tuple(orders), interleaved=True, reads_ahead=reads_ahead)

    def matrices(self) -> dict[str, Tensor]:
        """Wout_q{m} (taps, D, D) as views: tap a multiplies the context of the m-gram that ends at token i+a."""
        parts = self.weight.t().unflatten(0, (len(self.taps), self.width))
        rows = {m: [k for k, (of, _) in enumerate(self.taps) if of == m] for m in range(len(self.orders))}
        return {f"Wout_q{order}": parts[rows[m][0] : rows[m][-1] + 1] for m, order in enumerate(self.orders)}

    def forward(self, contexts_BHQE: Tensor) -> Tensor:
        """Contexts (B, H, J·Q, E) of the query n-grams → output (B, Q, D)."""
        contexts = contexts_BHQE.unflatten(2, (len(self.orders), -1))
        length = contexts.shape[3]
        read = [contexts[:, :, m, a:] for m, a in self.taps]
        read = [t if t.shape[2] == length else F.pad(t, (0, 0, 0, length - t.shape[2])) for t in read]
        return linear(torch.stack(read, 3).permute(0, 2, 3, 1, 4).flatten(2), self.weight, self.bias, self._packed)
