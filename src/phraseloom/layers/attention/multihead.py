"""The attention block: a score and an arrangement put together; one forward, one incremental step.

attention = score (what queries, keys, values and their products are) × arrangement (which head sees which orders, and
how contexts are combined). This module holds what all of them share: one softmax per query over all slots that its head
sees, in the layout of structure.py, and the caches of step-by-step decoding.
`layers/attention/__init__.py` names the entries of both tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.backend import attend
from phraseloom.layers.attention.cache import FixedCache, GrowingCache
from phraseloom.layers.attention.gate import can_be_gated, mix_with_tokens, opening
from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.attention.windows import Pending, gather
from phraseloom.layers.feedforward import dropout
from phraseloom.layers.packed import Packed


class MultiHeadAttention(nn.Module):
    """Multi-head attention of queries over a memory (cross) or over themselves (self).

    `score`, `arrangement`: entries of SCORES and ARRANGEMENTS, built for the same structure. Values at padded
    positions have no effect: they are taken as zero vectors and hidden from every query. `gated`: begin as attention to
    tokens (gate.py); ValueError where heads do not see both tokens and n-grams. `bias`: one number for each row of the packed
    matrix, so that every tap of a window has its own; windows that begin before the text get none for positions outside it.
    `backend`: see backend.py.
    """

    def __init__(
        self, *, score: Any, arrangement: Any, gated: bool = False, bias: bool = False, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.score, self.arrangement, self.backend = score, arrangement, backend
        self.bias = nn.Parameter(torch.zeros(len(score.weight))) if bias else None
        self.structure = score.structure
        if gated and not can_be_gated(self.structure):
            raise ValueError("a gate lies between tokens and n-grams, and no head here sees both")
        self.gate = nn.Parameter(torch.zeros(self.structure.heads)) if gated else None
        self._packed: dict[tuple[int, int | None], Packed] | None = None

    def pack(self) -> None:
        """Lay out the packed matrix for inference (`layers/packed.py`), each part of it when it is first used."""
        self._packed = {}

    def forward(
        self, x_BQD: Tensor, memory_BKD: Tensor | None, visibility: Visibility, *, need_weights: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Output (B, Q, D) and weights (B, H, J·Q, G·K) before dropout; `memory_BKD` None means self-attention.

        Without `need_weights` the weights may be None.
        """
        score, layout = self.score, self.score.layout
        parts = len(layout.queries)
        if memory_BKD is None:
            made = self._project(visibility.without_padding(x_BQD), layout.queries + layout.keys + layout.values)
            queries, made = made[:parts], made[parts:]
        else:
            queries = self._project(x_BQD, layout.queries, end=layout.split)
            made = self._project(
                visibility.without_padding(memory_BKD), layout.keys + layout.values, start=layout.split
            )
        contexts, weights = attend(
            score,
            self.gate,
            (queries, made[: len(layout.keys)], made[len(layout.keys) :]),
            visibility,
            backend=self.backend,
            need_weights=need_weights,
            rows=x_BQD.shape[1],
            of_itself=memory_BKD is None,
            dropout=self.arrangement.dropout if self.training else 0.0,
        )
        return self.arrangement(contexts), weights

    def start(self, rows: int, capacity: int) -> GrowingCache:
        """An empty cache for causal self-attention, step by step."""
        layout, weight = self.score.layout, self.score.weight
        pending = Pending(layout.queries + layout.keys + layout.values, layout.size, 0, rows, weight)
        return GrowingCache(pending, len(layout.queries), len(layout.keys), capacity=capacity, like=weight, rows=rows)

    def remember(self, memory_BKD: Tensor, visibility: Visibility, *, beam: int = 1) -> FixedCache:
        """The keys and values of a source, for cross-attention step by step of `beam` hypotheses a sentence."""
        layout = self.score.layout
        made = self._project(visibility.without_padding(memory_BKD), layout.keys + layout.values, start=layout.split)
        pending = None
        if max(output.taps for output in layout.queries) > 1:
            pending = Pending(layout.queries, layout.size, 0, len(memory_BKD) * beam, self.score.weight)
        return FixedCache(made[: len(layout.keys)], made[len(layout.keys) :], pending)

    def step_self(self, x_RD: Tensor, cache: GrowingCache) -> Tensor:
        """One causal self-attention step of every row; the cache grows by it. (R, D)."""
        queries, keys, values = cache.step(self._product(x_RD, 0, None))
        visibility = Visibility(key_length=cache.length, first_query=cache.length - 1, device=x_RD.device)
        scores = self.score.scores(queries, keys, visibility, by_time=True)
        weights = self._gated(self._softmax(scores, cache.length), scores, None, by_time=True)
        weights = self._existing(weights, cache.length)
        output: Tensor = self.arrangement(self.score.mix(weights, values, visibility, by_time=True))
        return output[:, 0]

    def step_cross(self, x_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """One cross-attention step: rows (B·W) are taken as W queries of their sentence. (R, D), (R, H, J, G·K)."""
        layout, cache.length = self.score.layout, cache.length + 1
        sentences = len(cache.keys[0])
        if cache.pending is None:
            queries = self._project(x_RD.view(sentences, -1, x_RD.shape[-1]), layout.queries, end=layout.split)
        else:
            rows = [cache.pending.empty(output, len(x_RD), x_RD) for output in layout.queries]
            cache.pending.step(self._product(x_RD, 0, layout.split), rows)
            queries = [q.unflatten(0, (sentences, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3) for q in rows]
        scores = self.score.scores(queries, cache.keys, visibility)
        hidden = visibility.hidden_slots(self.structure)
        weights = self._existing(self._gated(masked_softmax(scores, hidden), scores, hidden), cache.length)
        dropped = dropout(weights, self.arrangement.dropout, self.training)
        output: Tensor = self.arrangement(self.score.mix(dropped, cache.values, visibility))
        by_row = weights.unflatten(2, (len(self.structure.query_orders), -1)).permute(0, 3, 1, 2, 4).flatten(0, 1)
        return output.reshape(x_RD.shape), by_row

    def _gated(self, weights: Tensor, scores: Tensor, hidden: Tensor | None, *, by_time: bool = False) -> Tensor:
        """The weights, mixed with attention to tokens as far as the gate is shut."""
        if self.gate is None:
            return weights
        return mix_with_tokens(weights, scores, hidden, opening(self.gate), self.structure, by_time=by_time)

    def _product(self, x: Tensor, start: int, end: int | None) -> Tensor:
        """Rows start … end of the packed matrix times the input, plus their biases: (…, D) → (…, rows)."""
        whole = self.score.weight
        weight = whole[start:end] if start or end else whole
        bias = None if self.bias is None else self.bias[start:end]
        if self._packed is not None and not self.training and x.dtype == torch.float32 and x.device.type == "cpu":
            packed = self._packed.get((start, end))
            if packed is None:
                packed = self._packed[start, end] = Packed(weight, bias, of=whole)
            if packed.fits(x, whole):
                return packed(x)
        return F.linear(x, weight, bias)

    def _project(self, x_BLD: Tensor, outputs: Any, *, start: int = 0, end: int | None = None) -> list[Tensor]:
        return gather(self._product(x_BLD, start, end), outputs, self.score.layout.size, start)

    def _softmax(self, scores: Tensor, length: int) -> Tensor:
        """Weights from scores (R, H, J, length·G) by time: zero for slots that would begin before the text."""
        if self.structure.zero_extended or self.structure.is_token:
            return scores.softmax(-1)
        if min(self.structure.orders) > length:
            return torch.zeros_like(scores)
        if scores.requires_grad:
            scores = scores.clone()  # a score's own result must not be changed in place under autograd
        slots = scores.unflatten(-1, (length, -1))
        for g, block in enumerate(self.structure.blocks):
            if block[0].order > 1:
                slots[..., : block[0].order - 1, g] = float("-inf")
        return scores.softmax(-1)

    def _existing(self, rows: Tensor, length: int) -> Tensor:
        """Rows (B, H, J·W, …) of the queries after `length` steps, with zeros where the query n-gram would begin before
        the text."""
        if length < max(self.structure.query_orders):
            rows = rows.clone() if rows.requires_grad else rows  # autograd needs the softmax as it was
            by_order = rows.unflatten(2, (len(self.structure.query_orders), -1))
            for m, order in enumerate(self.structure.query_orders):
                if order > length:
                    by_order[:, :, m] = 0.0
        return rows
