"""Every model on a device, without one (`tests/fake_device.py`): the numbers of the host, and when it waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts import test_encoders_decoders as contract
from tests.contracts.every_model import MODELS, batch_of, may_wait, memory_of, translation, update
from tests.fake_device import FakeDevice, FakeTensor, OtherDevice, device, to_device
from tests.helpers import in_turn
from torch import Tensor

from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.layers import recurrent

# What may wait in an update and in a validation: the lengths that torch's recurrent kernels read on the host, and the sizes
# of source phrases.
MAY_WAIT = ("layers/recurrent.py:run to the host", "layers/segments.py:")
half = pytest.mark.parametrize("name", in_turn(MODELS))


def host(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, FakeTensor) else x


@half
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
    assert bool(waits) == may_wait(name)
    phrases = [count for place, count in waits.items() if place.startswith("layers/segments.py:")]
    assert phrases in ([], [2])  # for the lengths of a batch, once in each of the two updates
    if not name.startswith("segmental"):  # its rows depend on the lengths of sentences
        assert not [place for place in waits if not place.startswith(MAY_WAIT)]


@pytest.mark.parametrize("cell", [recurrent.LSTMCell, recurrent.GRUCell])
def test_recurrent_kernels_keep_what_the_backward_pass_needs(
    cell: type[recurrent.Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN has a gradient only if the kernel is told that it trains, also where dropout is off."""
    kernel, told = cell.kernel, []

    def watch(*arguments: Any) -> Any:
        batch_first = arguments[-1]  # of padded batches alone: packed data ends with `bidirectional`, which is False
        told.append(arguments[-3 if batch_first else -2])
        return kernel(*arguments)

    monkeypatch.setattr(cell, "kernel", staticmethod(watch))
    x_BSI, lengths_B = torch.randn(2, 3, 4), torch.tensor([3, 2])
    with FakeDevice():
        layer = to_device(cell(input_width=4, width=5))
        for lengths in (None, lengths_B.to(device())):
            layer.run(x_BSI.to(device()), lengths)
            with torch.no_grad():
                layer.run(x_BSI.to(device()), lengths)
    assert told == [True, False, True, False]


@half
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


@pytest.mark.parametrize(("name", "beam"), in_turn(MODELS, [1, 3]))
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
