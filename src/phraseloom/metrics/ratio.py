"""Numbers from a ratio of two sums over sentences, which can be resampled (compare.py), and tests of accuracies.

    form         number                numerator / denominator of a sentence
    ratio        Σ n / Σ d             entropy: nats / steps; share: its own / 1; accuracy: right / 1; of a class, precision:
                                       right / predicted, recall: right / true, F1: 2 · right / (predicted + true)
    exp          exp(Σ n / Σ d)        perplexity: NLL / predictions
    complement   1 − Σ n / Σ d         alignment error rate: |A∩S| + |A∩P| / |A| + |S|

0/0 is neither an error nor a hit: the ratio is 0, and in a complement it is 1.

    wilson     95 % interval of an accuracy                                     (Wilson 1927, J. Am. Stat. Assoc. 22)
    mcnemar    exact two-sided p for items that only one of two systems has right (McNemar 1947, Psychometrika 12)

Both assume independent items; several items of one sentence are only roughly independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from phraseloom.metrics.perplexity import exp_mean

Z = 1.959963984540054


def wilson(correct: float, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the fraction correct / total; (0, 1) if `total` is 0."""
    if not total:
        return 0.0, 1.0
    share, weight = correct / total, Z * Z / total
    middle = (share + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    return middle - half if correct else 0.0, middle + half if correct < total else 1.0


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test, from the numbers of items that only one system has right."""
    total, least = only_first + only_second, min(only_first, only_second)
    tail = term = 1
    for k in range(least):
        term = term * (total - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / 2**total)


def compare(base: Sequence[bool], marks: Sequence[bool]) -> dict[str, Any]:
    """Compare a system with the base on the same items, at least one: difference of accuracies, items won and lost, p."""
    lost = sum(b and not m for b, m in zip(base, marks, strict=True))
    won = sum(m and not b for b, m in zip(base, marks, strict=True))
    return {"difference": (won - lost) / len(marks), "won": won, "lost": lost, "p": mcnemar(lost, won)}


Form = Literal["ratio", "exp", "complement"]


@dataclass(frozen=True)
class Ratio:
    """A number of the given form, times `factor`."""

    form: Form = "ratio"
    factor: float = 1.0

    def value(self, sums: np.ndarray) -> float:
        """The number for the sums of numerators and denominators."""
        numerator, denominator = (float(x) for x in sums)
        if self.form == "exp":
            return self.factor * exp_mean(numerator, denominator)
        if self.form == "complement":
            return self.factor * (1 - (numerator / denominator if denominator else 1.0))
        return self.factor * (numerator / denominator if denominator else 0.0)


KEY = "by_sentence"


def plain(value: Any, by_sentence: bool = False) -> Any:
    """Plain data, without the sums of each sentence (keys `by_sentence`, at any depth) unless `by_sentence` is True."""
    if isinstance(value, dict):
        return {name: plain(inner, by_sentence) for name, inner in value.items() if by_sentence or name != KEY}
    if isinstance(value, list) and not by_sentence:
        return [plain(inner) for inner in value]
    return value
