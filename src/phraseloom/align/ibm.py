"""Word alignment models of a text by expectation maximisation: IBM model 1, and the same with a diagonal prior.

    p(f_1 … f_m, a | e_1 … e_n) = Π_i δ(a_i) t(f_i | e_{a_i})          δ: prior.py; a_i = 0: the null word
    E   q_ij = δ(j) t(f_i | e_j) / Σ_j' δ(j') t(f_i | e_j')              c(f, e): sums of q over the occurrences of f and e
    M   t(f | e) = c(f, e) / Σ_f c(f, e)                                 or, with variational Bayes,
        t(f | e) = exp ψ(c(f, e) + α) / exp ψ(Σ_f (c(f, e) + α))         sums over the words f that occur beside e

and, where it is to be optimised, λ is the one that makes the expected links likeliest. Brown et al. 1993, §4 (model 1); Dyer,
Chahuneau and Smith 2013 (the prior, variational Bayes with α = 0.01). Every target word chooses a source word (`forward`) or
every source word a target word (`backward`). All word pairs of a text are a table and their occurrences are indices into it
(`bitext.py`), so that an iteration is one gather and one scatter of all occurrences, block by block, in float64.

Sentence pairs as arrays: words as numbers, pairs of the same two lengths together, and each word pair that occurs once.

A sentence pair of S source and T target words has T·S occurrences of word pairs. Pairs of sentences with the same (S, T)
form one array [B, T, S], so that a sum over the source or the target words of a sentence is a sum over an axis. The
distinct word pairs of a text are numbered in the order of (source word, target word), and every occurrence is such a number.
Words stand between blanks (U+0020), as in `links.py`.

The prior of word alignments: which word of the other side a word is linked to, before the words are looked at.

    δ(0) = p₀,   δ(j) = (1 - p₀) exp(λ h) / Z,   h = -|i/m - j/n|,   Z = Σ_j exp(λ h)

for word i of m that is linked to word j of n, from 1, or to the null word 0; λ is the tension. This is the prior of Dyer,
Chahuneau and Smith 2013, §2. IBM model 1 (Brown et al. 1993, §4.1) has λ = 0 and p₀ = 1 / (n + 1). The words that choose are
those of the target (`forward`) or of the source (`backward`); h is the same for both.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phraseloom.errors import UsageError

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


DIRECTIONS = ("forward", "backward")
TENSIONS = (0.1, 14.0)  # as in fast_align
STEPS, PRECISION = 100, 1e-10  # of Newton's method


class ShapePrior(NamedTuple):
    """The prior for sentences of two lengths: δ(j) [T, S], and δ(0)."""

    words_TS: np.ndarray
    null: float


class DiagonalPrior:
    """The prior for pairs of sentence lengths `shapes`, each (T, S); sums over the words that can be chosen are over `axis`.

    A cell is a pair of positions of a shape; all cells of all shapes are one array.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], direction: str) -> None:
        self.axis = 1 if direction == "forward" else 0
        self.shapes = shapes
        self._starts = np.cumsum([0, *(t * s for t, s in shapes)])
        self._distance = np.empty(self._starts[-1])  # h
        self._chooser = np.empty(self._starts[-1], np.int64)  # the word that chooses, numbered over all shapes
        self._choices = np.repeat([shape[self.axis] for shape in shapes], [shape[1 - self.axis] for shape in shapes])
        first = 0
        for (target, source), distance_TS, chooser_TS in zip(
            shapes, self.views(self._distance), self.views(self._chooser), strict=True
        ):
            i, j = np.arange(1, target + 1)[:, None], np.arange(1, source + 1)
            # Whole numbers first, so that places that are equally far from the diagonal have the same prior to the last bit.
            distance_TS[...] = -np.abs(i * source - j * target) / (target * source)
            chooser_TS[...] = first + (i if self.axis == 1 else j) - 1
            first += (target, source)[1 - self.axis]

    def views(self, cells: np.ndarray) -> Iterator[np.ndarray]:
        """The part [T, S] of each shape in an array of all cells."""
        for shape, start, end in zip(self.shapes, self._starts[:-1], self._starts[1:], strict=True):
            yield cells[start:end].reshape(shape)

    def zeros(self) -> np.ndarray:
        """An array of all cells."""
        return np.zeros(self._starts[-1])

    def of(self, tension: float, p_null: float | None) -> list[ShapePrior]:
        """The prior for each shape; `p_null`: p₀, None for 1 / (n + 1)."""
        nulls = [1 / (shape[self.axis] + 1) if p_null is None else p_null for shape in self.shapes]
        powers, sums = self._powers(tension)
        powers /= sums[self._chooser]
        return [ShapePrior((1 - null) * part, null) for null, part in zip(nulls, self.views(powers), strict=True)]

    def best_tension(self, counts: np.ndarray, tension: float) -> float:
        """The tension within TENSIONS that makes links between positions, `counts` of all cells, most likely.

        Σ counts · log δ is concave in λ; its derivative Σ counts · (h - E_δ h) is brought to 0 by Newton's method, halving the
        interval instead where a step leaves it. `tension`: where to begin, and the answer where every tension is as good.
        """
        weights = np.bincount(self._chooser, counts, len(self._choices))
        observed = float((counts * self._distance).sum())
        low, high = -math.inf, math.inf  # tensions that were found too low, too high
        for _ in range(STEPS):
            mean, variance = self._moments(tension)
            slope, bend = observed - float((weights * mean).sum()), float((weights * variance).sum())
            if bend <= 0 or tension == TENSIONS[slope > 0]:
                break
            low, high = (tension, high) if slope > 0 else (low, tension)
            before, step = tension, min(max(tension + slope / bend, TENSIONS[0]), TENSIONS[1])
            tension = step if low < step < high else (low + high) / 2
            if abs(step - before) <= PRECISION * before:
                return step
        return tension

    def _powers(self, tension: float) -> tuple[np.ndarray, np.ndarray]:
        """exp(λ h) of all cells, and Z of each word that chooses."""
        powers = np.exp(tension * self._distance)
        return powers, np.bincount(self._chooser, powers, len(self._choices))

    def _moments(self, tension: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of h under the prior, for each word that chooses."""
        powers, sums = self._powers(tension)
        powers *= self._distance
        mean = np.bincount(self._chooser, powers, len(sums)) / sums
        powers *= self._distance
        return mean, np.bincount(self._chooser, powers, len(sums)) / sums - mean**2


MODELS = ("ibm1", "diagonal")
DIAGONAL_P_NULL = 0.08
BLOCK = 2**17  # occurrences that are worked on at a time
BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B_2k / 2k
TINY = 1e-200  # the least t(f | e), so that no sum over the choices of a word is 0


@dataclass(frozen=True, slots=True)
class IBMSettings:
    """How a model is estimated.

    `p_null`: p₀, the prior of the null word; None is 0.08 for `diagonal` and 1 / (n + 1) for `ibm1`; 0 is no null word.
    `tension`: λ of `diagonal`, where `optimize_tension` begins. Raises UsageError.
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
            raise UsageError(f"{self.iterations} iterations: there must be one at least")
        if not 0 < self.alpha <= 1e6:
            raise UsageError(f"alpha {self.alpha}: it must be above 0, at most 1e6")
        if self.p_null is not None and not 0 <= self.p_null < 1:
            raise UsageError(f"null probability {self.p_null}: it must be at least 0 and below 1")
        if not TENSIONS[0] <= self.tension <= TENSIONS[1]:
            raise UsageError(f"tension {self.tension}: it must be from {TENSIONS[0]:g} to {TENSIONS[1]:g}")


class IBMProgress(NamedTuple):
    """An iteration: its number from 1, log p of the text (natural) and the tension before its M step, the words predicted."""

    direction: str
    iteration: int
    log_likelihood: float
    tension: float
    words: int


class IBMEstimate(NamedTuple):
    """A model of one direction: t of each word pair of the text [K], t(f | null) of each word that chooses, λ and p₀."""

    pairs: np.ndarray
    null: np.ndarray
    tension: float
    p_null: float | None


class _Expected(NamedTuple):
    """What the E step counts: word pairs [K], words linked to null, pairs of positions (all cells of the prior)."""

    pairs: np.ndarray
    null: np.ndarray
    cells: np.ndarray
    log_likelihood: float


def estimate(
    bitext: Bitext,
    word_pairs: WordPairs,
    direction: str,
    settings: IBMSettings,
    report: Callable[[IBMProgress], None] = lambda _: None,
) -> IBMEstimate:
    """The model of a direction, one of DIRECTIONS; `report` is called after each E step.

    The result is the same for the same text in the same order, whatever else runs. Another order of the
    pairs changes it by rounding.
    """
    assert direction in DIRECTIONS
    forward = direction == "forward"
    given = word_pairs.source if forward else word_pairs.target
    chooser_words = len(bitext.target_words if forward else bitext.source_words)
    given_words = len(bitext.source_words if forward else bitext.target_words)
    words = sum(g.target_BT.size if forward else g.source_BS.size for g in bitext.groups)
    prior = DiagonalPrior([g.shape for g in bitext.groups], direction)
    diagonal = settings.model == "diagonal"
    p_null = DIAGONAL_P_NULL if diagonal and settings.p_null is None else settings.p_null
    tension = settings.tension if diagonal else 0.0
    alpha = settings.alpha if settings.variational_bayes else None
    uniform = 1 / max(1, chooser_words)
    now = IBMEstimate(np.full(len(given), uniform), np.full(chooser_words, uniform), tension, p_null)
    for iteration in range(1, settings.iterations + 1):
        expected = _expect(bitext, word_pairs, prior, now)
        report(IBMProgress(direction, iteration, expected.log_likelihood, now.tension, words))
        pairs = _maximize(expected.pairs, given, given_words, alpha)
        null = _maximize(expected.null, np.zeros(chooser_words, np.int64), 1, alpha)
        if diagonal and settings.optimize_tension:
            tension = prior.best_tension(expected.cells, tension)
        now = IBMEstimate(pairs, null, tension, p_null)
    return now


def _expect(bitext: Bitext, word_pairs: WordPairs, prior: DiagonalPrior, model: IBMEstimate) -> _Expected:
    """The E step."""
    axis = prior.axis + 1
    counts, null_counts, cells = np.zeros_like(model.pairs), np.zeros_like(model.null), prior.zeros()
    log_likelihood = 0.0
    priors = prior.of(model.tension, model.p_null)
    for group, occurrences, shape, cell_TS in zip(
        bitext.groups, word_pairs.occurrences, priors, prior.views(cells), strict=True
    ):
        choosers = group.target_BT if axis == 2 else group.source_BS
        for some in group.slices(BLOCK):
            numbers_BTS, words = occurrences[some], choosers[some]
            links_BTS = model.pairs[numbers_BTS]
            links_BTS *= shape.words_TS
            null = model.null[words] * shape.null
            total = links_BTS.sum(axis) + null
            links_BTS /= np.expand_dims(total, axis)
            null /= total
            np.add.at(counts, numbers_BTS.ravel(), links_BTS.ravel())
            np.add.at(null_counts, words.ravel(), null.ravel())
            cell_TS += links_BTS.sum(0)
            log_likelihood += float(np.log(total).sum())
    return _Expected(counts, null_counts, cells, log_likelihood)


def _maximize(counts: np.ndarray, given: np.ndarray, num_given: int, alpha: float | None) -> np.ndarray:
    """The M step: t of each entry of a table out of its count and the word that it is given, 0 … `num_given` - 1."""
    if alpha is not None:
        counts = counts + alpha
    totals = np.bincount(given, counts, num_given)
    if alpha is None:
        probabilities = counts / np.maximum(totals, TINY)[given]
    else:
        probabilities = np.exp(digamma(counts) - digamma(totals)[given])
    return np.maximum(probabilities, TINY)


def digamma(x: np.ndarray) -> np.ndarray:
    """ψ(x) = d log Γ(x) / dx for x > 0, to about 1e-13 (relative, where |ψ| > 1).

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
