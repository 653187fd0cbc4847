"""The output of concatenated heads: y = concat(head_1 … head_H) Wo + b, the end of homogeneous and heterogeneous attention.

Only models that ask for biases in attention have b.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.initialisation import Draw, xavier_uniform
from phraseloom.layers.packed import Packed, linear


class ConcatenatedHeads(nn.Module):
    """The output projection Wo (D × D), `taps` of them side by side for interleaved attention.

    `dropout` is that of the attention weights, which the block applies.
    """

    def __init__(
        self, *, width: int, structure: Structure, dropout: float = 0.0, bias: bool = False, taps: int = 1
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.weight = nn.Parameter(torch.empty(width, taps * width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self._packed: Packed | None = None
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw the matrix."""
        draw(self.weight, fan_in=self.weight.shape[1], fan_out=self.weight.shape[0])

    def last_matrices(self) -> list[Tensor]:
        """What the branch ends in."""
        return [self.weight]

    def matrices(self) -> dict[str, Tensor]:
        """Wo (D, D) as a view of the parameter, used as x @ Wo."""
        return {"Wo": self.weight.t()}

    def pack(self) -> None:
        """Lay out the matrix for inference (`layers/packed.py`)."""
        self._packed = Packed(self.weight, self.bias)

    def forward(self, contexts_BHQE: Tensor) -> Tensor:
        """Contexts of the heads → output (B, Q, D)."""
        return linear(contexts_BHQE.transpose(1, 2).flatten(2), self.weight, self.bias, self._packed)
