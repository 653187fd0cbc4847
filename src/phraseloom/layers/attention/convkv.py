"""ConvKV scores: the keys and values of a slot are convolutions over its tokens (P002 eq. 5).

    K_j = Σ_{k<n} x_k[s+k] Wk[k]      V_j = Σ_{k<n} x_k[s+k] Wv[k]      A[i,j] = q_i · K_j / √E      (s: first token of slot j)

One query q_i = x_q[i] Wq is scored against the slots of every order; interleaved structures have one query a query
order, itself a window of m tokens. The slots of all orders stand side by side, so that the scores are one
product.
"""

from __future__ import annotations

from phraseloom.layers.attention.score import AttentionScore
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.attention.windows import Layout, Window, WindowOutput


class ConvKVScore(AttentionScore):
    """Convolved keys and values. Parameter rows: Wq of every query order, Wk of every order, Wv of every order.

    Matrices: Wq (D, D) or Wq_q{m} (m, D, D), Wk_n{n} and Wv_n{n} (n, D, width). Homogeneous structures name the query
    matrices of the heads of order n Wq_n{n}.
    """

    def __init__(self, *, width: int, structure: Structure) -> None:
        super().__init__(structure=structure, layout=_layout(width, width // structure.heads, structure))


def windows(layout: Layout, name: str, structure: Structure) -> WindowOutput:
    """Rows for the slots of every order, each a window of as many taps (keys of ConvKV, values of both scores)."""
    return WindowOutput(
        structure.heads,
        len(structure.blocks),
        tuple(
            Window(g, p.first, p.last, tuple(layout.add(f"{name}_n{p.order}", p.last - p.first, p.order)))
            for g, block in enumerate(structure.blocks)
            for p in block
        ),
    )


def _layout(width: int, size: int, structure: Structure) -> Layout:
    layout, heads, scale = Layout(width, size), structure.heads, size**-0.5
    orders = structure.query_orders
    if structure.zero_extended:
        parts = structure.blocks[0]
        queries = [
            Window(0, p.first, p.last, tuple(layout.add(f"Wq_n{p.order}", p.last - p.first)), scale) for p in parts
        ]
    elif structure.interleaved:
        queries = [
            Window(m, 0, heads, tuple(layout.add(f"Wq_q{order}", heads, order)), scale)
            for m, order in enumerate(orders)
        ]
    else:
        queries = [Window(0, 0, heads, tuple(layout.add("Wq", heads)), scale)]
    layout.queries = (WindowOutput(heads, len(orders), tuple(queries)),)
    layout.split = layout.rows
    layout.keys = (windows(layout, "Wk", structure),)
    layout.values = (windows(layout, "Wv", structure),)
    return layout
