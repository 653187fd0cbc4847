"""Word alignment models of a text by expectation maximisation: IBM model 1, and the same with a diagonal prior.

    p(f_1 … f_m, a | e_1 … e_n) = Π_i δ(a_i) t(f_i | e_{a_i})          δ: prior.py; a_i = 0: the null word
    E   q_ij = δ(j) t(f_i | e_j) / Σ_j' δ(j') t(f_i | e_j')              c(f, e): sums of q over the occurrences of f and e
    M   t(f | e) = c(f, e) / Σ_f c(f, e)                                 or, with variational Bayes,
        t(f | e) = exp ψ(c(f, e) + α) / exp ψ(Σ_f (c(f, e) + α))         sums over the words f that occur beside e

and, where it is to be optimised, λ is the one that makes the expected links likeliest. Brown et al. 1993, §4 (model 1); Dyer,
Chahuneau and Smith 2013 (the prior, variational Bayes with α = 0.01). Every target word chooses a source word (`forward`) or
every source word a target word (`backward`). All word pairs of a text are a table and their occurrences are indices into it
(`bitext.py`), so that an iteration is one gather and one scatter of all occurrences, block by block, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phraseloom.align.bitext import Bitext, WordPairs
from phraseloom.align.prior import DIRECTIONS, TENSIONS, DiagonalPrior
from phraseloom.errors import UsageError

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
