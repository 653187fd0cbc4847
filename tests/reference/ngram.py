"""n-gram attention as loops, one sentence at a time, in float64, written from the equations (P000 §3, P002 §3).

    window_n(x, s; W) = Σ_{k<n} x[s+k] W[k]              tokens before the sentence are zero vectors
    ConvKV   A[i,j] = (x_q[i] Wq) · window_n(x_k, s(j); Wk_n) / √d_k
    QueryK   A[i,j] = Σ_{k<n} (x_q[i] Wq_n[k]) · (x_k[s(j)+k] Wk) / √(n d_k)
    values   V_j = window_n(x_k, s(j); Wv_n)
    homogeneous  s(j) = j-n+1, one softmax for each head of order n
    heterogeneous, interleaved  s(j) = j, one softmax over the slots of all orders, named by their FIRST token

With relative positions (Shaw et al. 2018), the key of a slot (ConvKV) or of each token under the kernel (QueryK) has the vector
`key_table[c(distance)]` added, and the value of a slot `value_table[c(distance)]`: from the last token of the query to the last
token of what is added to.

Matrices have the names of the golden vectors without `weight_` and the orientation x @ W, taps first.
A head is a slice of columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Matrices = Mapping[str, np.ndarray]


@dataclass
class Result:
    """Output (Q, D); context before the output matrix (Q, D); probabilities and query n-gram vectors by golden name."""

    output: np.ndarray
    context: np.ndarray | None = None
    probs: dict[str, np.ndarray] = field(default_factory=dict)
    vectors: dict[int, np.ndarray] = field(default_factory=dict)


def window(x: np.ndarray, first: int, kernel: np.ndarray) -> np.ndarray:
    """Σ_k x[first+k] kernel[k], where tokens before the sentence are zero vectors."""
    result = np.zeros(kernel.shape[-1])
    for k in range(len(kernel)):
        if first + k >= 0:
            result += x[first + k] @ kernel[k]
    return result


def softmax(scores: Sequence[float]) -> list[float]:
    if not scores:
        return []
    top = max(scores)
    parts = [math.exp(s - top) for s in scores]
    return [p / sum(parts) for p in parts]


def of_distance(w: Matrices, name: str, end: int, size: int) -> Callable[[int], np.ndarray]:
    """The vector that a table, if there is one, has for a token seen from token `end`."""
    if (table := w.get(name)) is None:
        return lambda token: np.zeros(size)
    clip = len(table) // 2
    return lambda token: table[clip + min(max(token - end, -clip), clip)]


def convkv_score(query: np.ndarray, x_k: np.ndarray, first: int, w_k: np.ndarray, add: Callable[[int], Any]) -> float:
    """One query (d_k) and the slot that begins at token `first`; w_k (n, D, d_k)."""
    return float(query @ (window(x_k, first, w_k) + add(first + len(w_k) - 1))) / math.sqrt(len(query))


def queryk_score(kernel: np.ndarray, x_k: np.ndarray, first: int, w_k: np.ndarray, add: Callable[[int], Any]) -> float:
    """One query as a kernel (n, d_k) over the projected tokens first … first+n-1; w_k (D, d_k)."""
    n, size = kernel.shape
    total = 0.0
    for k in range(n):
        if first + k >= 0:
            total += float(kernel[k] @ (x_k[first + k] @ w_k + add(first + k)))
    return total / math.sqrt(n * size)


def homogeneous(
    x_q: np.ndarray, x_k: np.ndarray, w: Matrices, *, technique: str, split: Mapping[int, int], causal: bool = False
) -> Result:
    """`split[n]` heads of order n, ascending, in contiguous blocks; every head has one slot a token."""
    width, heads = x_q.shape[-1], sum(split.values())
    size, before = width // heads, 0
    context, probs = np.zeros((len(x_q), width)), {}
    for n in sorted(split):
        probs[f"n{n}"] = np.zeros((split[n], len(x_q), len(x_k)))
        for h in range(split[n]):
            part = slice(h * size, (h + 1) * size)
            values = [window(x_k, j - n + 1, w[f"Wv_n{n}"][..., part]) for j in range(len(x_k))]
            for i in range(len(x_q)):
                slots = [j for j in range(len(x_k)) if not causal or j <= i]
                query = x_q[i] @ w[f"Wq_n{n}"][..., part]
                score, w_k = _score(technique), w[f"Wk_n{n}"][..., part]
                add, add_value = (of_distance(w, name, i, size) for name in ("key_table", "value_table"))
                shares = softmax([score(query, x_k, j - n + 1, w_k, add) for j in slots])
                for j, p in zip(slots, shares, strict=True):
                    probs[f"n{n}"][h, i, j] = p
                    context[i, (before + h) * size : (before + h + 1) * size] += p * (values[j] + add_value(j))
        before += split[n]
    return Result(context @ w["Wo"], context, probs)


def heterogeneous(
    x_q: np.ndarray,
    x_k: np.ndarray,
    w: Matrices,
    *,
    technique: str,
    heads: int,
    orders: Sequence[int],
    causal: bool = False,
) -> Result:
    """Every head sees the slots of all orders in one softmax."""

    def query(i: int, n: int) -> np.ndarray:
        return x_q[i] @ (w["Wq"] if technique == "convkv" else w[f"Wq_n{n}"])

    context, probs = _attend(query, range(len(x_q)), x_k, w, technique, heads, orders, causal)
    return Result(context @ w["Wo"], context, {f"n{n}": p for n, p in probs.items()})


def interleaved(
    x_q: np.ndarray, x_k: np.ndarray, w: Matrices, *, technique: str, heads: int, orders: Sequence[int],
    causal: bool = False, reads_ahead: bool = False,
) -> Result:  # fmt: skip
    """Queries of every order over slots of every order; then the output convolution.

    `Wout` is the paper's, for orders 1 and 2; `Wout_q{m}` (taps, D, D) ours for any orders that hold 1: tap a takes the
    m-gram that ends at token i+a, of which only a = 0 where the output may not read ahead.
    """
    result = Result(np.zeros(0))
    for m in orders:

        def query(i: int, n: int, m: int = m) -> np.ndarray:
            if technique == "convkv":
                return window(x_q, i, w[f"Wq_q{m}"])
            kernels = w[f"Wq_q{m}_n{n}"]
            return np.stack([window(x_q, i, kernels[:, k]) for k in range(n)])

        ends = [i + m - 1 for i in range(len(x_q) - m + 1)]
        result.vectors[m], probs = _attend(query, ends, x_k, w, technique, heads, orders, causal)
        result.probs |= {f"query{m}gram_key{n}gram": p for n, p in probs.items()}
    mix = _papers_convolution if "Wout" in w else _any_orders
    result.output = mix(result.vectors, w, reads_ahead)
    return result


def _score(technique: str):
    return {"convkv": convkv_score, "queryk": queryk_score}[technique]


def _attend(query, ends, x_k, w, technique, heads, orders, causal) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Heterogeneous attention of given queries: number i is `query(i, n)`, and its last token is `ends[i]`."""
    width = w[f"Wv_n{orders[0]}"].shape[-1]
    size, length = width // heads, len(x_k)
    context = np.zeros((len(ends), width))
    probs = {n: np.zeros((heads, len(ends), max(length - n + 1, 0))) for n in orders}
    queries = [{n: query(i, n) for n in orders} for i in range(len(ends))]
    values = {(n, j): window(x_k, j, w[f"Wv_n{n}"]) for n in orders for j in range(length - n + 1)}
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        for i, end in enumerate(ends):
            slots, scores = [], []
            add, add_value = (of_distance(w, name, end, size) for name in ("key_table", "value_table"))
            for n in orders:
                w_k = (w["Wk"] if "Wk" in w else w[f"Wk_n{n}"])[..., part]
                for j in range(length - n + 1):
                    if not causal or j + n - 1 <= end:
                        slots.append((n, j))
                        scores.append(_score(technique)(queries[i][n][..., part], x_k, j, w_k, add))
            for (n, j), p in zip(slots, softmax(scores), strict=True):
                probs[n][h, i, j] = p
                context[i, part] += p * (values[n, j][part] + add_value(j + n - 1))
    return context, probs


