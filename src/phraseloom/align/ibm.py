"""Word alignment models estimated by expectation maximisation: IBM model 1, and the same model with a diagonal prior.

    p(f_1 … f_m, a | e_1 … e_n) = Π_i δ(a_i) t(f_i | e_{a_i})          a_i = 0: the null word
    δ(0) = p₀,   δ(j) = (1 - p₀) exp(λ h) / Z                            h = -|i/m - j/n|,   Z = Σ_j exp(λ h)
    E   q_ij = δ(j) t(f_i | e_j) / Σ_j' δ(j') t(f_i | e_j')              c(f, e): sums of q over the occurrences of f and e
    M   t(f | e) = c(f, e) / Σ_f c(f, e)                                 or, with variational Bayes,
        t(f | e) = exp ψ(c(f, e) + α) / exp ψ(Σ_f (c(f, e) + α))         sums over the words f that occur with e

for word i of m that is linked to word j of n, both from 1, or to the null word 0. λ is the tension; if it is optimised, it
maximises the likelihood of the expected links. Brown et al. 1993, §4 (model 1: λ = 0 and p₀ = 1 / (n + 1)); Dyer, Chahuneau
and Smith 2013, §2 (the prior, variational Bayes with α = 0.01). Every target word chooses a source word (`forward`), or every
source word a target word (`backward`); h is the same for both.

Arrays: a sentence pair of S source and T target words has T·S occurrences of word pairs. Sentence pairs with the same (S, T)
form one array [B, T, S], so a sum over the source or target words of a sentence is a sum over an axis. The distinct word pairs
of a text are numbered in the order of (source word, target word), and every occurrence is an index into this table. So an
iteration is one gather and one scatter of all occurrences, block by block, in float64. Words are separated by U+0020, as in
`links.py`.

With a folder for files, words and occurrences are written there, in the same order, and mapped: memory then holds the words
and the distinct word pairs, but nothing for each sentence. The result is the same bit for bit.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phraseloom.errors import DataError, UsageError
from phraseloom.files import disk
from phraseloom.replace import remove_own, system_errors

SORTED = 2**18  # occurrences per sort
PAIRS = 2**17  # sentence pairs in memory while they are written to files


class Group(NamedTuple):
    """Sentence pairs with the same two lengths: their numbers [B], source words [B, S] and target words [B, T]."""

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
    """One side of a text: the numbers of its words and the lengths of its sentences."""

    def __init__(self) -> None:
        self.words, self.lengths = array("i"), array("i")

    def add(self, numbers: Sequence[int]) -> None:
        """Append a sentence."""
        self.words.extend(numbers)
        self.lengths.append(len(numbers))


def split(line: str, *, lowercase: bool = False) -> list[str]:
    """The words of a line."""
    return [word for word in (line.lower() if lowercase else line).split(" ") if word]


def group_by_length(source: BitextSide, target: BitextSide, numbers: Sequence[int] | None = None) -> list[Group]:
    """Group the sentence pairs of two sides by their lengths, in the order of (T, S), then of the text.

    No sentence may be empty. `numbers` name the pairs, by default 0, 1, …
    """
    names = np.arange(len(source.lengths)) if numbers is None else np.asarray(numbers, np.int64)
    lengths = [np.asarray(side.lengths, np.int64) for side in (source, target)]
    starts = [np.cumsum(side) - side for side in lengths]
    words = [np.asarray(side.words, np.int32) for side in (source, target)]
    order = np.lexsort(lengths)
    changes = np.flatnonzero(np.any([np.diff(side[order]) for side in lengths], axis=0)) + 1
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
    """Numbers of sentence pairs of a text: used, with a blank side, too long."""

    used: int
    blank: int
    long: int


class Bitext(NamedTuple):
    """A text to learn from: the words of both sides by number, grouped sentence pairs, and the counts of pairs."""

    source_words: list[str]
    target_words: list[str]
    groups: list[Group]
    counted: BitextCounts


def read_bitext(
    pairs: Iterable[tuple[str, str]],
    *,
    lowercase: bool = False,
    max_words: int | None = None,
    folder: Path | None = None,
) -> Bitext:
    """The (source, target) lines of a text as arrays; words are numbered in the order of their first occurrence.

    Pairs with a side that is blank or has more than `max_words` words are left out and counted. `folder`: an empty folder for
    the arrays, which must stay as long as the text is used. Raises FileProblem if it cannot be written.
    """
    sides, numbers = (BitextSide(), BitextSide()), (word_numbers(), word_numbers())
    files = None if folder is None else _BitextFiles(folder)
    used = blank = long = 0
    for lines in pairs:
        words = [split(line, lowercase=lowercase) for line in lines]
        if not all(words):
            blank += 1
        elif max_words is not None and max(map(len, words)) > max_words:
            long += 1
        else:
            for side, side_words, number in zip(sides, words, numbers, strict=True):
                side.add([number[word] for word in side_words])
            used += 1
            if files is not None and used % PAIRS == 0:
                files.add(*sides)
                sides = (BitextSide(), BitextSide())
    if files is None:
        groups = group_by_length(*sides)
    else:
        files.add(*sides)
        groups = files.groups()
    return Bitext(list(numbers[0]), list(numbers[1]), groups, BitextCounts(used, blank, long))


class _BitextFiles:
    """The groups of a text in files, as `group_by_length` makes them: blocks first, then each group in its own place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blocks: list[int] = []
        self._sizes: dict[tuple[int, int], int] = {}

    def add(self, source: BitextSide, target: BitextSide) -> None:
        """Write the sentence pairs of a block."""
        number = len(self._blocks)
        self._blocks.append(len(source.lengths))
        shapes, counts = np.unique(np.array([target.lengths, source.lengths]), axis=1, return_counts=True)
        for shape, size in zip(shapes.T.tolist(), counts.tolist(), strict=True):
            self._sizes[tuple(shape)] = self._sizes.get(tuple(shape), 0) + size
        with system_errors(self.folder):
            for name, values in self._names(number, source, target).items():
                with disk.open(self.folder / name, "wb") as handle:
                    disk.write(handle, values.tobytes())

    def _names(self, number: int, source: BitextSide, target: BitextSide) -> dict[str, array[int]]:
        return {
            f"{number}.source": source.words,
            f"{number}.source_lengths": source.lengths,
            f"{number}.target": target.words,
            f"{number}.target_lengths": target.lengths,
        }

    def _block(self, number: int) -> tuple[BitextSide, BitextSide]:
        """Read a block and remove its files."""
        sides = (BitextSide(), BitextSide())
        for name, values in self._names(number, *sides).items():
            values.frombytes((self.folder / name).read_bytes())
            remove_own(self.folder / name)
        return sides

    def groups(self) -> list[Group]:
        """All groups, mapped from files."""
        shapes = sorted(self._sizes)
        widths = {"numbers": [1 for _ in shapes], "source": [s for _, s in shapes], "target": [t for t, _ in shapes]}
        sizes = np.array([self._sizes[shape] for shape in shapes], np.int64)
        ends = {name: np.cumsum(sizes * np.array(width, np.int64)) for name, width in widths.items()}
        place = {shape: i for i, shape in enumerate(shapes)}
        begins = {name: (end - sizes * np.array(widths[name], np.int64)).tolist() for name, end in ends.items()}
        types: dict[str, np.dtype[Any]] = {
            "numbers": np.dtype(np.int64),
            "source": np.dtype(np.int32),
            "target": np.dtype(np.int32),
        }
        with system_errors(self.folder), ExitStack() as stack:
            handles = {name: stack.enter_context(disk.open(self.folder / name, "wb")) for name in types}
            following = {name: list(values) for name, values in begins.items()}
            first = 0
            for number, size in enumerate(self._blocks):
                for group in group_by_length(*self._block(number), range(first, first + size)):
                    at = place[group.shape]
                    for name, values in zip(types, group, strict=True):
                        handles[name].seek(following[name][at] * types[name].itemsize)
                        disk.write(handles[name], values.tobytes())
                        following[name][at] += values.size
                first += size
        with system_errors(self.folder):
            mapped = {name: map_array(self.folder / name, kind) for name, kind in types.items()}
        result = []
        for i, (target, source) in enumerate(shapes):
            numbers, source_words, target_words = (mapped[name][begins[name][i] : ends[name][i]] for name in types)
            result.append(Group(numbers, source_words.reshape(-1, source), target_words.reshape(-1, target)))
        return result


