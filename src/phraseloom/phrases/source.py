r"""Phrases of the source side: segmenters from recipes and folders, and the phrases of lines.

How many subwords each word of a parse tree has: the characters of the tree laid beside those of the line.

A piece belongs to the word of the tree in which its first character stands. White space does not count, and what
treebanks write differently is made equal: quotes, `-LRB-`, `\/`, dashes, three dots.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from phraseloom.errors import CorruptError, DataError, plural
from phraseloom.files import read_json, require_file, sha256_file
from phraseloom.options.segmenters import SegmenterConfig, TreeSegmenterConfig
from phraseloom.phrases.segmenters import (
    FILE,
    FORMAT,
    TABLE,
    FixedSegmenter,
    Parse,
    SegmentedSentence,
    Segmenter,
    TableSegmenter,
    TreeSegmenter,
    cut_sizes,
    description,
    read_phrases,
)
from phraseloom.phrases.trees import parse_tree, scan, skeleton, unescape
from phraseloom.reading import MIB, inside, limit_of
from phraseloom.text.sentencepiece import SPACE
from phraseloom.text.subword_nmt import SEPARATOR, SubwordNmt
from phraseloom.text.subwords import ESCAPE, Subwords
from phraseloom.text.tokenizer import Side
from phraseloom.text.words import Words

__all__ = [
    "HINT",
    "Segmenter",
    "build_segmenter",
    "comparable",
    "count_flat",
    "cut_sizes",
    "load_segmenter",
    "piece_starts",
    "segment_lines",
    "sentence_of",
    "tree_counts",
    "word_counts",
]

_EQUAL = {
    **dict.fromkeys("`‘’‚‛", "'"),
    **dict.fromkeys('"“”„‟', "''"),
    **dict.fromkeys("–—", "--"),
    "…": "...",
    # Lower case makes either of a capital sigma, and the neighbours say which.
    "ς": "σ",
}
_SPECIAL = re.compile(rf"-[LR][RSC]B-|\\(?=[/*])|[{''.join(_EQUAL)}]", re.IGNORECASE)
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
HINT = (
    "a tree is of its own line, as data.text normalises it, and keeps all characters; leave its line empty for a sentence "
    "without a tree"
)


def comparable(text: str) -> tuple[str, list[int]]:
    """The characters that are compared, and for each character of `text` (and for its end) the place among them."""
    dense = "".join(text.split())
    result, places = _spelled_alike(dense)
    if len(dense) == len(text):
        return result, places
    filled = accumulate((not character.isspace() for character in text), initial=0)
    return result, [places[number] for number in filled]


def _spelled_alike(dense: str) -> tuple[str, list[int]]:
    if _SPECIAL.search(dense) is None:
        return dense, list(range(len(dense) + 1))
    parts: list[str] = []
    places: list[int] = []
    done = size = 0
    for match in _SPECIAL.finditer(dense):
        start, end = match.span()
        new = _EQUAL.get(match[0])
        if new is None:
            new = "" if match[0] == "\\" else unescape(match[0])
        places.extend(range(size, size + start - done))
        size += start - done
        places.extend([size] * (end - start))
        size += len(new)
        parts += (dense[done:start], new)
        done = end
    places.extend(range(size, size + len(dense) - done + 1))
    parts.append(dense[done:])
    return "".join(parts), places


def word_counts(side: Side, ids: Sequence[int], words: Sequence[str]) -> list[int] | None:
    """The pieces of each word of a line, None where the pieces show another number of words (unknown pieces)."""
    starts = [i for i, start in enumerate(side.word_starts(ids)) if start]
    if len(starts) != len(words) or not starts:
        return None
    starts[0] = 0
    starts.append(len(ids))
    return [after - before for before, after in pairwise(starts)]


def piece_starts(subwords: Subwords, pieces: Sequence[str], text: str) -> list[int]:
    """For each piece of `text` the place of its first character; a piece may begin inside of one (byte pieces, escapes).

    `subwords.undo` joins pieces to a line; this does the same and keeps the places. A space before a word belongs to it.
    """
    if isinstance(subwords, Words):
        extra = 0
        parts = [p + " " for p in pieces]
    elif isinstance(subwords, SubwordNmt):
        extra = 0
        parts = [p[: -len(SEPARATOR)] if p.endswith(SEPARATOR) else p + " " for p in pieces]
    else:
        extra = 1
        parts = [p.replace(SPACE, " ") for p in pieces]
    starts = list(accumulate(map(len, parts), initial=0))[:-1]
    raw = "".join(parts)
    if "<0x" in raw:
        starts, raw = _with_bytes(subwords, pieces, parts)
    if ESCAPE in raw:
        places = _unescaped(raw, "0" if isinstance(subwords, SubwordNmt) else "01")
        starts = [places[start] for start in starts]
    return [min(max(0, start - extra), len(text)) for start in starts]


def _with_bytes(subwords: Subwords, pieces: Sequence[str], parts: list[str]) -> tuple[list[int], str]:
    """Where each piece begins in the text of all, and that text, where pieces such as `<0xE4>` stand for single bytes."""
    data = []
    for piece, part in zip(pieces, parts, strict=True):
        byte = _BYTE.fullmatch(piece)
        is_byte = byte is not None and subwords.undo([piece]) != piece
        data.append(bytes([int(byte[1], 16)]) if byte and is_byte else part.encode("utf-8", "replace"))
    joined = b"".join(data)
    character = list(accumulate((byte & 0xC0 != 0x80 for byte in joined), initial=0))[1:]
    return [character[start] - 1 for start in list(accumulate(map(len, data), initial=0))[:-1]], joined.decode("utf-8")


def _unescaped(raw: str, visible: str) -> list[int]:
    """For each character of `raw`, and for its end, its place in the text without escapes.

    An escape is two characters; those with a second one in `visible` stand for one character, others for none.
    """
    places: list[int] = []
    size, i = 0, 0
    while i < len(raw):
        if raw[i] == ESCAPE:
            places += (size, size)
            size += raw[i + 1 : i + 2] in visible
            i += 2
        else:
            places.append(size)
            size += 1
            i += 1
    places.append(size)
    return places


def tree_counts(side: Side, text: str, ids: Sequence[int], leaves: Sequence[str]) -> list[int]:
    """The pieces of each word of a tree, for a normalised line and its ids. Raises DataError where the tree is another's.

    A tree whose words differ is tried once more with its words normalised as the line was.
    """
    line, places = comparable(text)
    tree, tree_places = comparable("".join(leaves))
    if tree != line and not side.normaliser.identity:
        leaves = [side.normaliser(leaf) for leaf in leaves]
        tree, tree_places = comparable("".join(leaves))
    starts = [tree_places[end] for end in accumulate(map(len, leaves), initial=0)][:-1]
    if tree != line:
        raise DataError(_difference(line, tree, starts), hint=HINT)
    pieces = side.subwords.pieces(text)
    assert len(pieces) == len(ids), "ids are those of the line"
    counts = [0] * len(leaves)
    for start in piece_starts(side.subwords, pieces, text):
        counts[bisect_right(starts, places[start]) - 1] += 1
    return counts


def _difference(line: str, tree: str, starts: list[int]) -> str:
    """The first place where line and tree differ."""
    same = next((i for i, (a, b) in enumerate(zip(line, tree, strict=False)) if a != b), min(len(line), len(tree)))
    word = max(1, bisect_right(starts, same))
    shown = [repr(text[same : same + 20]) if same < len(text) else "nothing more" for text in (line, tree)]
    after = f", after {line[max(0, same - 20) : same]!r}" if same else ""
    return f"the tree does not fit its line: at word {word} of the tree{after}, the line has {shown[0]}, the tree {shown[1]}"


_BY_LENGTH: dict[str, type[FixedSegmenter] | type[TreeSegmenter]] = {"fixed": FixedSegmenter, "tree": TreeSegmenter}
# What parsers write for a sentence that they could not parse: nothing, or brackets around nothing.
_NO_TREE = re.compile(r"[()\s]*")


def has_tree(tree: str) -> bool:
    """Whether a line of a tree file holds a tree; `(())`, as some parsers write it, is none."""
    return _NO_TREE.fullmatch(tree) is None


def count_flat(lines: Sequence[str], trees: Sequence[str]) -> int:
    """How many lines with text have no tree, so that every word is a child of the root."""
    return sum(bool(line.strip()) and not has_tree(tree) for line, tree in zip(lines, trees, strict=True))


def sentence_of(side: Side, line: str, ids: Sequence[int], tree: str | None = None) -> SegmentedSentence:
    """A raw line, its ids and its tree as what segmenters read. Raises DataError for a tree that is broken or another's."""
    text = side.normaliser(line) if line.strip() else ""
    words = [word for word in text.split(" ") if word]
    counts = word_counts(side, ids, words)
    if counts is None:
        counts = tree_counts(side, text, ids, words) if words else [len(ids)] * bool(ids)
        words = words or [""] * len(counts)
    if tree is None or not has_tree(tree):
        return SegmentedSentence(words, counts)
    leaves, joints = scan(tree) or skeleton(parse_tree(tree))
    if leaves != words or "  " in text:
        return SegmentedSentence(words, counts, Parse(joints, tree_counts(side, text, ids, leaves)))
    return SegmentedSentence(words, counts, Parse(joints, counts))


