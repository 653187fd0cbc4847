"""Align sentence pairs with the word tables of an alignment model, and store such a model in a file.

A word is linked to the most probable of its candidates, argmax_j δ(j) t(f | e_j), the first one if several are equal. It stays
without a link if the null word is more probable. Probabilities below 1e-9 and those of words and word pairs outside the table
count as 1e-9, so the prior decides for an unknown word. The weight of a link is its posterior probability
δ(j) t(f | e_j) / Σ_j' δ(j') t(f | e_j'), where j' includes the null word; for two directions it is the mean of both.

The file is in safetensors format:

    source_words, target_words               uint8    UTF-8, one word per line
    DIRECTION.source, .target                int32    [K] word numbers, ordered by (source, target)
    DIRECTION.probabilities, .null           float32  t of the word pairs [K], and of each word given the null word

Its metadata are one JSON text: kind, format, lowercase, tension and p_null of each direction, notes, and the SHA-256 of all
of these and of the arrays. (safetensors writes several metadata entries in any order, so there is only one.)
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from phraseloom import __version__
from phraseloom.align.ibm import (
    BLOCK,
    DIRECTIONS,
    TENSIONS,
    Bitext,
    BitextSide,
    DiagonalPrior,
    Group,
    IBMEstimate,
    IBMProgress,
    IBMSettings,
    ShapePrior,
    WordPairs,
    estimate,
    group_by_length,
    no_pairs,
    split,
    word_pair_keys,
)
from phraseloom.align.links import METHODS, Links, symmetrize
from phraseloom.errors import CorruptError, ModelError, UsageError
from phraseloom.files import atomic_write_bytes, require_file
from phraseloom.reading import read_header

FLOOR = 1e-9  # as in fast_align
MAX_WORDS = 2000  # per sentence
DEFAULT_METHOD = "grow-diag-final-and"


@dataclass(frozen=True, eq=False)
class Table:
    """A model of one direction in float32: t(f | e) above FLOOR, ordered by (source, target) word, and λ and p₀ of the prior.

    `source`, `target`, `probabilities` [K] are the word pairs and their t; `null` is t(f | null) of each word f.
    """

    source: np.ndarray
    target: np.ndarray
    probabilities: np.ndarray
    null: np.ndarray
    tension: float
    p_null: float | None


class Alignment(NamedTuple):
    """The links of a sentence pair, their weights if requested, and why a pair was left out: `blank` or `long`."""

    links: Links = frozenset()
    weights: Mapping[tuple[int, int], float] = {}
    left_out: str = ""


class Aligner:
    """The tables of one or both directions, and the words of both sides that they number."""

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
        """The alignment of each pair of (source, target) lines; a pair with a blank or too long side has no links.

        Words are separated by spaces. Raises UsageError for a `method` that the tables cannot give.
        """
        method = choose_method(method, self.tables)
        groups, result = self._groups(pairs)
        for group in groups:
            lookups = [self._lookups[name] for name in _needed(method)]
            priors = [lookup.prior(group.shape) for lookup in lookups]
            for part in group.slices(BLOCK):
                words = group.source_BS[part], group.target_BT[part]
                posteriors = _posteriors(lookups, priors, *words)
                choices = [_links(p, lookup.axis) for p, lookup in zip(posteriors, lookups, strict=True)]
                for row, number in enumerate(group.numbers[part].tolist()):
                    chosen = [choice[row] for choice in choices]
                    links = chosen[0] if method in DIRECTIONS else symmetrize(chosen[0], chosen[1], method)
                    link_weights = _weights(links, [p.words_BTS[row] for p in posteriors]) if weights else {}
                    result[number] = Alignment(links, link_weights)
        return result

    def _groups(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[Group], list[Alignment]]:
        """The pairs to align as word numbers (the number after the last is the unknown word), and empty alignments."""
        sides, used, result = (BitextSide(), BitextSide()), [], []
        for number, lines in enumerate(pairs):
            words = [split(line, lowercase=self.lowercase) for line in lines]
            left_out = "" if all(words) else "blank"
            if max(map(len, words)) > MAX_WORDS:
                left_out = left_out or "long"
            result.append(Alignment(left_out=left_out))
            if not left_out:
                used.append(number)
                for side, side_words, numbers in zip(sides, words, self._numbers, strict=True):
                    side.add([numbers.get(word, len(numbers)) for word in side_words])
        return group_by_length(*sides, used), result


class WordCoverage:
    """Counts the words of a text that an aligner knows, on each side, and with the sides exchanged."""

    def __init__(self, aligner: Aligner) -> None:
        self._lowercase = aligner.lowercase
        self._known = set(aligner.source_words), set(aligner.target_words)
        self._counts = [[0, 0, 0], [0, 0, 0]]  # of each side: words, known as such, known as words of the other side

    def add(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Count the words of lines."""
        for side, lines in enumerate((sources, targets)):
            own, other, counts = self._known[side], self._known[1 - side], self._counts[side]
            for line in lines:
                words = split(line, lowercase=self._lowercase)
                counts[0] += len(words)
                counts[1] += sum(word in own for word in words)
                counts[2] += sum(word in other for word in words)

    def problem(self) -> str | None:
        """What is wrong if it knows less than half of the words of a side."""
        shares = [[known / max(1, words) for known in row] for words, *row in self._counts]
        unknown = [
            f"{shares[side][0]:.0%} of the {name} words"
            for side, name in enumerate(("source", "target"))
            if self._counts[side][0] and shares[side][0] < 0.5
        ]
        if not unknown:
            return None
        exchanged = all(self._counts[side][0] and shares[side][1] >= 0.5 for side in (0, 1))
        return f"knows only {' and '.join(unknown)}" + (": it is of the other direction" if exchanged else "")


