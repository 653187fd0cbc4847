"""The header of a safetensors file, read without torch and without trusting it.

    8 bytes: length n of the header, little-endian · n bytes: JSON {name: {dtype, shape, data_offsets}} · the data

A header may claim anything: its length, every shape and every offset are checked against the size of the file before
they are used (reliability.md S3, S5, S10).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phraseloom.errors import CorruptError
from phraseloom.files import require_file

MAX_HEADER = 64 * 2**20
MAX_DIMENSIONS = 16
BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


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
    path = require_file(path, "weights file")
    total = path.stat().st_size
    with Path(path).open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if total < 8 or length > min(MAX_HEADER, total - 8):
            raise CorruptError(f"not a safetensors file, or cut short ({total} bytes)", file=path)
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
    """The tensors, if their offsets cover the `data` bytes one after the other, as safetensors demands."""
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
