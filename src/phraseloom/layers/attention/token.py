"""Token scores: ordinary scaled dot-product attention (Vaswani et al. 2017), the n-gram score of order 1.

    A[i,j] = q_i · k_j / √E        q = x_q Wq,  k = x_k Wk,  v = x_k Wv        (no biases)

One parameter holds the three matrices, rows Wq | Wk | Wv, so that self-attention makes them in one product.
"""

from __future__ import annotations

from phraseloom.layers.attention.score import AttentionScore
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.attention.windows import Layout, Window, WindowOutput


class TokenScore(AttentionScore):
    """Queries, keys, values of single tokens, and their scores. Source: Vaswani et al. 2017, §3.2.

    Raises ValueError for a structure with n-grams.
    """

    def __init__(self, *, width: int, structure: Structure) -> None:
        if not structure.is_token:
            raise ValueError("token scores know no n-grams: every order must be 1")
        super().__init__(structure=structure, layout=_layout(width, structure.heads, width // structure.heads))


def _layout(width: int, heads: int, size: int) -> Layout:
    layout = Layout(width, size)

    def one(name: str, scale: float = 1.0) -> tuple[WindowOutput, ...]:
        return (WindowOutput(heads, 1, (Window(0, 0, heads, tuple(layout.add(name, heads)), scale),)),)

    layout.queries = one("Wq", size**-0.5)
    layout.split = layout.rows
    layout.keys, layout.values = one("Wk"), one("Wv")
    return layout
