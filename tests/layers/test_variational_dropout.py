"""Variational dropout of recurrent layers (Gal and Ghahramani 2016) against loops; layer normalisation of the memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.layers.test_recurrent import KINDS, LENGTH, LENGTHS, WIDTH, made, state_of, tokens, vectors
from tests.models.test_recurrent import batch, built, embedded, recurrent
from tests.reference import recurrent as reference
from tests.reference.recurrent_weights import cell_of, decoder_of, encoded, same
from torch import Tensor

from phraseloom.layers.recurrent import Cell, VariationalMasks

each_cell = pytest.mark.parametrize("kind", KINDS)


def masks_of(cell: Cell, rows: int, seed: int = 5) -> VariationalMasks:
    generator = torch.Generator().manual_seed(seed)

    def draw(width: int) -> Tensor:
        return torch.randint(0, 2, (rows, width), generator=generator).double() / 0.5

    return VariationalMasks(draw(cell.input_width), draw(cell.width))


def dropped(cell: reference.Cell, inputs: Tensor, states: Tensor) -> reference.Cell:
    """The cell of the equations whose input and hidden state are multiplied by masks at every step."""

    def step(u: Tensor, state: Any, w: Any) -> Any:
        return cell.step(u * inputs, (state[0] * states, *state[1:]), w)

    return dataclasses.replace(cell, step=step)


@pytest.mark.parametrize("ragged", [False, True])
@each_cell
def test_cells_with_masks_are_those_of_the_equations(kind: str, ragged: bool) -> None:
    cell, x = made(kind), tokens().requires_grad_()
    masks, state = masks_of(cell, len(x)), state_of(cell)
    lengths = LENGTHS if ragged else torch.full((4,), LENGTH)
    output, final = cell.run(x, lengths if ragged else None, state, masks)
    total, expected = x.new_zeros(()), x.new_zeros(())
    for b, length in enumerate(lengths.tolist()):
        row = dropped(cell_of(cell), masks.inputs[b], masks.states[b])
        outputs, end = reference.read(row, vectors(x[b, :length]), tuple(part[b] for part in state))
        torch.testing.assert_close(output[b, :length], torch.stack(outputs), rtol=0, atol=1e-12)
        assert not output[b, length:].any()
        for got, wanted in zip(final, end, strict=True):
            torch.testing.assert_close(got[b], wanted, rtol=0, atol=1e-12)
        total, expected = total + output[b].sin().sum(), expected + torch.stack(outputs).sin().sum()
    parameters = [x, *cell.parameters()]
    for got, wanted in zip(
        torch.autograd.grad(total, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@each_cell
def test_masks_of_ones_change_nothing_and_inputs_alone_keep_the_kernel(kind: str) -> None:
    cell, x = made(kind), tokens()
    ones = VariationalMasks(None, torch.ones(len(x), WIDTH, dtype=torch.float64))
    for got, wanted in zip(cell.run(x, LENGTHS, None, ones)[1], cell.run(x, LENGTHS)[1], strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    masks = masks_of(cell, len(x))
    assert torch.equal(cell.run(x, None, None, masks._replace(states=None))[0], cell.run(x * masks.inputs[:, None])[0])


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "not-fed"])
@each_cell
def test_a_decoder_with_masks_is_that_of_the_equations(fed: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mask a sentence and layer over all steps, on what the cell reads (the fed-back output too) and on its state."""
    model = built(encoder={"kind": "none"}, decoder=recurrent(cell=kind, input_feeding=fed, hidden_dropout=0.0))
    b = batch((0, 2))
    drawn: list[VariationalMasks] = []

    def draw(cell: Cell, rows: int, like: Tensor, *, inputs: float, states: float) -> VariationalMasks:
        drawn.append(masks_of(cell, rows, seed=len(drawn)))
        return drawn[-1]

    monkeypatch.setattr(Cell, "masks", draw)
    hidden, *_ = model.decode(b.target_in_BT, model.encode(b.source_BS, b.source_lengths_B))
    for row, (source, n, target, m) in enumerate(
        zip(b.source_BS, b.source_lengths_B, b.target_in_BT, b.target_lengths_B, strict=True)
    ):
        memory, final = encoded(model.encoder, embedded(model.source_embedding, source[:n], same), same)
        decoder = decoder_of(model.decoder, same)
        decoder.cells = [dropped(c, d.inputs[row], d.states[row]) for c, d in zip(decoder.cells, drawn, strict=True)]
        expected, _ = reference.decode(embedded(model.target_embedding, target[:m], same), memory, decoder, final)
        torch.testing.assert_close(hidden[row, :m], torch.stack(expected), rtol=0, atol=1e-12)


def test_rates_are_drawn_in_training_alone_and_per_sentence() -> None:
    rates = {"variational_dropout": {"inputs": 0.3, "states": 0.2}}
    model = built(encoder=recurrent(**rates), decoder=recurrent(**rates))
    plain = built(encoder=recurrent(), decoder=recurrent())
    assert torch.equal(model.score(batch()), plain.score(batch()))
    model.train()
    cell = model.decoder.cells[0]
    masks = cell.masks(1000, torch.zeros(1, dtype=torch.float64), inputs=0.3, states=0.2)
    assert masks.inputs.shape == (1000, cell.input_width)
    assert masks.inputs.eq(0).double().mean().item() == pytest.approx(0.3, abs=0.02)
    assert masks.states.eq(0).double().mean().item() == pytest.approx(0.2, abs=0.02)
    assert masks.inputs.mean().item() == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(masks.inputs[0], masks.inputs[1])
    first, second = model.loss(batch()).objective, model.loss(batch()).objective
    assert first != second
    first.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("encoder", [{"kind": "none"}, recurrent()], ids=["none", "recurrent"])
def test_a_normalised_memory(encoder: dict[str, Any]) -> None:
    model = built(encoder={**encoder, "memory_norm": True}, decoder=recurrent())
    with torch.no_grad():
        model.encoder.norm.weight.fill_(1.0)
        model.encoder.norm.bias.fill_(0.0)
    states = model.encode(batch((0,)).source_BS, None).states_BSD
    torch.testing.assert_close(states.mean(-1), torch.zeros_like(states[..., 0]), rtol=0, atol=1e-9)
    torch.testing.assert_close(states.var(-1, unbiased=False), torch.ones_like(states[..., 0]), rtol=0, atol=1e-4)
