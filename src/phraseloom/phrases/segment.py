"""Which subwords of a sentence make a phrase: fixed lengths, Algorithm 1 on a parse tree, longest match in a table.

Xu, van Genabith, Xiong, Liu and Zhang, "Learning Source Phrase Representations for Neural Machine Translation",
ACL 2020, §3 (spec §3.1, §3.6). Phrases of a sentence are given by their sizes: positive numbers, from left to right,
whose sum is the number of subwords + 1, for the end of the sentence (EOS) is a token of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate

Phrases = dict[str, dict[int, set[str]]]


def phrase_length(tokens: int, max_tokens: int = 8, min_chunks: int = 6, floor: int = 3) -> int:
    """n = max(min(max_tokens, ceil(tokens / min_chunks)), floor), the longest phrase of a sentence (§3, footnote 2).

    `tokens` are the subwords of the sentence with its end.
    """
    return max(min(max_tokens, -(-tokens // min_chunks)), floor)


def fixed_sizes(tokens: int, limit: int) -> list[int]:
    """Phrases of `limit` tokens, and one of the rest at the end."""
    whole, rest = divmod(tokens, limit)
    return [limit] * whole + [rest] * (rest > 0)


def tree_sizes(joints: Sequence[int], counts: Sequence[int], limit: int) -> list[int]:
    """Phrases of at most `limit` tokens by Algorithm 1 (spec §3.6); the end of the sentence is a word of the tree here.

    From right to left, a phrase begins with the largest sub-tree at the right edge that has at most `limit` tokens, and
    takes in its left neighbours of the same depth while they fit. A word of more tokens is a phrase of its own.

    The node over that sub-tree is too large, so the neighbours that fit are its children as well: a phrase is a run of
    whole sisters. They begin where a joint is the depth of that node, the lowest joint within reach; so the phrase begins
    at the first of the lowest joints within `limit` tokens.

    joints: see `trees.skeleton`; counts: the tokens of each word, at least one. Time: words × `limit` at most.
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
    """Joints and counts of the words that have tokens, with the end of the sentence as the last word.

    The end is the last child of the first node from the top that branches: a sister of NP and VP in `(ROOT (S NP VP))`.
    """
    if 0 in counts:
        kept: list[tuple[int, int]] = []
        lowest = sys.maxsize
        for joint, count in zip(joints, counts, strict=True):
            lowest = min(lowest, joint)
            if count:
                kept.append((lowest, count))
                lowest = sys.maxsize
        joints, counts = [joint for joint, _ in kept], [count for _, count in kept]
    end = min(joints[1:], default=0) if counts else -1
    return [*joints, end], [*counts, 1]


def word_phrases(words: Sequence[str], phrases: Phrases) -> list[int]:
    """How many words each phrase has, by longest match from left to right; a word in no match is one of its own.

    `phrases` gives for a first word the phrases by their number of words, longest first (see `table.index_phrases`).
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
    """Phrases of whole words by longest match; the end of the sentence is one of its own."""
    sizes: list[int] = []
    start = 0
    for length in word_phrases(words, phrases):
        sizes.append(sum(counts[start : start + length]))
        start += length
    return [*(size for size in sizes if size), 1]


def cut_sizes(sizes: Sequence[int], start: int, end: int) -> list[int]:
    """The phrases of the tokens `start` to `end` (not included) of a longer line, and the end of the sentence on its own.

    A phrase that a cut runs through keeps the tokens on this side of it.
    """
    edges = accumulate(sizes, initial=0)
    parts = (min(edge + size, end) - max(edge, start) for edge, size in zip(edges, sizes, strict=False))
    return [*(part for part in parts if part > 0), 1]
