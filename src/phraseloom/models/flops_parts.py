"""The multiply-adds of the parts of a model: attention, phrases, encoders, decoders (`flops.py` says what is counted)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
