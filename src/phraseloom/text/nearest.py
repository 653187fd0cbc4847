"""Cosines of token vectors: the nearest tokens of a token, and how alike all of them are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phraseloom.text.vectors import Vectors

__all__ = ["VectorNeighbour", "mean_cosine", "nearest"]


class VectorNeighbour(NamedTuple):
    """A token and the cosine of its vector with that of the token asked for."""

    token: str
    cosine: float


def nearest(
    vectors: Vectors, rows: Sequence[int], count: int, candidates: Sequence[int]
) -> Iterator[list[VectorNeighbour]]:
    """For each of `rows` its `count` nearest among the rows `candidates`, nearest first, ties in the order of the file.

    The row itself and candidates whose vector is zero are left out. A row whose vector is zero has no neighbours.
    """
    chosen_C = np.asarray(candidates, np.intp)
    matrix_CM = vectors.matrix_VM[chosen_C]
    norms_C = _norms(matrix_CM)
    matrix_CM /= np.where(norms_C == 0, 1, norms_C)[:, None]
    for row in rows:
        vector_M = vectors.matrix_VM[row]
        size = _norms(vector_M[None])[0]
        if size == 0:
            yield []
            continue
        cosines_C = matrix_CM @ (vector_M / size).astype(np.float32)
        cosines_C[(norms_C == 0) | (chosen_C == row)] = -np.inf
        order = np.argsort(-cosines_C, kind="stable")[:count]
        yield [
            VectorNeighbour(vectors.tokens[chosen_C[i]], float(cosines_C[i])) for i in order if cosines_C[i] > -np.inf
        ]


def mean_cosine(matrix_VM: np.ndarray) -> float | None:
    """The mean cosine of two different rows, zero rows left out: near 1 where vectors hardly tell tokens apart; None: no two.

    sum over i ≠ j of u_i · u_j = |sum of u_i|² - V
    """
    norms_V = _norms(matrix_VM)
    inverse_V = 1 / norms_V[norms_V > 0]
    count = len(inverse_V)
    if count < 2:
        return None
    total_M = inverse_V @ matrix_VM[norms_V > 0]
    return float((total_M @ total_M - count) / (count * (count - 1)))


def _norms(matrix_NM: np.ndarray) -> np.ndarray:
    """In float64, in which no square of a float32 overflows or vanishes."""
    return np.asarray(np.sqrt(np.einsum("nm,nm->n", matrix_NM, matrix_NM, dtype=np.float64)))
