"""Means over runs that differ in their seed: of single numbers, of whole JSON objects, of learning curves.

mean = Σ x / n,   deviation = √(Σ (x − mean)² / (n − 1))       (that of a sample; None for one run)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phraseloom.report.history import Curve

MOST_POINTS = 120


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample; None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def average(trees: Sequence[Any]) -> Any:
    """JSON values of one shape, number by number: their mean. What is not a number is that of the first.

    None where one of them has None. Raises ValueError for different shapes.
    """
    return _leafwise(trees, mean)


def spread(trees: Sequence[Any]) -> Any:
    """The same with the deviation in place of the mean."""
    return _leafwise(trees, deviation)


def _leafwise(trees: Sequence[Any], of: Callable[[Sequence[float]], float | None]) -> Any:
    first = trees[0]
    if any(tree is None for tree in trees):
        return None
    if isinstance(first, dict):
        if any(not isinstance(t, dict) or set(t) != set(first) for t in trees):
            raise ValueError("objects of different keys have no mean")
        return {key: _leafwise([t[key] for t in trees], of) for key in first}
    if isinstance(first, list | tuple):
        if len({len(t) for t in trees}) != 1:
            raise ValueError("lists of different lengths have no mean")
        return [_leafwise(some, of) for some in zip(*trees, strict=True)]
    if _is_number(first):
        return of(list(trees))
    return first


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def common_curve(curves: Sequence[Curve]) -> dict[str, list[float] | None]:
    """The curves of several runs as one, at the places that all of them have: updates, values (mean), deviation."""
    curves = [c for c in curves if len(c[0])]
    if not curves:
        return {"updates": [], "values": [], "deviation": None}
    places = sorted(set.intersection(*(set(updates.tolist()) for updates, _ in curves)))
    rows = [[dict(zip(u.tolist(), v.tolist(), strict=True))[p] for p in places] for u, v in curves]
    columns = list(zip(*rows, strict=True))
    spreads = [deviation(c) or 0.0 for c in columns] if len(curves) > 1 else None
    return {"updates": places, "values": [mean(c) for c in columns], "deviation": spreads}


def thin(curve: Curve, last: float, *, points: int = MOST_POINTS) -> Curve:
    """The mean of a noisy curve in at most `points` equal intervals of 0 … `last`, each put at its end.

    Curves of runs of one length become comparable place by place; a short curve stays as it is.
    """
    updates, values = curve
    if len(updates) <= points:
        return curve
    width = max(1.0, math.ceil(last / points))
    groups = np.ceil(updates / width)
    places = np.unique(groups)
    means = np.array([values[groups == g].mean() for g in places])
    return np.minimum(places * width, last), means
