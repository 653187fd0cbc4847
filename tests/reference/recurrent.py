"""Recurrent encoder and decoder as loops over one sentence, written from the equations. No batch, no padding.

One vector a token; matrices are used as W @ x. In torch, so that autograd gives reference gradients as well.

    LSTM  c_t = σ(f) c_{t-1} + σ(i) tanh(g),  h_t = σ(o) tanh(c_t),  each of i f g o: W x_t + U h_{t-1} + b
    GRU   n = tanh(W_n x_t + b_n + r ∘ (U_n h_{t-1} + b'_n)),  h_t = (1 - z) n + z h_{t-1}
    decoder  u_t = [E y_{t-1} ; ĥ_{t-1}],  ĥ_t = tanh(W [q_t ; c_t] + b)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Vectors = list[Tensor]
State = tuple[Tensor, ...]
Weights = Mapping[str, Tensor]


def sigmoid(x: Tensor) -> Tensor:
    return 1.0 / (1.0 + torch.exp(-x))


def softmax(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.max())
    return powers / powers.sum()


def lstm(x: Tensor, state: State, w: Weights) -> State:
    h, c = state
    i, f, g, o = (w[f"W{gate}"] @ x + w[f"U{gate}"] @ h + w[f"b{gate}"] for gate in "ifgo")
    c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
    return sigmoid(o) * torch.tanh(c), c


def gru(x: Tensor, state: State, w: Weights) -> State:
    (h,) = state
    r, z = (sigmoid(w[f"W{gate}"] @ x + w[f"U{gate}"] @ h + w[f"b{gate}"]) for gate in "rz")
    n = torch.tanh(w["Wn"] @ x + w["bn"] + r * (w["Un"] @ h + w["b'n"]))
    return ((1 - z) * n + z * h,)


@dataclass
class Cell:
    """A step and its matrices; `parts` tensors of `width` in its state."""

    step: Callable[[Tensor, State, Weights], State]
    w: Weights
    parts: int
    width: int

    def zeros(self) -> State:
        some = next(iter(self.w.values()))
        return tuple(some.new_zeros(self.width) for _ in range(self.parts))


def read(cell: Cell, xs: Sequence[Tensor], state: State | None = None) -> tuple[Vectors, State]:
    """The outputs for each token, and the state after the last."""
    state = cell.zeros() if state is None else state
    outputs = []
    for x in xs:
        state = cell.step(x, state, cell.w)
        outputs.append(state[0])
    return outputs, state


def read_both_ways(forwards: Cell, backwards: Cell, xs: Sequence[Tensor]) -> tuple[Vectors, State]:
    """[→h_t ; ←h_t] of every token; the state at the end of each direction, side by side."""
    there, end = read(forwards, xs)
    back, begin = read(backwards, list(reversed(xs)))
    outputs = [torch.cat([a, b]) for a, b in zip(there, reversed(back), strict=True)]
    return outputs, tuple(torch.cat([a, b]) for a, b in zip(end, begin, strict=True))


def encode(xs: Vectors, layers: Sequence[Sequence[Cell]], *, residual: bool) -> tuple[Vectors, list[State]]:
    """The source states, and the final state of each layer."""
    final = []
    for number, cells in enumerate(layers):
        outputs, state = read(cells[0], xs) if len(cells) == 1 else read_both_ways(*cells, xs)
        if residual and number >= 1:
            outputs = [x + y for x, y in zip(xs, outputs, strict=True)]
        xs = outputs
        final.append(state)
    return xs, final


Initial = Callable[[Tensor, list[State] | None], list[State]]
"""The last source state and the final states of the encoder → the first state of each layer."""
Attention = Callable[[Vectors, Vectors], tuple[Tensor, Tensor | None]]
"""The queries so far and the source states → the context of the last query, and its weights."""


def _contexts(score: Callable[[Tensor, Tensor], Tensor]) -> Attention:
    def attend(queries: Vectors, memory: Vectors) -> tuple[Tensor, Tensor]:
        a = softmax(torch.stack([score(queries[-1], m) for m in memory]))
        return sum((a_s * m for a_s, m in zip(a, memory, strict=True)), torch.zeros_like(memory[0])), a

    return attend


def mlp(w: Weights) -> Attention:
    """e_s = w · tanh(W_q q + W_s m_s)."""
    return _contexts(lambda q, m: w["w"] @ torch.tanh(w["Wq"] @ q + w["Ws"] @ m))


def general(w: Weights) -> Attention:
    """e_s = m_s · (W q)."""
    return _contexts(lambda q, m: m @ (w["W"] @ q))


def fixed(queries: Vectors, memory: Vectors) -> tuple[Tensor, None]:
    """The last source state, whatever the query."""
    return memory[-1], None


def multihead(w: Weights, heads: int) -> Attention:
    """Scaled dot products in each head, values of their own, an output matrix."""

    def attend(queries: Vectors, memory: Vectors) -> tuple[Tensor, Tensor]:
        q, contexts, weights = w["Wq"] @ queries[-1], [], []
        size = len(q) // heads
        for h in range(heads):
            rows = slice(h * size, (h + 1) * size)
            a = softmax(torch.stack([q[rows] @ (w["Wk"] @ m)[rows] / math.sqrt(size) for m in memory]))
            weights.append(a)
            contexts.append(torch.stack([a_s * (w["Wv"] @ m)[rows] for a_s, m in zip(a, memory, strict=True)]).sum(0))
        return w["Wo"] @ torch.cat(contexts), torch.stack(weights)

    return attend


@dataclass
class Decoder:
    """Layers, attention, first states; `w`: W and b of what joins query and context."""

    cells: list[Cell]
    attention: Attention
    initial: Initial
    w: Weights
    input_feeding: bool
    residual: bool


def initial_last(w: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> Initial:
    """tanh(W m_last + b) with a matrix and bias for each part of each layer."""
    return lambda last, final: [tuple(torch.tanh(matrix @ last + b) for matrix, b in layer) for layer in w]


def initial_zero(cells: Sequence[Cell]) -> Initial:
    return lambda last, final: [cell.zeros() for cell in cells]


def initial_final(last: Tensor, final: list[State] | None) -> list[State]:
    """Those of the encoder, layer by layer."""
    assert final is not None
    return list(final)


def decode(
    ys: Vectors, memory: Vectors, decoder: Decoder, final: list[State] | None = None
) -> tuple[Vectors, list[Tensor | None]]:
    """ĥ and the attention weights of each step, from the embedded target prefix."""
    states = decoder.initial(memory[-1], final)
    fed = torch.zeros_like(memory[-1])
    queries, hidden, weights = [], [], []
    for y in ys:
        u = torch.cat([y, fed]) if decoder.input_feeding else y
        for number, cell in enumerate(decoder.cells):
            states[number] = cell.step(u, states[number], cell.w)
            h = states[number][0]
            u = u + h if decoder.residual and number >= 1 else h
        queries.append(u)
        context, a = decoder.attention(queries, memory)
        fed = torch.tanh(decoder.w["W"] @ torch.cat([u, context]) + decoder.w["b"])
        hidden.append(fed)
        weights.append(a)
    return hidden, weights
