"""Phrasal attention with the signature of torch.nn.MultiheadAttention, for models that are not ours.

    q, k, v = windows over (x W + b)        p = softmax over the slots of all orders        y = arrangement(p v) + b_out

Score, arrangement and orders are those of `layers/attention` (P000, P002), named in one line such as
`queryk heterogeneous 1-2`. What torch's layer has besides:

Biases: one number for each row of the packed projections, so that every tap of a window has its own, and one for each
output. They belong to tokens that exist: zero extension comes after them.

The gate exists only if `replace_attention` requests it. For each head, with a parameter θ initialised to zero,

    p ← (1 - g) · softmax over tokens + g · softmax over all slots        g = tanh |θ|, with derivative 1 at θ = 0

so that g = 0 is exactly attention to tokens, rows stay distributions, and the gate opens at the first step whatever the
sign of its gradient. Only queries of single tokens have one (docs/decisions/0006-replaced-layers-begin-equal.md).
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional as F

from phraseloom.errors import ConfigError, UsageError
from phraseloom.layers.attention import build_attention
from phraseloom.layers.attention.backend import attend
from phraseloom.layers.attention.windows import gather
from phraseloom.layers.phrase_masks import TokenMasks, read_masks
from phraseloom.options import attention as naming
from phraseloom.options.attention import AttentionConfig, Backend

PAGE = "docs/phrase_attention.md lists the structures"


class PhraseAttention(nn.Module):
    """`torch.nn.MultiheadAttention` that attends to n-grams: P000, P002 in one line, `structure`.

    `structure`: SCORE [ARRANGEMENT ORDERS] [shared-keys | keys-per-order] as in a recipe (docs/phrase_attention.md).
    `reads_ahead`: an output may use query n-grams that end after it (the encoder form of interleaved attention); then
    no attn_mask is possible. `gated`: begin as attention to tokens. `backend`: auto, explicit or fused; a call with
    `need_weights`, torch's default, is explicit in any case. Everything else is torch's, but for `batch_first`, which is True.

    Raises UsageError where the line, the width and the heads do not fit together.
    """

    # torch's Transformer layers look at these before they take a fused path that knows nothing of n-grams: they do not.
    in_proj_weight = None
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        structure: str = naming.EXAMPLE,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        reads_ahead: bool = False,
        gated: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        if backend not in get_args(Backend):
            raise UsageError(f"backend {backend!r} is none of {', '.join(get_args(Backend))}")
        self.backend = backend
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise UsageError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        if not 0 <= dropout <= 1:
            raise UsageError(f"dropout {dropout} is not between 0 and 1")
        config = _read(structure)
        self.needs_distances = naming.SCORES[config.score.kind].distances
        try:
            block = build_attention(width=embed_dim, heads=num_heads, reads_ahead=reads_ahead, **config.arguments())
        except ValueError as error:
            raise UsageError(str(error), hint=PAGE) from error
        self.line, self.structure = structure, block.structure
        self.score, self.arrangement = block.score, block.arrangement
        if reads_ahead and not self.structure.reads_ahead:
            raise UsageError(f"reads_ahead is for query n-grams, and {structure!r} has none", hint="leave it out")
        self.bias = nn.Parameter(torch.zeros(len(block.score.weight))) if bias else None
        self.out_bias = nn.Parameter(torch.zeros(embed_dim)) if bias else None
        self.gate = nn.Parameter(torch.zeros(num_heads)) if gated else None
        if gated and (len(self.structure.blocks) == 1 or 1 not in self.structure.orders):
            raise UsageError(f"a gate lies between tokens and n-grams; the heads of {structure!r} do not see both")
        self.to(device=device, dtype=dtype)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output and weights, as torch.nn.MultiheadAttention gives them.

        query (B, Q, D), key and value one tensor (B, K, D); without `batch_first` (Q, B, D), (K, B, D); without a batch
        (Q, D), (K, D). key_padding_mask (B, K), attn_mask (Q, K) or (B·H, Q, K): True or -inf where attention is not
        allowed. `is_causal` says that attn_mask is the causal mask, as in torch; the mask itself is what counts.

        Output like query. Weights (B, J·Q, G·K), the mean of the heads, or (B, H, J·Q, G·K), before dropout: columns
        are slots, block by block (`self.structure`); for attention to single tokens they are torch's (B, Q, K), (B, H,
        Q, K). None unless `need_weights`.

        Raises UsageError for what cannot be understood.
        """
        if is_causal and attn_mask is None:
            raise UsageError("is_causal needs an attn_mask, as in torch", hint="give the causal mask")
        of_itself = same(query, key)
        if not of_itself and self.needs_distances:
            raise UsageError(
                "relative scores are for self-attention",
                hint="pass the same tensor as query, key and value; `where` of replace_attention can leave other layers out",
            )
        x, memory, key_padding_mask = self._batched(query, key, value, key_padding_mask)
        sizes = {"batch": len(x), "heads": self.num_heads, "queries": x.shape[1], "keys": memory.shape[1]}
        masks = read_masks(key_padding_mask, attn_mask, **sizes, device=x.device)
        if self.structure.reads_ahead and masks.forbidden is not None:
            raise UsageError(
                f"{self.line!r} with reads_ahead looks at the next tokens: no attn_mask", hint="set reads_ahead=False"
            )
        output, weights = self._attend(x, None if of_itself else memory, masks, need_weights)
        if query.dim() == 2:
            output, weights = output[0], None if weights is None else weights[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights or weights is None:
            return output, None
        return output, weights.mean(-3) if average_attn_weights else weights

    def _batched(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries and memory with the batch first, and their padding mask."""
        if query.is_nested or key.is_nested:
            raise UsageError("nested tensors are not supported", hint="pass padded tensors and key_padding_mask")
        if not same(key, value):
            raise UsageError(
                "key and value are two tensors, but n-gram keys and values are windows over one sequence",
                hint="pass the same tensor for both",
            )
        if query.dim() not in (2, 3) or key.dim() != query.dim():
            raise UsageError(
                f"query has {query.dim()} dimensions and key {key.dim()}",
                hint="both need three, or two without a batch",
            )
        if query.dim() == 2:
            query, key, padding = query[None], key[None], None if padding is None else padding[None]
        elif not self.batch_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        if query.shape[-1] != self.embed_dim or key.shape[-1] != self.embed_dim or len(query) != len(key):
            raise UsageError(
                f"query {tuple(query.shape)} and key {tuple(key.shape)} (batch first) do not fit embed_dim {self.embed_dim}"
            )
        return query, key, padding

    def _attend(
        self, x_BQD: Tensor, memory_BKD: Tensor | None, masks: TokenMasks, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output (B, Q, D) and weights (B, H, J·Q, G·K), or None; `memory_BKD` None means self-attention."""
        layout, of_itself = self.score.layout, memory_BKD is None
        if memory_BKD is None and masks.padding is None:
            made = self._project(x_BQD, layout.queries + layout.keys + layout.values)
        else:
            if memory_BKD is None:
                x_BQD, memory_BKD = masks.with_finite_padding(x_BQD), x_BQD
            made = self._project(x_BQD, layout.queries, end=layout.split)
            made += self._project(masks.without_padding(memory_BKD), layout.keys + layout.values, start=layout.split)
        first_key, first_value = len(layout.queries), len(layout.queries) + len(layout.keys)
        contexts, weights = attend(
            self.score,
            self.gate,
            (made[:first_key], made[first_key:first_value], made[first_value:]),
            masks,
            backend=self.backend,
            need_weights=need_weights,
            rows=x_BQD.shape[1],
            of_itself=of_itself,
            dropout=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.arrangement(contexts)
        return output if self.out_bias is None else output + self.out_bias.to(output.dtype), weights

    def _project(self, x_BLD: Tensor, outputs: Any, *, start: int = 0, end: int | None = None) -> list[Tensor]:
        score: Any = self.score
        bias = None if self.bias is None else self.bias[start:end]
        return gather(F.linear(x_BLD, score.weight[start:end], bias), outputs, score.layout.size, start)

    def extra_repr(self) -> str:
        """The line of the structure, for print(model)."""
        return repr(self.line)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether both are one tensor or the same view of it, also to autograd; equal numbers in other memory are not."""
    if one is other:
        return True
    if one.is_nested or other.is_nested or one.requires_grad != other.requires_grad or not one.is_set_to(other):
        return False
    return not one.requires_grad or _same_history(one.grad_fn, other.grad_fn)


def _same_history(one: Any, other: Any) -> bool:
    """Whether two nodes of the graph of autograd are one, or the same views of one; a function of the user is only itself."""
    if one is other:
        return one is not None
    if type(one) is not type(other) or one is None or isinstance(one, BackwardCFunction):
        return False
    pairs = zip(one.next_functions, other.next_functions, strict=True)
    return all(a[1] == b[1] and _same_history(a[0], b[0]) for a, b in pairs)


def _read(line: Any) -> AttentionConfig:
    """The score and arrangement that `line` names. Raises UsageError where they do not fit."""
    if not isinstance(line, str):
        raise UsageError(f"structure is {line!r}, but a line such as {naming.EXAMPLE!r} is needed")
    try:
        config = naming.read_line(line)
    except ConfigError as error:
        raise UsageError(error.what, hint=PAGE) from error
    if config.gated:
        raise UsageError("'gated' belongs to lines of recipes; here it is the keyword gated=True", hint=PAGE)
    return config
