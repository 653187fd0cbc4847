"""Recurrent encoder and decoder (P004 §3.1).

Encoder   layers 1 … N read in both directions with half the width each, the others forwards
Decoder   u_t = [E y_{t-1} ; ĥ_{t-1}]                 with input feeding (ĥ_{-1} = 0); without it u_t = E y_{t-1}
          q_t = top layer of the stack over u_t
          ĥ_t = tanh(W [q_t ; context(q_t)] + b)      to the output layer, and fed back

Initial states of the decoder: `last` is tanh(W m_last + b) of the last source state, with a matrix for each part of each layer;
`final` the final states of the encoder layers; `zero`.

With input feeding every layer depends on the step before, so training runs step by step; only the product with E y is
computed once for all steps. Without input feeding each layer, and the attention, is one call over the whole target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.errors import ModelError
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.feedforward import dropout
from phraseloom.layers.initialisation import Draw, draw_linear, xavier_uniform
from phraseloom.layers.recurrent import Cell, State, VariationalMasks, last_states
from phraseloom.models.decoder import DecoderState, Memory
from phraseloom.models.encoder import Encoded
from phraseloom.models.phrases import PhraseLevels

Initial = Literal["last", "final", "zero"]


class RecurrentEncoder(nn.Module):
    """A stack of layers with one cell per direction; `residual` adds the input to the output of each layer after the first.

    `keep_final`: also return the state of each layer after the last real token. `variational`: dropout rates of the inputs and
    states of all cells. `norm` acts on the encoder output.
    """

    structures: Sequence[Structure] = ()

    def __init__(
        self,
        layers: list[list[Cell]],
        *,
        residual: bool = False,
        dropout: float = 0.0,
        keep_final: bool = False,
        variational: tuple[float, float] = (0.0, 0.0),
        norm: nn.LayerNorm | None = None,
    ) -> None:
        super().__init__()
        self.layers: Sequence[Sequence[Cell]] = nn.ModuleList(  # type: ignore[assignment]
            nn.ModuleList(cells) for cells in layers
        )
        self.residual, self.dropout, self.keep_final = residual, dropout, keep_final
        self.variational, self.norm = variational, norm

    def forward(
        self,
        x_BSD: Tensor,
        lengths_B: Tensor | None,
        *,
        phrases: PhraseLevels | None = None,
        attention_weights: list[Tensor] | None = None,
    ) -> Encoded:
        """Embedded source and its real lengths (None if nothing is padded) → states (B, S, D) and final states.

        Adds the phrase vectors of every level to `phrases`. There are no attention weights.
        """
        final: list[State] = []
        backwards = backwards_order(lengths_B, x_BSD)
        packed_B = lengths_B if self.keep_final else None
        for number, cells in enumerate(self.layers):
            if phrases is not None:
                phrases.add_level(x_BSD)
            read_BSD = dropout(x_BSD, self.dropout, self.training) if number else x_BSD
            masks = [self._masks(cell, read_BSD) for cell in cells]
            output_BSD, state = cells[0].run(read_BSD, packed_B, masks=masks[0])
            if len(cells) > 1:
                other_BSD, other = cells[1].run(in_order(read_BSD, backwards), packed_B, masks=masks[1])
                output_BSD = torch.cat([output_BSD, in_order(other_BSD, backwards)], -1)
                state = tuple(torch.cat(parts, -1) for parts in zip(state, other, strict=True))
            x_BSD = x_BSD + output_BSD if self.residual and number else output_BSD
            final.append(state)
        x_BSD = x_BSD if self.norm is None else self.norm(x_BSD)
        if phrases is not None:
            phrases.add_level(x_BSD)
        return Encoded(x_BSD, final if self.keep_final else None)

    def _masks(self, cell: Cell, read_BSD: Tensor) -> VariationalMasks | None:
        inputs, states = self.variational
        return cell.masks(len(read_BSD), read_BSD, inputs=inputs, states=states)


def backwards_order(lengths_B: Tensor | None, x_BSD: Tensor) -> Tensor | None:
    """For each position of the reversed sentences its position in the original, (B, S); padding stays in place. None if no
    sentence is padded."""
    if lengths_B is None:
        return None
    positions = torch.arange(x_BSD.shape[1], device=x_BSD.device)[None]
    return torch.where(positions < lengths_B[:, None], lengths_B[:, None] - 1 - positions, positions)


def in_order(x_BSD: Tensor, order_BS: Tensor | None) -> Tensor:
    """The positions of each sentence in this order; None reverses them."""
    if order_BS is None:
        return x_BSD.flip(1)
    return x_BSD.gather(1, order_BS[:, :, None].expand_as(x_BSD))


class InitialStates(nn.Module):
    """tanh(W m_last + b) for every part of the state of every layer, in one product."""

    def __init__(self, *, width: int, layers: int, parts: int) -> None:
        super().__init__()
        self.layers, self.parts = layers, parts
        self.linear = nn.Linear(width, layers * parts * width)
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw the matrix, each part of a state as a separate map; the bias becomes zero."""
        draw(self.linear.weight, fan_in=self.linear.in_features, fan_out=self.linear.in_features)
        nn.init.zeros_(self.linear.bias)

    def forward(self, last_BD: Tensor) -> list[State]:
        """The last source state → the state of each layer."""
        parts: Any = self.linear(last_BD).tanh().chunk(self.layers * self.parts, -1)
        return [tuple(parts[n : n + self.parts]) for n in range(0, len(parts), self.parts)]


