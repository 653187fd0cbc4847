"""Which head attends to n-grams of which order: what an arrangement says and every score follows.

A head sees G *blocks* of slots, one slot for each of the K tokens in every block, and there are J orders of *query
n-grams*, one query for each of the Q tokens in every order. Slots and query n-grams are named by their **last** token:
slot j of order n covers the tokens j-n+1 … j. So every order has K slots and all share the padding and causal masks of
ordinary attention:

    row    m·Q + i   the query n-gram of order query_orders[m] that ends at token i
    column g·K + j   the slot of block g that ends at token j; its order is that of the head in that block

The first n-1 slots of an order would begin before the sentence. `zero_extended` structures (homogeneous)
have them, with zero vectors for what is missing; in the others they do not exist and are hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadGroup:
    """Heads `first` … `last`-1 of a block attend to slots of one `order`."""

    order: int
    first: int
    last: int


@dataclass(frozen=True)
class Structure:
    """The blocks of slots of `heads` heads, the orders of the queries, and what exists at the edges.

    `blocks`: each one divides the heads among orders. `interleaved`: queries are n-grams too; `reads_ahead`: an output
    reads query n-grams that end after it (interleaved attention in an encoder).
    """

    heads: int
    blocks: tuple[tuple[HeadGroup, ...], ...]
    query_orders: tuple[int, ...] = (1,)
    zero_extended: bool = False
    reads_ahead: bool = False
    interleaved: bool = False

    @staticmethod
    def of_orders(heads: int, orders: Sequence[int], **rest: object) -> Structure:
        """Every head sees slots of all `orders`, one block each."""
        return Structure(heads, tuple((HeadGroup(n, 0, heads),) for n in orders), **rest)  # type: ignore[arg-type]

    @property
    def orders(self) -> tuple[int, ...]:
        """The orders of the slots, ascending."""
        return tuple(sorted({part.order for block in self.blocks for part in block}))

    @property
    def is_token(self) -> bool:
        """Whether this is ordinary attention: one query and one slot a token."""
        return self.orders == (1,) and len(self.blocks) == 1 and self.query_orders == (1,)

    def split(self, weights: Tensor) -> Tensor:
        """(…, J·Q, G·K) → (…, J, Q, G, K), a view."""
        rows, columns = len(self.query_orders), len(self.blocks)
        return weights.unflatten(-1, (columns, -1)).unflatten(-3, (rows, -1))

    def token_weights(self, weights_BHQK: Tensor) -> Tensor:
        """Attention to tokens (B, H, Q, K): each slot spreads its weight evenly over the tokens of its window.

        Of the queries, those of order 1 count (every structure has them). Rows keep their sums.
        """
        if self.is_token:
            return weights_BHQK
        slots = self.split(weights_BHQK)[:, :, self.query_orders.index(1)]
        length = slots.shape[-1]
        result = torch.zeros_like(slots[:, :, :, 0])
        for g, block in enumerate(self.blocks):
            for part in block:
                heads = slice(part.first, part.last)
                covered = torch.arange(1, length + 1, device=slots.device).clamp(max=part.order)
                share = slots[:, heads, :, g] / covered
                for back in range(min(part.order, length)):
                    result[:, heads, :, : length - back] += share[..., back:]
        return result
