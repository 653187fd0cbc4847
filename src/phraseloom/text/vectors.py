"""Token vectors in the text format of word2vec and fastText (`.vec`), and their cosines.

    count width
    token v_1 … v_width

Only U+0020 separates fields, so a token may hold any other character. Both programs write one more U+0020 at the end of a
row, which readers ignore. Errors number rows by the lines of the file.
"""

from __future__ import annotations

import lzma
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phraseloom.errors import DataError, plural
from phraseloom.files import atomic_write, disk
from phraseloom.text.lines import encode_lines, open_binary, read_blocks

__all__ = [
    "RunningMean",
    "VectorNeighbour",
    "Vectors",
    "mean_cosine",
    "nearest",
    "read_tokens",
    "read_vectors",
    "write_vectors",
]

MAX_WIDTH = 2**16
ROWS = 1024  # per write
ZERO = " 0.+-eE"  # the characters of a vector of zeros
COMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.compressobj(wbits=31),
    ".xz": lambda: lzma.LZMACompressor(lzma.FORMAT_XZ),
}


class Vectors(NamedTuple):
    """Tokens in the order of the file, and their float32 vectors, one per row."""

    tokens: list[str]
    matrix_VM: np.ndarray


class RunningMean:
    """The mean of rows that arrive in blocks."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: np.ndarray | None = None

    def add(self, rows_NM: np.ndarray) -> None:
        """Add these rows to the mean."""
        total = rows_NM.sum(0, dtype=np.float64)
        self._sum = total if self._sum is None else self._sum + total
        self.count += len(rows_NM)

    @property
    def value(self) -> np.ndarray | None:
        """The mean (M,) of all rows so far, float64; None before the first."""
        return None if self._sum is None else self._sum / self.count


def read_tokens(path: str | Path, requested: Collection[str]) -> set[str]:
    """The `requested` tokens that have a row with a number that is not zero; the file's rows are not checked.

    Raises FileProblem, CorruptError, DataError (no such file).
    """
    present: set[str] = set()
    with open_binary(path, "file of vectors") as handle:
        blocks = read_blocks(handle, name=path)
        first = next(blocks, [""])
        _head(first[0], path)
        for lines in chain([first[1:]], blocks):
            fields = (line.partition(" ") for line in lines)
            present.update(token for token, _, values in fields if token in requested and values.lstrip(ZERO))
    return present


def read_vectors(
    path: str | Path,
    *,
    wanted: Collection[str] | None = None,
    width: int | None = None,
    others: RunningMean | None = None,
) -> Vectors:
    """The vectors in a plain, .gz or .xz file; only those of the `wanted` tokens, unless it is None.

    The number of rows and fields must agree with the first line. Numbers are parsed only in the rows of these tokens, and only
    these rows take memory. `width` is the width that the vectors must have. `others` receives the rows of all other tokens,
    whose numbers are then parsed too.

    Raises FileProblem, CorruptError, and DataError (file and line) for another number of fields or rows, a field that is not
    a finite float32 number, and a token that occurs twice.
    """
    with open_binary(path, "file of vectors") as handle:
        blocks = read_blocks(handle, name=path)
        first = next(blocks, [""])
        count, actual = _head(first[0], path)
        if width is not None and actual != width:
            raise DataError(f"the vectors have width {actual}; {width} is needed", file=path, line=1)
        reader = _Reader(path, count, actual, wanted, others)
        reader.add(first[1:])
        for lines in blocks:
            reader.add(lines)
    return reader.finish()


class _Reader:
    """Reads the rows of a file in blocks."""

    def __init__(
        self, path: str | Path, count: int, width: int, requested: Collection[str] | None, others: RunningMean | None
    ) -> None:
        self.path, self.count, self.width, self.requested, self.others = path, count, width, requested, others
        self.line = 1
        self.lines: dict[str, int] = {}  # the line of each token in the result
        self.parts: list[np.ndarray] = []

    def add(self, lines: list[str]) -> None:
        """Read the next rows."""
        separators, requested = self.width - 1, self.requested
        rows: list[tuple[int, str]] = []
        other_rows: list[tuple[int, str]] = []
        for line in lines:
            self.line += 1
            token, _, values = line.partition(" ")
            values = values.removesuffix(" ")
            if values.count(" ") != separators or not values or not token:
                self._refuse_fields(line)
            if requested is not None and token not in requested:
                if self.others is not None:
                    other_rows.append((self.line, values))
                continue
            before = self.lines.setdefault(token, self.line)
            if before != self.line:
                raise DataError(f"token {token!r} is also in line {before}", file=self.path, line=self.line)
            rows.append((self.line, values))
        if self.line - 1 > self.count:
            raise DataError(f"the file has more rows than the {self.count:,} of its first line", file=self.path, line=1)
        if rows:
            self.parts.append(self._numbers(rows))
        if other_rows and self.others is not None:
            self.others.add(self._numbers(other_rows))

    def _refuse_fields(self, line: str) -> None:
        fields = line.removesuffix(" ").count(" ") + 1
        what = f"a row of {fields} fields; a token and {self.width} numbers are needed, one space between"
        raise DataError(what if line.strip(" ") else "an empty row", file=self.path, line=self.line)

    def _numbers(self, rows: list[tuple[int, str]]) -> np.ndarray:
        matrix = _parsed([values for _, values in rows])
        if matrix is not None and matrix.shape == (len(rows), self.width) and np.isfinite(matrix).all():
            return matrix
        for number, values in rows:
            for place, field in enumerate(values.split(" "), start=1):
                if not _is_number(field):
                    what = f"number {place} of the row is {field!r}, not a finite number of float32"
                    raise DataError(what, file=self.path, line=number)
        raise AssertionError("every field of the block is a number")

    def finish(self) -> Vectors:
        """All vectors that were read. Raises DataError if rows are missing."""
        if self.line - 1 != self.count:
            what = f"{plural(self.line - 1, 'row')}; the first line says {self.count:,}"
            raise DataError(what, file=self.path, line=self.line, hint="the file may have been cut")
        matrix = np.empty((len(self.lines), self.width), np.float32)
        place = 0
        self.parts.reverse()
        while self.parts:
            part = self.parts.pop()
            matrix[place : place + len(part)] = part
            place += len(part)
        return Vectors(list(self.lines), matrix)


def _head(line: str, path: str | Path) -> tuple[int, int]:
    fields = line.removesuffix(" ").split(" ")
    if len(fields) != 2 or not all(f.isascii() and f.isdigit() and len(f) < 12 for f in fields):
        shown = line if len(line) <= 40 else f"{line[:40]}…"
        raise DataError(
            f"the first line is {shown!r}; the numbers of rows and columns are needed",
            file=path,
            line=1,
            hint="a file of vectors begins with a line such as 400000 300 (GloVe files do not: insert one)",
        )
    count, width = map(int, fields)
    if not 1 <= width <= MAX_WIDTH:
        raise DataError(f"vectors of width {width:,}; 1 to {MAX_WIDTH:,} are read", file=path, line=1)
    return count, width


def _parsed(rows: list[str]) -> np.ndarray | None:
    """The numbers of the rows; None if one is not a number. Rows that are a carriage return alone are missing."""
    try:
        with np.errstate(over="ignore"), warnings.catch_warnings(action="ignore"):
            return np.loadtxt(rows, dtype=np.float32, delimiter=" ", comments=None, quotechar=None, ndmin=2)
    except ValueError:
        return None


def _is_number(field: str) -> bool:
    values = _parsed([field]) if field else None
    return values is not None and values.size == 1 and bool(np.isfinite(values).all())


def write_vectors(path: str | Path, tokens: Sequence[str], matrix_VM: np.ndarray) -> None:
    """Write vectors atomically; reading them gives the same float32. A name in .gz or .xz is compressed.

    Raises DataError for a token that such a file cannot hold and for a value that is not finite.
    """
    path, matrix = Path(path), np.asarray(matrix_VM, np.float32)
    if matrix.ndim != 2 or matrix.shape[0] != len(tokens) or not 1 <= matrix.shape[1] <= MAX_WIDTH:
        raise ValueError(f"{len(tokens)} tokens and a matrix {matrix.shape}")
    seen: set[str] = set()
    for line, token in enumerate(tokens, start=2):
        if not token or " " in token or "\n" in token or token in seen:
            raise DataError(f"token {token!r} is empty, occurs twice, or holds a space", file=path, line=line)
        seen.add(token)
    if not np.isfinite(matrix).all():
        line = int(np.isfinite(matrix).all(1).argmin()) + 2
        raise DataError(f"the vector of {tokens[line - 2]!r} is not finite", file=path, line=line)

    def write(temporary: Path) -> None:
        make = COMPRESSORS.get(path.suffix)
        engine = None if make is None else make()
        with disk.open(temporary, "wb") as handle:

            def put(lines: list[str]) -> None:
                data = encode_lines(lines, file=path)
                disk.write(handle, data if engine is None else engine.compress(data))

            put([f"{len(tokens)} {matrix.shape[1]}"])
            for start in range(0, len(tokens), ROWS):
                rows = zip(tokens[start : start + ROWS], matrix[start : start + ROWS].tolist(), strict=True)
                put([f"{token} {' '.join(f'{v:.9g}' for v in row)}" for token, row in rows])
            if engine is not None:
                disk.write(handle, engine.flush())
            disk.flush(handle)

    atomic_write(path, write)


class VectorNeighbour(NamedTuple):
    """A token and the cosine of its vector with that of the query token."""

    token: str
    cosine: float


def nearest(
    vectors: Vectors, rows: Sequence[int], count: int, candidates: Sequence[int]
) -> Iterator[list[VectorNeighbour]]:
    """For each of `rows` its `count` nearest rows among `candidates`, nearest first, ties in the order of the file.

    The row itself and zero vectors are left out. A zero vector has no neighbours.
    """
    chosen_C = np.asarray(candidates, np.intp)
    matrix_CM = vectors.matrix_VM[chosen_C]
    norms_C = _norms(matrix_CM)
    matrix_CM /= np.where(norms_C == 0, 1, norms_C)[:, None]
    for row in rows:
        vector_M = vectors.matrix_VM[row]
        size = _norms(vector_M[None])[0]
        if size == 0:
            yield []
            continue
        cosines_C = matrix_CM @ (vector_M / size).astype(np.float32)
        cosines_C[(norms_C == 0) | (chosen_C == row)] = -np.inf
        order = np.argsort(-cosines_C, kind="stable")[:count]
        yield [
            VectorNeighbour(vectors.tokens[chosen_C[i]], float(cosines_C[i])) for i in order if cosines_C[i] > -np.inf
        ]


def mean_cosine(matrix_VM: np.ndarray) -> float | None:
    """The mean cosine of two different rows, without zero rows; None for fewer than two. Near 1, all vectors are alike.

    sum over i ≠ j of u_i · u_j = |sum of u_i|² - V
    """
    norms_V = _norms(matrix_VM)
    inverse_V = 1 / norms_V[norms_V > 0]
    count = len(inverse_V)
    if count < 2:
        return None
    total_M = inverse_V @ matrix_VM[norms_V > 0]
    return float((total_M @ total_M - count) / (count * (count - 1)))


def _norms(matrix_NM: np.ndarray) -> np.ndarray:
    """Computed in float64, so that no square of a float32 overflows or underflows."""
    return np.asarray(np.sqrt(np.einsum("nm,nm->n", matrix_NM, matrix_NM, dtype=np.float64)))
