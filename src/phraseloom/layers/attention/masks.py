"""Which slot may be seen by which query: padding and causality, computed once a forward pass and shared by all layers.

A slot of order n is named by its last token j and covers j-n+1 … j. Masks are boolean and True means hidden (may NOT be
used):

    hidden if  j >= length (it ends on padding),  or (causal) j > position of the query,
    or  j < n-1 (it would begin before the text)

For n = 1 these are the masks of ordinary attention. Structures with zero extension (homogeneous) have all slots and use
them too. There is no magic constant: hidden scores become -inf, and a row with nothing visible gets weights of exactly
zero (reliability.md N2, N3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from phraseloom.layers.attention.structure import HeadGroup, Structure


class SlotMasks(ABC):
    """What queries at positions `first_query …` may see of the n-gram slots of `key_length` tokens.

    A subclass knows which tokens are hidden. The masks are made on first use and kept, so that one object serves every layer of
    a stack.
    """

    def __init__(self, *, key_length: int, query_length: int, first_query: int, device: torch.device | None) -> None:
        self.key_length, self.query_length, self.first_query = key_length, query_length, first_query
        self.device = device
        self._masks: dict[Any, Tensor | None] = {}
        self._padding: Tensor | None = None

    @property
    def padding(self) -> Tensor | None:
        """Padded tokens (B, K), or None where nothing is padded."""
        return self._padding

    def without_padding(self, x_BKD: Tensor) -> Tensor:
        """`x_BKD` with zeros at padded positions, so that their values (even NaN) have no effect, forward or backward."""
        return x_BKD if self.padding is None else x_BKD.masked_fill(self.padding[..., None], 0.0)

    def hidden_rows(self, structure: Structure, *, of_itself: bool) -> Tensor | None:
        """Mask of all slots and query n-grams of a structure, broadcastable to (B, H, J·Q, G·K), or None: nothing is hidden.

        A query n-gram that begins before the text sees nothing; nor does one that holds padding, where queries and keys
        are the same tokens (`of_itself`).
        """
        if not structure.interleaved:
            return self.hidden_slots(structure)
        if (structure, of_itself) not in self._masks:
            slots = self.hidden_slots(structure)
            missing = [m[:, None, :, None] for m in self.missing_queries(structure, of_itself=of_itself)]
            rows = missing if slots is None else [m | slots for m in missing]
            self._masks[structure, of_itself] = torch.cat(torch.broadcast_tensors(*rows), -2)
        return self._masks[structure, of_itself]

    def missing_rows(self, structure: Structure, *, of_itself: bool) -> Tensor | None:
        """The query n-grams that do not exist, (B or 1, 1, J·Q, 1), or None where all do."""
        if not structure.interleaved:
            return None
        missing = torch.broadcast_tensors(*self.missing_queries(structure, of_itself=of_itself))
        return torch.cat(missing, -1)[:, None, :, None]

    @abstractmethod
    def hidden_slots(self, structure: Structure) -> Tensor | None:
        """Mask of all slots of a structure, broadcastable to (B, H, Q, G·K), or None where every slot is visible."""

    @abstractmethod
    def missing_queries(self, structure: Structure, *, of_itself: bool) -> list[Tensor]:
        """For each query order the query n-grams (B or 1, Q) that do not exist."""

    @abstractmethod
    def hidden_besides_future(self, part: HeadGroup, *, zero_extended: bool) -> tuple[bool, Tensor | None]:
        """Whether the future is hidden, and what else is, broadcastable to (B, heads of `part`, Q, K)."""


class Visibility(SlotMasks):
    """The masks of our own models: padding on the right, and the future.

    `lengths_B` real tokens of each sentence, or None where nothing is padded; `causal` hides the future.
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
        device = device if lengths_B is None else lengths_B.device
        super().__init__(key_length=key_length, query_length=query_length, first_query=first_query, device=device)
        self.lengths_B, self.causal = lengths_B, causal

    def without_masks(self) -> Visibility:
        """The same rules, before any mask is made."""
        return Visibility(
            key_length=self.key_length,
            lengths_B=self.lengths_B,
            causal=self.causal,
            query_length=self.query_length,
            first_query=self.first_query,
            device=self.device,
        )

    @property
    def padding(self) -> Tensor | None:
        """Padded tokens (B, K), or None where nothing is padded."""
        if self._padding is None and self.lengths_B is not None:
            positions = torch.arange(self.key_length, device=self.device)
            self._padding = positions[None, :] >= self.lengths_B[:, None]
        return self._padding

    def hidden(self, order: int = 1) -> Tensor | None:
        """Mask of the slots of one order, broadcastable to (B, H, Q, K), or None where every slot is visible."""
        if order not in self._masks:
            self._masks[order] = self._make(order)
        return self._masks[order]

    def hidden_slots(self, structure: Structure) -> Tensor | None:
        """See SlotMasks."""
        if structure.zero_extended or structure.is_token:
            return self.hidden(1)
        if structure not in self._masks:
            masks = [
                self.hidden(block[0].order) for block in structure.blocks
            ]  # without zero extension all heads agree
            self._masks[structure] = None if all(m is None for m in masks) else self._side_by_side(masks)
        return self._masks[structure]

    def hidden_besides_future(self, part: HeadGroup, *, zero_extended: bool) -> tuple[bool, Tensor | None]:
        """See SlotMasks: the same rule for every order."""
        return self.causal, None if self.padding is None else self.padding[:, None, None, :]

    def missing_queries(self, structure: Structure, *, of_itself: bool) -> list[Tensor]:
        """See SlotMasks. Padding counts only where outputs read ahead; elsewhere its own output is never used."""
        query = torch.arange(self.first_query, self.first_query + self.query_length, device=self.device)
        padding = self.padding if of_itself and structure.reads_ahead else None
        missing = [(query < order - 1)[None] for order in structure.query_orders]
        return missing if padding is None else [m | padding for m in missing]

    def _side_by_side(self, masks: list[Tensor | None]) -> Tensor:
        none = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=self.device)
        return torch.cat(torch.broadcast_tensors(*(none if m is None else m for m in masks)), -1)

    def _make(self, order: int) -> Tensor | None:
        last_token = torch.arange(self.key_length, device=self.device)
        hidden = None
        if order > 1:
            hidden = (last_token < order - 1)[None, None, None, :]
        if self.padding is not None:
            padded = self.padding[:, None, None, :]
            hidden = padded if hidden is None else hidden | padded
        if self.causal:
            query = torch.arange(self.first_query, self.first_query + self.query_length, device=self.device)
            future = (last_token[None, :] > query[:, None])[None, None]
            hidden = future if hidden is None else hidden | future
        return hidden


def masked_softmax(scores: Tensor, hidden: Tensor | None) -> Tensor:
    """Softmax over the last axis with hidden slots at weight 0; a row with nothing visible is all zeros.

    The gradient is finite everywhere: a hidden score gets exactly 0, also in a row with nothing visible.
    """
    if hidden is None:
        return scores.softmax(-1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).masked_fill(hidden, 0.0)
