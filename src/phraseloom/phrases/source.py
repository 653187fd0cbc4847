r"""Phrases of the source side: build or load a segmenter, and segment lines.

The characters of a parse tree are aligned with those of its line, to count the subwords of each word of the tree. A piece
belongs to the word of its first character. White space does not count, and the spellings of treebanks are made equal: quotes,
`-LRB-`, `\/`, dashes, three dots.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from phraseloom.errors import CorruptError, DataError, plural
from phraseloom.files import read_json, require_file, sha256_file
from phraseloom.options.data import SegmenterConfig, TreeSegmenterConfig
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
from phraseloom.phrases.trees import caseless, parse_tree, scan, skeleton, unescape
from phraseloom.reading import MIB, inside, limit_of
from phraseloom.text.marian import MarianSubwords
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
    # Lower case turns a capital sigma into either, depending on its neighbours.
    "ς": "σ",
}
_SPECIAL = re.compile(rf"-[LR][RSC]B-|\\(?=[/*])|[{''.join(_EQUAL)}]", re.IGNORECASE)
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
HINT = (
    "a tree must have all characters of its line, as data.text normalises it; for a sentence without a tree, leave the line "
    "empty"
)


def comparable(text: str) -> tuple[str, list[int]]:
    """The characters to compare, and the place among them for each character of `text` and for its end."""
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
    """The number of pieces of each word of a line; None if the pieces have another number of words (unknown pieces)."""
    starts = [i for i, start in enumerate(side.word_starts(ids)) if start]
    if len(starts) != len(words) or not starts:
        return None
    starts[0] = 0
    starts.append(len(ids))
    return [after - before for before, after in pairwise(starts)]


def piece_starts(subwords: Subwords, pieces: Sequence[str], text: str) -> list[int]:
    """For each piece of `text`, the place of its first character; a piece may begin inside one (byte pieces, escapes).

    This does the same as `subwords.undo`, which joins pieces to a line, and records the places. A space before a word belongs
    to the word.
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
    if isinstance(subwords, MarianSubwords):
        extra = int(raw.startswith(" "))  # not before a language code
    if "<0x" in raw:
        starts, raw = _with_bytes(subwords, pieces, parts)
    if ESCAPE in raw:
        places = _unescaped(raw, "0" if isinstance(subwords, SubwordNmt) else "01")
        starts = [places[start] for start in starts]
    return [min(max(0, start - extra), len(text)) for start in starts]


def _with_bytes(subwords: Subwords, pieces: Sequence[str], parts: list[str]) -> tuple[list[int], str]:
    """The start of each piece in the joined text, and that text, with pieces such as `<0xE4>` decoded as bytes."""
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

    An escape has two characters; it represents one character if the second is in `visible`, else none.
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


def _without_case(side: Side) -> Callable[[str], str]:
    """What to compare of a text, character by character: a truecaser takes a word alone for the first of its sentence."""
    return str if getattr(side.normaliser, "truecaser", None) is None else caseless


def tree_counts(side: Side, text: str, ids: Sequence[int], leaves: Sequence[str]) -> list[int]:
    """The number of pieces of each word of a tree, for a normalised line and its ids.

    If the words differ, a second attempt normalises those of the tree. Raises DataError if the tree does not fit the line.
    """
    compared = _without_case(side)
    line, places = comparable(text)
    tree, tree_places = comparable("".join(leaves))
    if tree != line and not side.normaliser.identity:
        leaves = [side.normaliser(leaf) for leaf in leaves]
        tree, tree_places = comparable("".join(leaves))
    starts = [tree_places[end] for end in accumulate(map(len, leaves), initial=0)][:-1]
    if compared(tree) != compared(line):
        raise DataError(_difference(line, tree, starts), hint=HINT)
    pieces = side.subwords.pieces(text)
    assert len(pieces) == len(ids), "the ids belong to the line"
    counts = [0] * len(leaves)
    for start in piece_starts(side.subwords, pieces, text):
        counts[bisect_right(starts, places[start]) - 1] += 1
    return counts


def _difference(line: str, tree: str, starts: list[int]) -> str:
    """A description of the first difference between line and tree."""
    same = next((i for i, (a, b) in enumerate(zip(line, tree, strict=False)) if a != b), min(len(line), len(tree)))
    word = max(1, bisect_right(starts, same))
    shown = [repr(text[same : same + 20]) if same < len(text) else "no more text" for text in (line, tree)]
    after = f", after {line[max(0, same - 20) : same]!r}" if same else ""
    return f"the tree does not fit its line: at word {word} of the tree{after}, the line has {shown[0]}, the tree {shown[1]}"


_BY_LENGTH: dict[str, type[FixedSegmenter] | type[TreeSegmenter]] = {"fixed": FixedSegmenter, "tree": TreeSegmenter}
# Parsers write nothing, or brackets around nothing, for a sentence that they cannot parse.
_NO_TREE = re.compile(r"[()\s]*")


def has_tree(tree: str) -> bool:
    """Whether a line of a tree file holds a tree; `(())`, which some parsers write, is not one."""
    return _NO_TREE.fullmatch(tree) is None


