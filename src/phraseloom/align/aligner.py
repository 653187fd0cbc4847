"""Aligning sentence pairs with word tables: those of the text that the tables were estimated on, or any others.

A word is linked to the most probable of its choices, argmax_j δ(j) t(f | e_j), the first of equal ones, or to none where the
null word is more probable than that. Probabilities below 1e-9, and those of words and word pairs that a table does not
have, count as 1e-9, so an unknown word goes where the prior sends it. The weight of a link is its posterior probability
δ(j) t(f | e_j) / Σ_j' δ(j') t(f | e_j'), with j' over the null word too; of two directions the mean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phraseloom.align.bitext import Bitext, BitextSide, Group, WordPairs, group, split, word_pair_keys
from phraseloom.align.ibm import BLOCK, IBMEstimate, IBMProgress, IBMSettings, estimate
from phraseloom.align.links import Links
from phraseloom.align.prior import DIRECTIONS, DiagonalPrior, ShapePrior
from phraseloom.align.symmetrize import METHODS, symmetrize
from phraseloom.errors import DataError, UsageError

FLOOR = 1e-9  # as in fast_align
MAX_WORDS = 2000  # of a sentence that is aligned
DEFAULT_METHOD = "grow-diag-final-and"


@dataclass(frozen=True, eq=False)
class Table:
    """A model of one direction, in float32: t(f | e) above FLOOR, in the order of (source, target) word, λ and p₀ of the prior.

    `source`, `target`, `probabilities` [K]: the words and t of one given the other; `null`: t(f | null) of each word f.
    """

    source: np.ndarray
    target: np.ndarray
    probabilities: np.ndarray
    null: np.ndarray
    tension: float
    p_null: float | None


class Alignment(NamedTuple):
    """The links of a sentence pair, their weights where these were asked for, and why there are none: `blank` or `long`."""

    links: Links = frozenset()
    weights: Mapping[tuple[int, int], float] = {}
    left_out: str = ""


class Aligner:
    """The tables of one or both directions, by direction, and the words of both sides that their numbers mean."""

    def __init__(
        self,
        source_words: Sequence[str],
        target_words: Sequence[str],
        tables: Mapping[str, Table],
        *,
        lowercase: bool = False,
    ) -> None:
        assert tables and set(tables) <= set(DIRECTIONS)
        self.source_words, self.target_words = list(source_words), list(target_words)
        self.tables, self.lowercase = dict(tables), lowercase
        sides = (self.source_words, self.target_words)
        self._numbers = [{word: number for number, word in enumerate(words)} for words in sides]
        self._lookups = {name: _Lookup(table, name, *map(len, sides)) for name, table in tables.items()}

    def align(
        self, pairs: Sequence[tuple[str, str]], *, method: str | None = None, weights: bool = False
    ) -> list[Alignment]:
        """The alignment of each pair of (source, target) lines; those with a side that is blank or too long have no links.

        Words stand between blanks. Raises UsageError for a `method` that is not to be had.
        """
        method = choose_method(method, self.tables)
        groups, result = self._groups(pairs)
        for one in groups:
            lookups = [self._lookups[name] for name in _needed(method)]
            priors = [lookup.prior(one.shape) for lookup in lookups]
            for some in one.slices(BLOCK):
                words = one.source_BS[some], one.target_BT[some]
                posteriors = _posteriors(lookups, priors, *words)
                choices = [_links(p, lookup.axis) for p, lookup in zip(posteriors, lookups, strict=True)]
                for row, number in enumerate(one.numbers[some].tolist()):
                    chosen = [choice[row] for choice in choices]
                    links = chosen[0] if method in DIRECTIONS else symmetrize(chosen[0], chosen[1], method)
                    of_links = _weights(links, [p.words_BTS[row] for p in posteriors]) if weights else {}
                    result[number] = Alignment(links, of_links)
        return result

    def _groups(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[Group], list[Alignment]]:
        """The pairs that can be aligned, in numbers; and the alignment of those that cannot.

        Unknown words have the number after the last word.
        """
        sides, kept, result = (BitextSide(), BitextSide()), [], []
        for number, lines in enumerate(pairs):
            words = [split(line, lowercase=self.lowercase) for line in lines]
            left_out = "" if all(words) else "blank"
            if max(map(len, words)) > MAX_WORDS:
                left_out = left_out or "long"
            result.append(Alignment(left_out=left_out))
            if not left_out:
                kept.append(number)
                for side, some, numbers in zip(sides, words, self._numbers, strict=True):
                    side.add([numbers.get(word, len(numbers)) for word in some])
        return group(*sides, kept), result


def learn_aligner(
    bitext: Bitext,
    settings: IBMSettings,
    *,
    directions: Sequence[str] = DIRECTIONS,
    jobs: int = 1,
    lowercase: bool = False,
    report: Callable[[IBMProgress], None] = lambda _: None,
) -> Aligner:
    """Estimate the tables of `directions` on a text; with `jobs` 2 both at once, in threads, to the same result.

    `lowercase`: whether the text was lowercased when it was read. `report` is called after each E step. Raises DataError for a
    text without sentence pairs.
    """
    if not bitext.groups:
        raise DataError(
            "there is no sentence pair to learn from", hint="pairs with a blank or a very long side do not count"
        )
    word_pairs, stopped = WordPairs(bitext), threading.Event()

    def told(now: IBMProgress) -> None:
        if stopped.is_set():
            raise CancelledError
        report(now)

    def learn(direction: str) -> Table:
        return _table(estimate(bitext, word_pairs, direction, settings, told), word_pairs)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            tables = list(pool.map(learn, directions))
        except BaseException:
            stopped.set()
            raise
    return Aligner(
        bitext.source_words, bitext.target_words, dict(zip(directions, tables, strict=True)), lowercase=lowercase
    )


def _table(found: IBMEstimate, word_pairs: WordPairs) -> Table:
    """What is kept of an estimate."""
    kept = np.flatnonzero(found.pairs > FLOOR)
    return Table(
        source=word_pairs.source[kept],
        target=word_pairs.target[kept],
        probabilities=found.pairs[kept].astype(np.float32),
        null=np.maximum(found.null, FLOOR).astype(np.float32),
        tension=found.tension,
        p_null=found.p_null,
    )


def choose_method(name: str | None, directions: Collection[str]) -> str:
    """`name`, one of DIRECTIONS or METHODS, or the default. Raises UsageError for one that `directions` cannot give."""
    if name is None:
        return DEFAULT_METHOD if len(directions) == len(DIRECTIONS) else next(iter(directions))
    if name not in (*DIRECTIONS, *METHODS):
        raise UsageError(f"no method {name!r}", hint=f"choose from {', '.join((*DIRECTIONS, *METHODS))}")
    missing = [one for one in _needed(name) if one not in directions]
    if missing:
        raise UsageError(f"the method {name} needs a model of the {missing[0]} direction")
    return name


def _needed(method: str) -> tuple[str, ...]:
    """The directions that a method is made of."""
    return (method,) if method in DIRECTIONS else DIRECTIONS


class _Posterior(NamedTuple):
    """Posterior probabilities of links, and of no link for each word that chooses."""

    words_BTS: np.ndarray
    null: np.ndarray


class _Lookup:
    """A table in which word pairs are found by one number (`word_pair_keys`)."""

    def __init__(self, table: Table, direction: str, source_words: int, target_words: int) -> None:
        self.table, self.direction = table, direction
        self.axis = 2 if direction == "forward" else 1  # that of the words that can be chosen
        self.stride = target_words + 1  # with the unknown word
        keys = table.source.astype(np.int64) * self.stride + table.target
        self._keys = np.append(keys, np.iinfo(np.int64).max)
        self._probabilities = np.append(table.probabilities, np.float32(FLOOR)).astype(np.float64)
        self._null = np.append(table.null, np.float32(FLOOR)).astype(np.float64)

    def prior(self, shape: tuple[int, int]) -> ShapePrior:
        """The prior for sentences of (T, S) words."""
        return DiagonalPrior([shape], self.direction).of(self.table.tension, self.table.p_null)[0]

    def probabilities(self, keys: np.ndarray) -> np.ndarray:
        """t of word pairs."""
        places = np.searchsorted(self._keys, keys)
        return np.where(self._keys[places] == keys, self._probabilities[places], FLOOR)

    def null(self, source_BS: np.ndarray, target_BT: np.ndarray) -> np.ndarray:
        """t(f | null) of the words that choose."""
        return self._null[target_BT if self.axis == 2 else source_BS]


def _posteriors(
    lookups: Sequence[_Lookup], priors: Sequence[ShapePrior], source_BS: np.ndarray, target_BT: np.ndarray
) -> list[_Posterior]:
    """The posterior of each direction."""
    numbers = word_pair_keys(source_BS, target_BT, lookups[0].stride)
    keys, occurrences = np.unique(numbers, return_inverse=True)
    result = []
    for lookup, prior in zip(lookups, priors, strict=True):
        words_BTS = lookup.probabilities(keys)[occurrences.reshape(numbers.shape)] * prior.words_TS
        null = lookup.null(source_BS, target_BT) * prior.null
        total = words_BTS.sum(lookup.axis) + null
        result.append(_Posterior(words_BTS / np.expand_dims(total, lookup.axis), null / total))
    return result


def _links(posterior: _Posterior, axis: int) -> list[Links]:
    """The best choice of each word, as links of each sentence pair."""
    words_BTS, null = posterior
    best = np.where(words_BTS.max(axis) >= null, words_BTS.argmax(axis), -1).tolist()
    if axis == 2:
        return [frozenset((s, t) for t, s in enumerate(row) if s >= 0) for row in best]
    return [frozenset((s, t) for s, t in enumerate(row) if t >= 0) for row in best]


def _weights(links: Links, posteriors_TS: Sequence[np.ndarray]) -> dict[tuple[int, int], float]:
    return {(s, t): float(sum(p[t, s] for p in posteriors_TS)) / len(posteriors_TS) for s, t in links}
