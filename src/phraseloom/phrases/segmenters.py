"""Segmenters split the subwords of a sentence into phrases: fixed lengths, Algorithm 1 on a parse tree, longest table match.

Xu, van Genabith, Xiong, Liu and Zhang, "Learning Source Phrase Representations for Neural Machine Translation",
ACL 2020, §3. The phrases of a sentence are a list of sizes: positive numbers, from left to right, whose sum
is the number of subwords + 1, because the end of the sentence (EOS) is a token too.

Datasets and models store a segmenter as a folder with `segmenter.json` (format, kind, options) and, for a table,
`phrase_table.txt` (sorted, each phrase once). To add a kind, write a class with the interface of `Segmenter` and add it to
`SEGMENTERS`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from phraseloom.errors import DataError, plural
from phraseloom.files import atomic_write_bytes, atomic_write_json
from phraseloom.text.lines import read_lines

Phrases = dict[str, dict[int, set[str]]]


def phrase_length(tokens: int, max_tokens: int = 8, min_chunks: int = 6, floor: int = 3) -> int:
    """n = max(min(max_tokens, ceil(tokens / min_chunks)), floor), the length limit of phrases (§3, footnote 2).

    `tokens` counts the subwords of the sentence and EOS.
    """
    return max(min(max_tokens, -(-tokens // min_chunks)), floor)


def fixed_sizes(tokens: int, limit: int) -> list[int]:
    """Phrases of `limit` tokens, and a shorter last one if `limit` does not divide `tokens`."""
    whole, remainder = divmod(tokens, limit)
    return [limit] * whole + [remainder] * (remainder > 0)


def tree_sizes(joints: Sequence[int], counts: Sequence[int], limit: int) -> list[int]:
    """Phrases of at most `limit` tokens by Algorithm 1; EOS is a word of the tree here.

    From right to left, a phrase starts as the largest sub-tree at the right edge with at most `limit` tokens, and grows by
    its left neighbours of the same depth while they fit. A word with more tokens is a phrase of its own.

    The parent of that sub-tree is too large, so the neighbours that fit are its children too: a phrase is a run of whole
    sisters. A sister begins at a joint with the depth of the parent, the lowest joint within reach. So the phrase begins at
    the first of the lowest joints within `limit` tokens.

    `joints`: see `trees.skeleton`. `counts`: the tokens of each word, at least one. Time: at most words × `limit`.
    """
    ends = list(accumulate(counts, initial=0))
    sizes: list[int] = []
    right = len(counts)
    while right:
        reach = ends[right] - limit
        left = word = right - 1
        while word and ends[word - 1] >= reach:
            word -= 1
            if joints[word] <= joints[left]:
                left = word
        sizes.append(ends[right] - ends[left])
        right = left
    sizes.reverse()
    return sizes


def with_end(joints: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Joints and counts of the words that have tokens, with EOS as the last word.

    EOS is the last child of the first branching node from the top: a sister of NP and VP in `(ROOT (S NP VP))`.
    """
    if 0 in counts:
        remaining: list[tuple[int, int]] = []
        lowest = sys.maxsize
        for joint, count in zip(joints, counts, strict=True):
            lowest = min(lowest, joint)
            if count:
                remaining.append((lowest, count))
                lowest = sys.maxsize
        joints, counts = [joint for joint, _ in remaining], [count for _, count in remaining]
    end = min(joints[1:], default=0) if counts else -1
    return [*joints, end], [*counts, 1]


def word_phrases(words: Sequence[str], phrases: Phrases) -> list[int]:
    """The number of words of each phrase, by longest match from left to right; a word without a match is its own phrase.

    `phrases` comes from `index_phrases`.
    """
    result: list[int] = []
    start = 0
    while start < len(words):
        length = 1
        for size, known in phrases.get(words[start], {}).items():
            if size <= len(words) - start and " ".join(words[start : start + size]) in known:
                length = size
                break
        result.append(length)
        start += length
    return result


def table_sizes(words: Sequence[str], counts: Sequence[int], phrases: Phrases) -> list[int]:
    """Phrases of whole words by longest match; EOS is its own phrase."""
    sizes: list[int] = []
    start = 0
    for length in word_phrases(words, phrases):
        sizes.append(sum(counts[start : start + length]))
        start += length
    return [*(size for size in sizes if size), 1]


def cut_sizes(sizes: Sequence[int], start: int, end: int) -> list[int]:
    """The phrases of the tokens [start, end) of a longer line, and EOS as its own phrase; a cut phrase keeps its part."""
    edges = accumulate(sizes, initial=0)
    parts = (min(edge + size, end) - max(edge, start) for edge, size in zip(edges, sizes, strict=False))
    return [*(part for part in parts if part > 0), 1]


COLUMNS = " ||| "


