"""Nearest tokens by cosine, and the mean cosine of all."""

from __future__ import annotations

import numpy as np
import pytest

from phraseloom.text.vectors import Vectors, mean_cosine, nearest

TOKENS = ["east", "far_east", "zero", "north", "north_east", "west"]
MATRIX = np.array([[1, 0], [5, 0], [0, 0], [0, 2], [3, 3], [-1, 0]], np.float32)
VECTORS = Vectors(TOKENS, MATRIX)


def test_nearest_first_ties_in_the_order_of_the_file() -> None:
    found = list(nearest(VECTORS, [0, 3], 3, range(6)))
    assert [[one.token for one in some] for some in found] == [
        ["far_east", "north_east", "north"],
        ["north_east", "east", "far_east"],
    ]
    assert [one.cosine for one in found[0]] == pytest.approx([1, 0.5**0.5, 0])


def test_only_candidates_and_all_of_them_at_most() -> None:
    (found,) = nearest(VECTORS, [0], 9, [5, 4, 2, 0])
    assert [one.token for one in found] == ["north_east", "west"]
    assert list(nearest(VECTORS, [0], 3, [])) == [[]]


def test_a_zero_vector_has_no_neighbours() -> None:
    assert list(nearest(VECTORS, [2], 3, range(6))) == [[]]


def test_large_and_small_numbers() -> None:
    """Squares of these overflow or vanish in float32."""
    scaled = Vectors(TOKENS, MATRIX * np.array([[1e30], [1e-30], [1], [1e-30], [1e30], [1]], np.float32))
    for few, same in zip(nearest(scaled, range(6), 9, range(6)), nearest(VECTORS, range(6), 9, range(6)), strict=True):
        assert sorted(one.token for one in few) == sorted(one.token for one in same)
        assert sorted(one.cosine for one in few) == pytest.approx(sorted(one.cosine for one in same), abs=1e-6)
    assert mean_cosine(scaled.matrix_VM) == pytest.approx(mean_cosine(MATRIX))


def test_the_vectors_are_left_as_they_are() -> None:
    matrix = np.array([[3, 4], [1, 1]], np.float32)
    assert list(nearest(Vectors(["a", "b"], matrix), [0], 3, range(2)))
    np.testing.assert_array_equal(matrix, [[3, 4], [1, 1]])


def test_mean_cosine() -> None:
    unit = np.delete(MATRIX, 2, 0) / np.linalg.norm(np.delete(MATRIX, 2, 0), axis=1, keepdims=True)
    cosines = unit @ unit.T
    assert mean_cosine(MATRIX) == pytest.approx(cosines[~np.eye(5, dtype=bool)].mean())
    assert mean_cosine(MATRIX[:2]) == pytest.approx(1)
    assert mean_cosine(MATRIX[1:3]) is None
