"""The matrices of our recurrent modules by the names of the equations, for `tests/reference/recurrent.py`.

Views of the parameters, so that autograd reaches them; `cast` may make float64 numbers of float32 ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.recurrent import BlockAttention, Cell, FixedContext, GeneralAttention, LSTMCell, MLPAttention
from phraseloom.models.recurrent import RecurrentDecoder
from tests.reference import recurrent as reference

Cast = Callable[[Tensor], Tensor]


def same(x: Tensor) -> Tensor:
    return x


def cell_of(cell: Cell, cast: Cast = same) -> reference.Cell:
    """Rows of the gates in torch's order: i f g o, and r z n."""
    gates = "ifgo" if isinstance(cell, LSTMCell) else "rzn"
    found: dict[str, Tensor] = {}
    for name, parameter in (("W", cell.input_weight), ("U", cell.hidden_weight), ("b", cell.bias)):
        found |= {f"{name}{gate}": rows for gate, rows in zip(gates, cast(parameter).split(cell.width), strict=True)}
    if gates == "ifgo":
        return reference.Cell(reference.lstm, found, 2, cell.width)
    return reference.Cell(reference.gru, {**found, "b'n": cast(cell.candidate_bias)}, 1, cell.width)


def attention_of(layer: Any, cast: Cast = same) -> reference.Attention:
    """The loops of an attention; those of n-grams are proven elsewhere, and here run over the queries so far at once."""
    if isinstance(layer, MLPAttention):
        return reference.mlp(
            {"Wq": cast(layer.query_weight), "Ws": cast(layer.key_weight), "w": cast(layer.score_weight)}
        )
    if isinstance(layer, GeneralAttention):
        return reference.general({"W": cast(layer.query_weight)})
    if isinstance(layer, FixedContext):
        return reference.fixed
    assert isinstance(layer, BlockAttention)
    block = layer.block
    if block.structure.is_token:
        named = {**block.score.matrices(), **block.arrangement.matrices()}
        return reference.multihead({name: cast(matrix).T for name, matrix in named.items()}, block.structure.heads)

    if cast is not same:
        block = copy.deepcopy(block).double()

    def attend(queries: list[Tensor], memory: list[Tensor]) -> tuple[Tensor, Tensor]:
        visibility = Visibility(key_length=len(memory), query_length=len(queries))
        made, weights = block(torch.stack(queries)[None], torch.stack(memory)[None], visibility)
        return made[0, -1], block.structure.split(weights)[0, :, :, -1].flatten(-2)

    return attend


def decoder_of(decoder: RecurrentDecoder, cast: Cast = same) -> reference.Decoder:
    cells = [cell_of(cell, cast) for cell in decoder.cells]
    if decoder.initial == "last":
        linear = decoder.initial_states.linear
        rows = zip(cast(linear.weight).split(decoder.width), cast(linear.bias).split(decoder.width), strict=True)
        initial = reference.initial_last([[next(rows) for _ in range(cell.parts)] for cell in cells])
    else:
        initial = reference.initial_zero(cells) if decoder.initial == "zero" else reference.initial_final
    w = {"W": cast(decoder.hidden.weight), "b": cast(decoder.hidden.bias)}
    return reference.Decoder(
        cells, attention_of(decoder.attention, cast), initial, w, decoder.input_feeding, decoder.residual
    )


def encoded(encoder: Any, xs: list[Tensor], cast: Cast = same) -> tuple[list[Tensor], Any]:
    """The source states of any encoder without self-attention."""
    layers = [[cell_of(cell, cast) for cell in cells] for cells in getattr(encoder, "layers", [])]
    return reference.encode(xs, layers, residual=getattr(encoder, "residual", False))
