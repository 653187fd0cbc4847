"""The feed-forward network, the residual connection around every sub-layer, and dropout.

Feed-forward    FFN(x) = f(x W1 + b1) W2 + b2 (Vaswani et al. 2017, §3.3), f one of
                relu (the paper), swish x·σ(x) (Ramachandran et al. 2017; Marian), gelu x·Φ(x) (Hendrycks and Gimpel 2016)
Residual        pre:  y = x + dropout(f(LN(x))), and a final LN closes the stack (tensor2tensor, Sockeye 1)
                post: y = LN(x + dropout(f(x))) (Vaswani et al. 2017)
Dropout         dropout(x) = x · m / (1-p),  m = 1 with probability 1-p

The dropout mask costs a sixth of torch's on a CPU. There torch draws one 32-bit number and a Bernoulli test per element. Here
each 64-bit draw of the default generator serves four elements as 16-bit numbers, with a vectorised comparison of floats. p is
rounded to a multiple of 1/65536 and the scale uses the rounded value, so the expectation is exact. Other devices, other types
and compiled models use torch's dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.initialisation import Draw, draw_linear, xavier_uniform
from phraseloom.layers.packed import Packed

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": Tensor.relu_, "swish": F.silu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """Two linear maps with an activation of `ACTIVATIONS` between them; `dropout` acts on the activations."""

    def __init__(self, *, width: int, inner: int, dropout: float = 0.0, activation: str = "relu") -> None:
        super().__init__()
        self.activation = activation
        self.up, self.down, self.dropout = nn.Linear(width, inner), nn.Linear(inner, width), dropout
        self._packed: tuple[Packed | None, Packed | None] = None, None
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw both matrices; the biases become zero."""
        for linear in (self.up, self.down):
            draw_linear(linear, draw)

    def last_matrices(self) -> list[Tensor]:
        """The last matrix of the branch."""
        return [self.down.weight]

    def pack(self) -> None:
        """Lay out the weights for inference (`layers/packed.py`)."""
        self._packed = (Packed(self.up.weight, self.up.bias), Packed(self.down.weight, self.down.bias))

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        up, down = (None, None) if self.training else self._packed
        if up and down and up.fits(x, self.up.weight) and down.fits(x, self.down.weight):
            return down(up(x, activation=self.activation))
        inner = ACTIVATIONS[self.activation](self.up(x))
        return self.down(dropout(inner, self.dropout, self.training))


NORM_EPSILON = 1e-6


class Residual(nn.Module):
    """The residual connection of a sub-layer: `before` makes its input, `after` adds its output to the stream."""

    def __init__(
        self, *, width: int, norm: Literal["pre", "post"], dropout: float = 0.0, epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.norm, self.pre, self.dropout = nn.LayerNorm(width, eps=epsilon), norm == "pre", dropout

    def before(self, x: Tensor) -> Tensor:
        """The input of the sub-layer."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream `x` with the output `y` of the sub-layer."""
        x = add_dropout(x, y, self.dropout, self.training)
        return x if self.pre else self.norm(x)


LEVELS = 2**16


def keep_mask(like: Tensor, dropped: int, generator: torch.Generator | None = None) -> Tensor:
    """Zeros and ones of the shape and type of `like`; each is 0 with probability dropped / 65536."""
    count = like.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    levels = draws.view(torch.int16)[:count].to(like.dtype)
    return levels.ge_(dropped - LEVELS // 2).view(like.shape)


def _fast(x: Tensor) -> bool:
    """Whether the mask is drawn here; the compiler does not know the draws, and has torch's dropout in its graph."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each element with probability `p` and scale the others by 1/(1-p); `x` itself when not training."""
    if not training or p == 0.0:
        return x
    if not _fast(x):
        return F.dropout(x, p, True)
    dropped = round(p * LEVELS)
    return x * keep_mask(x, dropped).mul_(LEVELS / (LEVELS - dropped))


def keep_scale(like: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """What dropout multiplies `like` with: 0 with probability `p`, else 1/(1-p); drawn from `generator`."""
    if not _fast(like):
        return torch.empty_like(like).bernoulli_(1.0 - p, generator=generator).div_(1.0 - p)
    dropped = round(p * LEVELS)
    return keep_mask(like, dropped, generator).mul_(LEVELS / (LEVELS - dropped))


def add_dropout(x: Tensor, y: Tensor, p: float, training: bool) -> Tensor:
    """x + dropout(y), in one pass."""
    if not training or p == 0.0:
        return x + y
    if not _fast(y):
        return x + F.dropout(y, p, True)
    dropped = round(p * LEVELS)
    return torch.addcmul(x, y, keep_mask(y, dropped), value=LEVELS / (LEVELS - dropped))
