"""Shards: token ids on disk, one after the other, little-endian, without header.

A shard `train/00000` is five files: `.source.tokens` and `.target.tokens` (uint16, or uint32 when a vocabulary has
65,536 pieces or more), `.source.offsets` and `.target.offsets` (int64, pairs + 1 values; sentence i is
tokens[offsets[i] : offsets[i + 1]]), and `.lines` (int64, the number of each pair from 0 over all files of its split,
so that files parallel to the raw text can be joined later). Sequences hold no beginning or end symbol. Counts and
hashes stand in the index.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from phraseloom.data.index import ShardInfo
from phraseloom.errors import CorruptError
from phraseloom.files import disk, require_file

Ids = npt.NDArray[np.int64]
SIDES = ("source", "target")
FILES = ("source.tokens", "source.offsets", "target.tokens", "target.offsets", "lines")


class _Out:
    """One file being written, with its hash."""

    def __init__(self, path: Path) -> None:
        self.handle: IO[bytes] = disk.open(path, "wb")
        self.digest = hashlib.sha256()

    def write(self, values: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(values).data.cast("B") if values.size else b""
        disk.write(self.handle, data)
        self.digest.update(data)

    def finish(self) -> str:
        disk.flush(self.handle)
        disk.fsync(self.handle)
        self.handle.close()
        return self.digest.hexdigest()


class ShardWriter:
    """Writes the shards of one split, a new one whenever one holds `shard_pairs` or more; memory does not grow."""

    def __init__(self, folder: Path, split: str, token_type: str, shard_pairs: int) -> None:
        self.folder, self.split, self.shard_pairs = folder, split, shard_pairs
        self.type = np.dtype(token_type).newbyteorder("<")
        self.shards: list[ShardInfo] = []
        self._out: dict[str, _Out] = {}
        self._pairs, self._tokens = 0, [0, 0]
        disk.mkdir(folder / split)

    @property
    def _name(self) -> str:
        return f"{self.split}/{len(self.shards):05d}"

    def add(self, tokens: tuple[Any, Any], lengths: tuple[Any, Any], lines: Any) -> None:
        """Append pairs: flat tokens and lengths of both sides, and their line numbers."""
        if not len(lines):
            return
        if not self._out:
            for name in FILES:
                self._out[name] = _Out(self.folder / f"{self._name}.{name}")
            for side in SIDES:
                self._out[f"{side}.offsets"].write(np.zeros(1, dtype="<i8"))
        for number, side in enumerate(SIDES):
            self._out[f"{side}.tokens"].write(tokens[number].astype(self.type, copy=False))
            ends = self._tokens[number] + np.cumsum(lengths[number], dtype="<i8")
            self._out[f"{side}.offsets"].write(ends)
            self._tokens[number] = int(ends[-1])
        self._out["lines"].write(np.asarray(lines, dtype="<i8"))
        self._pairs += len(lines)
        if self._pairs >= self.shard_pairs:
            self.finish()

    def finish(self) -> list[ShardInfo]:
        """Close the shard being written; all shards."""
        if self._out:
            hashes = {name: out.finish() for name, out in self._out.items()}
            source, target = self._tokens
            self.shards.append(
                ShardInfo(name=self._name, pairs=self._pairs, source_tokens=source, target_tokens=target, sha256=hashes)
            )
            self._out, self._pairs, self._tokens = {}, 0, [0, 0]
        return self.shards

    def abandon(self) -> None:
        """Close what is open after a failure; what is in the files no longer matters."""
        for out in self._out.values():
            with contextlib.suppress(OSError):
                out.handle.close()
        self._out = {}


class Shard:
    """One shard, memory-mapped. Raises CorruptError when its files do not fit the index."""

    def __init__(self, folder: Path, info: ShardInfo, token_type: str, vocabularies: tuple[int, int]) -> None:
        kind = np.dtype(token_type).newbyteorder("<")
        stem = str(folder / info.name)
        counts = (info.source_tokens, info.target_tokens)
        self.tokens = [_map(f"{stem}.{s}.tokens", kind, n) for s, n in zip(SIDES, counts, strict=True)]
        self.offsets = [_map(f"{stem}.{s}.offsets", np.dtype("<i8"), info.pairs + 1) for s in SIDES]
        self.lines = _map(f"{stem}.lines", np.dtype("<i8"), info.pairs)
        for side, offsets, count in zip(SIDES, self.offsets, counts, strict=True):
            if offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 0).any():
                raise CorruptError("offsets do not fit the tokens", file=f"{stem}.{side}.offsets")
        for side, tokens, size in zip(SIDES, self.tokens, vocabularies, strict=True):
            if tokens.max(initial=0) >= size:
                raise CorruptError(f"holds ids beyond the vocabulary of {size} pieces", file=f"{stem}.{side}.tokens")


def _map(name: str, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    path = require_file(name, "shard")
    if path.stat().st_size != count * kind.itemsize:
        raise CorruptError(f"size is {path.stat().st_size} bytes, the index says {count * kind.itemsize}", file=path)
    if count == 0:
        return np.empty(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r", shape=(count,)).view(np.ndarray)
