"""Paired bootstrap: is the difference between two systems more than the choice of test sentences?

The test set is drawn anew `samples` times with replacement, the same sentences for every system. With Δ_b the
difference of the corpus scores on resample b and Δ that on the test set itself:

    p_win  = share of b in which the system that is better on the test set does not win     (Koehn 2004; spec §8.3)
    p_null = (1 + #{b : |Δ_b| − mean |Δ_b| > |Δ|}) / (samples + 1)                           (sacreBLEU)

Resampling sums precomputed counts of each sentence; no sentence is scored twice. With the same seed the resamples are
sacreBLEU's own. Among k systems there are k(k-1)/2 differences, some of them "significant" by chance, so `all_pairs` also
gives the p of Holm (1979): p_(r) of the r-th smallest of m is made max over r' <= r of (m - r' + 1) p_(r').
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from phraseloom.errors import DataError, UsageError
from phraseloom.metrics.bleu import LengthGroup, Scorer

SEED = 12345  # sacreBLEU's default
FEWEST = 30  # sentences of a group below which resampling it says nothing: too few different resamples, ends too close


@dataclass(frozen=True)
class Bootstrapped:
    """One system under the bootstrap; the comparison fields are None for the baseline.

    `value` on the test set; `mean` over the resamples, `low` and `high` the ends of their central 95 %, `half_width` half
    the distance of these; `difference` to the baseline (system − baseline) with the ends of its central 95 %; `wins`,
    `ties`: resamples in which the better of the two wins, is equal.
    """

    value: float
    mean: float
    half_width: float
    low: float
    high: float
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    wins: int | None = None
    ties: int | None = None
    p_win: float | None = None
    p_null: float | None = None


@dataclass(frozen=True)
class Pair:
    """Two systems by their numbers: `difference` = system − other on the test set, the rest as in `Bootstrapped`.

    `p_holm`: `p_null` adjusted for the number of pairs.
    """

    system: int
    other: int
    difference: float
    difference_low: float
    difference_high: float
    wins: int
    ties: int
    p_win: float
    p_null: float
    p_holm: float


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


def interval(values: np.ndarray) -> tuple[float, float]:
    """The ends of the central 95 % of `values`, as sacreBLEU counts them."""
    ordered = np.sort(values)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[len(ordered) - cut - 1])


def paired_bootstrap(
    scorer: Scorer, statistics: Sequence[np.ndarray], *, samples: int = 1000, seed: int = SEED
) -> list[Bootstrapped]:
    """Every system against the first one, the baseline. Raises UsageError for fewer than 1 resample."""
    whole, values = _scores(scorer, statistics, samples, seed)
    results = []
    for i, (value, sampled) in enumerate(zip(whole, values, strict=True)):
        low, high = interval(sampled)
        compared = compare(value - whole[0], sampled - values[0]) if i else {}
        results.append(Bootstrapped(value, float(sampled.mean()), (high - low) / 2, low, high, **compared))
    return results


def all_pairs(scorer: Scorer, statistics: Sequence[np.ndarray], *, samples: int = 1000, seed: int = SEED) -> list[Pair]:
    """Every system against every one before it, on the same resamples: (1, 0), (2, 0), (2, 1), (3, 0) …

    Raises UsageError for fewer than 1 resample.
    """
    whole, values = _scores(scorer, statistics, samples, seed)
    names = [(i, j) for i in range(len(whole)) for j in range(i)]
    found = [compare(whole[i] - whole[j], values[i] - values[j]) for i, j in names]
    adjusted = holm([f["p_null"] for f in found])
    return [Pair(i, j, **f, p_holm=p) for (i, j), f, p in zip(names, found, adjusted, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979): below α in each with probability at most α for all together."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def bootstrap_by_length(
    scorer: Scorer,
    statistics: Sequence[np.ndarray],
    lengths: Sequence[int],
    groups: Sequence[LengthGroup],
    *,
    samples: int = 1000,
    seed: int = SEED,
) -> list[list[Bootstrapped] | None]:
    """For each group of source lengths the systems as of `paired_bootstrap`, drawn from the sentences of that group.

    None for a group of fewer than `FEWEST` sentences: two sentences would give narrow intervals and small p-values.
    """
    results: list[list[Bootstrapped] | None] = []
    for group in groups:
        enough = group.sentences >= FEWEST
        chosen = [counts[group.holds(lengths)] for counts in statistics] if enough else []
        results.append(paired_bootstrap(scorer, chosen, samples=samples, seed=seed) if enough else None)
    return results


def _scores(
    scorer: Scorer, statistics: Sequence[np.ndarray], samples: int, seed: int
) -> tuple[list[float], np.ndarray]:
    """The score of each system on the test set, and on every resample."""
    if samples < 1:
        raise UsageError(f"the bootstrap needs at least 1 resample, not {samples}")
    values = bootstrap_values(scorer, statistics, samples=samples, seed=seed)
    return [scorer.value(s.sum(0)) for s in statistics], values


def compare(difference: float, sampled: np.ndarray) -> dict[str, Any]:
    """The comparison fields from the difference on the test set and those on the resamples.

    Whether more is better does not matter: the better system wins where the difference has the sign it has on the test set.
    """
    better = sampled if difference >= 0 else -sampled
    wins, ties = int((better > 0).sum()), int((better == 0).sum())
    spread = np.abs(sampled)
    beyond = int((spread - spread.mean() > abs(difference)).sum())
    low, high = interval(sampled)
    return {
        "difference": difference,
        "difference_low": low,
        "difference_high": high,
        "wins": wins,
        "ties": ties,
        "p_win": 1 - wins / len(sampled),
        "p_null": (beyond + 1) / (len(sampled) + 1),
    }
