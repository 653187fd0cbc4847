"""The difference of two systems trained with several seeds: mean, interval, p. All commands use this estimator.

    D = mean over seeds of A's scores − mean over seeds of B's scores
    V = s²_A / K_A + s²_B / K_B + v,   v = variance of D over bootstrap resamples of the test sentences

`s²_A` is the sample variance of the K_A scores of A on the test set: the effect of another training run. `v` is the effect of
another test set: every resample has the same sentences for both systems and all seeds, so it is paired (Koehn 2004). The runs
of A and B are independent, so the seeds are not paired. (Where A and B are the same trained models, in two ways, give their
differences run by run: `SeedScores.minus`.) The random effect of each run on each sentence is part of `s²/K` and,
divided by K, of `v` too, so V is slightly too large.

Welch's t (Welch 1947): D / √V is compared with Student's t. Its degrees of freedom match the mean and the variance of V
(Satterthwaite 1946). A sample variance of K normal scores has mean σ² and variance 2 σ⁴ / (K − 1), so

    Var V = 2 (σ²_A/K_A)² / (K_A − 1) + 2 (σ²_B/K_B)² / (K_B − 1) + Var v

A χ² variable with ν degrees of freedom, scaled to mean V, has variance 2 V² / ν. `v` comes from hundreds of sentences, so
Var v is set to 0, and

    ν = V² / ( (s²_A/K_A)² / (K_A − 1) + (s²_B/K_B)² / (K_B − 1) )

Without `v` this is Welch's formula; without differences between seeds ν is infinite and t is the normal distribution.
The interval is D ± t_ν(0.975) √V and p is two-sided, so p < 0.05 exactly if the 95 % interval excludes the null value.

For a weighted sum of differences, Σ w (A − B), V and Var V have a term for each system, with w² s²/K in place of s²/K. It is a
difference of differences (weights 1 and −1), or the mean of n comparisons (`mean_of_comparisons`: weights 1/n).

With one seed there is no s²: D is the difference of *these two runs*, V = v, the distribution is normal, and the result does
not generalise to other training runs (`one_seed`). With two seeds, ν is estimated badly, and small p are far too frequent: if
the runs vary more than the sentences, p < 0.05 happens in 6 % of null comparisons, but p < 0.0125 in 3 % and p < 0.005 in 2 %.
This matters if p is corrected for several comparisons. With three seeds these shares are 5, 2 and 1 %. If the seeds of one
system vary far more than those of the other, 12 % of null comparisons have p < 0.05 with two seeds, 7 % with three and 6 % with
five. docs/evaluation.md has all shares, and what a stricter test would cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from phraseloom.errors import plural

LEVEL = 0.05
TWO_SEEDS = "With two seeds, a low p comes from chance alone too often; a verdict takes three."
NORMAL = 1e6  # degrees of freedom from which on t is the normal distribution, to six digits


@dataclass(frozen=True)
class SeedScores:
    """Scores of the runs of one system: `scores` (K,) on the test set, `sampled` (K, resamples) on its resamples.

    `sampled` is None for a number without sentences, such as the training speed.
    """

    scores: np.ndarray
    sampled: np.ndarray | None = None

    def minus(self, other: Self) -> Self:
        """The difference to another number of the same runs, one number per run."""
        both = self.sampled is not None and other.sampled is not None
        sampled = self.sampled - other.sampled if both else None  # type: ignore[operator]
        return type(self)(self.scores - other.scores, sampled)

    def times(self, factor: float) -> Self:
        """Every number times a factor."""
        return type(self)(self.scores * factor, None if self.sampled is None else self.sampled * factor)


@dataclass(frozen=True)
class SeedDifference:
    """A difference `mean`, the ends of its 95 % interval and its two-sided p against 0; None if they are unknown.

    `freedom` has the degrees of freedom of t, None for the normal distribution. `deviations` has the standard deviation over
    the seeds of each system, None for one seed. `one_seed` is true if a system has only one run, so the result does not
    generalise to other runs. `seeds` is the number of runs of the system that has fewest. `exact` is true for numbers without
    randomness, such as numbers of parameters.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    standard_error: float | None = None
    freedom: float | None = None
    deviations: tuple[float | None, ...] = ()
    one_seed: bool = False
    exact: bool = False
    how: str = ""
    seeds: int | None = None

    def p_against(self, null: float) -> float | None:
        """The two-sided p of the hypothesis that the true difference is `null`; None without a standard error."""
        if self.standard_error is None:
            return None
        distance = abs(self.mean - null)
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        return two_sided(distance / self.standard_error, self.freedom)


def compare_seeds(
    system: SeedScores, other: SeedScores | float = 0.0, beyond: tuple[SeedScores, SeedScores] | None = None
) -> SeedDifference:
    """`system` minus `other`, a system or a number; less the difference of the two systems `beyond`.

    All systems need resamples of the same sentences, or none has any.
    """
    return _weighted_sum([(system, other), *([] if beyond is None else [beyond])], (1.0, -1.0))


