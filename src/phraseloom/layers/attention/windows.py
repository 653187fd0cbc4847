"""Windows over projected tokens: how one matrix product becomes the queries, keys and values of every order.

A window of n taps over the tokens j-n+1 … j is a sum of n shifted projections, so that no window is ever laid out in
memory:

    y[j] = Σ_{k<n} x[j-n+1+k] W[k]  =  Σ_{k<n} (x W[k]) shifted by n-1-k      (tokens before the first are zero)

All taps of a block are rows of one packed matrix, and one product of the input with it gives all x W[k]. A `Layout`
says which columns of that product are summed into which output; `gather` makes the outputs, heads apart, in one pass
forward and one pass backward. Scales 1/√(n·E) of the scores are applied here, to the queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from phraseloom.layers.initialisation import Draw


@dataclass(frozen=True)
class Window:
    """One block of rows of an output, for heads `first` … `last`-1.

    `columns`: where each tap begins in the packed product, the tap of the oldest token first.
    """

    block: int
    first: int
    last: int
    columns: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class WindowOutput:
    """A tensor (B, heads, blocks · L, E): block by block, in each one row a token, summed as its windows say."""

    heads: int
    blocks: int
    windows: tuple[Window, ...]

    @property
    def taps(self) -> int:
        """The longest window."""
        return max(len(w.columns) for w in self.windows)


@dataclass
class Layout:
    """The rows of a packed matrix: `names` of its matrices, and what queries, keys and values are made of.

    Query rows come first, then those of the keys and values: `split` is the first row of the latter. `kernels`: the matrices
    whose last axis of taps counts outputs (a query that is a kernel over keys), not inputs.
    """

    width: int
    size: int
    names: dict[str, tuple[int, tuple[int, ...], int]] = field(default_factory=dict)
    kernels: set[str] = field(default_factory=set)
    rows: int = 0
    split: int = 0
    queries: tuple[WindowOutput, ...] = ()
    keys: tuple[WindowOutput, ...] = ()
    values: tuple[WindowOutput, ...] = ()

    def add(self, name: str, heads: int, *taps: int, kernel: bool = False) -> list[int]:
        """Reserve the rows of the matrix `name` with `taps` (…, D, heads·E); where each tap begins, the last axis
        fastest. `kernel`: see `kernels`."""
        if kernel:
            self.kernels.add(name)
        count, wide, start = 1, heads * self.size, self.rows
        for n in taps:
            count *= n
        self.names[name] = (start, taps, wide)
        self.rows += count * wide
        return [start + k * wide for k in range(count)]

    def matrices(self, packed: Tensor) -> dict[str, Tensor]:
        """Each matrix by name as a view (…taps, D, heads·E) of the packed weight (rows, D), to be used as x @ W."""
        found = {}
        for name, (start, taps, wide) in self.names.items():
            count = 1
            for n in taps:
                count *= n
            found[name] = packed[start : start + count * wide].unflatten(0, (*taps, wide)).transpose(-1, -2)
        return found

    def initialise(self, weight: Tensor, draw: Draw) -> None:
        """Draw every matrix with fans in which windows count as inputs, the taps of a query kernel as outputs.

        The heads of an order are drawn as a part of the whole D × D matrix.
        """
        for name, matrix in self.matrices(weight.detach()).items():
            taps = self.names[name][1]
            inputs, outputs = (taps[:-1], taps[-1:]) if name in self.kernels else (taps, ())
            draw(matrix, fan_in=math.prod(inputs) * self.width, fan_out=math.prod(outputs) * self.width)


def gather(projected_BLC: Tensor, outputs: tuple[WindowOutput, ...], size: int, start: int = 0) -> list[Tensor]:
    """The outputs, each (B, heads, blocks·L, E), from a packed product whose first column is that of row `start`.

    Every column of the product belongs to exactly one tap of one output.
    """
    return list(_Gather.apply(projected_BLC, outputs, size, start))


class _Gather(torch.autograd.Function):
    """All windows in one pass; the gradient of the product is written once."""

    generate_vmap_rule = True

    @staticmethod
    def forward(projected: Tensor, outputs: tuple[WindowOutput, ...], size: int, start: int) -> tuple[Tensor, ...]:
        batch, length, _ = projected.shape
        made = []
        for output in outputs:
            y = projected.new_empty(batch, output.heads, output.blocks * length, size)
            for window in output.windows:
                rows = y[:, window.first : window.last, window.block * length : (window.block + 1) * length]
                *before, last = _taps(projected, window, size, start)
                _write(rows, last, window.scale)
                for shift, tap in zip(range(len(before), 0, -1), before, strict=True):
                    rows[:, :, shift:].add_(tap[:, :, : max(0, length - shift)], alpha=window.scale)
            made.append(y)
        return tuple(made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        projected, *ctx.windows = inputs
        ctx.shape = projected.shape
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(g is None for g in grads):
            return None, None, None, None
        spread = _Spread.apply if torch.is_grad_enabled() and not torch.compiler.is_compiling() else _Spread.forward
        return spread(*ctx.windows, ctx.shape, *grads), None, None, None


class _Spread(torch.autograd.Function):
    """The gradient of `_Gather`, which is linear, so that it has a gradient too: `_Gather` of it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        outputs: tuple[WindowOutput, ...], size: int, start: int, shape: torch.Size, *grads: Tensor | None
    ) -> Tensor:
        gradient, length = next(g for g in grads if g is not None).new_empty(shape), shape[1]
        for output, grad in zip(outputs, grads, strict=True):
            for window in output.windows:
                taps = _taps(gradient, window, size, start)
                if grad is None:
                    for tap in taps:
                        tap.zero_()
                    continue
                rows = grad[:, window.first : window.last, window.block * length : (window.block + 1) * length]
                for k, tap in enumerate(taps):
                    shift = len(taps) - 1 - k
                    kept = max(0, length - shift)
                    _write(tap[:, :, :kept], rows[:, :, shift:], window.scale)
                    tap[:, :, kept:].zero_()
        return gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.windows, ctx.given = inputs[:3], [g is not None for g in inputs[4:]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_outputs = _Gather.apply(grads[0], *ctx.windows)
        return None, None, None, None, *(g if given else None for g, given in zip(of_outputs, ctx.given, strict=True))


def _write(target: Tensor, x: Tensor, scale: float) -> None:
    """target = x · scale, in one pass; the compiler takes no `out` with gaps, and needs none, and `vmap` takes no `out`."""
    if scale == 1.0:
        target.copy_(x)
    elif torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        target.copy_(x * scale)
    else:
        torch.mul(x, scale, out=target)


def _taps(projected: Tensor, window: Window, size: int, start: int) -> list[Tensor]:
    """The columns of each tap as (B, heads, L, E), views."""
    batch, length, _ = projected.shape
    heads = window.last - window.first
    return [
        projected[:, :, c - start : c - start + heads * size].view(batch, length, heads, size).transpose(1, 2)
        for c in window.columns
    ]


class Pending:
    """The windows that have begun and not ended, step by step: what `gather` needs of the tokens before.

    For each window of n taps, n-1 partial sums (R, n-1, heads·E); number s lacks s+1 more tokens.
    """

    def __init__(self, outputs: tuple[WindowOutput, ...], size: int, start: int, rows: int, like: Tensor) -> None:
        self.outputs, self.size, self.start = outputs, size, start
        self.sums: list[list[Tensor | None]] = [
            [
                like.new_zeros(rows, len(w.columns) - 1, (w.last - w.first) * size) if len(w.columns) > 1 else None
                for w in output.windows
            ]
            for output in outputs
        ]

    def empty(self, output: WindowOutput, rows: int, like: Tensor) -> Tensor:
        """An uninitialised buffer for the result of one step: (R, heads, blocks, E)."""
        return like.new_empty(rows, output.heads, output.blocks, self.size)

    def step(self, projected_RC: Tensor, targets: list[Tensor]) -> None:
        """Write the outputs that end at the new token into `targets`, each (R, heads, blocks, E), from its product."""
        for output, sums, y in zip(self.outputs, self.sums, targets, strict=True):
            for window, pending in zip(output.windows, sums, strict=True):
                wide = (window.last - window.first) * self.size
                taps = [projected_RC[:, c - self.start : c - self.start + wide] for c in window.columns]
                done = taps[-1]
                if pending is not None:
                    done = pending[:, 0] + done
                    for s in range(len(taps) - 2):
                        pending[:, s] = pending[:, s + 1] + taps[-2 - s]
                    pending[:, -1] = taps[0]
                rows = y[:, window.first : window.last, window.block]
                rows.copy_((done if window.scale == 1.0 else done * window.scale).unflatten(1, (-1, self.size)))

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        self.sums = [[s if s is None else s.index_select(0, rows_R) for s in sums] for sums in self.sums]