def map_array(path: Path, kind: np.dtype[Any]) -> np.ndarray:
    """The values of a file, mapped. Raises OSError."""
    return np.asarray(np.memmap(path, kind, "r")) if path.stat().st_size else np.empty(0, kind)


def word_numbers() -> defaultdict[str, int]:
    """An empty dictionary that gives each new word the next number, from 0."""
    return defaultdict(count().__next__)


def no_pairs() -> DataError:
    """The error for a text without usable sentence pairs."""
    return DataError(
        "the text has no sentence pair to learn from", hint="pairs with a blank or very long side are left out"
    )


class WordPairs:
    """The distinct word pairs of a text, ordered by (source, target); `source` and `target` [K] are their words.

    `occurrences` has an array [B, T, S] for each group of the text: the number of the word pair of each occurrence, 0 … K - 1.
    Memory: 4 bytes per occurrence and 8 per distinct pair, and about twice that during construction; with a `folder`, the
    occurrences are in a file there, and construction takes 24 bytes per distinct pair. Raises DataError for 2³¹ distinct pairs
    or more, FileProblem.
    """

    def __init__(self, bitext: Bitext, folder: Path | None = None) -> None:
        stride = len(bitext.target_words)
        if folder is None:
            distinct, self.occurrences = _number(bitext, stride)
        else:
            with system_errors(folder):
                distinct, self.occurrences = _number_in_file(bitext, stride, folder / "occurrences")
        self.source, self.target = (words.astype(np.int32) for words in divmod(distinct, max(1, stride)))


