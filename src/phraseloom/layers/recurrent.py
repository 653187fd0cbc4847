"""Recurrent cells, and the attention of a recurrent decoder.

**Cells** run over whole sequences or step by step, with the same parameters.

    LSTM  i f g o = W_x x_t + W_h h_{t-1} + b
          c_t = σ(f) c_{t-1} + σ(i) tanh(g),  h_t = σ(o) tanh(c_t)                   (Hochreiter and Schmidhuber 1997)
    GRU   r z = σ(W_x x_t + W_h h_{t-1} + b)
          n = tanh(W_x x_t + b + r ∘ (W_h h_{t-1} + b_n)),  h_t = (1 - z) n + z h_{t-1}   (Cho et al. 2014, torch's variant)

torch's own kernels run whole sequences. A sentence ends with its last real token, whatever its padding. States are sums over
many steps, so cells use the precision of their parameters, also under autocast.

**Attention** of a recurrent decoder: one query a step, the whole source, a context vector.

    mlp      e_s = w · tanh(W_q q + W_s m_s)       Bahdanau et al. 2015, without biases
    general  e_s = m_s · (W q)                     Luong et al. 2015
    a = softmax(e) over the real source tokens,  context = Σ_s a_s m_s
    fixed    context = m_last for every query: no attention

Rows of queries are hypotheses: W of each of B sentences. A `FixedCache` holds the projected source, as in cross-attention.
`BlockAttention` adapts `MultiHeadAttention`, with any score and arrangement, to a recurrent decoder.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.cache import FixedCache
from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.feedforward import dropout
from phraseloom.layers.initialisation import Draw, fan_in_uniform, xavier_uniform

__all__ = [
    "ATTENTIONS",
    "BlockAttention",
    "CELLS",
    "Cell",
    "FixedContext",
    "GRUCell",
    "GeneralAttention",
    "LSTMCell",
    "MLPAttention",
    "State",
    "VariationalMasks",
    "last_states",
]

State = tuple[Tensor, ...]
"""The state of a cell: (h, c) of an LSTM, (h,) of a GRU; each (R, D)."""


class VariationalMasks(NamedTuple):
    """Dropout masks that are constant over the steps of a sentence (Gal and Ghahramani 2016): (R, I) for the input of a cell,
    (R, D) for its hidden state; None for no dropout."""

    inputs: Tensor | None = None
    states: Tensor | None = None

    def on_state(self, state: State) -> State:
        """The state with dropout on its hidden part; the memory cell of an LSTM does not change."""
        return state if self.states is None else (state[0] * self.states, *state[1:])


class Cell(nn.Module):
    """Parameters of a cell with `gates` blocks of `width` rows."""

    gates: int
    parts: int  # tensors in the state
    kernel: Any

    def __init__(self, *, input_width: int, width: int) -> None:
        super().__init__()
        self.input_width, self.width = input_width, width
        self.input_weight = nn.Parameter(torch.empty(self.gates * width, input_width))
        self.hidden_weight = nn.Parameter(torch.empty(self.gates * width, width))
        self.bias = nn.Parameter(torch.zeros(self.gates * width))
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw both matrices; each gate is a separate map."""
        draw(self.input_weight, fan_in=self.input_width, fan_out=self.width)
        draw(self.hidden_weight, fan_in=self.width, fan_out=self.width)

    def make_orthogonal(self) -> None:
        """Draw an orthogonal recurrent matrix for each gate (Saxe et al. 2014)."""
        for gate in self.hidden_weight.detach().split(self.width):
            nn.init.orthogonal_(gate)

    def zeros(self, rows: int, like: Tensor) -> State:
        """The state before the first token."""
        return tuple(like.new_zeros(rows, self.width) for _ in range(self.parts))

    def from_input(self, x: Tensor) -> Tensor:
        """W_x x + b of any number of positions at once, (…, I) → (…, gates·D)."""
        return F.linear(x, self.input_weight, self.bias)

    def step(self, from_input_RG: Tensor, state: State) -> State:
        """One step: the new state from W_x x + b and the old state."""
        if not under_autocast(from_input_RG):
            return self._step(from_input_RG, state)
        with torch.autocast(from_input_RG.device.type, enabled=False):
            return self._step(from_input_RG.to(self.bias.dtype), tuple(part.to(self.bias.dtype) for part in state))

    def _step(self, from_input_RG: Tensor, state: State) -> State:
        raise NotImplementedError

    def _hidden_bias(self) -> Tensor:
        return torch.zeros_like(self.bias)

    def masks(self, rows: int, like: Tensor, *, inputs: float, states: float) -> VariationalMasks | None:
        """Masks for `rows` sentences with the rates of variational dropout; None without it, and in evaluation."""
        if not self.training or not (inputs or states):
            return None
        return VariationalMasks(
            dropout(like.new_ones(rows, self.input_width), inputs, True) if inputs else None,
            dropout(like.new_ones(rows, self.width), states, True) if states else None,
        )

    def run(
        self,
        x_BSI: Tensor,
        lengths_B: Tensor | None = None,
        state: State | None = None,
        masks: VariationalMasks | None = None,
    ) -> tuple[Tensor, State]:
        """Read whole sentences forwards: outputs (B, S, D) and the state after the last position.

        With `lengths_B` the state is the one after the last real token, and outputs after it are zero; torch then reads packed
        sentences, which is slower. With masks on the state the cell runs step by step, which is also slower.
        """
        state = self.zeros(len(x_BSI), x_BSI) if state is None else state
        if masks is not None and masks.inputs is not None:
            x_BSI = x_BSI * masks.inputs[:, None]
        if masks is not None and masks.states is not None:
            return self._run_by_steps(x_BSI, lengths_B, state, masks)
        start = tuple(part[None] for part in state)
        if lengths_B is None:
            return self._kernel(x_BSI, None, start)
        packed = nn.utils.rnn.pack_padded_sequence(x_BSI, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        assert order is not None and back is not None
        start = tuple(part.index_select(1, order) for part in start)
        data, final = self._kernel(packed.data, packed.batch_sizes, start)
        whole = nn.utils.rnn.PackedSequence(data, packed.batch_sizes, order, back)
        output, _ = nn.utils.rnn.pad_packed_sequence(whole, batch_first=True, total_length=x_BSI.shape[1])
        return output, tuple(part.index_select(0, back) for part in final)

    def _run_by_steps(
        self, x_BSI: Tensor, lengths_B: Tensor | None, state: State, masks: VariationalMasks
    ) -> tuple[Tensor, State]:
        outputs = []
        for position, from_input_BG in enumerate(self.from_input(x_BSI).unbind(1)):
            after = self.step(from_input_BG, masks.on_state(state))
            output_BD = after[0]
            if lengths_B is not None:
                real_B1 = (position < lengths_B)[:, None]
                after = tuple(torch.where(real_B1, new, old) for new, old in zip(after, state, strict=True))
                output_BD = output_BD * real_B1
            state = after
            outputs.append(output_BD)
        return torch.stack(outputs, 1), state

    def _kernel(self, x: Tensor, sizes: Tensor | None, start: tuple[Tensor, ...]) -> tuple[Tensor, State]:
        """torch's kernel for one layer in one direction, over a padded batch or, with `sizes`, packed data."""
        weights = [self.input_weight, self.hidden_weight, self.bias, self._hidden_bias()]
        kind = self.bias.dtype
        x, start = x.to(kind), tuple(part.to(kind).contiguous() for part in start)
        state = start if self.parts > 1 else start[0]
        train = x.device.type != "cpu" and torch.is_grad_enabled()  # cuDNN keeps what a backward pass needs only then
        arguments = (weights, True, 1, 0.0, train, False)
        with torch.autocast(x.device.type, enabled=False) if under_autocast(x) else nullcontext():
            output, *final = (
                self.kernel(x, state, *arguments, True) if sizes is None else self.kernel(x, sizes, state, *arguments)
            )
        return output, tuple(part[0] for part in final)


def under_autocast(x: Tensor) -> bool:
    """Whether autocast is on for this tensor; the meta device has none."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


class LSTMCell(Cell):
    """Long short-term memory; the bias of the forget gate is initialised to 1 (Jozefowicz et al. 2015)."""

    gates, parts, kernel = 4, 2, staticmethod(torch._VF.lstm)

    def __init__(self, *, input_width: int, width: int) -> None:
        super().__init__(input_width=input_width, width=width)
        nn.init.ones_(self.bias[width : 2 * width])

    def _step(self, from_input_RG: Tensor, state: State) -> State:
        h, c = state
        i, f, g, o = torch.addmm(from_input_RG, h, self.hidden_weight.t()).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class GRUCell(Cell):
    """Gated recurrent unit."""

    gates, parts, kernel = 3, 1, staticmethod(torch._VF.gru)

    def __init__(self, *, input_width: int, width: int) -> None:
        super().__init__(input_width=input_width, width=width)
        self.candidate_bias = nn.Parameter(torch.zeros(width))

    def _step(self, from_input_RG: Tensor, state: State) -> State:
        (h,) = state
        r, z, n = from_input_RG.chunk(3, 1)
        hidden_r, hidden_z, hidden_n = F.linear(h, self.hidden_weight).chunk(3, 1)
        r, z = (r + hidden_r).sigmoid(), (z + hidden_z).sigmoid()
        n = (n + r * (hidden_n + self.candidate_bias)).tanh()
        return (torch.lerp(n, h, z),)

    def _hidden_bias(self) -> Tensor:
        return torch.cat([self.bias.new_zeros(2 * self.width), self.candidate_bias])


CELLS: dict[str, Any] = {"lstm": LSTMCell, "gru": GRUCell}


ONE_HEAD = Structure.of_orders(1, [1])


def last_states(memory_BSD: Tensor, lengths_B: Tensor | None) -> Tensor:
    """The state of the last real token of each sentence, (B, D)."""
    if lengths_B is None:
        return memory_BSD[:, -1]
    return memory_BSD[torch.arange(len(memory_BSD), device=memory_BSD.device), lengths_B - 1]


class _SingleHead(nn.Module):
    """Attention with one distribution over the source; a subclass defines keys and scores."""

    structure: Structure | None = ONE_HEAD

    def project_memory(self, memory_BSD: Tensor, visibility: Visibility, *, beam: int = 1) -> FixedCache:
        """Keys and values of a source, for the queries of `beam` hypotheses a sentence."""
        memory_BSD = visibility.without_padding(memory_BSD)
        return FixedCache([self._keys(memory_BSD)], [memory_BSD], None)

    def forward(self, query_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor | None]:
        """The context (R, D) of each query, and the weights (R, 1, 1, S)."""
        query_BWD = query_RD.view(len(cache.values[0]), -1, query_RD.shape[-1])
        hidden = visibility.hidden()
        weights_BWS = masked_softmax(self._scores(query_BWD, cache.keys[0]), None if hidden is None else hidden[:, 0])
        return (weights_BWS @ cache.values[0]).flatten(0, 1), weights_BWS.flatten(0, 1)[:, None, None]

    def _keys(self, memory_BSD: Tensor) -> Tensor:
        raise NotImplementedError

    def _scores(self, query_BWD: Tensor, keys_BSD: Tensor) -> Tensor:
        raise NotImplementedError


class MLPAttention(_SingleHead):
    """Scores by a layer of tanh units."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(width, width))
        self.key_weight = nn.Parameter(torch.empty(width, width))
        self.score_weight = nn.Parameter(torch.empty(width))
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw both matrices; w always comes from ± 1/√D."""
        width = len(self.score_weight)
        for matrix in (self.query_weight, self.key_weight):
            draw(matrix, fan_in=width, fan_out=width)
        fan_in_uniform(self.score_weight, fan_in=width, fan_out=1)

    def _keys(self, memory_BSD: Tensor) -> Tensor:
        return F.linear(memory_BSD, self.key_weight)

    def _scores(self, query_BWD: Tensor, keys_BSD: Tensor) -> Tensor:
        query_BWD = F.linear(query_BWD, self.query_weight)
        return (query_BWD[:, :, None] + keys_BSD[:, None]).tanh() @ self.score_weight


class GeneralAttention(_SingleHead):
    """Scores by a bilinear form."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(width, width))
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw the matrix."""
        draw(self.query_weight, fan_in=len(self.query_weight), fan_out=len(self.query_weight))

    def _keys(self, memory_BSD: Tensor) -> Tensor:
        return memory_BSD

    def _scores(self, query_BWD: Tensor, keys_BSD: Tensor) -> Tensor:
        return F.linear(query_BWD, self.query_weight) @ keys_BSD.transpose(1, 2)


class FixedContext(nn.Module):
    """The last state of the source as the context of every step; no parameters, no attention weights."""

    structure: Structure | None = None

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.width = width

    def project_memory(self, memory_BSD: Tensor, visibility: Visibility, *, beam: int = 1) -> FixedCache:
        """The last state of each sentence."""
        return FixedCache([last_states(memory_BSD, visibility.lengths_B)], [], None)

    def forward(self, query_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor | None]:
        """The context (R, D) of each query, and None for the weights."""
        last_BD = cache.keys[0]
        return last_BD.repeat_interleave(len(query_RD) // len(last_BD), 0), None


class BlockAttention(nn.Module):
    """A multi-head attention, phrasal or not, as the attention of a recurrent decoder."""

    def __init__(self, block: MultiHeadAttention) -> None:
        super().__init__()
        self.block = block
        self.structure: Structure | None = block.structure

    def project_memory(self, memory_BSD: Tensor, visibility: Visibility, *, beam: int = 1) -> FixedCache:
        """Keys and values of a source, for the queries of `beam` hypotheses a sentence."""
        return self.block.remember(memory_BSD, visibility, beam=beam)

    def forward(self, query_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor | None]:
        """The context (R, D) of each query, and the weights (R, H, J, G·S)."""
        return self.block.step_cross(query_RD, cache, visibility)


ATTENTIONS: dict[str, type[MLPAttention] | type[GeneralAttention] | type[FixedContext]] = {
    "mlp": MLPAttention,
    "general": GeneralAttention,
    "fixed": FixedContext,
}
