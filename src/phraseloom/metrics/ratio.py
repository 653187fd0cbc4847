"""Numbers that are made of a ratio of two sums over sentences, so that the sentences can be drawn anew (compare.py).

    form         number                numerator / denominator of a sentence
    ratio        Σ n / Σ d             entropy: nats / steps; share: its own / 1; accuracy: right / 1;
                                       precision, recall, F1 of a class: right / found, right / true, 2 · right / (found + true)
    exp          exp(Σ n / Σ d)        perplexity: NLL / predictions
    complement   1 − Σ n / Σ d         alignment error rate: |A∩S| + |A∩P| / |A| + |S|

Nothing out of nothing is no error and no hit: the ratio is 0, and 1 in a complement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from phraseloom.metrics.perplexity import exp_mean

Form = Literal["ratio", "exp", "complement"]


@dataclass(frozen=True)
class Ratio:
    """`factor` times the number of that form."""

    form: Form = "ratio"
    factor: float = 1.0

    def value(self, sums: np.ndarray) -> float:
        """The number of a summed numerator and denominator."""
        numerator, denominator = (float(x) for x in sums)
        if self.form == "exp":
            return self.factor * exp_mean(numerator, denominator)
        if self.form == "complement":
            return self.factor * (1 - (numerator / denominator if denominator else 1.0))
        return self.factor * (numerator / denominator if denominator else 0.0)
