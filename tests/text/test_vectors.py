"""Files of vectors: what is written is read; wrong rows are named by file and line; only what is wanted is kept."""

from __future__ import annotations

import gzip
import lzma
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.errors import CorruptError, DataError, FileProblem
from phraseloom.text.vectors import MAX_WIDTH, read_vectors, write_vectors

TOKENS = st.text(st.characters(exclude_characters=" \n", exclude_categories=["Cs"]), min_size=1, max_size=5)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


def file(folder: Path, text: str) -> Path:
    path = folder / "v.vec"
    path.write_bytes(text.encode())
    return path


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(1, 4), st.data(), st.sampled_from(["", ".gz", ".xz"]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, width: int, data: st.DataObject, ending: str
) -> None:
    tokens = data.draw(st.lists(TOKENS, unique=True, max_size=5))
    values = data.draw(st.lists(NUMBERS, min_size=width * len(tokens), max_size=width * len(tokens)))
    matrix = np.array(values, np.float32).reshape(-1, width)
    path = tmp_path_factory.getbasetemp() / f"v.vec{ending}"
    write_vectors(path, tokens, matrix)
    found = read_vectors(path)
    assert found.tokens == tokens and found.matrix_VM.dtype == np.float32
    assert found.matrix_VM.tobytes() == matrix.tobytes()


def test_bytes_of_a_file(tmp_path: Path) -> None:
    write_vectors(tmp_path / "v.vec", ["▁the", "of"], np.array([[0.5, -1], [1e-20, 0.1]], np.float32))
    text = "2 2\n▁the 0.5 -1\nof 9.99999968e-21 0.100000001\n".encode()
    assert (tmp_path / "v.vec").read_bytes() == text
    for ending, unfold in ((".gz", gzip.decompress), (".xz", lzma.decompress)):
        write_vectors(tmp_path / f"v.vec{ending}", ["▁the", "of"], read_vectors(tmp_path / "v.vec").matrix_VM)
        assert unfold((tmp_path / f"v.vec{ending}").read_bytes()) == text


@pytest.mark.parametrize(
    "text",
    [
        "2 3\na 1 -2.5 3e-2\nb 0 +1 .5\n",
        "2 3 \na 1 -2.5 3e-2 \nb 0 +1 .5 \n",  # as fastText and word2vec write
        "2 3\r\na 1 -2.5 3e-2\r\nb 0 +1 .5\r\n",
        "\ufeff2 3\na 1 -2.5 3e-2\nb 0 +1 .5",
    ],
)
def test_forms_of_a_file(tmp_path: Path, text: str) -> None:
    found = read_vectors(file(tmp_path, text))
    assert found.tokens == ["a", "b"]
    np.testing.assert_array_equal(found.matrix_VM, np.array([[1, -2.5, 0.03], [0, 1, 0.5]], np.float32))


def test_a_token_may_hold_anything_but_a_space(tmp_path: Path) -> None:
    tokens = ["\u00a0", "a\u2028b", "\t", "#", '"', "1", "\u3000x", "\u0085"]
    path = file(tmp_path, f"{len(tokens)} 1\n" + "".join(f"{t} {n}\n" for n, t in enumerate(tokens)))
    found = read_vectors(path)
    assert found.tokens == tokens and found.matrix_VM[:, 0].tolist() == list(range(len(tokens)))


def test_no_rows_and_one_column(tmp_path: Path) -> None:
    assert read_vectors(file(tmp_path, "0 5\n")).matrix_VM.shape == (0, 5)
    assert read_vectors(file(tmp_path, "2 1\na 1\nb 2\n")).matrix_VM.tolist() == [[1], [2]]


BAD = [
    ("", 1, "numbers of rows and columns"),
    ("a 1 2\nb 3 4\n", 1, "first line is 'a 1 2'"),  # GloVe
    ("2\n", 1, "numbers of rows and columns"),
    ("-1 2\n", 1, "numbers of rows and columns"),
    ("١ ٢\n", 1, "numbers of rows and columns"),
    ("1 0\na\n", 1, "vectors of width 0"),
    (f"1 {MAX_WIDTH + 1}\n", 1, "vectors of width 65,537"),
    ("2 2\na 1 2\nb 1\n", 3, "a row of 2 fields; a token and 2 numbers"),
    ("2 2\na 1 2\nb 1 2 3\n", 3, "a row of 4 fields"),
    ("2 2\nNew York 1 2\nb 1 2\n", 2, "a row of 4 fields"),
    ("2 2\n 1 2\nb 1 2\n", 2, "a row of 3 fields"),
    ("2 2\n\nb 1 2\n", 2, "an empty row"),
    ("2 2\na 1 2\n   \n", 3, "an empty row"),
    ("1 1\na \n", 2, "a row of 1 fields"),
    ("2 2\na 1 2\nb 1 x\n", 3, "number 2 of the row is 'x'"),
    ("2 2\na 1 2\nb  2\n", 3, "number 1 of the row is ''"),
    ("2 2\na 1\t3 2\nb 1 2\n", 2, r"number 1 of the row is '1\\t3'"),
    ("2 2\na 1 2\nb 1 1_0\n", 3, "'1_0'"),
    ("2 2\na 1 2\nb 1 ٣\n", 3, "'٣'"),
    ("2 2\na 1 2\nb 1-2 3\n", 3, "'1-2'"),
    ("3 1\na 1\nb 2\nc \r\r\n", 4, r"number 1 of the row is '\\r'"),
    ("2 2\na nan 2\nb 1 2\n", 2, "'nan', not a finite number"),
    ("2 2\na 1 2\nb 1 -inf\n", 3, "'-inf', not a finite number"),
    ("2 2\na 1 2\nb 1e39 1\n", 3, "'1e39', not a finite number of float32"),
    ("3 2\na 1 2\nb 1 2\na 1 2\n", 4, "token 'a' is also in line 2"),
    ("3 2\na 1 2\nb 1 2\n", 3, "2 rows; the first line says 3; the file may have been cut"),
    ("1 2\na 1 2\nb 1 2\n", 1, "more rows than the 1 of its first line"),
    ("999999999999 2\na 1 2\n", 1, "numbers of rows and columns"),
]


