"""Every model on a device, without one (`tests/fake_device.py`): the numbers of the host, and when it waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts import test_encoders_decoders as contract
from tests.fake_device import FakeDevice, FakeTensor, OtherDevice, device, to_device
from tests.models import test_language_model
from tests.npmt import test_model as segmental
from torch import Tensor

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig

ATTENTION = [
    "token",
    "queryk homogeneous 22",
    "queryk heterogeneous 1-2",
    "queryk interleaved 1-2",
    "convkv homogeneous 22",
    "convkv heterogeneous 1-2-3",
    "convkv interleaved 1-2",
]
TRANSFORMER = {"encoder": contract.ENCODER["transformer"], "decoder": contract.DECODER["transformer"]}
# What may wait in an update and in a validation: the lengths that torch's recurrent kernels read on the host, and the sizes
# of source phrases.
MAY_WAIT = ("layers/recurrent.py:run to the host", "layers/segments.py:")


def models() -> dict[str, Any]:
    result: dict[str, Any] = {name: lambda name=name: contract.built(name) for name in contract.CASES}
    for line in ATTENTION:
        for backend in ("explicit", "fused"):
            config = {
                "attention": dict.fromkeys(("encoder_self", "decoder_self", "cross"), line) | {"backend": backend}
            }
            result[f"{line} {backend}"] = lambda config=config: translation(**config)
    result["language model"] = lambda: test_language_model.model(attention="queryk heterogeneous 1-2")
    result |= {f"segmental {kind}": lambda kind=kind: segmental.built(kind) for kind in segmental.KINDS}
    return result


def translation(**keys: Any) -> Any:
    sizes = {"width": 16, "heads": contract.HEADS, "ffn_width": 16, "tied": "none", "output": {"bias": True}}
    torch.manual_seed(4)
    config = ModelConfig.model_validate({**sizes, **TRANSFORMER, **keys})
    return build_model(config, contract.SIZE, contract.SIZE).double().eval()


MODELS = models()
each = pytest.mark.parametrize("name", MODELS)


def batch_of(name: str) -> Batch:
    if name.startswith("segmental"):
        return segmental.batch()
    if name == "language model":
        return make_batch([[]] * 4, contract.TARGETS)
    return contract.batch()


def update(model: Any, batch: Batch) -> dict[str, Any]:
    model.zero_grad()
    loss = model.loss(batch)
    loss.objective.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None} | {"objective": loss.objective}


def memory_of(model: Any, name: str, place: Any) -> Any:
    if name == "language model":
        return len(contract.SOURCES)
    batch = make_batch(contract.SOURCES, [[]] * 4).to(place)
    with torch.no_grad():
        return model.encode(batch.source_BS, batch.source_lengths_B)


def host(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, FakeTensor) else x


@each
def test_the_gradient_is_that_of_the_host_and_nothing_waits(name: str) -> None:
    expected = update(MODELS[name](), batch_of(name))
    with FakeDevice() as fake:
        model, batch = to_device(MODELS[name]()), batch_of(name).to(device())
        fake.synchronisations.clear()
        found = update(model, batch)
        model.train()
        update(model, batch)  # with dropout
        waits = dict(fake.synchronisations)
    assert found.keys() == expected.keys()
    for key, value in found.items():
        assert isinstance(value, FakeTensor), key
        torch.testing.assert_close(host(value).detach(), expected[key].detach(), rtol=1e-10, atol=1e-10)
    if not name.startswith("segmental"):  # its rows depend on the lengths of sentences
        assert not [place for place in waits if not place.startswith(MAY_WAIT)]


@each
def test_a_validation_waits_for_nothing(name: str) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        expected = model.loss(batch_of(name))
    with FakeDevice() as fake, torch.no_grad():
        model, batch = to_device(model), batch_of(name).to(device())
        fake.synchronisations.clear()
        found = model.loss(batch)
        waits = dict(fake.synchronisations)
    for value, of_host in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(host(value), of_host, rtol=1e-10, atol=1e-10)
    assert found.tokens == expected.tokens
    if not name.startswith("segmental"):
        assert not [place for place in waits if not place.startswith(MAY_WAIT)]


@each
@pytest.mark.parametrize("beam", [1, 3])
def test_search_finds_what_the_host_finds(name: str, beam: int) -> None:
    model, options = MODELS[name](), SearchOptions(beam, beam)
    expected = search(model, memory_of(model, name, "cpu"), Limits.of([4] * 4), options)
    with FakeDevice():
        model = to_device(model)
        limits = Limits.of([4] * 4, device=device())
        found = search(model, memory_of(model, name, device()), limits, options)
    assert [[h.tokens for h in n_best] for n_best in found] == [[h.tokens for h in n_best] for n_best in expected]


@pytest.mark.parametrize("beam", [1, 3])
def test_the_waits_of_search_do_not_grow_with_the_layers(beam: int) -> None:
    """The numbers of a step are few: whether rows have ties, and which sentences are done."""
    counts = []
    for layers in (1, 3):
        with FakeDevice() as fake:
            model = translation(
                encoder={"kind": "transformer", "layers": 1}, decoder={"kind": "transformer", "layers": layers}
            )
            to_device(model)
            with torch.no_grad():
                model.output.bias.copy_(torch.tensor([0.0, 0, 0, -50, *range(contract.SIZE - 4)], device=device()))
            memory = memory_of(model, "", device())
            fake.synchronisations.clear()
            search(model, memory, Limits.of([6] * 4, device=device()), SearchOptions(beam, beam))
            counts.append(fake.synchronisations.total())
    assert counts[0] == counts[1] <= 7 * 13


def test_the_fake_device_refuses_what_a_gpu_refuses() -> None:
    with FakeDevice() as fake:
        x, index = torch.zeros(3, 4, device=device()), torch.tensor([0, 2], device=device())
        assert x.device.type == "fake" and not fake.synchronisations
        with pytest.raises(OtherDevice, match="of the device and of the host"):
            x + torch.ones(4)
        with pytest.raises(OtherDevice, match="generator of the host"):
            x.bernoulli_(0.5, generator=torch.Generator())
        with pytest.raises(OtherDevice, match="CPUs only"):
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x[None, None], x[None, None], x[None, None])
        x[index] += 1 + torch.tensor(2.0)
        assert not fake.synchronisations
        assert x.sum().item() == 24 and x[x > 0].shape == (8,) and x.tolist()[1] == [0.0] * 4
        assert fake.synchronisations.total() == 3
    with pytest.raises(OtherDevice, match="outside of FakeDevice"):
        x + 1
