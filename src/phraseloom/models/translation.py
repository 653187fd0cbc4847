"""The translation model: encoder, decoder and output put together; training and search talk to it.

The functions at the end turn the output of any decoder into the loss, or log p, of the real target tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.layers.fertility import AS_TRAINED, Fertility, Tempering
from phraseloom.layers.packed import expect_changes
from phraseloom.layers.recurrent import under_autocast
from phraseloom.layers.table import TableEmbedding
from phraseloom.losses.guided import Guide
from phraseloom.models.decoder import DecoderState, Memory
from phraseloom.models.phrases import PhraseLevels, SourcePhrases
from phraseloom.outputs import ContinuousOutput, DecoderOutput, LossSums, SoftmaxOutput


class AttentionMaps(NamedTuple):
    """For each use of attention and each layer: the weights (B, H, J·Q, G·K) and the structure that says what they are.

    `phrases`: the phrases of every encoder level and how much each token counts in them, if the model has phrases.
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

    `encoder`, `decoder`: entries of ENCODERS and DECODERS of `models/build.py`. `fertility` is the gate of an output over words
    and phrases: λ_word of a target position is the attention to each source token times how likely that token gives a word
    (P003); likewise λ_phrase. EOS counts as a word.
    `guide`: the heads that training supervises, if any.
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
        self.guide: Guide | None = None

    def train(self, mode: bool = True) -> Self:
        """See `torch.nn.Module.train`. Training outdates the packed copies of weights that search has made."""
        if mode:
            expect_changes(self)
        return super().train(mode)

    @property
    def needs_phrases(self) -> bool:
        """Whether you must pass the phrases of a source, because they do not follow from its length."""
        return self.phrases is not None and self.phrases.segmenter is None

    def encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        phrase_sizes_BP: Tensor | None = None,
        *,
        tempering: Tempering = AS_TRAINED,
    ) -> Memory:
        """Source ids with EOS, right-padded, and their real lengths (including EOS) → memory.

        `phrase_sizes_BP` (see `Batch`) is read only if the model `needs_phrases`, `tempering` only if it has a gate.
        """
        if lengths_B is not None and lengths_B.device.type == "cpu" and bool((lengths_B == source_BS.shape[1]).all()):
            lengths_B = None  # a device is not asked: masks that hide nothing change nothing
        return self._encode(source_BS, lengths_B, phrase_sizes_BP, tempering=tempering)[0]

    def _encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        phrase_sizes_BP: Tensor | None,
        attention_weights: list[Tensor] | None = None,
        tempering: Tempering = AS_TRAINED,
    ) -> tuple[Memory, PhraseLevels | None]:
        levels = None if self.phrases is None else self.phrases.begin(source_BS, lengths_B, phrase_sizes_BP)
        if levels is not None and attention_weights is not None:
            levels.attention_weights = []
        embedded_BSE = self.source_embedding(source_BS)
        states, final = self.encoder(embedded_BSE, lengths_B, phrases=levels, attention_weights=attention_weights)
        memory = Memory(states, lengths_B, final=final)
        if self.fertility is not None and not self.training:  # training fits it on its own
            logits_BSC = self.fertility.classify(self.fertility.join(embedded_BSE, states))
            memory.shares_BS2 = self.shares(logits_BSC, lengths_B, tempering)
        if self.phrases is not None and levels is not None:
            memory.mixed = self.phrases.token_states(levels)
            memory.phrases = self.phrases.memory(levels, len(self.decoder.layers))
        return memory, levels

    def source_states(
        self, source_BS: Tensor, lengths_B: Tensor | None, phrase_sizes_BP: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The input of a fertility module: embedded source (B, S, E) and encoder states (B, S, D)."""
        levels = None if self.phrases is None else self.phrases.begin(source_BS, lengths_B, phrase_sizes_BP)
        embedded_BSE = self.source_embedding(source_BS)
        return embedded_BSE, self.encoder(embedded_BSE, lengths_B, phrases=levels)[0]

    def shares(self, logits_BSC: Tensor, lengths_B: Tensor | None, tempering: Tempering = AS_TRAINED) -> Tensor:
        """How likely each source token gives a word and a phrase, (B, S, 2), from the trained logits of its classes.

        EOS counts as a word. At least float32.
        """
        assert self.fertility is not None
        words_BS, phrases_BS = self.fertility.gate(logits_BSC, tempering).unbind(-1)
        ends = words_BS.shape[1] if lengths_B is None else lengths_B[:, None]
        beyond_BS = torch.arange(words_BS.shape[1], device=words_BS.device)[None] >= ends - 1
        return torch.stack((words_BS.masked_fill(beyond_BS, 1.0), phrases_BS.masked_fill(beyond_BS, 0.0)), -1)

    def _gate(self, weights: Tensor, shares_BS2: Tensor) -> Tensor:
        """λ_word and λ_phrase (B, Q, 2) from the attention (B, H, J·Q, G·S) of the last layer; their sum is 1.

        A position that attends to nothing has one half of each.
        """
        exact = shares_BS2.dtype
        with torch.autocast(weights.device.type, enabled=False) if under_autocast(weights) else nullcontext():
            attention_BQS = self.decoder.cross_structures[-1].token_weights(weights.to(exact)).mean(1)
            gate_BQ2 = (attention_BQS @ shares_BS2).clamp(min=torch.finfo(exact).tiny)
        return gate_BQ2 / gate_BQ2.sum(-1, keepdim=True)

    def decode(self, target_in_BT: Tensor, memory: Memory, *, keep_weights: bool = False) -> DecoderOutput:
        """Decoder input ids (BOS first) → hidden states (B, T, D), the gate (B, T, 2), the weights of cross-attention.

        With `keep_weights` the weights of every layer, (B, H, J·T, G·S) in the layout of the attention's structure;
        (B, H, T, S) for token attention.
        """
        shares_BS2 = memory.shares_BS2
        weights: list[Tensor] | None = [] if keep_weights or shares_BS2 is not None else None
        hidden_BTD = self.decoder(self.target_embedding(target_in_BT), memory, cross_attention_weights=weights)
        gate_BT2 = None if shares_BS2 is None or weights is None else self._gate(weights[-1], shares_BS2)
        return DecoderOutput(hidden_BTD, weights if weights is not None and keep_weights else [], gate_BT2)

    def attention_maps(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        target_in_BT: Tensor,
        phrase_sizes_BP: Tensor | None = None,
    ) -> AttentionMaps:
        """The weights of every attention of every layer for sentence pairs (see `encode` and `decode`)."""
        encoder: list[Tensor] = []
        own: list[Tensor] = []
        cross: list[Tensor] = []
        memory, levels = self._encode(source_BS, lengths_B, phrase_sizes_BP, encoder)
        embedded = self.target_embedding(target_in_BT)
        self.decoder(embedded, memory, self_attention_weights=own, cross_attention_weights=cross)
        return AttentionMaps(
            list(zip(encoder, self.encoder.structures, strict=True)),
            list(zip(own, self.decoder.own_structures, strict=True)),
            list(zip(cross, self.decoder.cross_structures, strict=True)),
            levels,
            () if levels is None else levels.attention_weights or (),
            () if memory.phrases is None else memory.phrases.attention_weights or (),
        )

    def forward(self, batch: Batch) -> LossSums:
        """The sums of the training loss over the real target tokens of a batch (same as `loss`).

        With a `guide`, a batch with links adds the guided loss of the cross-attention to the objective.
        """
        if self.guide is None or batch.links_BTS is None:
            return loss(self.output, self._decode_batch(batch)[1], batch)
        decoded = self._decode_batch(batch, keep_weights=True)[1]
        sums, guided = loss(self.output, decoded, batch), self.guide.loss(decoded.attention_weights, batch.links_BTS)
        return sums._replace(objective=sums.objective + self.guide.scale * guided, guided=guided)

    loss = forward

    def token_states(self, batch: Batch) -> dict[str, Tensor]:
        """The states of the encoder (B, S, D) and of the decoder (B, T, D) for a batch."""
        memory, decoded = self._decode_batch(batch)
        return {"encoder": memory.states_BSD, "decoder": decoded.hidden}

    def score(self, batch: Batch, *, tempering: Tempering = AS_TRAINED) -> Tensor:
        """log p of every target token, (B, T); zero beyond the length. Their sum is the score of the translation."""
        return log_probs(self.output, self._decode_batch(batch, tempering=tempering)[1], batch)

    def _decode_batch(
        self, batch: Batch, *, keep_weights: bool = False, tempering: Tempering = AS_TRAINED
    ) -> tuple[Memory, DecoderOutput]:
        lengths_B = batch.source_lengths_B if batch.is_source_padded else None
        memory, _ = self._encode(batch.source_BS, lengths_B, batch.phrase_sizes_BP, tempering=tempering)
        return memory, self.decode(batch.target_in_BT, memory, keep_weights=keep_weights)

    def start(self, memory: Memory, *, beam: int = 1, max_length: int = 64) -> DecoderState:
        """The state of search before the first step, `beam` hypotheses a sentence."""
        state: DecoderState = self.decoder.start(memory, beam=beam, capacity=max_length)
        state.shares_BS2 = memory.shares_BS2
        return state

    def step(self, tokens_R: Tensor, state: DecoderState) -> DecoderOutput:
        """Feed one token to every row: hidden (R, D), the cross-attention (R, H, J, G·S) of every layer, the gate (R, 2)."""
        embedded_R1D = self.target_embedding(tokens_R[:, None], first=state.step)
        hidden_RD, weights = self.decoder.step(embedded_R1D[:, 0], state)
        if state.shares_BS2 is None:
            return DecoderOutput(hidden_RD, weights)
        shares_RS2 = state.shares_BS2.repeat_interleave(state.beam, 0)
        return DecoderOutput(hidden_RD, weights, self._gate(weights[-1], shares_RS2)[:, 0])


def is_real(batch: Batch) -> Tensor:
    """Which target positions are not padding, (B, T)."""
    positions = torch.arange(batch.target_out_BT.shape[1], device=batch.target_lengths_B.device)
    return positions[None, :] < batch.target_lengths_B[:, None]


def real(decoded: DecoderOutput, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """Hidden states (N, D), gold ids (N,) and the gate (N, 2) of the real target positions."""
    hidden_BTD, gate_BT2, places_N = decoded.hidden, decoded.gate, batch.real_places
    all_of_them = (
        hidden_BTD.flatten(0, 1),
        batch.target_out_BT.flatten(),
        None if gate_BT2 is None else gate_BT2.flatten(0, 1),
    )
    if places_N is None:
        return all_of_them
    hidden_ND, gold_N, gate_N2 = (None if x is None else x.index_select(0, places_N) for x in all_of_them)
    assert hidden_ND is not None and gold_N is not None
    return hidden_ND, gold_N, gate_N2


def loss(output: Any, decoded: DecoderOutput, batch: Batch) -> LossSums:
    """The sums of the training loss over the real target tokens."""
    sums: LossSums = output.loss(*real(decoded, batch))
    return sums


def log_probs(output: Any, decoded: DecoderOutput, batch: Batch) -> Tensor:
    """log p of every target token, (B, T); zero beyond the length."""
    log_p_N = output.gold_log_probs(*real(decoded, batch))
    return log_p_N.new_zeros(batch.target_out_BT.shape).masked_scatter(is_real(batch), log_p_N)
