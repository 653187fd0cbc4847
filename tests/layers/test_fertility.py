"""The fertility module against a loop in numpy; what it reads; the share of the word table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.layers.fertility import Fertility, Tempering


def made(classes: int = 4, inputs: str = "both", widths: tuple[int, ...] = (7, 6)) -> Fertility:
    torch.manual_seed(3)
    return Fertility(5, 4, classes, inputs, widths).double()


def loop(module: Fertility, x: np.ndarray) -> np.ndarray:
    maps: list[Any] = list(module.maps)
    for number, linear in enumerate(maps):
        x = x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
        if number < len(maps) - 1:
            x = np.maximum(x, 0)
    return x


@pytest.mark.parametrize("classes", [4, 2])
@pytest.mark.parametrize("widths", [(7, 6), (3,), ()])
@pytest.mark.parametrize("inputs", ["both", "states", "embeddings"])
def test_equals_the_loop(inputs: str, widths: tuple[int, ...], classes: int) -> None:
    module = made(classes, inputs, widths)
    x, h = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    read = {"both": torch.cat([x, h], -1), "states": h, "embeddings": x}[inputs]
    assert module.width == read.shape[-1]
    assert len(module.maps) == len(widths) + 1
    found = module(x, h)
    assert found.shape == (2, 3, classes)
    np.testing.assert_allclose(found.detach().numpy(), loop(module, read.numpy()), rtol=1e-12)
    assert torch.equal(module.classify(module.join(x, h)), found)


def test_sizes_of_the_paper() -> None:
    module = Fertility(512, 1024)
    assert [tuple(p.shape) for n, p in module.named_parameters() if n.endswith("weight")] == [
        (4096, 1536),
        (1024, 4096),
        (4, 1024),
    ]


def test_shares_of_words_and_phrases() -> None:
    logits = torch.tensor([[[0.3, -1.0, 2.0, 0.5], [40.0, 0.0, 0.0, -90.0]]])
    p = [math.exp(v) for v in (0.3, -1.0, 2.0, 0.5)]
    shares = Fertility.shares(logits)
    assert shares.shape == (1, 2, 2)
    assert shares[0, 0].tolist() == pytest.approx([(p[0] + p[1]) / sum(p), (p[2] + p[3]) / sum(p)], rel=1e-6)
    assert shares[0, 1].tolist() == pytest.approx([1.0, math.exp(-40)], rel=1e-5)
    two = Fertility.shares(logits[..., :2])
    assert two[0, 0].tolist() == pytest.approx([p[0] / (p[0] + p[1]), p[1] / (p[0] + p[1])], rel=1e-6)
    assert Fertility.shares(logits.half()).dtype == torch.float32
    assert Fertility.shares(logits.double()).dtype == torch.float64


def test_drawn_as_linear_layers_and_drawn_anew() -> None:
    module = made()
    for name, parameter in module.named_parameters():
        fan_in = {"maps.0": 9, "maps.1": 7, "maps.2": 6}[name.rsplit(".", 1)[0]]
        assert 0.2 / fan_in**0.5 < parameter.abs().max() <= 1 / fan_in**0.5
    before = [p.clone() for p in module.parameters()]
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(0.1)
    torch.manual_seed(3)
    module.reset()
    for old, new in zip(before, module.parameters(), strict=True):
        assert old.shape == new.shape
        assert new.std() > 0.01
        assert new.abs().max() <= 1


@pytest.mark.parametrize("options", [(3, "both"), (4, "all")])
def test_what_it_is_not_made_of(options: tuple[int, str]) -> None:
    with pytest.raises(ValueError, match="known are 4 and 2, and both, states, embeddings"):
        Fertility(5, 4, *options)


@pytest.mark.parametrize("classes", [4, 2])
def test_the_odds_of_a_phrase_are_multiplied_and_weighed(classes: int) -> None:
    module = Fertility(5, 4, classes, widths=(), shift=[0.1, 0.7, -0.3, 0.2][:classes]).double()
    logits = torch.randn(3, classes, dtype=torch.float64)
    before = module.gate(logits)
    assert torch.equal(before, Fertility.shares(module.calibrate(logits)))
    for odds, weight in ((0.25, 1.0), (0.5, 1.0), (0.5, 0.3), (7.0, 2.0)):
        after = module.gate(logits, Tempering(odds, weight))
        assert torch.allclose(after.sum(-1), torch.ones(3, dtype=torch.float64))
        assert torch.allclose(after[:, 1] / after[:, 0], (odds * before[:, 1] / before[:, 0]) ** weight, rtol=1e-5)
    assert torch.equal(module.gate(logits, Tempering(4.0, 0.0)), torch.full_like(before, 0.5))