def read_phrases(path: str | Path) -> set[str]:
    """The phrases of a file (plain, .gz or .xz), one per line, words separated by single spaces.

    In a line with ` ||| ` (a Moses phrase table) or tabs, the first column is the phrase. Raises FileProblem, and DataError
    for a line without a phrase and a file without lines.
    """
    phrases: set[str] = set()
    last = ""
    for number, line in enumerate(read_lines(path), start=1):
        column = line.partition(COLUMNS)[0].partition("\t")[0]
        if column == last and number > 1:
            continue
        last, phrase = column, " ".join(word for word in column.split(" ") if word)
        if not phrase or phrase == COLUMNS.strip() or phrase.startswith(COLUMNS[1:]):
            hint = "write one phrase per line, words separated by spaces; more columns may follow a tab or ' ||| '"
            raise DataError("the line has no phrase", file=path, line=number, hint=hint)
        phrases.add(phrase)
    if not phrases:
        raise DataError("the phrase table has no phrases", file=path)
    return phrases


def index_phrases(phrases: Iterable[str]) -> Phrases:
    """Phrases by their first word and their number of words, longest first."""
    index: Phrases = {}
    for phrase in phrases:
        index.setdefault(phrase.partition(" ")[0], {}).setdefault(phrase.count(" ") + 1, set()).add(phrase)
    return {first: dict(sorted(sizes.items(), reverse=True)) for first, sizes in index.items()}


FORMAT = 1
FILE = "segmenter.json"
TABLE = "phrase_table.txt"


class Parse(NamedTuple):
    """A parse tree over the subwords of a sentence: the joint (see `trees.skeleton`) and the subword count of each word."""

    joints: Sequence[int]
    counts: Sequence[int]


@dataclass(slots=True)
class SegmentedSentence:
    """The words of a line, the number of subwords of each, and its parse; without a parse every word is a child of the root."""

    words: Sequence[str]
    counts: Sequence[int]
    parse: Parse | None = None

    @property
    def tokens(self) -> int:
        """The number of subwords, including EOS."""
        return sum(self.counts) + 1


class Segmenter(Protocol):
    """The interface of all segmenters. `str` gives a description for users."""

    @property
    def kind(self) -> str:
        """The name in `SEGMENTERS`."""
        ...

    @property
    def needs_trees(self) -> bool:
        """Whether sentences need parse trees."""
        ...

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """The sizes of the phrases, from left to right: positive numbers with the sum `sentence.tokens`."""
        ...

    @property
    def sha256(self) -> str:
        """A hash of everything that determines the phrases of a sentence."""
        ...

    def save(self, folder: str | Path) -> list[str]:
        """Write the segmenter into `folder`; return the names of its files."""
        ...


@dataclass(frozen=True, kw_only=True)
class _LengthSegmenter:
    """A segmenter with a length n = max(min(max_tokens, ceil(tokens / min_chunks)), floor), and what is stored of it."""

    max_tokens: int = 8
    min_chunks: int = 6
    floor: int = 3
    kind: ClassVar[str]

    def limit(self, sentence: SegmentedSentence) -> int:
        """n of a sentence."""
        return phrase_length(sentence.tokens, self.max_tokens, self.min_chunks, self.floor)

    @property
    def sha256(self) -> str:
        """Of kind and options."""
        return _hash(self.kind, asdict(self))

    def save(self, folder: str | Path) -> list[str]:
        """Write `segmenter.json`."""
        return _save(folder, self.kind, asdict(self))


@dataclass(frozen=True, kw_only=True)
class FixedSegmenter(_LengthSegmenter):
    """Phrases of n tokens; the last one may be shorter."""

    kind: ClassVar[str] = "fixed"
    needs_trees: ClassVar[bool] = False

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """n, n, …, and the remainder."""
        return fixed_sizes(sentence.tokens, self.limit(sentence))

    def __str__(self) -> str:
        return f"fixed length ({self.max_tokens}, {self.min_chunks}, {self.floor})"


@dataclass(frozen=True, kw_only=True)
class TreeSegmenter(_LengthSegmenter):
    """Algorithm 1 on the parse tree of a sentence, with phrases of at most n tokens."""

    kind: ClassVar[str] = "tree"
    needs_trees: ClassVar[bool] = True

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """See `tree_sizes`; a sentence without a parse has a flat tree."""
        parse = sentence.parse
        if parse is None:
            words = len(sentence.counts)
            parse = Parse([-1, *[0] * (words - 1)] if words else [], sentence.counts)
        return tree_sizes(*with_end(*parse), self.limit(sentence))

    def __str__(self) -> str:
        return f"parse trees ({self.max_tokens}, {self.min_chunks}, {self.floor})"


class TableSegmenter:
    """Longest matches of whole words in a phrase table, from left to right; EOS is its own phrase."""

    kind: ClassVar[str] = "table"
    needs_trees: ClassVar[bool] = False

    def __init__(self, phrases: Iterable[str]) -> None:
        self.phrases = sorted(set(phrases))
        self._index = index_phrases(self.phrases)
        self._content = "".join(phrase + "\n" for phrase in self.phrases).encode("utf-8")

    def sizes(self, sentence: SegmentedSentence) -> list[int]:
        """See `table_sizes`."""
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
