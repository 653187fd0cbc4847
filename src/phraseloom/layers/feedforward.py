"""Position-wise feed-forward layer: FFN(x) = ReLU(x W1 + b1) W2 + b2 (Vaswani et al. 2017, §3.3)."""

from __future__ import annotations

from torch import Tensor, nn

from phraseloom.layers.dropout import dropout
from phraseloom.layers.initialisation import Draw, draw_linear, xavier_uniform
from phraseloom.layers.packed import Packed


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between; `dropout` acts on the inner activation."""

    def __init__(self, *, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
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
                return down(up(x, relu=True))
        inner = self.up(x).relu_()
        return self.down(dropout(inner, self.dropout, self.training))
