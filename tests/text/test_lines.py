from __future__ import annotations

import gzip
import io
import lzma
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phraseloom.errors import CorruptError, DataError, FileProblem, UsageError
from phraseloom.text import lines as module
from phraseloom.text.lines import (
    LineReport,
    count_lines,
    encode_lines,
    list_of_lines,
    read_blocks,
    read_lines,
    read_stream,
    write_lines,
)

TEXT = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30)
# A line that ends in a carriage return reads as one ended by \r\n, and a byte order mark at the beginning is left out.
LINES = st.lists(TEXT.map(lambda t: t.rstrip("\r")), max_size=20).map(
    lambda lines: [lines[0].lstrip("\ufeff"), *lines[1:]] if lines else lines
)
ROUND_TRIP = settings(max_examples=300, deadline=None, database=None)


class Slow(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a pipe does."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        piece = self.data[: min(self.size, len(buffer))]  # type: ignore[arg-type]
        buffer[: len(piece)] = piece  # type: ignore[index]
        self.data = self.data[len(piece) :]
        return len(piece)


@ROUND_TRIP
@given(LINES, st.integers(1, 7))
def test_any_text_without_line_feed_round_trips(lines: list[str], size: int) -> None:
    data = encode_lines(lines)
    assert list(read_stream(io.BytesIO(data), invalid="stop")) == lines
    assert list(read_stream(io.BufferedReader(Slow(data, size), 16), invalid="stop")) == lines


@pytest.mark.full
@settings(max_examples=10_000, deadline=None, database=None)
@given(LINES)
def test_any_text_round_trips_full(lines: list[str]) -> None:
    assert list(read_stream(io.BytesIO(encode_lines(lines)))) == lines


@ROUND_TRIP
@given(st.binary(max_size=200), st.integers(1, 9))
def test_any_bytes_give_as_many_lines_as_line_feeds(data: bytes, size: int) -> None:
    assume(not data.startswith((b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")))  # compressed, refused
    expected = data.count(b"\n") + (not data.endswith(b"\n") and data not in (b"", b"\xef\xbb\xbf"))
    whole = list(read_stream(io.BytesIO(data)))
    assert len(whole) == expected
    assert list(read_stream(io.BufferedReader(Slow(data, size), 16))) == whole


def test_a_line_arrives_before_the_next_one_is_there() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as incoming, os.fdopen(writer, "wb", 0) as outgoing:
        lines = read_stream(incoming)
        outgoing.write(b"one\ntw")
        assert next(lines) == "one"
        outgoing.write(b"o\nthree")
        assert next(lines) == "two"
        outgoing.close()
        assert list(lines) == ["three"]


@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\nb", b"a\nb\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_are_counted_as_they_are_read(mark: bytes, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(mark + data)
    assert count_lines(tmp_path / "f") == len(list(read_lines(tmp_path / "f")))


@pytest.mark.parametrize("opener", [gzip.open, lzma.open], ids=["gz", "xz"])
def test_compressed_files(tmp_path: Path, opener: object) -> None:
    path = tmp_path / ("f.gz" if opener is gzip.open else "f.xz")
    lines = [f"line {i} \u2028" * (i % 50) for i in range(60_000)]
    data = encode_lines(lines)
    with opener(path, "wb") as first:  # type: ignore[operator]
        first.write(data[:1000])
    with opener(path, "ab") as second:  # type: ignore[operator]
        second.write(data[1000:])
    assert list(read_lines(path)) == lines
    assert count_lines(path) == len(lines)
    whole = path.read_bytes()
    for cut in (1, 5, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptError, match=r"compressed file ends|not a whole"):
            list(read_lines(path))
    for text in (b"plain text\n" * 100, b"a\n"):
        path.write_bytes(text)
        with pytest.raises(
            CorruptError, match=r"its first bytes are different; it may be plain text; if it is text, rename it"
        ):
            list(read_lines(path))
    path.write_bytes(whole[: len(whole) // 2] + b"plain text" * 100)
    with pytest.raises(CorruptError, match=r"not a whole|ends in the middle") as found:
        list(read_lines(path))
    assert "plain" not in str(found.value)


def test_a_file_that_unfolds_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREE_GROWTH", 2**21)
    for name, packed in (("b.gz", gzip.compress(bytes(2**24))), ("b.xz", lzma.compress(bytes(2**24)))):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises((CorruptError, DataError), match="this is not text"):
            list(read_lines(tmp_path / name))


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 2**21)
    with pytest.raises(DataError, match="more than 2 MiB"):
        list(read_stream(io.BytesIO(b"x" * 2**23), name="f"))


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbffine\n" * 70_000 + "ü".encode() + b"ab\xe4c\n")
    with pytest.raises(DataError, match=re.escape(f"{path}:70001: invalid UTF-8: byte 5 of the line is 0xe4")):
        list(read_lines(path))


def test_the_report_counts_lines_not_places() -> None:
    report = LineReport()
    data = b"\xef\xbb\xbfa\0\0\r\nb\xff\xff\xff\n\0\n\xfe"
    assert [*read_stream(io.BytesIO(data), report=report)] == ["a\0\0", "b\ufffd\ufffd\ufffd", "\0", "\ufffd"]
    assert (report.lines, report.crlf, report.bom, report.nul, report.invalid_utf8) == (4, 1, 1, 2, 2)
    assert report.first == {"bom": 1, "crlf": 1, "nul": 1, "invalid_utf8": 2}


def test_write_refuses_a_line_that_is_two(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="f:2: the line to write holds a line end"):
        write_lines(tmp_path / "f", ["a", "b\nc"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("first", ["\ufeff", "\ufeffa b", "\ufeff\ufeff", "a\ufeff", ""])
def test_written_lines_are_read_again(first: str, tmp_path: Path) -> None:
    lines = [first, *["b"] * 5000, "\ufeffc"]
    assert write_lines(tmp_path / "f", lines) == len(lines)
    assert list(read_lines(tmp_path / "f")) == lines


def test_paths_of_the_wrong_kind(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / "x" / "y", Path("a\0b")):
        with pytest.raises(FileProblem):
            list(read_lines(path))


def test_blocks_are_never_empty() -> None:
    assert list(read_blocks(io.BytesIO(b""))) == []
    assert list(read_blocks(io.BytesIO(b"\xef\xbb\xbf"))) == []
    assert list(read_blocks(io.BytesIO(b"\n"))) == [[""]]


@pytest.mark.parametrize(
    ("compress", "kind", "tool"),
    [
        (gzip.compress, "gzip", "zcat"),
        (lzma.compress, "xz", "xzcat"),
        (lambda _: b"\x28\xb5\x2f\xfd and more\n", "zstd", "zstdcat"),
    ],
)
def test_compressed_data_is_no_text(compress: Callable[[bytes], bytes], kind: str, tool: str) -> None:
    with pytest.raises(DataError, match=f"this is {kind} data, not text") as caught:
        list(read_stream(io.BytesIO(compress(b"one\ntwo\n" * 50))))
    assert caught.value.file == "stdin" and f"({tool} < FILE > TEXT)" in str(caught.value.hint)


def test_half_a_surrogate_pair_is_refused_by_its_number() -> None:
    """Text that was read with errors="surrogateescape" cannot be encoded."""
    assert list_of_lines(["a", "ß", "😀"], "lines") == ["a", "ß", "😀"]
    with pytest.raises(UsageError, match="lines: item 2 has half of a surrogate pair"):
        list_of_lines(["a", b"\xff".decode(errors="surrogateescape")], "lines")
