"""Which way attention is computed: written out, or by flash kernels (`fused.py`). Every block asks here, and nowhere else.

    explicit   scores and weights are tensors: any score, weights on request, attention dropout
    fused      flash kernels: memory linear in the length
    auto       fused where the memory has at least FUSED_FROM tokens, explicit below

Both give the same numbers, to rounding. Where a block is asked for its weights, has relative scores, drops attention weights
in training, or stands on a device without a kernel, it is computed explicitly whatever the backend.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phraseloom.layers.attention.fused import SlotMasks, fused_contexts
from phraseloom.layers.attention.gate import mix_contexts, opening
from phraseloom.layers.attention.kernels import has_kernel

# Tokens of the memory from which flash kernels are faster (benchmarks/attention_backend.py).
FUSED_FROM = 256


def is_fused(backend: str, score: Any, keys: list[Tensor], *, length: int, need_weights: bool, dropout: float) -> bool:
    """Whether attention with `keys` of `length` tokens is computed by flash kernels; `dropout` is the rate that acts now."""
    if backend == "explicit" or need_weights or dropout > 0.0:
        return False
    return (backend == "fused" or length >= FUSED_FROM) and bool(score.products) and has_kernel(keys[0])


def fused_attention(
    score: Any,
    gate_H: Tensor | None,
    projected: tuple[list[Tensor], list[Tensor], list[Tensor]],
    masks: SlotMasks,
    *,
    rows: int,
    of_itself: bool,
) -> Tensor:
    """Contexts (B, H, J·Q, E) of Q = `rows` queries from the queries, keys and values of a score, through its gate if it has
    one."""
    structure, products = score.structure, score.products
    options = {"structure": structure, "rows": rows, "of_itself": of_itself}
    contexts = fused_contexts(*projected, masks, products=products, **options)
    if gate_H is None:
        return contexts
    tokens = fused_contexts(*projected, masks, products=[p for p in products if p.part.order == 1], **options)
    return mix_contexts(contexts, tokens, opening(gate_H), structure)
