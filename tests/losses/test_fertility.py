"""The weighted loss: by hand, equal to torch's mean, and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from phraseloom.losses.fertility import CLASS_WEIGHTS, weighted_cross_entropy


def test_the_published_weights() -> None:
    assert CLASS_WEIGHTS == {4: (1.0, 1.0, 3.0, 3.0), 2: (1.0, 3.0)}


def test_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [math.log(4.0), 0.0]], dtype=torch.float64)
    sums = weighted_cross_entropy(logits, torch.tensor([1, 0]), torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert sums.objective.item() == pytest.approx(3 * math.log(4 / 3) + math.log(5 / 4))
    assert sums.weight.item() == 4.0


@pytest.mark.parametrize("classes", [4, 2])
def test_quotient_is_the_weighted_mean_of_torch(classes: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(11, classes, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, classes, (11,))
    weights = torch.tensor(CLASS_WEIGHTS[classes], dtype=torch.float64)
    sums = weighted_cross_entropy(logits, labels, weights)
    expected = F.cross_entropy(logits, labels, weights)
    assert (sums.objective / sums.weight).item() == pytest.approx(expected.item(), rel=1e-12)
    (found,) = torch.autograd.grad(sums.objective / sums.weight, logits)
    p = logits.detach().softmax(-1) - F.one_hot(labels, classes)
    torch.testing.assert_close(found, p * (weights[labels] / weights[labels].sum())[:, None])


def test_no_items() -> None:
    sums = weighted_cross_entropy(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), torch.ones(2))
    assert (sums.objective.item(), sums.weight.item()) == (0.0, 0.0)
