"""The flash kernels of torch, by device: softmax(q kᵀ + bias) v and the log-sum-exp of its rows, and the backward.

    "cpu"    float64, float32, bfloat16, float16; no dropout
    "cuda"   memory-efficient attention: float32, bfloat16, float16 (CUTLASS)

Both take the output and the log-sum-exp in the backward as they are given, which is what `fused.py` needs. Whatever has no
line here has no fused attention.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

_aten = torch.ops.aten


class FlashKernel(Protocol):
    """q (B, H, Q, E), k and v (B, H, K, E). `causal`: query i sees slots 0 … i. `bias`: 0 or -inf, broadcastable to
    (B, H, Q, K)."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, E) and log-sum-exp (B, H, Q); of rows where all is hidden, any numbers."""

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsumexp: Tensor, *, causal: bool,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of q, k and v."""


class CPUKernel:
    """Flash attention on a CPU."""

    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `FlashKernel`."""
        o, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=1.0
        )
        return o, logsumexp

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsumexp: Tensor, *, causal: bool,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `FlashKernel`."""
        grad_q, grad_k, grad_v = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, o, logsumexp, 0.0, causal, attn_mask=bias, scale=1.0
        )
        return grad_q, grad_k, grad_v


KERNELS: dict[str, CPUKernel] = {"cpu": CPUKernel()}


def has_kernel(x: Tensor) -> bool:
    """Whether there is a kernel for the device and type of `x`."""
    return x.device.type in KERNELS
