"""How a segmental model cuts a text into segments, and whether known phrases are segments (spec §5; docs/segments.md).

Of translations: the segmentation that the search found. Of given pairs: the likeliest segmentation, and the posterior
probability of each segment,  Σ_t w[t, j, l]  with w as in `segmentations.py`: how likely the model finds it, now that it
sees both sides, that the l subwords behind the first j are one segment, whichever position emits it.

A known phrase is a run of two or more target words. In the likeliest segmentation it is

    segment   one segment, neither more nor less
    inside    a part of a longer segment
    split     all else: a border between segments falls into it

Chance: the same segments, put elsewhere in their sentence. Of a sentence of T subwords with s segments of n subwords, a phrase
of n subwords is a segment with s / (T - n + 1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from phraseloom.analysis.coverage import parse_spans
from phraseloom.analysis.explain.attention import plain_links
from phraseloom.analysis.explain.text import ExplainedPair
from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.batching import plan_batches
from phraseloom.decoding.limits import Segment, refuse_nan
from phraseloom.errors import DataError, ModelError, UsageError, plural
from phraseloom.metrics.ratio import wilson
from phraseloom.npmt.model import SegmentalModel
from phraseloom.npmt.search import link_segments

LEAST = 5e-324  # of which there still is a logarithm
BATCH_SENTENCES, BATCH_TOKENS = 16, 1024
PLACES = ("segment", "inside", "split")


class TargetPhrase(NamedTuple):
    """Words `target[0]` … `target[1]` - 1 of the target, two at least, which translate the words `source`."""

    target: tuple[int, int]
    source: frozenset[int]
    kind: str


class Written(NamedTuple):
    """Target subwords `start` … `end` - 1, written by source subword `source`.

    `probability`: in a translation p(segment | source position); in a given pair the posterior, of this position.
    """

    source: int
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Segmented:
    """A sentence in subwords and its segments; `log_prob` in nats of the target, over all segmentations that were counted."""

    source: list[str]
    target: list[str]
    segments: list[Written]
    log_prob: float


@dataclass(frozen=True)
class Forced:
    """Each given pair, or None where it was left out; how many were, by reason; by kind what became of phrases ("" is all)."""

    sentences: list[Segmented | None]
    left_out: dict[str, int]
    phrases: dict[str, dict[str, Any]]


def read_target_phrases(
    lines: Iterable[str], *, file: str | Path, kinds: Sequence[str] = (), reverse: bool = False
) -> list[list[TargetPhrase]]:
    """The phrases of each line that are runs of two or more target words, of one of `kinds` if any are given.

    The form is that of `.phrases` of the world: `s1:s2-t1:t2=kind` (`analysis/coverage.py`). `reverse`: the target of the file
    is the source of the model. Raises DataError with file and line.
    """
    result = []
    for number, line in enumerate(lines, 1):
        try:
            spans = parse_spans(line)
        except DataError as error:
            raise DataError(error.what, file=file, line=number, hint=error.hint) from error
        found = []
        for span in spans:
            sides = (range(*span.source), span.target)
            own, other = sides if reverse else sides[::-1]
            whole = len(own) > 1 and list(own) == list(range(own[0], own[-1] + 1))
            if whole and (not kinds or span.kind in kinds):
                found.append(TargetPhrase((own[0], own[-1] + 1), frozenset(other), span.kind))
        result.append(found)
    return result


def lengths_of(sentences: Iterable[Segmented | None]) -> dict[int, int]:
    """How many source positions write 0, 1, 2, … subwords."""
    counts: Counter[int] = Counter()
    for one in sentences:
        if one is not None:
            counts.update(s.end - s.start for s in one.segments)
            counts[0] += len(one.source) - len({s.source for s in one.segments})
    return dict(sorted(counts.items()))


def require_segments(model: Any) -> None:
    """ModelError unless a model writes segments."""
    if not isinstance(model, SegmentalModel):
        raise ModelError("this model writes no segments", hint="train one with model.decoder: {kind: segmental}")


def of_translations(translator: Any, sources: Sequence[str]) -> list[Segmented]:
    """The segments of the translations of raw lines; a blank line has none. Raises ModelError."""
    require_segments(translator.model)
    side = translator.tokenizer.source
    pieces = [[side.vocabulary.piece(i) for i in ids] for ids in side.encode_batch(list(sources))]
    result = []
    for source, found in zip(pieces, translator.translate(sources), strict=True):
        segments = [Written(s.source, s.start, s.end, _exp(s.log_prob)) for s in found.segments or []]
        result.append(Segmented(source, found.tokens, segments, found.log_prob))
    return result


def _exp(log_prob: float) -> float:
    return min(1.0, float(torch.tensor(log_prob, dtype=torch.float64).exp()))


def of_pairs(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    phrases: Sequence[Sequence[TargetPhrase]] | None = None,
) -> Forced:
    """The likeliest segmentation of each pair of raw lines; with `phrases` of each line, what becomes of them.

    Left out: pairs with a blank side, those longer than `max_input_tokens`, and those with more target subwords than the
    segments of the source can hold. Raises UsageError where numbers of lines differ, DataError for a phrase beyond its line,
    ModelError.
    """
    require_segments(translator.model)
    given = [[] for _ in sources] if phrases is None else phrases
    if not len(sources) == len(targets) == len(given):
        raise UsageError(f"{len(sources)} sources, {len(targets)} targets, phrases of {plural(len(given), 'sentence')}")
    tokenizer, limit = translator.tokenizer, translator.config.max_input_tokens
    sides = [
        side.encode_batch(list(lines)) for side, lines in ((tokenizer.source, sources), (tokenizer.target, targets))
    ]
    ids = list(zip(*sides, strict=True))
    wanted = [
        _in_pieces(tokenizer, number, source, target, some)
        for number, ((source, target), some) in enumerate(zip(ids, given, strict=True), 1)
    ]
    reasons = [_reason(len(s), len(t), limit, translator.model.max_segment) for s, t in ids]
    real = [n for n, reason in enumerate(reasons) if reason is None]
    sentences: list[Segmented | None] = [None] * len(ids)
    tallies: dict[str, _Tally] = {"": _Tally()} if phrases is not None else {}
    for batch in plan_batches(
        [max(map(len, ids[n])) + 1 for n in real], sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS
    ):
        numbers = [real[i] for i in batch]
        for n, (one, chances) in zip(numbers, _segment(translator, [ids[n] for n in numbers]), strict=True):
            sentences[n] = one
            for phrase in wanted[n]:
                for kind in {"", phrase.kind}:
                    tallies.setdefault(kind, _Tally()).add(one, phrase, chances)
    left_out = {why: reasons.count(why) for why in ("blank", "too_long", "impossible")}
    return Forced(sentences, left_out, {kind: tallies[kind].summary() for kind in sorted(tallies)})


def _reason(source: int, target: int, limit: int, size: int) -> str | None:
    """Why a pair of so many subwords is left out."""
    if not source or not target:
        return "blank"
    if max(source, target) > limit:
        return "too_long"
    return "impossible" if target > source * size else None


class _InPieces(NamedTuple):
    """A phrase as target subwords `start` … `end` - 1 and the source subwords that belong to it."""

    start: int
    end: int
    source: frozenset[int]
    kind: str


def _in_pieces(
    tokenizer: Any, number: int, source: list[int], target: list[int], phrases: Sequence[TargetPhrase]
) -> list[_InPieces]:
    source_word, words = tokenizer.source.word_of_piece(source), tokenizer.target.words_of_piece(target)
    found = []
    for phrase in phrases:
        own = [i for i, some in enumerate(words) if phrase.target[0] <= some.start and some.stop <= phrase.target[1]]
        last = words[-1].stop if words else 0
        if phrase.target[1] > last or max(phrase.source, default=-1) > max(source_word, default=-1):
            raise DataError(
                f"sentence {number} has {max(source_word, default=-1) + 1} and {last} words, too few for the phrase on target "
                f"words {phrase.target[0]}:{phrase.target[1]}",
                hint="spans count the words of the line, from 0; are the files parallel, or the wrong way round (--reverse)?",
            )
        if own:
            at = frozenset(i for i, word in enumerate(source_word) if word in phrase.source)
            found.append(_InPieces(own[0], own[-1] + 1, at, phrase.kind))
    return found


def _segment(translator: Any, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[Segmented, list[list[float]]]]:
    """Each pair in its likeliest segmentation, and the posterior of every segment by its start and size."""
    with torch.inference_mode():
        batch = make_batch([s for s, _ in pairs], [t for _, t in pairs]).to(translator.device)
        found = translator.model.segments(batch)
        refuse_nan(found.marginal_B)
    vocabularies = translator.tokenizer.source.vocabulary, translator.tokenizer.target.vocabulary
    result = []
    for b, pair in enumerate(pairs):
        segments, start = [], 0
        for position, size in enumerate(found.lengths_BS[b, : len(pair[0])].tolist()):
            if size:
                probability = float(found.posterior_BSCX[b, position, start, size])
                segments.append(Written(position, start, start + size, probability))
            start += size
        source, target = ([v.piece(i) for i in ids] for v, ids in zip(vocabularies, pair, strict=True))
        chances: list[list[float]] = found.posterior_BSCX[b].sum(0).tolist()
        result.append((Segmented(source, target, segments, float(found.marginal_B[b])), chances))
    return result


@dataclass
class _Tally:
    """What became of some phrases."""

    places: Counter[str] = field(default_factory=Counter)
    chance: float = 0.0
    posterior: float = 0.0
    at_source: int = 0
    too_long: int = 0

    def add(self, sentence: Segmented, phrase: _InPieces, chances: list[list[float]]) -> None:
        """Count one phrase of a sentence."""
        size = phrase.end - phrase.start
        around = [s for s in sentence.segments if s.start <= phrase.start and phrase.end <= s.end]
        if around and (around[0].start, around[0].end) == (phrase.start, phrase.end):
            self.places["segment"] += 1
            self.at_source += around[0].source in phrase.source
        else:
            self.places["inside" if around else "split"] += 1
        alike = sum(s.end - s.start == size for s in sentence.segments)
        self.chance += alike / (len(sentence.target) - size + 1)
        if size < len(chances[0]):
            self.posterior += chances[phrase.start][size]
        else:
            self.too_long += 1

    def summary(self) -> dict[str, Any]:
        """Counts, shares in 1, and the Wilson interval of the share that are segments; None where there is nothing to share."""
        total = sum(self.places.values())
        whole = self.places["segment"]
        return {
            "phrases": total,
            "longer_than_a_segment": self.too_long,
            **{place: self.places[place] / total if total else None for place in PLACES},
            "interval": list(wilson(whole, total)),
            "chance": self.chance / total if total else None,
            "posterior": self.posterior / total if total else None,
            "from_its_source": self.at_source / whole if whole else None,
        }


def describe(model: Any) -> str:
    """The model in one line."""
    reads = ", each given the words before it" if model.connects else ""
    return f"segmental (NPMT): segments of up to {model.max_segment} subwords{reads}"


def note(model: Any) -> str | None:
    """What it does not have."""
    return "this model has no attention: each segment is written by one source position"


def fill_view(
    view: dict[str, Any], translator: Any, pair: ExplainedPair, batch: Batch, uses: Sequence[str]
) -> dict[str, Any]:
    """A view (`analysis/explain/sentence.py`) with its segments; the source loses EOS, which the model does not read."""
    found = _segments(translator, pair, batch)
    cut = {name: view[name][:-1] for name in ("source_tokens", "source_word")}
    return view | found | cut | {"notes": view["notes"] + found["notes"]}


def _segments(translator: Any, pair: ExplainedPair, batch: Batch) -> dict[str, Any]:
    """The segments of a segmental model, and the links that they are: of its own translation, or the likeliest of a pair.

    A word link weighs as much as the likeliest segment that makes it. `notes` says what the segments are.
    """
    notes: list[str] = []
    if pair.translation is not None:
        found = [segment for segment in pair.translation.segments or [] if segment.end <= len(pair.target)]
    elif len(pair.target) > len(pair.source) * translator.model.max_segment:
        found = []
        notes.append("the target is longer than all segments of this source together: it has no segmentation")
    else:
        found = _likeliest(translator.model, batch, len(pair.source))
        notes.append("the target was given: its likeliest segments, each with the log of its posterior probability")
    source_word = translator.tokenizer.source.word_of_piece(pair.source)
    words = translator.tokenizer.target.words_of_piece(pair.target)
    links = link_segments(found, source_word, words)
    heaviest: dict[tuple[int, int], float] = {}
    for segment in found:
        for word in {word for span in words[segment.start : segment.end] for word in span}:
            link, weight = (source_word[segment.source], word), min(1.0, math.exp(segment.log_prob))
            heaviest[link] = max(heaviest.get(link, 0.0), weight)
    return {
        "notes": notes,
        "segments": [
            {
                "source": source_word[s.source],
                "target": [words[s.start].start, words[s.end - 1].stop],
                "source_token": s.source,
                "target_tokens": [s.start, s.end],
                "log_prob": s.log_prob,
            }
            for s in found
        ],
        "word_links": [[s, t, heaviest[s, t]] for s, t in links.words],
        "phrase_links": plain_links(links.phrases),
    }


def _likeliest(model: Any, batch: Batch, positions: int) -> list[Segment]:
    """The likeliest segmentation of a pair, each segment with the log of its posterior probability."""
    found = model.segments(batch)
    refuse_nan(found.marginal_B)
    result, start = [], 0
    for position, size in enumerate(found.lengths_BS[0, :positions].tolist()):
        if size:
            posterior = float(found.posterior_BSCX[0, position, start, size])
            result.append(Segment(position, start, start + size, math.log(max(posterior, LEAST))))
        start += size
    return result
