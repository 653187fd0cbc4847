"""Transformer encoder: embedded source → memory (Vaswani et al. 2017, §3.1)."""

from __future__ import annotations

from collections.abc import Sequence

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

    def forward(self, x_BSD: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """(B, S, D) → (B, S, D) and the attention weights in the layout of `attention.structure`."""
        around = self.attention_residual
        attended, weights = self.attention(around.enter(x_BSD), None, visibility)
        x_BSD = around.leave(x_BSD, attended)
        around = self.feed_forward_residual
        return around.leave(x_BSD, self.feed_forward(around.enter(x_BSD))), weights


class TransformerEncoder(nn.Module):
    """A stack of layers; `final_norm` closes a pre-norm stack."""

    def __init__(self, layers: list[TransformerEncoderLayer], *, width: int, final_norm: bool) -> None:
        super().__init__()
        self.layers: Sequence[TransformerEncoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON) if final_norm else nn.Identity()

    def forward(self, x_BSD: Tensor, lengths_B: Tensor | None, *, kept: list[Tensor] | None = None) -> Tensor:
        """Embedded source and its real lengths (None: nothing is padded) → memory (B, S, D).

        The attention weights of every layer are added to `kept`.
        """
        length = x_BSD.shape[1]
        visibility = Visibility(key_length=length, lengths_B=lengths_B, query_length=length, device=x_BSD.device)
        for layer in self.layers:
            x_BSD, weights = layer(x_BSD, visibility)
            if kept is not None:
                kept.append(weights)
        return self.norm(x_BSD)
