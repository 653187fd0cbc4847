from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.outputs.topk import BLOCK, SMALL, best_columns


def slow(values, count):
    pairs = [sorted(((-v, i) for i, v in enumerate(row)))[:count] for row in values.tolist()]
    return [[-v for v, _ in row] for row in pairs], [[i for _, i in row] for row in pairs]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    columns=st.one_of(st.integers(1, 40), st.integers(SMALL - 3, 3 * SMALL), st.just(BLOCK * 40)),
    count=st.integers(1, 12),
    levels=st.sampled_from([1, 2, 5, 50, 10**9]),
    seed=st.integers(0, 10**6),
)
def test_equals_a_stable_sort_of_the_row(rows, columns, count, levels, seed):
    values = torch.randint(0, levels, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()
    best, ids = best_columns(values, count)
    expected, places = slow(values, min(count, columns))
    assert best.tolist() == expected
    assert ids.tolist() == places


def test_impossible_columns_come_last():
    values = torch.full((2, 4000), float("-inf"))
    values[0, 3999], values[1, 7] = -1.0, -2.0
    best, ids = best_columns(values, 3)
    assert ids.tolist() == [[3999, 0, 1], [7, 0, 1]]
    assert best[:, 0].tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("columns", [50, 4000])
def test_nan_shows(columns):
    values = torch.zeros(1, columns)
    values[0, columns - 2] = float("nan")
    assert best_columns(values, 2)[0].isnan().any()
