"""Schedules, flat parameters, and Adam over them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import toy
from torch import nn

from phraseloom.errors import ModelError
from phraseloom.options.training import AdamConfig, TrainingConfig
from phraseloom.training.optimization import SCHEDULES, FlatAdam, FlatParameters, rate_function


def rate(schedule: dict[str, object], **keys: object):  # type: ignore[no-untyped-def]
    config = TrainingConfig.model_validate({"schedule": schedule, "max_updates": 100, **keys})
    return rate_function(config.schedule, width=256, max_updates=config.max_updates)


EXAMPLES: dict[str, dict[str, object]] = {
    "inverse_sqrt": {"factor": 2.0, "warmup": 10},
    "inverse_sqrt_peak": {"peak": 0.01, "warmup": 10},
    "constant": {"rate": 0.01, "warmup": 10},
    "plateau": {"rate": 0.01, "warmup": 10},
    "cosine": {"peak": 0.01, "warmup": 10},
    "linear": {"peak": 0.01, "warmup": 10},
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_rises_to_its_peak_at_the_warm_up_and_never_after(kind: str) -> None:
    values = [rate({"kind": kind, **EXAMPLES[kind]})(s) for s in range(1, 101)]
    assert all(v >= 0 and math.isfinite(v) for v in values)
    assert values[0] == pytest.approx(values[9] / 10)
    assert values[9] == max(values)
    assert all(a <= b for a, b in pairwise(values[:10]))
    assert all(a >= b for a, b in pairwise(values[9:]))


def test_peaks_and_ends() -> None:
    assert rate({"kind": "inverse_sqrt", "factor": 2.0, "warmup": 16})(16) == pytest.approx(2 / 16 / 4)
    assert rate({"kind": "inverse_sqrt_peak", "peak": 0.5, "warmup": 4})(16) == pytest.approx(0.25)
    for kind in ("cosine", "linear"):
        assert rate({"kind": kind, "peak": 0.5, "warmup": 20})(60) == pytest.approx(0.25)
        assert rate({"kind": kind, "peak": 0.5})(100) == pytest.approx(0, abs=1e-12)
        assert rate({"kind": kind, "peak": 0.5, "floor": 0.1, "updates": 50})(70) == pytest.approx(0.05)
    assert rate({"kind": "constant", "rate": 0.5})(1) == 0.5


def test_parameters_and_gradients_are_views_and_a_shared_one_is_there_once() -> None:
    torch.manual_seed(0)
    model = toy.ToyModel()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    flat = FlatParameters(model)
    assert set(flat.spans) == {"embedding.weight", "hidden.weight", "hidden.bias"}
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert model.output.weight is model.embedding.weight
    model.loss(toy.ToyData().batch(range(5))).objective.backward()  # type: ignore[arg-type]
    assert flat.gradient_norm() > 0
    assert flat.grad.data_ptr() == model.embedding.weight.grad.data_ptr()  # type: ignore[union-attr]
    assert all(p.data_ptr() % 64 == flat.data.data_ptr() % 64 for p in model.parameters())
    flat.grad.zero_()
    assert all(not p.grad.any() for p in model.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_flat_adam_is_adam(decay: float) -> None:
    torch.manual_seed(0)
    ours, theirs = toy.ToyModel(0.0), toy.ToyModel(0.0)
    theirs.load_state_dict(ours.state_dict())
    flat = FlatParameters(ours)
    adam = FlatAdam(flat, AdamConfig(weight_decay=decay))
    reference = torch.optim.AdamW(theirs.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=decay)
    data = toy.ToyData()
    for step in range(20):
        batch = data.batch(range(step, step + 9))  # type: ignore[arg-type]
        flat.grad.zero_()
        theirs.zero_grad()
        ours.loss(batch).objective.backward()
        (0.25 * theirs.loss(batch).objective).backward()
        reference.param_groups[0]["lr"] = 0.01 / (step + 1)
        adam.step(0.01 / (step + 1), 0.25)
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert adam.count.item() == 20


def test_optimiser_state_of_another_model_is_refused() -> None:
    adam = FlatAdam(FlatParameters(toy.ToyModel()), AdamConfig())
    tensors = {k: v.clone() for k, v in adam.tensors().items()}
    adam.load(tensors, 7)
    assert adam.count.item() == 7
    with pytest.raises(ModelError, match=r"exp_avg\.extra"):
        adam.load({**tensors, "exp_avg.extra": torch.zeros(1)}, 7)
    with pytest.raises(ModelError, match=r"exp_avg\.hidden\.bias"):
        adam.load({**tensors, "exp_avg.hidden.bias": torch.zeros(1)}, 7)


def test_parameters_of_two_types_are_refused() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()])
    with pytest.raises(ModelError, match="one type"):
        FlatParameters(model)
