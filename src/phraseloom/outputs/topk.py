"""The k best columns of each row, best first; equal values in the order of their columns.

For k much smaller than V: the columns are cut into blocks, the k best blocks by their largest entry hold the k best
entries, and only these are sorted. One vectorised maximum over the row replaces a partial sort of it (2 to 3 times
faster than `topk` at V = 8000 on a CPU). Ties: if the k-th and the (k+1)-th candidate are equal, the row is sorted
whole, stably, so that the result never depends on the order in which a selection visits its input.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 80
SMALL = 1024


def best_columns(values_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest entries of each row and their columns, (R, min(count, V)) each.

    Sorted by value from the largest, equal values by column from the lowest. NaN counts as largest.
    """
    rows, columns = values_RV.shape
    count = min(count, columns)
    if columns <= SMALL or count * BLOCK * 2 >= columns:
        return _sorted_top(values_RV, count)
    blocks = columns // BLOCK
    whole = values_RV[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).amax(-1)
    if columns % BLOCK:
        whole = torch.cat([whole, values_RV[:, blocks * BLOCK :].amax(-1, keepdim=True)], dim=1)
    best, chosen = whole.topk(count + 1, dim=1)
    if bool((best[:, -1] == best[:, -2]).any()):
        return _stable(values_RV, count)
    first = chosen[:, :-1].sort(dim=1).values * BLOCK
    ids = (first[:, :, None] + torch.arange(BLOCK, device=values_RV.device)).view(rows, -1)
    inside = values_RV.gather(1, ids.clamp_(max=columns - 1))
    if columns % BLOCK:
        inside[:, 1:].masked_fill_(ids[:, 1:] == ids[:, :-1], float("-inf"))
    top, places = _sorted_top(inside, count)
    return top, ids.gather(1, places)


def _sorted_top(values_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if count >= values_RV.shape[1]:
        return _stable(values_RV, count)
    top, columns = values_RV.topk(count + 1, dim=1)
    if bool((top[:, 1:] == top[:, :-1]).any()):
        return _stable(values_RV, count)
    return top[:, :-1], columns[:, :-1]


def _stable(values_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, columns = torch.sort(values_RV, dim=1, descending=True, stable=True)
    return values[:, :count], columns[:, :count]
