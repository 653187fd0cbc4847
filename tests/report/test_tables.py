"""Tables: columns line up, whatever is in the cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phraseloom.report.markup import markdown, terminal, width


def test_markdown() -> None:
    text = markdown(["system", "BLEU", "n"], [["base", 27.604, 1000], ["a|b", None, 3]])
    lines = text.split("\n")
    assert lines == [
        "| system |  BLEU |     n |",
        "| ------ | ----: | ----: |",
        "| base   | 27.60 | 1,000 |",
        "| a\\|b   |       |     3 |",
    ]


def test_terminal() -> None:
    assert terminal(["a", "b"], [["x", 1], ["long", 23]], indent=1).split("\n") == [
        " a      b",
        " ────  ──",
        " x      1",
        " long  23",
    ]
    assert terminal(["", ""], [["a", "b"]]) == "a  b"
    assert terminal(["a"], []) == "a\n─"


def test_wide_characters_take_two_columns() -> None:
    assert (width("ab"), width("中文"), width("e\u0301"), width("\u200b")) == (2, 4, 1, 0)
    lines = terminal(["x", "n"], [["中", "a"], ["ab", "b"]]).split("\n")
    assert lines[2:] == ["中  a", "ab  b"]


def test_controls_are_written_out() -> None:
    assert "\x1b" not in terminal(["x"], [["\x1b[31mred\n"]])
    assert "\n" not in terminal([""], [["a\nb"]])


@given(st.lists(st.lists(st.text(max_size=8), min_size=3, max_size=3), max_size=5))
def test_every_row_is_one_line_of_equal_width(rows: list[list[str]]) -> None:
    lines = markdown(["a", "b", "c"], rows).split("\n")
    assert len(lines) == len(rows) + 2
    assert len({width(line) for line in lines}) == 1


def test_a_row_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 columns"):
        markdown(["a", "b"], [["x"]])
