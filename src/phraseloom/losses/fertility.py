"""Cross-entropy with class weights: training of fertility gives more weight to phrases, which are rare.

loss = Σ_n w(y_n) · (−log p(y_n)) / Σ_n w(y_n)         w = (1, 1, 3, 3) for four classes, (1, 3) for two

If a share s(c) of each class was kept for training, the optimum is p(c) ∝ s(c) w(c) p(c | e). `prior_shift` is the logarithm
of that factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

CLASS_WEIGHTS: dict[int, tuple[float, ...]] = {4: (1.0, 1.0, 3.0, 3.0), 2: (1.0, 3.0)}
"""The weights of the released program, by the number of classes."""


class WeightedSums(NamedTuple):
    """The sum of the weighted losses (nats) and the sum of the weights; the loss is their quotient."""

    objective: Tensor
    weight: Tensor


def weighted_cross_entropy(logits_NC: Tensor, labels_N: Tensor, weights_C: Tensor) -> WeightedSums:
    """The sums over N tokens with logits of C classes, their classes (int64) and the weight of each class."""
    objective = F.cross_entropy(logits_NC, labels_N, weights_C, reduction="sum")
    return WeightedSums(objective, weights_C[labels_N].sum())


def prior_shift(kept: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """log(s_c w_c) of each class, less that of the first one, which no probability depends on; s_c, w_c > 0."""
    logs = [math.log(share * weight) for share, weight in zip(kept, weights, strict=True)]
    return tuple(value - logs[0] for value in logs)