def count_flat(lines: Sequence[str], trees: Sequence[str]) -> int:
    """The number of non-blank lines without a tree, whose words are all children of the root."""
    return sum(bool(line.strip()) and not has_tree(tree) for line, tree in zip(lines, trees, strict=True))


def sentence_of(side: Side, line: str, ids: Sequence[int], tree: str | None = None) -> SegmentedSentence:
    """The input of a segmenter from a raw line, its ids and its tree. Raises DataError for an invalid or wrong tree."""
    text = side.text(line) if line.strip() else ""
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
    """The sizes of the phrases of each raw line; `ids` come from `side.encode`.

    Sizes are positive and their sum is the number of ids + 1, for EOS; a blank line gives [1]. Each line is segmented on its
    own. An empty line of `trees` means no tree: all words are children of the root. Raises DataError with `file` (the file of
    the trees) and the line, counted from `first_line`.
    """
    line_trees: Sequence[str | None] = [None] * len(lines)
    if segmenter.needs_trees:
        if trees is None:
            raise DataError("phrases of parse trees need one tree per line", file=file, hint="provide the trees")
        if len(trees) != len(lines):
            raise DataError(f"{plural(len(lines), 'line')}, but {plural(len(trees), 'tree')}", file=file)
        line_trees = trees
    result = []
    for number, (line, numbers, tree) in enumerate(zip(lines, ids, line_trees, strict=True), start=first_line):
        try:
            result.append(segmenter.sizes(sentence_of(side, line, numbers, tree)))
        except DataError as error:
            raise DataError(error.what, file=file, line=number, hint=error.hint) from error
    return result


def build_segmenter(config: SegmenterConfig, data_root: str | Path) -> Segmenter:
    """The segmenter of a recipe; reads the file of a table. Raises FileProblem, CorruptError, DataError."""
    if isinstance(config, TreeSegmenterConfig):
        return TreeSegmenter(max_tokens=config.max_tokens, min_chunks=config.min_chunks, floor=config.floor)
    path = require_file(Path(data_root) / config.file, "phrase table")
    if config.sha256 is not None and (actual := sha256_file(path)) != config.sha256:
        hint = "fetch the file again, or correct the recipe if this is the right file"
        raise CorruptError(f"SHA-256 is {actual}, but the recipe has {config.sha256}", file=path, hint=hint)
    return TableSegmenter(read_phrases(path))


def load_segmenter(folder: str | Path) -> Segmenter:
    """Read what `save` wrote and check it. Raises FileProblem, CorruptError."""
    folder = Path(folder)
    path = inside(folder, FILE, "segmenter")
    value = read_json(path, "segmenter", limit=MIB)
    if not isinstance(value, dict):
        raise CorruptError("a segmenter must be a JSON object", file=path)
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
        raise CorruptError(f"the options of a segmenter must be {', '.join(names)}, each at least 1", file=path)
    return kind(**options)


def _load_table(folder: Path, value: dict[str, Any]) -> TableSegmenter:
    path, limit = inside(folder, TABLE, "phrase table"), limit_of(TABLE)
    if limit is not None and path.stat().st_size > limit:
        raise CorruptError(f"larger than {limit >> 20} MiB, the limit of a phrase table in a folder", file=path)
    if value.get("table_sha256") != sha256_file(path):
        raise CorruptError(f"the table does not belong to {FILE}", file=path, hint="prepare or train again")
    try:
        segmenter = TableSegmenter(read_phrases(path))
    except DataError as error:
        raise CorruptError(error.what, file=path, line=error.line) from error
    if description(segmenter.kind, segmenter.options) != value:
        raise CorruptError("the table and its description differ", file=folder / FILE)
    return segmenter


def word_of_piece(side: Side, line: str, ids: Sequence[int]) -> list[int]:
    """For each subword id of a raw line, the number of the word of its first character; tags count for the first word.

    Raises DataError if normalisation moves characters from one word to another.
    """
    tags = 0
    while tags < len(ids) and ids[tags] in side.tag_ids.values():
        tags += 1
    if tags:
        return [0] * tags + word_of_piece(side, line, ids[tags:])
    words, text = [word for word in line.split(" ") if word], side.text(line)
    counts = word_counts(side, ids, words) if [word for word in text.split(" ") if word] == words else None
    if counts is None and len(ids):
        counts = tree_counts(side, text, ids, _normalised_words(side, words, text))
    return [word for word, count in enumerate(counts or []) for _ in range(count)]


def _normalised_words(side: Side, words: list[str], text: str) -> list[str]:
    """Each word of a line as it is in the normalised `text`, without white space.

    A word normalised on its own has the same characters, but maybe in another order: the context can decide whether its full
    stop comes before its quote.
    """
    dense, compared = "".join(text.split()), _without_case(side)
    for alone in (words, map(side.text, words)):
        own = ["".join(word.split()) for word in alone]
        ends = list(accumulate(map(len, own), initial=0))
        result = [dense[start:end] for start, end in pairwise(ends)]
        pairs = zip(map(compared, own), map(compared, result), strict=True)
        if ends[-1] == len(dense) and all(sorted(a) == sorted(b) for a, b in pairs):
            return result
    raise DataError(
        "the words of the subwords are ambiguous: normalisation changes more than the single words",
        hint="normalise the text first, and align the normalised text",
    )
