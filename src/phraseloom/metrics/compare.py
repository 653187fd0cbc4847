"""Bootstrap resampling of a test set, and correction of p-values for multiple tests.

The test set is resampled `samples` times with replacement, with the same sentences for every system (Koehn 2004). Resampling
sums the precomputed counts of each sentence, so no sentence is scored twice. The same seed gives the resamples of sacreBLEU.
metrics/seeds.py compares systems.

Among k systems there are k(k-1)/2 differences, and some are "significant" by chance. Holm (1979) adjusts p_(r), the r-th
smallest of m p-values, to the max over r' <= r of (m - r' + 1) p_(r').
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from phraseloom.errors import DataError, plural

SEED = 12345  # sacreBLEU's default
FEWEST = 30  # resampling fewer sentences is meaningless: too few distinct resamples, too narrow intervals


def few_sentences(number: int) -> str:
    """What to say of intervals and p of a number of sentences; nothing if they are enough."""
    text = (
        f"intervals and p of {plural(number, 'sentence')} are too small to mean anything; they take at least {FEWEST}"
    )
    return text if number < FEWEST else ""


def resamples(
    sentences: int, samples: int, *, seed: int | Sequence[int] = SEED, rows: int = 64
) -> Iterator[np.ndarray]:
    """The number of draws of each sentence, in blocks of float64 (≤ `rows`, sentences), with `samples` rows in total."""
    generator = np.random.default_rng(seed)
    for start in range(0, samples, rows):
        indices = generator.choice(sentences, size=(min(rows, samples - start), sentences), replace=True)
        yield np.stack([np.bincount(row, minlength=sentences) for row in indices]).astype(np.float64)


class Summed(Protocol):
    """A number computed from a sum of rows, one per sentence."""

    def value(self, sums: np.ndarray, /) -> float:
        """The number of summed rows."""
        ...


def bootstrap_values(
    scorer: Summed, statistics: Sequence[np.ndarray], *, samples: int, seed: int | Sequence[int] = SEED
) -> np.ndarray:
    """The score of every system on every resample, (systems, samples); `statistics` has one additive row per sentence."""
    sizes = {len(s) for s in statistics}
    if len(sizes) != 1:
        raise DataError(f"systems of different numbers of sentences: {sorted(sizes)}")
    blocks = []
    for counts in resamples(sizes.pop(), samples, seed=seed):
        blocks.append([[scorer.value(row) for row in counts @ rows] for rows in statistics])
    return np.concatenate([np.array(b) for b in blocks], axis=1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979): the probability of any false one below α is at most α."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
