"""Label-smoothed cross-entropy, one class at a time."""

from __future__ import annotations

import math

import numpy as np


def smoothed_loss(
    logits: np.ndarray, gold: int, *, epsilon: float, smoothing: str, forbidden: tuple[int, ...] = ()
) -> float:
    """The loss of one position."""
    classes = len(logits)
    top = max(logits)
    normalizer = top + math.log(sum(math.exp(z - top) for z in logits))
    total = 0.0
    for v in range(classes):
        log_p = logits[v] - normalizer
        if smoothing == "uniform":
            q = epsilon / classes + (1 - epsilon if v == gold else 0.0)
        elif smoothing == "t2t":
            q = 1 - epsilon if v == gold else epsilon / (classes - 1)
        else:
            others = classes - 1 - len(forbidden)
            q = 1 - epsilon if v == gold else 0.0 if v in forbidden else epsilon / others
        total -= q * log_p
        if smoothing == "kl" and q > 0:
            total += q * math.log(q)
    return total
