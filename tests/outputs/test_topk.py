from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.outputs.topk import BLOCK, SMALL, best_columns, log_softmax_


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 40_000), (7, 37), (64, 5001), (300, 1024)])
def test_log_softmax_in_place_is_the_one_that_is_not(dtype, rows, columns):
    values = 9 * torch.randn(rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(columns))
    values[0, 0], values[-1, -1] = 80.0, float("-inf") if columns > 1 else 3.0
    expected = values.log_softmax(-1)
    found = log_softmax_(values)
    assert torch.equal(found, expected) and found.data_ptr() == values.data_ptr()
    wanted = expected.clone().requires_grad_()
    assert log_softmax_(wanted).data_ptr() != wanted.data_ptr()
