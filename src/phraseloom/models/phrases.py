"""Source phrases in a model: vectors at every encoder level, mixtures of the levels for the decoder (P001).

    R^0 from the embeddings, R^i from the output of encoder layer i; encoder layer i reads R^{i-1}
    decoder layer j reads R̃^j (transparent) or R^L

In a pre-norm model the phrases of a level are made of its normalised tokens: the input of the combination network of the next
layer; at the last level, the output of the final normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phraseloom.errors import ModelError
from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.phrase_representation import PhraseRepresentation, TransparentAttention
from phraseloom.layers.segments import PhraseSegments, TensorSegmenter


@dataclass
class PhraseMemory:
    """The phrases that a decoder reads: for each layer the vectors (B, P, D), and the number of tokens in each (B, P).

    If `attention_weights` is a list, every layer appends the weights (B, H, T, P) with which its tokens read the phrases.
    """

    vectors: list[Tensor]
    sizes_BP: Tensor
    visibility: Visibility
    attention_weights: list[Tensor] | None = None

    def select(self, sentences: Tensor) -> PhraseMemory:
        """These sentences only, in this order."""
        lengths = self.visibility.lengths_B
        visibility = Visibility(
            key_length=self.visibility.key_length,
            lengths_B=None if lengths is None else lengths[sentences],
            device=self.sizes_BP.device,
        )
        return PhraseMemory([v[sentences] for v in self.vectors], self.sizes_BP[sentences], visibility)


class PhraseLevels:
    """The phrases of one batch while its encoder runs: the encoder calls `add_level` once per level, from the embeddings up.

    `vectors` (B, P, D), `weights` of the tokens (B, P, S; None if the phrase is its glance) and `tokens` (B, S, D) have one
    entry per level. If `attention_weights` is a list, every layer appends the weights (B, H, S, P) with which its tokens read
    the phrases.
    """

    def __init__(self, representations: Sequence[PhraseRepresentation], segments: PhraseSegments) -> None:
        self.representations, self.segments = representations, segments
        self.attention_weights: list[Tensor] | None = None
        self.vectors: list[Tensor] = []
        self.weights: list[Tensor | None] = []
        self.tokens: list[Tensor] = []

    def add_level(self, x_BSD: Tensor) -> Tensor:
        """The phrase vectors (B, P, D) of the next level, from its token vectors."""
        vectors, weights = self.representations[len(self.vectors)](x_BSD, self.segments)
        self.tokens.append(x_BSD)
        self.vectors.append(vectors)
        self.weights.append(weights)
        return vectors


class SourcePhrases(nn.Module):
    """The phrases of the encoder side.

    `segmenter`: None if the phrases come with the batch. `transparent`, `transparent_tokens`: None if every decoder layer
    reads the last level.
    """

    def __init__(
        self,
        *,
        segmenter: TensorSegmenter | None,
        representations: list[PhraseRepresentation],
        transparent: TransparentAttention | None,
        transparent_tokens: TransparentAttention | None,
    ) -> None:
        super().__init__()
        self.segmenter = segmenter
        self.representations: Sequence[PhraseRepresentation] = nn.ModuleList(representations)  # type: ignore[assignment]
        self.transparent, self.transparent_tokens = transparent, transparent_tokens

    def begin(self, source_BS: Tensor, lengths_B: Tensor | None, sizes_BP: Tensor | None) -> PhraseLevels:
        """The phrases of a batch, before the first level. Raises ModelError if the batch lacks the phrases it needs."""
        batch, length = source_BS.shape
        if lengths_B is None:
            lengths_B = torch.full((batch,), length, device=source_BS.device)
        if self.segmenter is not None:
            return PhraseLevels(self.representations, self.segmenter(lengths_B, length, training=self.training))
        if sizes_BP is None:
            raise ModelError(
                "this model reads phrases from trees or a phrase table, and the batch has none",
                hint="pass the trees of the source with --trees (phraseloom phrases parse writes them)",
            )
        if not torch.equal(sizes_BP.sum(1), lengths_B):
            raise ModelError("the phrases of the batch do not cover its source tokens")
        return PhraseLevels(self.representations, PhraseSegments(sizes_BP, length))

    def memory(self, levels: PhraseLevels, decoder_layers: int) -> PhraseMemory:
        """The phrases for the decoder; it collects attention weights if the encoder did."""
        last = [levels.vectors[-1]] * decoder_layers
        vectors = last if self.transparent is None else self.transparent(levels.vectors)
        attention_weights: list[Tensor] | None = None if levels.attention_weights is None else []
        return PhraseMemory(vectors, levels.segments.sizes_BP, levels.segments.visibility, attention_weights)

    def token_states(self, levels: PhraseLevels) -> list[Tensor] | None:
        """Mixtures of the token states for each decoder layer; None if all layers read the last level."""
        return None if self.transparent_tokens is None else self.transparent_tokens(levels.tokens)
