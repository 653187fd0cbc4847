"""Extend BPE subwords to another domain: learn more merges on top of the existing ones.

The old subwords cut the words of the new text. The most frequent pair of neighbouring pieces inside words becomes one piece,
and so on (Sennrich et al. 2016, Algorithm 1, starting from the old pieces). The old merges keep their priority. Old pieces
keep their ids and new pieces follow them, so a model only needs new embedding rows.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from phraseloom.errors import DataError, UsageError
from phraseloom.text.sentencepiece import Sentencepiece, varint
from phraseloom.text.subword_nmt import EMPTY_WORD, END, SEPARATOR, SubwordNmt
from phraseloom.text.subwords import Subwords
from phraseloom.text.vocabulary import Vocabulary

__all__ = ["add_tags", "extend", "spelling"]

MIN_FREQUENCY = 2  # a rarer pair is not merged

Pair = tuple[str, str]


def extend(subwords: Subwords, lines: Iterable[str], count: int) -> Subwords:
    """Return the subwords with up to `count` new pieces learned on normalised lines; the same lines give the same bytes.

    Words with unknown pieces are ignored. Raises UsageError for subwords that are not BPE.
    """
    words: Counter[str] = Counter()
    for line in lines:
        words.update(word for word in line.replace("\0", "").split(" ") if word)
    if isinstance(subwords, SubwordNmt):
        return _extend_subword_nmt(subwords, words, count)
    if isinstance(subwords, Sentencepiece) and subwords.is_bpe:
        return _extend_sentencepiece(subwords, words, count)
    raise UsageError(
        "data.new_pieces: only BPE subwords can be extended, and the subwords of data.tokenizer are not BPE",
        hint="remove data.new_pieces",
    )


def add_tags(subwords: Subwords, tags: Sequence[str]) -> Subwords:
    """Return the subwords with a token for each tag at the end of the vocabulary, which no text is ever encoded as.

    Raises DataError if a tag is a piece of text, UsageError for subwords that cannot have tags.
    """
    taken = [tag for tag in tags if tag in subwords.vocabulary]
    if taken:
        raise DataError(f"the tag {taken[0]} is a piece of the text", hint="choose another tag in data.train")
    if isinstance(subwords, SubwordNmt):
        return SubwordNmt(subwords.content.decode(), Vocabulary([*subwords.vocabulary, *tags]))
    if isinstance(subwords, Sentencepiece):
        model = subwords.content
        for tag in tags:
            text = tag.encode()
            entry = (
                b"\x0a" + varint(len(text)) + text + b"\x15" + struct.pack("<f", 0.0) + b"\x18\x03"
            )  # a control piece
            model += b"\x0a" + varint(len(entry)) + entry
        return Sentencepiece(model)
    raise UsageError("tags need subwords of sentencepiece or subword-nmt, and this tokenizer has others")


def _cut(subwords: Subwords, words: Mapping[str, int], unused: Collection[str] = ()) -> dict[tuple[str, ...], int]:
    """The pieces of each word with its count, without words that have an unknown piece or one of `unused`."""
    cut: dict[tuple[str, ...], int] = {}
    for word, n in sorted(words.items()):
        pieces = tuple(subwords.pieces(word))
        if all(piece in subwords.vocabulary and piece not in unused for piece in pieces):
            cut[pieces] = cut.get(pieces, 0) + n
    return cut


def _extend_subword_nmt(subwords: SubwordNmt, words: Mapping[str, int], count: int) -> SubwordNmt:
    def join(left: str, right: str) -> str:
        return left.removesuffix(SEPARATOR) + right

    def symbol(piece: str) -> str:
        return piece.removesuffix(SEPARATOR) if piece.endswith(SEPARATOR) else piece + END

    plain = {word: n for word, n in words.items() if not any(c.isspace() for c in word)}
    merges = learn_merges(_cut(subwords, plain, {EMPTY_WORD}), join, subwords.vocabulary, count)
    codes = subwords.content.decode() + "".join(f"{symbol(left)} {symbol(right)}\n" for left, right in merges)
    new = dict.fromkeys(join(left, right) for left, right in merges)
    return SubwordNmt(codes, Vocabulary([*subwords.vocabulary, *(piece for piece in new if piece not in subwords.vocabulary)]))


def _extend_sentencepiece(subwords: Sentencepiece, words: Mapping[str, int], count: int) -> Sentencepiece:
    merges = learn_merges(_cut(subwords, words, subwords.byte_pieces), str.__add__, subwords.vocabulary, count)
    model, lowest = subwords.content, subwords.lowest_score
    for number, (left, right) in enumerate(merges, start=1):
        text = (left + right).encode()
        entry = b"\x0a" + varint(len(text)) + text + b"\x15" + struct.pack("<f", lowest - number)
        model += b"\x0a" + varint(len(entry)) + entry  # ModelProto.pieces: one more entry of a repeated field
    return Sentencepiece(model)


def learn_merges(
    words: Mapping[tuple[str, ...], int], join: Callable[[str, str], str], known: Vocabulary, count: int
) -> list[Pair]:
    """Up to `count` pairs whose merge gives a piece not yet `known`, most frequent first, ties in lexical order."""
    cut = [list(pieces) for pieces in words]
    times = list(words.values())
    counts: Counter[Pair] = Counter()
    places: dict[Pair, set[int]] = defaultdict(set)
    for number, pieces in enumerate(cut):
        for pair in pairwise(pieces):
            counts[pair] += times[number]
            places[pair].add(number)
    queue = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(queue)
    merges: list[Pair] = []
    new: set[str] = set()
    while queue and len(merges) < count:
        negative, pair = heapq.heappop(queue)
        if counts[pair] != -negative or -negative < MIN_FREQUENCY:
            continue
        piece = join(*pair)
        if piece not in new and piece in known:  # the old merges come first and do not build it from these two
            continue
        merges.append(pair)
        new.add(piece)
        changed: set[Pair] = set()
        for number in sorted(places.pop(pair)):
            pieces, n = cut[number], times[number]
            for neighbours in pairwise(pieces):
                counts[neighbours] -= n
                changed.add(neighbours)
            merged: list[str] = []
            for name in pieces:
                if merged and (merged[-1], name) == pair:
                    merged[-1] = piece
                else:
                    merged.append(name)
            cut[number] = merged
            for neighbours in pairwise(merged):
                counts[neighbours] += n
                places[neighbours].add(number)
                changed.add(neighbours)
        for neighbours in sorted(changed):
            if counts[neighbours] > 0:
                heapq.heappush(queue, (-counts[neighbours], neighbours))
    return merges


def spelling(piece: str, old: Collection[str], *, separator: str = "") -> list[str]:
    """The shortest sequence of old pieces that spells a new piece; empty if there is none.

    `separator` ends a piece that does not end its word (`@@` in subword-nmt).
    """
    inner = bool(separator) and piece.endswith(separator)
    body, end = (piece.removesuffix(separator), separator) if inner else (piece, "")
    best: list[list[str] | None] = [[], *[None] * len(body)]
    for stop in range(1, len(body) + 1):
        for begin in range(stop):
            name, before = body[begin:stop] + (separator if stop < len(body) else end), best[begin]
            shortest = best[stop]
            if before is not None and name in old and (shortest is None or len(before) + 1 < len(shortest)):
                best[stop] = [*before, name]
    return best[-1] or []
