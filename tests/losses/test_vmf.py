"""The von Mises-Fisher normaliser and the losses of continuous output, against closed forms and slow references."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phraseloom.losses.vmf import Rival, concentration, cosine, max_margin_loss, vmf_loss
from phraseloom.losses.vmf_normalizer import bessel_ratio, log_normalizer

KAPPAS = torch.tensor([0.0, 1e-9, 1e-4, 0.1, 1.0, 5.0, 20.0, 64.0, 150.0, 739.0, 1e4, 1e6], dtype=torch.float64)


def sphere(kappa: Tensor) -> Tensor:
    """log C_3 = log κ - log(4π sinh κ), in a form that neither overflows nor divides by zero."""
    small = -math.log(4 * math.pi) - kappa.square() / 6
    large = kappa.log() - kappa - torch.log(2 * math.pi * -torch.expm1(-2 * kappa))
    return torch.where(kappa < 1e-3, small, large)


def test_three_dimensions_have_a_closed_form() -> None:
    kappa = KAPPAS
    assert torch.allclose(log_normalizer(kappa, 3), sphere(kappa), rtol=1e-13, atol=1e-13)
    langevin = torch.where(kappa < 1e-3, kappa / 3, 1 / torch.tanh(kappa) - 1 / kappa)
    assert torch.allclose(bessel_ratio(kappa, 3), langevin, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dimension", [16, 17, 64, 300, 512, 1024])
def test_orders_are_tied_by_the_recurrence(dimension: int) -> None:
    """I_{v-1} - I_{v+1} = (2v/κ) I_v, as ratios: 1/A_{m-2} = A_m + (m-2)/κ."""
    kappa = KAPPAS[1:]
    assert torch.allclose(
        1 / bessel_ratio(kappa, dimension - 2), bessel_ratio(kappa, dimension) + (dimension - 2) / kappa, rtol=1e-12
    )


@pytest.mark.parametrize("dimension", [16, 300, 513])
def test_value_at_zero(dimension: int) -> None:
    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = log_normalizer(zero, dimension)
    expected = math.lgamma(dimension / 2) - math.log(2) - dimension / 2 * math.log(math.pi)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    (slope,) = torch.autograd.grad(value, zero, create_graph=True)
    assert slope.item() == 0.0
    (curvature,) = torch.autograd.grad(slope, zero)
    assert curvature.item() == pytest.approx(-1 / dimension, rel=1e-12)


def test_functional_transforms() -> None:
    kappa = torch.tensor([0.3, 2.0, 17.0, 120.0, 900.0], dtype=torch.float64)
    slopes = torch.func.vmap(torch.func.grad(lambda k: log_normalizer(k, 300)))(kappa)
    assert torch.allclose(slopes, -bessel_ratio(kappa, 300), rtol=1e-12)


@pytest.mark.parametrize("dimension", [16, 300])
def test_slopes_are_those_of_the_value(dimension: int) -> None:
    kappa = torch.tensor([0.3, 2.0, 17.0, 120.0, 900.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k: log_normalizer(k, dimension), [kappa], eps=1e-4, atol=1e-7)
    assert torch.autograd.gradgradcheck(lambda k: log_normalizer(k, dimension), [kappa], eps=1e-4, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 2000), st.floats(0, 1e6))
def test_finite_and_in_bounds_everywhere(dimension: int, value: float) -> None:
    kappa = torch.tensor([value], dtype=torch.float64)
    ratio = bessel_ratio(kappa, dimension).item()
    assert math.isfinite(log_normalizer(kappa, dimension).item())
    v = dimension / 2 - 1  # bounds from both sides (Amos 1974)
    low = value / (v + 0.5 + math.hypot(v + 1.5, value))
    high = value / (v + math.hypot(v + 2, value))
    assert low * (1 - 1e-12) <= ratio <= high * (1 + 1e-12)


@pytest.mark.parametrize("dimension", [16, 300])
def test_single_precision_is_that_of_its_rounding(dimension: int) -> None:
    kappa = KAPPAS.float()
    exact = log_normalizer(kappa.double(), dimension)
    assert torch.allclose(log_normalizer(kappa, dimension).double(), exact, rtol=1e-7, atol=0)
    assert torch.allclose(bessel_ratio(kappa, dimension).double(), bessel_ratio(kappa.double(), dimension), rtol=1e-7)


def test_approximations_are_the_published_expressions() -> None:
    kappa, m = torch.tensor([0.01, 1.0, 30.0, 500.0, 1600.0], dtype=torch.float64, requires_grad=True), 300
    v = m / 2 - 1
    released = log_normalizer(kappa, m, approximation="released")
    written = [-(math.hypot(v + 1, k) - (v - 1) * math.log(v - 1 + math.hypot(v + 1, k))) for k in kappa.tolist()]
    assert released.tolist() == pytest.approx(written, rel=1e-12)
    constant = released - log_normalizer(kappa, m)
    assert (constant - 264.5).abs().max() < 1.2
    (slope,) = torch.autograd.grad(log_normalizer(kappa, m, approximation="bound").sum(), kappa)
    ratio = bessel_ratio(kappa.detach(), m)
    assert bool((-slope >= ratio * (1 - 1e-6)).all()) and float((-slope - ratio).max()) < 3e-4


def test_too_few_dimensions() -> None:
    with pytest.raises(ValueError, match="at least 2 dimensions, not 1"):
        log_normalizer(torch.ones(1), 1)


def unit(rows: int, width: int, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, width, dtype=torch.float64), dim=1)


KINDS: dict[str, Callable[[float, float, float, float], float]] = {
    "vmf": lambda log_c, kappa, dot, cos: -log_c - dot,
    "vmf_reg1": lambda log_c, kappa, dot, cos: -log_c + 0.3 * kappa - dot,
    "vmf_reg2": lambda log_c, kappa, dot, cos: -log_c - 0.7 * dot,
    "vmf_reg1_reg2": lambda log_c, kappa, dot, cos: -log_c + 0.3 * kappa - 0.7 * dot,
    "vmf_released": lambda log_c, kappa, dot, cos: -log_c + math.log(1 + kappa) * (0.25 - cos),
    "cosine": lambda log_c, kappa, dot, cos: 1 - cos,
    "l2": lambda log_c, kappa, dot, cos: kappa**2 - 2 * dot + 1,
}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_row_by_row(kind: str) -> None:
    predicted, gold = 3 * unit(5, 20, 1) * torch.arange(1, 6)[:, None], unit(5, 20, 2)
    found = vmf_loss(predicted, gold, kind=kind, lambda1=0.3, lambda2=0.7, lambda_released=0.25)  # type: ignore[arg-type]
    for row, (e_hat, e) in enumerate(zip(predicted.tolist(), gold.tolist(), strict=True)):
        dot, kappa = sum(a * b for a, b in zip(e_hat, e, strict=True)), math.sqrt(sum(a * a for a in e_hat))
        log_c = log_normalizer(torch.tensor(kappa, dtype=torch.float64), 20).item()
        assert found[row].item() == pytest.approx(KINDS[kind](log_c, kappa, dot, dot / kappa), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_at_the_origin_and_right_elsewhere(kind: str) -> None:
    predicted, gold = unit(3, 16, 3) * torch.tensor([0.5, 4.0, 90.0])[:, None], unit(3, 16, 4)
    predicted.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda p: vmf_loss(p, gold, kind=kind), [predicted], atol=1e-6)  # type: ignore[arg-type]
    zero = torch.zeros(2, 16, requires_grad=True)
    vmf_loss(zero, gold[:2].float(), kind=kind).sum().backward()  # type: ignore[arg-type]
    assert zero.grad is not None and bool(zero.grad.isfinite().all())


def test_half_precision_is_computed_in_single() -> None:
    predicted, gold = (20 * unit(4, 32, 5)).bfloat16(), unit(4, 32, 6).bfloat16()
    found = vmf_loss(predicted, gold)
    assert found.dtype == torch.float32
    assert torch.equal(found, vmf_loss(predicted.float(), gold.float()))


@pytest.mark.parametrize("rival", ["informative", "nearest"])
def test_margin_is_against_the_rival(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    table, predicted, gold = unit(40, 8, 7), 2 * unit(9, 8, 8), torch.arange(9) * 4
    monkeypatch.setattr("phraseloom.losses.vmf.BLOCK", 7)
    monkeypatch.setattr("phraseloom.losses.vmf.CPU_SCORES", 0)
    found = max_margin_loss(predicted, gold, table, margin=0.5, rival=rival)
    far = 1.0 if rival == "informative" else 0.0
    for row in range(9):
        e_hat, e = predicted[row] / concentration(predicted[row]), table[gold[row]]
        gaps = [float(e_hat @ table[j] - far * e @ table[j]) if j != gold[row] else -9 for j in range(40)]
        j = max(range(40), key=lambda j: gaps[j])
        expected = max(0.0, 0.5 + float(e_hat @ table[j]) - float(e_hat @ e))
        assert found[row].item() == pytest.approx(expected, rel=1e-12)
        wider = max_margin_loss(predicted, gold, table, margin=0.9, rival=rival)
        assert wider[row].item() == pytest.approx(
            max(0.0, expected + 0.4 if expected else 0.9 + float(e_hat @ table[j]) - float(e_hat @ e))
        )
    few = torch.tensor([4, 7, 39])
    sampled = max_margin_loss(predicted, gold, table, margin=0.5, rival=rival, rivals_R=few)
    for row in range(9):
        one = table[[j for j in few.tolist() if j != gold[row]]]
        e_hat, e = predicted[row] / concentration(predicted[row]), table[gold[row]]
        other = one[int((one @ (e_hat - far * e)).argmax())]
        assert sampled[row].item() == pytest.approx(max(0.0, 0.5 + float(e_hat @ other) - float(e_hat @ e)), rel=1e-12)
    assert max_margin_loss(predicted[:2], gold[:2], table, rivals_R=torch.tensor([4]))[1] == 0
    below = max_margin_loss(
        predicted[8:], gold[8:], table, rivals_R=torch.tensor([7]), rival=rival
    )  # gold: 32, behind all
    assert below == max_margin_loss(predicted[8:], gold[8:], table, rivals_R=torch.tensor([7, 32]), rival=rival)
    assert max_margin_loss(predicted[:0], gold[:0], table).shape == (0,)
    assert max_margin_loss(predicted * float("nan"), gold, table, rival=rival).isnan().all()


def test_the_rivals_of_the_margin_differ() -> None:
    """The word nearest to the prediction is as near to the right word; the informative one is far from it."""
    table = torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0], [0.95, 0.3, 0], [0, 1.0, 0]]), dim=-1)
    predicted, gold = torch.tensor([[0.8, 0.6, 0.0]]), torch.tensor([0])
    informative, nearest = (float(max_margin_loss(predicted, gold, table, rival=r)) for r in ("informative", "nearest"))
    assert informative == pytest.approx(0.3 + 0.6 - 0.8)
    assert nearest == pytest.approx(0.3 + float(predicted[0] @ table[1]) - 0.8)
    assert nearest > informative


def test_cosine_of_nothing_is_zero() -> None:
    assert cosine(torch.zeros(1, 4), torch.tensor([[1.0, 0, 0, 0]])).item() == 0
