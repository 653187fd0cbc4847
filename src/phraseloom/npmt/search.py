"""Search of a segmental model: source position after source position emits a segment (spec §5.3; Huang et al. 2018).

    p(y | x) = Σ over segmentations of y into T1 segments  Π_t p(segment t | source position t)

**Greedy** (a beam of 1): each position emits its greedy segment, a word instead of END where log p + word bonus is as high.
`log_prob` is that of this one segmentation.

**Beam**: the hypotheses at position t are the outputs of positions 1 … t, each with the sum over its segmentations. Each is
followed by the segments that position t+1 may emit; hypotheses of equal words are merged by adding their probabilities; the
`beam` best (log p + word bonus · words) live on. At the end they are ranked by (log p + word bonus · words) / length penalty.

What is exact: the probability of each segmentation; the merging (words are compared, no hash stands for them); the bounds on
the length and forced beginnings. What is pruned: at each position, segments beyond the `beam` best and the empty one
(`candidates.py`), then hypotheses beyond the `beam` best. So `log_prob` is the logarithm of the part of p(y | x) that went
through kept hypotheses and segments: never above log p(y | x), and equal to it where the beam is as wide as the space. The
segmentation of a hypothesis is the likeliest among those.

Unless a segment is also given the words before it (`connects`), what a position may emit does not depend on what stands before
it. So the segments of all positions of all sentences come from S + 1 calls of the segment RNN, and joining them needs no
model. A connected model, and a sentence with a forced beginning or bounds that the unbounded lists cannot meet, is walked
position by position, with S + 1 calls for all its hypotheses together. Hypotheses that are still inside a forced beginning
are all kept: there is one of each length, so none of their probability is lost.

Ties: the hypothesis that came from the better ranked one, then from the better ranked segment.

**Links.** There is no attention: every segment comes from one source position.

* **Words.** Each word of a segment is linked to the source word whose piece emitted it. A word whose pieces stand in several
  segments is linked to the source word of each.
* **Phrases.** Each segment is a link of the words that begin in it to that one source word, with p(segment | position) as its
  weight. A segment that only ends a word has no link of its own, so every target word is in one link. Segments of several
  pieces of one source word stay apart.
* **Unknown words** are replaced by the word that emitted them; of several, by the first (`decoding/parts.py`, without
  step 2).

An encoder state knows of its neighbours, and soft reordering moves words by a few positions: which position speaks is what the
model learned, not where the words stand in a dictionary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.cancellation import go_on
from phraseloom.decoding.limits import NEVER, Hypothesis, Limits, SearchOptions, Segment
from phraseloom.decoding.parts import Aligned, Found, UnknownWord
from phraseloom.decoding.translation import PhraseLink
from phraseloom.errors import ModelError, UsageError
from phraseloom.npmt.candidates import Bounds, Candidate, History, SegmentModel, best_segments, greedy_segments
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import EOS, UNK


def search(model: SegmentModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """The up to `n_best` best outputs of each sentence of `memory`, best first, with their segments; at least one each.

    `memory` holds states of source words alone, without EOS. A bound below on the length is lowered to what the source can
    emit. Raises ModelError where the model gives NaN or no output a probability, UsageError for a beginning that is longer
    than all that the source can emit.
    """
    return _Search(model, memory, limits, options).run()


class _Trail(NamedTuple):
    """The segments of a hypothesis, last first; empty ones are left out."""

    before: _Trail | None
    segment: Segment


class _Path(NamedTuple):
    """An output so far: log of the sum over its segmentations, and the likeliest of these with its log-probability.

    `parent`: the place of the output that its last segment stands behind, among those of the position before.
    """

    words: tuple[int, ...]
    log_prob: float
    best: float
    trail: _Trail | None
    parent: int


_EMPTY = _Path((), 0.0, 0.0, None, 0)


class _Bound(NamedTuple):
    """Of one sentence: source positions, fewest and most words, words that it must begin with."""

    positions: int
    shortest: int
    longest: int
    prefix: tuple[int, ...]

    def fewest_after(self, position: int, size: int) -> int:
        """How many words there must be once `position` (from 0) has spoken, when each emits at most `size`."""
        return self.shortest - (self.positions - 1 - position) * size


class _Search:
    """One batch."""

    def __init__(self, model: SegmentModel, memory: Any, limits: Limits, options: SearchOptions) -> None:
        self.model, self.options, self.size = model, options, int(model.max_segment)
        self.states_BSD: Tensor = memory.states_BSD
        num, longest = self.states_BSD.shape[:2]
        self.positions: list[int] = [longest] * num if memory.lengths_B is None else memory.lengths_B.tolist()
        self.banned = tuple(dict.fromkeys((*options.banned, EOS)))
        self.bounds = [self._bound(b, limits) for b in range(num)]

    def _bound(self, sentence: int, limits: Limits) -> _Bound:
        positions = self.positions[sentence]
        most = positions * self.size
        prefix = tuple(limits.prefixes[sentence]) if limits.prefixes is not None else ()
        if len(prefix) > most:
            raise UsageError(
                f"an output must begin with {len(prefix)} subwords, but {positions} source subwords emit at most {most}",
                hint=f"each source subword emits at most {self.size}; give a shorter prefix",
            )
        shortest = max(min(int(limits.shortest[sentence]), most), len(prefix))
        return _Bound(positions, shortest, int(limits.longest[sentence]), prefix)

    def run(self) -> list[list[Hypothesis]]:
        """Search all sentences, each in the cheapest way that it allows."""
        everything = range(len(self.bounds))
        forced = [b for b in everything if self.bounds[b].prefix]
        free = [b for b in everything if not self.bounds[b].prefix]
        found = {} if self.model.connects else self._at_once(free)
        found |= self._walk([b for b in free if not found.get(b)], self.options.beam)
        found |= self._walk(forced, max(self.options.beam, self.size))
        return [self._hypotheses(b, found[b]) for b in everything]

    def _candidates(
        self, states_RD: Tensor, history_RD: Tensor | None, count: int, bounds: Bounds | None
    ) -> list[list[Candidate]]:
        given: dict[str, Any] = {
            "banned": self.banned,
            "bounds": bounds,
            "bonus": self.options.word_bonus,
            "cancelled": self.options.cancelled,
        }
        if count == 1:
            return [[candidate] for candidate in greedy_segments(self.model, states_RD, history_RD, **given)]
        return best_segments(self.model, states_RD, history_RD, count=count, **given)

    def _at_once(self, sentences: Sequence[int]) -> dict[int, list[_Path]]:
        """Hypotheses from lists of segments without bounds; none for a sentence that cannot meet its bounds so."""
        owner = [b for b in sentences for _ in range(self.positions[b])]
        place = [t for b in sentences for t in range(self.positions[b])]
        lists = iter(self._candidates(self.states_BSD[owner, place], None, self.options.beam, None) if owner else ())
        found = {}
        for b in sentences:
            go_on(self.options.cancelled)
            paths = [_EMPTY]
            for t in range(self.positions[b]):
                candidates = next(lists)
                paths = self._extend(b, t, paths, [candidates] * len(paths))
            found[b] = paths
        return found

    def _walk(self, sentences: Sequence[int], count: int) -> dict[int, list[_Path]]:
        """Hypotheses position by position, the segments of each one under the bounds that it has then."""
        found = {b: [_EMPTY] for b in sentences}
        speaking = sum(self.positions[b] > 0 for b in sentences)
        history = History(self.model, speaking) if self.model.connects else None
        device = self.states_BSD.device
        for t in range(max((self.positions[b] for b in sentences), default=0)):
            here = [b for b in sentences if t < self.positions[b]]
            rows = [(self.bounds[b], path) for b in here for path in found[b]]
            bounds = Bounds.of(
                [bound.fewest_after(t, self.size) - len(path.words) for bound, path in rows],
                [bound.longest - len(path.words) for bound, path in rows],
                [bound.prefix[len(path.words) :] for bound, path in rows],
                self.size,
                device,
            )
            states_RD = self.states_BSD[[b for b in here for _ in found[b]], t]
            lists = self._candidates(states_RD, None if history is None else history.output, count, bounds)
            first = 0
            written: list[tuple[int, tuple[int, ...]]] = []
            for b in here:
                before = found[b]
                found[b] = self._extend(b, t, before, lists[first : first + len(before)])
                if t + 1 < self.positions[b]:
                    written += [(first + p.parent, p.words[len(before[p.parent].words) :]) for p in found[b]]
                first += len(before)
            if history is not None:
                history.write([row for row, _ in written], [words for _, words in written])
        return found

    def _extend(
        self, sentence: int, position: int, paths: list[_Path], lists: Sequence[list[Candidate]]
    ) -> list[_Path]:
        """The best outputs after `position`, of those before it and what it may emit behind each, equal words merged."""
        bound, bonus = self.bounds[sentence], self.options.word_bonus
        low, high = bound.fewest_after(position, self.size), bound.longest
        merged: dict[tuple[int, ...], _Path] = {}
        for parent, (path, candidates) in enumerate(zip(paths, lists, strict=True)):
            for words, log_prob in candidates:
                joined = path.words + words
                if not low <= len(joined) <= high:
                    continue
                total, best, trail = path.log_prob + log_prob, path.best + log_prob, path.trail
                known = merged.get(joined)
                if known is not None:
                    total = _log_add(known.log_prob, total)
                    if known.best >= best:
                        merged[joined] = known._replace(log_prob=total)
                        continue
                if words:
                    trail = _Trail(trail, Segment(position, len(path.words), len(joined), log_prob))
                if total > NEVER:
                    merged[joined] = _Path(joined, total, best, trail, parent)
        ranked = sorted(merged.values(), key=lambda path: -(path.log_prob + bonus * len(path.words)))
        if not bound.prefix:
            return ranked[: self.options.beam]
        inside = [path for path in ranked if len(path.words) < len(bound.prefix)]
        return inside + [path for path in ranked if len(path.words) >= len(bound.prefix)][: self.options.beam]

    def _hypotheses(self, sentence: int, paths: list[_Path]) -> list[Hypothesis]:
        bound, options = self.bounds[sentence], self.options
        if not paths:
            raise ModelError("the model gives no output of the allowed length a probability", hint="relax min_length")
        result = []
        for path in paths:
            words, segments, trail = list(path.words), [], path.trail
            while trail is not None:
                trail, segment = trail
                segments.append(segment)
            length = torch.tensor(len(words) + 1.0, dtype=torch.float64)
            score = (path.log_prob + options.word_bonus * len(words)) / float(options.penalty.divisor(length))
            cut = len(words) == bound.longest < bound.positions * self.size
            result.append(Hypothesis(words, path.log_prob, score, cut, segments[::-1]))
        return sorted(result, key=lambda hypothesis: -hypothesis.score)[: options.n_best]


def _log_add(a: float, b: float) -> float:
    """log(exp a + exp b) of finite numbers."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def can_align(model: Any) -> bool:
    """Always: every word comes from one source position."""
    return True


