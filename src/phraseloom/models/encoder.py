"""Transformer encoder: embedded source → memory (Vaswani et al. 2017, §3.1)."""

from __future__ import annotations

from torch import Tensor, nn

from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.feedforward import FeedForward
from phraseloom.layers.residual import NORM_EPSILON, Residual


class TransformerEncoderLayer(nn.Module):
    """Self-attention, then the feed-forward layer, each inside a residual."""

    def __init__(
        self, *, attention: MultiHeadAttention, feed_forward: FeedForward, residuals: tuple[Residual, Residual]
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.attention_residual, self.feed_forward_residual = residuals

    def forward(self, x_BSD: Tensor, visibility: Visibility) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        around = self.attention_residual
        x_BSD = around.leave(x_BSD, self.attention(around.enter(x_BSD), None, visibility)[0])
        around = self.feed_forward_residual
        return around.leave(x_BSD, self.feed_forward(around.enter(x_BSD)))


class TransformerEncoder(nn.Module):
    """A stack of layers; `final_norm` closes a pre-norm stack."""

    def __init__(self, layers: list[TransformerEncoderLayer], *, width: int, final_norm: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON) if final_norm else nn.Identity()

    def forward(self, x_BSD: Tensor, lengths_B: Tensor | None) -> Tensor:
        """Embedded source and its real lengths (None: nothing is padded) → memory (B, S, D)."""
        visibility = Visibility(key_length=x_BSD.shape[1], lengths_B=lengths_B, device=x_BSD.device)
        for layer in self.layers:
            x_BSD = layer(x_BSD, visibility)
        return self.norm(x_BSD)
