"""The translation model: encoder, decoder and output put together; what training and search talk to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.models.decoder import DecoderState, Memory, TransformerDecoder
from phraseloom.models.encoder import TransformerEncoder
from phraseloom.outputs.softmax import LossSums, SoftmaxOutput


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
        """Decoder input ids (BOS first) → hidden states (B, T, D), and cross-attention weights if asked for."""
        return self.decoder(self.target_embedding(target_in_BT), memory, keep_weights=keep_weights)

    def forward(self, batch: Batch) -> LossSums:
        """The sums of the training loss over the real target tokens of a batch (same as `loss`)."""
        hidden_BTD, _ = self.decode(batch.target_in_BT, self.encode(batch.source_BS, batch.source_lengths_B))
        return self.output.loss(*_real(hidden_BTD, batch))

    loss = forward

    def score(self, batch: Batch) -> Tensor:
        """log p of every target token, (B, T); zero beyond the length. Their sum is the score of the translation."""
        hidden_BTD, _ = self.decode(batch.target_in_BT, self.encode(batch.source_BS, batch.source_lengths_B))
        hidden_ND, gold_N = _real(hidden_BTD, batch)
        result_BT = hidden_BTD.new_zeros(batch.target_out_BT.shape)
        return result_BT.masked_scatter(_is_real(batch), self.output.gold_log_probs(hidden_ND, gold_N))

    def start(self, memory: Memory, *, beam: int = 1, max_length: int = 64) -> DecoderState:
        """The state of search before the first step, `beam` hypotheses a sentence."""
        return self.decoder.start(memory, beam=beam, capacity=max_length)

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, list[Tensor]]:
        """Feed one token to every row: hidden (R, D), and the cross-attention (R, H, S) of every layer."""
        embedded_R1D = self.target_embedding(tokens_R[:, None], first=state.step)
        return self.decoder.step(embedded_R1D[:, 0], state)


def _is_real(batch: Batch) -> Tensor:
    positions = torch.arange(batch.target_out_BT.shape[1], device=batch.target_lengths_B.device)
    return positions[None, :] < batch.target_lengths_B[:, None]


def _real(hidden_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states (N, D) and gold ids (N,) of the real target positions."""
    real = _is_real(batch)
    if bool(real.all()):
        return hidden_BTD.flatten(0, 1), batch.target_out_BT.flatten()
    return hidden_BTD[real], batch.target_out_BT[real]