def check(model: Any, config: DecodingConfig, *, aligned: bool) -> None:
    """UsageError where an attention is chosen to align: the model has none."""
    if config.alignment_layer is not None or config.alignment_head is not None:
        raise UsageError(
            "alignment_layer and alignment_head choose an attention, and a segmental model has none",
            hint="its segments are the alignment; leave both out",
        )


def links(
    model: Any, tokenizer: Tokenizer, pieces: Sequence[Piece], found: Sequence[list[Hypothesis]], memory: Any,
    config: DecodingConfig, *, alignments: bool, replacing: bool,
) -> list[Found]:  # fmt: skip
    """The hypotheses of each piece with the links of their segments; source positions become those of the line."""
    result = []
    for piece, some in zip(pieces, found, strict=True):
        source_word = tokenizer.source.word_of_piece(piece.ids)
        words = [tokenizer.target.words_of_piece(h.tokens, piece.begun) for h in some]
        looks = [(h, h.segments or [], w) for h, w in zip(some, words, strict=True)]
        aligned = [
            link_segments(s, source_word, w).moved(piece.first_word) if alignments else None for _, s, w in looks
        ]
        unknown = [unknown_of_segments(s, h.tokens, source_word, w) if replacing else [] for h, s, w in looks]
        moved = [h._replace(segments=[one.moved(source=piece.first_id) for one in s]) for h, s, _ in looks]
        result.append(Found(moved, aligned, unknown))
    return result


