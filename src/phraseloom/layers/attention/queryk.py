"""QueryK scores: the query is a kernel of n taps that slides over token keys (P000 eqs. 5, 9; P002 eq. 6).

    q_i^(k) = x_q[i] Wq[k]      key_p = x_k[p] Wk
    A[i,j] = Σ_{k<n} q_i^(k) · key_{s+k} / √(n·E)      (s: first token of slot j)

Values are convolutions as in ConvKV. Each tap is one row of queries: a single product with the keys of the tokens gives
the scores S_k of every tap, and those of a slot are a sum along a diagonal,

    A[i,j] = Σ_k S_k[i, j-n+1+k]        (slot j ends at token j)

so that the only n-fold tensors are scores, and step-by-step decoding remembers one key a token whatever the orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phraseloom.layers.attention.convkv import windows
from phraseloom.layers.attention.fused import SlotProduct
from phraseloom.layers.attention.masks import SlotMasks
from phraseloom.layers.attention.score import AttentionScore
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.layers.attention.windows import Layout, Window, WindowOutput


class QueryKScore(AttentionScore):
    """Queries as kernels over token keys.

    `share_keys`: one key matrix for all orders (P000), or one an order (P002). In a homogeneous structure each order
    has heads, and thus keys, of its own. Parameter rows: Wq of every order, Wk, Wv of every order.

    Matrices: Wq_n{n} (n, D, width) or Wq_q{m}_n{n} (m, n, D, D); Wk (D, D) or Wk_n{n} (D, width); Wv_n{n} (n, D, width).
    """

    def __init__(self, *, width: int, structure: Structure, share_keys: bool = True) -> None:
        shared = share_keys and not structure.zero_extended
        layout, products = _layout(width, width // structure.heads, structure, shared)
        super().__init__(structure=structure, layout=layout)
        self._products = products

    @property
    def products(self) -> tuple[SlotProduct, ...]:
        """Each order: queries of n taps, side by side, times windows of n token keys."""
        return tuple(
            SlotProduct(slots.block, slots.part, source=source, row=slots.row, taps=slots.part.order)
            for source, group in enumerate(self._products)
            for slots in group
        )

    def scores(self, queries: list[Tensor], keys: list[Tensor], masks: SlotMasks, *, by_time: bool = False) -> Tensor:
        """Scores (B, H, J·Q, G·K) before masking; with `by_time` the columns are K·G, slots of a token side by side."""
        products = [self.compare(q, k, masks) for q, k in zip(queries, keys, strict=True)]
        scores: Tensor = _SlotScores.apply(self.structure, self._products, by_time, *products)
        return scores


@dataclass(frozen=True)
class _Slots:
    """Rows of one product: beginning at block of rows `row`, for each query order as many blocks as `part` has taps."""

    row: int
    block: int
    part: HeadGroup


def _layout(width: int, size: int, structure: Structure, shared: bool) -> tuple[Layout, tuple[tuple[_Slots, ...], ...]]:
    """The packed rows, and which blocks of the product with each key tensor make which slots."""
    layout, orders = Layout(width, size), structure.query_orders
    parts = [(g, p) for g, block in enumerate(structure.blocks) for p in block]
    groups = [parts] if shared else [[part] for part in parts]
    queries, products = [], []
    for group in groups:
        first_head, heads = group[0][1].first, group[0][1].last - group[0][1].first
        made: list[Window] = []
        slots = []
        for g, part in group:
            n, scale = part.order, (part.order * size) ** -0.5
            slots.append(_Slots(len(made), g, part))
            for order in orders:
                name = f"Wq_q{order}_n{n}" if structure.interleaved else f"Wq_n{n}"
                taps = (order, n) if structure.interleaved else (n,)
                columns = layout.add(name, heads, *taps, kernel=True)
                made += [Window(len(made) + k, 0, heads, tuple(columns[k::n]), scale) for k in range(n)]
        queries.append(WindowOutput(heads, len(made), tuple(made)))
        products.append(tuple(slots))
        assert all(part.first == first_head for _, part in group)
    layout.queries, layout.split = tuple(queries), layout.rows
    keys = []
    for group in groups:
        part = group[0][1]
        heads = part.last - part.first
        of_tokens = tuple(layout.add("Wk" if shared else f"Wk_n{part.order}", heads))
        keys.append(WindowOutput(heads, 1, (Window(0, 0, heads, of_tokens),)))
    layout.keys = tuple(keys)
    layout.values = (windows(layout, "Wv", structure),)
    return layout, tuple(products)


class _SlotScores(torch.autograd.Function):
    """Scores of slots as diagonal sums of the scores of taps: one pass forward, one pass backward, nothing kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(structure: Structure, plan: tuple[tuple[_Slots, ...], ...], by_time: bool, *products: Tensor) -> Tensor:
        rows, length = products[0].shape[-2:]
        orders, blocks = len(structure.query_orders), len(structure.blocks)
        bottom = plan[0][-1]
        queries = rows // (bottom.row + orders * bottom.part.order)
        size = (products[0].shape[0], structure.heads, orders, queries)
        scores = (
            products[0].new_empty(*size, length, blocks) if by_time else products[0].new_empty(*size, blocks, length)
        )
        slots = scores.transpose(-1, -2) if by_time else scores
        for target, taps in _diagonals(slots, products, structure, plan):
            *before, last = taps
            target.copy_(last)
            for shift, tap in zip(range(len(before), 0, -1), before, strict=True):
                target[..., shift:].add_(tap[..., : max(0, length - shift)])
        return scores.view(size[0], size[1], orders * queries, blocks * length)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.options, ctx.shapes = inputs[:3], [p.shape for p in inputs[3:]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        spread: Any = (
            _TapScores.apply if torch.is_grad_enabled() and not torch.compiler.is_compiling() else _TapScores.forward
        )
        return None, None, None, *spread(*ctx.options, ctx.shapes, grads[0])


class _TapScores(torch.autograd.Function):
    """The gradient of `_SlotScores`, which is linear, so that it has a gradient too: `_SlotScores` of it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        structure: Structure,
        plan: tuple[tuple[_Slots, ...], ...],
        by_time: bool,
        shapes: list[torch.Size],
        grad: Tensor,
    ) -> tuple[Tensor, ...]:
        products = [grad.new_empty(shape) for shape in shapes]
        length = products[0].shape[-1]
        for slots, taps in _diagonals(structure.split(grad), products, structure, plan):
            for k, tap in enumerate(taps):
                shift = len(taps) - 1 - k
                kept = max(0, length - shift)
                tap[..., :kept].copy_(slots[..., shift:])
                tap[..., kept:].zero_()
        return tuple(products)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.options = inputs[:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, _SlotScores.apply(*ctx.options, *grads)


def _diagonals(slots: Tensor, products: Any, structure: Structure, plan: tuple[tuple[_Slots, ...], ...]) -> Any:
    """Pairs of the scores (B, heads, Q, K) of the slots of one order and query order, and those of their taps;
    views."""
    for product, parts in zip(products, plan, strict=True):
        bottom = parts[-1]
        rows = bottom.row + len(structure.query_orders) * bottom.part.order
        taps = product.unflatten(-2, (rows, slots.shape[3]))  # not -1: there may be no queries
        for slot in parts:
            part, n = slot.part, slot.part.order
            for m in range(len(structure.query_orders)):
                row = slot.row + m * n
                target = slots[:, part.first : part.last, m, :, slot.block]
                yield target, [taps[:, :, row + k] for k in range(n)]
