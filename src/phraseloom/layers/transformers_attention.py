"""Phrasal attention in the place of the attention of MarianMT and BART models of the library transformers.

It is called as `MarianAttention` is. The cache of generation holds what the layer reads, (B, 1, T, D), not its keys and values:
n-grams that begin before the new token need its forerunners. Each step projects the whole prefix again, so that generation
costs more than with the old layer; training does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.layers.phrase_attention import PhraseAttention

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

        `past_key_values`: the cache of generation, which grows by the new tokens. `attention_mask`: (B, 1, Q, K), True or 0
        where attention is allowed; that of the last query tells what is padding, causality follows from the layer.
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
        padding = _padding(attention_mask, memory.shape[1])
        output, _ = self.attention(
            query, memory, memory, key_padding_mask=padding, attn_mask=forbidden, need_weights=False
        )
        return output[:, -count:], None

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


def _padding(mask: Tensor | None, keys: int) -> Tensor | None:
    """Which keys are hidden from the last query of each sentence, (B, K); None where none is."""
    if mask is None:
        return None
    row = mask[:, 0, -1, :keys] if mask.dim() == 4 else mask[:, :keys]
    hidden = ~row if row.dtype == torch.bool else row < 0 if mask.dim() == 4 else row == 0
    return hidden if bool(hidden.any()) else None
