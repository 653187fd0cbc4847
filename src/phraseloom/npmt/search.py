"""The `Writer` of segmental models: one source position after the other emits a segment (Huang et al. 2018).

    p(y | x) = Σ over segmentations of y into T1 segments  Π_t p(segment t | source position t)

**Greedy** (a beam of 1): each position emits its greedy segment; a word wins over END if its log p + word bonus is as high.
`log_prob` belongs to this one segmentation.

**Beam**: the hypotheses at position t are the outputs of positions 1 … t, each with the sum over its segmentations. Position
t+1 extends each with its segments; hypotheses with equal words are merged by adding their probabilities; the `beam` best
(log p + word bonus · words) stay live. The final ranking is by (log p + word bonus · words) / length penalty.

Exact: the probability of each segmentation; the merging (it compares words, not hashes); bounds on the length and forced
prefixes. Pruned: at each position, segments beyond the `beam` best and the empty one (`candidates.py`), then hypotheses beyond
the `beam` best. Position by position (below), these are the best segments of all hypotheses of a sentence together, unless it
has a forced prefix. So `log_prob` is the logarithm of the unpruned part of p(y | x): never above log p(y | x), and equal to it
if the beam covers the space. The segmentation of a hypothesis is the likeliest unpruned one.

Unless the model `connects`, the segments of a position do not depend on the words before it. Then S + 1 calls of the segment
RNN give the segments of all positions of all sentences, and combining them needs no model. A connected model, and a sentence
with a forced prefix or bounds that these lists cannot meet, is searched position by position, with S + 1 calls for all its
hypotheses together. Hypotheses within a forced prefix are never pruned: there is one of each length, so no probability is lost.

Ties: the hypothesis with the better ranked parent, then with the better ranked segment.

**Links.** There is no attention: every segment comes from one source position.

* **Words.** Each word of a segment is linked to the source word whose piece emitted it. A word with pieces in several segments
  is linked to the source word of each.
* **Phrases.** Each segment links the words that begin in it to its one source word, with weight p(segment | position). A
  segment that only ends a word makes no link, so every target word is in one link. Segments of several pieces of one source
  word are not merged.
* **Unknown words** are replaced by the source word that emitted them, or the first of several (`decoding/parts.py`, without
  step 2).

An encoder state contains information on its neighbours, and soft reordering moves words by a few positions. So the position
that emits a segment is what the model learned, not always the dictionary translation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.cancellation import raise_if_cancelled
from phraseloom.decoding.limits import NEVER, Hypothesis, Limits, SearchOptions, Segment
from phraseloom.decoding.parts import Aligned, PieceResult, UnknownWord
from phraseloom.decoding.translation import PhraseLink
from phraseloom.errors import ModelError, UsageError
from phraseloom.npmt.candidates import Bounds, Candidate, History, SegmentModel, best_segments, greedy_segments
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import EOS, UNK


def search(model: SegmentModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """Up to `n_best` outputs for each sentence of `memory`, best first, with their segments; at least one each.

    `memory` has states of source words, without EOS. A minimal length is lowered to the most words that the source can emit.
    Raises ModelError if the model gives NaN or no output has a probability, UsageError for a forced prefix that is longer than
    all segments of the source.
    """
    return _Search(model, memory, limits, options).run()


class _Trail(NamedTuple):
    """The non-empty segments of a hypothesis, last first."""

    before: _Trail | None
    segment: Segment


class _Path(NamedTuple):
    """A partial output: the log of the sum over its segmentations, and the likeliest of these with its log-probability.

    `parent`: the index of the output that it extends, among those of the position before.
    """

    words: tuple[int, ...]
    log_prob: float
    best: float
    trail: _Trail | None
    parent: int

    def score(self, bonus: float) -> float:
        """log p, with the bonus of the words."""
        return self.log_prob + bonus * len(self.words)


_EMPTY = _Path((), 0.0, 0.0, None, 0)


class _Bound(NamedTuple):
    """Of one sentence: source positions, fewest and most words, forced prefix."""

    positions: int
    shortest: int
    longest: int
    prefix: tuple[int, ...]

    def fewest_after(self, position: int, size: int) -> int:
        """The fewest words after `position` (from 0), if every later position emits at most `size`."""
        return self.shortest - (self.positions - 1 - position) * size


class _Search:
    """The search of one batch."""

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
                f"a forced prefix of {len(prefix)} subwords, but {positions} source subwords emit at most {most}",
                hint=f"each source subword emits at most {self.size}; shorten the prefix",
            )
        shortest = max(min(int(limits.shortest[sentence]), most), len(prefix))
        return _Bound(positions, shortest, int(limits.longest[sentence]), prefix)

    def run(self) -> list[list[Hypothesis]]:
        """Search all sentences, each in the cheapest possible way."""
        sentences = range(len(self.bounds))
        forced = [b for b in sentences if self.bounds[b].prefix]
        free = [b for b in sentences if not self.bounds[b].prefix]
        paths = {} if self.model.connects else self._at_once(free)
        paths |= self._walk([b for b in free if not paths.get(b)], self.options.beam, together=True)
        paths |= self._walk(forced, max(self.options.beam, self.size), together=False)
        return [self._hypotheses(b, paths[b]) for b in sentences]

    def _candidates(
        self,
        states_RD: Tensor,
        history_RD: Tensor | None,
        count: int,
        bounds: Bounds | None,
        groups: Sequence[Sequence[float]] | None = None,
    ) -> list[list[Candidate]]:
        arguments: dict[str, Any] = {
            "banned": self.banned,
            "bounds": bounds,
            "bonus": self.options.word_bonus,
            "should_cancel": self.options.should_cancel,
        }
        if count == 1:
            return [[candidate] for candidate in greedy_segments(self.model, states_RD, history_RD, **arguments)]
        return best_segments(self.model, states_RD, history_RD, count=count, groups=groups, **arguments)

    def _at_once(self, sentences: Sequence[int]) -> dict[int, list[_Path]]:
        """Hypotheses from lists of segments without bounds; none for a sentence whose bounds these lists cannot meet."""
        owner = [b for b in sentences for _ in range(self.positions[b])]
        place = [t for b in sentences for t in range(self.positions[b])]
        lists = iter(self._candidates(self.states_BSD[owner, place], None, self.options.beam, None) if owner else ())
        result = {}
        for b in sentences:
            raise_if_cancelled(self.options.should_cancel)
            paths = [_EMPTY]
            for t in range(self.positions[b]):
                candidates = next(lists)
                paths = self._extend(b, t, paths, [candidates] * len(paths))
            result[b] = paths
        return result

    def _walk(self, sentences: Sequence[int], count: int, *, together: bool) -> dict[int, list[_Path]]:
        """Hypotheses position by position, with segments under the bounds of each hypothesis.

        `together`: the hypotheses of a sentence share one list of `count` segments; otherwise each has its own.
        """
        paths = {b: [_EMPTY] for b in sentences}
        nonempty = sum(self.positions[b] > 0 for b in sentences)
        history = History(self.model, nonempty) if self.model.connects else None
        device = self.states_BSD.device
        for t in range(max((self.positions[b] for b in sentences), default=0)):
            here = [b for b in sentences if t < self.positions[b]]
            rows = [(self.bounds[b], path) for b in here for path in paths[b]]
            bounds = Bounds.of(
                [bound.fewest_after(t, self.size) - len(path.words) for bound, path in rows],
                [bound.longest - len(path.words) for bound, path in rows],
                [bound.prefix[len(path.words) :] for bound, path in rows],
                self.size,
                device,
            )
            states_RD = self.states_BSD[[b for b in here for _ in paths[b]], t]
            groups = [[path.score(self.options.word_bonus) for path in paths[b]] for b in here] if together else None
            lists = self._candidates(states_RD, None if history is None else history.output, count, bounds, groups)
            first = 0
            written: list[tuple[int, tuple[int, ...]]] = []
            for b in here:
                before = paths[b]
                paths[b] = self._extend(b, t, before, lists[first : first + len(before)])
                if t + 1 < self.positions[b]:
                    written += [(first + p.parent, p.words[len(before[p.parent].words) :]) for p in paths[b]]
                first += len(before)
            if history is not None:
                history.write([row for row, _ in written], [words for _, words in written])
        return paths

    def _extend(
        self, sentence: int, position: int, paths: list[_Path], lists: Sequence[list[Candidate]]
    ) -> list[_Path]:
        """The best outputs after `position`, from the outputs before it and the segments for each, equal words merged."""
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
        ranked = sorted(merged.values(), key=lambda path: -path.score(bonus))
        if not bound.prefix:
            return ranked[: self.options.beam]
        inside = [path for path in ranked if len(path.words) < len(bound.prefix)]
        return inside + [path for path in ranked if len(path.words) >= len(bound.prefix)][: self.options.beam]

    def _hypotheses(self, sentence: int, paths: list[_Path]) -> list[Hypothesis]:
        bound, options = self.bounds[sentence], self.options
        if not paths:
            raise ModelError("no output of the allowed length has a probability above 0", hint="relax min_length")
        result = []
        for path in paths:
            words, segments, trail = list(path.words), [], path.trail
            while trail is not None:
                trail, segment = trail
                segments.append(segment)
            length = torch.tensor(len(words) + 1.0, dtype=torch.float64)
            score = path.score(options.word_bonus) / float(options.penalty.divisor(length))
            cut = len(words) == bound.longest < bound.positions * self.size
            result.append(Hypothesis(words, path.log_prob, score, cut, segments[::-1]))
        return sorted(result, key=lambda hypothesis: -hypothesis.score)[: options.n_best]


def _log_add(a: float, b: float) -> float:
    """log(exp a + exp b) of finite numbers."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def can_align(model: Any) -> bool:
    """Always True: every word comes from one source position."""
    return True