def mean_of_comparisons(pairs: Sequence[tuple[SeedScores, SeedScores | float]]) -> SeedDifference:
    """The mean over several comparisons of the first system of a pair minus the second, such as one at each learning rate.

    All systems are different runs (of the same runs in two ways, give `SeedScores.minus` and 0). They need resamples of the
    same sentences, or none has any.
    """
    return _weighted_sum(pairs, [1 / len(pairs)] * len(pairs))


def _weighted_sum(pairs: Sequence[tuple[SeedScores, SeedScores | float]], weights: Sequence[float]) -> SeedDifference:
    """The sum of the differences of `pairs`, each times its weight."""
    weighed = list(zip(pairs, weights, strict=False))
    mean = sum(
        w * (float(a.scores.mean()) - (b if isinstance(b, float) else float(b.scores.mean()))) for (a, b), w in weighed
    )
    terms = [(s, w) for pair, w in weighed for s in pair if isinstance(s, SeedScores)]
    systems = [s for s, _ in terms]
    counts = [len(s.scores) for s in systems]
    deviations = tuple(seed_deviation(s.scores) for s in systems)
    one_seed = min(counts) < 2
    # With one seed the variance between runs is unknown, so only that of the sentences is left.
    variances = [(d or 0.0) ** 2 / k for d, k in zip(deviations, counts, strict=True)]
    parts = [] if one_seed else [w * w * variance for variance, (_, w) in zip(variances, terms, strict=True)]
    sentences = _sentence_variance(weighed)
    if one_seed and sentences is None:
        return SeedDifference(mean, deviations=deviations, one_seed=True, how="one seed, no interval", seeds=1)
    variance = sum(parts) + (sentences or 0.0)
    spread = 0.0 if one_seed else sum(part**2 / (k - 1) for part, k in zip(parts, counts, strict=True))
    freedom = variance**2 / spread if spread * NORMAL > variance**2 else None
    error = math.sqrt(variance)
    half = quantile(freedom) * error
    how = _how(counts, None if sentences is None else _resamples(systems), freedom, one_seed)
    result = SeedDifference(
        mean, mean - half, mean + half, None, error, freedom, deviations, one_seed=one_seed, how=how, seeds=min(counts)
    )
    return replace(result, p=result.p_against(0.0))


def compares_two_seeds(counts: Sequence[int], *, pairs: bool = False) -> bool:
    """Whether a comparison has two seeds, so that its p needs the note `TWO_SEEDS`.

    `counts`: the runs of each system. Each is compared with the first, or with `pairs` with every other.
    """
    first = len(counts) if pairs else 1
    return any(min(one, other) == 2 for i, one in enumerate(counts[:first]) for other in counts[i + 1 :])


def exact_difference(value: float) -> SeedDifference:
    """A difference without randomness."""
    return SeedDifference(value, value, value, exact=True, how="exact")


def seed_deviation(scores: Sequence[float] | np.ndarray) -> float | None:
    """The standard deviation of a sample; None for fewer than two scores. It is exactly 0 if all scores are equal."""
    if len(scores) < 2:
        return None
    return float(np.std(scores, ddof=1)) if np.ptp(scores) else 0.0  # the mean of three equal numbers may be rounded


def _sentence_variance(weighed: Sequence[tuple[tuple[SeedScores, SeedScores | float], float]]) -> float | None:
    """The variance over resamples of the weighted sum of differences; None if a system has no resamples."""
    sampled = np.zeros(())
    for (one, other), weight in weighed:
        if one.sampled is None or (isinstance(other, SeedScores) and other.sampled is None):
            return None
        minus = other.sampled.mean(0) if isinstance(other, SeedScores) and other.sampled is not None else 0.0
        sampled = sampled + weight * (one.sampled.mean(0) - minus)
    return float(sampled.var(ddof=1)) if sampled.size > 1 else None


def _resamples(systems: Sequence[SeedScores]) -> int:
    return next(s.sampled.shape[1] for s in systems if s.sampled is not None)


def _how(counts: Sequence[int], samples: int | None, freedom: float | None, one_seed: bool) -> str:
    drawn = "" if samples is None else f", {plural(samples, 'resample')} of the sentences"
    if one_seed:
        return f"one seed: these runs alone{drawn}"
    several = f"{plural(sum(counts), 'run')} of {len(counts)} systems"
    seeds = several if len(counts) > 4 else f"{' and '.join(map(str, counts))} seeds"
    test = "normal" if freedom is None or freedom > 999 else f"Welch's t, {freedom:.1f} degrees of freedom"
    return f"{seeds}{drawn}, {test}"


def two_sided(t: float, freedom: float | None) -> float:
    """The probability of a value beyond ±t: of Student's t, or of the normal distribution if `freedom` is None."""
    if freedom is None:
        return math.erfc(abs(t) / math.sqrt(2))
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def quantile(freedom: float | None, level: float = LEVEL) -> float:
    """The t with a two-sided probability of `level`; 1.96 for the normal distribution at 5 %."""
    # The probability beyond t is convex in t, so Newton steps from 0 approach the root from below.
    t = 0.0
    for _ in range(100):
        step = (two_sided(t, freedom) - level) / (2 * _density(t, freedom))
        t += step
        if abs(step) < 1e-12 * (1 + t):
            break
    return t


def _density(t: float, freedom: float | None) -> float:
    if freedom is None:
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(front - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges slowly here
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction
