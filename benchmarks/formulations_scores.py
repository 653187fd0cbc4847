"""Ways to compute scores, softmax and contexts of heterogeneous attention; see formulations.py.

Projected tensors come as they leave their matrix product: queries (B, Q, T, H, E) with one vector a tap (T = Σ n), keys
(B, K, G, H, E) with G = 1 shared or G = N, values (B, K, N, H, E) with windows ending at j. Contexts are (B, Q, H·E).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """A batch: `sentences` of `length` tokens (every second one a third shorter), the heads and the orders."""

    sentences: int
    length: int
    heads: int
    size: int
    orders: tuple[int, ...]
    causal: bool
    device: str

    def hidden(self) -> Tensor:
        """(B, 1, Q or 1, N·K): what no query may see: padding, windows that begin too early, the future."""
        last = torch.arange(self.length, device=self.device)
        lengths = torch.full((self.sentences,), self.length, device=self.device)
        lengths[::2] -= self.length // 3
        missing = torch.cat([last < n - 1 for n in self.orders])
        last = last.repeat(len(self.orders))
        result = ((last >= lengths[:, None]) | missing)[:, None, None]
        if self.causal:
            result = result | (last > torch.arange(self.length, device=self.device)[:, None])
        return result

    def first_tap(self, order: int) -> int:
        """The number of the first tap of an order among all."""
        return sum(n for n in self.orders if n < order)

    def scale(self, order: int) -> float:
        return (order * self.size) ** -0.5


Way = Callable[..., Tensor]
MASKS: dict[Shape, tuple[Tensor, Tensor]] = {}


def masks(shape: Shape) -> tuple[Tensor, Tensor]:
    """Hidden slots, and the same as numbers to add: made once, as a model makes them once for all its layers."""
    if shape not in MASKS:
        hidden = shape.hidden()
        MASKS[shape] = hidden, torch.zeros(hidden.shape, device=shape.device).masked_fill(hidden, -math.inf)
    return MASKS[shape]


def queryk_inputs(shape: Shape, *, shared: bool) -> list[Tensor]:
    b, k, h, e, n = shape.sentences, shape.length, shape.heads, shape.size, len(shape.orders)
    sizes = ((b, k, sum(shape.orders), h, e), (b, k, 1 if shared else n, h, e), (b, k, n, h, e))
    return [torch.randn(s, device=shape.device).requires_grad_() for s in sizes]


def convkv_inputs(shape: Shape) -> list[Tensor]:
    b, k, h, e, n = shape.sentences, shape.length, shape.heads, shape.size, len(shape.orders)
    return [
        torch.randn(s, device=shape.device).requires_grad_()
        for s in ((b, k, 1, h, e), (b, k, n, h, e), (b, k, n, h, e))
    ]


def heads_first(x: Tensor) -> Tensor:
    """(B, L, G, H, E) → (B, H, G·L, E), contiguous."""
    return x.permute(0, 3, 2, 1, 4).flatten(2, 3).contiguous()


def padded(keys: Tensor, shape: Shape) -> list[Tensor]:
    """For each order its keys (B, H, max(n)-1 + K, E) with zeros before the sentence."""
    before = shape.orders[-1] - 1
    parts = [F.pad(part, (0, 0, before, 0)) for part in keys.permute(2, 0, 3, 1, 4).unbind(0)]
    return parts * len(shape.orders) if len(parts) == 1 else parts


def window(keys: Tensor, shape: Shape, order: int, tap: int) -> Tensor:
    """What tap `tap` of each window of an order sees: a view (B, H, K, E) of padded keys."""
    begin = shape.orders[-1] - order + tap
    return keys[:, :, begin : begin + shape.length]


def join(context: Tensor) -> Tensor:
    return context.transpose(1, 2).flatten(2)


def attend(scores: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """Softmax of masked scores (B, H, Q, N·K), and the contexts."""
    hidden, _ = masks(shape)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1).masked_fill(hidden, 0.0)
    return join(weights @ heads_first(values))


def shifted_products(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """(2a) All taps in one product with the keys, then diagonal shifts added."""
    q, scores = queries.permute(0, 3, 2, 1, 4), []
    pads = padded(keys, shape)
    if keys.shape[2] == 1:
        stacked = heads_first(queries) @ pads[0].transpose(-1, -2)
        per_tap = stacked.unflatten(2, (q.shape[2], shape.length))
    for g, n in enumerate(shape.orders):
        first = shape.first_tap(n)
        if keys.shape[2] != 1:
            stacked = q[:, :, first : first + n].flatten(2, 3) @ pads[g].transpose(-1, -2)
            per_tap, first = stacked.unflatten(2, (n, shape.length)), 0
        begin = shape.orders[-1] - n
        parts = [per_tap[:, :, first + t, :, begin + t : begin + t + shape.length] for t in range(n)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        scores.append(total * shape.scale(n))
    return attend(torch.cat(scores, -1), values, shape)


def long_heads(queries: Tensor, keys: Tensor, shape: Shape) -> list[tuple[Tensor, Tensor]]:
    """(2b) For each order queries (B, H, Q, n·E) and unfolded keys (B, H, K, n·E)."""
    result = []
    for n, pad in zip(shape.orders, padded(keys, shape), strict=True):
        first = shape.first_tap(n)
        q = queries[:, :, first : first + n].permute(0, 3, 1, 2, 4).flatten(3)
        k = window(pad, shape, n, 0) if n == 1 else torch.cat([window(pad, shape, n, t) for t in range(n)], -1)
        result.append((q, k))
    return result


def unfolded(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """(2b) Ordinary products with longer heads over unfolded keys."""
    pairs = zip(shape.orders, long_heads(queries, keys, shape), strict=True)
    return attend(torch.cat([(q * shape.scale(n)) @ k.transpose(-1, -2) for n, (q, k) in pairs], -1), values, shape)


def accumulated(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """One product a tap with shifted keys, added up inside the product."""
    q, scores = queries.permute(2, 0, 3, 1, 4), []
    for n, pad in zip(shape.orders, padded(keys, shape), strict=True):
        total = None
        for t in range(n):
            a = q[shape.first_tap(n) + t].flatten(0, 1)
            b = window(pad, shape, n, t).flatten(0, 1).transpose(1, 2)
            product = torch.zeros((), device=a.device, dtype=a.dtype) if total is None else total
            total = torch.baddbmm(product, a, b, beta=0 if t == 0 else 1, alpha=shape.scale(n))
        assert total is not None
        scores.append(total.unflatten(0, (shape.sentences, shape.heads)))
    return attend(torch.cat(scores, -1), values, shape)


def merged(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """(2c) A softmax for each order, merged by log-sum-exp."""
    hidden, _ = masks(shape)
    outputs, logs = [], []
    v = values.permute(2, 0, 3, 1, 4)
    for g, (q, k) in enumerate(long_heads(queries, keys, shape)):
        part = hidden[..., g * shape.length : (g + 1) * shape.length]
        scores = ((q * shape.scale(shape.orders[g])) @ k.transpose(-1, -2)).masked_fill(part, -math.inf)
        log = scores.logsumexp(-1, keepdim=True)
        log = log.masked_fill(part.all(-1, keepdim=True), -1e30)
        outputs.append((scores - log).exp() @ v[g])
        logs.append(log)
    share = torch.cat(logs, -1).softmax(-1)
    return join(sum((share[..., g : g + 1] * o for g, o in enumerate(outputs)), torch.zeros((), device=share.device)))


def embedded(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """(2d) One fused call: a query of all taps, keys that are zero outside the block of their order."""
    pairs, width = long_heads(queries, keys, shape), sum(shape.orders) * shape.size
    q = torch.cat([q * shape.scale(n) for n, (q, _) in zip(shape.orders, pairs, strict=True)], -1)
    blocks = []
    for n, (_, k) in zip(shape.orders, pairs, strict=True):
        before = shape.first_tap(n) * shape.size
        blocks.append(F.pad(k, (before, width - before - n * shape.size)))
    k, v = torch.cat(blocks, 2), heads_first(values)
    v = F.pad(v, (0, width - shape.size))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=~masks(shape)[0], scale=1.0)
    return join(context[..., : shape.size])


class Accumulated(torch.autograd.Function):
    """Weights (B, H, Q, N·K) from products accumulated a tap, as one node with its own backward.

    Beside the inputs only the weights are kept, and no gradient passes through slices, masks or concatenation.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, shape: Shape) -> Tensor:
        q = queries.permute(2, 0, 3, 1, 4).contiguous().flatten(1, 2)  # (T, BH, Q, E)
        pads = [p.flatten(0, 1) for p in padded(keys, shape)[: keys.shape[2]]]
        length = shape.length
        scores = q.new_empty(q.shape[1], q.shape[2], len(shape.orders) * length)
        for g, n in enumerate(shape.orders):
            part = scores[:, :, g * length : (g + 1) * length]
            for t in range(n):
                begin = shape.orders[-1] - n + t
                k = pads[g % len(pads)][:, begin : begin + length].transpose(1, 2)
                torch.baddbmm(part, q[shape.first_tap(n) + t], k, beta=int(t > 0), alpha=shape.scale(n), out=part)
        four = scores.view(shape.sentences, shape.heads, q.shape[2], -1)
        weights = torch.softmax(four.add_(masks(shape)[1]), -1)
        ctx.save_for_backward(q, weights, *pads)
        ctx.shape = shape
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        q, weights, *pads = ctx.saved_tensors
        shape: Shape = ctx.shape
        b, h, length = shape.sentences, shape.heads, shape.length
        g_scores = torch._softmax_backward_data(gradient, weights, -1, weights.dtype).flatten(0, 1)
        g_q, g_pads = torch.empty_like(q), [torch.zeros_like(p) for p in pads]
        for g, n in enumerate(shape.orders):
            part = g_scores[:, :, g * length : (g + 1) * length]
            for t in range(n):
                begin, tap = shape.orders[-1] - n + t, shape.first_tap(n) + t
                k, g_k = (x[g % len(pads)][:, begin : begin + length] for x in (pads, g_pads))
                torch.baddbmm(g_q[tap], part, k, beta=0, alpha=shape.scale(n), out=g_q[tap])
                torch.baddbmm(g_k, part.transpose(1, 2), q[tap], alpha=shape.scale(n), out=g_k)
        before = shape.orders[-1] - 1
        return (
            g_q.view(-1, b, h, *g_q.shape[2:]).permute(1, 3, 0, 2, 4),
            torch.stack([p[:, before:].view(b, h, length, -1) for p in g_pads]).permute(1, 3, 0, 2, 4),
            None,
        )


