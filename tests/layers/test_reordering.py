"""Soft reordering against a loop over single positions."""

from __future__ import annotations

import pytest
import torch
from tests.reference.segmental import reordered
from torch import Tensor

from phraseloom.errors import ConfigError
from phraseloom.layers.reordering import SoftReordering

LENGTHS = torch.tensor([9, 1, 4, 0])


def layer(window: int, width: int = 3) -> SoftReordering:
    made = SoftReordering(width=width, window=window).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(generator=generator)
    return made


def sentences(width: int = 3) -> Tensor:
    return torch.randn(4, 9, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_loops(made: SoftReordering, x: Tensor) -> Tensor:
    weight = made.gates.weight.view(made.window, made.window, made.width)
    return torch.stack(
        [
            torch.cat([reordered(row[:n], weight, made.gates.bias), row.new_zeros(9 - n, made.width)])
            for row, n in zip(x, LENGTHS.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("window", [1, 3, 7])
def test_loops(window: int) -> None:
    """Values and gradients, of sentences shorter than the window too."""
    made, x = layer(window), sentences().requires_grad_(True)
    found, expected = made(x, LENGTHS), by_loops(made, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights, inputs = torch.randn_like(found), [x, *made.parameters()]
    wanted = torch.autograd.grad((expected * weights).sum(), inputs)
    for got, gradient in zip(torch.autograd.grad((found * weights).sum(), inputs), wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-11)


def test_full_sentences_need_no_lengths() -> None:
    made, x = layer(7), sentences()
    full = torch.full((4,), 9)
    torch.testing.assert_close(made(x, None), made(x, full), rtol=0, atol=0)


def test_what_stands_in_the_padding_does_not_matter() -> None:
    made, x = layer(5), sentences()
    spoilt = x.clone()
    for row, n in zip(spoilt, LENGTHS.tolist(), strict=True):
        row[n:] = float("nan")
    torch.testing.assert_close(made(spoilt, LENGTHS), made(x, LENGTHS), rtol=0, atol=0)


def test_a_gate_can_move_a_word() -> None:
    """With the gate of the next place open and the others shut every position has tanh of the word behind it."""
    made, x = layer(3), sentences()
    with torch.no_grad():
        made.gates.weight.zero_()
        made.gates.bias.copy_(torch.tensor([-1e3, -1e3, 1e3]))
    found = made(x, None)
    torch.testing.assert_close(found[:, :-1], x[:, 1:].tanh(), rtol=0, atol=1e-12)
    assert not found[:, -1].any()


@pytest.mark.parametrize("window", [0, 2, 6])
def test_windows_without_a_middle(window: int) -> None:
    with pytest.raises(ConfigError, match="has no middle"):
        SoftReordering(width=4, window=window)
