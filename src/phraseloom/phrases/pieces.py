"""How many subwords each word of a parse tree has: the characters of the tree laid beside those of the line.

A piece belongs to the word of the tree in which its first character stands. White space does not count, and what
treebanks write differently is made equal: quotes, `-LRB-`, `\\/`, dashes, three dots.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from phraseloom.errors import DataError
from phraseloom.phrases.trees import unescape
from phraseloom.text.sentencepiece import SPACE
from phraseloom.text.subword_nmt import SEPARATOR, SubwordNmt
from phraseloom.text.subwords import ESCAPE, Subwords
from phraseloom.text.tokenizer import Side
from phraseloom.text.words import Words

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
