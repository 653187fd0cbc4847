"""Position-wise feed-forward layer: FFN(x) = f(x W1 + b1) W2 + b2 (Vaswani et al. 2017, §3.3).

f   relu (the paper), swish x·σ(x) (Ramachandran et al. 2017; Marian), gelu x·Φ(x) (Hendrycks and Gimpel 2016)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.dropout import dropout
from phraseloom.layers.initialisation import Draw, draw_linear, xavier_uniform
from phraseloom.layers.packed import Packed

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": Tensor.relu_, "swish": F.silu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """Two linear maps with an activation of `ACTIVATIONS` between; `dropout` acts on what it returns."""

    def __init__(self, *, width: int, inner: int, dropout: float = 0.0, activation: str = "relu") -> None:
        super().__init__()
        self.activation = activation
        self.up, self.down, self.dropout = nn.Linear(width, inner), nn.Linear(inner, width), dropout
        self._packed: tuple[Packed, Packed] | None = None
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw both matrices; the biases become zero."""
        for linear in (self.up, self.down):
            draw_linear(linear, draw)

    def last_matrices(self) -> list[Tensor]:
        """What the branch ends in."""
        return [self.down.weight]

    def pack(self) -> None:
        """Lay out the weights for inference (`layers/packed.py`)."""
        self._packed = (Packed(self.up.weight, self.up.bias), Packed(self.down.weight, self.down.bias))

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        if self._packed is not None and not self.training:
            up, down = self._packed
            if up.fits(x, self.up.weight) and down.fits(x, self.down.weight):
                return down(up(x, activation=self.activation))
        inner = ACTIVATIONS[self.activation](self.up(x))
        return self.down(dropout(inner, self.dropout, self.training))
