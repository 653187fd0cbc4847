"""Encoders without recurrence: embedded source → encoder output.

TransformerEncoder  self-attention (Vaswani et al. 2017, §3.1), optionally with phrases in every layer (P001 §3.4)
NoEncoder           no encoder: the decoder attends to the embeddings (P004)
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
from phraseloom.models.recompute import run_layer


class Encoded(NamedTuple):
    """Encoder output: states (B, S, D), and the final state of every layer of a recurrent encoder."""

    states_BSD: Tensor
    final: list[State] | None = None


class TransformerEncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual connection; with a `combination` the tokens read phrases first.

    Without `feed_forward`, the layer ends with its attention (P002 §3.3, where a convolution takes the place of that layer).
    """

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward | None,
        residuals: Sequence[Residual],
        combination: AttentiveCombination | None = None,
    ) -> None:
        super().__init__()
        self.combination = combination
        self.attention, self.feed_forward = attention, feed_forward
        self.attention_residual, *rest = residuals
        self.feed_forward_residual = rest[0] if rest else None

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
            before = self.combination.before(x_BSD)
            keys = self.combination.project_phrases(phrases.add_level(before), phrases.segments.visibility)
            x_BSD, phrase_weights = self.combination(x_BSD, keys, before=before)
            if phrases.attention_weights is not None:
                phrases.attention_weights.append(phrase_weights)
        residual = self.attention_residual
        projected, weights = self.attention(residual.before(x_BSD), None, visibility, need_weights=need_weights)
        x_BSD = residual.after(x_BSD, projected)
        if self.feed_forward is not None and self.feed_forward_residual is not None:
            residual = self.feed_forward_residual
            x_BSD = residual.after(x_BSD, self.feed_forward(residual.before(x_BSD)))
        return x_BSD, weights


class TransformerEncoder(nn.Module):
    """A stack of layers; `final_norm` closes a pre-norm stack."""

    def __init__(
        self, layers: list[TransformerEncoderLayer], *, width: int, final_norm: bool, epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.checkpoints_layers = False
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
        attention_weights: list[Tensor] | None = None,
    ) -> Encoded:
        """Embedded source and its real lengths (None if nothing is padded) → states (B, S, D).

        Adds the phrase vectors of every level to `phrases`, and the self-attention weights of every layer to
        `attention_weights`.
        """
        length = x_BSD.shape[1]
        visibility = Visibility(key_length=length, lengths_B=lengths_B, query_length=length, device=x_BSD.device)
        for layer in self.layers:
            need = attention_weights is not None
            again = self.checkpoints_layers and not need
            x_BSD, weights = run_layer(layer, x_BSD, visibility, phrases, checkpointed=again, need_weights=need)
            if attention_weights is not None:
                attention_weights.append(weights)
        x_BSD = self.norm(x_BSD)
        if phrases is not None:
            phrases.add_level(x_BSD)
        return Encoded(x_BSD)


class NoEncoder(nn.Module):
    """The embedded source is the encoder output, as it is or (`norm`) normalised."""

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
        attention_weights: list[Tensor] | None = None,
    ) -> Encoded:
        """As `TransformerEncoder.forward`; phrases have one level, that of the embeddings."""
        x_BSD = x_BSD if self.norm is None else self.norm(x_BSD)
        if phrases is not None:
            phrases.add_level(x_BSD)
        return Encoded(x_BSD)