def _number(bitext: Bitext, stride: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct keys of word pairs, and the occurrences."""
    occurrences = [np.empty((len(group.numbers), *group.shape), np.int32) for group in bitext.groups]
    blocks, block_keys = [], []
    for group, numbers in zip(bitext.groups, occurrences, strict=True):
        for part in group.slices(SORTED):
            keys, inverse = np.unique(
                word_pair_keys(group.source_BS[part], group.target_BT[part], stride), return_inverse=True
            )
            numbers[part] = inverse.reshape(numbers[part].shape)
            blocks.append(numbers[part])
            block_keys.append(keys)
    distinct = _distinct(block_keys)
    _check_number(distinct)
    for block, keys in zip(blocks, block_keys, strict=True):
        block[...] = np.searchsorted(distinct, keys).astype(np.int32)[block]
    return distinct, occurrences


def _number_in_file(bitext: Bitext, stride: int, path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    """`_number` with the occurrences in a file. Raises OSError."""

    def blocks() -> Iterator[np.ndarray]:
        for group in bitext.groups:
            for part in group.slices(SORTED):
                yield word_pair_keys(group.source_BS[part], group.target_BT[part], stride)

    runs: list[np.ndarray] = []  # sorted; each is more than twice as long as the next
    for keys in blocks():
        runs.append(np.unique(keys))
        while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
            runs.append(_distinct([runs.pop(), runs.pop()]))
    distinct = _distinct(runs)
    _check_number(distinct)
    with disk.open(path, "wb") as handle:
        for keys in blocks():
            known, inverse = np.unique(keys, return_inverse=True)
            disk.write(handle, np.searchsorted(distinct, known).astype(np.int32)[inverse.ravel()].tobytes())
    numbers, occurrences, begin = map_array(path, np.dtype(np.int32)), [], 0
    for group in bitext.groups:
        end = begin + len(group.numbers) * math.prod(group.shape)
        occurrences.append(numbers[begin:end].reshape(-1, *group.shape))
        begin = end
    return distinct, occurrences


def _check_number(distinct: np.ndarray) -> None:
    if len(distinct) >= 2**31:
        hint = "learn from less text, or lower --max-words"
        raise DataError(f"{len(distinct):,} distinct word pairs; the limit is 2,147,483,647", hint=hint)


def word_pair_keys(source_BS: np.ndarray, target_BT: np.ndarray, stride: int) -> np.ndarray:
    """A key for each occurrence [B, T, S] of a word pair: source word · `stride` + target word."""
    return source_BS[:, None, :].astype(np.int64) * stride + target_BT[:, :, None]


def _distinct(sets: list[np.ndarray]) -> np.ndarray:
    """The distinct numbers of several sorted arrays, in order."""
    if not sets:
        return np.empty(0, np.int64)
    numbers = np.concatenate(sets)
    numbers.sort(kind="stable")
    return numbers[np.append(True, numbers[1:] != numbers[:-1])]


DIRECTIONS = ("forward", "backward")
TENSIONS = (0.1, 14.0)  # as in fast_align
STEPS, PRECISION = 100, 1e-10  # of Newton's method


class ShapePrior(NamedTuple):
    """The prior for sentences of two lengths: δ(j) [T, S], and δ(0)."""

    words_TS: np.ndarray
    null: float


class DiagonalPrior:
    """The prior of a direction for pairs of sentences of two lengths, a shape (T, S); `axis` is that of the candidate words."""

    def __init__(self, direction: str) -> None:
        self.axis = 1 if direction == "forward" else 0

    def of(self, shape: tuple[int, int], tension: float, p_null: float | None) -> ShapePrior:
        """The prior for a shape; `p_null` is p₀, or None for 1 / (n + 1)."""
        null = 1 / (shape[self.axis] + 1) if p_null is None else p_null
        powers_TS = np.exp(tension * _distance(shape))
        powers_TS /= np.expand_dims(self._sums(powers_TS), self.axis)
        return ShapePrior((1 - null) * powers_TS, null)

    def best_tension(self, counts: Sequence[np.ndarray], tension: float) -> float:
        """The tension within TENSIONS that maximises the likelihood of links; `counts` [T, S] of each shape.

        Σ counts · log δ is concave in λ. Newton's method finds the zero of its derivative Σ counts · (h - E_δ h); a step that
        leaves the interval is replaced by bisection. `tension` is the start, and the result if all tensions are equally good.
        """
        weights = [self._sums(part_TS) for part_TS in counts]
        observed = math.fsum(float((part_TS * _distance(part_TS.shape)).sum()) for part_TS in counts)
        low, high = -math.inf, math.inf  # tensions known to be too low, too high
        for _ in range(STEPS):
            moments = [self._moments(part_TS.shape, tension) for part_TS in counts]
            slope = observed - math.fsum(float((w * mean).sum()) for w, (mean, _) in zip(weights, moments, strict=True))
            bend = math.fsum(float((w * variance).sum()) for w, (_, variance) in zip(weights, moments, strict=True))
            if bend <= 0 or tension == TENSIONS[slope > 0]:
                break
            low, high = (tension, high) if slope > 0 else (low, tension)
            before, step = tension, min(max(tension + slope / bend, TENSIONS[0]), TENSIONS[1])
            tension = step if low < step < high else (low + high) / 2
            if abs(step - before) <= PRECISION * before:
                return step
        return tension

    def _sums(self, cells_TS: np.ndarray) -> np.ndarray:
        """The sum over the candidates of each choosing word, one after the other: pairwise sums would change stored models."""
        return np.add.accumulate(cells_TS, self.axis)[:, -1] if self.axis else np.add.accumulate(cells_TS, 0)[-1]

    def _moments(self, shape: tuple[int, ...], tension: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of h under the prior, for each choosing word."""
        distance_TS = _distance(shape)
        powers_TS = np.exp(tension * distance_TS)
        sums = self._sums(powers_TS)
        powers_TS *= distance_TS
        mean = self._sums(powers_TS) / sums
        powers_TS *= distance_TS
        return mean, self._sums(powers_TS) / sums - mean**2


def _distance(shape: tuple[int, ...]) -> np.ndarray:
    """h [T, S]. Integers come first, so that cells at the same distance from the diagonal have exactly the same prior."""
    target, source = shape
    i, j = np.arange(1, target + 1)[:, None], np.arange(1, source + 1)
    return -np.abs(i * source - j * target) / (target * source)


MODELS = ("ibm1", "diagonal")
DIAGONAL_P_NULL = 0.08
BLOCK = 2**17  # occurrences per block
BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k / 2k
TINY = 1e-200  # the smallest t(f | e), so that no sum over the candidates of a word is 0


@dataclass(frozen=True, slots=True)
class IBMSettings:
    """The options of an estimate.

    `p_null` is p₀, the prior of the null word; None means 0.08 for `diagonal` and 1 / (n + 1) for `ibm1`; 0 means no null word.
    `tension` is λ of `diagonal`, and the start of `optimize_tension`. Raises UsageError.
    """

    model: str = "diagonal"
    iterations: int = 5
    variational_bayes: bool = True
    alpha: float = 0.01
    p_null: float | None = None
    tension: float = 4.0
    optimize_tension: bool = False

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise UsageError(f"no alignment model {self.model!r}", hint=f"choose from {', '.join(MODELS)}")
        if self.iterations < 1:
            raise UsageError(f"{self.iterations} iterations: it must be at least 1")
        if not 0 < self.alpha <= 1e6:
            raise UsageError(f"alpha {self.alpha}: it must be above 0, at most 1e6")
        if self.p_null is not None and not 0 <= self.p_null < 1:
            raise UsageError(f"null probability {self.p_null}: it must be at least 0 and below 1")
        if not TENSIONS[0] <= self.tension <= TENSIONS[1]:
            raise UsageError(f"tension {self.tension}: it must be from {TENSIONS[0]:g} to {TENSIONS[1]:g}")


class IBMProgress(NamedTuple):
    """An iteration: its number from 1, the natural log p of the text and the tension before its M step, the predicted words."""

    direction: str
    iteration: int
    log_likelihood: float
    tension: float
    words: int


class IBMEstimate(NamedTuple):
    """A model of one direction: t of each word pair of the text [K], t(f | null) of each choosing word, λ and p₀."""

    pairs: np.ndarray
    null: np.ndarray
    tension: float
    p_null: float | None


class _Expected(NamedTuple):
    """The counts of the E step: word pairs [K], words linked to null, and if asked for, pairs of positions [T, S] by shape."""

    pairs: np.ndarray
    null: np.ndarray
    cells: list[np.ndarray]
    log_likelihood: float


def estimate(
    bitext: Bitext,
    word_pairs: WordPairs,
    direction: str,
    settings: IBMSettings,
    report: Callable[[IBMProgress], None] = lambda _: None,
) -> IBMEstimate:
    """Estimate the model of a direction, one of DIRECTIONS; `report` is called after each E step.

    The same text in the same order gives the same result. Another order of the pairs changes it by rounding.
    """
    assert direction in DIRECTIONS
    forward = direction == "forward"
    conditions = word_pairs.source if forward else word_pairs.target
    chooser_words = len(bitext.target_words if forward else bitext.source_words)
    num_conditions = len(bitext.source_words if forward else bitext.target_words)
    words = sum(g.target_BT.size if forward else g.source_BS.size for g in bitext.groups)
    prior = DiagonalPrior(direction)
    diagonal = settings.model == "diagonal"
    optimize = diagonal and settings.optimize_tension
    p_null = DIAGONAL_P_NULL if diagonal and settings.p_null is None else settings.p_null
    tension = settings.tension if diagonal else 0.0
    alpha = settings.alpha if settings.variational_bayes else None
    uniform = 1 / max(1, chooser_words)
    model = IBMEstimate(np.full(len(conditions), uniform), np.full(chooser_words, uniform), tension, p_null)
    for iteration in range(1, settings.iterations + 1):
        expected = _expect(bitext, word_pairs, prior, model, with_cells=optimize)
        report(IBMProgress(direction, iteration, expected.log_likelihood, model.tension, words))
        pairs = _maximize(expected.pairs, conditions, num_conditions, alpha)
        null = _maximize(expected.null, np.zeros(chooser_words, np.int64), 1, alpha)
        if optimize:
            tension = prior.best_tension(expected.cells, tension)
        model = IBMEstimate(pairs, null, tension, p_null)
    return model


def _expect(
    bitext: Bitext, word_pairs: WordPairs, prior: DiagonalPrior, model: IBMEstimate, *, with_cells: bool
) -> _Expected:
    """The E step."""
    axis = prior.axis + 1
    counts, null_counts = np.zeros_like(model.pairs), np.zeros_like(model.null)
    cells = [np.zeros(group.shape) for group in bitext.groups] if with_cells else []
    log_likelihood = 0.0
    for number, (group, occurrences) in enumerate(zip(bitext.groups, word_pairs.occurrences, strict=True)):
        shape = prior.of(group.shape, model.tension, model.p_null)
        choosers = group.target_BT if axis == 2 else group.source_BS
        for part in group.slices(BLOCK):
            numbers_BTS, words = occurrences[part], choosers[part]
            links_BTS = model.pairs[numbers_BTS]
            links_BTS *= shape.words_TS
            null = model.null[words] * shape.null
            total = links_BTS.sum(axis) + null
            links_BTS /= np.expand_dims(total, axis)
            null /= total
            np.add.at(counts, numbers_BTS.ravel(), links_BTS.ravel())
            np.add.at(null_counts, words.ravel(), null.ravel())
            if with_cells:
                cells[number] += links_BTS.sum(0)
            log_likelihood += float(np.log(total).sum())
    return _Expected(counts, null_counts, cells, log_likelihood)


def _maximize(counts: np.ndarray, conditions: np.ndarray, num_conditions: int, alpha: float | None) -> np.ndarray:
    """The M step: t of each table entry from its count and the word it is conditioned on, 0 … `num_conditions` - 1."""
    if alpha is not None:
        counts = counts + alpha
    totals = np.bincount(conditions, counts, num_conditions)
    if alpha is None:
        probabilities = counts / np.maximum(totals, TINY)[conditions]
    else:
        probabilities = np.exp(digamma(counts) - digamma(totals)[conditions])
    return np.maximum(probabilities, TINY)


def digamma(x: np.ndarray) -> np.ndarray:
    """ψ(x) = d log Γ(x) / dx for x > 0, to about 1e-13 (relative if |ψ| > 1).

    Six steps of ψ(x) = ψ(x + 1) - 1/x, then ψ(y) ~ log y - 1/2y - Σ_k B_2k / (2k y^2k).
    """
    result = np.empty_like(x)
    for start in range(0, len(x), BLOCK):
        part = x[start : start + BLOCK]
        large = part + 6
        square, tail = 1 / (large * large), np.zeros_like(part)
        for coefficient in reversed(BERNOULLI):
            tail = (tail + coefficient) * square
        value = np.log(large) - 0.5 / large - tail
        for step in range(6):
            value -= 1 / (part + step)
        result[start : start + BLOCK] = value
    return result
