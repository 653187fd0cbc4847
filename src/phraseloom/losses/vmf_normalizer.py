"""The normaliser of the von Mises-Fisher density, and its slope, a ratio of Bessel functions (P003).

    C_m(κ) = κ^v / ((2π)^{m/2} I_v(κ)),  v = m/2 - 1            d log C_m / dκ = -A_m(κ),  A_m = I_{v+1}(κ) / I_v(κ)

All terms are computed from s_v = I_{v+1}(κ) / (κ I_v(κ)) = A_m / κ, which is smooth at κ = 0:

    s_v = 1 / (2(v+1) + κ² s_{v+1})                             the recurrence of Bessel functions, stable downwards
    I_v / κ^v = (I_V / κ^V) / (s_v s_{v+1} … s_{V-1})

At a high order V ≥ 64 the uniform (Debye) expansion is exact to rounding (DLMF 10.41). With z = κ/V, t = 1/√(1+z²) and its
polynomials u_k,

    log(I_V / κ^V) = V (1/t - log(1 + 1/t) - log V) - ½ log(2πV) + ½ log t + log U,         U = Σ_k u_k(t) / V^k
    s_V = (t/(1+t) - t² W / (V U)) / V,                          W = Σ_k (½ u_k + t u_k') / V^k

Terms that diverge or cancel as κ → 0 or ∞ are removed by hand. Computed in float64, on the device of κ.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

Approximation = Literal["exact", "released", "bound"]
HIGH_ORDER, TERMS = 64, 8
SMALLEST_DIMENSION = 2

Polynomial = list[Fraction]


def _derivative(p: Polynomial) -> Polynomial:
    return [k * c for k, c in enumerate(p)][1:]


def _sum(p: Polynomial, q: Polynomial) -> Polynomial:
    size = max(len(p), len(q))
    return [
        a + b for a, b in zip(p + [Fraction(0)] * (size - len(p)), q + [Fraction(0)] * (size - len(q)), strict=True)
    ]


def _scaled(p: Polynomial, factor: Fraction, shift: int) -> Polynomial:
    """factor · t^shift · p(t)."""
    return [Fraction(0)] * shift + [factor * c for c in p]


@lru_cache(maxsize=1)
def _debye() -> tuple[Polynomial, ...]:
    """u_0 … u_TERMS: u_{k+1} = ½ t²(1-t²) u_k' + ⅛ ∫_0^t (1-5s²) u_k ds (DLMF 10.41.9)."""
    polynomials: list[Polynomial] = [[Fraction(1)]]
    while len(polynomials) <= TERMS:
        u = polynomials[-1]
        slope = _derivative(u)
        inner = _sum(u, _scaled(u, Fraction(-5), 2))
        integral = [Fraction(0)] + [c / (k + 1) for k, c in enumerate(inner)]
        slope_part = _sum(_scaled(slope, Fraction(1, 2), 2), _scaled(slope, Fraction(-1, 2), 4))
        polynomials.append(_sum(slope_part, [c / 8 for c in integral]))
    return tuple(polynomials)


@lru_cache(maxsize=64)
def _coefficients(order: float) -> tuple[list[float], list[float]]:
    """The polynomials U and W of t for one order V."""
    u_terms: Polynomial = []
    w_terms: Polynomial = []
    for k, u in enumerate(_debye()):
        scale = 1 / Fraction(order) ** k
        u_terms = _sum(u_terms, _scaled(u, scale, 0))
        w_terms = _sum(
            w_terms, _scaled(_sum(_scaled(u, Fraction(1, 2), 0), _scaled(_derivative(u), Fraction(1), 1)), scale, 0)
        )
    return [float(c) for c in u_terms], [float(c) for c in w_terms]


