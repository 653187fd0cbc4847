"""What incremental decoding remembers, and the one protocol to reorder and thin it.

Rows are hypotheses, sentence by sentence: row = sentence * beam + hypothesis. A *growing* cache belongs to self-attention:
one entry a step and row. A *fixed* cache belongs to cross-attention: made once from the source, one entry a sentence,
shared by the hypotheses of that sentence, so that a beam costs no copies of the source.
"""

from __future__ import annotations

import torch
from torch import Tensor


class GrowingCache:
    """Keys and values of the steps so far: two buffers (R, H, capacity, E) of which `length` steps are filled."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values, self.length = keys, values, 0

    @classmethod
    def empty(cls, rows: int, heads: int, size: int, *, capacity: int, like: Tensor) -> GrowingCache:
        """An empty cache for `rows` hypotheses; it grows beyond `capacity` when it must."""
        return cls(like.new_zeros(rows, heads, capacity, size), like.new_zeros(rows, heads, capacity, size))

    def append(self, keys_RH1E: Tensor, values_RH1E: Tensor) -> tuple[Tensor, Tensor]:
        """Add one step; all keys and all values so far, each (R, H, length, E)."""
        if self.length == self._keys.shape[2]:
            grow = (0, 0, 0, max(8, self.length))
            self._keys, self._values = (torch.nn.functional.pad(t, grow) for t in (self._keys, self._values))
        self._keys[:, :, self.length] = keys_RH1E[:, :, 0]
        self._values[:, :, self.length] = values_RH1E[:, :, 0]
        self.length += 1
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        if len(rows_R) == len(self._keys):
            for buffer in (self._keys, self._values):
                filled = buffer[:, :, : self.length]
                filled.copy_(filled.index_select(0, rows_R))
        else:
            self._keys, self._values = self._keys.index_select(0, rows_R), self._values.index_select(0, rows_R)


class FixedCache:
    """Keys and values of the source, (B, H, K, E): one entry a sentence, whatever the beam."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def keep(self, sentences_B: Tensor) -> None:
        """Only these sentences stay, in this order."""
        self.keys, self.values = self.keys.index_select(0, sentences_B), self.values.index_select(0, sentences_B)
