"""Which segments of a batch have to be scored, and in which portions (spec §5.2).

A row is a source position t (from 0) with a cut j where its segment may begin. Every position before it writes at most X words,
and so does every position behind it, hence of T1 positions and T2 words

    max(0, T2 - (T1 - t) X) ≤ j ≤ min(T2, t X)

With a band of w words around the diagonal (an approximation) also |j - t T2 / T1| ≤ w, both where a segment begins and where
it ends. That leaves a segmentation to every pair that has one, since w is one half at least.

Rows stand by sentence, position and cut. A portion is a run of positions with all their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SegmentRows:
    """Rows R at source positions K of sentences B; ids int64. Of pairs that cannot be segmented there are none.

    `sentence_K`, `place_K`: sentence and position. `position_R` counts in K; `cut_R`: words before the segment; `words_R`:
    words that it may have; `word_R`: its first word among the words of the batch, sentence by sentence; `history_R`: its cut
    among the cuts of the batch. `steps_K`: tokens that the rows of a position read, START of each and words.
    `first_row_K`: where the rows of a position begin, and at last where all of them end.
    """

    sentence_K: Tensor
    place_K: Tensor
    position_R: Tensor
    cut_R: Tensor
    words_R: Tensor
    word_R: Tensor
    history_R: Tensor
    steps_K: np.ndarray
    first_row_K: np.ndarray

    @classmethod
    def of(
        cls,
        source_lengths_B: Tensor,
        target_lengths_B: Tensor,
        max_segment: int,
        *,
        unfinished: bool = False,
        band: float | None = None,
    ) -> SegmentRows:
        """Of pairs with so many words.

        `unfinished`: also the cuts from which the end of the target cannot be reached, and pairs where it never can be.
        `band`: only cuts so near to the diagonal.
        """
        device = source_lengths_B.device
        source, target = source_lengths_B.cpu().numpy(), target_lengths_B.cpu().numpy()
        numbers = np.arange(len(source))
        positions = source * (unfinished | (target <= source * max_segment))
        sentence, place = np.repeat(numbers, positions), _counts(positions)
        of = source[sentence], target[sentence]
        low = np.maximum(0, of[1] - (of[0] - place) * max_segment) * (not unfinished)
        high, furthest = np.minimum(of[1], place * max_segment), of[1]
        if band is not None:
            low = np.maximum(low, np.ceil((place * of[1] - band * of[0]) / of[0]).astype(np.int64))
            high = np.minimum(high, _below(place, band, *of))
            furthest = np.minimum(furthest, _below(place + 1, band, *of))
        size = high - low + 1
        position = np.repeat(np.arange(len(size)), size)
        cut = _counts(size) + np.repeat(low, size)
        words = np.minimum(max_segment, furthest[position] - cut)
        before = np.cumsum(target) - target
        word = before[sentence[position]] + cut
        history = word + sentence[position]
        steps = np.bincount(position, words + 1, len(size)).astype(np.int64)
        first = np.concatenate([[0], np.cumsum(size)])
        arrays = (sentence, place, position, cut, words, word, history)
        k, place_k, r, cut_r, words_r, word_r, history_r = (
            torch.from_numpy(a.astype(np.int64)).to(device) for a in arrays
        )
        return cls(k, place_k, r, cut_r, words_r, word_r, history_r, steps, first)

    def portions(self, limit: int) -> Iterator[tuple[slice, slice]]:
        """Runs of positions and their rows, of at most about `limit` steps, one position at least."""
        begin = total = 0
        for number, steps in enumerate(self.steps_K.tolist()):
            if total and total + steps > limit:
                yield self._portion(begin, number)
                begin, total = number, 0
            total += steps
        if begin < len(self.steps_K):
            yield self._portion(begin, len(self.steps_K))

    def _portion(self, begin: int, end: int) -> tuple[slice, slice]:
        return slice(begin, end), slice(int(self.first_row_K[begin]), int(self.first_row_K[end]))


def _below(place_K: np.ndarray, band: float, source_K: np.ndarray, target_K: np.ndarray) -> np.ndarray:
    """The last cut within the band before a position."""
    return np.floor((place_K * target_K + band * source_K) / source_K).astype(np.int64)


def _counts(sizes: np.ndarray) -> np.ndarray:
    """0 … n-1 for each n of `sizes`, one after the other."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
