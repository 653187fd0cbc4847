"""Every model on a GPU: the gradients, validations and translations of the CPU, and no wait where the fake device has none."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.models.device import arithmetic
from phraseloom.models.recompute import checkpoint_layers
from phraseloom.training.compiled import compile_loss
from tests.contracts.every_model import ATTENTION, MODELS, batch_of, each, may_wait, memory_of, translation, update
from tests.training.test_compile import ONE_LAYER, agree, batches, gradients

GPU = torch.device("cuda")


@contextlib.contextmanager
def waits() -> Iterator[list[str]]:
    """The places that wait for the GPU, as torch reports them."""
    found: list[str] = []
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
            found += [f"{w.filename}:{w.lineno}" for w in caught if "called a synchronizing" in str(w.message)]


def same(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    for key, value in found.items():
        assert value.is_cuda, key
        torch.testing.assert_close(value.detach().cpu(), expected[key].detach(), rtol=tolerance, atol=tolerance)


@each
def test_the_gradient_is_that_of_the_cpu(name: str) -> None:
    expected = update(MODELS[name](), batch_of(name))
    same(update(MODELS[name]().to(GPU), batch_of(name).to(GPU)), expected)


@each
def test_an_update_waits_only_where_the_fake_device_waits(name: str) -> None:
    model, batch = MODELS[name]().to(GPU).train(), batch_of(name).to(GPU)
    update(model, batch)  # the first one loads libraries
    with waits() as places:
        update(model, batch)
    assert not places or may_wait(name), places


@each
def test_a_validation_has_the_numbers_of_the_cpu(name: str) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        expected = model.loss(batch_of(name))
        found = model.to(GPU).loss(batch_of(name).to(GPU))
    for value, on_cpu in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(value.cpu(), on_cpu, rtol=1e-9, atol=1e-9)
    assert found.tokens == expected.tokens


@each
@pytest.mark.parametrize("beam", [1, 3])
def test_search_finds_what_the_cpu_finds(name: str, beam: int) -> None:
    model, options = MODELS[name](), SearchOptions(beam, beam)
    expected = search(model, memory_of(model, name, "cpu"), Limits.of([4] * 4), options)
    model.to(GPU)
    found = search(model, memory_of(model, name, GPU), Limits.of([4] * 4, device=GPU), options)
    assert [[h.tokens for h in n_best] for n_best in found] == [[h.tokens for h in n_best] for n_best in expected]


@each
def test_bf16_is_near_fp32(name: str) -> None:
    model, batch = MODELS[name]().to(GPU).float(), batch_of(name).to(GPU)
    full = update(model, batch)
    with arithmetic("bf16", GPU):
        reduced = update(model, batch)
    assert reduced.keys() == full.keys()
    torch.testing.assert_close(reduced.pop("objective").double(), full.pop("objective").double(), rtol=0.02, atol=0)
    if name.startswith("none+multihead"):  # saturated attention: its gradient is small and below the steps of bf16
        return
    error = sum(float((reduced[key].double() - full[key]).square().sum()) for key in full)
    assert error <= 0.15**2 * sum(float(value.double().square().sum()) for value in full.values())


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("line", ATTENTION)
def test_a_compiled_model_has_the_gradients_of_eager_torch(line: str, checkpointed: bool) -> None:
    model = translation(attention=line, dropout=0.0, **ONE_LAYER).to(GPU)
    if checkpointed:
        checkpoint_layers(model)
    loss = compile_loss(model)
    for batch in batches():
        moved = batch.to(GPU)
        agree(gradients(loss, model, moved), gradients(model.loss, model, moved), 1e-8)


@pytest.mark.parametrize("name", ["queryk heterogeneous 1-2 explicit", "queryk heterogeneous 1-2 fused"])
def test_dropout_follows_the_seed(name: str) -> None:
    model, batch = MODELS[name]().to(GPU).train(), batch_of(name).to(GPU)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(update(model, batch)["objective"])
    assert torch.allclose(found[0], found[1], rtol=1e-12) and not torch.allclose(found[0], found[2], rtol=1e-6)
