"""A prepared dataset: memory-mapped token shards, their lengths, the tokenizer, and the raw text of valid and test.

A dataset with source phrases also has the phrase sizes, their segmenter, and the raw trees of valid and test.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pydantic

from phraseloom.data.shards import INDEX, LINKS, PHRASES, SplitFiles, SplitInfo, read_index
from phraseloom.errors import CorruptError, DataError, FileProblem, UsageError, plural
from phraseloom.files import MANIFEST, json_bytes, read_manifest, require_folder, sha256_file, verify_files
from phraseloom.options.data import AnyDataConfig, DataConfig, TextDataConfig
from phraseloom.phrases.source import Segmenter, load_segmenter
from phraseloom.reading import inside, own_folder
from phraseloom.text.lines import read_lines
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import PAD

# Opening hashes all files of a dataset up to this size; for a larger one it only checks sizes and small files.
VERIFY_BYTES = 2**30

Ids = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


class Split:
    """The pairs of `train`, `valid` or `test`, by number from 0; sequences have no BOS or EOS."""

    def __init__(
        self, folder: Path, name: str, info: SplitInfo, token_type: str, vocabularies: tuple[int, int]
    ) -> None:
        self.folder, self.name, self.info = folder, name, info
        self._starts = np.concatenate([[0], np.cumsum([s.pairs for s in info.shards], dtype=np.int64)])
        self._token_type, self._vocabularies = token_type, vocabularies

    @functools.cached_property
    def _files(self) -> SplitFiles:
        return SplitFiles(self.folder, self.info.shards, self._token_type, self._vocabularies)

    def __len__(self) -> int:
        return self.info.pairs

    def map_files(self, *, phrases: bool = False, links: bool = False) -> None:
        """Map all files that batches read, so that they stay these if the dataset is replaced. Raises CorruptError."""
        self._files.map([0, 1, *([PHRASES] if phrases else []), *([LINKS] if links else [])])

    def check_sizes(self) -> None:
        """Check that no file in use was truncated since it was opened. Raises CorruptError."""
        self._files.check_sizes()

    @functools.cached_property
    def source_lengths(self) -> Lengths:
        """Subwords of each source sentence, int32 (N,)."""
        return self._files.lengths(0)

    @functools.cached_property
    def target_lengths(self) -> Lengths:
        """Subwords of each target sentence, int32 (N,)."""
        return self._files.lengths(1)

    @functools.cached_property
    def phrase_counts(self) -> Lengths:
        """Phrases of each source sentence, int32 (N,), if the dataset has phrases."""
        return self._files.lengths(PHRASES)

    def share_lengths(
        self, share: Callable[[Callable[[], list[np.ndarray]]], list[np.ndarray]], *, phrases: bool, links: bool
    ) -> None:
        """Take the lengths of all sequences in use from `share(make)`, which gives the arrays of `make()`, perhaps those that
        another process made."""
        numbers = {"source_lengths": 0, "target_lengths": 1}
        numbers |= {"phrase_counts": PHRASES} if phrases else {}
        numbers |= {"_link_lengths": LINKS} if links else {}
        for name, number in numbers.items():
            self.__dict__[name] = share(functools.partial(self._lengths, number))[0]

    def _lengths(self, sequence: int) -> list[np.ndarray]:
        return [self._files.lengths(sequence)]

    @functools.cached_property
    def lines(self) -> Ids:
        """The number of each pair among the raw pairs of this split (from 0, over all files), int64 (N,)."""
        lines, shards = self._files.file("lines"), self.info.shards
        parts = [lines.values[begin:][: shard.pairs] for begin, shard in zip(lines.begins, shards, strict=True)]
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)

    def _sequence(self, side: int, number: int) -> npt.NDArray[Any]:
        lengths_N = self.source_lengths if side == 0 else self.target_lengths
        return self._padded(side, lengths_N, self._checked([number]))[0][0].astype(self._token_type)

    def source(self, number: int) -> npt.NDArray[Any]:
        """The source ids of a pair, uint16 or uint32."""
        return self._sequence(0, number)

    def target(self, number: int) -> npt.NDArray[Any]:
        """The target ids of a pair, uint16 or uint32."""
        return self._sequence(1, number)

    def batch(self, indices: Sequence[int] | Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """The pairs `indices`, padded on the right with PAD.

        Source (B, S), its lengths (B,), target (B, T), its lengths (B,), all int64.
        """
        pairs = self._checked(indices)
        return (*self._padded(0, self.source_lengths, pairs), *self._padded(1, self.target_lengths, pairs))

    @property
    def has_phrases(self) -> bool:
        """Whether the dataset has source phrases."""
        return self.info.source_phrases is not None

    def phrase_sizes(self, indices: Sequence[int] | Ids) -> Ids | None:
        """The source tokens of each phrase of the pairs `indices`, int64 (B, P), padded with 0; None without phrases.

        They sum to the source length + 1, because EOS is in the last phrase. Raises CorruptError.
        """
        if not self.has_phrases:
            return None
        return self._padded(PHRASES, self.phrase_counts, self._checked(indices), padding=0)[0]

    @functools.cached_property
    def _link_lengths(self) -> Lengths:
        return self._files.lengths(LINKS)

    def links(self, indices: Sequence[int] | Ids) -> npt.NDArray[np.float32] | None:
        """1 where a target and a source token of the pairs `indices` are linked, else 0, (B, T, S); None without links.

        T and S are the longest sides of these pairs, without EOS. Raises CorruptError.
        """
        if self.info.links is None:
            return None
        pairs = self._checked(indices)
        places, lengths = self._padded(LINKS, self._link_lengths, pairs)
        size = [int(n[pairs].max(initial=0)) for n in (self.target_lengths, self.source_lengths)]
        result = np.zeros((len(pairs), *size), np.float32)
        for row, (own, length) in enumerate(zip(places, lengths, strict=True)):
            result[row, own[1:length:2], own[:length:2]] = 1.0
        return result

    def _checked(self, indices: Sequence[int] | Ids) -> Ids:
        pairs = np.asarray(indices, dtype=np.int64)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= len(self)):
            raise IndexError(f"pairs {pairs.min()} to {pairs.max()} of {len(self)}")
        return pairs

    def _padded(self, sequence: int, lengths_N: Lengths, pairs: Ids, padding: int = PAD) -> tuple[Ids, Ids]:
        lengths = lengths_N[pairs].astype(np.int64)
        shards = np.searchsorted(self._starts, pairs, side="right") - 1
        return self._files.gather(sequence, shards, pairs - self._starts[shards], lengths, padding), lengths

    def text(self) -> tuple[list[str], list[str]]:
        """The raw lines of both sides (valid and test only); text without a source has empty source lines.

        Raises UsageError for the training data.
        """
        if not self.info.text_sha256:
            raise UsageError(f"the raw text of {self.name} is not stored in a dataset")
        target = self._raw_lines("target")
        source = self._raw_lines("source")
        assert target is not None
        return [""] * len(target) if source is None else source, target

    def trees(self) -> list[str] | None:
        """The raw parse tree of each source line (valid and test only); None if the dataset has none."""
        return self._raw_lines("trees")

    def _raw_lines(self, name: str) -> list[str] | None:
        if name not in self.info.text_sha256:
            return None
        return [*read_lines(inside(self.folder, f"{self.name}/{name}.txt", "raw text"))]


class Dataset:
    """A folder written by `prepare`. `Dataset.open` checks it."""

    def __init__(self, folder: Path, *, verify: bool | None = None) -> None:
        self.folder = require_folder(folder, "dataset folder")
        if not (folder / MANIFEST).is_file():
            raise CorruptError("incomplete dataset: it has no manifest", file=folder, hint="run phraseloom prepare")
        self.index = read_index(folder)
        _check(folder, verify)
        for name, info in self.index.splits.items():
            counts = [info.source_phrases, *(s.source_phrases for s in info.shards)]
            if {n is None for n in counts} != {self.index.segmenter_sha256 is None}:
                raise CorruptError(f"phrases of {name} are incomplete, or have no segmenter", file=folder / INDEX)
            if info.pairs != sum(s.pairs for s in info.shards):
                what = f"the shards of {name} do not add up to {plural(info.pairs, 'pair')}"
                raise CorruptError(what, file=folder / INDEX)
        self.fingerprint = sha256_file(folder / INDEX)
        self.tokenizer = Tokenizer.load(own_folder(folder, "tokenizer", "tokenizer"))
        if self.tokenizer.sha256 != self.index.tokenizer_sha256:
            raise CorruptError("the tokenizer belongs to another dataset", file=folder / "tokenizer")
        self.segmenter: Segmenter | None = None
        if self.index.segmenter_sha256 is not None:
            self.segmenter = load_segmenter(own_folder(folder, "segmenter", "segmenter"))
            if self.segmenter.sha256 != self.index.segmenter_sha256:
                raise CorruptError("the segmenter belongs to another dataset", file=folder / "segmenter")
        try:
            kind = TextDataConfig if self.index.is_text else DataConfig
            self.config: AnyDataConfig = kind.model_validate({**self.index.config, "folder": str(folder)})
        except pydantic.ValidationError as error:
            raise CorruptError("the index has no valid data section", file=folder / INDEX) from error
        sizes = len(self.tokenizer.source.vocabulary), len(self.tokenizer.target.vocabulary)
        self._splits = {n: Split(folder, n, s, self.index.token_type, sizes) for n, s in self.index.splits.items()}

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool | None = None) -> Dataset:
        """Open and check a dataset. `verify` True hashes every file, False only compares sizes, None decides by size.

        Raises FileProblem, CorruptError.
        """
        return cls(Path(folder), verify=verify)

    def split(self, name: Literal["train", "valid", "test"] | str) -> Split:
        """The pairs of a split. Raises DataError if the dataset does not have it."""
        if name not in self._splits:
            known = ", ".join(self._splits)
            raise DataError(f"this dataset has no {name} data (it has {known})", file=self.folder)
        return self._splits[name]

    def check_same(self) -> None:
        """Raise FileProblem if the folder holds another dataset than the one that was opened."""
        index = self.folder / INDEX
        if not index.is_file() or sha256_file(index) != self.fingerprint:
            what = "the dataset was replaced while it was opened"
            raise FileProblem(what, file=self.folder, hint="run the same command again")

    def content(self, split: str) -> str:
        """A hash of the examples of a split and of its text."""
        info = self.index.splits[split]  # type: ignore[index]
        shards = [shard.model_dump(mode="json") for shard in info.shards]
        return hashlib.sha256(json_bytes({"shards": shards, "text": info.text_sha256})).hexdigest()

    @property
    def is_text(self) -> bool:
        """Whether this is text of one language, for language models; the source side of every split is empty then."""
        return self.index.is_text

    def __contains__(self, name: str) -> bool:
        return name in self._splits


def _check(folder: Path, verify: bool | None) -> None:
    """Check the files of a dataset against its manifest: hashes, or only sizes if the dataset is large."""
    files = read_manifest(folder)
    if INDEX not in files:
        raise CorruptError("not the manifest of a dataset", file=folder / MANIFEST)
    total = sum((folder / name).stat().st_size for name in files)
    if verify is True or (verify is None and total <= VERIFY_BYTES):
        verify_files(folder, files)
