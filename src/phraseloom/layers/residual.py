"""The wiring around every sub-layer f, with layer normalisation before it or after the sum.

    pre:  y = x + dropout(f(LN(x)))          (a final LN closes the stack)
    post: y = LN(x + dropout(f(x)))

Source: Vaswani et al. 2017 (post); tensor2tensor and Sockeye 1 (pre); spec §1.8, §6.1.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from phraseloom.layers.dropout import add_dropout

NORM_EPSILON = 1e-6


class Residual(nn.Module):
    """`enter` gives what the sub-layer reads; `leave` joins what it returned to the stream."""

    def __init__(
        self, *, width: int, norm: Literal["pre", "post"], dropout: float = 0.0, epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.norm, self.pre, self.dropout = nn.LayerNorm(width, eps=epsilon), norm == "pre", dropout

    def enter(self, x: Tensor) -> Tensor:
        """The input of the sub-layer."""
        return self.norm(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream after the sub-layer that returned `y`."""
        x = add_dropout(x, y, self.dropout, self.training)
        return x if self.pre else self.norm(x)
