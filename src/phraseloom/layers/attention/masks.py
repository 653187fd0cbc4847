"""Which slot may be seen by which query: padding and causality, computed once a forward pass and shared by all layers.

A slot is a window of `order` tokens. Masks are boolean and True means hidden (may NOT be used), as in spec §1.5:

    window starts at j (covers j … j+n-1):    hidden if j+n-1 >= length, or (causal) j+n-1 > query position
    window ends at j   (covers j-n+1 … j):    hidden if j >= length,     or (causal) j > query position

For n = 1 the two agree and give the masks of ordinary attention. There is no magic constant: hidden scores become -inf,
and a row with nothing visible gets weights of exactly zero (reliability.md N2, N3).
"""

from __future__ import annotations

import torch
from torch import Tensor


class Visibility:
    """What queries at positions `first_query …` may see of `key_length` tokens.

    `lengths_B` real tokens of each sentence, or None where nothing is padded; `causal` hides the future. The masks are
    made on first use and kept, so that one object serves every layer of a stack.
    """

    def __init__(
        self,
        *,
        key_length: int,
        lengths_B: Tensor | None = None,
        causal: bool = False,
        query_length: int = 1,
        first_query: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.key_length, self.query_length, self.first_query = key_length, query_length, first_query
        self.lengths_B, self.causal = lengths_B, causal
        self.device = device if lengths_B is None else lengths_B.device
        self._masks: dict[tuple[int, bool], Tensor | None] = {}
        self._padding: Tensor | None = None

    def without_padding(self, x_BKD: Tensor) -> Tensor:
        """`x_BKD` with zeros at padded positions, so that nothing there (not even NaN) matters, forward or backward."""
        if self.lengths_B is None:
            return x_BKD
        if self._padding is None:
            positions = torch.arange(self.key_length, device=self.device)
            self._padding = (positions[None, :] >= self.lengths_B[:, None])[..., None]
        return x_BKD.masked_fill(self._padding, 0.0)

    def hidden(self, order: int = 1, *, ends: bool = False) -> Tensor | None:
        """Mask of the slots of one order, broadcastable to (B, H, Q, slots), or None where every slot is visible.

        `ends=False`: `key_length - order + 1` slots, each named by its first token (heterogeneous, interleaved);
        `ends=True`: `key_length` slots, each named by its last token (homogeneous).
        """
        key = (order, ends)
        if key not in self._masks:
            self._masks[key] = self._make(order, ends)
        return self._masks[key]

    def _make(self, order: int, ends: bool) -> Tensor | None:
        first = 0 if ends else order - 1
        last_token = torch.arange(first, self.key_length, device=self.device)
        hidden = None
        if self.lengths_B is not None:
            hidden = (last_token[None, :] >= self.lengths_B[:, None])[:, None, None, :]
        if self.causal:
            query = torch.arange(self.first_query, self.first_query + self.query_length, device=self.device)
            future = last_token[None, :] > query[:, None]
            hidden = future[None, None] if hidden is None else hidden | future
        return hidden


def masked_softmax(scores: Tensor, hidden: Tensor | None) -> Tensor:
    """Softmax over the last axis with hidden slots at weight 0; a row with nothing visible is all zeros.

    The gradient is finite everywhere: a hidden score gets exactly 0, also in a row with nothing visible.
    """
    if hidden is None:
        return scores.softmax(-1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).masked_fill(hidden, 0.0)
