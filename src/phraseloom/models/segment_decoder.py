"""The recurrent network that writes one segment of the target from one source position (NPMT, Huang et al. 2018; spec §5.1).

    x⁰ = E y,   xˡ = dropout(RNNˡ(xˡ⁻¹) + xˡ⁻¹),   top = x^L            a bias-free map of x⁰ where the widths differ

The first layer begins with the vector of the source position as its hidden state (GRU) or as its cell state, the hidden one
being zero (LSTM); the layers above it begin at zero. What it reads first is START, and it writes until END.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phraseloom.layers.dropout import dropout
from phraseloom.layers.recurrent import Cell, State

Drop = Callable[[Tensor, int], Tensor]
"""Dropout of the output (R, D) of a layer (from 0)."""


class Read(NamedTuple):
    """What the first layer reads of N tokens: its gates (N, gates·D) without the state, and the residual (N, D)."""

    gates: Tensor
    residual: Tensor

    def select(self, tokens_R: Tensor) -> Read:
        """Those of some tokens, by their rows."""
        return Read(self.gates.index_select(0, tokens_R), self.residual.index_select(0, tokens_R))


class CellStates:
    """The state of each layer, (R, D) each; and the output of the last step, once there was one."""

    def __init__(self, layers: list[State], output_RD: Tensor | None = None) -> None:
        self.layers, self.output_RD = layers, output_RD

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        self.layers = [tuple(part.index_select(0, rows_R) for part in state) for state in self.layers]
        if self.output_RD is not None:
            self.output_RD = self.output_RD.index_select(0, rows_R)


class ResidualCells(nn.Module):
    """Stacked cells with a residual around each and dropout behind it; `embedding_width` of what the first one reads."""

    def __init__(self, cells: list[Cell], *, embedding_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.width, self.dropout = cells[0].width, dropout
        self.residual = (
            nn.Identity() if embedding_width == self.width else nn.Linear(embedding_width, self.width, bias=False)
        )

    def read(self, embedded_NE: Tensor) -> Read:
        """What the first layer makes of embedded tokens, whatever its state."""
        return Read(self.cells[0].from_input(embedded_NE), self.residual(embedded_NE))

    def start(self, start_RD: Tensor) -> CellStates:
        """The states before START, from the vector that the first layer begins with."""
        first, zeros = self.cells[0], torch.zeros_like(start_RD)
        states: list[State] = [(*[zeros] * (first.parts - 1), start_RD)]
        states += [(zeros,) * cell.parts for cell in self.cells[1:]]
        return CellStates(states)

    def step(self, read: Read, states: CellStates, drop: Drop | None = None) -> Tensor:
        """Read one token in every row: the top output (R, D); the states go on.

        `drop`: dropout with masks of the caller's; else each is drawn in training.
        """
        x_RD, layers = read.residual, []
        for number, (cell, before) in enumerate(zip(self.cells, states.layers, strict=True)):
            gates = read.gates if number == 0 else cell.from_input(x_RD)
            layers.append(cell.step(gates, before))
            x_RD = layers[-1][0] + x_RD
            x_RD = dropout(x_RD, self.dropout, self.training) if drop is None else drop(x_RD, number)
        states.layers, states.output_RD = layers, x_RD
        return x_RD

    def run(self, embedded_BTE: Tensor) -> Tensor:
        """Whole sentences from zero states, each layer in one call: the top outputs (B, T, D)."""
        x_BTD = embedded_BTE
        for number, cell in enumerate(self.cells):
            output_BTD, _ = cell.run(x_BTD)
            x_BTD = output_BTD + (self.residual(x_BTD) if number == 0 else x_BTD)
            x_BTD = dropout(x_BTD, self.dropout, self.training)
        return x_BTD
