"""Align sentence pairs by attention, and measure which layer and head of a model aligns best (paper 004 §5).

The target is forced: row t of the attention predicted target piece t. `decoding/alignment.py` turns the attention of a layer
(one head, or the mean of all) into links, as in `translate`.

Words are separated by U+0020 in the raw lines, as in gold alignments. If the tokenizer changes a line (Moses), each subword
belongs to the word of its first character; an ambiguous line is an error with its number. In joined text, a phrase is one unit
of the methods, and its links hold for all its words, as in `translate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from phraseloom.align.links import Gold, Links
from phraseloom.analysis.attention import cross_structures, forced_attention
from phraseloom.decoding.alignment import (
    MAX,
    METHODS,
    WordWeights,
    as_ranges,
    choose,
    combine,
    directions,
    word_units,
    word_weights,
)
from phraseloom.decoding.long_lines import CroppedLines
from phraseloom.decoding.source_phrases import TREES
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import sha256_file
from phraseloom.metrics.aer import AlignmentScore
from phraseloom.models.store import change_generation
from phraseloom.options.decoding import AlignmentSelection, NamedFile
from phraseloom.phrases.source import word_of_piece
from phraseloom.text.tokenizer import Side

Files = tuple[str | Path, str | Path]


class AlignedPair(NamedTuple):
    """The links of one pair, and for each link the attention of the target word to the source word.

    `cropped` is true if a side is longer than the model's limit; the words at its end have no link.
    """

    links: Links
    weights: dict[tuple[int, int], float]
    cropped: bool


@dataclass(frozen=True)
class MeasuredAlignment:
    """The score of a method on one layer (from 1) and one head (from 1), the mean of all (None) or their maximum ("max").

    `by_sentence` has [|A∩S| + |A∩P|, |A| + |S|] for each sentence.
    """

    layer: int
    head: int | Literal["max"] | None
    method: str
    score: AlignmentScore
    by_sentence: Sequence[Sequence[int]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        place = {"layer": self.layer, "head": self.head, "method": self.method}
        return {**place, **self.score.as_dict(), "by_sentence": self.by_sentence}


def align_pairs(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    trees: Sequence[str] | None = None,
    files: Files = ("source", "target"),
    first_line: int = 1,
) -> Iterator[AlignedPair]:
    """The links of each pair of raw lines, by the layer, head and method in the options of the translator.

    A pair with a blank side has no links. `trees` as in `Translator.translate`. `files` and `first_line` are for messages.
    Raises UsageError (numbers of lines, layer, head, trees), DataError (a line or tree that does not fit), ModelError (no
    attention).
    """
    translator = translator.first_model()
    layer, head, method = choose(translator.config, cross_structures(translator.model))
    for pair in _pairs(translator, sources, targets, trees, files, first_line):
        if pair is None:
            yield AlignedPair(frozenset(), {}, cropped=False)
            continue
        layers, source, target, cropped = pair
        weights_HTS = layers[layer]
        weights_TS = weights_HTS[head] if isinstance(head, int) else merged_heads(weights_HTS)[int(head == MAX)]
        words = word_weights(weights_TS, source.of_piece, target.of_piece)
        links = combine(*directions(words), method)
        rows, columns = ({word: n for n, word in enumerate(side)} for side in (words.target, words.source))
        weights = {
            link: float(words.weights[rows[t], columns[s]])
            for s, t in links
            for link in product(source.words[s], target.words[t])
        }
        yield AlignedPair(frozenset(weights), weights, cropped)


def measure(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    gold: Sequence[Gold],
    *,
    trees: Sequence[str] | None = None,
    files: Files = ("source", "target"),
    cropped: CroppedLines | None = None,
) -> list[MeasuredAlignment]:
    """The score of every layer, head (the mean of all, their maximum, each head) and method, in this order.

    `cropped` counts the pairs longer than the model's limits, whose gold links beyond them count as missed.
    Raises as `align_pairs`, and DataError if the numbers of gold alignments and pairs differ.
    """
    if len(gold) != len(sources):
        raise DataError(f"{len(gold)} gold alignments, but {len(sources)} sentence pairs")
    translator = translator.first_model()
    structures = cross_structures(translator.model)
    counts = [np.zeros((len(gold), 2 + s.heads, len(METHODS), 3), np.int64) for s in structures]
    pairs = _pairs(translator, sources, targets, trees, files, 1)
    for n, (pair, truth) in enumerate(zip(pairs, gold, strict=True)):
        if cropped is not None:
            cropped.note(pair is not None and pair[3])
        if pair is None:
            continue
        layers, source, target, _ = pair
        for weights_HTS, tally in zip(layers, counts, strict=True):
            every_head = np.concatenate([merged_heads(weights_HTS), weights_HTS])
            words = word_weights(every_head, source.of_piece, target.of_piece)
            for number, head_weights in enumerate(words.weights):
                both = directions(WordWeights(head_weights, words.source, words.target))
                for m, method in enumerate(METHODS):
                    units = combine(*both, method)
                    links = {link for s, t in units for link in product(source.words[s], target.words[t])}
                    tally[n, number, m] = (len(links), len(links & truth.sure), len(links & truth.possible))
    return [
        _measured(layer, head, method, tally[:, number, m], gold)
        for layer, tally in enumerate(counts, 1)
        for number, head in enumerate([None, MAX, *range(1, tally.shape[1] - 1)])
        for m, method in enumerate(METHODS)
    ]


def _measured(
    layer: int, head: int | Literal["max"] | None, method: str, counts_N3: np.ndarray, gold: Sequence[Gold]
) -> MeasuredAlignment:
    links, in_sure, in_possible = counts_N3.sum(0).tolist()
    sure = [len(g.sure) for g in gold]
    score = AlignmentScore(len(gold), links, sum(sure), sum(len(g.possible) for g in gold), in_sure, in_possible)
    rows = [[a + b, predicted + s] for (predicted, a, b), s in zip(counts_N3.tolist(), sure, strict=True)]
    return MeasuredAlignment(layer, head, method, score, rows)


def ranked(measured: Sequence[MeasuredAlignment]) -> list[MeasuredAlignment]:
    """Sort by alignment error rate, lowest first; ties keep the order of `measure`."""
    return sorted(measured, key=lambda m: m.score.aer)


def remember(model: str | Path, best: MeasuredAlignment, *, source: Path, target: Path, gold: Path) -> Path:
    """Write the best setting and the files it was measured on into the generation settings of a model; return its folder.

    Raises FileProblem, CorruptError, ModelError.
    """
    named = {
        name: NamedFile(name=path.name, sha256=sha256_file(path))
        for name, path in (("source", source), ("target", target), ("gold", gold))
    }
    selection = AlignmentSelection(aer=best.score.aer, sentences=best.score.sentences, **named)
    changes = {"alignment_layer": best.layer, "alignment_head": best.head, "alignment_method": best.method}
    return change_generation(model, {**changes, "alignment_selection": selection.model_dump(mode="json")})


class _Units(NamedTuple):
    """The unit (a word; in joined text, a word or phrase) of each piece of a line, and the words of each unit."""

    of_piece: list[int]
    words: dict[int, range]


class _Pair(NamedTuple):
    """The attention (H, T+1, S+1) of each layer without the columns of tags, and the units of both lines."""

    layers: list[np.ndarray]
    source: _Units
    target: _Units
    cropped: bool


class RawWords(NamedTuple):
    """The words of each piece of a raw line, as annotation counts them, and the number of words of the line."""

    of_piece: list[range]
    number: int


def words_of_raw_pair(
    tokenizer: Any, lines: tuple[str, str], ids: tuple[Sequence[int], Sequence[int]], files: Files, number: int
) -> tuple[RawWords, RawWords]:
    """The words of both lines of a pair, counted before any tokenisation; `ids` are their pieces.

    Raises DataError, with file and line `number`, if normalisation moves characters from one word to another.
    """
    result = []
    for side, line, own, file in zip((tokenizer.source, tokenizer.target), lines, ids, files, strict=True):
        try:
            result.append(_raw_words(side, line, own))
        except DataError as error:
            raise DataError(error.what, file=file, line=number, hint=error.hint) from error
    return result[0], result[1]


def _raw_words(side: Side, line: str, ids: Sequence[int]) -> RawWords:
    """The words of a raw line; tags count for the first."""
    if not side.joined:
        return RawWords(as_ranges(word_of_piece(side, line, ids)), sum(map(bool, line.split(" "))))
    tags = list(side.tag_ids.values())
    words = side.words_of_piece([number for number in ids if number not in tags])
    return RawWords([*words[:1]] * (len(ids) - len(words)) + words, words[-1].stop if words else 0)


def merged_heads(weights_HTS: np.ndarray) -> np.ndarray:
    """(H, T, S) → (2, T, S), float64: the mean over the heads, and the largest weight of any (paper 004, footnote 7)."""
    exact = weights_HTS.astype(np.float64)
    return np.stack([exact.mean(0), exact.max(0)])


def _pairs(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    trees: Sequence[str] | None,
    files: Files,
    first_line: int,
) -> Iterator[_Pair | None]:
    """The attention of each pair with the words of its lines; None for a pair with a blank side, which the model never sees."""
    if len(sources) != len(targets):
        raise UsageError(f"{len(sources)} sources, but {len(targets)} targets")
    if trees is not None and len(trees) != len(sources):
        raise UsageError(f"{plural(len(sources), 'line')}, but {len(trees)} trees")
    sides = (translator.tokenizer.source, translator.tokenizer.target)
    ids = [side.encode_batch(list(lines)) for side, lines in zip(sides, (sources, targets), strict=True)]
    real = [n for n, both in enumerate(zip(*ids, strict=True)) if all(both)]
    tags = len(translator.tokenizer.tag_ids(translator.config.tags))
    real_trees = None if trees is None else [trees[n] for n in real]
    try:
        attention = forced_attention(
            translator, [sources[n] for n in real], [ids[1][n] for n in real], trees=real_trees
        )
    except DataError as error:
        if error.file != TREES or error.line is None:
            raise
        raise DataError(error.what, file=TREES, line=real[error.line - 1] + 1, hint=error.hint) from error
    for n, lines in enumerate(zip(sources, targets, strict=True)):
        if not (ids[0][n] and ids[1][n]):
            yield None
            continue
        both = words_of_raw_pair(translator.tokenizer, lines, (ids[0][n], ids[1][n]), files, first_line + n)
        words = [side.of_piece for side in both]
        layers = [weights_HTS[..., tags:] for weights_HTS in next(attention).layers]
        rows, columns = (size - 1 for size in layers[0].shape[-2:])
        cropped = len(words[0]) > columns or len(words[1]) > rows
        source, target = (_Units(*word_units(w[:size])) for w, size in zip(words, (columns, rows), strict=True))
        yield _Pair(layers, source, target, cropped)
