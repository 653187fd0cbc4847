"""Source phrase representations as loops over one sentence, in float64, from the equations of P001. No batch, no mask."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def phrase_length(tokens: int, *, max_tokens: int, min_chunks: int, floor: int) -> int:
    """max(min(max_tokens, ⌈tokens / min_chunks⌉), floor)."""
    return max(min(max_tokens, math.ceil(tokens / min_chunks)), floor)


def cut(tokens: int, n: int) -> list[range]:
    """The phrases of `tokens` tokens, n at a time, the rest at the end."""
    return [range(start, min(start + n, tokens)) for start in range(0, tokens, n)]


def spans(sizes: list[int]) -> list[range]:
    """The phrases of these sizes."""
    found, start = [], 0
    for size in sizes:
        found.append(range(start, start + size))
        start += size
    return found


def sigmoid(x: Array | float) -> Array:
    return 1.0 / (1.0 + np.exp(-np.asarray(x, np.float64)))


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def glance(tokens: list[Array], kind: str) -> Array:
    """Element-wise maximum or mean."""
    return np.max(tokens, 0) if kind == "max" else np.sum(tokens, 0) / len(tokens)


def token_scores(tokens: list[Array], g: Array, w: dict[str, Array]) -> Array:
    """s_k = w2 · sigmoid(W1 [g ; x_k] + b1)."""
    return np.array([w["score"] @ sigmoid(w["hidden"] @ np.concatenate([g, x]) + w["bias"]) for x in tokens])


def phrase_vector(tokens: list[Array], kind: str, attention: str, w: dict[str, Array]) -> tuple[Array, Array]:
    """The vector of one phrase and the weights of its tokens."""
    g = glance(tokens, kind)
    if attention == "none":
        return g, np.zeros(len(tokens))
    scores = token_scores(tokens, g, w)
    if attention == "softmax":
        p = softmax(scores)
        return sum(p_k * x for p_k, x in zip(p, tokens, strict=True)), p
    c = sigmoid(scores + w["score_bias"]) / len(tokens)
    return sum(c_k * x for c_k, x in zip(c, tokens, strict=True)) + (1 - c.sum()) * g, c


def layer_norm(x: Array, gain: Array, offset: Array) -> Array:
    """LN with ε = 1e-6 over one vector."""
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * gain + offset


def attend(x: Array, memory: list[Array], w: dict[str, Array], heads: int) -> Array:
    """One query over all of `memory`: heads, then the output matrix. Matrices are used as W @ x."""
    size, contexts = len(x) // heads, []
    for h, p in enumerate(shares(x, memory, w, heads)):
        values = [(w["value"] @ r)[h * size : (h + 1) * size] for r in memory]
        contexts.append(sum(p_j * v for p_j, v in zip(p, values, strict=True)))
    return w["output"] @ np.concatenate(contexts)


def shares(x: Array, memory: list[Array], w: dict[str, Array], heads: int) -> list[Array]:
    """How much of each of `memory` each head reads for one query."""
    size, q, found = len(x) // heads, w["query"] @ x, []
    for h in range(heads):
        rows = slice(h * size, (h + 1) * size)
        keys = [(w["key"] @ r)[rows] for r in memory]
        found.append(softmax(np.array([q[rows] @ k / math.sqrt(size) for k in keys])))
    return found


def combine(x: Array, a: Array, w: dict[str, Array]) -> Array:
    """z = W_b sigmoid(W_a [x ; a] + b_a)."""
    return w["down"] @ sigmoid(w["hidden"] @ np.concatenate([x, a]) + w["bias"])


def combination(
    x: Array, phrases: list[Array], w: dict[str, Array], heads: int, *, pre: bool, residual: str = "both"
) -> Array:
    """The whole network for one token, with its normalisation and its residual: x + a, or x alone (P001's text)."""
    read = layer_norm(x, w["gain"], w["offset"]) if pre else x
    a = attend(read, phrases, w, heads)
    y = combine(read, a, w) + x
    if residual == "both":
        y = y + a
    return y if pre else layer_norm(y, w["gain"], w["offset"])


def mixtures(levels: list[Array], logits: Array) -> list[Array]:
    """Σ_i softmax_i(w)[i, j] R^i for each decoder layer j."""
    result = []
    for j in range(logits.shape[1]):
        share = softmax(logits[:, j])
        result.append(sum(s * level for s, level in zip(share, levels, strict=True)))
    return result
