"""Attention by flash kernels, one call an order: the same numbers, and the scores are never in memory.

    q̂ = the n taps of a query side by side      k̂_j = key_{j-n+1} … key_j side by side         A_n = q̂ k̂ᵀ
    o_n, L_n = flash(q̂, k̂, V_n)                L = log Σ_n e^{L_n}      o = Σ_n e^{L_n - L} o_n

The queries are scaled already; with token and ConvKV scores the keys are those of slots, and n taps are one. The backward
of every order is the backward of its flash kernel *with the global o and L*: since P = e^{A - L} and
dA = P ∘ (dO Vᵀ - rowsum(dO ∘ o)), what the kernel computes from A_n, o and L is exactly the part of dA that belongs to the
order. No derivative of L_n is needed, and memory is linear in the length.

A row that sees no slot gives zero. Causality needs no mask: from token n-1 on, queries and slots are a square. Padding is
one row of -inf a sentence; any other mask is a matrix. The windows of keys are copied, since matrix products on a CPU are
slow where rows overlap in memory. Dropout draws a mask for each call, and in the backward again, which has the distribution
of one mask on the weights of all slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phraseloom.layers.attention.kernels import Dropout, choose_kernel
from phraseloom.layers.attention.masks import SlotMasks
from phraseloom.layers.attention.structure import HeadGroup, Structure


@dataclass(frozen=True)
class SlotProduct:
    """Which queries and keys make the scores of the slots of one block, for the heads of `part`.

    Tensor `source` of the queries and keys holds these heads from `first_head` on. A query order has `taps` blocks of query
    rows, the first of which is `row` + its number · `taps`. The keys are block `key_block`: one for each token where `taps` is
    the order, else one for each slot.
    """

    block: int
    part: HeadGroup
    source: int = 0
    first_head: int = 0
    row: int = 0
    key_block: int = 0
    taps: int = 1


def fused_contexts(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    masks: SlotMasks,
    *,
    structure: Structure,
    products: Sequence[SlotProduct],
    rows: int,
    of_itself: bool,
    dropout: Dropout | None = None,
) -> Tensor:
    """Contexts (B, H, J·Q, E): those of `masked_softmax`, dropout and `mix`.

    `queries`, `keys`, `values`: as the layout of a score makes them; `products`: of all blocks, or of those that count;
    `rows`: Q; `of_itself`: queries and keys are the same tokens.
    """
    calls = tuple(_Call.of(product, masks, structure, queries[0]) for product in products)
    plan = _Plan(structure, calls, rows, len(queries), dropout)
    contexts: Tensor = _OneSoftmax.apply(plan, *queries, *keys, values[0])
    missing = masks.missing_rows(structure, of_itself=of_itself)
    return contexts if missing is None else contexts.masked_fill(missing, 0.0)


@dataclass(frozen=True)
class _Call:
    """One product with its masks. The first `skip` tokens end no slot. `bias`: zeros and -inf, broadcastable to (B, heads,
    Q, slots); `empty` (B, heads, Q): rows that see nothing."""

    product: SlotProduct
    zeros: int
    skip: int
    causal: bool
    bias: Tensor | None
    empty: Tensor | None

    @staticmethod
    def of(product: SlotProduct, masks: SlotMasks, structure: Structure, like: Tensor) -> _Call:
        before = product.part.order - 1
        zeros, skip = (before, 0) if structure.zero_extended else (0, before)
        causal, hidden = masks.hidden_besides_future(product.part, zero_extended=structure.zero_extended)
        if hidden is None or hidden.shape[-1] <= skip:
            return _Call(product, zeros, skip, causal, None, None)
        hidden = hidden[..., skip:]
        # With causality, row i sees slots up to i; there is one row of `hidden` for all.
        empty = hidden[..., 0, :].int().cummin(-1).values.bool() if causal else hidden.all(-1)
        bias = torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, float("-inf"))
        return _Call(product, zeros, skip, causal, bias, empty)

    def queries(self, all_queries: Sequence[Tensor], order: int, rows: int) -> Tensor:
        """(B, heads, taps, Q, E): a view of the rows of query order number `order`."""
        own, part = self.product, self.product.part
        blocks = all_queries[own.source].unflatten(2, (-1, rows))
        heads = slice(own.first_head, own.first_head + part.last - part.first)
        first = own.row + order * own.taps
        return blocks[:, heads, first : first + own.taps, self.skip if self.causal else 0 :]

    def keys(self, all_keys: Sequence[Tensor], length: int) -> Tensor:
        """(B, heads, K, E): a view of the keys of tokens or, where a slot has one key, those of the slots that exist."""
        own, part = self.product, self.product.part
        heads = slice(own.first_head, own.first_head + part.last - part.first)
        begin = own.key_block * length + (self.skip if own.taps == 1 else 0)
        return all_keys[own.source][:, heads, begin : (own.key_block + 1) * length]

    def values(self, values: Tensor, length: int) -> Tensor:
        """(B, heads, slots, E): a view of the values of the slots that exist."""
        own, part = self.product, self.product.part
        return values[:, part.first : part.last, own.block * length + self.skip : (own.block + 1) * length]


class _Plan(NamedTuple):
    """All calls of one softmax; `rows` is Q, `sources` the number of query tensors, and of key tensors."""

    structure: Structure
    calls: tuple[_Call, ...]
    rows: int
    sources: int
    dropout: Dropout | None

    def inputs(self, tensors: Sequence[Tensor]) -> Iterator[tuple[_Call, int, Any, tuple[Tensor, ...], dict[str, Any]]]:
        """For each call and query order: its number, where its rows are in (B, H, J, Q, …), and what the kernel gets."""
        queries, keys, values = tensors[: self.sources], tensors[self.sources : -1], tensors[-1]
        length = values.shape[2] // len(self.structure.blocks)
        for call in self.calls:
            taps, part = call.product.taps, call.product.part
            slots = length - call.skip
            if slots <= 0:
                continue
            k = F.pad(call.keys(keys, length), (0, 0, call.zeros if taps > 1 else 0, 0))
            if taps > 1:
                k = torch.cat([k[:, :, tap : tap + slots] for tap in range(taps)], -1)
            v, orders = call.values(values, length), len(self.structure.query_orders)
            for m in range(orders):
                q = call.queries(queries, m, self.rows).transpose(2, 3).flatten(3)
                place = (slice(None), slice(part.first, part.last), m, slice(self.rows - q.shape[2], None))
                dropout = self.dropout
                if dropout is not None:  # a seed for each block of slots, head and query order
                    number = (call.product.block * self.structure.heads + part.first) * orders + m
                    dropout = Dropout(dropout.rate, dropout.seed + number)
                yield call, m, place, (q, k, v), {"causal": call.causal, "bias": call.bias, "dropout": dropout}


class _OneSoftmax(torch.autograd.Function):
    """One softmax over the slots of all calls; the inputs, the output and one number a row are kept for the backward."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> Tensor:
        values = tensors[-1]
        kernel = choose_kernel(values, dropout=plan.dropout is not None)
        batch, heads, _, size = values.shape
        shape = (batch, heads, len(plan.structure.query_orders), plan.rows)
        exact = torch.promote_types(values.dtype, torch.float32)
        output = values.new_zeros(*shape, size, dtype=exact)
        total = values.new_full(shape, float("-inf"), dtype=exact)
        begun = set()
        for call, m, place, inputs, options in plan.inputs(tensors):
            o, logsumexp = kernel.forward(*inputs, **options)
            o = o[..., :size]
            if call.empty is not None:
                o, logsumexp = (
                    o.masked_fill(call.empty[..., None], 0.0),
                    logsumexp.masked_fill(call.empty, float("-inf")),
                )
            if (m, call.product.part.first) not in begun:
                begun.add((m, call.product.part.first))
                output[place], total[place] = o, logsumexp
                continue
            both = torch.logaddexp(total[place], logsumexp)
            finite = both.masked_fill(both == float("-inf"), 0.0)
            output[place] *= (total[place] - finite).exp_()[..., None]
            output[place] += (logsumexp - finite).exp_()[..., None] * o
            total[place] = both
        result = output.to(values.dtype)
        # A row that saw nothing: e^(A - ∞) = 0, so that nothing gets a gradient from it.
        ctx.save_for_backward(*tensors, result, total.masked_fill(total == float("-inf"), float("inf")))
        ctx.plan, ctx.kernel = plan, kernel
        return result.flatten(2, 3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "fused attention has no second derivatives: use the backend explicit, or leave create_graph out"
            )
        plan: _Plan = ctx.plan
        *tensors, output, total = ctx.saved_tensors
        size, length = output.shape[-1], tensors[-1].shape[2] // len(plan.structure.blocks)
        grad = (grad if grad.stride(-1) == 1 else grad.contiguous()).unflatten(2, output.shape[2:4])
        grads = [torch.zeros_like(tensor) for tensor in tensors]
        of_queries, of_keys, of_values = grads[: plan.sources], grads[plan.sources : -1], grads[-1]
        for call, m, place, inputs, options in plan.inputs(tensors):
            taps = call.product.taps
            grad_q, grad_k, grad_v = ctx.kernel.backward(grad[place], *inputs, output[place], total[place], **options)
            call.queries(of_queries, m, plan.rows).add_(grad_q.unflatten(3, (taps, size)).transpose(2, 3))
            call.values(of_values, length).add_(grad_v[..., :size])
            into = call.keys(of_keys, length)
            for tap, part in enumerate(grad_k.split(size, -1)):  # windows overlap: their gradients are added
                before = tap - (call.zeros if taps > 1 else 0)
                part = part[:, :, max(0, -before) :]
                into[:, :, max(0, before) : max(0, before) + part.shape[2]].add_(part)
        return None, *grads
