"""Transformer decoder: embedded target prefix and encoder output → hidden states, all at once or step by step.

`forward` serves training and scoring, `start` and `step` serve search. Both give the same numbers (reliability.md N11).
Without cross-attention the decoder is a language model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.cache import FixedCache, GrowingCache
from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.feedforward import NORM_EPSILON, FeedForward, Residual
from phraseloom.layers.phrase_representation import AttentiveCombination, PhraseKeys
from phraseloom.layers.recurrent import State
from phraseloom.models.phrases import PhraseMemory
from phraseloom.models.recompute import run_layer


@dataclass
class Memory:
    """An encoded source: states (B, S, D) and real lengths (B,); lengths are None if nothing is padded.

    `mixed`: one tensor of states per decoder layer, if each layer reads its own mixture of encoder levels. `final`: the final
    state of every layer of a recurrent encoder. `shares_BS2`: how likely each token gives a word and a phrase
    (`layers/fertility.py`), if the output has a gate.
    """

    states_BSD: Tensor
    lengths_B: Tensor | None
    mixed: list[Tensor] | None = None
    phrases: PhraseMemory | None = None
    final: list[State] | None = None
    shares_BS2: Tensor | None = None

    def of_layer(self, layer: int) -> Tensor:
        """The states (B, S, D) that a decoder layer (from 0) reads."""
        return self.states_BSD if self.mixed is None else self.mixed[layer]

    def visibility(self, query_length: int = 1) -> Visibility:
        """The mask of the source for `query_length` queries a sentence, or for the steps of a search."""
        return Visibility(
            key_length=self.states_BSD.shape[1],
            lengths_B=self.lengths_B,
            query_length=query_length,
            device=self.states_BSD.device,
        )

    def select(self, sentences: Tensor) -> Memory:
        """These sentences only, in this order."""
        return Memory(
            self.states_BSD[sentences],
            None if self.lengths_B is None else self.lengths_B[sentences],
            None if self.mixed is None else [states[sentences] for states in self.mixed],
            None if self.phrases is None else self.phrases.select(sentences),
            None if self.final is None else [tuple(part[sentences] for part in state) for state in self.final],
            None if self.shares_BS2 is None else self.shares_BS2[sentences],
        )


@dataclass
class DecoderState:
    """Everything search carries from step to step; row = sentence * beam + hypothesis.

    `growing`: what belongs to rows (caches of self-attention, states of recurrent layers), each with `reorder(rows)`. `fixed`:
    keys and values of the source, by layer; empty without cross-attention, and `source` is None. `phrases`: the source phrases
    that each layer reads. `shares_BS2`: see `Memory`.
    """

    growing: list[Any]
    beam: int
    rows: int
    device: torch.device
    fixed: Sequence[FixedCache] = ()
    phrases: Sequence[PhraseKeys | None] = ()
    source: Visibility | None = None
    shares_BS2: Tensor | None = None
    step: int = 0

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; rows stay within their sentence."""
        self.rows = len(rows_R)
        for cache in (*self.growing, *self.fixed):
            cache.reorder(rows_R)

    def expand(self, beam: int) -> None:
        """From one hypothesis a sentence to `beam` equal ones."""
        assert self.beam == 1
        self.beam = beam
        self.reorder(torch.arange(self.rows, device=self.device).repeat_interleave(beam))

    def keep(self, sentences_B: Tensor) -> None:
        """Keep these sentences only, with all their hypotheses, in this order."""
        rows = (sentences_B[:, None] * self.beam + torch.arange(self.beam, device=sentences_B.device)).flatten()
        self.rows = len(rows)
        for cache in self.growing:
            cache.reorder(rows)
        for fixed in self.fixed:
            fixed.keep(sentences_B, rows)
        self.phrases = [None if keys is None else keys.select(sentences_B) for keys in self.phrases]
        if self.source is not None:
            lengths_B = self.source.lengths_B
            lengths_B = None if lengths_B is None else lengths_B.index_select(0, sentences_B)
            self.source = Visibility(key_length=self.source.key_length, lengths_B=lengths_B, device=self.device)
        if self.shares_BS2 is not None:
            self.shares_BS2 = self.shares_BS2.index_select(0, sentences_B)


class TransformerDecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each with a residual connection.

    There is one residual for each of these parts. A language model has no cross-attention. Without `feed_forward`, the layer
    ends with its attention (P002 §3.3, where a convolution takes the place of that layer). With a `combination` the tokens read
    phrases of the source after self-attention.
    """

    def __init__(
        self,
        *,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention | None = None,
        feed_forward: FeedForward | None,
        residuals: Sequence[Residual],
        combination: AttentiveCombination | None = None,
    ) -> None:
        super().__init__()
        self.combination = combination
        self.self_attention, self.cross_attention, self.feed_forward = self_attention, cross_attention, feed_forward
        self.self_residual, *rest = residuals
        self.feed_forward_residual = None if feed_forward is None else rest.pop()
        self.cross_residual = rest[0] if rest else None

    def project_phrases(self, phrases: PhraseMemory | None, layer: int) -> PhraseKeys | None:
        """Keys and values of the phrases that this layer (from 0) reads; None if it reads none."""
        if self.combination is None or phrases is None:
            return None
        return self.combination.project_phrases(phrases.vectors[layer], phrases.visibility)

    def forward(
        self,
        x_BTD: Tensor,
        memory_BSD: Tensor | None,
        own: Visibility,
        source: Visibility | None,
        phrases: PhraseKeys | None = None,
        *,
        need_self: bool = True,
        need_cross: bool = True,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """(B, T, D) → (B, T, D), the weights of self- and cross-attention in the layouts of their structures, and those of
        the phrases (B, H, T, P).

        None for what the layer does not have; weights of attention may also be None without `need_self` or `need_cross`.
        """
        phrase_weights = cross_weights = None
        x = self.self_residual.before(x_BTD)
        projected, self_weights = self.self_attention(x, None, own, need_weights=need_self)
        x_BTD = self.self_residual.after(x_BTD, projected)
        if self.combination is not None and phrases is not None:
            x_BTD, phrase_weights = self.combination(x_BTD, phrases)
        if self.cross_attention is not None and self.cross_residual is not None:
            x = self.cross_residual.before(x_BTD)
            projected, cross_weights = self.cross_attention(x, memory_BSD, source, need_weights=need_cross)
            x_BTD = self.cross_residual.after(x_BTD, projected)
        return self._feed_forward(x_BTD), self_weights, cross_weights, phrase_weights

    def step(
        self,
        x_RD: Tensor,
        growing: GrowingCache,
        fixed: FixedCache | None = None,
        source: Visibility | None = None,
        phrases: PhraseKeys | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One step of every row: (R, D) → (R, D) and the cross-attention weights (R, H, J, G·S)."""
        weights = None
        projected = self.self_attention.step_self(self.self_residual.before(x_RD), growing)
        x_RD = self.self_residual.after(x_RD, projected)
        if self.combination is not None and phrases is not None:
            x_BWD, _ = self.combination(x_RD.view(len(phrases.keys), -1, x_RD.shape[-1]), phrases)
            x_RD = x_BWD.flatten(0, 1)
        if self.cross_attention is not None and self.cross_residual is not None and fixed is not None:
            assert source is not None
            projected, weights = self.cross_attention.step_cross(self.cross_residual.before(x_RD), fixed, source)
            x_RD = self.cross_residual.after(x_RD, projected)
        return self._feed_forward(x_RD), weights

    def _feed_forward(self, x: Tensor) -> Tensor:
        residual = self.feed_forward_residual
        if self.feed_forward is None or residual is None:
            return x
        return residual.after(x, self.feed_forward(residual.before(x)))


class TransformerDecoder(nn.Module):
    """A stack of layers; `final_norm` closes a pre-norm stack."""

    def __init__(
        self, layers: list[TransformerDecoderLayer], *, width: int, final_norm: bool, epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.checkpoints_layers = False
        self.layers: Sequence[TransformerDecoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width, eps=epsilon) if final_norm else nn.Identity()

    @property
    def own_structures(self) -> list[Structure]:
        """What the weights of each self-attention mean, layer by layer."""
        return [layer.self_attention.structure for layer in self.layers]

    @property
    def cross_structures(self) -> list[Structure]:
        """What the weights of each cross-attention mean, layer by layer."""
        return [layer.cross_attention.structure for layer in self.layers if layer.cross_attention is not None]

    def forward(
        self,
        x_BTD: Tensor,
        memory: Memory | None = None,
        *,
        self_attention_weights: list[Tensor] | None = None,
        cross_attention_weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D).

        Appends the weights of self- and cross-attention of every layer to the lists that you pass, and those of the phrases to
        the list of `memory.phrases`. Target padding needs no mask: it is on the right, hidden from real positions by causality.
        """
        length = x_BTD.shape[1]
        own = Visibility(key_length=length, causal=True, query_length=length, device=x_BTD.device)
        source = states_BSD = phrases = None
        if memory is not None:
            source, phrases = memory.visibility(length), memory.phrases
        for number, layer in enumerate(self.layers):
            if memory is not None:
                states_BSD = memory.of_layer(number)
            keys = layer.project_phrases(phrases, number)
            need_self, need_cross = self_attention_weights is not None, cross_attention_weights is not None
            again = self.checkpoints_layers and not need_self and not need_cross
            x_BTD, self_weights, cross_weights, phrase_weights = run_layer(
                layer, x_BTD, states_BSD, own, source, keys,
                checkpointed=again, need_self=need_self, need_cross=need_cross,
            )  # fmt: skip
            for collected, weights in (
                (self_attention_weights, self_weights),
                (cross_attention_weights, cross_weights),
                (None if phrases is None else phrases.attention_weights, phrase_weights),
            ):
                if collected is not None and weights is not None:
                    collected.append(weights)
        hidden_BTD: Tensor = self.norm(x_BTD)
        return hidden_BTD

    def start(self, memory: Memory, *, beam: int, capacity: int) -> DecoderState:
        """The state before the first step, for `beam` hypotheses a sentence."""
        source = memory.visibility()
        state = self.start_alone(len(memory.states_BSD), beam=beam, capacity=capacity, device=memory.states_BSD.device)
        state.source, state.phrases = (
            source,
            [layer.project_phrases(memory.phrases, n) for n, layer in enumerate(self.layers)],
        )
        state.fixed = [
            layer.cross_attention.remember(memory.of_layer(n), source, beam=beam)
            for n, layer in enumerate(self.layers)
            if layer.cross_attention is not None
        ]
        return state

    def start_alone(self, sentences: int, *, beam: int, capacity: int, device: torch.device) -> DecoderState:
        """The state before the first step of a decoder that reads no source."""
        rows = sentences * beam
        return DecoderState([layer.self_attention.start(rows, capacity) for layer in self.layers], beam, rows, device)

    def step(self, x_RD: Tensor, state: DecoderState) -> tuple[Tensor, list[Tensor]]:
        """One step: embedded tokens (R, D) → hidden (R, D), and the cross-attention (R, H, J, G·S) of every layer."""
        attention_weights = []
        for layer, growing, fixed, phrases in zip_longest(self.layers, state.growing, state.fixed, state.phrases):
            x_RD, weights = layer.step(x_RD, growing, fixed, state.source, phrases)
            if weights is not None:
                attention_weights.append(weights)
        state.step += 1
        return self.norm(x_RD), attention_weights
