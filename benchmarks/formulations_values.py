"""Ways to convolve values (and the keys of ConvKV) for all orders at once; see formulations.py.

x (B, K, D) and one weight (T, D, D) of all taps (in, out) → (B, H, N·K, E), as the contexts need it; windows end at j, zeros
before the sentence. The weight lies in memory as each way likes it best (`LAYOUTS`: the order of its axes), as a model could
keep it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from formulations_scores import Shape, Way, heads_first


def value_inputs(shape: Shape) -> list[Tensor]:
    width = shape.heads * shape.size
    x = torch.randn(shape.sentences, shape.length, width, device=shape.device)
    weight = torch.randn(sum(shape.orders), width, width, device=shape.device) * width**-0.5
    return [x.requires_grad_(), weight.requires_grad_()]


def joined(parts: list[Tensor], shape: Shape) -> Tensor:
    """N × (B, K, D) → (B, H, N·K, E)."""
    return heads_first(torch.stack(parts, 2).unflatten(3, (shape.heads, shape.size)))


def projected(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """One product with all taps, then shifted sums."""
    products = F.linear(x, weight.transpose(1, 2).flatten(0, 1)).unflatten(2, (len(weight), -1))
    length, results = x.shape[1], []
    for n in shape.orders:
        last = shape.first_tap(n) + n - 1
        total = products[:, :, last]
        for back in range(1, n):
            total = total + F.pad(products[:, : length - back, last - back], (0, 0, back, 0))
        results.append(total)
    return joined(results, shape)


class ProjectedFunction(torch.autograd.Function):
    """One product with all taps, shifted sums straight into the result; backward: shifted copies, two products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
        rows = weight.transpose(1, 2).reshape(-1, x.shape[2])
        products = F.linear(x, rows).view(*x.shape[:2], len(weight), shape.heads, shape.size).permute(0, 3, 2, 1, 4)
        length = shape.length
        result = x.new_empty(shape.sentences, shape.heads, len(shape.orders), length, shape.size)
        for g, n in enumerate(shape.orders):
            last = shape.first_tap(n) + n - 1
            part = result[:, :, g]
            if n == 1:
                part.copy_(products[:, :, last])
                continue
            part[:, :, 0] = products[:, :, last, 0]
            torch.add(products[:, :, last, 1:], products[:, :, last - 1, :-1], out=part[:, :, 1:])
            for back in range(2, n):
                part[:, :, back:] += products[:, :, last - back, : length - back]
        ctx.save_for_backward(x, rows)
        ctx.shape = shape
        return result.flatten(2, 3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, rows = ctx.saved_tensors
        shape: Shape = ctx.shape
        batch, length, width = x.shape
        spread = gradient.new_empty(batch, length, sum(shape.orders), shape.heads, shape.size)
        given = gradient.view(batch, shape.heads, -1, length, shape.size).permute(2, 0, 3, 1, 4)
        for g, n in enumerate(shape.orders):
            for back in range(n):
                tap = spread[:, :, shape.first_tap(n) + n - 1 - back]
                tap[:, : length - back] = given[g][:, back:]
                tap[:, length - back :] = 0
        flat = spread.view(batch * length, -1)
        g_x = (flat @ rows).view(x.shape)
        g_rows = flat.t() @ x.reshape(batch * length, width)
        return g_x, g_rows.view(-1, width, width).transpose(1, 2), None


def projected_own(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """The same with a backward of our own."""
    output: Tensor = ProjectedFunction.apply(x, weight, shape)
    return output


def unfolded_values(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """Windows unfolded once for the largest order, one product an order."""
    width, last = x.shape[2], shape.orders[-1]
    before = F.pad(x, (0, 0, last - 1, 0))
    wide = torch.cat([before[:, t : t + x.shape[1]] for t in range(last)], -1)
    weights = zip(shape.orders, weight.split(shape.orders), strict=True)
    return joined([wide[..., (last - n) * width :] @ w.flatten(0, 1) for n, w in weights], shape)


def convolved(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """torch's conv1d."""
    channels = x.transpose(1, 2)
    weights = zip(shape.orders, weight.split(shape.orders), strict=True)
    parts = [F.conv1d(F.pad(channels, (n - 1, 0)), w.permute(2, 1, 0)).transpose(1, 2) for n, w in weights]
    return joined(parts, shape)


class ShiftedFunction(torch.autograd.Function):
    """One product a tap over shifted rows of the padded batch, added up inside the product; no copies of windows.

    The batch stands in one matrix with max(n)-1 zero rows before each sentence; a shift is a shift of the rows. The rows
    of the results that belong to those zeros are computed and thrown away.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
        before, width = shape.orders[-1] - 1, x.shape[2]
        flat = F.pad(x, (0, 0, before, 0)).view(-1, width)
        rows = len(flat) - before
        result = x.new_empty(len(shape.orders), len(flat), width)
        for g, n in enumerate(shape.orders):
            part = result[g, before:]
            for t in range(n):
                begin = before - n + 1 + t
                tap = weight[shape.first_tap(n) + t]
                torch.addmm(part, flat[begin : begin + rows], tap, beta=int(t > 0), out=part)
        ctx.save_for_backward(flat, weight)
        ctx.shape = shape
        return result.view(len(shape.orders), shape.sentences, -1, width)[:, :, before:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        flat, weight = ctx.saved_tensors
        shape: Shape = ctx.shape
        before, width = shape.orders[-1] - 1, flat.shape[1]
        rows = len(flat) - before
        g_flat, g_weight = torch.zeros_like(flat), torch.empty_like(weight)
        whole = F.pad(gradient, (0, 0, before, 0))
        for g, n in enumerate(shape.orders):
            part = whole[g].view(-1, width)[before:]
            for t in range(n):
                begin, tap = before - n + 1 + t, shape.first_tap(n) + t
                g_rows = g_flat[begin : begin + rows]
                torch.addmm(g_rows, part, weight[tap].t(), out=g_rows)
                torch.mm(flat[begin : begin + rows].t(), part, out=g_weight[tap])
        return g_flat.view(shape.sentences, -1, width)[:, before:], g_weight, None


def shifted_rows(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """A product a tap over shifted rows, with a backward of our own."""
    return joined(list(ShiftedFunction.apply(x, weight, shape).unbind(0)), shape)


VALUES: dict[str, Way] = {
    "2f project, shift, add": projected,
    "2f project, shift, add; own backward": projected_own,
    "2f unfold, product": unfolded_values,
    "2f conv1d": convolved,
    "2f product a tap, shifted rows; own backward": shifted_rows,
}
LAYOUTS = {name: (0, 2, 1) if "project" in name else (0, 1, 2) for name in VALUES}


def stored(name: str, inputs: list[Tensor]) -> list[Tensor]:
    """The inputs with the weight in the memory layout of a way."""
    x, weight = inputs
    axes = LAYOUTS[name]
    return [x, weight.detach().permute(axes).contiguous().permute(axes).requires_grad_()]
