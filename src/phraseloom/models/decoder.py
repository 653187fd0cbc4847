"""Transformer decoder: embedded target prefix and memory → hidden states, all at once or step by step.

The two ways give the same numbers: `forward` for training and scoring, `start`/`step` for search (reliability.md N11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass
class Memory:
    """An encoded source: states (B, S, D) and real lengths (B,), or None where nothing is padded.

    `mixed`: states of their own for each decoder layer, where they are mixtures of levels; `phrases`: see there; `final`: the
    final state of every layer of a recurrent encoder; `word_share_BS`: how likely each token gives a word, not a phrase
    (`layers/fertility.py`), where the output has a gate.
    """

    states_BSD: Tensor
    lengths_B: Tensor | None
    mixed: list[Tensor] | None = None
    phrases: PhraseMemory | None = None
    final: list[State] | None = None
    word_share_BS: Tensor | None = None

    def of_layer(self, layer: int) -> Tensor:
        """The states (B, S, D) that a decoder layer (from 0) reads."""
        return self.states_BSD if self.mixed is None else self.mixed[layer]

    def select(self, sentences: Tensor) -> Memory:
        """Only these sentences, in this order."""
        return Memory(
            self.states_BSD[sentences],
            None if self.lengths_B is None else self.lengths_B[sentences],
            None if self.mixed is None else [states[sentences] for states in self.mixed],
            None if self.phrases is None else self.phrases.select(sentences),
            None if self.final is None else [tuple(part[sentences] for part in state) for state in self.final],
            None if self.word_share_BS is None else self.word_share_BS[sentences],
        )


@dataclass
class DecoderState:
    """Everything search carries from step to step; rows are sentence * beam + hypothesis.

    `growing`: what belongs to rows (caches of self-attention, states of recurrent layers), all with `reorder(rows)`; `fixed`:
    what belongs to sentences; `phrases`: those that each layer reads; `word_share_BS` as in the memory.
    """

    growing: list[Any]
    fixed: list[FixedCache]
    phrases: list[PhraseKeys | None]
    source_length: int
    source_lengths_B: Tensor | None
    beam: int
    step: int = 0
    word_share_BS: Tensor | None = None
    visibility: Visibility = field(init=False)

    def __post_init__(self) -> None:
        self._look()

    def _look(self) -> None:
        self.visibility = Visibility(
            key_length=self.source_length, lengths_B=self.source_lengths_B, device=self.fixed[0].keys[0].device
        )

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; rows stay within their sentence."""
        for cache in self.growing:
            cache.reorder(rows_R)
        for fixed in self.fixed:
            fixed.reorder(rows_R)

    def expand(self, beam: int) -> None:
        """From one hypothesis a sentence to `beam` equal ones."""
        assert self.beam == 1
        keys = self.fixed[0].keys[0]
        self.beam = beam
        self.reorder(torch.arange(len(keys), device=keys.device).repeat_interleave(beam))

    def keep(self, sentences_B: Tensor) -> None:
        """Only these sentences stay, with all their hypotheses, in this order."""
        rows = (sentences_B[:, None] * self.beam + torch.arange(self.beam, device=sentences_B.device)).flatten()
        for cache in self.growing:
            cache.reorder(rows)
        for fixed in self.fixed:
            fixed.keep(sentences_B, rows)
        self.phrases = [None if keys is None else keys.select(sentences_B) for keys in self.phrases]
        if self.source_lengths_B is not None:
            self.source_lengths_B = self.source_lengths_B.index_select(0, sentences_B)
        if self.word_share_BS is not None:
            self.word_share_BS = self.word_share_BS.index_select(0, sentences_B)
        self._look()


class TransformerDecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each inside a residual; between the first two the tokens take up
    phrases of the source, where there is a `combination`."""

    def __init__(
        self,
        *,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        residuals: tuple[Residual, Residual, Residual],
        combination: AttentiveCombination | None = None,
    ) -> None:
        super().__init__()
        self.combination = combination
        self.self_attention, self.cross_attention, self.feed_forward = self_attention, cross_attention, feed_forward
        self.self_residual, self.cross_residual, self.feed_forward_residual = residuals

    def remember(self, phrases: PhraseMemory | None, layer: int) -> PhraseKeys | None:
        """The keys and values of the phrases that this layer (from 0) reads, where it reads any."""
        if self.combination is None or phrases is None:
            return None
        return self.combination.remember(phrases.vectors[layer], phrases.visibility)

    def forward(
        self,
        x_BTD: Tensor,
        memory_BSD: Tensor,
        own: Visibility,
        source: Visibility,
        phrases: PhraseKeys | None = None,
        *,
        need_own: bool = True,
        need_cross: bool = True,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """(B, T, D) → (B, T, D), the weights of self- and cross-attention in the layouts of their structures, and those of the
        phrases (B, H, T, P), where it reads any. Weights that are not needed may be None."""
        of_phrases = None
        around = self.self_residual
        attended, own_weights = self.self_attention(around.enter(x_BTD), None, own, need_weights=need_own)
        x_BTD = around.leave(x_BTD, attended)
        if self.combination is not None and phrases is not None:
            x_BTD, of_phrases = self.combination(x_BTD, phrases)
        around = self.cross_residual
        attended, weights = self.cross_attention(around.enter(x_BTD), memory_BSD, source, need_weights=need_cross)
        x_BTD = around.leave(x_BTD, attended)
        around = self.feed_forward_residual
        return around.leave(x_BTD, self.feed_forward(around.enter(x_BTD))), own_weights, weights, of_phrases

    def step(
        self,
        x_RD: Tensor,
        growing: GrowingCache,
        fixed: FixedCache,
        source: Visibility,
        phrases: PhraseKeys | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One step of every row: (R, D) → (R, D) and the cross-attention weights (R, H, J, G·S)."""
        around = self.self_residual
        x_RD = around.leave(x_RD, self.self_attention.step_self(around.enter(x_RD), growing))
        if self.combination is not None and phrases is not None:
            x_BWD, _ = self.combination(x_RD.view(len(phrases.keys), -1, x_RD.shape[-1]), phrases)
            x_RD = x_BWD.flatten(0, 1)
        around = self.cross_residual
        attended, weights = self.cross_attention.step_cross(around.enter(x_RD), fixed, source)
        x_RD = around.leave(x_RD, attended)
        around = self.feed_forward_residual
        return around.leave(x_RD, self.feed_forward(around.enter(x_RD))), weights


class TransformerDecoder(nn.Module):
    """A stack of layers; `final_norm` closes a pre-norm stack."""

    def __init__(
        self, layers: list[TransformerDecoderLayer], *, width: int, final_norm: bool, epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.layers: Sequence[TransformerDecoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width, eps=epsilon) if final_norm else nn.Identity()

    @property
    def own_structures(self) -> list[Structure]:
        """What the weights of each self-attention mean, layer by layer."""
        return [layer.self_attention.structure for layer in self.layers]

    @property
    def cross_structures(self) -> list[Structure]:
        """What the weights of each cross-attention mean, layer by layer."""
        return [layer.cross_attention.structure for layer in self.layers]

    def forward(
        self,
        x_BTD: Tensor,
        memory: Memory,
        *,
        kept_own: list[Tensor] | None = None,
        kept_cross: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D). The weights of self- and cross-attention of every layer are added to the lists given, those
        of the phrases to that of `memory.phrases`.

        Target padding needs no mask: it stands on the right, where causality hides it from every real position.
        """
        own = Visibility(key_length=x_BTD.shape[1], causal=True, query_length=x_BTD.shape[1], device=x_BTD.device)
        source = Visibility(
            key_length=memory.states_BSD.shape[1],
            lengths_B=memory.lengths_B,
            query_length=x_BTD.shape[1],
            device=x_BTD.device,
        )
        for number, layer in enumerate(self.layers):
            phrases = layer.remember(memory.phrases, number)
            x_BTD, own_weights, weights, of_phrases = layer(
                x_BTD, memory.of_layer(number), own, source, phrases,
                need_own=kept_own is not None, need_cross=kept_cross is not None,
            )  # fmt: skip
            if kept_own is not None:
                kept_own.append(own_weights)
            if kept_cross is not None:
                kept_cross.append(weights)
            if memory.phrases is not None and memory.phrases.kept is not None and of_phrases is not None:
                memory.phrases.kept.append(of_phrases)
        return self.norm(x_BTD)

    def start(self, memory: Memory, *, beam: int, capacity: int) -> DecoderState:
        """The state before the first step, for `beam` hypotheses a sentence."""
        source = Visibility(
            key_length=memory.states_BSD.shape[1], lengths_B=memory.lengths_B, device=memory.states_BSD.device
        )
        rows = len(memory.states_BSD) * beam
        growing = [layer.self_attention.start(rows, capacity) for layer in self.layers]
        fixed = [
            layer.cross_attention.remember(memory.of_layer(n), source, beam=beam) for n, layer in enumerate(self.layers)
        ]
        phrases = [layer.remember(memory.phrases, n) for n, layer in enumerate(self.layers)]
        return DecoderState(growing, fixed, phrases, memory.states_BSD.shape[1], memory.lengths_B, beam)

    def step(self, x_RD: Tensor, state: DecoderState) -> tuple[Tensor, list[Tensor]]:
        """One step: embedded tokens (R, D) → hidden (R, D), and the cross-attention (R, H, J, G·S) of every layer."""
        kept = []
        for layer, growing, fixed, phrases in zip(self.layers, state.growing, state.fixed, state.phrases, strict=True):
            x_RD, weights = layer.step(x_RD, growing, fixed, state.visibility, phrases)
            kept.append(weights)
        state.step += 1
        return self.norm(x_RD), kept
