"""Length penalties: score(Y) = log P(Y) / divisor(|Y|), where |Y| counts EOS.

Wu et al. (2016, eq. 14):  divisor = ((5 + |Y|) / 6)^alpha
Sockeye:                   divisor = ((beta + |Y|) / (beta + 1))^alpha
none:                      divisor = 1

Each divisor is positive and does not shrink as |Y| grows, and extending a prefix does not raise its log P (log p ≤ 0). So no
extension of a prefix with log-probability L to at most `longest` tokens scores above L / divisor(longest). The exact stopping
rule of beam search uses this bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from phraseloom.options.decoding import PenaltyConfig


class LengthPenalty(Protocol):
    """Divides a log-probability by a function of the length."""

    def divisor(self, length: Tensor) -> Tensor:
        """The divisor (float64) for outputs of `length` tokens, including EOS."""
        ...


def _power(base: Tensor, exponent: float) -> Tensor:
    """base ^ exponent, each number by itself: torch rounds a number in a long tensor and one in a short tensor differently."""
    return torch.tensor([x**exponent for x in base.flatten().tolist()], dtype=base.dtype, device=base.device).view_as(
        base
    )


@dataclass(frozen=True)
class WuPenalty:
    """((5 + |Y|) / 6)^alpha."""

    alpha: float

    def divisor(self, length: Tensor) -> Tensor:
        """See LengthPenalty."""
        return _power((5.0 + length) / 6.0, self.alpha)


@dataclass(frozen=True)
class SockeyePenalty:
    """((beta + |Y|) / (beta + 1))^alpha."""

    alpha: float
    beta: float

    def divisor(self, length: Tensor) -> Tensor:
        """See LengthPenalty."""
        return _power((self.beta + length) / (self.beta + 1.0), self.alpha)


@dataclass(frozen=True)
class NoPenalty:
    """No length penalty: the divisor is 1."""

    def divisor(self, length: Tensor) -> Tensor:
        """See LengthPenalty."""
        return torch.ones_like(length)


PENALTIES: dict[str, Callable[..., LengthPenalty]] = {"wu": WuPenalty, "sockeye": SockeyePenalty, "none": NoPenalty}


def build_penalty(config: PenaltyConfig) -> LengthPenalty:
    """The penalty of a configuration."""
    return PENALTIES[config.kind](**config.model_dump(exclude={"kind"}))


__all__ = ["PENALTIES", "LengthPenalty", "NoPenalty", "PenaltyConfig", "SockeyePenalty", "WuPenalty", "build_penalty"]
