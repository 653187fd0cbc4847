"""How a segmental model cuts a text into segments, and whether known phrases are segments (docs/segments.md).

For translations: the segmentation of the search. For given pairs: the likeliest segmentation, and the posterior probability of
each segment,  Σ_t w[t, j, l]  with w as in `segmentations.py`: given both sides, the probability that the l subwords after
the first j are one segment, emitted by any position.

A known phrase is a run of two or more target words. In the likeliest segmentation it is

    segment   exactly one segment
    inside    a part of a longer segment
    split     otherwise: a segment boundary is inside it

Chance: the same segments at random places of their sentence. In a sentence of T subwords with s segments of n subwords, a
phrase of n subwords is a segment with probability s / (T - n + 1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from phraseloom.analysis.alignment import words_of_raw_pair
from phraseloom.analysis.coverage import NamedFiles, parse_each, parse_spans
from phraseloom.analysis.explain.attention import plain_links
from phraseloom.analysis.explain.text import ExplainedPair, words_of_pair
from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.batching import plan_batches
from phraseloom.decoding.limits import Segment, refuse_nan
from phraseloom.errors import DataError, ModelError, UsageError, plural
from phraseloom.metrics.ratio import wilson
from phraseloom.npmt.model import SegmentalModel
from phraseloom.npmt.search import link_segments

LEAST = 5e-324  # the smallest number with a finite logarithm
BATCH_SENTENCES, BATCH_TOKENS = 16, 1024
PLACES = ("segment", "inside", "split")


class TargetPhrase(NamedTuple):
    """Words `target[0]` … `target[1]` - 1 of the target, at least two, which translate the words `source`."""

    target: tuple[int, int]
    source: frozenset[int]
    kind: str


class Written(NamedTuple):
    """Target subwords `start` … `end` - 1, written by source subword `source`.

    `probability`: p(segment | source position) in a translation; the posterior of this position in a given pair.
    """

    source: int
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Segmented:
    """A sentence in subwords and its segments; `log_prob` of the target in nats, summed over the segmentations."""

    source: list[str]
    target: list[str]
    segments: list[Written]
    log_prob: float


@dataclass(frozen=True)
class Forced:
    """Given pairs (None if left out), the number left out by reason, and the summary of phrases by kind ("" is all)."""

    sentences: list[Segmented | None]
    left_out: dict[str, int]
    phrases: dict[str, dict[str, Any]]


def read_target_phrases(
    lines: Iterable[str], *, file: str | Path, kinds: Sequence[str] = (), reverse: bool = False
) -> list[list[TargetPhrase]]:
    """The phrases of each line that are spans of two or more target words, of one of `kinds` if you give any.

    The format is that of `.phrases` of the world: `s1:s2-t1:t2=kind` (`analysis/coverage.py`). `reverse`: the target of the
    file is the source of the model. Raises DataError with file and line.
    """
    result = []
    for spans in parse_each(lines, parse_spans, file):
        phrases = []
        for span in spans:
            sides = (range(*span.source), span.target)
            target, source = sides if reverse else sides[::-1]
            contiguous = len(target) > 1 and list(target) == list(range(target[0], target[-1] + 1))
            if contiguous and (not kinds or span.kind in kinds):
                phrases.append(TargetPhrase((target[0], target[-1] + 1), frozenset(source), span.kind))
        result.append(phrases)
    return result


def lengths_of(sentences: Iterable[Segmented | None]) -> dict[int, int]:
    """The number of source positions that write 0, 1, 2, … subwords."""
    counts: Counter[int] = Counter()
    for sentence in sentences:
        if sentence is not None:
            counts.update(s.end - s.start for s in sentence.segments)
            counts[0] += len(sentence.source) - len({s.source for s in sentence.segments})
    return dict(sorted(counts.items()))


def require_segments(model: Any) -> None:
    """Raise ModelError unless a model writes segments."""
    if not isinstance(model, SegmentalModel):
        raise ModelError("this model writes no segments", hint="train one with model.decoder: {kind: segmental}")


def of_translations(translator: Any, sources: Sequence[str]) -> list[Segmented]:
    """The segments of the translations of raw lines; a blank line has none. Raises ModelError."""
    require_segments(translator.model)
    side = translator.tokenizer.source
    pieces = [[side.vocabulary.piece(i) for i in ids] for ids in side.encode_batch(list(sources))]
    result = []
    for source, translation in zip(pieces, translator.translate(sources), strict=True):
        segments = [Written(s.source, s.start, s.end, _exp(s.log_prob)) for s in translation.segments or []]
        source = source[: translator.config.max_input_tokens] if translation.cropped else source
        result.append(Segmented(source, translation.tokens, segments, translation.log_prob))
    return result


def _exp(log_prob: float) -> float:
    return min(1.0, float(torch.tensor(log_prob, dtype=torch.float64).exp()))


def of_pairs(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    phrases: Sequence[Sequence[TargetPhrase]] | None = None,
    *,
    files: NamedFiles = ("source", "target", "phrases"),
) -> Forced:
    """The likeliest segmentation of each pair of raw lines; with the `phrases` of each line, also their summary.

    Left out: pairs with a blank side, pairs above `max_input_tokens`, and pairs with more target subwords than the segments of
    the source can hold. `files` are for messages. Raises UsageError if numbers of lines differ, DataError
    (with file and line) for a phrase beyond its line, ModelError.
    """
    require_segments(translator.model)
    known = [[] for _ in sources] if phrases is None else phrases
    if not len(sources) == len(targets) == len(known):
        raise UsageError(f"{len(sources)} sources, {len(targets)} targets, phrases of {plural(len(known), 'sentence')}")
    tokenizer, limit = translator.tokenizer, translator.config.max_input_tokens
    sides = [
        side.encode_batch(list(lines)) for side, lines in ((tokenizer.source, sources), (tokenizer.target, targets))
    ]
    ids = list(zip(*sides, strict=True))
    tags = tokenizer.tag_ids(translator.config.tags)
    lines = list(zip(sources, targets, strict=True))
    in_pieces = [_in_pieces(tokenizer, n, lines[n], ids[n], known[n], files) for n in range(len(lines))]
    reasons = [_reason(len(s), len(t), limit, len(tags), translator.model.max_segment) for s, t in ids]
    real = [n for n, reason in enumerate(reasons) if reason is None]
    sentences: list[Segmented | None] = [None] * len(ids)
    tallies: dict[str, _Tally] = {"": _Tally()} if phrases is not None else {}
    for batch in plan_batches(
        [max(map(len, ids[n])) + 1 for n in real], sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS
    ):
        numbers = [real[i] for i in batch]
        for n, (sentence, posteriors) in zip(
            numbers, _segment(translator, [ids[n] for n in numbers], tags), strict=True
        ):
            sentences[n] = sentence
            for phrase in in_pieces[n]:
                for kind in {"", phrase.kind}:
                    tallies.setdefault(kind, _Tally()).add(sentence, phrase, posteriors)
    left_out = {why: reasons.count(why) for why in ("blank", "too_long", "impossible")}
    return Forced(sentences, left_out, {kind: tallies[kind].summary() for kind in sorted(tallies)})


def _reason(source: int, target: int, limit: int, tags: int, size: int) -> str | None:
    """Why a pair with these numbers of subwords is left out; None if it is not. The model reads `tags` tags first."""
    if not source or not target:
        return "blank"
    if max(source, target) > limit:
        return "too_long"
    return "impossible" if target > (tags + source) * size else None


class _InPieces(NamedTuple):
    """A phrase as target subwords `start` … `end` - 1 and the source subwords that it translates."""

    start: int
    end: int
    source: frozenset[int]
    kind: str


def _in_pieces(
    tokenizer: Any,
    n: int,
    lines: tuple[str, str],
    pair: tuple[list[int], list[int]],
    phrases: Sequence[TargetPhrase],
    files: NamedFiles,
) -> list[_InPieces]:
    """The phrases of pair `n` in pieces."""
    if not phrases:
        return []
    source, target = words_of_raw_pair(tokenizer, lines, pair, files[:2], n + 1)
    result = []
    for phrase in phrases:
        own = [
            i
            for i, words in enumerate(target.of_piece)
            if phrase.target[0] <= words.start and words.stop <= phrase.target[1]
        ]
        if phrase.target[1] > target.number or max(phrase.source, default=-1) >= source.number:
            raise DataError(
                f"the sentence has {source.number} and {target.number} words, too few for the phrase on target "
                f"words {phrase.target[0]}:{phrase.target[1]}",
                file=files[2],
                line=n + 1,
                hint="spans count the words of the line, from 0; are the files parallel, or the wrong way round (--reverse)?",
            )
        if own:
            from_source = frozenset(i for i, words in enumerate(source.of_piece) if words.start in phrase.source)
            result.append(_InPieces(own[0], own[-1] + 1, from_source, phrase.kind))
    return result


def _segment(
    translator: Any, pairs: list[tuple[list[int], list[int]]], tags: list[int]
) -> list[tuple[Segmented, list[list[float]]]]:
    """The likeliest segmentation of each pair after `tags`, and the posterior of every segment by start and size.

    What a tag writes counts for the first subword.
    """
    with torch.inference_mode():
        batch = make_batch([[*tags, *s] for s, _ in pairs], [t for _, t in pairs]).to(translator.device)
        segmented = translator.model.segments(batch)
        refuse_nan(segmented.marginal_B)
    vocabularies = translator.tokenizer.source.vocabulary, translator.tokenizer.target.vocabulary
    result = []
    for b, pair in enumerate(pairs):
        segments, start = [], 0
        for position, size in enumerate(segmented.lengths_BS[b, : len(tags) + len(pair[0])].tolist()):
            if size:
                probability = float(segmented.posterior_BSCX[b, position, start, size])
                segments.append(Written(max(0, position - len(tags)), start, start + size, probability))
            start += size
        source, target = ([v.piece(i) for i in ids] for v, ids in zip(vocabularies, pair, strict=True))
        posteriors: list[list[float]] = segmented.posterior_BSCX[b].sum(0).tolist()
        result.append((Segmented(source, target, segments, float(segmented.marginal_B[b])), posteriors))
    return result


@dataclass
class _Tally:
    """Counts of phrases by their place in the segmentation."""

    places: Counter[str] = field(default_factory=Counter)
    chance: float = 0.0
    posterior: float = 0.0
    at_source: int = 0
    too_long: int = 0

    def add(self, sentence: Segmented, phrase: _InPieces, posteriors: list[list[float]]) -> None:
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
        if size < len(posteriors[0]):
            self.posterior += posteriors[phrase.start][size]
        else:
            self.too_long += 1

    def summary(self) -> dict[str, Any]:
        """Counts, shares from 0 to 1, and the Wilson interval of the share of segments; shares are None without phrases."""
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
    """A note on what the model lacks."""
    return "this model has no attention: each segment is written by one source position"


def fill_view(
    view: dict[str, Any], translator: Any, pair: ExplainedPair, batch: Batch, uses: Sequence[str]
) -> dict[str, Any]:
    """Add the segments to a view (`analysis/explain/sentence.py`), and remove EOS from its source: the model reads none."""
    segments = _segments(translator, pair, batch)
    without_eos = {name: view[name][:-1] for name in ("source_tokens", "source_word")}
    return view | segments | without_eos | {"notes": view["notes"] + segments["notes"]}


def _segments(translator: Any, pair: ExplainedPair, batch: Batch) -> dict[str, Any]:
    """The segments of the model's own translation, or the likeliest of a given pair, and their links.

    A word link has the weight of the likeliest segment that makes it. `notes` describe the segments.
    """
    notes: list[str] = []
    if pair.translation is not None:
        segments = [segment for segment in pair.translation.segments or [] if segment.end <= len(pair.target)]
    elif len(pair.target) > len(pair.source) * translator.model.max_segment:
        segments = []
        notes.append("the target is longer than all segments of this source together: it has no segmentation")
    else:
        segments = _likeliest(translator.model, batch, len(pair.source))
        notes.append("the target was given: its likeliest segments, each with the log of its posterior probability")
    source_words, words = words_of_pair(translator.tokenizer, pair)
    source_word = [span.start for span in source_words]
    links = link_segments(segments, source_word, words)
    heaviest: dict[tuple[int, int], float] = {}
    for segment in segments:
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
            for s in segments
        ],
        "word_links": [[s, t, heaviest[s, t]] for s, t in links.words],
        "phrase_links": plain_links(links.phrases),
    }


def _likeliest(model: Any, batch: Batch, positions: int) -> list[Segment]:
    """The likeliest segmentation of a pair, each segment with the log of its posterior probability."""
    segmented = model.segments(batch)
    refuse_nan(segmented.marginal_B)
    result, start = [], 0
    for position, size in enumerate(segmented.lengths_BS[0, :positions].tolist()):
        if size:
            posterior = float(segmented.posterior_BSCX[0, position, start, size])
            result.append(Segment(position, start, start + size, math.log(max(posterior, LEAST))))
        start += size
    return result
