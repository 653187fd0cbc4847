"""Soft local reordering of a source before it is encoded (NPMT, Huang et al. 2018, §3.2).

    g_t = σ(W vec(e_{t-w} … e_{t+w}) + b) ∈ R^{2w+1},   h_t = tanh(Σ_i g_{t,i} e_{t-w+i})

One scalar gate for each position in a window of 2w+1 tokens, centred on t; vectors outside the sentence are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.errors import ConfigError
from phraseloom.layers.initialisation import Draw, draw_linear, xavier_uniform


class SoftReordering(nn.Module):
    """W is (K, K·D) for a window of K tokens (odd), drawn by `model.init`; b starts at zero."""

    def __init__(self, *, width: int, window: int = 7) -> None:
        super().__init__()
        if window < 1 or window % 2 == 0:
            raise ConfigError(f"a reordering window of {window} tokens has no middle", hint="choose an odd number")
        self.width, self.window = width, window
        self.gates = nn.Linear(window * width, window)
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw W; b becomes zero."""
        draw_linear(self.gates, draw)

    def forward(self, x_BSD: Tensor, lengths_B: Tensor | None) -> Tensor:
        """(B, S, D) → (B, S, D); `lengths_B`: real tokens (None if nothing is padded). Padded positions become zero."""
        length, half = x_BSD.shape[1], self.window // 2
        padding_BS1: Tensor | None = None
        if lengths_B is not None:
            padding_BS1 = (torch.arange(length, device=x_BSD.device) >= lengths_B[:, None])[:, :, None]
            x_BSD = x_BSD.masked_fill(padding_BS1, 0.0)
        wide_BSD = F.pad(x_BSD, (0, 0, half, half))
        taps = self.gates.weight.view(self.window, self.window, self.width).transpose(1, 2)
        gates_BKS = F.conv1d(wide_BSD.transpose(1, 2), taps, self.gates.bias).sigmoid()
        mixed_BSD = torch.zeros_like(x_BSD)
        for place, gate_BS in enumerate(gates_BKS.unbind(1)):
            mixed_BSD = torch.addcmul(
                mixed_BSD, gate_BS[:, :, None].to(x_BSD.dtype), wide_BSD[:, place : place + length]
            )
        mixed_BSD = mixed_BSD.tanh()
        return mixed_BSD if padding_BS1 is None else mixed_BSD.masked_fill(padding_BS1, 0.0)


class ReorderedEncoder(nn.Module):
    """Layers of soft reordering before any encoder."""

    def __init__(self, encoder: Any, reorderings: list[SoftReordering]) -> None:
        super().__init__()
        self.encoder = encoder
        self.reorderings: Sequence[SoftReordering] = nn.ModuleList(reorderings)  # type: ignore[assignment]

    @property
    def structures(self) -> Any:
        """See the encoder."""
        return self.encoder.structures

    @property
    def layers(self) -> Any:
        """See the encoder."""
        return self.encoder.layers

    def forward(self, x_BSD: Tensor, lengths_B: Tensor | None, **kwargs: Any) -> Any:
        """See the encoder."""
        for reordering in self.reorderings:
            x_BSD = reordering(x_BSD, lengths_B)
        return self.encoder(x_BSD, lengths_B, **kwargs)
