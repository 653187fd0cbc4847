"""Line numbers in a file: which sentences are scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from phraseloom.errors import DataError
from phraseloom.metrics.bleu import read_line_numbers, take


def test_numbers_from_one_in_rising_order(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"\xef\xbb\xbf10\r\n 2\n007\n")
    assert read_line_numbers(tmp_path / "lines", 10) == [1, 6, 9]
    assert take([list("abcdefghij"), list("ABCDEFGHIJ")], [1, 6, 9]) == [["b", "g", "j"], ["B", "G", "J"]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "lines: the file has no line numbers: nothing to score"),
        ("1\n0\n", "lines:2: '0' is not a line number from 1 to 10; write one number per line"),
        ("11\n", "lines:1: '11' is not a line number from 1 to 10"),
        ("1\n\n", "lines:2: '' is not"),
        ("-1\n", "lines:1: '-1' is not"),
        ("1.0\n", "lines:1: '1.0' is not"),
        ("²\n", "lines:1: '²' is not"),
        ("9" * 5000, "lines:1: '999"),
        ("3\n1\n03\n", "lines:3: 3 is also in line 1"),
    ],
)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_bytes(body.encode())
    with pytest.raises(DataError) as error:
        read_line_numbers("lines", 10)
    assert str(error.value).startswith(message)
