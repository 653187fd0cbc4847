"""The segmenters: what makes phrases of a sentence, as objects that are stored with a dataset and a model.

A folder of a segmenter holds `segmenter.json` (format, kind, options) and for a table `phrase_table.txt` (sorted, each
phrase once). `SEGMENTERS` names the kinds; a new one is a class of the shape of `Segmenter` and a line there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from phraseloom.errors import plural
from phraseloom.files import atomic_write_bytes, atomic_write_json
from phraseloom.phrases.segment import fixed_sizes, phrase_length, table_sizes, tree_sizes, with_end
from phraseloom.phrases.table import index_phrases

FORMAT = 1
FILE = "segmenter.json"
TABLE = "phrase_table.txt"


class Parse(NamedTuple):
    """A parse tree over the subwords of a sentence: joint (see `trees.skeleton`) and subwords of each word of it."""

    joints: Sequence[int]
    counts: Sequence[int]


@dataclass(slots=True)
class SegmentedSentence:
    """The words of a line, the subwords of each, and its parse; without a parse, every word is a child of the root."""

    words: Sequence[str]
    counts: Sequence[int]
    parse: Parse | None = None

    @property
    def tokens(self) -> int:
        """Number of subwords with the end of the sentence."""
        return sum(self.counts) + 1


class Segmenter(Protocol):
    """What every kind of segmenter offers. `str` describes it to people."""

    @property
    def kind(self) -> str:
        """Its name in `SEGMENTERS`."""
        ...

    @property
    def needs_trees(self) -> bool:
        """Whether sentences come with parse trees."""
        ...

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """The sizes of the phrases, from left to right; positive, and their sum is `sentence.tokens`."""
        ...

    @property
    def sha256(self) -> str:
        """One hash for all that decides which phrases a sentence has."""
        ...

    def save(self, folder: str | Path) -> list[str]:
        """Write the segmenter into `folder`; the names of its files."""
        ...


@dataclass(frozen=True, kw_only=True)
class FixedSegmenter:
    """Phrases of n tokens each, the rest at the end; n = max(min(max_tokens, ceil(tokens / min_chunks)), floor)."""

    max_tokens: int = 8
    min_chunks: int = 6
    floor: int = 3
    kind: ClassVar[str] = "fixed"
    needs_trees: ClassVar[bool] = False

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """n, n, …, and the rest."""
        tokens = sentence.tokens
        return fixed_sizes(tokens, phrase_length(tokens, self.max_tokens, self.min_chunks, self.floor))

    @property
    def sha256(self) -> str:
        """Of kind and options."""
        return _hash(self.kind, asdict(self))

    def save(self, folder: str | Path) -> list[str]:
        """Write `segmenter.json`."""
        return _save(folder, self.kind, asdict(self))

    def __str__(self) -> str:
        return f"fixed length ({self.max_tokens}, {self.min_chunks}, {self.floor})"


@dataclass(frozen=True, kw_only=True)
class TreeSegmenter:
    """Algorithm 1 on the parse tree of a sentence, with phrases of at most n tokens (n as for `FixedSegmenter`)."""

    max_tokens: int = 8
    min_chunks: int = 6
    floor: int = 3
    kind: ClassVar[str] = "tree"
    needs_trees: ClassVar[bool] = True

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """See `segment.tree_sizes`; a sentence without a parse has a flat tree."""
        tokens = sentence.tokens
        limit = phrase_length(tokens, self.max_tokens, self.min_chunks, self.floor)
        parse = sentence.parse
        if parse is None:
            words = len(sentence.counts)
            parse = Parse([-1, *[0] * (words - 1)] if words else [], sentence.counts)
        return tree_sizes(*with_end(*parse), limit)

    @property
    def sha256(self) -> str:
        """Of kind and options."""
        return _hash(self.kind, asdict(self))

    def save(self, folder: str | Path) -> list[str]:
        """Write `segmenter.json`."""
        return _save(folder, self.kind, asdict(self))

    def __str__(self) -> str:
        return f"parse trees ({self.max_tokens}, {self.min_chunks}, {self.floor})"


class TableSegmenter:
    """Longest matches of whole words in a table of phrases, from left to right; the end is a phrase of its own."""

    kind: ClassVar[str] = "table"
    needs_trees: ClassVar[bool] = False

    def __init__(self, phrases: Iterable[str]) -> None:
        self.phrases = sorted(set(phrases))
        self._index = index_phrases(self.phrases)
        self._content = "".join(phrase + "\n" for phrase in self.phrases).encode("utf-8")

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """See `segment.table_sizes`."""
        return table_sizes(sentence.words, sentence.counts, self._index)

    @property
    def options(self) -> dict[str, Any]:
        """Number of phrases and SHA-256 of the stored table."""
        return {"phrases": len(self.phrases), "table_sha256": hashlib.sha256(self._content).hexdigest()}

    @property
    def sha256(self) -> str:
        """Of kind and phrases."""
        return _hash(self.kind, self.options)

    def save(self, folder: str | Path) -> list[str]:
        """Write `phrase_table.txt` and `segmenter.json`."""
        atomic_write_bytes(Path(folder) / TABLE, self._content)
        return [*_save(folder, self.kind, self.options), TABLE]

    def __str__(self) -> str:
        return f"table of {plural(len(self.phrases), 'phrase')}"


SEGMENTERS: dict[str, type[FixedSegmenter] | type[TreeSegmenter] | type[TableSegmenter]] = {
    "fixed": FixedSegmenter,
    "tree": TreeSegmenter,
    "table": TableSegmenter,
}


def description(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The content of `segmenter.json`."""
    return {"format": FORMAT, "kind": kind, **options}


def _hash(kind: str, options: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description(kind, options), sort_keys=True).encode()).hexdigest()


def _save(folder: str | Path, kind: str, options: dict[str, Any]) -> list[str]:
    atomic_write_json(Path(folder) / FILE, description(kind, options))
    return [FILE]
