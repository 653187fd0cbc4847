"""Initial parameters: the distributions from which matrices are drawn.

    xavier_uniform   U(±√(6 / (fan_in + fan_out)))     Glorot and Bengio 2010; tensor2tensor, Sockeye, fairseq, JoeyNMT
    fan_in_uniform   U(±√(1 / fan_in))                 LeCun et al. 1998; torch.nn.Linear; the released program of paper 001

Each layer calls `draw` for its matrices with their fans in its method `initialise(draw)`. Biases start at zero and gains of
layer normalisation at one. `model.init` selects the distribution (`options/model.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = [
    "DRAWS",
    "Draw",
    "NothingDrawn",
    "ShapesOnly",
    "draw_linear",
    "fan_in_uniform",
    "initialise",
    "xavier_uniform",
]


class Draw(Protocol):
    """Fill a matrix in place; the fans count inputs and outputs of the linear map."""

    def __call__(self, matrix: Tensor, *, fan_in: int, fan_out: int) -> None:
        """See the class."""


def xavier_uniform(matrix: Tensor, *, fan_in: int, fan_out: int) -> None:
    """U(±√(6 / (fan_in + fan_out)))."""
    bound = (6.0 / (fan_in + fan_out)) ** 0.5
    matrix.detach().uniform_(-bound, bound)


def fan_in_uniform(matrix: Tensor, *, fan_in: int, fan_out: int) -> None:
    """U(±√(1 / fan_in)): the output of the map has one third of the variance of its input."""
    matrix.detach().uniform_(-(fan_in**-0.5), fan_in**-0.5)


DRAWS: dict[str, Draw] = {"xavier_uniform": xavier_uniform, "fan_in_uniform": fan_in_uniform}


def draw_linear(linear: nn.Linear, draw: Draw) -> None:
    """Draw the matrix of a linear map; its bias, if any, becomes zero."""
    draw(linear.weight, fan_in=linear.in_features, fan_out=linear.out_features)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def initialise(module: nn.Module, draw: Draw) -> None:
    """Draw every matrix in `module` again, by the layer's `initialise` or as a linear map. Embeddings do not change."""
    own = getattr(module, "initialise", None)
    if own is not None:
        cast(Callable[[Draw], None], own)(draw)
    for child in module.children():
        if not isinstance(child, nn.Linear):
            initialise(child, draw)
        elif own is None:
            draw_linear(child, draw)


# Those of nn.init come as a whole: a mode does not see what they call.
_RANDOM = {Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_}


class NothingDrawn(TorchFunctionMode):
    """A context in which random values are zero, for models whose parameters are read. The random state does not change."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _RANDOM:
            drawn: Tensor = args[0] if args else (kwargs or {})["tensor"]
            drawn.detach().zero_()
            return drawn
        return func(*args, **(kwargs or {}))


class ShapesOnly(NothingDrawn):
    """A context in which parameters are on the device meta: they have shapes and no values.

    Not `torch.device("meta")`: constants would be computed on it as well, for which torch imports its compiler, in two seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.empty, torch.zeros, torch.ones) and (kwargs or {}).get("device") is None:
            kwargs = {**(kwargs or {}), "device": "meta"}  # torch.nn passes device=None
        return super().__torch_function__(func, types, args, kwargs)
