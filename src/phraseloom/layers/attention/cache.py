"""What incremental decoding remembers, and the one protocol to reorder and thin it.

Rows are hypotheses, sentence by sentence: row = sentence * beam + hypothesis. A *growing* cache belongs to
self-attention: the slots that end at each step, in every row. A *fixed* cache belongs to cross-attention: made once
from the source, one entry a sentence, shared by the hypotheses of that sentence, so that a beam costs no copies of the
source. Both hold the windows that have begun and not ended: of keys and values in the one, of n-gram
queries in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phraseloom.layers.attention.windows import Pending


class GrowingCache:
    """Keys and values of the steps so far: buffers (R, H, capacity, blocks, E) of which `length` steps are filled."""

    def __init__(
        self, pending: Pending, num_queries: int, num_keys: int, *, capacity: int, like: Tensor, rows: int
    ) -> None:
        self.pending, self.length = pending, 0
        self._num_queries, self._num_keys = num_queries, num_keys
        self._buffers = [
            like.new_empty(rows, output.heads, capacity, output.blocks, pending.size)
            for output in pending.outputs[num_queries:]
        ]

    def step(self, projected_RC: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Add one step; its queries (R, H, blocks, E), and all keys and values so far, (R, H, length·blocks, E) by
        time."""
        if self.length == self._buffers[0].shape[2]:
            grow = (0, 0, 0, 0, 0, max(8, self.length))
            self._buffers = [torch.nn.functional.pad(b, grow) for b in self._buffers]
        of_queries = self.pending.outputs[: self._num_queries]
        queries = [self.pending.empty(output, len(projected_RC), projected_RC) for output in of_queries]
        self.pending.step(projected_RC, queries + [b[:, :, self.length] for b in self._buffers])
        self.length += 1
        filled = [b[:, :, : self.length].flatten(2, 3) for b in self._buffers]
        return queries, filled[: self._num_keys], filled[self._num_keys :]

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        self.pending.reorder(rows_R)
        if len(rows_R) == len(self._buffers[0]):
            for buffer in self._buffers:
                filled = buffer[:, :, : self.length]
                filled.copy_(filled.index_select(0, rows_R))
        else:
            self._buffers = [b.index_select(0, rows_R) for b in self._buffers]


class FixedCache:
    """Keys and values of the source, (B, H, slots, E) each, and the queries that have begun, row by row.

    `pending` is None where every query is a single token.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], pending: Pending | None) -> None:
        self.keys, self.values, self.pending, self.length = keys, values, pending, 0

    def reorder(self, rows_R: Tensor) -> None:
        """The queries of row i become what those of row `rows_R[i]` were; the number of rows may change."""
        if self.pending is not None:
            self.pending.reorder(rows_R)

    def keep(self, sentences_B: Tensor, rows_R: Tensor) -> None:
        """Only these sentences stay, in this order, with their rows."""
        self.keys = [k.index_select(0, sentences_B) for k in self.keys]
        self.values = [v.index_select(0, sentences_B) for v in self.values]
        self.reorder(rows_R)
