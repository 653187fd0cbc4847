"""Which way attention is computed: written out, or by flash kernels (`fused.py`). Every block asks here, and nowhere else.

    explicit   scores and weights are tensors: any score, weights on request
    fused      no tensor of scores: memory linear in the length
    auto       fused from a length of the memory on, explicit below

Both give the same numbers, to rounding; with attention dropout the same distribution, from other draws. A block that is asked
for its weights or has relative scores is computed explicitly whatever the backend.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phraseloom.layers.attention.fused import fused_contexts
from phraseloom.layers.attention.gate import mix_contexts, mix_with_tokens, opening
from phraseloom.layers.attention.kernels import Dropout
from phraseloom.layers.attention.masks import SlotMasks, masked_softmax
from phraseloom.layers.feedforward import dropout as drop

# Tokens of the memory from which `auto` is fused: where it is as fast on one CPU core, by benchmarks/attention_backend.py and
# `phraseloom doctor`. With dropout, which the flash kernel for CPUs has not, the blocks of kernels.py must be as fast.
FUSED_FROM = 256
FUSED_FROM_WITH_DROPOUT = 512


def is_fused(backend: str, score: Any, *, length: int, need_weights: bool, dropout: float) -> bool:
    """Whether attention to a memory of `length` tokens is computed without its scores in memory; `dropout`: the rate that acts
    now."""
    if backend == "explicit" or need_weights:
        return False
    enough = FUSED_FROM if dropout == 0.0 else FUSED_FROM_WITH_DROPOUT
    return (backend == "fused" or length >= enough) and _has_products(score)


def _has_products(score: Any) -> bool:
    """Whether kernels can compute the attention: a class that overrides `scores`, `compare` or `mix` must say by `products`
    how."""
    computing = ("scores", "compare", "mix", "products")
    owner = next(cls for cls in type(score).__mro__ if not vars(cls).keys().isdisjoint(computing))
    return "products" in vars(owner) and bool(score.products)


def attend(
    score: Any,
    gate_H: Tensor | None,
    projected: tuple[list[Tensor], list[Tensor], list[Tensor]],
    masks: SlotMasks,
    *,
    backend: str,
    need_weights: bool,
    rows: int,
    of_itself: bool,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    """Contexts (B, H, J·Q, E) of Q = `rows` queries from the queries, keys and values of a score, through its gate if it has
    one; and the weights (B, H, J·Q, G·K) before dropout, or None. `dropout`: the rate that acts now."""
    if is_fused(backend, score, length=masks.key_length, need_weights=need_weights, dropout=dropout):
        compute = _apart if torch.compiler.is_compiling() else _fused
        return compute(score, gate_H, projected, masks, rows=rows, of_itself=of_itself, dropout=dropout), None
    queries, keys, values = projected
    hidden = masks.hidden_rows(score.structure, of_itself=of_itself)
    scores = score.scores(queries, keys, masks)
    weights = masked_softmax(scores, hidden)
    if gate_H is not None:
        weights = mix_with_tokens(weights, scores, hidden, opening(gate_H), score.structure)
    return score.mix(drop(weights, dropout, True), values, masks), weights


def _fused(
    score: Any,
    gate_H: Tensor | None,
    projected: tuple[list[Tensor], list[Tensor], list[Tensor]],
    masks: SlotMasks,
    *,
    rows: int,
    of_itself: bool,
    dropout: float,
) -> Tensor:
    """The contexts of `attend` without its scores in memory."""
    structure, products = score.structure, score.products
    draws = Dropout(dropout, int(torch.randint(2**62, ()))) if dropout > 0.0 else None
    options = {"structure": structure, "rows": rows, "of_itself": of_itself, "dropout": draws}
    contexts = fused_contexts(*projected, masks, products=products, **options)
    if gate_H is None:
        return contexts
    tokens = fused_contexts(*projected, masks, products=[p for p in products if p.part.order == 1], **options)
    return mix_contexts(contexts, tokens, opening(gate_H), structure)


# The compiler leaves it as it is: blocks of queries and generators of dropout follow the length of the text.
_apart = torch._disable_dynamo(_fused)
