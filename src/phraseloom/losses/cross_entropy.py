"""Label-smoothed cross-entropy over a large vocabulary, in chunks, with its gradient computed in the forward pass.

    loss = - Σ_v q_v log p_v,  p = softmax(h Wᵀ + b)        q = a on the gold class, s on the other allowed classes

Three ways to smooth, ε the smoothing, V classes, F forbidden ones:
    uniform  a = 1-ε+ε/V, s = ε/V                 over all classes (PyTorch)
    t2t      a = 1-ε,     s = ε/(V-1)             (tensor2tensor; P000, P002)
    kl       a = 1-ε,     s = ε/(V-1-F), 0 on forbidden ids, plus the constant Σ q log q (Neutron; P001)

The logits of a chunk (256 rows by default) stay in the CPU cache: one product writes them, one softmax pass reads them, two
products use them, and no tensor of tokens × V exists. Constant parts of q are products of rank one outside the chunks.
Gradients: dh = Z(p - q) W, dW = Z(p - q)ᵀ h with Z = Σ q.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Smoothing = Literal["uniform", "t2t", "kl"]
CHUNK_ROWS = 256
DEVICE_CHUNK_ROWS = 2048  # a GPU needs products of this size to be busy; p of 32,000 classes then takes 256 MiB


class Target(NamedTuple):
    """The target distribution: `gold` on the gold class, `other` on each other allowed class; each row adds `constant`."""

    gold: float
    other: float
    constant: float


def target_distribution(smoothing: Smoothing, epsilon: float, classes: int, forbidden: int = 0) -> Target:
    """The numbers of the three variants; see the module docstring."""
    if smoothing == "uniform":
        return Target(1 - epsilon + epsilon / classes, epsilon / classes, 0.0)
    if smoothing == "t2t":
        return Target(1 - epsilon, epsilon / (classes - 1), 0.0)
    others = classes - 1 - forbidden
    other = epsilon / others
    entropy = (1 - epsilon) * math.log(1 - epsilon) if epsilon < 1 else 0.0
    return Target(1 - epsilon, other, entropy + (epsilon * math.log(other) if epsilon > 0 else 0.0))


class _Sums(NamedTuple):
    """Sums over rows, and the gradients of h, W and b of the objective; None where none is needed."""

    objective: Tensor
    nll: Tensor
    grad_h: Tensor | None
    grad_w: Tensor | None
    grad_b: Tensor | None


def _sums(
    h_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, gold_N: Tensor, target: Target, forbidden: Tensor | None,
    rows: int, needs: tuple[bool, bool, bool],
) -> _Sums:  # fmt: skip
    needs_h, needs_w, needs_b = needs
    classes = weight_VD.shape[0]
    column_sum_D = weight_VD.sum(0) if forbidden is None else weight_VD.sum(0) - weight_VD[forbidden].sum(0)
    bias_sum = 0.0 if bias_V is None else (bias_V if forbidden is None else bias_V.index_fill(0, forbidden, 0.0)).sum()
    allowed = classes - (0 if forbidden is None else len(forbidden))
    extra, mass = target.gold - target.other, target.gold + target.other * (allowed - 1)
    grad_h = torch.empty_like(h_ND) if needs_h else None
    grad_w = torch.zeros_like(weight_VD) if needs_w else None
    grad_b = torch.zeros_like(bias_V) if needs_b and bias_V is not None else None
    exact = torch.promote_types(h_ND.dtype, torch.float32)
    objective, nll = h_ND.new_zeros((), dtype=exact), h_ND.new_zeros((), dtype=exact)
    for start in range(0, len(h_ND), rows):
        h, gold = h_ND[start : start + rows], gold_N[start : start + rows, None]
        logits = h @ weight_VD.t() if bias_V is None else torch.addmm(bias_V, h, weight_VD.t())
        p = logits.softmax(1, dtype=exact)
        normalizer = logits.amax(1, keepdim=True).to(exact) - p.amax(1, keepdim=True).to(exact).log()  # log Σ exp
        gold_logp = logits.gather(1, gold).to(exact) - normalizer
        all_logp = (h @ column_sum_D).to(exact)[:, None] + bias_sum - allowed * normalizer
        nll -= gold_logp.sum()
        objective -= extra * gold_logp.sum() + target.other * all_logp.sum() - target.constant * len(h)
        if mass != 1.0 and any(needs):
            p.mul_(mass)
        if grad_h is not None:
            grad_h[start : start + rows] = torch.mm(p, weight_VD).sub_(weight_VD[gold[:, 0]], alpha=extra)
            grad_h[start : start + rows] -= target.other * column_sum_D
        if grad_w is not None:
            _add_product_(grad_w, p.t(), h)
            grad_w.index_add_(0, gold[:, 0], h, alpha=-extra)
        if grad_b is not None:
            grad_b += p.sum(0)
            grad_b.index_add_(0, gold[:, 0], torch.full_like(gold[:, 0], -extra, dtype=grad_b.dtype))
    if target.other and (needs_w or needs_b):
        allowed_rows = torch.ones(classes, dtype=h_ND.dtype, device=h_ND.device)
        if forbidden is not None:
            allowed_rows[forbidden] = 0
        if grad_w is not None:
            grad_w.addr_(allowed_rows, h_ND.sum(0), alpha=-target.other)
        if grad_b is not None:
            grad_b -= target.other * len(h_ND) * allowed_rows
    return _Sums(objective, nll, grad_h, grad_w, grad_b)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Sums (objective, negative log-likelihood of the gold class) over rows, with gradients of h, W and b as needed: a fixed
    matrix costs no product."""

    @staticmethod
    def forward(
        ctx: Any, h_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, gold_N: Tensor,
        target: Target, forbidden: Tensor | None, rows: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        sums = _sums(h_ND, weight_VD, bias_V, gold_N, target, forbidden, rows, ctx.needs_input_grad[:3])
        ctx.save_for_backward(sums.grad_h, sums.grad_w, sums.grad_b)
        ctx.mark_non_differentiable(sums.nll)
        return sums.objective, sums.nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("cross_entropy has no second derivatives: leave create_graph out")
        if hasattr(ctx, "scaled"):
            raise RuntimeError("cross_entropy keeps its gradients for one backward pass: call it again for another")
        ctx.scaled = True  # in place, because a gradient of all classes is large
        scaled = [None if g is None else g.mul_(grads[0].to(g.dtype)) for g in ctx.saved_tensors]
        return (*scaled, None, None, None, None)


# The same as one operation for the compiler, which would unroll the chunks and so compile every number of rows anew. A graph
# runs without autocast: `products` is the type of the products of autocast. Gradients that are not needed are empty.
@torch.library.custom_op(
    "phraseloom::cross_entropy",
    mutates_args=(),
    schema="(Tensor h, Tensor weight, Tensor? bias, Tensor gold, float[] target, Tensor? forbidden, int rows, bool[] needs,"
    " ScalarType? products) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _operation(
    h: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, target: list[float], forbidden: Tensor | None, rows: int,
    needs: list[bool], products: torch.dtype | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    with torch.autocast(h.device.type, dtype=products, enabled=products is not None):
        sums = _sums(h, weight, bias, gold, Target(*target), forbidden, rows, (needs[0], needs[1], needs[2]))
    return tuple(h.new_empty(0) if x is None else x for x in sums)


@_operation.register_fake
def _(
    h: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, target: list[float], forbidden: Tensor | None, rows: int,
    needs: list[bool], products: torch.dtype | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    exact = torch.promote_types(h.dtype, torch.float32)
    grads = (
        torch.empty_like(x) if need and x is not None else h.new_empty(0)
        for x, need in zip((h, weight, bias), needs, strict=True)
    )
    return h.new_empty((), dtype=exact), h.new_empty((), dtype=exact), *grads


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.needs = inputs[7]
    ctx.save_for_backward(*output[2:])


def _scale_gradients(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    scaled = [g * scale.to(g.dtype) if need else None for g, need in zip(ctx.saved_tensors, ctx.needs, strict=True)]
    return (*scaled, None, None, None, None, None, None)


_operation.register_autograd(_scale_gradients, setup_context=_save_gradients)


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, the product in the arithmetic of autocast, of which torch's in-place product takes no notice."""
    if total.device.type != "meta" and torch.is_autocast_enabled(total.device.type):
        total.add_(torch.mm(a, b))
    else:
        total.addmm_(a, b)


def cross_entropy(
    h_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    gold_N: Tensor,
    *,
    epsilon: float = 0.0,
    smoothing: Smoothing = "uniform",
    forbidden: Tensor | None = None,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of the smoothed loss, and sum of the plain negative log-likelihood (nats), over N tokens.

    `forbidden`: ids that are never gold (`kl` only). The objective is differentiable once; the second value is for reports.
    Source: Szegedy et al. 2016, §7.
    """
    if smoothing != "kl":
        forbidden = None
    rows = chunk_rows or (CHUNK_ROWS if h_ND.device.type == "cpu" else DEVICE_CHUNK_ROWS)
    target = target_distribution(smoothing, epsilon, weight_VD.shape[0], 0 if forbidden is None else len(forbidden))
    if torch.compiler.is_compiling():
        needs = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (h_ND, weight_VD, bias_V)]
        kind = h_ND.device.type
        products = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        objective, nll, *_ = _operation(h_ND, weight_VD, bias_V, gold_N, list(target), forbidden, rows, needs, products)
        return objective, nll.detach()
    objective, nll = _ChunkedCrossEntropy.apply(h_ND, weight_VD, bias_V, gold_N, target, forbidden, rows)
    return objective, nll