def learn_aligner(
    bitext: Bitext,
    settings: IBMSettings,
    *,
    directions: Sequence[str] = DIRECTIONS,
    jobs: int = 1,
    lowercase: bool = False,
    report: Callable[[IBMProgress], None] = lambda _: None,
    folder: Path | None = None,
) -> Aligner:
    """Estimate the tables of `directions` on a text. With `jobs` 2 both are estimated at once in threads, with the same result.

    `lowercase` tells whether the text was lowercased when it was read. `report` is called after each E step. `folder`: where
    to write the word pairs of the sentences, instead of keeping them in memory. Raises DataError for a text without sentence
    pairs, FileProblem.
    """
    if not bitext.groups:
        raise no_pairs()
    word_pairs, stopped = WordPairs(bitext, folder), threading.Event()

    def report_unless_stopped(progress: IBMProgress) -> None:
        if stopped.is_set():
            raise CancelledError
        report(progress)

    def learn(direction: str) -> Table:
        return _table(estimate(bitext, word_pairs, direction, settings, report_unless_stopped), word_pairs)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            tables = list(pool.map(learn, directions))
        except BaseException:
            stopped.set()
            raise
    return Aligner(
        bitext.source_words, bitext.target_words, dict(zip(directions, tables, strict=True)), lowercase=lowercase
    )


def _table(result: IBMEstimate, word_pairs: WordPairs) -> Table:
    """The table of an estimate, without probabilities up to FLOOR."""
    rows = np.flatnonzero(result.pairs > FLOOR)
    return Table(
        source=word_pairs.source[rows],
        target=word_pairs.target[rows],
        probabilities=result.pairs[rows].astype(np.float32),
        null=np.maximum(result.null, FLOOR).astype(np.float32),
        tension=result.tension,
        p_null=result.p_null,
    )


def choose_method(name: str | None, directions: Collection[str]) -> str:
    """`name`, one of DIRECTIONS or METHODS, or the default. Raises UsageError if it needs other than the given `directions`."""
    if name is None:
        return DEFAULT_METHOD if len(directions) == len(DIRECTIONS) else next(iter(directions))
    if name not in (*DIRECTIONS, *METHODS):
        raise UsageError(f"no method {name!r}", hint=f"choose from {', '.join((*DIRECTIONS, *METHODS))}")
    missing = [direction for direction in _needed(name) if direction not in directions]
    if missing:
        raise UsageError(f"the method {name} needs a model of the {missing[0]} direction")
    return name


def _needed(method: str) -> tuple[str, ...]:
    """The directions that a method combines."""
    return (method,) if method in DIRECTIONS else DIRECTIONS


class _Posterior(NamedTuple):
    """Posterior probabilities of links, and of the null word for each choosing word."""

    words_BTS: np.ndarray
    null: np.ndarray


class _Lookup:
    """A table in which each word pair has one number as its key (`word_pair_keys`)."""

    def __init__(self, table: Table, direction: str, source_words: int, target_words: int) -> None:
        self.table, self.direction = table, direction
        self.axis = 2 if direction == "forward" else 1  # the axis of the candidate words
        self.stride = target_words + 1  # including the unknown word
        keys = table.source.astype(np.int64) * self.stride + table.target
        self._keys = np.append(keys, np.iinfo(np.int64).max)
        self._probabilities = np.append(table.probabilities, np.float32(FLOOR)).astype(np.float64)
        self._null = np.append(table.null, np.float32(FLOOR)).astype(np.float64)

    def prior(self, shape: tuple[int, int]) -> ShapePrior:
        """The prior for sentences of (T, S) words."""
        return DiagonalPrior(self.direction).of(shape, self.table.tension, self.table.p_null)

    def probabilities(self, keys: np.ndarray) -> np.ndarray:
        """t of the word pairs."""
        places = np.searchsorted(self._keys, keys)
        return np.where(self._keys[places] == keys, self._probabilities[places], FLOOR)

    def null(self, source_BS: np.ndarray, target_BT: np.ndarray) -> np.ndarray:
        """t(f | null) of the choosing words."""
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