def _value(coefficients: list[float], t: Tensor) -> Tensor:
    """A polynomial by Horner's rule."""
    result = torch.full_like(t, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result.mul_(t).add_(c)
    return result


def _slope(coefficients: list[float]) -> list[float]:
    return [k * c for k, c in enumerate(coefficients)][1:] or [0.0]


def _orders(dimension: int) -> tuple[float, int]:
    """v, and how far above it the order of the expansion is."""
    v = dimension / 2 - 1
    return v, max(0, math.ceil(HIGH_ORDER - v))


def _exact(kappa: Tensor, dimension: int, *, slope: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """log C, A and dA/dκ (meaningless without `slope`), in float64."""
    kappa = kappa.double()
    v, up = _orders(dimension)
    order = v + up
    u, w = _coefficients(order)
    squared = kappa * kappa
    inverse_t = torch.sqrt(1 + squared / order**2)
    t = 1 / inverse_t
    value_u, value_w = _value(u, t), _value(w, t)
    s = (t / (1 + t) - t * t * value_w / (order * value_u)) / order
    slope_s = _slope_of_s(t, value_u, value_w, u, w, order) if slope else torch.zeros(())
    log_bessel = order * (inverse_t - torch.log1p(inverse_t) - math.log(order)) - 0.5 * math.log(2 * math.pi * order)
    log_bessel += 0.5 * t.log() + value_u.log()  # log(I_V / κ^V)
    for step in range(1, up + 1):
        above, slope_above = s, slope_s
        s = 1 / (2 * (order - step + 1) + squared * above)
        slope_s = -s * s * (above + squared * slope_above) if slope else slope_above
        log_bessel -= s.log()
    log_c = -0.5 * dimension * math.log(2 * math.pi) - log_bessel
    return log_c, kappa * s, s + 2 * squared * slope_s


def _slope_of_s(t: Tensor, value_u: Tensor, value_w: Tensor, u: list[float], w: list[float], order: float) -> Tensor:
    """ds_V / d(κ²), by dt/d(κ²) = -t³ / 2V²."""
    quotient = value_w / value_u
    quotient_slope = (_value(_slope(w), t) - quotient * _value(_slope(u), t)) / value_u
    slope_s = (1 / (1 + t)).square() - (2 * t * quotient + t * t * quotient_slope) / order
    return slope_s * t.pow(3) / (-2 * order**3)


class _BesselRatio(torch.autograd.Function):
    """The ratio, and its slope for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
        _, ratio, slope = _exact(kappa, dimension)
        return ratio.to(kappa.dtype), slope.to(kappa.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None


class _LogNormalizer(torch.autograd.Function):
    """The logarithm, and the ratio for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
        log_c, ratio, _ = _exact(kappa, dimension, slope=False)
        return log_c.to(kappa.dtype), ratio.to(kappa.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        kappa, ctx.dimension = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(kappa, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        kappa, ratio = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative
            ratio = bessel_ratio(kappa, ctx.dimension)
        return -gradients[0] * ratio, None


def bessel_ratio(kappa: Tensor, dimension: int) -> Tensor:
    """A_m(κ) in [0, 1), for κ ≥ 0 of any shape; once differentiable."""
    _check(dimension)
    result: Tensor = _BesselRatio.apply(kappa, dimension)[0]
    return result


def log_normalizer(kappa: Tensor, dimension: int, *, approximation: Approximation = "exact") -> Tensor:
    """log C_m(κ) for κ ≥ 0 of any shape and m = `dimension`; twice differentiable.

    exact     finite for κ in [0, 1e6]; relative errors of values and slopes below 1e-10 in float64 (m ≥ 16)
    released  -√((v+1)²+κ²) + (v-1) log(v-1 + √((v+1)²+κ²)), v = m/2-1, the code of paper 003: correct up to a constant
              (m = 300: -264.5 ± 1.1)
    bound     the released formula with v = m/2; its slope is an upper bound of A_m (m = 300: by less than 3e-4)
    """
    _check(dimension)
    if approximation == "exact":
        result: Tensor = _LogNormalizer.apply(kappa, dimension)[0]
        return result
    v = dimension / 2 - (1 if approximation == "released" else 0)
    root = torch.sqrt((v + 1) ** 2 + kappa.square())
    return (v - 1) * torch.log(v - 1 + root) - root


def _check(dimension: int) -> None:
    if dimension < SMALLEST_DIMENSION:
        raise ValueError(f"a von Mises-Fisher density needs at least {SMALLEST_DIMENSION} dimensions, not {dimension}")