class Stacked(torch.autograd.Function):
    """Weights (B, H, Q, N·K) from one product of all taps of a key, as one node with its own backward."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, shape: Shape) -> Tensor:
        b, h, length, last = shape.sentences, shape.heads, shape.length, shape.orders[-1]
        scales = queries.new_tensor([shape.scale(n) for n in shape.orders for _ in range(n)])
        q = queries.new_empty(b * h, sum(shape.orders) * length, shape.size)
        torch.mul(queries.permute(0, 3, 2, 1, 4), scales[:, None, None], out=q.view(b, h, -1, length, shape.size))
        pads = [p.flatten(0, 1) for p in padded(keys, shape)[: keys.shape[2]]]
        scores = q.new_empty(b, h, length, len(shape.orders) * length)
        for rows, k, orders in products_of(shape, q, pads):
            product = torch.bmm(rows, k.transpose(1, 2)).view(b, h, -1, length, length + last - 1)
            for g, n, first in orders:
                part = scores[..., g * length : (g + 1) * length]
                taps = [product[:, :, first + t, :, last - n + t :][..., :length] for t in range(n)]
                torch.add(taps[0], masks(shape)[1][..., g * length : (g + 1) * length], out=part)
                for tap in taps[1:]:
                    part += tap
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(q, weights, scales, *pads)
        ctx.shape = shape
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        q, weights, scales, *pads = ctx.saved_tensors
        shape: Shape = ctx.shape
        b, h, length, last = shape.sentences, shape.heads, shape.length, shape.orders[-1]
        g_scores = torch._softmax_backward_data(gradient, weights, -1, weights.dtype)
        g_queries, g_keys = [], []
        for rows, k, orders in products_of(shape, q, pads):
            g_product = q.new_empty(b, h, rows.shape[1] // length, length, length + last - 1)
            for g, n, first in orders:
                for t in range(n):
                    begin, one = last - n + t, g_product[:, :, first + t]
                    one[..., :begin] = 0
                    one[..., begin : begin + length] = g_scores[..., g * length : (g + 1) * length]
                    one[..., begin + length :] = 0
            flat = g_product.view(b * h, -1, length + last - 1)
            g_queries.append(torch.bmm(flat, k).view(b, h, -1, length, shape.size))
            g_keys.append(torch.bmm(flat.transpose(1, 2), rows)[:, last - 1 :].view(b, h, length, -1))
        g_q = g_queries[0] if len(g_queries) == 1 else torch.cat(g_queries, 2)
        return (g_q * scales[:, None, None]).permute(0, 3, 2, 1, 4), torch.stack(g_keys).permute(1, 3, 0, 2, 4), None


def products_of(shape: Shape, q: Tensor, pads: list[Tensor]) -> list[tuple[Tensor, Tensor, list[tuple[int, int, int]]]]:
    """(rows of the stacked queries, keys, [(block, order, first tap in these rows)]) of each product."""
    if len(pads) == 1:
        return [(q, pads[0], [(g, n, shape.first_tap(n)) for g, n in enumerate(shape.orders)])]
    rows = q.split([n * shape.length for n in shape.orders], 1)
    return [(r, k, [(g, n, 0)]) for g, (r, k, n) in enumerate(zip(rows, pads, shape.orders, strict=True))]


class Unfolded(torch.autograd.Function):
    """Weights (B, H, Q, N·K) from one product an order with unfolded keys, as one node with its own backward."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, shape: Shape) -> Tensor:
        b, h, length = shape.sentences, shape.heads, shape.length
        pairs = [(q.flatten(0, 1), k.flatten(0, 1)) for q, k in long_heads(queries, keys, shape)]
        scores = queries.new_empty(b, h, length, len(shape.orders) * length)
        for g, (n, (q, k)) in enumerate(zip(shape.orders, pairs, strict=True)):
            product = torch.bmm(q, k.transpose(1, 2)).mul_(shape.scale(n)).view(b, h, length, length)
            mask = masks(shape)[1][..., g * length : (g + 1) * length]
            torch.add(product, mask, out=scores[..., g * length : (g + 1) * length])
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(weights, *(t for pair in pairs for t in pair))
        ctx.shape, ctx.shared = shape, keys.shape[2] == 1
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, *flat = ctx.saved_tensors
        shape: Shape = ctx.shape
        b, h, length, last = shape.sentences, shape.heads, shape.length, shape.orders[-1]
        g_scores = torch._softmax_backward_data(gradient, weights, -1, weights.dtype)
        g_q = gradient.new_empty(b, length, sum(shape.orders), h, shape.size)
        g_k = gradient.new_zeros(1 if ctx.shared else len(shape.orders), b, h, last - 1 + length, shape.size)
        for g, n in enumerate(shape.orders):
            q, k = flat[2 * g], flat[2 * g + 1]
            part = (g_scores[..., g * length : (g + 1) * length] * shape.scale(n)).flatten(0, 1)
            first = shape.first_tap(n)
            long_q = torch.bmm(part, k).view(b, h, length, n, -1)
            g_q[:, :, first : first + n] = long_q.permute(0, 2, 3, 1, 4)
            long_k = torch.bmm(part.transpose(1, 2), q).view(b, h, length, n, -1)
            for t in range(n):
                begin = last - n + t
                g_k[0 if ctx.shared else g][:, :, begin : begin + length] += long_k[..., t, :]
        return g_q, g_k[:, :, :, last - 1 :].permute(1, 3, 0, 2, 4), None


