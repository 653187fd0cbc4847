"""Cross-entropy with class weights: training of fertility gives more weight to phrases, which are rare (spec §4.8).

loss = Σ_n w(y_n) · (−log p(y_n)) / Σ_n w(y_n)         w = (1, 1, 3, 3) for four classes, (1, 3) for two
"""

from __future__ import annotations

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
