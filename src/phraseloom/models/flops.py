"""The matrix-product FLOP of a training update and of a search, from a model's configuration and its sentences' lengths.

A product (m × k)(k × n) counts 2mkn. Counted are: the projections of every tap, the products of queries with keys, the
mixing of values, the output matrices, the feed-forward layers, recurrent layers and the vocabulary. Not counted: softmax,
normalisation, dropout, sums.
A backward pass has two products for each of the forward pass, so an update is three forward passes; but one where a side is
constant, such as the zero state before the first token.

What a block of attention costs, with D model width, H heads of size E, T taps, J query orders, G slots a token (all orders):

    projections    2·D·(columns)       a query token: those of Wq; a key token: those of Wk and Wv
    scores         2·(pairs)·Q·K       token, convkv: D·J·G; queryk: a product a tap, Σ over heads of n·E·J
    mixing         2·D·J·G·Q·K
    output         2·D·D·taps·Q        1; interleaved: Σ m in an encoder, J elsewhere (every tap of the output convolution)

What phrase representations add (spec §3), with P phrases in a sentence, f and h the inner widths of combination and scorer:

    level          2·D·h + D           a source token, L+1 levels: W1 on [g ; x_k] (with a scorer), the sum of its x_k
    combination    2·D·D + 3·D·f       a token, every layer of both sides: Wq, Wo, W_a on [x ; a], W_b
                   2·D·D               a phrase: Wk and Wv; in search once a source
                   2·D·P               a token: scores and mixing
    transparent    (L+1)·D a phrase and decoder layer; with transparent_tokens the same a token

That is the plain count, of the formulas as the paper writes them. `computed=True` counts what the layers multiply instead: the
glance half of W1 once a phrase, and sums over the tokens of a phrase as products with the P × S membership (a constant, so
that its backward pass has one product).

What recurrent layers cost (spec §4.5, §6.1), with G gates (LSTM 4, GRU 3):

    cell           G·W·(I + W)         a token: of width W over an input of I; both directions of a layer have D/2 each
    decoder        I = 2·D             of its first layer with input feeding
                   2·D·D               a token: the layer that joins query and context
    attention      2·D                 a pair: score and mixing (mlp, general; none with a fixed context)
                   D·D                 a target token: W of the query; mlp: also a source token, once
                   multihead           as cross-attention above
    first states   (parts)·L·D·D       a sentence, with `initial: last`; an LSTM has 2 parts

What a continuous output adds (spec §4), with V types and m the width of their fixed vectors:

    reading        m·D                 a target token: the vector of the token before; no gradient but that of the matrix
    projection     D·m                 a target token; with a hidden layer + m·m
    table          V·m                 a target token, in search; in training no product, but with max_margin V·m forward
    fertility      Σ n·k of its maps   a source token, and 1 a pair for the gate; in search, as it is trained by itself

Slots that would begin before the sentence count as the others (at most n-1 of K), as they are computed. Lengths count EOS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from phraseloom.models.flops_parts import (
    PhraseCost,
    RecurrentDecoderCost,
    RecurrentEncoderCost,
    TransformerDecoderCost,
    TransformerEncoderCost,
)

Pair = tuple[int, int]


@dataclass(frozen=True)
class OutputCost:
    """Multiply-adds of a target token: what reads the token before, from fixed vectors; what writes, in training and in
    search; what a loss does beside that `without` gradient. Of a source token, and of a pair of both: the gate of search."""

    read: int
    train: int
    search: int
    without: int = 0
    gate_source: int = 0
    gate_pair: int = 0

    @classmethod
    def of(cls, model: Any, vocabulary: int, table_width: int) -> OutputCost:
        """From a ModelConfig, the size of the target vocabulary, and the width of its fixed vectors if it has such."""
        output, width = model.output, model.width
        if output.kind == "softmax":
            return cls(0, width * vocabulary, width * vocabulary)
        words = vocabulary * table_width
        project = width * table_width + (table_width**2 if output.hidden_layer else 0)
        without = words if output.loss == "max_margin" else 0
        read = width * table_width if model.tied == "two_way" else 0
        fertility = getattr(output, "fertility", None)
        maps = 0
        if fertility is not None:
            sizes = [(2 if fertility.inputs == "both" else 1) * width, *fertility.widths, fertility.classes]
            maps = sum(n * k for n, k in pairwise(sizes))
        return cls(read, project, project + words, without, maps, int(fertility is not None))


ENCODERS: dict[str, Any] = {
    "transformer": TransformerEncoderCost,
    "recurrent": RecurrentEncoderCost,
    "none": TransformerEncoderCost,
}
DECODERS: dict[str, Any] = {"transformer": TransformerDecoderCost, "recurrent": RecurrentDecoderCost}


@dataclass(frozen=True)
class ModelCost:
    """The costs of a model's parts, in multiply-adds; what its methods give is FLOP."""

    encoder: Any
    decoder: Any
    output: OutputCost
    phrases: PhraseCost | None = None

    @classmethod
    def of(cls, model: Any, vocabulary: int, *, table_width: int = 300, computed: bool = False) -> ModelCost:
        """From a ModelConfig and the size of the target vocabulary. `table_width`: of the vectors of a continuous output.
        `computed`: phrases as the layers compute them, not as the paper writes them."""
        phrases = None if model.phrases is None else PhraseCost.of(model, computed=computed)
        return cls(
            ENCODERS[model.encoder.kind].of(model, phrases),
            DECODERS[model.decoder.kind].of(model, phrases),
            OutputCost.of(model, vocabulary, table_width),
            phrases,
        )

    def encode(self, source: int) -> int:
        """FLOP of the encoder for a sentence, its phrases included."""
        levels = 0 if self.phrases is None else self.phrases.levels(self.encoder.layers + 1, source)
        return 2 * (self.encoder.full(source) + levels)

    def forward(self, source: int, target: int) -> int:
        """FLOP of a forward pass of a sentence pair, its loss included."""
        output = self.output
        token = output.read + output.train + output.without
        return self.encode(source) + 2 * (self.decoder.full(target, source) + target * token)

    def update(self, source: int, target: int) -> int:
        """FLOP of forward and backward of a sentence pair."""
        output, once = self.output, self.encoder.constant + self.decoder.constant
        once += target * (output.read + 2 * output.without)
        if self.phrases is not None:
            once += self.phrases.without_gradient(self.encoder.layers + 1, source)
        return 3 * self.forward(source, target) - 2 * once

    def step(self, source: int, before: int) -> int:
        """FLOP of a step of one hypothesis that has `before` tokens already."""
        output = self.output
        return 2 * (self.decoder.step(source, before) + output.read + output.search + source * output.gate_pair)

    def remember(self, source: int) -> int:
        """FLOP of what is made of a source once before the first step."""
        return 2 * (self.decoder.remember(source) + source * self.output.gate_source)


def training_flop(model: Any, vocabulary: int, pairs: Iterable[Pair], **rest: Any) -> int:
    """Forward and backward of sentence pairs (source length, target length), once each; `rest` as for `ModelCost.of`."""
    cost = ModelCost.of(model, vocabulary, **rest)
    return sum(cost.update(source, target) for source, target in pairs)


def decoding_flop(model: Any, vocabulary: int, pairs: Iterable[Pair], *, beam: int, **rest: Any) -> int:
    """Encoding and search; pairs of source length and number of steps. The first step has one hypothesis a sentence."""
    cost, total = ModelCost.of(model, vocabulary, **rest), 0
    for source, steps in pairs:
        total += cost.encode(source) + cost.remember(source) + cost.step(source, 0)
        total += beam * sum(cost.step(source, before) for before in range(1, steps))
    return total


def padded(batch: Sequence[Pair]) -> list[Pair]:
    """The pairs of a batch at the lengths to which it is padded: what a machine without ragged tensors computes."""
    if not batch:
        return []
    longest = (max(s for s, _ in batch), max(t for _, t in batch))
    return [longest] * len(batch)
