"""The attentive combination network: every token looks at the phrases of the source and takes what it needs (P001 §3.4;
spec §3.5).

    a = MultiHeadAttention(query = x, keys = values = R)             R the phrase vectors; no biases
    z = W_b dropout(sigmoid(W_a [x ; a] + b_a))                      the token first; f inner values
    post-norm:  y = LN(x + a + dropout(z))
    pre-norm:   y = x + a + dropout(z), with LN(x) in place of x above and phrases made of normalised tokens

The released code adds both x and a to z; with `add_attended=False` it is x only, as in the paper's text. The phrases of a
sentence are few, and for a decoder they do not change from step to step, so their keys and values are made once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.dropout import dropout
from phraseloom.layers.initialisation import Draw, draw_linear, xavier_uniform
from phraseloom.layers.packed import Packed, linear
from phraseloom.layers.residual import Residual


class PhraseKeys(NamedTuple):
    """Keys and values of the phrases of each sentence, (B, H, P, E) each, and which of them exist."""

    keys: Tensor
    values: Tensor
    visibility: Visibility

    def select(self, sentences_B: Tensor) -> PhraseKeys:
        """Only these sentences, in this order."""
        lengths, phrases = self.visibility.lengths_B, self.keys.shape[2]
        if lengths is not None:
            lengths = lengths.index_select(0, sentences_B)
        visibility = Visibility(key_length=phrases, lengths_B=lengths, device=self.keys.device)
        return PhraseKeys(self.keys.index_select(0, sentences_B), self.values.index_select(0, sentences_B), visibility)


class AttentiveCombination(nn.Module):
    """One combination network with its residual; `inner` is f, `attention_dropout` acts on the weights of the phrases,
    `inner_dropout` behind the sigmoid;
    `add_attended`: whether the residual has a beside x."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        inner: int,
        residual: Residual,
        attention_dropout: float = 0.0,
        inner_dropout: float = 0.0,
        add_attended: bool = True,
    ) -> None:
        super().__init__()
        self.add_attended = add_attended
        self.heads, self.attention_dropout, self.inner_dropout = heads, attention_dropout, inner_dropout
        self.query = nn.Linear(width, width, bias=False)
        self.keys_values = nn.Linear(width, 2 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.hidden = nn.Linear(2 * width, inner)
        self.down = nn.Linear(inner, width, bias=False)
        self.residual = residual
        self._packed: dict[str, Packed] = {}
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw every matrix, keys and values apart; the bias becomes zero."""
        for linear_map in (self.query, self.output, self.hidden, self.down):
            draw_linear(linear_map, draw)
        for half in self.keys_values.weight.chunk(2):
            draw(half, fan_in=half.shape[1], fan_out=half.shape[0])

    def last_matrices(self) -> list[Tensor]:
        """What the branch ends in: the output matrix of the attention, and W_b."""
        return [self.output.weight, self.down.weight]

    def pack(self) -> None:
        """Lay out the weights for inference (`layers/packed.py`)."""
        for name in ("query", "output", "hidden", "down"):
            part = getattr(self, name)
            self._packed[name] = Packed(part.weight, part.bias)

    def enter(self, x: Tensor) -> Tensor:
        """What the network reads of the stream `x`; an encoder makes its phrases of the same."""
        return self.residual.enter(x)

    def remember(self, phrases_BPD: Tensor, visibility: Visibility) -> PhraseKeys:
        """The keys and values of the phrases of a source."""
        made = self.keys_values(visibility.without_padding(phrases_BPD))
        keys, values = made.unflatten(-1, (2 * self.heads, -1)).transpose(1, 2).chunk(2, 1)
        return PhraseKeys(keys, values, visibility)

    def forward(self, x_BQD: Tensor, phrases: PhraseKeys, *, entered: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The stream (B, Q, D) → the stream with what the phrases add, and the weights (B, H, Q, P) before dropout.

        `entered`: `enter(x_BQD)`, where it was needed before. In search the Q queries are the hypotheses of a sentence.
        """
        entered = self.enter(x_BQD) if entered is None else entered
        queries = self._product("query", entered).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = (queries * queries.shape[-1] ** -0.5) @ phrases.keys.transpose(-1, -2)
        weights = masked_softmax(scores, phrases.visibility.hidden())
        dropped = dropout(weights, self.attention_dropout, self.training)
        attended = self._product("output", (dropped @ phrases.values).transpose(1, 2).flatten(2))
        inner = self._product("hidden", torch.cat([entered, attended], -1)).sigmoid()
        z = self._product("down", dropout(inner, self.inner_dropout, self.training))
        return self.residual.leave(x_BQD + attended if self.add_attended else x_BQD, z), weights

    def _product(self, name: str, x: Tensor) -> Tensor:
        part = getattr(self, name)
        packed = None if self.training else self._packed.get(name)
        return linear(x, part.weight, part.bias, packed)
