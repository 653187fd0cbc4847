"""The translation model: encoder, decoder and output put together; what training and search talk to."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.models import targets
from phraseloom.models.decoder import DecoderState, Memory
from phraseloom.models.phrases import PhraseLevels, SourcePhrases
from phraseloom.outputs.softmax import LossSums, SoftmaxOutput


class Looks(NamedTuple):
    """For each use of attention and each layer the weights (B, H, J·Q, G·K) and the structure that says what they are.

    `phrases`: the phrases of every level of the encoder and how much each token counts in them, where the model has any.
    """

    encoder_self: list[tuple[Tensor, Structure]]
    decoder_self: list[tuple[Tensor, Structure]]
    cross: list[tuple[Tensor, Structure]]
    phrases: PhraseLevels | None = None


class TranslationModel(nn.Module):
    """p(target | source) as a product over target tokens, each given the source and the target before it.

    `encoder`, `decoder`: entries of ENCODERS and DECODERS of `models/build.py`.
    """

    def __init__(
        self,
        *,
        source_embedding: TokenEmbedding,
        target_embedding: TokenEmbedding,
        encoder: Any,
        decoder: Any,
        output: SoftmaxOutput,
        phrases: SourcePhrases | None = None,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.encoder, self.decoder, self.output, self.phrases = encoder, decoder, output, phrases

    @property
    def needs_phrases(self) -> bool:
        """Whether the phrases of a source must be given, because they do not follow from its length."""
        return self.phrases is not None and self.phrases.segmenter is None

    def encode(self, source_BS: Tensor, lengths_B: Tensor | None, phrase_sizes_BP: Tensor | None = None) -> Memory:
        """Source ids with EOS, right-padded, and their real lengths (EOS counted) → memory.

        `phrase_sizes_BP` (see `Batch`) where the model `needs_phrases`; else it is not looked at.
        """
        if lengths_B is not None and bool((lengths_B == source_BS.shape[1]).all()):
            lengths_B = None
        return self._encode(source_BS, lengths_B, phrase_sizes_BP)[0]

    def _encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        phrase_sizes_BP: Tensor | None,
        kept: list[Tensor] | None = None,
    ) -> tuple[Memory, PhraseLevels | None]:
        levels = None if self.phrases is None else self.phrases.begin(source_BS, lengths_B, phrase_sizes_BP)
        states, final = self.encoder(self.source_embedding(source_BS), lengths_B, phrases=levels, kept=kept)
        if self.phrases is None or levels is None:
            return Memory(states, lengths_B, final=final), None
        mixed, phrases = self.phrases.token_states(levels), self.phrases.memory(levels, len(self.decoder.layers))
        return Memory(states, lengths_B, mixed, phrases), levels

    def decode(
        self, target_in_BT: Tensor, memory: Memory, *, keep_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Decoder input ids (BOS first) → hidden states (B, T, D), and if asked for the weights of every cross-attention.

        Weights are (B, H, J·T, G·S), in the layout of the attention's structure; (B, H, T, S) for token attention.
        """
        kept: list[Tensor] = []
        embedded_BTD = self.target_embedding(target_in_BT)
        hidden_BTD: Tensor = self.decoder(embedded_BTD, memory, kept_cross=kept if keep_weights else None)
        return hidden_BTD, kept

    def look(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        target_in_BT: Tensor,
        phrase_sizes_BP: Tensor | None = None,
    ) -> Looks:
        """The weights of every attention of every layer for given sentence pairs (see `encode` and `decode`)."""
        of_source: list[Tensor] = []
        own: list[Tensor] = []
        cross: list[Tensor] = []
        memory, levels = self._encode(source_BS, lengths_B, phrase_sizes_BP, of_source)
        self.decoder(self.target_embedding(target_in_BT), memory, kept_own=own, kept_cross=cross)
        return Looks(
            list(zip(of_source, self.encoder.structures, strict=True)),
            list(zip(own, self.decoder.own_structures, strict=True)),
            list(zip(cross, self.decoder.cross_structures, strict=True)),
            levels,
        )

    def forward(self, batch: Batch) -> LossSums:
        """The sums of the training loss over the real target tokens of a batch (same as `loss`)."""
        memory = self.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        hidden_BTD, _ = self.decode(batch.target_in_BT, memory)
        return targets.loss(self.output, hidden_BTD, batch)

    loss = forward

    def score(self, batch: Batch) -> Tensor:
        """log p of every target token, (B, T); zero beyond the length. Their sum is the score of the translation."""
        memory = self.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        hidden_BTD, _ = self.decode(batch.target_in_BT, memory)
        return targets.log_probs(self.output, hidden_BTD, batch)

    def start(self, memory: Memory, *, beam: int = 1, max_length: int = 64) -> DecoderState:
        """The state of search before the first step, `beam` hypotheses a sentence."""
        state: DecoderState = self.decoder.start(memory, beam=beam, capacity=max_length)
        return state

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, list[Tensor]]:
        """Feed one token to every row: hidden (R, D), and the cross-attention (R, H, J, G·S) of every layer."""
        embedded_R1D = self.target_embedding(tokens_R[:, None], first=state.step)
        hidden_RD, weights = self.decoder.step(embedded_R1D[:, 0], state)
        return hidden_RD, weights
