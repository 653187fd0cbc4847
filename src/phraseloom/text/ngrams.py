"""The next-token distribution of an interpolated trigram model (Witten and Bell 1991).

    p(w | h) = (c(h w) + n(h) · p(w | h')) / (c(h) + n(h))        h = two tokens, h' = the last one, then none

c counts in the text, n(h) is the number of different tokens after h. Without a token, p(w) = c(w) / c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

UNKNOWN = -1
LINE_TOKENS = 100  # of each line that are read


class TrigramModel:
    """Counts of lines of ids 0 … size - 1; `UNKNOWN` is any other token, which is a context but never predicted.

    Memory: 16 bytes for each different pair and triple of tokens.
    """

    def __init__(self, lines: Iterable[Sequence[int]], size: int) -> None:
        self.size, self._symbols = size, size + 2
        contexts_N2, next_N = predictions(lines)
        self.tokens = len(next_N)
        self._unigrams_V = np.bincount(next_N, minlength=size) / max(1, self.tokens)
        last_N = contexts_N2[:, 1] + 2
        keys = (last_N, last_N + (contexts_N2[:, 0] + 2) * self._symbols)
        self._counts = [np.unique(key_N * size + next_N, return_counts=True) for key_N in keys]

    def posterior(self, contexts_N2: np.ndarray) -> np.ndarray:
        """p of every token after each pair of tokens (the last one second), (N, size), float64."""
        posterior_NV = np.tile(self._unigrams_V, (len(contexts_N2), 1))
        for row_V, (before, last) in zip(posterior_NV, contexts_N2.tolist(), strict=True):
            for order, key in enumerate((last + 2, last + 2 + (before + 2) * self._symbols)):
                ngrams, counts = self._counts[order]
                start, end = np.searchsorted(ngrams, (key * self.size, (key + 1) * self.size))
                if end > start:
                    row_V *= end - start
                    row_V[ngrams[start:end] - key * self.size] += counts[start:end]
                    row_V /= counts[start:end].sum() + end - start
        return posterior_NV


def predictions(lines: Iterable[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Every known token of lines with the two before it: contexts (N, 2), tokens (N,); -2 is the context before a line."""
    contexts, following = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for line in lines:
        padded = np.array([-2, -2, *line[:LINE_TOKENS]], np.int64)
        known = padded[2:] >= 0
        contexts.append(np.stack((padded[:-2], padded[1:-1]), 1)[known])
        following.append(padded[2:][known])
    return np.concatenate(contexts), np.concatenate(following)
