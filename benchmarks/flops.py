"""The matrix-product FLOP of a training update and of a search, from a model's configuration and its sentences' lengths.

A product (m × k)(k × n) counts 2mkn. Counted are: the projections of every tap, the products of queries with keys, the
mixing of values, the output matrices, the feed-forward layers and the vocabulary. Not counted: softmax, normalisation,
dropout, sums.
A backward pass has two products for each of the forward pass, so an update is three forward passes.

What a block of attention costs, with D model width, H heads of size E, T taps, J query orders, G slots a token (all orders):

    projections    2·D·(columns)       a query token: those of Wq; a key token: those of Wk and Wv
    scores         2·(pairs)·Q·K       token, convkv: D·J·G; queryk: a product a tap, Σ over heads of n·E·J
    mixing         2·D·J·G·Q·K
    output         2·D·D·taps·Q        1; interleaved: Σ m in an encoder, J elsewhere (every tap of the output convolution)

Slots that would begin before the sentence count as the others (at most n-1 of K), as they are computed. Lengths count EOS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Pair = tuple[int, int]


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


@dataclass(frozen=True)
class ModelCost:
    """The costs of a model's blocks; `vocabulary` is that of the target."""

    encoder: BlockCost
    decoder: BlockCost
    cross: BlockCost
    feed_forward: int
    output: int
    encoder_layers: int
    decoder_layers: int

    @classmethod
    def of(cls, model: Any, vocabulary: int) -> ModelCost:
        """From a ModelConfig."""
        use = model.attention
        return cls(
            block_cost(model, use.encoder_self, reads_ahead=True),
            block_cost(model, use.decoder_self, reads_ahead=False),
            block_cost(model, use.cross, reads_ahead=False),
            2 * model.width * model.ffn_width,
            model.width * vocabulary,
            model.encoder.layers,
            model.decoder.layers,
        )

    def encode(self, source: int) -> int:
        """FLOP of the encoder for a sentence."""
        return 2 * self.encoder_layers * (self.encoder.full(source, source) + source * self.feed_forward)

    def forward(self, source: int, target: int) -> int:
        """FLOP of a forward pass of a sentence pair, its loss included."""
        layer = self.decoder.full(target, target) + self.cross.full(target, source) + target * self.feed_forward
        return self.encode(source) + 2 * (self.decoder_layers * layer + target * self.output)

    def step(self, source: int, before: int) -> int:
        """FLOP of a step of one hypothesis that has `before` tokens already."""
        own, cross = self.decoder, self.cross
        layer = own.full(1, 1) + before * own.pair + cross.full(1, source) - source * cross.key + self.feed_forward
        return 2 * (self.decoder_layers * layer + self.output)

    def remember(self, source: int) -> int:
        """FLOP of the keys and values of a source, made once before the first step."""
        return 2 * self.decoder_layers * source * self.cross.key


def training_flop(model: Any, vocabulary: int, pairs: Iterable[Pair]) -> int:
    """Forward and backward of sentence pairs (source length, target length), once each."""
    cost = ModelCost.of(model, vocabulary)
    return 3 * sum(cost.forward(source, target) for source, target in pairs)


def decoding_flop(model: Any, vocabulary: int, pairs: Iterable[Pair], *, beam: int) -> int:
    """Encoding and search; pairs of source length and number of steps. The first step has one hypothesis a sentence."""
    cost, total = ModelCost.of(model, vocabulary), 0
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
