"""Scores of sentences that another program computed (COMET, a human rating …): a file with one number per line.

The score of a text is the mean of its sentences, and is resampled like any other (`metrics/compare.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from phraseloom.errors import DataError, plural
from phraseloom.metrics.bleu import CorpusScore
from phraseloom.text.lines import read_lines

__all__ = ["GivenScores", "digits_of", "read_scores"]

MEAN = "|mean of given scores"  # in the signature


class GivenScores:
    """The mean of given scores; a sentence has the row (score, 1). Higher is better."""

    higher_is_better = True

    def __init__(self, name: str) -> None:
        self.name, self.signature = name, f"{name}{MEAN}"

    def value(self, sums: np.ndarray) -> float:
        """The mean of summed rows."""
        return float(sums[0] / sums[1])

    def score(self, sums: np.ndarray) -> CorpusScore:
        """The mean, with its signature."""
        return CorpusScore(self.name, self.value(sums), self.signature)


def digits_of(signature: str, values: Iterable[float]) -> int:
    """Decimal places of a metric's scores as text: 4 for given scores on a small scale (COMET: 0 to 1), else 2."""
    return 4 if MEAN in signature and all(abs(value) < 10 for value in values) else 2


def read_scores(path: str | Path, lines: int) -> np.ndarray:
    """The rows of a file of scores, float64 (`lines`, 2). Raises DataError (file, line) and FileProblem."""
    values: list[float] = []
    for number, text in enumerate(read_lines(path), start=1):
        try:
            values.append(float(text))
        except ValueError:
            values.append(math.nan)
        if not math.isfinite(values[-1]):
            hint = "write one number per line, the score of that sentence"
            raise DataError(f"{text.strip()[:40]!r} is not a finite number", file=path, line=number, hint=hint)
    if len(values) != lines:
        raise DataError(f"{plural(len(values), 'score')}, but the translation has {plural(lines, 'line')}", file=path)
    if not math.isfinite(sum(values)):
        raise DataError("the sum of these scores is not finite", file=path)
    return np.stack([np.array(values, np.float64), np.ones(lines)], axis=1)
