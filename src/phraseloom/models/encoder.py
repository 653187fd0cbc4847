"""Encoders without recurrence: embedded source → memory.

TransformerEncoder  self-attention (Vaswani et al. 2017, §3.1), with phrases in every layer where they are asked for (P001 §3.4)
NoEncoder           none: the decoder attends to the embeddings themselves (P004; spec §6.1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.feedforward import NORM_EPSILON, FeedForward, Residual
from phraseloom.layers.phrase_representation import AttentiveCombination
from phraseloom.layers.recurrent import State
from phraseloom.models.phrases import PhraseLevels


class Encoded(NamedTuple):
    """What an encoder makes of a source: states (B, S, D), and of a recurrent one the final state of every layer."""

    states_BSD: Tensor
    final: list[State] | None = None


class TransformerEncoderLayer(nn.Module):
    """Self-attention, then the feed-forward layer, each inside a residual; before them the tokens take up phrases, where
    there is a `combination`."""

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        residuals: tuple[Residual, Residual],
        combination: AttentiveCombination | None = None,
    ) -> None:
        super().__init__()
        self.combination = combination
        self.attention, self.feed_forward = attention, feed_forward
        self.attention_residual, self.feed_forward_residual = residuals

    def forward(
        self,
        x_BSD: Tensor,
        visibility: Visibility,
        phrases: PhraseLevels | None = None,
        *,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, S, D) → (B, S, D) and the attention weights in the layout of `attention.structure`, which may be None without
        `need_weights`."""
        if self.combination is not None and phrases is not None:
            entered = self.combination.enter(x_BSD)
            keys = self.combination.remember(phrases.make(entered), phrases.segments.visibility)
            x_BSD, of_phrases = self.combination(x_BSD, keys, entered=entered)
            if phrases.kept is not None:
                phrases.kept.append(of_phrases)
        around = self.attention_residual
        attended, weights = self.attention(around.enter(x_BSD), None, visibility, need_weights=need_weights)
        x_BSD = around.leave(x_BSD, attended)
        around = self.feed_forward_residual
        return around.leave(x_BSD, self.feed_forward(around.enter(x_BSD))), weights


class TransformerEncoder(nn.Module):
    """A stack of layers; `final_norm` closes a pre-norm stack."""

    def __init__(
        self, layers: list[TransformerEncoderLayer], *, width: int, final_norm: bool, epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.layers: Sequence[TransformerEncoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width, eps=epsilon) if final_norm else nn.Identity()

    @property
    def structures(self) -> list[Structure]:
        """What the weights of each self-attention mean, layer by layer."""
        return [layer.attention.structure for layer in self.layers]

    def forward(
        self,
        x_BSD: Tensor,
        lengths_B: Tensor | None,
        *,
        phrases: PhraseLevels | None = None,
        kept: list[Tensor] | None = None,
    ) -> Encoded:
        """Embedded source and its real lengths (None: nothing is padded) → memory (B, S, D).

        `phrases` gets the phrase vectors of every level, and the weights with which tokens read them where it keeps these. The
        weights of the self-attention of every layer are added to `kept`.
        """
        length = x_BSD.shape[1]
        visibility = Visibility(key_length=length, lengths_B=lengths_B, query_length=length, device=x_BSD.device)
        for layer in self.layers:
            x_BSD, weights = layer(x_BSD, visibility, phrases, need_weights=kept is not None)
            if kept is not None:
                kept.append(weights)
        x_BSD = self.norm(x_BSD)
        if phrases is not None:
            phrases.make(x_BSD)
        return Encoded(x_BSD)


class NoEncoder(nn.Module):
    """The embedded source is the memory, as it is or (`norm`) normalised."""

    structures: Sequence[Structure] = ()

    def __init__(self, norm: nn.LayerNorm | None = None) -> None:
        super().__init__()
        self.norm = norm

    def forward(
        self,
        x_BSD: Tensor,
        lengths_B: Tensor | None,
        *,
        phrases: PhraseLevels | None = None,
        kept: list[Tensor] | None = None,
    ) -> Encoded:
        """As of the other encoders; phrases have the one level of the embeddings."""
        x_BSD = x_BSD if self.norm is None else self.norm(x_BSD)
        if phrases is not None:
            phrases.make(x_BSD)
        return Encoded(x_BSD)
