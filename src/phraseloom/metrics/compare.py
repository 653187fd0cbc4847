"""Resamples of a test set, and the correction of p-values for their number.

The test set is drawn anew `samples` times with replacement, the same sentences for every system (Koehn 2004). Resampling sums
precomputed counts of each sentence; no sentence is scored twice. With the same seed the resamples are sacreBLEU's own. What
differences of systems mean is in metrics/seeds.py.

Among k systems there are k(k-1)/2 differences, some of them "significant" by chance: Holm (1979) takes for p_(r), the r-th
smallest of m, the max over r' <= r of (m - r' + 1) p_(r').
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from phraseloom.errors import DataError

SEED = 12345  # sacreBLEU's default
FEWEST = 30  # sentences of a group below which resampling it says nothing: too few different resamples, ends too close


def resamples(
    sentences: int, samples: int, *, seed: int | Sequence[int] = SEED, rows: int = 64
) -> Iterator[np.ndarray]:
    """How often each sentence is drawn, in blocks of float64 (≤ `rows`, sentences); `samples` rows in all."""
    generator = np.random.default_rng(seed)
    for start in range(0, samples, rows):
        indices = generator.choice(sentences, size=(min(rows, samples - start), sentences), replace=True)
        yield np.stack([np.bincount(row, minlength=sentences) for row in indices]).astype(np.float64)


class Summed(Protocol):
    """A number that is made of a sum of rows, one a sentence."""

    def value(self, sums: np.ndarray, /) -> float:
        """The number of summed rows."""
        ...


def bootstrap_values(
    scorer: Summed, statistics: Sequence[np.ndarray], *, samples: int, seed: int | Sequence[int] = SEED
) -> np.ndarray:
    """The score of every system on every resample, (systems, samples); `statistics`: a row a sentence, which add up."""
    sizes = {len(s) for s in statistics}
    if len(sizes) != 1:
        raise DataError(f"systems of different numbers of sentences: {sorted(sizes)}")
    blocks = []
    for counts in resamples(sizes.pop(), samples, seed=seed):
        blocks.append([[scorer.value(row) for row in counts @ rows] for rows in statistics])
    return np.concatenate([np.array(b) for b in blocks], axis=1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979): below α in each with probability at most α for all together."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
