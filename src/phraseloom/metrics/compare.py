"""Paired bootstrap: is the difference between two systems more than the choice of test sentences?

The test set is drawn anew `samples` times with replacement, the same sentences for every system. With Δ_b the
difference of the corpus scores on resample b and Δ that on the test set itself:

    p_win  = share of b in which the system that is better on the test set does not win     (Koehn 2004; spec §8.3)
    p_null = (1 + #{b : |Δ_b| − mean |Δ_b| > |Δ|}) / (samples + 1)                           (sacreBLEU)

Resampling sums precomputed counts of each sentence; no sentence is scored twice. With the same seed the resamples are
sacreBLEU's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phraseloom.errors import DataError, UsageError
from phraseloom.metrics.bleu import Scorer

SEED = 12345  # sacreBLEU's default


@dataclass(frozen=True)
class Bootstrapped:
    """One system under the bootstrap; the comparison fields are None for the baseline.

    `value` on the test set; `mean` and `half_width` of the 95 % interval over resamples; `difference` to the baseline
    (system − baseline); `wins`, `ties`: resamples in which the better of the two wins, is equal.
    """

    value: float
    mean: float
    half_width: float
    difference: float | None = None
    wins: int | None = None
    ties: int | None = None
    p_win: float | None = None
    p_null: float | None = None


def resamples(sentences: int, samples: int, *, seed: int = SEED, rows: int = 64) -> Iterator[np.ndarray]:
    """How often each sentence is drawn, in blocks of float64 (≤ `rows`, sentences); `samples` rows in all."""
    generator = np.random.default_rng(seed)
    for start in range(0, samples, rows):
        indices = generator.choice(sentences, size=(min(rows, samples - start), sentences), replace=True)
        yield np.stack([np.bincount(row, minlength=sentences) for row in indices]).astype(np.float64)


def bootstrap_values(scorer: Scorer, statistics: Sequence[np.ndarray], *, samples: int, seed: int = SEED) -> np.ndarray:
    """The score of every system on every resample, (systems, samples); `statistics` as of `Scorer.statistics`."""
    sizes = {len(s) for s in statistics}
    if len(sizes) != 1:
        raise DataError(f"systems of different numbers of sentences: {sorted(sizes)}")
    blocks = []
    for counts in resamples(sizes.pop(), samples, seed=seed):
        blocks.append([[scorer.value(row) for row in counts @ rows] for rows in statistics])
    return np.concatenate([np.array(b) for b in blocks], axis=1)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Mean and half the width of the central 95 % of `values`."""
    ordered = np.sort(values)
    cut = len(ordered) // 40
    return float(ordered.mean()), float(0.5 * (ordered[len(ordered) - cut - 1] - ordered[cut]))


def paired_bootstrap(
    scorer: Scorer, statistics: Sequence[np.ndarray], *, samples: int = 1000, seed: int = SEED
) -> list[Bootstrapped]:
    """Every system against the first one, the baseline. Raises UsageError for fewer than 1 resample."""
    if samples < 1:
        raise UsageError(f"the bootstrap needs at least 1 resample, not {samples}")
    values = bootstrap_values(scorer, statistics, samples=samples, seed=seed)
    whole = [scorer.value(s.sum(0)) for s in statistics]
    results = [Bootstrapped(whole[0], *interval(values[0]))]
    for system, sampled in zip(whole[1:], values[1:], strict=True):
        results.append(_against(whole[0], system, values[0], sampled, higher_is_better=scorer.higher_is_better))
    return results


def _against(
    baseline: float, system: float, baseline_values: np.ndarray, values: np.ndarray, *, higher_is_better: bool
) -> Bootstrapped:
    samples = len(values)
    gain = values - baseline_values if higher_is_better else baseline_values - values
    better = gain if (system >= baseline) == higher_is_better else -gain
    wins, ties = int((better > 0).sum()), int((better == 0).sum())
    spread = np.abs(values - baseline_values)
    beyond = int((spread - spread.mean() > abs(system - baseline)).sum())
    return Bootstrapped(
        system,
        *interval(values),
        difference=system - baseline,
        wins=wins,
        ties=ties,
        p_win=1 - wins / samples,
        p_null=(beyond + 1) / (samples + 1),
    )
