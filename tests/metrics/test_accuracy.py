"""Intervals and the paired test of accuracies, by published values and by definition."""

from __future__ import annotations

import math

import pytest

from phraseloom.metrics.ratio import compare, mcnemar, wilson


def test_wilson_by_published_values() -> None:
    """Newcombe (1998), Statistics in Medicine 17, table I, method 3: Wilson's score interval without correction."""
    for (correct, total), (low, high) in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(correct, total) == pytest.approx((low, high), abs=5e-5)
    assert wilson(20, 20) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)
    assert wilson(20, 20)[1] == 1.0 and wilson(0, 0) == (0.0, 1.0)


def test_mcnemar_is_the_binomial_tail() -> None:
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(2 * (1 + 10) / 2**10)
    assert mcnemar(0, 6) == 2 / 2**6
    for a, b in ((3, 12), (40, 61), (300, 350)):
        tail = sum(math.comb(a + b, k) for k in range(a + 1))
        assert mcnemar(a, b) == pytest.approx(min(1.0, 2 * tail / 2 ** (a + b)))


def test_compare_counts_what_only_one_has_right() -> None:
    base, new = [True, True, False, False, False], [True, False, True, True, False]
    assert compare(base, new) == {"difference": pytest.approx(0.2), "won": 2, "lost": 1, "p": 1.0}
    assert compare([False] * 6, [True] * 6)["p"] == 2 / 2**6
    with pytest.raises(ValueError, match="shorter"):
        compare([True, True], [True])
