"""The masks of torch.nn.MultiheadAttention, read as what each query may see of each n-gram slot.

    hidden token   key_padding_mask[b, j]  or  attn_mask[i, j]                            (True: may not be used)
    hidden slot    a token of its window is hidden from the query, or the window begins before the text

The second line is the general rule (with zero extension a window may begin before the text). It
holds for any pattern: padding on the left, holes, blocks. For padding on the right it gives the masks of
`attention/masks.py`; for the causal mask, "the last token of the slot is not in the future". A query n-gram is named by its
last token and sees what attn_mask shows to that token.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from phraseloom.errors import UsageError
from phraseloom.layers.attention.masks import SlotMasks
from phraseloom.layers.attention.structure import HeadGroup, Structure


class TokenMasks(SlotMasks):
    """The masks of `PhraseAttention`: any boolean masks over tokens.

    `padding` (B, K), and `forbidden` broadcastable to (B, H, Q, K): True means hidden, None hides nothing.
    """

    def __init__(
        self,
        padding: Tensor | None,
        forbidden: Tensor | None,
        *,
        query_length: int,
        key_length: int,
        device: torch.device,
    ) -> None:
        super().__init__(key_length=key_length, query_length=query_length, first_query=0, device=device)
        self._padding, self.forbidden = padding, forbidden

    def with_finite_padding(self, x_BKD: Tensor) -> Tensor:
        """`x_BKD` with zeros for non-finite values at padded positions: 0 · NaN would reach the gradients."""
        if self.padding is None:
            return x_BKD
        return x_BKD.masked_fill(self.padding[..., None] & ~x_BKD.isfinite(), 0.0)

    def hidden_besides_future(self, part: HeadGroup, *, zero_extended: bool) -> tuple[bool, Tensor | None]:
        """Whether `forbidden` is the causal mask, and what else is hidden of the slots of `part`: (B, 1, 1, K) where it is, or
        where there is padding only, else (B or 1, heads or 1, Q, K); None hides nothing.

        A window has no token after its last one, so that the causal mask hides what it hides of tokens.
        """
        tokens = None if self.padding is None else self.padding[:, None, None, :]
        if self.forbidden is not None and not self.is_causal:
            heads = slice(part.first, part.last) if self.forbidden.shape[1] > 1 else slice(None)
            forbidden = self.forbidden[:, heads]
            tokens = forbidden if tokens is None else tokens | forbidden
        hidden = None if tokens is None else any_in_window(tokens, part.order, before=not zero_extended)
        return self.is_causal, hidden

    @cached_property
    def is_causal(self) -> bool:
        """Whether `forbidden` hides the tokens after each one, and no others."""
        shape = (1, 1, self.query_length, self.query_length)
        if self.forbidden is None or self.forbidden.shape != shape or self.query_length != self.key_length:
            return False
        return torch.equal(self.forbidden, torch.ones(shape, dtype=torch.bool, device=self.device).triu_(1))

    def missing_queries(self, structure: Structure, *, of_itself: bool) -> list[Tensor]:
        """See SlotMasks. The query of one padded token exists, as in torch."""
        rows = []
        for order in structure.query_orders:
            hidden = torch.zeros((1, self.query_length), dtype=torch.bool, device=self.device)
            if of_itself and order > 1 and self.padding is not None:
                hidden = self.padding
            rows.append(any_in_window(hidden, order, before=True))
        return rows

    def hidden_slots(self, structure: Structure) -> Tensor | None:
        """See SlotMasks."""
        tokens = self.forbidden
        if self.padding is not None:
            padded = self.padding[:, None, None, :]
            tokens = padded if tokens is None else tokens | padded
        if tokens is None:
            if structure.zero_extended or structure.orders == (1,):
                return None
            tokens = torch.zeros((1, 1, 1, self.key_length), dtype=torch.bool, device=self.device)
        blocks = []
        for block in structure.blocks:
            parts = []
            for part in block:
                heads = slice(part.first, part.last) if tokens.shape[1] > 1 else slice(None)
                slots = any_in_window(tokens[:, heads], part.order, before=not structure.zero_extended)
                one_for_all = len(block) == 1 or tokens.shape[1] > 1
                parts.append(slots if one_for_all else slots.expand(-1, part.last - part.first, -1, -1))
            blocks.append(torch.cat(parts, 1))
        return torch.cat(blocks, -1)


def any_in_window(hidden: Tensor, order: int, *, before: bool) -> Tensor:
    """(…, K): whether any of the `order` tokens that end at each one is hidden; `before` counts those before the first
    one as hidden."""
    found, length = hidden.clone(), hidden.shape[-1]
    for back in range(1, min(order, length)):
        found[..., back:] |= hidden[..., : length - back]
    if before:
        found[..., : order - 1] = True
    return found


def as_hidden(mask: Tensor, name: str) -> Tensor:
    """A mask of torch.nn.MultiheadAttention as booleans, True = hidden.

    Of float masks, which torch adds to the scores, those are understood that only show (0) or hide (-inf, or the lowest
    number of their type); others raise UsageError, since a bias on tokens says nothing of n-grams.
    """
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise UsageError(
            f"{name} has type {mask.dtype}", hint="give a boolean mask, True where attention is not allowed"
        )
    hidden = mask <= torch.finfo(mask.dtype).min
    if not bool((hidden | (mask == 0)).all()):
        raise UsageError(
            f"{name} holds numbers other than 0 and -inf",
            hint="a bias on tokens says nothing of n-grams; give a boolean mask, True where attention is not allowed",
        )
    return hidden


def read_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    *,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    device: torch.device,
) -> TokenMasks:
    """Masks as torch.nn.MultiheadAttention takes them: (B, K), and (Q, K) or (B·H, Q, K). Raises UsageError for other
    shapes."""
    padding = forbidden = None
    if key_padding_mask is not None:
        if key_padding_mask.shape != (batch, keys):
            raise UsageError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}, but {(batch, keys)} is needed"
            )
        padding = as_hidden(key_padding_mask, "key_padding_mask")
    if attn_mask is not None:
        if attn_mask.shape not in ((queries, keys), (batch * heads, queries, keys)):
            raise UsageError(
                f"attn_mask has shape {tuple(attn_mask.shape)}, but {(queries, keys)} or "
                f"{(batch * heads, queries, keys)} is needed"
            )
        size = (1, 1) if attn_mask.dim() == 2 else (batch, heads)
        forbidden = as_hidden(attn_mask, "attn_mask").view(*size, queries, keys)
    return TokenMasks(padding, forbidden, query_length=queries, key_length=keys, device=device)
