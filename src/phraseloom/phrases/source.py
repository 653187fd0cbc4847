"""Phrases of the source side: segmenters from recipes and folders, and the phrases of lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from phraseloom.errors import CorruptError, DataError, plural
from phraseloom.files import read_json, require_file, sha256_file
from phraseloom.phrases.config import SegmenterConfig, TreeSegmenterConfig
from phraseloom.phrases.pieces import tree_counts, word_counts
from phraseloom.phrases.segment import cut_sizes
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
    description,
)
from phraseloom.phrases.table import read_phrases
from phraseloom.phrases.trees import parse_tree, scan, skeleton
from phraseloom.reading import MIB, inside, limit_of
from phraseloom.text.tokenizer import Side

__all__ = [
    "Segmenter",
    "build_segmenter",
    "count_flat",
    "cut_sizes",
    "load_segmenter",
    "segment_lines",
    "sentence_of",
]

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