def segment_lines(
    segmenter: Segmenter,
    side: Side,
    lines: Sequence[str],
    ids: Sequence[Sequence[int]],
    trees: Sequence[str] | None = None,
    *,
    file: str | Path | None = None,
    first_line: int = 1,
) -> list[list[int]]:
    """The sizes of the phrases of each raw line; `ids` are what `side` makes of the lines.

    Sizes are positive and their sum is the number of ids + 1, for the end of the sentence; a blank line gives [1]. Each line
    is segmented by itself. An empty line of `trees` means that there is none: the words are children of the root then.
    Raises DataError with `file` (the file of the trees) and the line, counted from `first_line`.
    """
    given: Sequence[str | None] = [None] * len(lines)
    if segmenter.needs_trees:
        if trees is None:
            raise DataError("phrases of parse trees need a tree for each line", file=file, hint="give the trees")
        if len(trees) != len(lines):
            raise DataError(f"{plural(len(lines), 'line')}, but {plural(len(trees), 'tree')}", file=file)
        given = trees
    result = []
    for number, (line, numbers, tree) in enumerate(zip(lines, ids, given, strict=True), start=first_line):
        try:
            result.append(segmenter.sizes(sentence_of(side, line, numbers, tree)))
        except DataError as error:
            raise DataError(error.what, file=file, line=number, hint=error.hint) from error
    return result