def _papers_convolution(vectors: dict[int, np.ndarray], w: Matrices, reads_ahead: bool) -> np.ndarray:
    """I = (0, u1, b1, u2, …, b_{N-1}, u_N[, 0]), then a window of 3 (or 2) with stride 2 (P002 eqs. 13-16)."""
    zero = np.zeros(vectors[1].shape[-1])
    sequence = [zero]
    for i, unigram in enumerate(vectors[1]):
        sequence.append(unigram)
        if i < len(vectors[2]):
            sequence.append(vectors[2][i])
    if reads_ahead:
        sequence.append(zero)
    taps = 3 if reads_ahead else 2
    assert len(w["Wout"]) == taps
    output = np.zeros_like(vectors[1])
    for i in range(len(vectors[1])):
        for k in range(taps):
            output[i] += sequence[2 * i + k] @ w["Wout"][k]
    return output


def _any_orders(vectors: dict[int, np.ndarray], w: Matrices, reads_ahead: bool) -> np.ndarray:
    output = np.zeros_like(vectors[1])
    for i in range(len(output)):
        for m, found in vectors.items():
            for a in range(m if reads_ahead else 1):
                first = i + a - m + 1
                if 0 <= first < len(found):
                    output[i] += found[first] @ w[f"Wout_q{m}"][a]
    return output
