"""Shards, which store token ids on disk (concatenated, little-endian, without header), and the index of a dataset.

A shard `train/00000` has five files: `.source.tokens` and `.target.tokens` (uint16, or uint32 if a vocabulary has 65,536
pieces or more), `.source.offsets` and `.target.offsets` (int64, pairs + 1 values; sentence i is
tokens[offsets[i] : offsets[i + 1]]), and `.lines` (int64, the number of each pair from 0 over all files of its split, to join
files parallel to the raw text later). Sequences have no BOS or EOS.

With source phrases there are two more files: `.source.phrases` (uint16: the tokens of each phrase, in order; those of sentence
i sum to its tokens + 1, because EOS is in the last one) and `.source.phrase_offsets` (like `offsets`). With word links there
are `.links` (uint16: source token and target token of each link between tokens, in turn) and `.link_offsets`.

The index of a dataset folder, `index.json`, has the contents with counts and hashes, their origin, and what was left out. It
has no time and no absolute path, so the same input gives the same bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import mmap
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pydantic
from pydantic import Field

from phraseloom.config import Config, Whole
from phraseloom.errors import CorruptError, FileProblem
from phraseloom.files import disk, read_json
from phraseloom.options.text import LINE_TOKENS
from phraseloom.reading import MIB, inside

FORMAT = 1
INDEX = "index.json"
INDEX_MAX_BYTES = 8 * MIB
SPLITS = ("train", "valid", "test")

# Why a training pair is left out, in the order of the checks.
REASONS = {
    "empty": "the line is blank",
    "empty_both": "both sides are blank",
    "empty_source": "the source is blank",
    "empty_target": "the target is blank",
    "held_out": "a side is in valid or test",
    "too_long": "a side has more than max_tokens subwords",
    "too_short": "a side has fewer than min_tokens subwords",
    "ratio": "one side is more than max_ratio times the other",
    "duplicate": "the same pair came before",
}
# The reasons for text without a source.
TEXT_REASONS = REASONS | {
    "held_out": "it is in valid or test",
    "too_long": "it has more than max_tokens subwords",
    "too_short": "it has fewer than min_tokens subwords",
    "duplicate": "the same line came before",
}

Count = Annotated[int, Field(ge=0)]

# Keys of datasets with source phrases, word vocabularies, blank lines, a reused tokenizer, weights, tags or links, or
# decontaminated ones. Other datasets leave them out, so that their bytes do not change.
OF_PHRASES = {"phrases", "trees", "trees_sha256", "trees_report", "source_phrases", "no_tree", "segmenter_sha256"}
OF_WORDS = {
    "target_phrases",
    "source_unknown",
    "target_unknown",
    "source_words",
    "target_words",
    "source",
    "target_vectors",
    "dimensions",
    "without_vector",
}
OF_BLANKS = {"blank", "long"}
OF_REUSED = {"reused", "new_pieces", "unknown_words"}
OF_CORPORA = {"weight", "temperature", "pairs", "tag", "links", "links_sha256", "links_report"}
OF_FILTERS = {"decontaminate"}


class Dropped(Config):
    """The number of pairs left out for one reason, and the first of them (file as in the recipe, line from 1)."""

    pairs: Count
    first_file: str
    first_line: Count


class NoTree(Config):
    """The number of non-blank lines without a parse tree, and the first of them (file as in the recipe, line from 1)."""

    lines: Count
    first_file: str
    first_line: Count


class FileInfo(Config):
    """A parallel pair of files: hashes, lines, and the report of the reader for each side.

    Text without a source has empty source fields. `trees…` describe the parse trees of the source. `pairs`: the pairs that
    remain, if corpora have weights.
    """

    source: str
    target: str
    source_sha256: str
    target_sha256: str
    lines: Count
    source_report: dict[str, Any]
    target_report: dict[str, Any]
    trees: str | None = None
    trees_sha256: str | None = None
    trees_report: dict[str, Any] | None = None
    pairs: Count | None = None
    links: str | None = None
    links_sha256: str | None = None
    links_report: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The file that messages name: the source if there is one, else the target."""
        return self.source or self.target