def with_node(node: Any) -> Way:
    """Weights by a node with its own backward, then the contexts."""

    def run(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
        return join(node.apply(queries, keys, shape) @ heads_first(values))

    return run


def all_slots_explicit(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """(2e) One product with the keys of all orders, softmax, one product with the values."""
    scores = (heads_first(queries) * shape.scale(1)) @ heads_first(keys).transpose(-1, -2)
    return attend(scores, values, shape)


def all_slots_fused(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """(2e) One fused call over the slots of all orders."""
    q, k, v = (heads_first(x) for x in (queries, keys, values))
    return join(F.scaled_dot_product_attention(q, k, v, attn_mask=~masks(shape)[0]))


def per_order_products(queries: Tensor, keys: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """A product for each order, concatenated scores."""
    q = heads_first(queries) * shape.scale(1)
    scores = [q @ k.transpose(-1, -2) for k in keys.permute(2, 0, 3, 1, 4).unbind(0)]
    return attend(torch.cat(scores, -1), values, shape)


QUERYK: dict[str, Way] = {
    "2a shifted products": shifted_products,
    "2a accumulated products": accumulated,
    "2a shifted, own backward": with_node(Stacked),
    "2a accumulated, own backward": with_node(Accumulated),
    "2b unfolded keys": unfolded,
    "2b unfolded, own backward": with_node(Unfolded),
    "2c merged by log-sum-exp": merged,
    "2d block embedding, fused": embedded,
}
CONVKV: dict[str, Way] = {
    "2e all slots, explicit": all_slots_explicit,
    "2e all slots, fused": all_slots_fused,
    "a product an order": per_order_products,
}
