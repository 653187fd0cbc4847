"""Encoded parts of a dataset, stored while `prepare` works: a killed run resumes from them, and machines can share them.

The text of a split is cut into parts of `PART_CHUNKS` chunks. `FOLDER.parts/IDENTITY` has the tokenizer and one file for each
part that is encoded. The identity is a SHA-256 over the version, the options and the hashes of all input files, so a part of
other text, options or code is never used. The same part has the same bytes on every machine.

A part file is the SHA-256 of the rest (32 bytes), then a safetensors file: `tokens.K` and `lengths.K` of each sequence K, the
`lines` of the remaining pairs and, with `deduplicate`, the `keys` uint8 (N, 16), all chunks one after the other; what belongs
to a chunk as a whole is in its metadata. A part file is renamed when it is complete; one that is damaged counts as missing.

`repeated_pairs` finds duplicates with memory for `BUCKET` keys and one bit per pair. It distributes (key, position) by the
first bits of the key over files on disk, sorts each file, and marks all but the first position of each key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from phraseloom.data.encode import Chunk, EncodedChunk, RawChunk
from phraseloom.data.shards import SubwordInfo, as_stored
from phraseloom.errors import FileProblem, PhraseloomError, UsageError
from phraseloom.files import (
    FolderLock,
    atomic_write_bytes,
    atomic_write_json,
    disk,
    disk_problem,
    is_temporary,
    read_json,
)
from phraseloom.phrases.source import Segmenter
from phraseloom.replace import remove_marked, remove_own
from phraseloom.text.tokenizer import Tokenizer

FORMAT = 2  # 1: emoji counted as words of held-out text
PART_CHUNKS = 5
SUFFIX, MARK = ".parts", "parts.json"
SUBWORDS, DUPLICATES = "subwords.json", "duplicates"
BUCKET, MAX_BUCKETS = 2**20, 256
DIGEST = hashlib.sha256().digest_size
RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "<i8")])


@dataclass(frozen=True)
class StoredChunk:
    """A chunk without its text: its number of pairs, what `prepare` found in it, and its encoding."""

    chunk: Chunk | RawChunk
    pairs: int
    encoded: EncodedChunk
    unspelled: tuple[str, ...] = ()


class PartFolder:
    """The stored parts of one preparation. `dataset`: the real path of the dataset; `identity`: what the parts depend on."""

    def __init__(self, dataset: Path, identity: Any, inputs: Iterable[Path]) -> None:
        self.folder = dataset.with_name(dataset.name + SUFFIX)
        text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
        self.here = self.folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        for path in inputs:
            if self.folder in (path.parent.resolve() / path.name).parents or self.folder in path.resolve().parents:
                raise UsageError(f"this folder holds an input, {path}", file=self.folder, hint="move the input away")
        if self.folder.is_symlink() or (self.folder.exists() and not self._is_own()):
            what = f"this name is needed while {dataset.name} is prepared; it is in the way"
            raise FileProblem(what, file=self.folder, hint="move it away, or choose another data.folder")

    def _is_own(self) -> bool:
        if not self.folder.is_dir():
            return False
        return (self.folder / MARK).is_file() or all(is_temporary(path) for path in self.folder.iterdir())

    def begin(self) -> None:
        """Make the folder. Raises FileProblem."""
        try:
            disk.mkdir(self.folder)
            if not (self.folder / MARK).is_file():
                atomic_write_json(self.folder / MARK, {"phraseloom": "parts", "format": FORMAT})
            disk.mkdir(self.here)
        except OSError as error:
            raise disk_problem(error, self.folder) from error

    @contextmanager
    def lock(self, share: str | None = None) -> Iterator[None]:
        """Keep other processes, on any machine, from encoding the same `share` ("2/4"), or any share at all if it is None.

        Raises FileProblem that names the other process.
        """
        name = "the parts" if share is None else f"part {share}"
        with ExitStack() as stack:
            try:
                whole = stack.enter_context(FolderLock(self.folder, shared=share is not None))
                if share is not None:
                    stack.enter_context(FolderLock(self.here / share.replace("/", "-of-")))
            except FileProblem as problem:
                raise FileProblem(f"{name}: {problem.what}", file=self.folder, hint=problem.hint) from problem
            whole.check()
            yield

    def remove(self) -> None:
        """Remove all parts. Raises FileProblem."""
        try:
            remove_marked(self.folder, MARK)
        except OSError as error:
            raise disk_problem(error, self.folder) from error

    def merge(self, other: Path) -> int:
        """Copy the parts that another machine made and that are missing here; return their number.

        `other`: its folder of parts. Raises UsageError if it has none of the same text, recipe and version.
        """
        source = other / self.here.name
        if not source.is_dir():
            hint = "prepare them with the same recipe, text and version of phraseloom"
            raise UsageError(
                "no parts of this dataset" if other.is_dir() else "no such folder of parts", file=other, hint=hint
            )
        if not (self.here / SUBWORDS).is_file() and (source / SUBWORDS).is_file():
            tokenizer = Tokenizer.load(source / "tokenizer")
            self._save_tokenizer(tokenizer, read_json(source / SUBWORDS, "subwords"))
        missing = [path for path in sorted(source.glob("*.part")) if not (self.here / path.name).is_file()]
        for path in missing:
            atomic_write_bytes(self.here / path.name, path.read_bytes())
        return len(missing)

    def tokenizer(self) -> tuple[Tokenizer, SubwordInfo] | None:
        """The tokenizer that an earlier run or another machine stored, or None."""
        if not (self.here / SUBWORDS).is_file():
            return None
        value = read_json(self.here / SUBWORDS, "subwords")
        with suppress(PhraseloomError, KeyError, TypeError):
            tokenizer = Tokenizer.load(self.here / "tokenizer")
            if tokenizer.sha256 == value["tokenizer_sha256"]:
                return tokenizer, SubwordInfo.model_validate(value["subwords"])
        return None

    def store_tokenizer(self, tokenizer: Tokenizer, subwords: SubwordInfo) -> None:
        """Store a tokenizer, for later runs and for worker processes. Raises FileProblem."""
        self._save_tokenizer(
            tokenizer, {"tokenizer_sha256": tokenizer.sha256, "subwords": as_stored(subwords.model_dump())}
        )

    def _save_tokenizer(self, tokenizer: Tokenizer, description: Any) -> None:
        disk.mkdir(self.here / "tokenizer")
        tokenizer.save(self.here / "tokenizer")
        atomic_write_json(self.here / SUBWORDS, description)

    def store_segmenter(self, segmenter: Segmenter) -> None:
        """Store the segmenter for worker processes. Raises FileProblem."""
        disk.mkdir(self.here / "segmenter")
        segmenter.save(self.here / "segmenter")

    def _path(self, split: str, number: int) -> Path:
        return self.here / f"{split}-{number:06d}.part"

    def store(self, split: str, number: int, chunks: Sequence[StoredChunk], tokenizer: Tokenizer) -> None:
        """Store a part. Raises FileProblem."""
        encoded = [stored.encoded for stored in chunks]
        arrays: dict[str, npt.NDArray[Any]] = {"lines": np.concatenate([e.lines for e in encoded])}
        for k in range(len(encoded[0].tokens)):
            arrays[f"tokens.{k}"] = np.concatenate([e.tokens[k] for e in encoded])
            arrays[f"lengths.{k}"] = np.concatenate([e.lengths[k] for e in encoded])
        keys = [e.keys for e in encoded if e.keys is not None]
        if keys:
            arrays["keys"] = np.concatenate(keys).view(np.uint8).reshape(-1, 16)
        described = [
            {
                "file": stored.chunk.file,
                "first": stored.chunk.first,
                "base": stored.chunk.base,
                "pairs": stored.pairs,
                "left": len(stored.encoded.lines),
                "dropped": stored.encoded.dropped,
                "no_tree": stored.encoded.no_tree,
                "unspelled": stored.unspelled,
            }
            for stored in chunks
        ]
        text = json.dumps({"tokenizer": tokenizer.sha256, "chunks": described}, ensure_ascii=False)
        data = safetensors.numpy.save(arrays, {"part": text})
        atomic_write_bytes(self._path(split, number), hashlib.sha256(data).digest() + data)

    def load(self, split: str, number: int, tokenizer: Tokenizer) -> list[StoredChunk] | None:
        """A part; None if it is missing, damaged or of another tokenizer. Raises FileProblem if it cannot be read."""
        path = self._path(split, number)
        try:
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        except OSError as error:
            raise FileProblem(f"cannot be read: {error.strerror}", file=path) from error
        digest, data = content[:DIGEST], memoryview(content)[DIGEST:]
        if not content or hashlib.sha256(data).digest() != digest:
            return None
        value, arrays = _read(bytes(data))
        return list(_chunks(value["chunks"], arrays)) if value["tokenizer"] == tokenizer.sha256 else None

    def duplicates_folder(self) -> Path:
        """An empty folder for `repeated_pairs`. Raises OSError."""
        folder = self.here / DUPLICATES
        remove_own(folder)
        disk.mkdir(folder)
        return folder


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The metadata and arrays of a part whose checksum is right."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return json.loads(header["__metadata__"]["part"]), safetensors.numpy.load(data)


def _chunks(described: list[dict[str, Any]], arrays: dict[str, npt.NDArray[Any]]) -> Iterator[StoredChunk]:
    sequences = range(sum(name.startswith("lengths.") for name in arrays))
    row, begins = 0, [0 for _ in sequences]
    for value in described:
        rows = slice(row, row + value["left"])
        lengths = tuple(arrays[f"lengths.{k}"][rows] for k in sequences)
        ends = [begin + int(n.sum()) for begin, n in zip(begins, lengths, strict=True)]
        tokens = tuple(arrays[f"tokens.{k}"][begins[k] : ends[k]] for k in sequences)
        keys = arrays["keys"][rows].reshape(-1).view("S16") if "keys" in arrays else None
        chunk = Chunk(value["file"], value["first"], value["base"], [], [])
        encoded = EncodedChunk(tokens, lengths, arrays["lines"][rows], value["dropped"], keys, value["no_tree"])
        yield StoredChunk(chunk, value["pairs"], encoded, tuple(value["unspelled"]))
        row, begins = rows.stop, ends


Bits = npt.NDArray[np.uint8]


def repeated_pairs(keys: Iterable[npt.NDArray[np.bytes_]], total: int, folder: Path) -> Bits:
    """One bit for each key, the lowest of each byte first: whether an equal key came before. `total`: the number of keys.

    `keys`: blocks of 16-byte keys, in order. Files in `folder` need 24 bytes per key. Raises FileProblem.
    """
    bits = np.zeros(total // 8 + 1, np.uint8)
    buckets = min(MAX_BUCKETS, total // BUCKET + 1)
    paths = [folder / f"{number:03d}" for number in range(buckets)]
    borders = np.array([(n << 64) // buckets for n in range(1, buckets)], np.uint64)
    place = 0
    try:
        with ExitStack() as stack:
            handles = [stack.enter_context(disk.open(path, "wb")) for path in paths]
            for block in keys:
                records = np.empty(len(block), RECORD)
                words = np.ascontiguousarray(block).view(np.uint8).reshape(-1, 16).view(">u8")
                records["high"], records["low"] = words[:, 0], words[:, 1]
                records["place"] = np.arange(place, place + len(block))
                place += len(block)
                records = _sorted(records)
                again = _equal_to_previous(records)
                _mark(bits, records["place"][again])
                records = records[~again]  # so that the same few pairs do not fill a bucket
                ends = np.searchsorted(records["high"], borders)
                for handle, part in zip(handles, np.split(records, ends), strict=True):
                    disk.write(handle, part.tobytes())
            for handle in handles:
                disk.flush(handle)
        for path in paths:
            records = _sorted(np.fromfile(path, RECORD))
            _mark(bits, records["place"][_equal_to_previous(records)])
            remove_own(path)
    except OSError as error:
        raise disk_problem(error, folder) from error
    assert place == total
    return bits


def _sorted(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Records by key, those of the same key by place."""
    return records[np.lexsort((records["place"], records["low"], records["high"]))]


def _equal_to_previous(records: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    same = np.zeros(len(records), bool)
    high, low = records["high"], records["low"]
    same[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return same


def _mark(bits: Bits, places: npt.NDArray[np.int64]) -> None:
    np.bitwise_or.at(bits, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))


def bits_of(bits: Bits, begin: int, end: int) -> npt.NDArray[np.bool_]:
    """The bits `begin` to `end`, as booleans."""
    part = np.unpackbits(bits[begin >> 3 : (end >> 3) + 1], bitorder="little")
    return part[begin & 7 :][: end - begin].astype(bool)
