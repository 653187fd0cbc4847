"""Plan the examples of each update: a pure function of (lengths, recipe, seed, epoch).

An *update* is one optimiser step over about `batch_tokens` target tokens. It consists of *micro-batches*, whose number
depends on the recipe only, so 1 or N processes compute the same sums. Every epoch has the same number of updates and each
example once (or as often as `data/mixture.py` has it), so a position in the data is one integer: the number of finished
updates.

An epoch is planned as follows. Examples are shuffled into pools. Inside a pool they are sorted by target length, then source
length, both alternately ascending and descending (a snake), so that neighbours have similar lengths. The sequence is cut into
pieces of equal cost: a target token costs 1, a source token half, as in an encoder–decoder of equal depths. The pieces are
shuffled.

Memory: a plan takes 8 bytes a pair while it is made and 4 afterwards (16 and 8 from 2^31 pairs on), besides the 8 of the
lengths. Everything else is computed for one pool or one block of pairs at a time; sums are taken in the order of the whole, so
blocks change no bit. The processes of a machine can share all of it (`share`, `training/node.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from phraseloom.errors import DataError
from phraseloom.options.training import pieces_of_update

if TYPE_CHECKING:
    from phraseloom.data.mixture import Mixture

__all__ = ["BatchPlan", "EpochPlan", "evaluation_batches", "mix"]

SOURCE_COST = 0.5
LENGTH_BITS = 20
BLOCK = 1 << 16  # pairs


def mix(*numbers: int) -> int:
    """A 63-bit random seed from integers, by splitmix64."""
    state = 0x9E3779B97F4A7C15
    for number in map(index, numbers):  # NumPy integers would overflow
        state = (state + (number & (2**64 - 1)) + 0x9E3779B97F4A7C15) & (2**64 - 1)
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        state ^= state >> 31
    return state >> 1


@dataclass(frozen=True)
class EpochPlan:
    """One epoch. `order` holds example indices; micro-batch i is order[cuts[i]:cuts[i+1]]; update u has the micro-batches
    [starts[u], starts[u+1])."""

    order: np.ndarray
    cuts: np.ndarray
    starts: np.ndarray

    def update(self, index: int) -> list[np.ndarray]:
        """The example indices of each micro-batch of update `index` (from 0) of this epoch."""
        first, last = self.starts[index], self.starts[index + 1]
        return [self.order[self.cuts[i] : self.cuts[i + 1]].astype(np.int64) for i in range(first, last)]

    def __len__(self) -> int:
        return len(self.starts) - 1


class BatchPlan:
    """All epochs of one training set; `update(n)` is the n-th update (from 0) of the run.

    `source_lengths` is None for language models, which have no source; it then costs nothing. `mixture`: the examples of
    each epoch, if they are not all examples once. `share(make)` gives the arrays of `make()`, perhaps as another process made
    them.
    """

    def __init__(
        self,
        source_lengths: np.ndarray | None,
        target_lengths: np.ndarray,
        *,
        seed: int,
        batch_tokens: int,
        micro_batches: int = 2,
        max_micro_tokens: int | None = None,
        pool_updates: int = 500,
        mixture: Mixture | None = None,
        share: Callable[[Callable[[], list[np.ndarray]]], list[np.ndarray]] = lambda make: make(),
    ) -> None:
        if len(target_lengths) == 0:
            raise DataError("the training set is empty", hint="check the filters in the output of `prepare`")
        self.target = np.asarray(target_lengths, np.int32)
        self.has_source = source_lengths is not None
        self.source = np.zeros_like(self.target) if source_lengths is None else np.asarray(source_lengths, np.int32)
        self.seed, self.max_micro_tokens = seed, max_micro_tokens
        self.mixture = mixture
        examples = len(self.target) if mixture is None else len(mixture)
        whole = int(self.target.sum(dtype=np.int64)) + len(self.target)
        self.tokens = whole if mixture is None else mixture.expected(self.target)
        self.updates_per_epoch = max(1, min(examples, round(self.tokens / batch_tokens)))
        self.micro_batches = pieces_of_update(micro_batches, batch_tokens, max_micro_tokens)
        self.num_pools = max(1, round(self.updates_per_epoch / pool_updates))
        self._share = share
        self._epoch: tuple[int, EpochPlan] | None = None

    def _cost(self, examples: np.ndarray) -> np.ndarray:
        source_cost = SOURCE_COST * (self.source[examples] + 1) if self.has_source else 0.0
        return (self.target[examples] + 1 + source_cost).astype(np.float32)

    def count(self, examples: np.ndarray) -> tuple[int, int]:
        """The numbers of source and target tokens of examples, including EOS."""
        source = int(self.source[examples].sum()) + len(examples) if self.has_source else 0
        return source, int(self.target[examples].sum()) + len(examples)

    def position(self, update: int) -> tuple[int, int]:
        """(epoch, update within the epoch) of the `update`-th update, all from 0."""
        return divmod(update, self.updates_per_epoch)

    def update(self, update: int) -> list[np.ndarray]:
        """The example indices of each micro-batch of the `update`-th update of the run."""
        epoch, index = self.position(update)
        return self.epoch(epoch).update(index)

    def epoch(self, epoch: int) -> EpochPlan:
        """The plan of one epoch; the last one is cached."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = None  # its memory is free before the next one is made
            self._epoch = (epoch, EpochPlan(*self._share(lambda: self._make(epoch))))
        return self._epoch[1]

    def _make(self, epoch: int) -> list[np.ndarray]:
        """The fields of `EpochPlan`."""
        kind = np.int32 if len(self.target) < 2**31 else np.int64
        if self.mixture is None:
            examples = np.arange(len(self.target), dtype=kind)
        else:
            examples = self.mixture.epoch(epoch).astype(kind)
        random = np.random.default_rng(mix(self.seed, 1, epoch))
        order = self._snake(random, examples)
        slots = min(self.updates_per_epoch * self.micro_batches, len(order))
        cuts = self._equal_cuts(order, slots)
        # shuffle whole pieces; each keeps its examples
        places = random.permutation(slots)
        begins, sizes = cuts[:-1][places], np.diff(cuts)[places]
        cuts = np.concatenate([np.cumsum(sizes) - sizes, [len(order)]])
        shuffled = np.empty_like(order)
        for first, last in _blocks_of_pieces(cuts):
            positions = np.arange(cuts[first], cuts[last])
            moves = np.repeat(begins[first:last] - cuts[first:last], sizes[first:last])
            shuffled[cuts[first] : cuts[last]] = order[positions + moves]
        order = shuffled
        starts = np.arange(self.updates_per_epoch + 1) * slots // self.updates_per_epoch
        if self.max_micro_tokens is not None:
            cuts, starts = self._split_long(order, cuts, starts, self.max_micro_tokens)
        return [order, cuts, starts]

    def _snake(self, random: np.random.Generator, order: np.ndarray) -> np.ndarray:
        """The examples of `order`, which changes in place: pools sorted as a snake by (target, source) length, random ties."""
        count = len(order)
        random.shuffle(order)
        # pool p has the positions i with i * num_pools // count == p
        begins = [-(-pool * count // self.num_pools) for pool in range(self.num_pools + 1)]
        last = (1 << LENGTH_BITS) - 1
        for pool in range(self.num_pools):
            examples = order[begins[pool] : begins[pool + 1]]
            target = np.minimum(self.target[examples], last).astype(np.int64)
            source = np.minimum(self.source[examples], last).astype(np.int64)
            source = np.where(target % 2 == 0, source, last - source)
            key = (target << LENGTH_BITS) | source
            if pool % 2:
                key = (1 << 2 * LENGTH_BITS) - 1 - key
            order[begins[pool] : begins[pool + 1]] = examples[np.argsort(key, kind="stable")]
        return order

    def _equal_cuts(self, order: np.ndarray, pieces: int) -> np.ndarray:
        """Positions 0 = c_0 < c_1 < … < c_pieces = n that cut `order` into non-empty pieces of about equal cost."""
        count, total = len(order), 0.0
        for cumulative in self._cumulative_cost(order):
            total = cumulative[-1]
        costs = total * np.arange(pieces + 1) / pieces
        cuts = np.full(pieces + 1, count, np.int64)
        begin = done = 0
        for cumulative in self._cumulative_cost(order):
            end = int(np.searchsorted(costs, cumulative[-1], side="right"))
            cuts[done:end] = begin + np.searchsorted(cumulative, costs[done:end], side="left")
            begin, done = begin + len(cumulative), end
        cuts[0], cuts[-1] = 0, count
        steps = np.arange(pieces + 1)
        cuts = np.maximum.accumulate(cuts - steps) + steps
        return np.minimum(cuts, count - pieces + steps)

    def _cumulative_cost(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """The cumulative cost of `order`, block by block, added up from left to right."""
        carry = 0.0
        for begin in range(0, len(order), BLOCK):
            cost = self._cost(order[begin : begin + BLOCK]).astype(np.float64)
            cost[0] += carry
            cumulative = np.cumsum(cost)
            carry = cumulative[-1]
            yield cumulative

    def _split_long(
        self, order: np.ndarray, cuts: np.ndarray, starts: np.ndarray, limit: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cut pieces with a padded size above `limit` into several pieces of the same update."""
        longest_piece = np.maximum(_longest(self.source, order, cuts), _longest(self.target, order, cuts)) + 1
        too_big = longest_piece * np.diff(cuts) > limit
        extra: list[int] = []
        for i in np.flatnonzero(too_big):
            begin, length = int(cuts[i]), 0
            piece = order[cuts[i] : cuts[i + 1]]
            for j, longest in enumerate((np.maximum(self.source[piece], self.target[piece]) + 1).tolist(), begin):
                length = max(length, longest)
                if length * (j + 1 - begin) > limit and j > begin:
                    extra.append(j)
                    begin, length = j, longest
        marks = cuts[starts]
        cuts = np.union1d(cuts, np.asarray(extra, cuts.dtype))
        return cuts, np.searchsorted(cuts, marks)

    def largest(self) -> np.ndarray:
        """The micro-batch of epoch 0 that needs most memory: sentences × (longest source + target)."""
        plan = self.epoch(0)
        source, target = (_longest(lengths, plan.order, plan.cuts) for lengths in (self.source, self.target))
        i = int(np.argmax((source + target + 2) * np.diff(plan.cuts)))
        return plan.order[plan.cuts[i] : plan.cuts[i + 1]].astype(np.int64)

    def padding(self, epoch: int = 0) -> float:
        """The fraction of padding among all source and target positions of an epoch."""
        plan = self.epoch(epoch)
        size = np.diff(plan.cuts)
        real = padded = 0
        for lengths in (self.source, self.target) if self.has_source else (self.target,):
            own = lengths if self.mixture is None else lengths[plan.order]
            real += int(own.sum(dtype=np.int64)) + len(own)
            padded += int(((_longest(lengths, plan.order, plan.cuts) + 1) * size).sum())
        return 1 - real / padded


def _blocks_of_pieces(cuts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of whole pieces [first, last) with about `BLOCK` pairs each, or one piece if that has more."""
    first = 0
    while first < len(cuts) - 1:
        last = max(first + 1, int(np.searchsorted(cuts, cuts[first] + BLOCK, side="right")) - 1)
        yield first, last
        first = last


def _longest(lengths: np.ndarray, order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The largest length in each piece, int64."""
    result = np.empty(len(cuts) - 1, np.int64)
    for first, last in _blocks_of_pieces(cuts):
        part = lengths[order[cuts[first] : cuts[last]]]
        result[first:last] = np.maximum.reduceat(part, cuts[first:last] - cuts[first])
    return result


def evaluation_batches(source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """All examples once, longest first, in batches of at most `max_tokens` padded tokens on the longer side."""
    longest = np.maximum(source_lengths, target_lengths).astype(np.int64) + 1
    order = np.lexsort((np.arange(len(longest)), source_lengths, target_lengths, longest))[::-1]
    begin = 0
    while begin < len(order):
        size = max(1, max_tokens // int(longest[order[begin]]))
        yield order[begin : begin + size]
        begin += size