class ShardInfo(Config):
    """One shard: pairs, tokens of each side, source phrases and links (None if not stored), SHA-256 of its files."""

    name: Annotated[str, Field(pattern=r"^(train|valid|test)/\d{5,9}$")]
    pairs: Count
    source_tokens: Count
    target_tokens: Count
    source_phrases: Count | None = None
    links: Count | None = None
    sha256: dict[str, str]

    @property
    def counts(self) -> tuple[int, int, int | None, int | None]:
        """The values of each sequence of `SEQUENCES`; None for one that is not stored. A link is two values."""
        links = None if self.links is None else 2 * self.links
        return self.source_tokens, self.target_tokens, self.source_phrases, links


class SplitInfo(Config):
    """One of train, valid, test. `source_phrases` as in `ShardInfo`.

    `…_unknown` count unknown tokens of word vocabularies and of a reused tokenizer; `unknown_words` are examples of words that
    the latter cannot spell. `blank` counts pairs of valid and test without tokens on a side, `long` those with a side that
    validation crops; both stay in the dataset.
    """

    read: Count
    pairs: Count
    source_tokens: Count
    target_tokens: Count
    source_phrases: Count | None = None
    links: Count | None = None
    source_unknown: Count | None = None
    target_unknown: Count | None = None
    unknown_words: list[str] | None = None
    dropped: dict[str, Dropped]
    files: list[FileInfo]
    shards: list[ShardInfo]
    text_sha256: dict[str, str] = Field({})
    no_tree: NoTree | None = None
    blank: Dropped | None = None
    long: Dropped | None = None


class WordInfo(Config):
    """The unknown words in the sample that a vocabulary of words was learned from (`text/words.py`, `Coverage`)."""

    types: Count
    tokens: Count
    unknown_types: Count
    unknown_tokens: Count
    split_types: Count
    split_tokens: Count
    without_vector: Count | None = None


class VectorInfo(Config):
    """Figures of the target vectors as they are used (`text/vector_check.py`), and what random ones reach; what is wrong."""

    mean_cosine: float | None
    nearest_cosine: float | None
    effective_rank: float | None
    share_of_64: float | None
    likeliest: float | None
    random_likeliest: float | None
    problems: list[str]


class SubwordInfo(Config):
    """How the subwords were learned: pairs in the sample, the size of each vocabulary, and for words the unknown ones.

    `sample_pairs` is that of the target if the sides differ. `reused` subwords come from `data.tokenizer`, except for
    `new_pieces` of all vocabularies together.
    """

    sample_pairs: Count
    source_vocabulary: Count
    target_vocabulary: Count
    source_words: WordInfo | None = None
    target_words: WordInfo | None = None
    target_vectors: VectorInfo | None = None
    reused: bool | None = None
    new_pieces: Count | None = None


class Index(Config):
    """The whole index."""

    format: Annotated[Literal[1], Whole]
    config: dict[str, Any]
    token_type: Literal["uint16", "uint32"]
    tokenizer_sha256: str
    segmenter_sha256: str | None = None
    subwords: SubwordInfo
    splits: dict[Literal["train", "valid", "test"], SplitInfo]

    @property
    def is_text(self) -> bool:
        """Whether this is text of one language, for language models; the source side is empty then."""
        return "language" in self.config

    @property
    def valid_tokens(self) -> int:
        """The maximal number of subwords of a side in validation, which crops longer lines."""
        return max(LINE_TOKENS, self.config.get("filter", {}).get("max_tokens", 0))

    @property
    def reasons(self) -> Mapping[str, str]:
        """Descriptions of the reasons for which something is left out."""
        return TEXT_REASONS if self.is_text else REASONS


def as_stored(value: Any) -> Any:
    """Plain data of an index or a data section, without optional keys that are null."""
    if isinstance(value, dict):
        return {
            k: as_stored(v)
            for k, v in value.items()
            if v is not None or k not in OF_PHRASES | OF_WORDS | OF_BLANKS | OF_REUSED | OF_CORPORA | OF_FILTERS
        }
    return [as_stored(v) for v in value] if isinstance(value, list) else value


def read_index(folder: Path) -> Index:
    """The index of a dataset folder. Raises FileProblem, CorruptError."""
    path = inside(folder, INDEX, "dataset index")
    value = read_json(path, "dataset index", limit=INDEX_MAX_BYTES)
    if isinstance(value, dict) and isinstance(value.get("format"), int) and value["format"] > FORMAT:
        hint = "use a later phraseloom, or prepare the data again"
        what = f"dataset of format {value['format']}, but this version reads {FORMAT}"
        raise CorruptError(what, file=path, hint=hint)
    try:
        return Index.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"not a dataset index: {place}: {first['msg']}", file=path) from error


