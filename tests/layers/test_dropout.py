"""Fast dropout: the right rate, exact scale, the right gradient, seeded, and off in evaluation."""

from __future__ import annotations

import pytest
import torch

from phraseloom.layers.feedforward import LEVELS, add_dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_rate_scale_and_independence(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(400_003), p, True)
    kept = y != 0
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=4 * (p * (1 - p) / 400_003) ** 0.5 + 1 / LEVELS)
    assert y[kept].unique().tolist() == pytest.approx([1 / (1 - round(p * LEVELS) / LEVELS)], rel=1e-6)
    for lag in (1, 2, 3, 4):
        both = (kept[lag:] & kept[:-lag]).double().mean().item()
        assert both == pytest.approx((1 - p) ** 2, abs=0.005)


def test_gradient_follows_the_mask() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    out = add_dropout(x, y, 0.4, True)
    out.sum().backward()
    mask = (out - x).detach() / y.detach()
    torch.testing.assert_close(y.grad, mask)
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_seed_decides_and_evaluation_is_identity() -> None:
    x = torch.randn(100)
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        draws.append(dropout(x, 0.3, True))
    assert torch.equal(*draws)
    assert dropout(x, 0.3, False) is x
    assert torch.equal(add_dropout(x, x, 0.3, False), x + x)
    torch.manual_seed(5)
    assert set(dropout(torch.ones(64, dtype=torch.bfloat16), 0.5, True).unique().tolist()) <= {0.0, 2.0}
