"""The prior of word alignments: which word of the other side a word is linked to, before the words are looked at.

    δ(0) = p₀,   δ(j) = (1 - p₀) exp(λ h) / Z,   h = -|i/m - j/n|,   Z = Σ_j exp(λ h)

for word i of m that is linked to word j of n, from 1, or to the null word 0; λ is the tension. This is the prior of Dyer,
Chahuneau and Smith 2013, §2. IBM model 1 (Brown et al. 1993, §4.1) has λ = 0 and p₀ = 1 / (n + 1). The words that choose are
those of the target (`forward`) or of the source (`backward`); h is the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

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
