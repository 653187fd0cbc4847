"""Word links from attention (paper 004 §5; spec §6.3).

Given the attention (target pieces, source pieces) of one decoder layer, of one head or the mean of all:

1. **Words.** The columns of the pieces of a source word are summed, the rows of the pieces of a target word averaged. Rows and
   columns of EOS are left out; what lies on EOS is not given to the others.
2. **Directions.** target-to-source: each target word is linked to the source word with the largest weight. source-to-target:
   each source word is linked to the target word with the largest weight. Ties: the lower word.
3. **Methods.** One of the directions, or both joined (`align/symmetrize.py`; target-to-source is the forward one). Paper 004
   takes the union.

Words without a piece are in no link. A target piece of several words (a phrase) counts as one word; what is linked to it is
linked to all its words. Weights are float32 values summed in float64, so that equal sums are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phraseloom.align import symmetrize
from phraseloom.align.links import Links

TARGET_TO_SOURCE, SOURCE_TO_TARGET = "target-to-source", "source-to-target"
METHODS: tuple[str, ...] = (TARGET_TO_SOURCE, SOURCE_TO_TARGET, *symmetrize.METHODS)


class WordWeights(NamedTuple):
    """Attention between words, float64 (…, target words, source words), and the number of each word, ascending."""

    weights: np.ndarray
    source: list[int]
    target: list[int]


Numbers = Sequence[int] | Sequence[range]


def as_ranges(numbers: Numbers) -> list[range]:
    """The words of each piece, where a plain number is one word."""
    return [n if isinstance(n, range) else range(n, n + 1) for n in numbers]


def word_weights(weights: np.ndarray, source_word: Sequence[int], target_word: Sequence[int]) -> WordWeights:
    """Attention (…, target pieces + EOS or more, source pieces + EOS or more) → attention between words.

    `source_word`, `target_word`: the word number of each piece, in ascending order, at least one each.
    """
    pieces = weights[..., : len(target_word), : len(source_word)].astype(np.float64)
    source, source_starts = np.unique(source_word, return_index=True)
    target, target_starts, sizes = np.unique(target_word, return_index=True, return_counts=True)
    summed = np.add.reduceat(pieces, source_starts, axis=-1)
    means = np.add.reduceat(summed, target_starts, axis=-2) / sizes[:, None]
    return WordWeights(means, source.tolist(), target.tolist())


def directions(words: WordWeights) -> tuple[Links, Links]:
    """Links target-to-source and source-to-target, of weights with two axes."""
    best_source, best_target = words.weights.argmax(1).tolist(), words.weights.argmax(0).tolist()
    return (
        frozenset((words.source[s], t) for t, s in zip(words.target, best_source, strict=True)),
        frozenset((s, words.target[t]) for s, t in zip(words.source, best_target, strict=True)),
    )


def combine(to_source: Links, to_target: Links, method: str) -> Links:
    """The links of a method from those of both directions. Raises UsageError for an unknown one."""
    if method == TARGET_TO_SOURCE:
        return to_source
    if method == SOURCE_TO_TARGET:
        return to_target
    return symmetrize.symmetrize(to_source, to_target, method)


def link_words(
    weights_TS: np.ndarray, source_word: Sequence[int], target_words: Numbers, method: str = TARGET_TO_SOURCE
) -> list[tuple[int, int]]:
    """Links (source word, target word) in the order of the target words; see `word_weights` for the arguments.

    `target_words`: the word number of each piece, or the numbers of its words, in ascending order; pieces of one word share it.
    """
    if not source_word or not target_words:
        return []
    units, words = _units(as_ranges(target_words))
    links = combine(*directions(word_weights(weights_TS, source_word, units)), method)
    return sorted(((s, word) for s, unit in links for word in words[unit]), key=lambda link: (link[1], link[0]))


def _units(target_words: list[range]) -> tuple[list[int], dict[int, range]]:
    """Numbers of the pieces in which a phrase counts as one word, so that neighbours stay neighbours; the words of each."""
    units: list[int] = []
    words: dict[int, range] = {}
    more = 0
    for number, of_piece in enumerate(target_words):
        if number and of_piece == target_words[number - 1]:
            units.append(units[-1])
        else:
            units.append(of_piece.start - more)
            more += len(of_piece) - 1
        words[units[-1]] = of_piece
    return units, words