def check(model: Any, config: DecodingConfig, *, aligned: bool) -> None:
    """Raise UsageError if the options select an attention, sampling or n-grams without repetition: the model has none."""
    for option, is_set in (
        ("sample", config.sample),
        ("mbr", config.mbr),
        ("no_repeat_ngram_size", config.no_repeat_ngram_size),
    ):
        if is_set:
            raise UsageError(f"{option} is for models that write token by token, and this model writes segments (NPMT)")
    if config.alignment_layer is not None or config.alignment_head is not None:
        raise UsageError(
            "alignment_layer and alignment_head select an attention, and a segmental model has none",
            hint="its segments are the alignment; leave both options out",
        )


def links(
    model: Any, tokenizer: Tokenizer, pieces: Sequence[Piece], n_best: Sequence[list[Hypothesis]], memory: Any,
    config: DecodingConfig, *, alignments: bool, replacing: bool,
) -> list[PieceResult]:  # fmt: skip
    """The hypotheses of each piece with the links of their segments, in source positions of the line."""
    result = []
    for piece, hypotheses in zip(pieces, n_best, strict=True):
        source_word = tokenizer.source.word_of_piece(piece.ids, piece.source_pieces)
        shifted: list[Hypothesis] = []
        aligned: list[Aligned | None] = []
        unknown: list[list[UnknownWord]] = []
        for h in hypotheses:
            segments, words = h.segments or [], tokenizer.target.words_of_piece(h.tokens, piece.begun)
            links = link_segments(segments, source_word, words).shifted(piece.first_word) if alignments else None
            aligned.append(links)
            unknown.append(unknown_of_segments(segments, h.tokens, source_word, words) if replacing else [])
            shifted.append(h._replace(segments=[_in_line(segment, piece) for segment in segments]))
        result.append(PieceResult(shifted, aligned, unknown))
    return result


def _in_line(segment: Segment, piece: Piece) -> Segment:
    """The segment with the source position in the line; tags count for its first subword, as they do for its first word."""
    return segment._replace(source=piece.first_id + max(0, segment.source - piece.tags))


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
    """The words with UNK, each with the one source word that emitted it."""
    emitted = {i: source_word[segment.source] for segment in segments for i in range(segment.start, segment.end)}
    sources: dict[int, int] = {}
    for i, token in enumerate(tokens):
        if token == UNK:
            sources.setdefault(target_words[i].start, emitted[i])
    places = {number: place for place, number in enumerate(sorted({words.start for words in target_words}))}
    return [UnknownWord(number, places[number], np.ones(1), [source]) for number, source in sources.items()]