KIND, FORMAT, METADATA = "word alignment model", 1, "phraseloom"
ARRAYS = {"source": np.int32, "target": np.int32, "probabilities": np.float32, "null": np.float32}


def save_aligner(path: str | Path, aligner: Aligner, *, notes: dict[str, Any] | None = None) -> None:
    """Write a model to a file atomically; the same model gives the same bytes. `notes` must be JSON values."""
    arrays = {
        f"{side}_words": np.frombuffer("\n".join(words).encode(), np.uint8)
        for side, words in (("source", aligner.source_words), ("target", aligner.target_words))
    }
    for direction, table in aligner.tables.items():
        arrays |= {f"{direction}.{name}": np.asarray(getattr(table, name), dtype) for name, dtype in ARRAYS.items()}
    metadata = {
        "kind": KIND,
        "format": FORMAT,
        "phraseloom": __version__,
        "lowercase": aligner.lowercase,
        "directions": {name: {"tension": t.tension, "p_null": t.p_null} for name, t in aligner.tables.items()},
        "notes": notes or {},
    }
    metadata["sha256"] = _checksum(metadata, arrays)
    text = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    atomic_write_bytes(path, safetensors.numpy.save(arrays, {METADATA: text}))


def load_aligner(path: str | Path) -> Aligner:
    """The model in a file. Raises FileProblem, CorruptError (damaged) and ModelError (another kind of file or format)."""
    path = require_file(path, "word alignment model")
    hint = "phraseloom align train makes a word alignment model"
    try:
        read_header(path)
    except CorruptError as error:
        raise CorruptError(f"not a whole safetensors file ({error.what})", file=path, hint=hint) from error
    try:
        with safetensors.safe_open(path, "np") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA, "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"not a whole safetensors file ({error})", file=path, hint=hint) from error
    if not isinstance(metadata, dict) or metadata.get("kind") != KIND:
        raise ModelError("not a word alignment model", file=path, hint="phraseloom align train makes one")
    if metadata.get("format") != FORMAT:
        what = f"format {metadata.get('format')!r}, but this version reads format {FORMAT}"
        raise ModelError(what, file=path, hint="train it again, or use the version that made it")
    if _checksum(metadata, arrays) != metadata.get("sha256"):
        raise CorruptError("checksum differs: the file is damaged", file=path, hint="copy it again or train it again")
    try:
        return _aligner(metadata, arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"the parts of the model do not fit ({error})", file=path) from error


def _checksum(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of `metadata` without its checksum, and of the name, type, shape and bytes of every array."""
    heads = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    stated = [{name: value for name, value in metadata.items() if name != "sha256"}, heads]
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    for _, array in sorted(arrays.items()):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _aligner(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> Aligner:
    """The model of a file with a correct checksum. Invalid parts, which another program wrote, raise any exception."""
    source_words, target_words = (_words(arrays[f"{side}_words"]) for side in ("source", "target"))
    tables = {}
    for direction, prior in metadata["directions"].items():
        source, target, probabilities, null = (arrays[f"{direction}.{name}"] for name in ARRAYS)
        table = Table(source, target, probabilities, null, tension=prior["tension"], p_null=prior["p_null"])
        _check(table, len(source_words), len(target_words), direction)
        tables[direction] = table
    if not tables or not set(tables) <= set(DIRECTIONS):
        raise ValueError(f"directions {', '.join(tables)}")
    return Aligner(source_words, target_words, tables, lowercase=metadata["lowercase"])


def _words(data: np.ndarray) -> list[str]:
    words = data.tobytes().decode("utf-8").split("\n")
    if len(set(words)) != len(words) or "" in words:
        raise ValueError("a word is empty or occurs twice")
    return words


def _check(table: Table, source_words: int, target_words: int, direction: str) -> None:
    for name, dtype in ARRAYS.items():
        array = getattr(table, name)
        if array.dtype != dtype or array.ndim != 1:
            raise ValueError(f"{direction}.{name} is {array.dtype} {array.shape}")
    keys = table.source.astype(np.int64) * target_words + table.target
    sizes = {len(table.source), len(table.target), len(table.probabilities)}
    inside = all(
        ((numbers >= 0) & (numbers < size)).all()
        for numbers, size in ((table.source, source_words), (table.target, target_words))
    )
    if len(sizes) != 1 or not inside or (np.diff(keys) <= 0).any():
        raise ValueError(f"the word pairs of {direction}")
    choosers = target_words if direction == "forward" else source_words
    numbers = np.concatenate([table.probabilities, table.null])
    if len(table.null) != choosers or not ((numbers > 0) & (numbers < 1.001)).all():
        raise ValueError(f"the probabilities of {direction}")
    if not (table.tension == 0 or TENSIONS[0] <= table.tension <= TENSIONS[1]):
        raise ValueError(f"tension {table.tension}")
    if table.p_null is not None and not 0 <= table.p_null < 1:
        raise ValueError(f"p_null {table.p_null}")
