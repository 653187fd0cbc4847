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
import functools
import hashlib
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pydantic
from pydantic import Field

from phraseloom.config import Config, Whole
from phraseloom.errors import CorruptError
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
    "too_long": "a side has more than max_tokens subwords",
    "too_short": "a side has fewer than min_tokens subwords",
    "ratio": "one side is more than max_ratio times the other",
    "duplicate": "the same pair came before",
}
# The reasons for text without a source.
TEXT_REASONS = REASONS | {
    "too_long": "it has more than max_tokens subwords",
    "too_short": "it has fewer than min_tokens subwords",
    "duplicate": "the same line came before",
}

Count = Annotated[int, Field(ge=0)]

# Keys of datasets with source phrases, word vocabularies, blank lines, a reused tokenizer, or weights, tags or links.
# Other datasets leave them out, so that their bytes do not change.
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
}
OF_BLANKS = {"blank", "long"}
OF_REUSED = {"reused", "new_pieces", "unknown_words"}
OF_CORPORA = {"weight", "temperature", "pairs", "tag", "links", "links_sha256"}


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


class VectorInfo(Config):
    """Figures of the target vectors as they are used (`text/vector_check.py`), and what random ones reach; what is wrong."""

    mean_cosine: float | None
    nearest_cosine: float | None
    effective_rank: float
    share_of_64: float
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
            if v is not None or k not in OF_PHRASES | OF_WORDS | OF_BLANKS | OF_REUSED | OF_CORPORA
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
SIDES = ("source", "target")
# The sequences of a pair: the files of their values and of their offsets. The last two are of datasets with source phrases and
# with word links.
SEQUENCES = (
    ("source.tokens", "source.offsets"),
    ("target.tokens", "target.offsets"),
    ("source.phrases", "source.phrase_offsets"),
    ("links", "link_offsets"),
)
PHRASES, LINKS = 2, 3
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


class Shard:
    """A memory-mapped shard. Raises CorruptError if its files do not agree with the index.

    `phrases` are mapped and checked on first use.
    """

    def __init__(self, folder: Path, info: ShardInfo, token_type: str, vocabularies: tuple[int, int]) -> None:
        kind = np.dtype(token_type).newbyteorder("<")
        self._folder, self._name, self._stem, self._info = folder, info.name, str(folder / info.name), info
        self._maps: list[tuple[Path, mmap.mmap]] = []
        counts = (info.source_tokens, info.target_tokens)
        sequences = [self._sequence(number, kind, count) for number, count in enumerate(counts)]
        self.tokens, self.offsets = [tokens for tokens, _ in sequences], [offsets for _, offsets in sequences]
        self.lines = self._map("lines", np.dtype("<i8"), info.pairs)
        for (name, _), tokens, size in zip(SEQUENCES, self.tokens, vocabularies, strict=False):
            if tokens.max(initial=0) >= size:
                raise CorruptError(f"holds ids beyond the vocabulary of {size} pieces", file=f"{self._stem}.{name}")

    def _sequence(self, number: int, kind: np.dtype[Any], count: int) -> tuple[npt.NDArray[Any], Ids]:
        """The values and offsets of one sequence, for all pairs."""
        values_name, offsets_name = SEQUENCES[number]
        values = self._map(values_name, kind, count)
        offsets = self._map(offsets_name, np.dtype("<i8"), self._info.pairs + 1)
        if offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 0).any():
            raise CorruptError("offsets do not fit the tokens", file=f"{self._stem}.{offsets_name}")
        return values, offsets

    def _map(self, name: str, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        path = inside(self._folder, f"{self._name}.{name}", "shard")
        if path.stat().st_size != count * kind.itemsize:
            what = f"size is {path.stat().st_size} bytes, the index says {count * kind.itemsize}"
            raise CorruptError(what, file=path)
        if count == 0:
            return np.empty(0, dtype=kind)
        with path.open("rb") as handle:
            mapped = mmap.mmap(handle.fileno(), count * kind.itemsize, access=mmap.ACCESS_READ)
        self._maps.append((path, mapped))
        return np.frombuffer(mapped, dtype=kind, count=count)

    @functools.cached_property
    def phrases(self) -> tuple[npt.NDArray[Any], Ids]:
        """The sizes of all source phrases, and the offsets of each sentence in them."""
        count = self._info.source_phrases
        assert count is not None, "a shard without phrases"
        sizes, offsets = self._sequence(PHRASES, PHRASE_TYPE, count)
        ends = np.cumsum(sizes, dtype=np.int64)
        symbols = np.arange(1, self._info.pairs + 1)  # the EOS of all sentences up to each one; the tokens have none
        valid = (np.diff(offsets) > 0).all() and (ends[offsets[1:] - 1] == self.offsets[0][1:] + symbols).all()
        if not valid or sizes.min(initial=1) < 1:
            raise CorruptError("the phrases do not cover the sentences", file=f"{self._stem}.{SEQUENCES[PHRASES][0]}")
        return sizes, offsets

    @functools.cached_property
    def links(self) -> tuple[npt.NDArray[Any], Ids]:
        """Source token and target token of each link, in turn, and the offsets of each sentence in them."""
        count = self._info.links
        assert count is not None, "a shard without links"
        places, offsets = self._sequence(LINKS, PHRASE_TYPE, 2 * count)
        per_pair = np.diff(offsets) // 2
        ends = [np.repeat(np.diff(self.offsets[side]), per_pair) for side in (0, 1)]
        if (offsets % 2).any() or (places[::2] >= ends[0]).any() or (places[1::2] >= ends[1]).any():
            raise CorruptError("links of tokens that the sentences lack", file=f"{self._stem}.{SEQUENCES[LINKS][0]}")
        return places, offsets

    def check(self) -> None:
        """Raise CorruptError if a file was truncated after it was mapped; a read after its end would kill the process."""
        for path, mapped in self._maps:
            if mapped.size() < len(mapped):
                raise CorruptError(
                    f"was truncated to {mapped.size()} bytes during reading; it had {len(mapped)}",
                    file=path,
                    hint="restore the dataset, then run the same command again",
                )
