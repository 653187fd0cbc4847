"""Accuracy over items that are right or wrong: intervals, and the exact test of two systems on the same items.

    wilson     95 % interval of a share                                     (Wilson 1927, J. Am. Stat. Assoc. 22)
    mcnemar    two-sided p of the items that only one of two has right       (McNemar 1947, Psychometrika 12)

Both take the items to be independent; several items of one sentence are not quite that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Z = 1.959963984540054


def wilson(correct: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; (0, 1) for nothing."""
    if not total:
        return 0.0, 1.0
    share, weight = correct / total, Z * Z / total
    middle = (share + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    return middle - half if correct else 0.0, middle + half if correct < total else 1.0


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p of McNemar's test: were the discordant items a fair coin?"""
    total, least = only_first + only_second, min(only_first, only_second)
    tail = term = 1
    for k in range(least):
        term = term * (total - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / 2**total)


def compare(base: Sequence[bool], marks: Sequence[bool]) -> dict[str, Any]:
    """A system against the base on the same items, at least one: difference of the accuracies, items won and lost, p."""
    lost = sum(b and not m for b, m in zip(base, marks, strict=True))
    won = sum(m and not b for b, m in zip(base, marks, strict=True))
    return {"difference": (won - lost) / len(marks), "won": won, "lost": lost, "p": mcnemar(lost, won)}