@pytest.mark.parametrize(("text", "line", "match"), BAD)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, text: str, line: int, match: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(DataError, match=rf"v\.vec:{line}: .*{match}"):
        read_vectors(path)


def test_a_wrong_number_far_inside(tmp_path: Path) -> None:
    """Many blocks; the line is right wherever it stands."""
    rows = [f"w{n} {n % 7} 0.25" + " 1.0" * 300 for n in range(3000)]
    for bad in (0, 1234, 2999):
        some = list(rows)
        some[bad] = some[bad].replace("0.25", "0,25")
        with pytest.raises(DataError, match=rf"v\.vec:{bad + 2}: number 2 of the row is '0,25'"):
            read_vectors(file(tmp_path, "3000 302\n" + "\n".join(some)))
    found = read_vectors(file(tmp_path, "3000 302\n" + "\n".join(rows)))
    assert found.matrix_VM[:, 0].tolist() == [n % 7 for n in range(3000)] and found.tokens[2999] == "w2999"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="not found"):
        read_vectors(tmp_path / "no.vec")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1 1\na 1\n")[:-9])
    with pytest.raises(CorruptError):
        read_vectors(tmp_path / "cut.gz")
    (tmp_path / "latin").write_bytes(b"1 1\n\xe9 1\n")
    with pytest.raises(DataError, match="latin:2: invalid UTF-8"):
        read_vectors(tmp_path / "latin")


def test_only_what_is_wanted_is_kept_and_looked_at(tmp_path: Path) -> None:
    text = "5 2\na 1 2\nb x x\nc 5 6\nb 7 8\nd 9 9\n"
    found = read_vectors(file(tmp_path, text), wanted={"d", "a", "zebra"})
    assert found.tokens == ["a", "d"] and found.matrix_VM.tolist() == [[1, 2], [9, 9]]
    assert read_vectors(file(tmp_path, text), wanted=set()).matrix_VM.shape == (0, 2)
    with pytest.raises(DataError, match=r"v\.vec:5: token 'b' is also in line 3"):
        read_vectors(file(tmp_path, text), wanted={"b"})
    with pytest.raises(DataError, match=r"v\.vec:3: number 1"):
        read_vectors(file(tmp_path, text.replace("b 7", "e 7")), wanted={"b"})
    with pytest.raises(DataError, match=r"v\.vec:3: a row of 2 fields"):
        read_vectors(file(tmp_path, text.replace("x x", "x")), wanted={"a"})


def test_another_width_than_needed(tmp_path: Path) -> None:
    path = file(tmp_path, "1 2\na 1 x\n")
    with pytest.raises(DataError, match=r"v\.vec:1: the vectors have width 2; 3 is needed"):
        read_vectors(path, width=3)


def test_memory_is_that_of_what_is_wanted(tmp_path: Path) -> None:
    row = " ".join(["0.12345"] * 300)
    path = file(tmp_path, "9000 300\n" + "".join(f"w{n} {row}\n" for n in range(9000)))
    assert path.stat().st_size > 20e6
    peaks = []
    for wanted in ({"w1", "w8999"}, None):
        tracemalloc.start()
        found = read_vectors(path, wanted=wanted)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(found.tokens) == 9000
    assert peaks[0] < 8e6  # a block of a mebibyte and its lines
    assert peaks[1] < 3 * 9000 * 300 * 4


@pytest.mark.full
def test_time_for_a_file_of_many_words(tmp_path: Path) -> None:
    """20,000 rows of 300 in processor time; a million take fifty times as long."""
    rows = [" ".join(f"{v:.4f}" for v in r) for r in np.random.default_rng(0).normal(size=(50, 300)).tolist()]
    path = file(tmp_path, "20000 300\n" + "".join(f"word{n} {rows[n % 50]}\n" for n in range(20_000)))
    for wanted, seconds in ((None, 6.0), ({f"word{n}" for n in range(0, 20_000, 40)}, 1.5)):
        before = time.process_time()
        read_vectors(path, wanted=wanted)
        assert time.process_time() - before < seconds


@pytest.mark.parametrize("tokens", [["a b", "c"], ["", "c"], ["a\nb", "c"], ["a", "a"]])
def test_tokens_that_no_file_can_hold(tmp_path: Path, tokens: list[str]) -> None:
    with pytest.raises(DataError, match=r"v\.vec:[23]: token"):
        write_vectors(tmp_path / "v.vec", tokens, np.ones((2, 3)))
    assert not list(tmp_path.iterdir())


def test_values_that_no_file_can_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"v\.vec:3: the vector of 'b' is not finite"):
        write_vectors(tmp_path / "v.vec", ["a", "b"], np.array([[1, 2], [3, np.nan]]))
    with pytest.raises(ValueError, match="1 tokens and a matrix"):
        write_vectors(tmp_path / "v.vec", ["a"], np.ones((2, 2)))
    assert not list(tmp_path.iterdir())
