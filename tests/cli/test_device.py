"""A device that is not there is refused by every verb with --device, before it reads anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cli.conftest import Command

from phraseloom.cli.document import commands
from phraseloom.errors import UsageError
from phraseloom.models.device import usable

WITH_DEVICE = {name: verb for name, verb in commands() if any("--device" in p.opts for p in verb.params)}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def test_there_are_verbs_with_a_device() -> None:
    assert {"translate", "generate", "score", "serve", "explain", "report", "diff"} <= WITH_DEVICE.keys()
    assert {"analyse heatmap", "fertility train", "analyse contrastive"} <= WITH_DEVICE.keys()


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_refused_before_anything_else(name: str, command: Command) -> None:
    """Nothing but the device is given, so that any other complaint is one that came first."""
    done = command(*name.split(), "--device", "cuda")
    assert done.code == 2 and done.is_one_line_of(name.split()[0])
    assert "device cuda is asked for, but there is no usable GPU; --device cpu" in done.err


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", "abacus:1", ""])
def test_names_of_nothing(device: str, command: Command) -> None:
    done = command("translate", "model", "--device", device)
    assert done.code == 2 and done.is_one_line_of("translate")
    assert f"there is no device {device!r}; cpu, cuda or cuda:0" in done.err


def test_a_gpu_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert usable("cuda:1") == torch.device("cuda:1") and usable("cuda").type == "cuda" and usable("cpu").type == "cpu"
    with pytest.raises(UsageError, match="only GPU 0 to 1"):
        usable("cuda:2")


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_all_say_the_same_of_it(name: str) -> None:
    option: Any = next(p for p in WITH_DEVICE[name].params if "--device" in p.opts)
    assert option.default == "cpu" and "cuda:1" in option.help
