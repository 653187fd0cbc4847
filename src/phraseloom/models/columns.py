"""The encoder of NPMT (Huang et al. 2018; spec §5.1): two columns of recurrent layers that turn round from layer to layer.

    xˡ = RNNˡ(xˡ⁻¹) + xˡ⁻¹,   in column c layer l (both from 0) reads forwards if l + c is even
    m  = dropout(W [x of the one column ; x of the other])

A bias-free map stands in the residual of the first layers where the width changes. Dropout also acts between the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.dropout import dropout
from phraseloom.layers.recurrent import Cell
from phraseloom.models.encoder import Encoded
from phraseloom.models.phrases import PhraseLevels
from phraseloom.models.recurrent import backwards_order, in_order


class ColumnsEncoder(nn.Module):
    """`columns`: the cells of both, from the bottom up; states of `width` come out."""

    structures: Sequence[Structure] = ()

    def __init__(self, columns: list[list[Cell]], *, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        first = columns[0][0]
        self.columns: Sequence[Sequence[Cell]] = nn.ModuleList(  # type: ignore[assignment]
            nn.ModuleList(cells) for cells in columns
        )
        same = first.input_width == first.width
        self.residuals: Sequence[nn.Module] = nn.ModuleList(  # type: ignore[assignment]
            nn.Identity() if same else nn.Linear(first.input_width, first.width, bias=False) for _ in columns
        )
        self.joined = nn.Linear(len(columns) * first.width, width, bias=False)
        self.dropout = dropout

    @property
    def layers(self) -> Any:
        """The cells of the first column: as many as there are layers."""
        return self.columns[0]

    def forward(
        self,
        x_BSD: Tensor,
        lengths_B: Tensor | None,
        *,
        phrases: PhraseLevels | None = None,
        kept: list[Tensor] | None = None,
    ) -> Encoded:
        """Embedded source and its real lengths (None: nothing is padded) → memory (B, S, D).

        The columns have no levels in common of which phrases could be made: `phrases` is None.
        """
        assert phrases is None
        order = backwards_order(lengths_B, x_BSD)
        tops = []
        for number, (cells, residual) in enumerate(zip(self.columns, self.residuals, strict=True)):
            turned, x = bool(number % 2), x_BSD
            for layer, cell in enumerate(cells):
                read = x if layer == 0 else dropout(x, self.dropout, self.training)
                output, _ = cell.run(in_order(read, order) if turned else read)
                x = (in_order(output, order) if turned else output) + (residual(read) if layer == 0 else read)
                turned = not turned
            tops.append(x)
        states_BSD = dropout(self.joined(torch.cat(tops, -1)), self.dropout, self.training)
        return Encoded(states_BSD.to(self.joined.weight.dtype))
