"""Did what the paper says hold here? Each claim is a set of comparisons of two numbers; what decides is an interval.

    d = value of one row − value of another (or − a given number), in the direction of the claim
    held           the 95 % interval of d lies above the margin of the claim
    did not hold   it lies below
    not decided    the margin is inside, or there is no interval (one seed of a number that is not made of sentences)

A claim of several comparisons holds if all hold, and did not hold if one did not. "Equal" holds if the interval lies inside
± `within`, and did not hold if it lies outside.

Numbers made of sentences (BLEU, chrF, TER; perplexity, entropy, shares, AER, accuracy): the sentences of the test set are drawn
anew (metrics/compare.py), the same for all rows and seeds, and the differences of seed s of one row and seed s of the other on
every resample are pooled; the interval is their central 95 %, p the share in which the one ahead on average does not win.
So both the choice of sentences and that of seeds are in it; with one seed that of seeds is not. Other numbers: Student's t over
the differences of the seeds, from two seeds on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phraseloom.metrics.compare import FEWEST, SEED, bootstrap_values, interval
from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.table import ClaimConfig

SAMPLES = 1000
# The 97.5 % quantile of Student's t by degrees of freedom.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Verdict = Literal["held", "did not hold", "not decided", "not measured"]


@dataclass(frozen=True)
class Difference:
    """One number less another: the mean over seeds, the ends of its 95 % if they are known, and how they are known."""

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    how: str = "one seed, no interval"


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: what is compared, in words, the difference, and the verdict."""

    says: str
    difference: Difference | None
    verdict: Verdict


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with all its comparisons."""

    claim: ClaimConfig
    verdict: Verdict
    comparisons: tuple[Comparison, ...]


Seeds = Mapping[int, MeasuredValue]


@dataclass(frozen=True)
class Draws:
    """A number of each row and seed, and its values on every resample of so many `sentences`.

    Two of equal `sentences` are of the same resamples.
    """

    sentences: int
    numbers: Mapping[tuple[str, int], tuple[float, np.ndarray]]

    def of(self, row: str) -> dict[int, tuple[float, np.ndarray]]:
        """Those of a row, by seed."""
        return {seed: found for (name, seed), found in self.numbers.items() if name == row}


def draw(rows: Mapping[str, Seeds], label: str = "", *, samples: int = SAMPLES, seed: int = SEED) -> Draws:
    """The numbers of one metric (and label) under resampling of the sentences; none where it is not made of sentences.

    Groups of fewer than `FEWEST` sentences are not drawn from.
    """
    found = {(row, s): m for row, seeds in rows.items() for s, m in seeds.items() if label in m.statistics}
    counts = [m.statistics[label] for m in found.values()]
    scorer = next((m.scorer for m in found.values()), None)
    if scorer is None or len({len(c) for c in counts}) != 1 or (label and len(counts[0]) < FEWEST):
        return Draws(0, {})
    drawn = bootstrap_values(scorer, counts, samples=samples, seed=seed)
    numbers = {key: (_number(m, label), values) for (key, m), values in zip(found.items(), drawn, strict=True)}
    return Draws(len(counts[0]), numbers)


def of_sentences(
    one: Mapping[int, tuple[float, np.ndarray]], other: Mapping[int, tuple[float, np.ndarray]] | float
) -> Difference | None:
    """Pooled difference of two numbers by seed (`Draws.of`), or of one and a given number; None without a seed in common."""
    seeds = [s for s in one if isinstance(other, float) or s in other]
    if not seeds:
        return None
    pairs = [(one[s], (other, other) if isinstance(other, float) else other[s]) for s in seeds]
    pooled = np.concatenate([first[1] - second[1] for first, second in pairs])
    mean = statistics.fmean(first[0] - second[0] for first, second in pairs)
    low, high = interval(pooled)
    loses = float(((pooled if mean >= 0 else -pooled) <= 0).mean())
    how = f"{len(pooled) // len(seeds)} resamples of the sentences, {len(seeds)} seed{'s' if len(seeds) > 1 else ''} pooled"
    return Difference(mean, low, high, loses, how)


def of_seeds(values: Sequence[float]) -> Difference | None:
    """The mean of differences, one a seed, with Student's interval from two of them on."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Difference(mean)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Difference(mean, mean - half, mean + half, None, f"Student's t over {len(values)} seeds")


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    return STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96


def exactly(value: float) -> Difference:
    """A difference of numbers that no chance is in, such as parameters."""
    return Difference(value, value, value, None, "exact")


def verdict(claim: ClaimConfig, difference: Difference | None) -> Verdict:
    """What a difference (in the direction of the paper's numbers, not turned) says about the claim."""
    if difference is None:
        return "not measured"
    if difference.low is None or difference.high is None:
        return "not decided"
    if claim.within is not None:
        if -claim.within < difference.low and difference.high < claim.within:
            return "held"
        outside = difference.low > claim.within or difference.high < -claim.within
        return "did not hold" if outside else "not decided"
    low, high = difference.low, difference.high
    if claim.sign < 0:
        low, high = -high, -low
    if low > claim.by or low == high >= claim.by > 0:
        return "held"
    return "did not hold" if high < claim.by or low == high <= claim.by else "not decided"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim from those on its comparisons."""
    order: tuple[Verdict, ...] = ("did not hold", "not measured", "not decided")
    for wanted in order:
        if wanted in verdicts:
            return wanted
    return "held" if verdicts else "not measured"


def _number(measured: MeasuredValue, label: str) -> float:
    value = measured.value[label] if isinstance(measured.value, dict) else measured.value
    assert value is not None
    return float(value)
