"""Phrasal attention in the place of the attention of MarianMT and BART models of the library transformers.

It is called as `MarianAttention` is. The cache of generation holds what the layer reads, (B, 1, T, D), not its keys and values:
n-grams that begin before the new token need its forerunners. Each step projects the whole prefix again, so that generation
costs more than with the old layer; training does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.errors import UsageError
from phraseloom.layers.phrase_attention import PhraseAttention
from phraseloom.layers.phrase_masks import as_hidden

CLASSES = {"MarianAttention", "BartAttention"}


class TransformersAttention(nn.Module):
    """A `PhraseAttention` with the signature of the attention of transformers. `causal`: self-attention of a decoder."""

    def __init__(self, attention: PhraseAttention, *, causal: bool, layer_idx: int | None) -> None:
        super().__init__()
        self.attention, self.causal, self.layer_idx = attention, causal, layer_idx
        self.embed_dim, self.num_heads = attention.embed_dim, attention.num_heads

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """(B, Q, D) → (B, Q, D); no weights, whose slots transformers could not read.

        `past_key_values`: the cache of generation, which grows by the new tokens. `attention_mask`: (B, 1 or H, Q, K), True
        or 0 where attention is allowed, or (B, K), 1 for tokens that are no padding; causality follows from the layer.

        Raises UsageError for a bias in place of a mask, and in generation for a mask of more than padding.
        """
        cross, count = key_value_states is not None, hidden_states.shape[1]
        query = hidden_states
        if past_key_values is not None and (not cross or max(self.attention.structure.query_orders) > 1):
            query = self._remembered(query, past_key_values, cross)
        memory = query if key_value_states is None else key_value_states
        forbidden = None
        if self.causal and not cross:
            length = query.shape[1]
            forbidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        padding, forbidden = self._hidden(attention_mask, forbidden, query, memory)
        output, _ = self.attention(
            query, memory, memory, key_padding_mask=padding, attn_mask=forbidden, need_weights=False
        )
        return output[:, -count:], None

    def _hidden(
        self, mask: Tensor | None, forbidden: Tensor | None, query: Tensor, memory: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """What is padding, (B, K), and what else is hidden, (Q, K) or (B·H, Q, K); None for nothing."""
        keys = memory.shape[1]
        if mask is None or mask.dim() != 4:
            padding = None if mask is None else mask[:, :keys] == 0
            return None if padding is None or not bool(padding.any()) else padding, forbidden
        mask = mask[..., :keys]
        hidden_BHQK = ~mask if mask.dtype == torch.bool else as_hidden(mask, "attention_mask")
        padding, rows = hidden_BHQK[:, 0, -1], hidden_BHQK.shape[2]
        other = hidden_BHQK ^ padding[:, None, None]
        if forbidden is not None:
            other &= ~forbidden[-rows:]
        if memory is query:  # a padded query that sees nothing may be given everything by transformers, against NaN
            other &= ~padding[:, None, keys - rows :, None] | hidden_BHQK.any(-1, keepdim=True)
        if not bool(other.any()):
            return padding if bool(padding.any()) else None, forbidden
        if rows != query.shape[1]:
            raise UsageError(
                "attention_mask hides more than padding, which generation does not take", hint="give (B, K)"
            )
        whole = hidden_BHQK if forbidden is None else hidden_BHQK | forbidden
        return None, whole.expand(-1, self.num_heads, -1, -1).flatten(0, 1)

    def _remembered(self, x_BQD: Tensor, cache: Any, cross: bool) -> Tensor:
        """All inputs of this layer so far, the new ones last."""
        own = getattr(cache, "cross_attention_cache" if cross else "self_attention_cache", cache)
        rows = x_BQD[:, None]
        whole: Tensor = own.update(rows, rows[..., :0], self.layer_idx)[0]
        return whole[:, 0]


def is_theirs(module: nn.Module) -> bool:
    """Whether this is an attention layer of transformers that can be replaced."""
    return type(module).__name__ in CLASSES and type(module).__module__.startswith("transformers.models.")


def as_torch(old: Any) -> nn.MultiheadAttention:
    """The layer of torch with the weights of a layer of transformers."""
    bias = old.q_proj.bias is not None
    place = {"device": old.q_proj.weight.device, "dtype": old.q_proj.weight.dtype}
    new = nn.MultiheadAttention(old.embed_dim, old.num_heads, dropout=old.dropout, bias=bias, batch_first=True, **place)
    parts = (old.q_proj, old.k_proj, old.v_proj)
    with torch.no_grad():
        new.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        new.out_proj.weight.copy_(old.out_proj.weight)
        if bias:
            new.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            new.out_proj.bias.copy_(old.out_proj.bias)
    return new.train(old.training)
