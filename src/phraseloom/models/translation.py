"""The translation model: encoder, decoder and output put together; what training and search talk to."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.models import targets
from phraseloom.models.decoder import DecoderState, Memory, TransformerDecoder
from phraseloom.models.encoder import TransformerEncoder
from phraseloom.outputs.softmax import LossSums, SoftmaxOutput


class Looks(NamedTuple):
    """For each use of attention and each layer the weights (B, H, J·Q, G·K) and the structure that says what they are."""

    encoder_self: list[tuple[Tensor, Structure]]
    decoder_self: list[tuple[Tensor, Structure]]
    cross: list[tuple[Tensor, Structure]]


class TranslationModel(nn.Module):
    """p(target | source) as a product over target tokens, each given the source and the target before it."""

    def __init__(
        self,
        *,
        source_embedding: TokenEmbedding,
        target_embedding: TokenEmbedding,
        encoder: TransformerEncoder,
        decoder: TransformerDecoder,
        output: SoftmaxOutput,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.encoder, self.decoder, self.output = encoder, decoder, output

    def encode(self, source_BS: Tensor, lengths_B: Tensor | None) -> Memory:
        """Source ids with EOS, right-padded, and their real lengths (EOS counted) → memory."""
        if lengths_B is not None and bool((lengths_B == source_BS.shape[1]).all()):
            lengths_B = None
        return Memory(self.encoder(self.source_embedding(source_BS), lengths_B), lengths_B)

    def decode(
        self, target_in_BT: Tensor, memory: Memory, *, keep_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Decoder input ids (BOS first) → hidden states (B, T, D), and cross-attention weights of every layer if asked for.

        Weights are (B, H, J·T, G·S), in the layout of the attention's structure; (B, H, T, S) for token attention.
        """
        kept: list[Tensor] = []
        hidden = self.decoder(self.target_embedding(target_in_BT), memory, kept_cross=kept if keep_weights else None)
        return hidden, kept

    def look(self, source_BS: Tensor, lengths_B: Tensor | None, target_in_BT: Tensor) -> Looks:
        """The weights of every attention of every layer for given sentence pairs (see `encode` and `decode`)."""
        of_source: list[Tensor] = []
        own: list[Tensor] = []
        cross: list[Tensor] = []
        memory = Memory(self.encoder(self.source_embedding(source_BS), lengths_B, kept=of_source), lengths_B)
        self.decoder(self.target_embedding(target_in_BT), memory, kept_own=own, kept_cross=cross)
        layers = self.decoder.layers
        return Looks(
            [(w, layer.attention.structure) for w, layer in zip(of_source, self.encoder.layers, strict=True)],
            [(w, layer.self_attention.structure) for w, layer in zip(own, layers, strict=True)],
            [(w, layer.cross_attention.structure) for w, layer in zip(cross, layers, strict=True)],
        )

    def forward(self, batch: Batch) -> LossSums:
        """The sums of the training loss over the real target tokens of a batch (same as `loss`)."""
        hidden_BTD, _ = self.decode(batch.target_in_BT, self.encode(batch.source_BS, batch.source_lengths_B))
        return targets.loss(self.output, hidden_BTD, batch)

    loss = forward

    def score(self, batch: Batch) -> Tensor:
        """log p of every target token, (B, T); zero beyond the length. Their sum is the score of the translation."""
        hidden_BTD, _ = self.decode(batch.target_in_BT, self.encode(batch.source_BS, batch.source_lengths_B))
        return targets.log_probs(self.output, hidden_BTD, batch)

    def start(self, memory: Memory, *, beam: int = 1, max_length: int = 64) -> DecoderState:
        """The state of search before the first step, `beam` hypotheses a sentence."""
        return self.decoder.start(memory, beam=beam, capacity=max_length)

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, list[Tensor]]:
        """Feed one token to every row: hidden (R, D), and the cross-attention (R, H, J, G·S) of every layer."""
        embedded_R1D = self.target_embedding(tokens_R[:, None], first=state.step)
        return self.decoder.step(embedded_R1D[:, 0], state)
