"""softmax(q kᵀ + bias) v without its matrix of scores in memory: the output, the log-sum-exp of each row, the gradients.

    P = e^{q kᵀ + bias - L}      dP = M ∘ (dO vᵀ)      dA = P ∘ (dP - rowsum(dO ∘ o))
    dq = dA k                    dk = dAᵀ q            dv = (M ∘ P)ᵀ dO

M is 1, or the mask of dropout. Every backward takes o and L as they are given, which need not be those of its own forward;
`fused.py` lives on that. Which kernel computes is decided by the device:

    CPU     torch's flash attention for CPUs. No dropout.
    CUDA    torch's memory-efficient attention, once it has given the right numbers on the device. No dropout, and heads
            whose width is a multiple of 8 (4 in float32).
    else    blocks of queries in plain torch: any device, dropout, values of any width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from phraseloom.layers.feedforward import keep_scale

_aten = torch.ops.aten
ROWS = 128  # queries of a block
ALIGNMENT = 16  # bytes that the CUDA kernel loads at once: heads of 8 numbers in bf16, 4 in fp32, or a multiple


class Dropout(NamedTuple):
    """The rate, and the seed of the draws: the backward draws the same mask again."""

    rate: float
    seed: int


class FlashKernel(Protocol):
    """q (B, H, Q, E), k (B, H, K, E), v (B, H, K, E). `causal`: query i sees slots 0 … i, K = Q. `bias`: 0 or -inf,
    broadcastable to (B, H, Q, K)."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, bias: Tensor | None, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, E) and log-sum-exp (B, H, Q); any numbers for rows that see nothing."""

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsumexp: Tensor, *, causal: bool,
        bias: Tensor | None, dropout: Dropout | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of q, k and v."""


class CPUFlashKernel:
    """Flash attention of torch for CPUs; values as wide as keys."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, bias: Tensor | None, dropout: Dropout | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `FlashKernel`."""
        v = widen(v, k.shape[-1])
        o, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=1.0
        )
        return o, logsumexp

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsumexp: Tensor, *, causal: bool,
        bias: Tensor | None, dropout: Dropout | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `FlashKernel`."""
        grad, v, o = (widen(x, k.shape[-1]) for x in (grad, v, o))
        grad_q, grad_k, grad_v = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, o, logsumexp, 0.0, causal, attn_mask=bias, scale=1.0
        )
        return grad_q, grad_k, grad_v


class CUDAEfficientKernel:
    """Memory-efficient attention of torch for CUDA (CUTLASS): float32, bfloat16, float16; values at most as wide as keys."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, bias: Tensor | None, dropout: Dropout | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `FlashKernel`."""
        queries, keys, values = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        o, logsumexp, *_ = _aten._efficient_attention_forward(
            queries, keys, values, _aligned(bias, q, k), None, None, None, None, 0.0, int(causal), True, scale=1.0
        )
        return o.transpose(1, 2), logsumexp[..., : q.shape[2]]

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsumexp: Tensor, *, causal: bool,
        bias: Tensor | None, dropout: Dropout | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `FlashKernel`."""
        grad, queries, keys, values, o = (x.transpose(1, 2).contiguous() for x in (grad, q, k, v, o))
        logsumexp = F.pad(logsumexp.float(), (0, -q.shape[2] % 32), value=float("inf"))
        unused = torch.zeros((), dtype=torch.int64, device=q.device)  # seed and offset of dropout
        grads = _aten._efficient_attention_backward(
            grad, queries, keys, values, _aligned(bias, q, k), o, None, None, q.shape[2], k.shape[2], logsumexp, 0.0,
            unused, unused, int(causal), False, scale=1.0,
        )  # fmt: skip
        grad_q, grad_k, grad_v = (x.transpose(1, 2) for x in grads[:3])
        return grad_q, grad_k, grad_v


class BlockKernel:
    """The same in plain torch: scores of `ROWS` queries at a time, computed again in the backward."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, bias: Tensor | None, dropout: Dropout | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `FlashKernel`."""
        exact = torch.promote_types(q.dtype, torch.float32)
        o = q.new_empty(*q.shape[:3], v.shape[-1], dtype=exact)
        logsumexp = q.new_empty(q.shape[:3], dtype=exact)
        for rows, slots, scores, mask in self._blocks(q, k, causal, bias, dropout, exact):
            highest = scores.amax(-1, keepdim=True)
            highest.masked_fill_(highest == float("-inf"), 0.0)
            weights = scores.sub_(highest).exp_()
            total = weights.sum(-1, keepdim=True)
            logsumexp[:, :, rows] = total.log().add_(highest)[..., 0]
            weights = weights if mask is None else weights.mul_(mask)
            # The largest weight of a row is 1, so that only rows that see nothing have a smaller sum.
            torch.div((weights.to(v.dtype) @ v[:, :, slots]), total.clamp_(min=1.0), out=o[:, :, rows])
        return o, logsumexp

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsumexp: Tensor, *, causal: bool,
        bias: Tensor | None, dropout: Dropout | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `FlashKernel`."""
        exact = torch.promote_types(q.dtype, torch.float32)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        inner = (grad * o).sum(-1, keepdim=True, dtype=exact)
        for rows, slots, scores, mask in self._blocks(q, k, causal, bias, dropout, exact):
            weights = scores.sub_(logsumexp[:, :, rows, None]).exp_()
            of_weights = (grad[:, :, rows] @ v[:, :, slots].transpose(-1, -2)).to(exact)
            of_weights = of_weights if mask is None else of_weights.mul_(mask)
            of_scores = of_weights.sub_(inner[:, :, rows]).mul_(weights).to(q.dtype)
            grad_q[:, :, rows] = of_scores @ k[:, :, slots]
            grad_k[:, :, slots] += of_scores.transpose(-1, -2) @ q[:, :, rows]
            weights = weights if mask is None else weights.mul_(mask)
            grad_v[:, :, slots] += weights.to(v.dtype).transpose(-1, -2) @ grad[:, :, rows]
        return grad_q, grad_k, grad_v

    def _blocks(
        self, q: Tensor, k: Tensor, causal: bool, bias: Tensor | None, dropout: Dropout | None, exact: torch.dtype
    ) -> Iterator[tuple[slice, slice, Tensor, Tensor | None]]:
        """Rows, the slots that they may see, their scores, and what dropout multiplies their weights with."""
        generator = None if dropout is None else torch.Generator(q.device).manual_seed(dropout.seed)
        keys, count = k.transpose(-1, -2), q.shape[2]
        for first in range(0, count, ROWS):
            last = min(first + ROWS, count)
            end = last if causal else k.shape[2]
            scores = (q[:, :, first:last] @ keys[..., :end]).to(exact)
            if bias is not None:
                scores += (bias[:, :, first:last] if bias.shape[2] > 1 else bias)[..., :end]
            if causal:
                future = torch.ones(last - first, last - first, dtype=torch.bool, device=q.device).triu_(1)
                scores[..., first:last].masked_fill_(future, float("-inf"))
            mask = None if dropout is None else keep_scale(scores, dropout.rate, generator)
            yield slice(first, last), slice(0, end), scores, mask


def choose_kernel(x: Tensor, *, dropout: bool) -> FlashKernel:
    """The kernel for tensors like `x`."""
    if not dropout and x.device.type == "cpu":
        return CPUFlashKernel()
    whole = x.shape[-1] * x.element_size() % ALIGNMENT == 0
    if not dropout and x.device.type == "cuda" and whole and _works_on_cuda(x.device, x.dtype):
        return CUDAEfficientKernel()
    return BlockKernel()


@cache
def _works_on_cuda(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the CUDA kernel runs with this type on this device, and is as near to float64 as the blocks are."""
    if not torch.cuda.is_available():
        return False
    try:
        return is_as_exact_as_blocks(CUDAEfficientKernel(), device, dtype)
    except (RuntimeError, NotImplementedError):  # the kernel does not take this type or device: the blocks do its work
        return False


