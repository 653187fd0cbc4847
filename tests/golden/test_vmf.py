"""The von Mises-Fisher normaliser against 60-digit arithmetic, and the losses of continuous output against closed forms and
runs of the published code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.layers.fertility import Fertility
from phraseloom.layers.table import TargetTable
from phraseloom.losses.vmf import Distance, cosine, vmf_loss
from phraseloom.losses.vmf_normalizer import bessel_ratio, log_normalizer
from phraseloom.outputs import WordOrPhraseOutput
from tests.golden.folder import golden_files

NORMALIZER = golden_files("vmf_log_normalizer_*.npz")
LOSSES = golden_files("vmf_losses_*.npz")


def read(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return {key: torch.from_numpy(np.asarray(data[key])) for key in data.files}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("path", NORMALIZER, ids=lambda p: p.name)
def test_normalizer(path: Path, dtype: torch.dtype) -> None:
    data = read(path)
    dimensions = [int(key.removeprefix("log_normalizer_dim")) for key in data if key.startswith("log_normalizer_dim")]
    assert dimensions
    error = 1e-10 if dtype == torch.float64 else 1e-6
    for m in dimensions:
        kappa = data["kappa"].to(dtype).requires_grad_(True)
        value = log_normalizer(kappa, m)
        (slope,) = torch.autograd.grad(value.sum(), kappa, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), kappa)
        for found, name, sign in (
            (value, "log_normalizer", 1),
            (slope, "bessel_ratio", -1),
            (bessel_ratio(kappa, m), "bessel_ratio", 1),
            (curvature, "bessel_ratio_derivative", -1),
        ):
            assert torch.allclose(sign * found.detach().double(), data[f"{name}_dim{m}"], rtol=error, atol=0), name
        at_zero = log_normalizer(torch.zeros((), dtype=dtype), m).double()
        assert at_zero.item() == pytest.approx(data[f"log_normalizer_at_zero_dim{m}"].item(), rel=error)


KINDS: dict[Distance, str] = {
    "vmf": "nll_plain",
    "vmf_reg1": "nll_reg1",
    "vmf_reg2": "nll_reg2",
    "vmf_reg1_reg2": "nll_reg1_and_reg2",
    "vmf_released": "nll_released",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", LOSSES, ids=lambda p: p.name)
def test_losses(path: Path, kind: Distance) -> None:
    data = read(path)
    predicted = data["predicted_vectors"].requires_grad_(True)
    loss = vmf_loss(
        predicted,
        data["target_unit_vectors"],
        kind=kind,
        lambda1=data["lambda1"].item(),
        lambda2=data["lambda2"].item(),
        lambda_released=data["lambda_released"].item(),
    )
    assert torch.allclose(loss.detach(), data[f"expected_{KINDS[kind]}"], rtol=1e-9, atol=1e-9)
    if f"expected_grad_{KINDS[kind]}" in data:
        loss.sum().backward()
        assert torch.allclose(predicted.grad, data[f"expected_grad_{KINDS[kind]}"], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("approximation", ["exact", "released"])
@pytest.mark.parametrize("path", LOSSES, ids=lambda p: p.name)
def test_the_published_program(path: Path, approximation: Any) -> None:
    """Sums and gradients of the reference implementation in float32, over the rows on which it does not overflow."""
    data = read(path)
    rows = data["reference_run_mask"]
    predicted = data["predicted_vectors"].float()[rows].requires_grad_(True)
    gold = data["target_unit_vectors"].float()[rows]
    loss = vmf_loss(predicted, gold, kind="vmf_released", approximation=approximation)
    loss.sum().backward()
    name = "approx" if approximation == "released" else "exact"
    assert loss.sum().item() == pytest.approx(data[f"expected_loss_released_{name}_sum_float32"].item(), rel=1e-4)
    expected = data[f"expected_grad_released_{name}_float32"][rows]
    assert torch.allclose(predicted.grad, expected, rtol=2e-3, atol=2e-5)
    cosines = (1 - cosine(predicted, gold)).sum().item()
    assert cosines == pytest.approx(data["expected_cosine_loss_sum_float32"].item(), rel=1e-4)


class Given(torch.nn.Module):
    """Stands for the projection of an output layer: the predicted vectors are given."""

    def __init__(self, predicted: torch.Tensor) -> None:
        super().__init__()
        self.predicted = predicted

    def forward(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return self.predicted


@pytest.mark.parametrize("classes", [4, 2])
@pytest.mark.parametrize("score", ["density", "released"])
@pytest.mark.parametrize("path", LOSSES, ids=lambda p: p.name)
def test_gated_choice(path: Path, score: Any, classes: int) -> None:
    """λ_word from fertilities and attention, and the word or phrase that the gated scores choose."""
    data = read(path)
    words, phrases = data["word_table"].double(), data["phrase_table"].double()
    shares = Fertility.shares(data[f"fertility{classes}_logits"].double())
    gate = (data["attention"].double()[..., None] * shares).sum(-2)
    assert torch.allclose(gate[:, 0], data[f"expected_lambda_word_fertility{classes}"].double(), atol=1e-6)
    blank = words.new_zeros(4, words.shape[1])
    table = TargetTable(torch.cat([blank, words, phrases]), first_phrase=4 + len(words))
    output = WordOrPhraseOutput(table, width=1, score=score).double()
    predicted = data["predicted_vectors"].double()
    output.project = Given(predicted)
    scores = output.scores(torch.zeros(len(gate), 1), gate)[:, 4:]
    name = "released" if score == "released" else "true_density"
    expected = torch.cat(
        [
            gate[:, :1] * data[f"expected_word_scores_{name}"],
            gate[:, 1:] * data[f"expected_phrase_scores_{name}"],
        ],
        1,
    )
    assert torch.allclose(scores, expected.double(), rtol=1e-6, atol=1e-6)
    suffix = "released_score" if score == "released" else "true_density"
    assert torch.equal(scores.argmax(1), data[f"expected_gated_argmax_fertility{classes}_{suffix}"].long())
