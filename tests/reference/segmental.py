"""Segmental marginal likelihood by enumeration, and NPMT by loops over single words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tests.reference.recurrent import Cell, Vectors, read


def cuts(positions: int, words: int, longest: int) -> Iterator[tuple[int, ...]]:
    """All ways to share out `words` words among the positions, at most `longest` to each."""
    for lengths in itertools.product(range(longest + 1), repeat=positions):
        if sum(lengths) == words:
            yield lengths


class Enumerated(NamedTuple):
    log_p: float
    posterior: dict[tuple[int, int, int], float]
    best: tuple[int, ...]
    best_log_p: float
    count: int


def enumerate_all(log_prob: Callable[[int, int, int], float], positions: int, words: int, longest: int) -> Enumerated:
    """`log_prob(t, j, l)` of each segment, summed over all segmentations one by one."""
    weights: dict[tuple[int, ...], float] = {}
    segments: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    for lengths in cuts(positions, words, longest):
        starts = [sum(lengths[:t]) for t in range(positions)]
        segments[lengths] = list(zip(range(positions), starts, lengths, strict=True))
        weights[lengths] = math.fsum(log_prob(*segment) for segment in segments[lengths])
    if not weights:
        return Enumerated(-math.inf, {}, (), -math.inf, 0)
    top = max(weights.values())
    log_p = top + math.log(math.fsum(math.exp(w - top) for w in weights.values()))
    posterior: dict[tuple[int, int, int], float] = {}
    for lengths, weight in weights.items():
        for segment in segments[lengths]:
            posterior[segment] = posterior.get(segment, 0.0) + math.exp(weight - log_p)
    best = max(weights, key=lambda lengths: weights[lengths])
    return Enumerated(log_p, posterior, best, weights[best], len(weights))


def reordered(x_SD: Tensor, weight_KKD: Tensor, bias_K: Tensor) -> Tensor:
    """§5.1: g = sigmoid(W vec(e_{t-w..t+w}) + b), h_t = tanh(Σ_i g_i e_{t-w+i}); `weight_KKD[i, k]` of gate i reads place k."""
    window, length = len(bias_K), len(x_SD)
    found = []
    for t in range(length):
        around = [
            x_SD[t - window // 2 + k] if 0 <= t - window // 2 + k < length else torch.zeros_like(x_SD[0])
            for k in range(window)
        ]
        gates = [
            torch.sigmoid(bias_K[i] + sum(weight_KKD[i, k] @ around[k] for k in range(window))) for i in range(window)
        ]
        found.append(torch.tanh(sum(g * e for g, e in zip(gates, around, strict=True))))
    return torch.stack(found) if found else x_SD


def column(cells: Sequence[Cell], xs: Vectors, residual: Callable[[Tensor], Tensor], *, backwards: bool) -> Vectors:
    """Residual layers, each in the direction opposite to the one below."""
    for number, cell in enumerate(cells):
        outputs, _ = read(cell, xs[::-1] if backwards else xs)
        outputs = outputs[::-1] if backwards else outputs
        xs = [y + (residual(x) if number == 0 else x) for x, y in zip(xs, outputs, strict=True)]
        backwards = not backwards
    return xs


def residual_cells(
    cells: Sequence[Cell], xs: Vectors, residual: Callable[[Tensor], Tensor], start: Tensor | None = None
) -> Vectors:
    """The top outputs of residual layers; the first begins with `start` as its last state part, all else at zero."""
    for number, cell in enumerate(cells):
        state = cell.zeros()
        if number == 0 and start is not None:
            state = (*state[:-1], start)
        outputs, _ = read(cell, xs, state)
        xs = [y + (residual(x) if number == 0 else x) for x, y in zip(xs, outputs, strict=True)]
    return xs
