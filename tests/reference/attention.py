"""Token and relative attention as loops (Vaswani et al. 2017; Shaw et al. 2018)."""

from __future__ import annotations

import math

import numpy as np


def attention(
    x_q: np.ndarray,
    x_k: np.ndarray,
    *,
    w_q: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    w_o: np.ndarray,
    heads: int,
    length: int,
    causal: bool = False,
    key_table: np.ndarray | None = None,
    value_table: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One sentence: output (Q, D) and weights (H, Q, K). Matrices are (in, out); `length` real tokens in `x_k`."""
    queries, keys, values = x_q @ w_q, x_k @ w_k, x_k @ w_v
    width = w_q.shape[1]
    size = width // heads
    clip = 0 if key_table is None else (len(key_table) - 1) // 2
    context = np.zeros((len(x_q), width))
    weights = np.zeros((heads, len(x_q), len(x_k)))
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        for i in range(len(x_q)):
            visible = [j for j in range(length) if not causal or j <= i]
            scores = {}
            for j in visible:
                key = keys[j, part]
                if key_table is not None:
                    key = key + key_table[min(max(j - i, -clip), clip) + clip]
                scores[j] = float(queries[i, part] @ key) / math.sqrt(size)
            if not visible:
                continue
            top = max(scores.values())
            total = sum(math.exp(s - top) for s in scores.values())
            for j in visible:
                p = math.exp(scores[j] - top) / total
                weights[h, i, j] = p
                value = values[j, part]
                if value_table is not None:
                    value = value + value_table[min(max(j - i, -clip), clip) + clip]
                context[i, part] += p * value
    return context @ w_o, weights
