"""Lines joined to longer ones: by line numbers alone."""

from __future__ import annotations

import pytest

from phraseloom.errors import UsageError
from phraseloom.text.lines import group_sizes, join_lines


def test_groups_follow_line_numbers() -> None:
    lines = [f"l{n}" for n in range(1, 9)]
    assert list(join_lines(lines, 2, 3)) == ["l1 l2", "l3 l4 l5", "l6 l7", "l8"]
    assert list(join_lines(lines, 1, 1)) == lines
    assert list(join_lines([], 2, 2)) == []
    assert list(join_lines([" a ", "", "", "b"], 2, 2)) == ["a", "b"]
    assert list(join_lines(["", "", "c"], 2, 2)) == ["", "c"]


def test_sizes() -> None:
    assert [group_sizes(text) for text in ("1", "3", "2-3")] == [(1, 1), (3, 3), (2, 3)]
    for text in ("0", "3-2", "x", "2-", "-2", "2-101", ""):
        with pytest.raises(UsageError, match="not a group size"):
            group_sizes(text)
