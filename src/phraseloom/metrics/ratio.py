"""Numbers that are made of a ratio of two sums over sentences, so that the sentences can be drawn anew (compare.py).

ratio        Σ numerator / Σ denominator           entropy (nats, steps), share (that of a sentence, 1), accuracy (right, 1)
exp          exp of it                             perplexity (NLL, predictions)
complement   1 − it                                alignment error rate (|A∩S| + |A∩P|, |A| + |S|)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from phraseloom.metrics.perplexity import exp_mean

Form = Literal["ratio", "exp", "complement"]


@dataclass(frozen=True)
class Ratio:
    """`factor` times the number of that form; of the two sums, or of rows of them."""

    form: Form = "ratio"
    factor: float = 1.0

    def value(self, sums: np.ndarray) -> float:
        """The number of a numerator and a denominator; NaN where the denominator is zero."""
        numerator, denominator = (float(x) for x in sums)
        if denominator == 0:
            return float("nan")
        if self.form == "exp":
            return self.factor * exp_mean(numerator, denominator)
        ratio = numerator / denominator
        return self.factor * (1 - ratio if self.form == "complement" else ratio)
