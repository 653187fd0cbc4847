"""The language model: a decoder without memory, p(line) as a product over its tokens and the end of the line.

    p(y) = Π_t p(y_t | BOS, y_1 … y_{t-1}),   y_T = EOS          (spec §8.6; paper 000 §4.3)

A layer is causal self-attention of any score × arrangement and a feed-forward layer, each inside a residual. A batch of
text is one whose source is empty; here only its target is read. The protocol is that of the translation model, so that
the training loop, the search and scoring take either: `loss`, `score`, and `start`/`step`, where the "memory" is the
number of lines to write. The whole forward and the steps give the same numbers (reliability.md N11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.layers.attention.cache import GrowingCache
from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.layers.feedforward import NORM_EPSILON, FeedForward, Residual
from phraseloom.models import translation as targets
from phraseloom.models.translation import Looks
from phraseloom.outputs.softmax import LossSums, SoftmaxOutput


class CausalLayer(nn.Module):
    """Causal self-attention and feed-forward, each inside a residual."""

    def __init__(
        self, *, self_attention: MultiHeadAttention, feed_forward: FeedForward, residuals: tuple[Residual, Residual]
    ) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward
        self.self_residual, self.feed_forward_residual = residuals

    def forward(self, x_BTD: Tensor, own: Visibility, *, need_weights: bool = True) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) → (B, T, D) and the attention weights, which may be None without `need_weights`."""
        around = self.self_residual
        attended, weights = self.self_attention(around.enter(x_BTD), None, own, need_weights=need_weights)
        x_BTD = around.leave(x_BTD, attended)
        around = self.feed_forward_residual
        return around.leave(x_BTD, self.feed_forward(around.enter(x_BTD))), weights

    def step(self, x_RD: Tensor, cache: GrowingCache) -> Tensor:
        """One step of every row: (R, D) → (R, D)."""
        around = self.self_residual
        x_RD = around.leave(x_RD, self.self_attention.step_self(around.enter(x_RD), cache))
        around = self.feed_forward_residual
        return around.leave(x_RD, self.feed_forward(around.enter(x_RD)))


@dataclass
class TextState:
    """What search carries from step to step; rows are line * beam + hypothesis."""

    caches: list[GrowingCache]
    rows: int
    beam: int
    device: torch.device
    step: int = 0

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was."""
        for cache in self.caches:
            cache.reorder(rows_R)
        self.rows = len(rows_R)

    def expand(self, beam: int) -> None:
        """From one hypothesis a line to `beam` equal ones."""
        assert self.beam == 1
        self.beam = beam
        self.reorder(torch.arange(self.rows, device=self.device).repeat_interleave(beam))

    def keep(self, lines_B: Tensor) -> None:
        """Only these lines stay, with all their hypotheses, in this order."""
        hypotheses = torch.arange(self.beam, device=lines_B.device)
        self.reorder((lines_B[:, None] * self.beam + hypotheses).flatten())


class CausalDecoder(nn.Module):
    """A stack of layers; `final_norm` closes a pre-norm stack."""

    def __init__(
        self, layers: list[CausalLayer], *, width: int, final_norm: bool, epsilon: float = NORM_EPSILON
    ) -> None:
        super().__init__()
        self.layers: Sequence[CausalLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width, eps=epsilon) if final_norm else nn.Identity()

    def forward(self, x_BTD: Tensor, *, kept: list[Tensor] | None = None) -> Tensor:
        """Hidden states (B, T, D); the attention of every layer, as structure.py lays it out, is added to `kept`.

        Padding needs no mask: it stands on the right, where causality hides it from every real position.
        """
        own = Visibility(key_length=x_BTD.shape[1], causal=True, query_length=x_BTD.shape[1], device=x_BTD.device)
        for layer in self.layers:
            x_BTD, weights = layer(x_BTD, own, need_weights=kept is not None)
            if kept is not None:
                kept.append(weights)
        hidden: Tensor = self.norm(x_BTD)
        return hidden

    def step(self, x_RD: Tensor, state: TextState) -> Tensor:
        """One step: embedded tokens (R, D) → hidden (R, D)."""
        for layer, cache in zip(self.layers, state.caches, strict=True):
            x_RD = layer.step(x_RD, cache)
        state.step += 1
        hidden: Tensor = self.norm(x_RD)
        return hidden


class LanguageModel(nn.Module):
    """p(line) as a product over its tokens, each given those before it. Source: Vaswani et al. 2017 without the encoder."""

    writes = "tokens"

    def __init__(self, *, embedding: TokenEmbedding, decoder: CausalDecoder, output: SoftmaxOutput) -> None:
        super().__init__()
        self.embedding, self.decoder, self.output = embedding, decoder, output

    def decode(self, target_in_BT: Tensor) -> Tensor:
        """Input ids (BOS first) → hidden states (B, T, D)."""
        hidden: Tensor = self.decoder(self.embedding(target_in_BT))
        return hidden

    def look(self, target_in_BT: Tensor) -> Looks:
        """The weights of the attention of every layer for given lines (input ids, BOS first)."""
        own: list[Tensor] = []
        self.decoder(self.embedding(target_in_BT), kept=own)
        found = [(w, layer.self_attention.structure) for w, layer in zip(own, self.decoder.layers, strict=True)]
        return Looks([], found, [])

    def forward(self, batch: Batch) -> LossSums:
        """The sums of the training loss over the real tokens of a batch (same as `loss`)."""
        return targets.loss(self.output, self.decode(batch.target_in_BT), batch)

    loss = forward

    def token_states(self, batch: Batch) -> dict[str, Tensor]:
        """The states of the decoder, (B, T, D), for a batch."""
        return {"decoder": self.decode(batch.target_in_BT)}

    def score(self, batch: Batch) -> Tensor:
        """log p of every token, (B, T); zero beyond the length. Their sum is log p of the line."""
        return targets.log_probs(self.output, self.decode(batch.target_in_BT), batch)

    def start(self, memory: int, *, beam: int = 1, max_length: int = 64) -> TextState:
        """The state before the first token of `memory` lines, `beam` hypotheses each."""
        caches = [layer.self_attention.start(memory * beam, max_length) for layer in self.decoder.layers]
        return TextState(caches, memory * beam, beam, self.output.weight.device)

    def step(self, tokens_R: Tensor, state: TextState) -> tuple[Tensor, list[Any]]:
        """Feed one token to every row: hidden (R, D); the list is empty, where a translation has its cross-attention."""
        embedded_R1D = self.embedding(tokens_R[:, None], first=state.step)
        return self.decoder.step(embedded_R1D[:, 0], state), []
