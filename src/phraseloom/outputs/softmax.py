"""Softmax output: p(y | hidden) = softmax(hidden Wᵀ + b), with its training loss and its scores in search.

Also the two records that every output shares: what it reads (`DecoderOutput`) and what its loss returns (`LossSums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.packed import Packed
from phraseloom.losses.cross_entropy import Smoothing, cross_entropy
from phraseloom.outputs.topk import best_columns, log_softmax_

GOLD_ROWS = 256  # rows whose logits are in memory at a time


class DecoderOutput(NamedTuple):
    """Hidden states (…, D), the attention weights that the caller asked for, and λ_word and λ_phrase (…, 2) of a gate."""

    hidden: Tensor
    attention_weights: Sequence[Tensor] = ()
    gate: Tensor | None = None

    def rows(self, rows: Tensor) -> DecoderOutput:
        """Hidden states and gate of these rows."""
        return DecoderOutput(self.hidden[rows], (), None if self.gate is None else self.gate[rows])


class LossSums(NamedTuple):
    """Sums over target tokens: `objective` (differentiable), `nll` (nats), and the number of `tokens`.

    `cosine_loss`: Σ 1 - cos(ê, e) of a continuous output in evaluation, in float64. `guided`: the guided
    loss that is in the objective, without its factor.
    """

    objective: Tensor
    nll: Tensor
    tokens: int
    cosine_loss: Tensor | None = None
    guided: Tensor | None = None


class SoftmaxOutput(nn.Module):
    """A matrix (V, D), possibly shared with the embeddings, and an optional bias.

    `label_smoothing`, `smoothing`: see `losses/cross_entropy.py`. `forbidden`: ids that are never a target. `excluded`: the
    forbidden ids whose probability is 0; they need a bias. The methods ignore the gate: all classes are alike.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        *,
        bias: bool = False,
        label_smoothing: float = 0.1,
        smoothing: Smoothing = "uniform",
        forbidden: tuple[int, ...] = (),
        excluded: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(weight.shape[0])) if bias else None
        self.label_smoothing, self.smoothing = label_smoothing, smoothing
        self.forbidden, self.excluded = forbidden, excluded
        self._packed: Packed | None = None

    def pack(self) -> None:
        """Lay out the matrix for inference (`layers/packed.py`)."""
        self._packed = Packed(self.weight, self.class_bias())

    def class_bias(self) -> Tensor | None:
        """The bias, with -inf for the excluded classes."""
        if self.bias is None or not self.excluded:
            return self.bias
        return self.bias.index_fill(0, torch.tensor(self.excluded, device=self.bias.device), float("-inf"))

    def loss(self, hidden_ND: Tensor, gold_N: Tensor, gate_N2: Tensor | None = None) -> LossSums:
        """Sums of the training loss over N real target tokens."""
        forbidden = torch.tensor(self.forbidden, device=gold_N.device) if self.forbidden else None
        objective, nll = cross_entropy(
            hidden_ND,
            self.weight,
            self.class_bias(),
            gold_N,
            epsilon=self.label_smoothing,
            smoothing=self.smoothing,
            forbidden=forbidden,
        )
        return LossSums(objective, nll, len(gold_N))

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Unnormalised scores (R, V)."""
        if self._packed is not None and self._packed.fits(hidden_RD, self.weight):
            return self._packed(hidden_RD)
        return F.linear(hidden_RD, self.weight, self.class_bias())

    def log_probs(self, hidden_RD: Tensor, gate_R2: Tensor | None = None) -> Tensor:
        """log p of every class, (R, V)."""
        return log_softmax_(self.logits(hidden_RD))

    def candidates(self, hidden_RD: Tensor, count: int, gate_R2: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p and ids of the `count` best classes of each row, (R, count) each, best first; ties go to the lower id."""
        return best_columns(self.log_probs(hidden_RD), count)

    def gold_log_probs(self, hidden_ND: Tensor, gold_N: Tensor, gate_N2: Tensor | None = None) -> Tensor:
        """log p of the gold class of each row, (N,), without a tensor of N × V."""
        parts = [
            self.log_probs(h).gather(1, g[:, None])[:, 0]
            for h, g in zip(hidden_ND.split(GOLD_ROWS), gold_N.split(GOLD_ROWS), strict=True)
        ]
        return torch.cat(parts) if parts else hidden_ND.new_zeros(0)
