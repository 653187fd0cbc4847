"""The translation model: encoder, decoder and output put together; what training and search talk to.

What an output makes of hidden states and a batch: the loss, or log p, of the real target tokens; shared by all models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.layers.fertility import Fertility
from phraseloom.layers.table import TableEmbedding
from phraseloom.models import translation as targets
from phraseloom.models.decoder import DecoderState, Memory
from phraseloom.models.phrases import PhraseLevels, SourcePhrases
from phraseloom.outputs import ContinuousOutput, LossSums, SoftmaxOutput


class Looks(NamedTuple):
    """For each use of attention and each layer the weights (B, H, J·Q, G·K) and the structure that says what they are.

    `phrases`: the phrases of every level of the encoder and how much each token counts in them, where the model has any;
    `encoder_phrases` (B, H, S, P) and `decoder_phrases` (B, H, T, P): how much of each phrase the tokens of each layer read.
    """

    encoder_self: list[tuple[Tensor, Structure]]
    decoder_self: list[tuple[Tensor, Structure]]
    cross: list[tuple[Tensor, Structure]]
    phrases: PhraseLevels | None = None
    encoder_phrases: Sequence[Tensor] = ()
    decoder_phrases: Sequence[Tensor] = ()


class TranslationModel(nn.Module):
    """p(target | source) as a product over target tokens, each given the source and the target before it.

    `encoder`, `decoder`: entries of ENCODERS and DECODERS of `models/build.py`. `fertility` makes the gate of an output over
    words and phrases: λ_word of a target position is the attention to source tokens, times how likely each gives a word
    (P003; spec §4.9). EOS counts as a word.
    """

    writes = "tokens"

    def __init__(
        self,
        *,
        source_embedding: TokenEmbedding,
        target_embedding: TokenEmbedding | TableEmbedding,
        encoder: Any,
        decoder: Any,
        output: SoftmaxOutput | ContinuousOutput,
        phrases: SourcePhrases | None = None,
        fertility: Fertility | None = None,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.encoder, self.decoder, self.output, self.phrases = encoder, decoder, output, phrases
        self.fertility = fertility

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
        if levels is not None and kept is not None:
            levels.kept = []
        embedded_BSE = self.source_embedding(source_BS)
        states, final = self.encoder(embedded_BSE, lengths_B, phrases=levels, kept=kept)
        memory = Memory(states, lengths_B, final=final)
        if self.fertility is not None and not self.training:  # it is trained by itself
            memory.word_share_BS = self._word_share(embedded_BSE, states, lengths_B)
        if self.phrases is not None and levels is not None:
            memory.mixed = self.phrases.token_states(levels)
            memory.phrases = self.phrases.memory(levels, len(self.decoder.layers))
        return memory, levels

    def source_states(
        self, source_BS: Tensor, lengths_B: Tensor | None, phrase_sizes_BP: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What a fertility module reads: the embedded source (B, S, E) and the states of the encoder (B, S, D)."""
        levels = None if self.phrases is None else self.phrases.begin(source_BS, lengths_B, phrase_sizes_BP)
        embedded_BSE = self.source_embedding(source_BS)
        return embedded_BSE, self.encoder(embedded_BSE, lengths_B, phrases=levels)[0]

    def _word_share(self, embedded_BSE: Tensor, states_BSD: Tensor, lengths_B: Tensor | None) -> Tensor:
        assert self.fertility is not None
        share_BS = self.fertility.word_share(self.fertility(embedded_BSE, states_BSD)).to(states_BSD.dtype)
        ends = share_BS.shape[1] if lengths_B is None else lengths_B[:, None]
        beyond_BS = torch.arange(share_BS.shape[1], device=share_BS.device)[None] >= ends - 1
        return share_BS.masked_fill(beyond_BS, 1.0)

    def _with_gate(self, hidden: Tensor, weights: Tensor, share_BS: Tensor) -> Tensor:
        """Hidden vectors (B, Q, D) with λ_word in column D, from the attention (B, H, J·Q, G·S) of the last layer."""
        attention_BQS = self.decoder.cross_structures[-1].token_weights(weights).mean(1)
        gate_BQ1 = attention_BQS.to(share_BS.dtype) @ share_BS[:, :, None]
        return torch.cat([hidden, gate_BQ1.to(hidden.dtype)], -1)

    def decode(
        self, target_in_BT: Tensor, memory: Memory, *, keep_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Decoder input ids (BOS first) → hidden states (B, T, D), and if asked for the weights of every cross-attention.

        With a gate the hidden states have one more column, λ_word.
        Weights are (B, H, J·T, G·S), in the layout of the attention's structure; (B, H, T, S) for token attention.
        """
        kept: list[Tensor] = []
        gated = memory.word_share_BS is not None
        embedded_BTD = self.target_embedding(target_in_BT)
        hidden_BTD: Tensor = self.decoder(embedded_BTD, memory, kept_cross=kept if keep_weights or gated else None)
        if memory.word_share_BS is not None:
            hidden_BTD = self._with_gate(hidden_BTD, kept[-1], memory.word_share_BS)
        return hidden_BTD, kept if keep_weights else []

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
            () if levels is None else levels.kept or (),
            () if memory.phrases is None else memory.phrases.kept or (),
        )

    def forward(self, batch: Batch) -> LossSums:
        """The sums of the training loss over the real target tokens of a batch (same as `loss`)."""
        memory = self.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        hidden_BTD, _ = self.decode(batch.target_in_BT, memory)
        return targets.loss(self.output, hidden_BTD, batch)

    loss = forward

    def token_states(self, batch: Batch) -> dict[str, Tensor]:
        """The states of the encoder (B, S, D) and of the decoder (B, T, D) for a batch."""
        memory = self.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        hidden_BTD, _ = self.decode(batch.target_in_BT, memory)
        return {"encoder": memory.states_BSD, "decoder": hidden_BTD}

    def score(self, batch: Batch) -> Tensor:
        """log p of every target token, (B, T); zero beyond the length. Their sum is the score of the translation."""
        memory = self.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        hidden_BTD, _ = self.decode(batch.target_in_BT, memory)
        return targets.log_probs(self.output, hidden_BTD, batch)

    def start(self, memory: Memory, *, beam: int = 1, max_length: int = 64) -> DecoderState:
        """The state of search before the first step, `beam` hypotheses a sentence."""
        state: DecoderState = self.decoder.start(memory, beam=beam, capacity=max_length)
        state.word_share_BS = memory.word_share_BS
        return state

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, list[Tensor]]:
        """Feed one token to every row: hidden (R, D), and the cross-attention (R, H, J, G·S) of every layer."""
        embedded_R1D = self.target_embedding(tokens_R[:, None], first=state.step)
        hidden_RD, weights = self.decoder.step(embedded_R1D[:, 0], state)
        if state.word_share_BS is not None:
            share_RS = state.word_share_BS.repeat_interleave(state.beam, 0)
            hidden_RD = self._with_gate(hidden_RD[:, None], weights[-1], share_RS)[:, 0]
        return hidden_RD, weights


def is_real(batch: Batch) -> Tensor:
    """Which target positions are not padding, (B, T)."""
    positions = torch.arange(batch.target_out_BT.shape[1], device=batch.target_lengths_B.device)
    return positions[None, :] < batch.target_lengths_B[:, None]


def real(hidden_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states (N, D) and gold ids (N,) of the real target positions."""
    real_BT = is_real(batch)
    if bool(real_BT.all()):
        return hidden_BTD.flatten(0, 1), batch.target_out_BT.flatten()
    return hidden_BTD[real_BT], batch.target_out_BT[real_BT]


def loss(output: Any, hidden_BTD: Tensor, batch: Batch) -> LossSums:
    """The sums of the training loss over the real target tokens."""
    sums: LossSums = output.loss(*real(hidden_BTD, batch))
    return sums


def log_probs(output: Any, hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """log p of every target token, (B, T); zero beyond the length."""
    result_BT = hidden_BTD.new_zeros(batch.target_out_BT.shape)
    return result_BT.masked_scatter(is_real(batch), output.gold_log_probs(*real(hidden_BTD, batch)))
