"""`table.sentences.json.xz`: the data behind the numbers of a table, from which anybody can recompute its intervals.

    {"format": 1, "table", "scale",
     "statistics": [{"task", "row", "metric", "seed", "labels": {label: {"type", "shape", "data"}}}],
     "hypotheses": [{"task", "row", "seed", "metrics": [name], "signatures": [text], "lines": [text]}]}

Statistics are the rows that a metric sums over sentences (metrics/bleu.py, metrics/ratio.py), int32 or float64,
little-endian, in base64; the label is "" if the metric is one number. Hypotheses are the scored lines, with sacreBLEU's
signature of each score.
"""

from __future__ import annotations

import base64
import binascii
import json
import lzma
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from phraseloom.config import Config, Whole
from phraseloom.errors import CorruptError, FileProblem
from phraseloom.files import atomic_write_bytes
from phraseloom.reading import read_bounded
from phraseloom.reproduce.measure import MeasuredValue

SENTENCES = "table.sentences.json.xz"
PACKED_MAX_BYTES, MAX_BYTES, XZ_MEMORY = 2**28, 2**30, 2**28
Cell = tuple[str, str, str]


class StoredArray(Config):
    """An array of (sentences, counts)."""

    type: Literal["int32", "float64"]
    shape: list[int] = pydantic.Field(min_length=2, max_length=2)
    data: str

    def array(self) -> np.ndarray:
        """The array as float64. Raises ValueError if the data has another size."""
        raw = base64.b64decode(self.data, validate=True)
        return np.frombuffer(raw, dtype=np.dtype(self.type).newbyteorder("<")).reshape(self.shape).astype(np.float64)


class StoredStatistics(Config):
    """The statistics of one number or series of a row and seed, by label."""

    task: str
    row: str
    metric: str
    seed: int
    labels: dict[str, StoredArray]


class StoredHypotheses(Config):
    """The translations of a row and seed, and the signatures that they were scored with."""

    task: str
    row: str
    seed: int
    metrics: list[str]
    signatures: list[str]
    lines: list[str]


class TableSentences(Config):
    """The whole file."""

    format: Annotated[Literal[1], Whole]
    table: str
    scale: str
    statistics: list[StoredStatistics]
    hypotheses: list[StoredHypotheses]

    def arrays(self) -> dict[tuple[Cell, int], dict[str, np.ndarray]]:
        """The statistics by (task, row, metric) and seed, then label."""
        return {
            ((s.task, s.row, s.metric), s.seed): {label: stored.array() for label, stored in s.labels.items()}
            for s in self.statistics
        }


def write_sentences(path: Path, table: str, scale: str, measured: dict[Cell, dict[int, MeasuredValue]]) -> bool:
    """Write the data behind the numbers. Returns False and writes no file if no number is computed from sentences.

    A file that already holds them is left as it is: packing takes most of the time of a table.
    """
    statistics: list[StoredStatistics] = []
    hypotheses: dict[tuple[str, str, int, tuple[str, ...]], StoredHypotheses] = {}
    for (task, row, metric), seeds in measured.items():
        for seed, number in seeds.items():
            if number.statistics:
                labels = {label: _stored(rows) for label, rows in number.statistics.items()}
                statistics.append(StoredStatistics(task=task, row=row, metric=metric, seed=seed, labels=labels))
            if number.hypotheses:
                key = (task, row, seed, number.hypotheses)
                entry = hypotheses.get(key) or StoredHypotheses(
                    task=task, row=row, seed=seed, metrics=[], signatures=[], lines=list(number.hypotheses)
                )
                hypotheses[key] = entry
                entry.metrics.append(metric)
                entry.signatures.append(number.signature)
    if not statistics:
        return False
    content = TableSentences(
        format=1, table=table, scale=scale, statistics=statistics, hypotheses=list(hypotheses.values())
    )
    text = json.dumps(content.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":")).encode()
    if not _holds(path, text):
        atomic_write_bytes(path, lzma.compress(text, format=lzma.FORMAT_XZ, preset=6))
    return True


def read_sentences(path: Path) -> TableSentences:
    """Read and check the file. Raises CorruptError if it is damaged, too large when unpacked, or not such a file."""
    try:
        content = TableSentences.model_validate(json.loads(_unpacked(path)))
        content.arrays()
    except (lzma.LZMAError, MemoryError, ValueError, RecursionError, binascii.Error) as error:
        raise CorruptError(
            f"not the sentences of a table ({type(error).__name__})", file=path, hint="reproduce writes it again"
        ) from error
    return content


def _unpacked(path: Path) -> bytes:
    """The unpacked file. Raises CorruptError if it is cut short or too large, lzma.LZMAError if it is another file."""
    packed = read_bounded(path, "sentences of a table", PACKED_MAX_BYTES)
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    raw = unpacker.decompress(packed, max_length=MAX_BYTES)
    if not unpacker.eof:
        raise CorruptError("cut short, or too large when unpacked", file=path, hint="reproduce writes it again")
    return raw


def _holds(path: Path, text: bytes) -> bool:
    """Whether `path` is a whole file with this text."""
    try:
        return _unpacked(path) == text
    except (FileProblem, lzma.LZMAError, MemoryError):
        return False


def _stored(rows: np.ndarray) -> StoredArray:
    whole: Any = np.rint(rows)
    small = rows.size == 0 or (np.array_equal(whole, rows) and np.abs(whole).max() < 2**31)
    kind: Literal["int32", "float64"] = "int32" if small else "float64"
    data = np.ascontiguousarray(rows, dtype=np.dtype(kind).newbyteorder("<")).tobytes()
    return StoredArray(type=kind, shape=list(rows.shape), data=base64.b64encode(data).decode())
