"""Fertility: counts by hand, their classes, and files of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from phraseloom.align.links import parse_links
from phraseloom.errors import DataError, UsageError
from phraseloom.phrases.fertility import fertility_class, format_fertilities, read_fertilities
from phraseloom.phrases.merge import fertilities, merge_aligned
from phraseloom.phrases.table import index_phrases

CASES = [
    ("he went to town .", "0-0 1-1 1-2 2-3", 4, [1, 2, 1, 0]),  # the last source word has no link
    ("he went to town .", "0-0 1-1 1-2 1-3", 2, [1, 1]),  # a later word of the same source word
    ("he went to town .", "0-1 0-0 1-1 1-2", 2, [1, 2]),  # words of a phrase count for no other source word
    ("he went to town .", "1-1 2-1 1-2 2-2", 3, [0, 2, 0]),  # a phrase stands for one of them, the first
    ("he went to town .", "0-0 0-1 0-2 0-3 0-4", 1, [1]),
    ("he went to town .", "", 2, [0, 0]),
    ("so he said he went to town", "0-4 0-5", 1, [2]),
    ("quality of life went to .", "0-0 0-1 0-2 0-3 0-4", 1, [2]),  # a later, shorter phrase
    ("", "", 3, [0, 0, 0]),
]


@pytest.mark.parametrize(("line", "links", "num_source", "expected"), CASES)
def test_counts(line: str, links: str, num_source: int, expected: list[int]) -> None:
    words, found = line.split(" "), parse_links(links)
    parts = merge_aligned(words, found, index_phrases(["went to", "quality of life"]))
    assert fertilities(parts, words, found, num_source) == expected


def test_classes() -> None:
    assert [fertility_class(count, 4) for count in (0, 1, 2, 3, 4, 9)] == [0, 1, 2, 3, 3, 3]
    assert [fertility_class(count, 2) for count in (0, 1, 2, 3, 4, 9)] == [0, 0, 1, 1, 1, 1]
    with pytest.raises(UsageError, match="3 classes; 2 or 4"):
        fertility_class(1, 3)


def test_a_file_and_back(tmp_path: Path) -> None:
    rows = [[1, 0, 12], [], [4]]
    (tmp_path / "f").write_bytes("".join(format_fertilities(row) + "\n" for row in rows).encode())
    assert list(read_fertilities(tmp_path / "f", [3, 0, 1])) == rows


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("1 2\n", 1, "2 numbers, but the source line has 3 words"),
        ("1 2 3\n\n", 2, "goes on after the 1 lines"),
        ("", None, "ends after 0 lines"),
        ("1 -2 3\n", 1, "not numbers of words"),
        ("1 100 3\n", 1, "not numbers of words"),
        ("1 ² 3\n", 1, "not numbers of words"),
    ],
)
def test_files_that_do_not_fit(text: str, line: int | None, what: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(text.encode())
    with pytest.raises(DataError, match=what) as error:
        list(read_fertilities(tmp_path / "f", [3]))
    assert (error.value.file, error.value.line) == (tmp_path / "f", line)
