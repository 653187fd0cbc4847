"""The language model: a decoder without cross-attention, p(line) as a product over its tokens and the end of the line.

    p(y) = Π_t p(y_t | BOS, y_1 … y_{t-1}),   y_T = EOS          (paper 000 §4.3)

A batch of text has an empty source; the model reads its target only. The interface is that of the translation model, so
training, search and scoring take either: `loss`, `score`, `start` and `step`, where the "memory" is the number of lines.
"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.layers.packed import expect_changes
from phraseloom.models import translation as targets
from phraseloom.models.decoder import DecoderState, TransformerDecoder
from phraseloom.models.translation import AttentionMaps
from phraseloom.outputs.softmax import DecoderOutput, LossSums, SoftmaxOutput


class LanguageModel(nn.Module):
    """p(line) as a product over its tokens, each given those before it. Source: Vaswani et al. 2017 without the encoder."""

    writes = "tokens"

    def __init__(self, *, embedding: TokenEmbedding, decoder: TransformerDecoder, output: SoftmaxOutput) -> None:
        super().__init__()
        self.embedding, self.decoder, self.output = embedding, decoder, output

    def train(self, mode: bool = True) -> Self:
        """See `torch.nn.Module.train`. Training outdates the packed copies of weights that search has made."""
        if mode:
            expect_changes(self)
        return super().train(mode)

    def decode(self, target_in_BT: Tensor) -> DecoderOutput:
        """Input ids (BOS first) → hidden states (B, T, D)."""
        return DecoderOutput(self.decoder(self.embedding(target_in_BT)))

    def attention_maps(self, target_in_BT: Tensor) -> AttentionMaps:
        """The attention weights of every layer for lines (input ids, BOS first)."""
        weights: list[Tensor] = []
        self.decoder(self.embedding(target_in_BT), self_attention_weights=weights)
        return AttentionMaps([], list(zip(weights, self.decoder.own_structures, strict=True)), [])

    def forward(self, batch: Batch) -> LossSums:
        """The sums of the training loss over the real tokens of a batch (same as `loss`)."""
        return targets.loss(self.output, self.decode(batch.target_in_BT), batch)

    loss = forward

    def token_states(self, batch: Batch) -> dict[str, Tensor]:
        """The states of the decoder, (B, T, D), for a batch."""
        return {"decoder": self.decode(batch.target_in_BT).hidden}

    def score(self, batch: Batch) -> Tensor:
        """log p of every token, (B, T); zero beyond the length. Their sum is log p of the line."""
        return targets.log_probs(self.output, self.decode(batch.target_in_BT), batch)

    def start(self, memory: int, *, beam: int = 1, max_length: int = 64) -> DecoderState:
        """The state before the first token of `memory` lines, `beam` hypotheses each."""
        return self.decoder.start_alone(memory, beam=beam, capacity=max_length, device=self.output.weight.device)

    def step(self, tokens_R: Tensor, state: DecoderState) -> DecoderOutput:
        """Feed one token to every row: hidden states (R, D)."""
        embedded_R1D = self.embedding(tokens_R[:, None], first=state.step)
        return DecoderOutput(*self.decoder.step(embedded_R1D[:, 0], state))
