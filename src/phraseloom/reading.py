"""Read files that somebody else may have written: regular files only, of limited size, never through a link.

`read_bounded` reads one small file, `inside` finds a file in a folder without following links, and `read_header` reads
the header of a safetensors file:

    8 bytes: length n of the header, little-endian · n bytes: JSON {name: {dtype, shape, data_offsets}} · the data

A header may claim anything: its length, every shape and every offset are checked against the size of the file before
they are used (reliability.md S3, S5, S10).
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phraseloom.errors import CorruptError, FileProblem

MIB = 2**20
MAX_HEADER = 8 * MIB
MAX_DIMENSIONS = 16
BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
# The largest size of a file in a folder, by the end of its name; the first match counts. Tensors and shards have no limit
# of their own: their sizes follow from a header or an index.
LIMITS: tuple[tuple[str, int | None], ...] = (
    (".vectors.safetensors", 2048 * MIB),
    (".safetensors", None),
    (".tokens", None),
    (".offsets", None),
    (".phrase_offsets", None),
    (".phrases", None),
    (".links", None),
    (".link_offsets", None),
    (".lines", None),
    ("phrase_table.txt", 256 * MIB),
    (".txt", 1024 * MIB),
    (".json", 8 * MIB),
    (".md", MIB),
    (".vocab", 64 * MIB),
    (".model", 64 * MIB),
    (".codes", 64 * MIB),
    (".tsv", 64 * MIB),
    (".truecase", 1024 * MIB),
    ("", 16 * MIB),
)


def limit_of(name: str) -> int | None:
    """The size limit in bytes of a file in a model, dataset or run folder; None if there is none."""
    return next(limit for ending, limit in LIMITS if name.endswith(ending))


def regular_size(path: str | Path, what: str = "file") -> int:
    """The size of a regular file in bytes; follows links. Raises FileProblem for anything else: a device may be endless."""
    path = Path(path)
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileProblem(f"{what} cannot be opened: {reason}", file=path) from error
    if not stat.S_ISREG(status.st_mode):
        raise FileProblem(f"{what} is not a regular file but {_kind(status.st_mode)}", file=path, hint="give a file")
    return status.st_size


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISLNK, "a link"),
    )
    return next((name for is_kind, name in kinds if is_kind(mode)), "a device")


# Windows lacks the first two and needs the third.
READ_FLAGS = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    READ_FLAGS |= getattr(os, _flag, 0)


def read_bounded(path: str | Path, what: str, limit: int) -> bytes:
    """All bytes of a regular file of at most `limit` bytes. Raises FileProblem, CorruptError for a larger one."""
    path = Path(path)
    size = regular_size(path, what)
    if size <= limit:
        try:
            handle = os.open(path, READ_FLAGS)
            try:
                chunks, remaining = [], limit + 1
                while remaining > 0 and (chunk := os.read(handle, min(remaining, MIB))):
                    chunks.append(chunk)
                    remaining -= len(chunk)
            finally:
                os.close(handle)
        except OSError as error:
            raise FileProblem(f"{what} cannot be read: {error.strerror}", file=path) from error
        if remaining > 0:
            return b"".join(chunks)
    raise CorruptError(f"{what} is larger than {limit >> 20} MiB, which no such file is", file=path)


def inside(folder: str | Path, name: str, what: str = "file") -> Path:
    """The path of a regular file in `folder`; `/` separates the parts of its name, and no part below the folder is a link.

    The folder itself may be a link. Raises FileProblem if there is no such file, CorruptError if it is not a regular file or
    lies behind a link.
    """
    path = Path(folder)
    mode = 0
    for part in name.split("/"):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            raise FileProblem(f"{what} not found", file=path) from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise FileProblem(f"{what} cannot be opened: {reason}", file=path) from error
        if stat.S_ISLNK(mode):
            hint = "copy what it points to in its place"
            raise CorruptError(f"{what}: a link, and no link is followed inside a folder", file=path, hint=hint)
    if not stat.S_ISREG(mode):
        raise CorruptError(f"{what} is not a plain file but {_kind(mode)}", file=path)
    if not os.access(path, os.R_OK):
        raise FileProblem(f"{what} is not readable: permission denied", file=path)
    return path


def own_folder(folder: str | Path, name: str, what: str = "folder") -> Path:
    """The folder `name` in `folder`, if it is not a link. Raises FileProblem, CorruptError."""
    path = Path(folder) / name
    if path.is_symlink():
        hint = "copy what it points to in its place"
        raise CorruptError(f"{what}: a link, and no link is followed inside a folder", file=path, hint=hint)
    if not path.is_dir():
        raise FileProblem(f"{what} not found: no such folder", file=path)
    return path


def nested_deeper(text: bytes, depth: int) -> bool:
    """Whether valid JSON is nested more than `depth` levels deep. Each round removes the innermost brackets."""
    brackets = re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"', b"", text, flags=re.DOTALL) if b'"' in text else text
    brackets = brackets.translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(depth):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def read_header(path: str | Path) -> list[TensorInfo]:
    """The tensors of a safetensors file, by name. Raises FileProblem, CorruptError."""
    path = Path(path)
    total = regular_size(path, "weights file")
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if total < 8 or length > total - 8:
            raise CorruptError(f"not a safetensors file, or cut short ({total} bytes)", file=path)
        if length > MAX_HEADER:
            raise CorruptError(f"a safetensors header of more than {MAX_HEADER >> 20} MiB", file=path)
        raw = handle.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"the header is not valid JSON ({error})", file=path) from error
    if not isinstance(header, dict):
        raise CorruptError("the header is not a table of tensors", file=path)
    header.pop("__metadata__", None)
    return _checked(header, total - 8 - length, path)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name is given twice")
    return result


def _checked(header: dict[str, Any], data: int, path: Path) -> list[TensorInfo]:
    """The tensors, if their offsets cover the `data` bytes without overlap or gap, as safetensors requires."""
    spans: list[tuple[int, int]] = []
    tensors = []
    for name, entry in header.items():
        tensor, span = _tensor(name, entry)
        if tensor is None or span is None or span[1] - span[0] != tensor.size * BYTES[tensor.dtype]:
            raise CorruptError(f"the header says something impossible about {name[:80]!r}", file=path)
        tensors.append(tensor)
        spans.append(span)
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            raise CorruptError("tensors overlap or leave a gap", file=path)
        end = stop
    if end != data:
        raise CorruptError(f"holds {data} bytes of data, the header says {end}", file=path)
    return sorted(tensors, key=lambda t: t.name)


def _tensor(name: str, entry: Any) -> tuple[TensorInfo | None, tuple[int, int] | None]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return None, None
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BYTES or not _numbers(shape) or len(shape) > MAX_DIMENSIONS:
        return None, None
    if not _numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return None, None
    return TensorInfo(name, dtype, tuple(shape)), (offsets[0], offsets[1])


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**63 for v in value
    )