def link_segments(segments: Sequence[Segment], source_word: Sequence[int], target_words: Sequence[range]) -> Aligned:
    """Links by the rule above. `source_word`: the word of each source piece; `target_words`: the words of each target piece."""
    links, phrases = set(), []
    for segment in segments:
        source = source_word[segment.source]
        own = range(segment.start, segment.end)
        links |= {(source, word) for i in own for word in target_words[i]}
        begun = [target_words[i] for i in own if i == 0 or target_words[i] != target_words[i - 1]]
        if begun:
            weight = min(1.0, math.exp(segment.log_prob))
            phrases.append(PhraseLink((source, source + 1), (begun[0].start, begun[-1].stop), weight))
    return Aligned(sorted(links, key=lambda link: (link[1], link[0])), phrases)


def unknown_of_segments(
    segments: Sequence[Segment], tokens: Sequence[int], source_word: Sequence[int], target_words: Sequence[range]
) -> list[UnknownWord]:
    """The words that begin with or hold UNK, each with the one source word that emitted it."""
    emitted = {i: source_word[segment.source] for segment in segments for i in range(segment.start, segment.end)}
    found: dict[int, int] = {}
    for i, token in enumerate(tokens):
        if token == UNK:
            found.setdefault(target_words[i].start, emitted[i])
    places = {number: place for place, number in enumerate(sorted({words.start for words in target_words}))}
    return [UnknownWord(number, places[number], np.ones(1), [source]) for number, source in found.items()]
