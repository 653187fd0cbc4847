"""Expectation maximisation of IBM model 1 and of the diagonal prior as loops over words, from the equations; no arrays.

Brown et al. 1993, §4; Dyer, Chahuneau and Smith 2013, §2-3. Every target word f_i, i = 1 … m, chooses a source word e_j,
j = 1 … n, or NULL; the other direction is the same with the sides exchanged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

Pair = tuple[Sequence[str], Sequence[str]]
NULL = ""
LOWEST, HIGHEST = 0.1, 14.0


@dataclass
class Found:
    """t[f, e], the tension, log p of the text before each M step."""

    t: dict[tuple[str, str], float]
    tension: float
    log_likelihoods: list[float] = field(default_factory=list)


def digamma(x: float) -> float:
    value = 0.0
    while x < 50:
        value -= 1 / x
        x += 1
    return value + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)


def distance(i: int, j: int, m: int, n: int) -> float:
    """|i/m - j/n|, the same number for places that are equally far from the diagonal."""
    return abs(i * n - j * m) / (m * n)


def prior(i: int, m: int, n: int, tension: float, p_null: float | None) -> list[float]:
    """δ(0), δ(1), …, δ(n) for word i of m."""
    p0 = 1 / (n + 1) if p_null is None else p_null
    powers = [math.exp(-tension * distance(i, j, m, n)) for j in range(1, n + 1)]
    return [p0, *((1 - p0) * power / sum(powers) for power in powers)]


def posterior(
    source: Sequence[str], target: Sequence[str], i: int, found: Found, p_null: float | None
) -> tuple[list[float], float]:
    """q_i0, q_i1, …, q_in, and their sum before they were made to sum to 1."""
    delta = prior(i, len(target), len(source), found.tension, p_null)
    joint = [d * found.t[target[i - 1], e] for d, e in zip(delta, (NULL, *source), strict=True)]
    return [value / sum(joint) for value in joint], sum(joint)


def estimate(
    pairs: Sequence[Pair], *, iterations: int, tension: float, p_null: float | None, alpha: float | None, optimize: bool
) -> Found:
    words = {f for _, target in pairs for f in target}
    beside = {(f, e) for source, target in pairs for f in target for e in (NULL, *source)}
    found = Found({key: 1 / len(words) for key in beside}, tension)
    for _ in range(iterations):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        links: dict[tuple[int, int, int, int], float] = defaultdict(float)
        log_likelihood = 0.0
        for source, target in pairs:
            for i in range(1, len(target) + 1):
                q, total = posterior(source, target, i, found, p_null)
                log_likelihood += math.log(total)
                for j, e in enumerate((NULL, *source)):
                    counts[target[i - 1], e] += q[j]
                    if j > 0:
                        links[i, j, len(target), len(source)] += q[j]
        found.log_likelihoods.append(log_likelihood)
        found.t = maximize({key: counts[key] for key in beside}, alpha)
        if optimize:
            found.tension = best_tension(links)
    return found


def maximize(counts: dict[tuple[str, str], float], alpha: float | None) -> dict[tuple[str, str], float]:
    totals: dict[str, float] = defaultdict(float)
    for (_, e), count in counts.items():
        totals[e] += count + (alpha or 0.0)
    if alpha is None:
        return {(f, e): count / totals[e] if totals[e] else 0.0 for (f, e), count in counts.items()}
    return {(f, e): math.exp(digamma(count + alpha)) / math.exp(digamma(totals[e])) for (f, e), count in counts.items()}


def slope(links: dict[tuple[int, int, int, int], float], tension: float) -> float:
    """d/dλ Σ q log δ(j | i, m, n), a link at a time."""
    total = 0.0
    for (i, j, m, n), q in links.items():
        weights = [math.exp(-tension * distance(i, k, m, n)) for k in range(1, n + 1)]
        mean = sum(w * -distance(i, k, m, n) for k, w in enumerate(weights, 1)) / sum(weights)
        total += q * (-distance(i, j, m, n) - mean)
    return total


def best_tension(links: dict[tuple[int, int, int, int], float]) -> float:
    low, high = LOWEST, HIGHEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(links, middle) > 0 else (low, middle)
    return (low + high) / 2


def align(source: Sequence[str], target: Sequence[str], found: Found, p_null: float | None) -> set[tuple[int, int]]:
    """Links (source word, target word) from 0, of words that are all known."""
    result = set()
    for i in range(1, len(target) + 1):
        q, _ = posterior(source, target, i, found, p_null)
        best = max(range(1, len(source) + 1), key=lambda j: (q[j], -j))
        if q[best] >= q[0]:
            result.add((best - 1, i - 1))
    return result