def final_states(memory: Memory) -> list[State]:
    """The final state of each layer of the encoder. Raises ModelError for an encoder that returns none."""
    if memory.final is None:
        raise ModelError("the decoder starts from the final states of the encoder, and this encoder returns none")
    return memory.final


class RecurrentState:
    """The rows that search reorders: the state of each layer, and the output for input feeding, each (R, D).

    `masks`: of each layer, in training with variational dropout.
    """

    def __init__(self, layers: list[State], fed_RD: Tensor, masks: list[VariationalMasks | None]) -> None:
        self.layers, self.fed_RD, self.masks = layers, fed_RD, masks

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        self.layers = [tuple(part.index_select(0, rows_R) for part in state) for state in self.layers]
        self.fed_RD = self.fed_RD.index_select(0, rows_R)


class RecurrentDecoder(nn.Module):
    """Stacked cells, attention of the top cell over the source, and the layer that joins both.

    `attention`: an entry of `layers/recurrent.py`. `hidden_dropout` acts on [q ; context], `dropout` between layers;
    `variational`: dropout rates of the inputs and states of all cells.
    """

    def __init__(
        self,
        cells: list[Cell],
        *,
        attention: Any,
        width: int,
        initial: Initial = "last",
        input_feeding: bool = True,
        residual: bool = False,
        hidden_dropout: float = 0.0,
        dropout: float = 0.0,
        variational: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        super().__init__()
        self.variational = variational
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.attention = attention
        self.initial_states = InitialStates(width=width, layers=len(cells), parts=cells[0].parts)
        self.initial = initial
        if initial != "last":
            del self.initial_states
        self.hidden = nn.Linear(2 * width, width)
        self.initialise(xavier_uniform)
        self.width, self.input_feeding, self.residual = width, input_feeding, residual
        self.hidden_dropout, self.dropout = hidden_dropout, dropout

    def initialise(self, draw: Draw) -> None:
        """Draw the matrix of the joining layer by xavier_uniform, whatever `draw` is; its bias becomes zero.

        No normalisation follows it, so fan_in_uniform would halve the state that the output reads.
        """
        draw_linear(self.hidden, xavier_uniform)

    @property
    def cross_structures(self) -> list[Structure]:
        """What the weights of the attention mean: one entry, or none if the context is fixed."""
        return [] if self.attention.structure is None else [self.attention.structure]

    @property
    def own_structures(self) -> list[Structure]:
        """Empty: a recurrent decoder has no self-attention."""
        return []

    def forward(
        self,
        x_BTD: Tensor,
        memory: Memory,
        *,
        self_attention_weights: list[Tensor] | None = None,
        cross_attention_weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Embedded target prefix → ĥ (B, T, D). Appends the attention weights (B, H, J·T, G·S) to `cross_attention_weights`."""
        state = self.start(memory, beam=1, capacity=x_BTD.shape[1])
        if not self.input_feeding:
            hidden_BTD, weights = self._all_at_once(x_BTD, state)
        else:
            hidden_BTD, weights = self._step_by_step(x_BTD, state)
        if cross_attention_weights is not None and weights is not None:
            cross_attention_weights.append(weights)
        return hidden_BTD

    def _step_by_step(self, x_BTD: Tensor, state: DecoderState) -> tuple[Tensor, Tensor | None]:
        target_weight, fed_weight = self._input_weights()
        masks = state.growing[0].masks[0]
        if masks is not None and masks.inputs is not None:
            x_BTD = x_BTD * masks.inputs[:, None, : x_BTD.shape[-1]]
        from_target_BTG = F.linear(x_BTD, target_weight, self.cells[0].bias)
        outputs: list[Tensor] = []
        attention_weights: list[Any] = []
        for from_target_BG in from_target_BTG.unbind(1):
            hidden_BD, weights = self._advance(from_target_BG, fed_weight, state)
            outputs.append(hidden_BD)
            attention_weights.append(weights)
        weights = None if attention_weights[0] is None else torch.stack(attention_weights, 3).flatten(2, 3)
        return torch.stack(outputs, 1), weights

    def _all_at_once(self, x_BTD: Tensor, state: DecoderState) -> tuple[Tensor, Tensor | None]:
        """Without input feeding all queries are known: the attention treats the T queries of a sentence as rows of a beam."""
        read_BTD = x_BTD
        rows = state.growing[0]
        for number, (cell, before) in enumerate(zip(self.cells, rows.layers, strict=True)):
            dropped_BTD = dropout(read_BTD, self.dropout, self.training) if number else read_BTD
            output_BTD, _ = cell.run(dropped_BTD, None, before, rows.masks[number])
            read_BTD = read_BTD + output_BTD if self.residual and number else output_BTD
        if state.fixed[0].pending is not None:  # n-gram queries need one step after the other
            steps = [self.attention(query, state.fixed[0], state.source) for query in read_BTD.unbind(1)]
            contexts, step_weights = zip(*steps, strict=True)
            return self._join(read_BTD, torch.stack(contexts, 1)), torch.stack(step_weights, 3).flatten(2, 3)
        context, weights = self.attention(read_BTD.flatten(0, 1), state.fixed[0], state.source)
        if weights is not None:
            weights = weights.unflatten(0, x_BTD.shape[:2]).movedim(1, 3).flatten(2, 3)
        return self._join(read_BTD, context.view(read_BTD.shape)), weights

    def start(self, memory: Memory, *, beam: int, capacity: int) -> DecoderState:
        """The state before the first step, for `beam` hypotheses a sentence."""
        states_BSD, source = memory.states_BSD, memory.visibility()
        fixed = self.attention.project_memory(states_BSD, source, beam=beam)
        inputs, states = self.variational
        masks = [cell.masks(len(states_BSD), states_BSD, inputs=inputs, states=states) for cell in self.cells]
        rows = RecurrentState(self._initial(memory), states_BSD.new_zeros(len(states_BSD), self.width), masks)
        if beam > 1:
            rows.reorder(torch.arange(len(states_BSD), device=states_BSD.device).repeat_interleave(beam))
        return DecoderState([rows], beam, len(states_BSD) * beam, states_BSD.device, fixed=[fixed], source=source)

    def _initial(self, memory: Memory) -> list[State]:
        if self.initial == "last":
            states: list[State] = self.initial_states(last_states(memory.states_BSD, memory.lengths_B))
            return states
        if self.initial == "zero":
            return [cell.zeros(len(memory.states_BSD), memory.states_BSD) for cell in self.cells]
        return final_states(memory)

    def step(self, x_RD: Tensor, state: DecoderState) -> tuple[Tensor, list[Tensor]]:
        """One step: embedded tokens (R, D) → ĥ (R, D), and the attention weights (R, H, J, G·S), if there is an attention."""
        target_weight, fed_weight = self._input_weights()
        hidden_RD, weights = self._advance(F.linear(x_RD, target_weight, self.cells[0].bias), fed_weight, state)
        state.step += 1
        return hidden_RD, [] if weights is None else [weights]

    def _input_weights(self) -> tuple[Tensor, Tensor]:
        """The parts of the first layer's matrix that read E y and ĥ; sliced once, because each slice has a whole gradient."""
        weight = self.cells[0].input_weight
        if not self.input_feeding:
            return weight, weight
        target_weight, fed_weight = weight.split((weight.shape[1] - self.width, self.width), 1)
        return target_weight, fed_weight

    def _advance(
        self, from_target_RG: Tensor, fed_weight_GD: Tensor, state: DecoderState
    ) -> tuple[Tensor, Tensor | None]:
        """One step of every row, from the first layer's gates of the target."""
        rows = state.growing[0]
        if self.input_feeding:
            fed_RD, masks = rows.fed_RD, rows.masks[0]
            if masks is not None and masks.inputs is not None:
                fed_RD = fed_RD * masks.inputs[:, -self.width :]
            from_target_RG = torch.addmm(from_target_RG, fed_RD, fed_weight_GD.t())
        query_RD, layers = from_target_RG, []
        for number, (cell, before, masks) in enumerate(zip(self.cells, rows.layers, rows.masks, strict=True)):
            if masks is not None:
                before = masks.on_state(before)
            if number == 0:
                layers.append(cell.step(from_target_RG, before))
                query_RD = layers[0][0]
                continue
            dropped_RD = dropout(query_RD, self.dropout, self.training)
            if masks is not None and masks.inputs is not None:
                dropped_RD = dropped_RD * masks.inputs
            layers.append(cell.step(cell.from_input(dropped_RD), before))
            query_RD = query_RD + layers[-1][0] if self.residual else layers[-1][0]
        context_RD, weights = self.attention(query_RD, state.fixed[0], state.source)
        rows.layers, rows.fed_RD = layers, self._join(query_RD, context_RD)
        return rows.fed_RD, weights

    def _join(self, query: Tensor, context: Tensor) -> Tensor:
        joined = self.hidden(dropout(torch.cat([query, context], -1), self.hidden_dropout, self.training))
        return torch.tanh(joined.to(self.hidden.weight.dtype))  # states keep their precision under autocast