def build_segmenter(config: SegmenterConfig, data_root: str | Path) -> Segmenter:
    """The segmenter that a recipe asks for; the file of a table is read. Raises FileProblem, CorruptError, DataError."""
    if isinstance(config, TreeSegmenterConfig):
        return TreeSegmenter(max_tokens=config.max_tokens, min_chunks=config.min_chunks, floor=config.floor)
    path = require_file(Path(data_root) / config.file, "phrase table")
    if config.sha256 is not None and (found := sha256_file(path)) != config.sha256:
        hint = "fetch the file again, or correct the recipe if it is meant to be this one"
        raise CorruptError(f"SHA-256 is {found}, the recipe says {config.sha256}", file=path, hint=hint)
    return TableSegmenter(read_phrases(path))


def load_segmenter(folder: str | Path) -> Segmenter:
    """Read what `save` wrote; all of it is checked. Raises FileProblem, CorruptError."""
    folder = Path(folder)
    path = inside(folder, FILE, "segmenter")
    value = read_json(path, "segmenter", limit=MIB)
    if not isinstance(value, dict):
        raise CorruptError("a segmenter is an object", file=path)
    if value.get("format") != FORMAT:
        hint = "a later version of phraseloom wrote it" if value.get("format") else None
        raise CorruptError(f"segmenter of format {value.get('format')!r}, not {FORMAT}", file=path, hint=hint)
    if value.get("kind") == TableSegmenter.kind:
        return _load_table(folder, value)
    kind: type[FixedSegmenter] | type[TreeSegmenter] | None = _BY_LENGTH.get(str(value.get("kind")))
    if kind is None:
        raise CorruptError(f"unknown kind of segmenter {value.get('kind')!r}", file=path)
    options = {key: value[key] for key in value if key not in ("format", "kind")}
    names = [field.name for field in fields(kind)]
    if sorted(options) != sorted(names) or any(type(n) is not int or n < 1 for n in options.values()):
        raise CorruptError(f"the options of a segmenter are {', '.join(names)}, each from 1", file=path)
    return kind(**options)


def _load_table(folder: Path, value: dict[str, Any]) -> TableSegmenter:
    path, limit = inside(folder, TABLE, "phrase table"), limit_of(TABLE)
    if limit is not None and path.stat().st_size > limit:
        raise CorruptError(f"larger than {limit >> 20} MiB, which no phrase table of a folder is", file=path)
    if value.get("table_sha256") != sha256_file(path):
        raise CorruptError(f"not the table that {FILE} was written with", file=path, hint="prepare or train again")
    try:
        segmenter = TableSegmenter(read_phrases(path))
    except DataError as error:
        raise CorruptError(error.what, file=path, line=error.line) from error
    if description(segmenter.kind, segmenter.options) != value:
        raise CorruptError("the table and its description differ", file=folder / FILE)
    return segmenter
