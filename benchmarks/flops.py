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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Pair = tuple[int, int]
GATES = {"lstm": 4, "gru": 3}
PARTS = {"lstm": 2, "gru": 1}


@dataclass(frozen=True)
class BlockCost:
    """Multiply-adds of one attention block: a query token, a key token, a pair of both; `by_distance` a query token."""

    query: int
    key: int
    pair: int
    output: int
    by_distance: int = 0

    def full(self, queries: int, keys: int) -> int:
        """All of a sentence at once."""
        return queries * (self.query + self.output + self.by_distance) + keys * self.key + queries * keys * self.pair


def block_cost(model: Any, attention: Any, *, reads_ahead: bool) -> BlockCost:
    """The cost of an attention of `model.width` and `model.heads` as its configuration (an AttentionConfig) says."""
    width, heads, score = model.width, model.heads, attention.score
    kind, orders = attention.arrangement.kind, [1]
    queries = [1]
    if kind == "homogeneous":
        split = attention.arrangement.split or [heads]
        weighted = sum(n * count for n, count in enumerate(split, 1)) * (width // heads)
        slots, slot_taps = 1, weighted
    else:
        orders = list(attention.arrangement.orders)
        queries = orders if kind == "interleaved" else [1]
        slots, slot_taps = len(orders), sum(orders) * width
    query_taps = sum(queries)
    output = (query_taps if reads_ahead else len(queries)) * width * width
    mixing = width * len(queries) * slots
    if score.kind == "queryk":
        keys = 1 if kind == "homogeneous" or score.share_keys is not False else slots
        columns = (query_taps * slot_taps, keys * width + slot_taps)
        scores = len(queries) * slot_taps
    elif score.kind == "convkv":
        columns, scores = (query_taps * width, 2 * slot_taps), mixing
    else:
        columns, scores = (width, 2 * width), mixing
    distances = 0
    if score.kind == "relative":
        distances = (2 * score.clip + 1) * width * (2 if score.on_values else 1)
    return BlockCost(width * columns[0], width * columns[1], scores + mixing, output, distances)


def phrase_count(model: Any, source: int) -> int:
    """How many phrases a source of `source` tokens (EOS counted) is cut into, if that follows from its length."""
    segments = model.phrases.segments
    if segments.kind != "fixed":
        raise ValueError(f"phrases of kind {segments.kind} are not known from a length")
    size = max(min(segments.max_tokens, -(-source // segments.min_chunks)), segments.floor)
    return -(-source // size)


@dataclass(frozen=True)
class PhraseCost:
    """Multiply-adds of phrases: of a combination network, and of the phrase vectors of one level.

    `member` and `constant`: products with the membership, a pair of phrase and token; a gradient goes through both sides of the
    first, through one of the second.
    """

    count: Callable[[int], int]
    token: int
    phrase: int
    pair: int
    level_token: int
    level_phrase: int
    member: int
    constant: int
    mixed_phrase: int
    mixed_token: int

    @classmethod
    def of(cls, model: Any, *, computed: bool) -> PhraseCost:
        """From a ModelConfig that has phrases."""
        options, width = model.phrases, model.width
        scored = options.attention != "none"
        inner = (options.scorer_width or width) if scored else 0
        levels = model.encoder.layers + 1
        mixtures = levels * width * model.decoder.layers if levels > 1 else 0
        summed = width if scored or options.glance == "mean" else 0
        return cls(
            count=lambda source: phrase_count(model, source),
            token=2 * width * width + 3 * width * (options.combination_width or model.ffn_width),
            phrase=2 * width * width,
            pair=2 * width,
            level_token=width * inner if computed else 2 * width * inner + (width if scored else 0),
            level_phrase=width * inner if computed else 0,
            member=width if computed and scored else 0,
            constant=inner + (summed if options.glance == "mean" else 0) if computed else 0,
            mixed_phrase=mixtures if options.transparent else 0,
            mixed_token=mixtures if options.transparent_tokens else 0,
        )

    def combination(self, tokens: int, source: int) -> int:
        """Of one combination network whose keys are there already."""
        return tokens * (self.token + self.count(source) * self.pair)

    def keys(self, source: int) -> int:
        """Of the keys and values of one combination network."""
        return self.count(source) * self.phrase

    def levels(self, levels: int, source: int) -> int:
        """Of the phrase vectors of all levels, and their mixtures."""
        phrases = self.count(source)
        level = source * self.level_token + phrases * self.level_phrase
        level += phrases * source * (self.member + self.constant)
        return levels * level + phrases * self.mixed_phrase + source * self.mixed_token

    def without_gradient(self, levels: int, source: int) -> int:
        """Of products of which one side is constant."""
        return levels * self.count(source) * source * self.constant


def cell_cost(cell: str, inputs: int, width: int) -> int:
    """Multiply-adds of a cell, a token."""
    return GATES[cell] * width * (inputs + width)


@dataclass(frozen=True)
class TransformerEncoderCost:
    """Multiply-adds of an encoder of self-attention; none at all with no layers."""

    layers: int
    attention: BlockCost
    feed_forward: int
    phrases: PhraseCost | None
    constant: int = 0

    @classmethod
    def of(cls, model: Any, phrases: PhraseCost | None) -> TransformerEncoderCost:
        """From a ModelConfig."""
        block = block_cost(model, model.attention.encoder_self, reads_ahead=True)
        return cls(model.encoder.layers, block, 2 * model.width * model.ffn_width, phrases)

    def full(self, source: int) -> int:
        """All of a sentence."""
        layer = self.attention.full(source, source) + source * self.feed_forward
        if self.phrases is not None:
            layer += self.phrases.keys(source) + self.phrases.combination(source, source)
        return self.layers * layer


@dataclass(frozen=True)
class RecurrentEncoderCost:
    """Multiply-adds of recurrent layers; `constant`: a sentence, of those with the zero states before the first token."""

    layers: int
    token: int
    constant: int

    @classmethod
    def of(cls, model: Any, _: PhraseCost | None) -> RecurrentEncoderCost:
        """From a ModelConfig."""
        options, width = model.encoder, model.width
        both, single = options.bidirectional, options.layers - options.bidirectional
        half, gates = width // 2, GATES[options.cell]
        token = both * 2 * cell_cost(options.cell, width, half) + single * cell_cost(options.cell, width, width)
        return cls(options.layers, token, gates * (both * 2 * half * half + single * width * width))

    def full(self, source: int) -> int:
        """All of a sentence."""
        return source * self.token


@dataclass(frozen=True)
class TransformerDecoderCost:
    """Multiply-adds of a decoder of self- and cross-attention."""

    layers: int
    own: BlockCost
    cross: BlockCost
    feed_forward: int
    phrases: PhraseCost | None
    constant: int = 0

    @classmethod
    def of(cls, model: Any, phrases: PhraseCost | None) -> TransformerDecoderCost:
        """From a ModelConfig."""
        own, cross = (
            block_cost(model, getattr(model.attention, u), reads_ahead=False) for u in ("decoder_self", "cross")
        )
        return cls(model.decoder.layers, own, cross, 2 * model.width * model.ffn_width, phrases)

    def full(self, target: int, source: int) -> int:
        """All of a target at once."""
        layer = self.own.full(target, target) + self.cross.full(target, source) + target * self.feed_forward
        if self.phrases is not None:
            layer += self.phrases.keys(source) + self.phrases.combination(target, source)
        return self.layers * layer

    def remember(self, source: int) -> int:
        """What is made of a source before the first step."""
        keys = 0 if self.phrases is None else self.phrases.keys(source)
        return self.layers * (source * self.cross.key + keys)

    def step(self, source: int, before: int) -> int:
        """A step behind `before` tokens."""
        own, cross = self.own, self.cross
        layer = own.full(1, 1) + before * own.pair + cross.full(1, source) - source * cross.key + self.feed_forward
        if self.phrases is not None:
            layer += self.phrases.combination(1, source)
        return self.layers * layer


@dataclass(frozen=True)
class RecurrentDecoderCost:
    """Multiply-adds of recurrent layers with attention of the top one: a target token, a source token, a pair, a sentence."""

    token: int
    key: int
    pair: int
    sentence: int
    constant: int

    @classmethod
    def of(cls, model: Any, _: PhraseCost | None) -> RecurrentDecoderCost:
        """From a ModelConfig."""
        options, width = model.decoder, model.width
        square, gates = width * width, GATES[options.cell]
        cells = cell_cost(options.cell, (1 + options.input_feeding) * width, width)
        cells += (options.layers - 1) * cell_cost(options.cell, width, width)
        if options.attention == "multihead":
            cross = block_cost(model, model.attention.cross, reads_ahead=False)
            query, key, pair = cross.query + cross.output, cross.key, cross.pair
        else:
            query, key, pair = {
                "mlp": (square, square, 2 * width),
                "general": (square, 0, 2 * width),
                "fixed": (0, 0, 0),
            }[options.attention]
        zeros = (options.layers if options.initial == "zero" else 0) + options.input_feeding
        return cls(
            token=cells + query + 2 * square,
            key=key,
            pair=pair,
            sentence=PARTS[options.cell] * options.layers * square if options.initial == "last" else 0,
            constant=zeros * gates * square,
        )

    def full(self, target: int, source: int) -> int:
        """All of a target; step by step or not, the products are the same."""
        return target * self.step(source, 0) + self.remember(source)

    def remember(self, source: int) -> int:
        """What is made of a source before the first step."""
        return source * self.key + self.sentence

    def step(self, source: int, before: int) -> int:
        """Any step: what came before is in the states."""
        return self.token + source * self.pair


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
