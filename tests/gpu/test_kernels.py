"""Fused attention on a GPU: the kernel that was chosen, beside softmax(qkᵀ + bias)v in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from phraseloom.layers.attention.kernels import BlockKernel, CUDAEfficientKernel, choose_kernel
from tests.contracts.every_model import translation, update
from tests.gpu.test_models import GPU, same
from tests.training.test_compile import batch_of

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SIZES = [(40, 40, 16, 16), (1, 7, 64, 64), (300, 300, 64, 64), (33, 129, 32, 32), (129, 33, 24, 8)]


@pytest.fixture(autouse=True)
def fp32_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, bias: Tensor | None, causal: bool) -> list[Tensor]:
    q, k, v = (x.double().cpu().requires_grad_() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.double().cpu()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    o = scores.softmax(-1) @ v
    return [o.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(o, (q, k, v), grad.double().cpu())]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("sizes", "causal"), [(s, c) for s in SIZES for c in (False, True) if not c or s[0] == s[1]])
@pytest.mark.parametrize("kind", TOLERANCE)
def test_the_chosen_kernel_is_exact(
    kind: torch.dtype, sizes: tuple[int, int, int, int], causal: bool, masked: bool
) -> None:
    queries, keys, width, values = sizes
    generator = torch.Generator().manual_seed(3)
    shapes = [(queries, width), (keys, width), (keys, values), (queries, values)]
    q, k, v, grad = (torch.randn(2, 4, *s, generator=generator).to(GPU, kind) for s in shapes)
    q = q * width**-0.5
    bias = None
    if masked:
        bias = torch.zeros(2, 1, 1, keys, device=GPU, dtype=kind)
        bias[1, ..., keys // 2 + 1 :] = float("-inf")
    kernel = choose_kernel(q, dropout=False)
    assert isinstance(kernel, CUDAEfficientKernel)
    o, logsumexp = kernel.forward(q, k, v, causal=causal, bias=bias)
    grads = kernel.backward(grad, q, k, v, o.to(kind), logsumexp, causal=causal, bias=bias)
    expected = exact(q, k, v, grad, bias, causal)
    for found, wanted in zip((o, logsumexp, *grads), expected, strict=True):
        error = (found.double().cpu() - wanted).norm() / wanted.norm()
        assert error < TOLERANCE[kind]


def test_the_blocks_compute_what_no_kernel_takes() -> None:
    x = torch.randn(1, 1, 4, 4, device=GPU)
    assert isinstance(choose_kernel(x, dropout=True), BlockKernel)
    assert isinstance(choose_kernel(x.double(), dropout=False), BlockKernel)
    assert isinstance(choose_kernel(x.bfloat16(), dropout=False), BlockKernel)  # heads too narrow to load


@pytest.mark.parametrize("line", ["token", "queryk heterogeneous 1-2", "convkv interleaved 1-2-3"])
def test_fused_attention_of_a_model_has_the_gradient_of_float64(line: str) -> None:
    config = {"attention": {**dict.fromkeys(("encoder_self", "decoder_self", "cross"), line), "backend": "fused"}}
    batch = batch_of(5, 150, 140)
    expected = update(translation(**config), batch)
    found = update(translation(**config).float().to(GPU), batch.to(GPU))
    found = {name: value.double() for name, value in found.items()}
    scale = max(float(value.detach().norm()) for value in expected.values())
    same({n: v / scale for n, v in found.items()}, {n: v / scale for n, v in expected.items()}, 1e-5)
