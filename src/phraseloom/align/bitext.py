"""Sentence pairs as arrays: words as numbers, pairs of the same two lengths together, and each word pair that occurs once.

A sentence pair of S source and T target words has T·S occurrences of word pairs. Pairs of sentences with the same (S, T)
form one array [B, T, S], so that a sum over the source or the target words of a sentence is a sum over an axis. The
distinct word pairs of a text are numbered in the order of (source word, target word), and every occurrence is such a number.
Words stand between blanks (U+0020), as in `links.py`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

SORTED = 2**18  # occurrences that are sorted at a time


class Group(NamedTuple):
    """Sentence pairs of the same two lengths: their numbers [B], source words [B, S] and target words [B, T]."""

    numbers: np.ndarray
    source_BS: np.ndarray
    target_BT: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of words (T, S)."""
        return self.target_BT.shape[1], self.source_BS.shape[1]

    def slices(self, size: int) -> Iterator[slice]:
        """Slices of B in order, each of at most `size` occurrences and at least one sentence pair."""
        step = max(1, size // math.prod(self.shape))
        return (slice(start, start + step) for start in range(0, len(self.numbers), step))


class BitextSide:
    """One side of a text, word by word: numbers of words and lengths of sentences."""

    def __init__(self) -> None:
        self.words, self.lengths = array("i"), array("i")

    def add(self, numbers: Sequence[int]) -> None:
        """Append a sentence."""
        self.words.extend(numbers)
        self.lengths.append(len(numbers))


def split(line: str, *, lowercase: bool = False) -> list[str]:
    """The words of a line."""
    return [word for word in (line.lower() if lowercase else line).split(" ") if word]


def group(source: BitextSide, target: BitextSide, numbers: Sequence[int] | None = None) -> list[Group]:
    """The sentence pairs of two sides by their lengths, in the order of (T, S), then of the text.

    No sentence may be empty. `numbers`: what the pairs are called, by default 0, 1, …
    """
    names = np.arange(len(source.lengths)) if numbers is None else np.asarray(numbers, np.int64)
    lengths = [np.asarray(side.lengths, np.int64) for side in (source, target)]
    starts = [np.cumsum(some) - some for some in lengths]
    words = [np.asarray(side.words, np.int32) for side in (source, target)]
    order = np.lexsort(lengths)
    changes = np.flatnonzero(np.any([np.diff(some[order]) for some in lengths], axis=0)) + 1
    groups = []
    for members in np.split(order, changes):
        if len(members):
            sides = (
                word[start[members, None] + np.arange(length[members[0]])]
                for word, start, length in zip(words, starts, lengths, strict=True)
            )
            groups.append(Group(names[members], *sides))
    return groups


class BitextCounts(NamedTuple):
    """What became of the sentence pairs of a text: used, with a blank side, too long."""

    used: int
    blank: int
    long: int


class Bitext(NamedTuple):
    """A text to learn from: the words of both sides by number, grouped sentence pairs, and what was left out."""

    source_words: list[str]
    target_words: list[str]
    groups: list[Group]
    counted: BitextCounts


def read_bitext(pairs: Iterable[tuple[str, str]], *, lowercase: bool = False, max_words: int | None = None) -> Bitext:
    """The (source, target) lines of a text as arrays; words are numbered as they come.

    Pairs of which a side is blank or has more than `max_words` words are left out and counted.
    """
    sides, numbers = (BitextSide(), BitextSide()), (_Numbers(), _Numbers())
    blank = long = 0
    for lines in pairs:
        words = [split(line, lowercase=lowercase) for line in lines]
        if not all(words):
            blank += 1
        elif max_words is not None and max(map(len, words)) > max_words:
            long += 1
        else:
            for side, some, number in zip(sides, words, numbers, strict=True):
                side.add([number[word] for word in some])
    counted = BitextCounts(len(sides[0].lengths), blank, long)
    return Bitext(list(numbers[0]), list(numbers[1]), group(*sides), counted)


class _Numbers(dict[str, int]):
    """Gives each new word the next number."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class WordPairs:
    """The distinct word pairs of a text in the order of (source, target): `source` and `target` [K] are their words.

    `occurrences` has an array [B, T, S] for each group of the text: the number of the word pair of each occurrence, 0 … K - 1.
    Memory: 4 bytes an occurrence and 8 a distinct pair; while it is made about twice that.
    """

    def __init__(self, bitext: Bitext) -> None:
        stride = len(bitext.target_words)
        self.occurrences = [np.empty((len(one.numbers), *one.shape), np.int32) for one in bitext.groups]
        blocks, found = [], []
        for one, numbers in zip(bitext.groups, self.occurrences, strict=True):
            for some in one.slices(SORTED):
                keys, inverse = np.unique(
                    word_pair_keys(one.source_BS[some], one.target_BT[some], stride), return_inverse=True
                )
                numbers[some] = inverse.reshape(numbers[some].shape)
                blocks.append(numbers[some])
                found.append(keys)
        distinct = _distinct(found)
        for place, keys in zip(blocks, found, strict=True):
            place[...] = np.searchsorted(distinct, keys).astype(np.int32)[place]
        self.source, self.target = (some.astype(np.int32) for some in divmod(distinct, max(1, stride)))


def word_pair_keys(source_BS: np.ndarray, target_BT: np.ndarray, stride: int) -> np.ndarray:
    """A number for each occurrence [B, T, S] of a word pair: source word · `stride` + target word."""
    return source_BS[:, None, :].astype(np.int64) * stride + target_BT[:, :, None]


def _distinct(sets: list[np.ndarray]) -> np.ndarray:
    """The numbers of several sorted arrays, once each, in order."""
    if not sets:
        return np.empty(0, np.int64)
    numbers = np.concatenate(sets)
    numbers.sort(kind="stable")
    return numbers[np.append(True, numbers[1:] != numbers[:-1])]