Ids = npt.NDArray[np.int64]
# The sequences of a pair: the files of their values and of their offsets. The last two are of datasets with source phrases and
# with word links.
SEQUENCES = (
    ("source.tokens", "source.offsets"),
    ("target.tokens", "target.offsets"),
    ("source.phrases", "source.phrase_offsets"),
    ("links", "link_offsets"),
)
PHRASES, LINKS = 2, 3
MAP_FIXED = 0x10  # of <sys/mman.h>, on Linux, macOS and the BSDs
CHECK_SECONDS = 1.0  # between two checks that a file has its size; a check of every read would cost as much as the read
PHRASE_TYPE = np.dtype("<u2")


class _HashedFile:
    """An output file and its hash."""

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
    """Writes the shards of one split and starts a new one after `shard_pairs` pairs or more; memory does not grow."""

    def __init__(
        self, folder: Path, split: str, token_type: str, shard_pairs: int, *, phrases: bool = False, links: bool = False
    ) -> None:
        self.folder, self.split, self.shard_pairs = folder, split, shard_pairs
        kind = np.dtype(token_type).newbyteorder("<")
        self.sequences = [0, 1, *([PHRASES] if phrases else []), *([LINKS] if links else [])]
        self.types = [kind if number < PHRASES else PHRASE_TYPE for number in self.sequences]
        self.shards: list[ShardInfo] = []
        self._out: dict[str, _HashedFile] = {}
        self._pairs, self._counts = 0, [0] * len(self.types)
        disk.mkdir(folder / split)

    @property
    def _name(self) -> str:
        return f"{self.split}/{len(self.shards):05d}"

    def _start(self) -> None:
        sequences = [SEQUENCES[number] for number in self.sequences]
        for name in [*(name for files in sequences for name in files), "lines"]:
            self._out[name] = _HashedFile(self.folder / f"{self._name}.{name}")
        for _, offsets in sequences:
            self._out[offsets].write(np.zeros(1, dtype="<i8"))

    def add(self, tokens: tuple[Any, ...], lengths: tuple[Any, ...], lines: Any) -> None:
        """Append pairs: concatenated tokens and lengths of both sides (of the phrases, of the links), and line numbers."""
        if not len(lines):
            return
        if not self._out:
            self._start()
        for number, kind in enumerate(self.types):
            values, offsets = SEQUENCES[self.sequences[number]]
            self._out[values].write(tokens[number].astype(kind, copy=False))
            ends = self._counts[number] + np.cumsum(lengths[number], dtype="<i8")
            self._out[offsets].write(ends)
            self._counts[number] = int(ends[-1])
        self._out["lines"].write(np.asarray(lines, dtype="<i8"))
        self._pairs += len(lines)
        if self._pairs >= self.shard_pairs:
            self.finish()

    def finish(self) -> list[ShardInfo]:
        """Close the current shard; return all shards."""
        if self._out:
            hashes = {name: out.finish() for name, out in self._out.items()}
            names = ("source_tokens", "target_tokens", "source_phrases", "links")
            counts = {names[number]: count for number, count in zip(self.sequences, self._counts, strict=True)}
            counts |= {"links": counts["links"] // 2} if LINKS in self.sequences else {}
            self.shards.append(ShardInfo(name=self._name, pairs=self._pairs, **counts, sha256=hashes))
            self._out, self._pairs, self._counts = {}, 0, [0] * len(self.types)
        return self.shards

    def abandon(self) -> None:
        """Close open files after a failure; their contents no longer matter."""
        for out in self._out.values():
            with contextlib.suppress(OSError):
                out.handle.close()
        self._out = {}


class JoinedFiles:
    """The same file of all shards, memory-mapped one after the other into one array, `values`.

    Shard k begins at `values[begins[k]]`. Opening reads nothing and keeps no file open, so there may be thousands of shards,
    and an index into `values` costs the same for any number of them. Files begin at page boundaries; the gaps are never read.

    `counts`: the values of each file. Raises CorruptError if a file has another size, FileProblem.
    """

    def __init__(self, folder: Path, names: Sequence[str], counts: Sequence[int], kind: np.dtype[Any]) -> None:
        self.paths = [inside(folder, name, "shard") for name in names]
        self._sizes = [count * kind.itemsize for count in counts]
        page = mmap.ALLOCATIONGRANULARITY
        ends = np.cumsum([-(-size // page) * page for size in self._sizes], dtype=np.int64)
        begins = np.concatenate([[0], ends])
        self.begins = begins[:-1] // kind.itemsize
        # Reserves addresses only; the files are mapped over it, and unmapped with it.
        whole = mmap.mmap(-1, max(page, int(begins[-1])), flags=mmap.MAP_PRIVATE | mmap.MAP_ANON, prot=mmap.PROT_READ)
        self.values = np.frombuffer(whole, dtype=kind)
        self.values.flags.writeable = False
        address = self.values.__array_interface__["data"][0]
        self._inodes = [
            _map_file(path, size, address + int(begin))
            for path, size, begin in zip(self.paths, self._sizes, begins, strict=False)
        ]

    def check(self, shard: int) -> None:
        """Raise CorruptError if a file was truncated after it was mapped; a read after its end would kill the process.

        A file that was replaced by another is still mapped as it was.
        """
        try:
            stat = self.paths[shard].stat()
        except OSError:
            return
        if stat.st_ino == self._inodes[shard] and stat.st_size < self._sizes[shard]:
            raise CorruptError(
                f"was truncated to {stat.st_size} bytes during reading; it had {self._sizes[shard]}",
                file=self.paths[shard],
                hint="restore the dataset, then run the same command again",
            )


def _map_file(path: Path, size: int, address: int) -> int:
    """Map a file at an address that is reserved for it. Returns its inode."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise FileProblem(f"cannot be opened: {error.strerror}", file=path) from error
    try:
        stat = os.fstat(handle)
        if stat.st_size != size:
            raise CorruptError(f"size is {stat.st_size} bytes, the index says {size}", file=path)
        fixed = mmap.MAP_SHARED | MAP_FIXED
        if size and libc.mmap(address, size, mmap.PROT_READ, fixed, handle, 0) != address:
            hint = "raise vm.max_map_count, or prepare the data with a larger data.shard_pairs"
            raise FileProblem(f"cannot be mapped: {os.strerror(ctypes.get_errno())}", file=path, hint=hint)
        return stat.st_ino
    finally:
        os.close(handle)


class SplitFiles:
    """The shards of a split, with the sequences of `SEQUENCES`. Each sequence is mapped on first use.

    Raises CorruptError if the files do not agree with the index: sizes when mapped, offsets in `lengths`, ids in `gather`.
    """

    def __init__(self, folder: Path, shards: Sequence[ShardInfo], token_type: str, sizes: Sequence[int]) -> None:
        kind = np.dtype(token_type).newbyteorder("<")
        self._folder, self.shards, self._sizes = folder, shards, sizes
        self._kinds = (kind, kind, PHRASE_TYPE, PHRASE_TYPE)
        self._maps: dict[str, JoinedFiles] = {}
        self._checked = np.full((len(SEQUENCES), len(shards)), -math.inf)

    def _file_sizes(self, shard: ShardInfo) -> dict[str, int]:
        sizes = {"lines": 8 * shard.pairs}
        for (values, offsets), kind, count in zip(SEQUENCES, self._kinds, shard.counts, strict=True):
            if count is not None:
                sizes |= {values: count * kind.itemsize, offsets: 8 * (shard.pairs + 1)}
        return sizes

    def file(self, name: str) -> JoinedFiles:
        """One kind of file, such as `lines`, of all shards."""
        if name not in self._maps:
            number = next((i for i, (values, _) in enumerate(SEQUENCES) if values == name), None)
            kind = np.dtype("<i8") if number is None else self._kinds[number]
            counts = [self._file_sizes(shard)[name] // kind.itemsize for shard in self.shards]
            names = [f"{shard.name}.{name}" for shard in self.shards]
            self._maps[name] = JoinedFiles(self._folder, names, counts, kind)
        return self._maps[name]

    def map(self, sequences: Iterable[int]) -> None:
        """Map the values and offsets of some sequences now."""
        for sequence in sequences:
            for name in SEQUENCES[sequence]:
                self.file(name)

    def check_sizes(self) -> None:
        """Check every file that is mapped. Raises CorruptError if one was truncated."""
        for files in self._maps.values():
            for shard in range(len(self.shards)):
                files.check(shard)

    def offsets(self, sequence: int, shard: int) -> Ids:
        """The offsets of a shard (pairs + 1), checked: they only grow, from 0 to the number of values."""
        files = self.file(SEQUENCES[sequence][1])
        files.check(shard)
        info = self.shards[shard]
        offsets = files.values[files.begins[shard] :][: info.pairs + 1]
        if offsets[0] != 0 or offsets[-1] != info.counts[sequence] or (offsets[1:] < offsets[:-1]).any():
            raise CorruptError("offsets do not fit the tokens", file=files.paths[shard])
        return offsets

    def lengths(self, sequence: int) -> npt.NDArray[np.int32]:
        """The number of values of each pair, int32 (N,). Reads all offsets once; all values too for phrases and links."""
        result = np.empty(sum(shard.pairs for shard in self.shards), np.int32)
        begin = 0
        for number, shard in enumerate(self.shards):
            offsets = self.offsets(sequence, number)
            np.subtract(offsets[1:], offsets[:-1], out=result[begin : begin + shard.pairs], casting="unsafe")
            if sequence == PHRASES:
                self._check_phrases(number, offsets)
            if sequence == LINKS:
                self._check_links(number, offsets)
            begin += shard.pairs
        return result

    def _check_phrases(self, shard: int, offsets: Ids) -> None:
        files = self.file(SEQUENCES[PHRASES][0])
        files.check(shard)
        sizes = files.values[files.begins[shard] :][: self.shards[shard].source_phrases]
        ends = np.cumsum(sizes, dtype=np.int64)
        symbols = np.arange(1, len(offsets))  # the EOS of all sentences up to each one; the tokens have none
        tokens = self.offsets(0, shard)[1:] + symbols
        valid = (np.diff(offsets) > 0).all() and (ends[offsets[1:] - 1] == tokens).all()
        if not valid or sizes.min(initial=1) < 1:
            raise CorruptError("the phrases do not cover the sentences", file=files.paths[shard])

    def _check_links(self, shard: int, offsets: Ids) -> None:
        files = self.file(SEQUENCES[LINKS][0])
        files.check(shard)
        places = files.values[files.begins[shard] :][: self.shards[shard].counts[LINKS]]
        per_pair = np.diff(offsets) // 2
        ends = [np.repeat(np.diff(self.offsets(side, shard)), per_pair) for side in (0, 1)]
        if (offsets % 2).any() or (places[::2] >= ends[0]).any() or (places[1::2] >= ends[1]).any():
            raise CorruptError("links of tokens that the sentences lack", file=files.paths[shard])

    def gather(self, sequence: int, shards: Ids, pairs: Ids, lengths: Ids, padding: int) -> Ids:
        """The values of some pairs, padded on the right: int64 (B, the largest length).

        `shards`, `pairs`: the shard of each pair and its number there. `lengths`: as in `lengths()`. Raises CorruptError for
        ids beyond the vocabulary.
        """
        values, offsets = (self.file(name) for name in SEQUENCES[sequence])
        self._check_truncated(sequence, shards)
        columns = np.arange(int(lengths.max(initial=0)))
        filled = columns < lengths[:, None]
        starts = values.begins[shards] + offsets.values[offsets.begins[shards] + pairs]
        result = np.full(filled.shape, padding, dtype=np.int64)
        result[filled] = values.values[(starts[:, None] + columns)[filled]]
        if sequence < PHRASES and result.max(initial=0) >= (size := self._sizes[sequence]):
            row = int(result.argmax()) // (result.size // len(result))
            what = f"holds ids beyond the vocabulary of {size} pieces"
            raise CorruptError(what, file=values.paths[int(shards[row])])
        return result

    def _check_truncated(self, sequence: int, shards: Ids) -> None:
        """Check the files of shards that have not been checked for `CHECK_SECONDS`."""
        now, checked = time.monotonic(), self._checked[sequence]
        for shard in np.unique(shards[now - checked[shards] >= CHECK_SECONDS]).tolist():
            checked[shard] = now
            for name in SEQUENCES[sequence]:
                self.file(name).check(shard)
