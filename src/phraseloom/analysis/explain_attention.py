"""Every attention of one sentence pair as plain data: weights by head with their axes, and how much goes to each order.

The schema stands in `analysis/explain.py`. Rows and columns are those of `analysis/heatmap.py`; here each head has its own map,
on the axes of the whole layer, with 0 where the head has no slot of an order. The mean over heads is the heat map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phraseloom.analysis.heatmap import Tokens
from phraseloom.analysis.packing import pack
from phraseloom.decoding.limits import refuse_nan
from phraseloom.layers.attention.structure import Structure

Place = tuple[int, int]  # number of the order, last token


@dataclass(frozen=True)
class TokenAxis:
    """What stands along an axis: `shown` tokens of one side, the first of which is token `first` of the view (-1: BOS)."""

    tokens: Tokens
    side: str
    shown: int
    first: int = 0

    def axis(self, orders: Sequence[int], *, zero_extended: bool = False) -> tuple[dict[str, Any], list[Place]]:
        """The n-grams of each order as an Axis of the schema, and the place of each in the layout of a structure."""
        axis, places = self.tokens.axis(orders, zero_extended=zero_extended)
        kept = [n for n, (_, last) in enumerate(places) if last < self.shown]
        plain = {
            "labels": [axis.labels[n] for n in kept],
            "orders": [axis.orders[n] for n in kept],
            "ends": [places[n][1] + self.first for n in kept],
            "side": self.side,
        }
        return plain, [places[n] for n in kept]


def head_slots(weights_HQK: Tensor, structure: Structure) -> Tensor:
    """(H, J·Q, G·K) → (H, J, N, Q, K): slots sorted by their order, 0 where a head has none of it."""
    split = structure.split(weights_HQK)
    heads, rows, queries, _, keys = split.shape
    result = split.new_zeros(heads, rows, len(structure.orders), queries, keys)
    for g, block in enumerate(structure.blocks):
        for part in block:
            of_part = slice(part.first, part.last)
            result[of_part, :, structure.orders.index(part.order)] += split[of_part, :, :, g]
    return result


def attention(
    looks: Sequence[tuple[Tensor, Structure]], kinds_L: Sequence[str], use: str, rows: TokenAxis, columns: TokenAxis
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """For each layer of one use its entry of `attention` and those of `shares`; weights (1, H, J·Q, G·K) of one sentence.

    Raises ModelError where the model gives NaN.
    """
    for layer, ((weights, structure), kind) in enumerate(zip(looks, kinds_L, strict=True), 1):
        refuse_nan(weights)
        slots = head_slots(weights[0].double().cpu(), structure).numpy()
        row_axis, queries = rows.axis(structure.query_orders)
        column_axis, places = columns.axis(structure.orders, zero_extended=structure.zero_extended)
        m, i = np.array(queries, np.int64).reshape(-1, 2).T[:, :, None]
        n, j = np.array(places, np.int64).reshape(-1, 2).T[:, None, :]
        cells_HRC = slots[:, m, n, i, j]
        entry = {
            "use": use,
            "layer": layer,
            "heads": structure.heads,
            "kind": kind,
            "rows": row_axis,
            "columns": column_axis,
            "weights": pack(cells_HRC),
            "tokens": None if structure.is_token else pack(_over_tokens(weights, structure, rows, columns)),
        }
        yield entry, list(_shares(cells_HRC, structure, (row_axis, column_axis), use, layer))


def _over_tokens(weights: Tensor, structure: Structure, rows: TokenAxis, columns: TokenAxis) -> np.ndarray:
    spread: Tensor = structure.token_weights(weights.to(torch.float64))[0]
    return spread[:, : rows.shown, : columns.shown].cpu().numpy()


def _shares(
    cells_HRC: np.ndarray, structure: Structure, axes: tuple[dict[str, Any], dict[str, Any]], use: str, layer: int
) -> Iterator[dict[str, Any]]:
    """For each order of queries the share of each order of slots in what each head gives out."""
    rows, columns = (np.array(axis["orders"], np.int64) for axis in axes)
    for query in structure.query_orders:
        by_order = {n: cells_HRC[:, rows == query][:, :, columns == n].sum((1, 2)) for n in structure.orders}
        total_H = np.sum(list(by_order.values()), axis=0)
        heads = [
            {str(n): float(mass_H[h] / total) if total > 0 else None for n, mass_H in by_order.items()}
            for h, total in enumerate(total_H)
        ]
        yield {"use": use, "layer": layer, "query": query, "heads": heads}