def is_as_exact_as_blocks(kernel: FlashKernel, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a kernel's errors against float64 are at most three times those of the blocks in this type, or below 1e-5."""
    generator = torch.Generator().manual_seed(0)
    widths = (16, 16, 8, 8)  # values narrower than keys
    given = [torch.randn(2, 3, 40, width, generator=generator).to(device, dtype) for width in widths]
    bias = torch.zeros(2, 1, 1, 40, device=device, dtype=dtype)
    bias[1, ..., 30:] = float("-inf")

    def results(of: FlashKernel, kind: torch.dtype, causal: bool) -> list[Tensor]:
        q, k, v, grad = (x.to(kind) for x in given)
        o, logsumexp = of.forward(q, k, v, causal=causal, bias=bias.to(kind), dropout=None)
        inputs = (grad, q, k, v, o.to(kind), logsumexp)
        return [o, *of.backward(*inputs, causal=causal, bias=bias.to(kind), dropout=None)]

    for causal in (False, True):
        exact = results(BlockKernel(), torch.float64, causal)
        found, blocks = (results(of, dtype, causal) for of in (kernel, BlockKernel()))
        for own, other, right in zip(found, blocks, exact, strict=True):
            error, allowed = ((x.double() - right).norm() / right.norm() for x in (own, other))
            if not error <= max(3 * float(allowed), 1e-5):
                return False
    return True


def widen(x: Tensor, width: int) -> Tensor:
    """(…, E) → (…, width), with zeros behind."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _aligned(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """(B, H, Q, K), with rows whose beginning the kernel can load from."""
    if bias is None:
        return None
    length = bias.shape[-1]
    return F.pad(bias, (0, -length % 16))[..., :length].expand(*q.shape[:3], k.shape[2])
