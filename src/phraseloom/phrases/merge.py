"""Which words of a line become one token, and how many words each source word gave (spec §4.7.4, §4.8).

    longest    from left to right, the longest phrase of the table: for text without translation (`segment.word_phrases`)
    aligned    the longest phrase of the table whose words share a source word
    released   as the released code of PCoNMT: where the next two words share a source word, the next 4, 3, 2 are looked up.
               The first of these that are a phrase of the table are taken if they share a source word; if not, no shorter
               phrase is tried. Where fewer words are left in the line, all that are left are looked up and then refused:
               a phrase of 2 or 3 words is never taken at the end of a line.

Park and Tsvetkov 2019, §2.2; spec §4.7.4. A phrase stands for the one source word that its words share, the first if there
are several (the released code draws one). Fertility of a source word: n if a phrase of n words stands for it, 1 if it is
linked to a word that is in no phrase, the last of these in the target line if there are several; 0 if there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from phraseloom.align.links import Links
from phraseloom.errors import UsageError
from phraseloom.phrases.segmenters import Phrases

RULES = ("released", "aligned")
RELEASED_SIZES = (4, 3, 2)


class MergedPart(NamedTuple):
    """A phrase of `size` words and the source word that it stands for; any other word is a part of size 1, without source."""

    size: int
    source: int | None = None


def merge_aligned(words: Sequence[str], links: Links, phrases: Phrases, rule: str = "released") -> list[MergedPart]:
    """The parts of a target line by `rule`, one of RULES; `phrases` as `table.index_phrases` makes them.

    An empty word stands for one blank too many; no phrase runs over it, and links do not count it. Raises UsageError.
    """
    if rule not in RULES:
        raise UsageError(f"no rule {rule!r}", hint=f"choose from {', '.join(RULES)}")
    sources = _sources(words, links)
    take = _released if rule == "released" else _aligned
    parts: list[MergedPart] = []
    start = 0
    while start < len(words):
        part = take(words, start, sources, phrases.get(words[start], {}))
        parts.append(part)
        start += part.size
    return parts


def fertilities(parts: Iterable[MergedPart], words: Sequence[str], links: Links, num_source: int) -> list[int]:
    """How many words each of `num_source` source words gave, for the parts of a target line."""
    sources, counts, start = _sources(words, links), [0] * num_source, 0
    for part in parts:
        if part.source is not None:
            counts[part.source] = part.size
        else:
            for source in sources[start]:
                counts[source] = 1
        start += part.size
    return counts


def _sources(words: Sequence[str], links: Links) -> list[set[int]]:
    """The source words that each word is linked to; none for an empty one."""
    sources: list[set[int]] = [set() for _ in words]
    places = [place for place, word in enumerate(words) if word]
    for source, target in links:
        sources[places[target]].add(source)
    return sources


def _shared(sources: Sequence[set[int]], start: int, size: int) -> set[int]:
    return set.intersection(*sources[start : start + size])


def _aligned(words: Sequence[str], start: int, sources: Sequence[set[int]], known: dict[int, set[str]]) -> MergedPart:
    for size, some in known.items():
        if 1 < size <= len(words) - start and " ".join(words[start : start + size]) in some:
            shared = _shared(sources, start, size)
            if shared:
                return MergedPart(size, min(shared))
    return MergedPart(1)


def _released(words: Sequence[str], start: int, sources: Sequence[set[int]], known: dict[int, set[str]]) -> MergedPart:
    end = len(words)
    while not words[end - 1] and end - 1 > start:
        end -= 1
    if not known or end - start < 2 or not _shared(sources, start, 2):
        return MergedPart(1)
    for size in RELEASED_SIZES:
        left = min(size, end - start)
        if " ".join(words[start : start + left]) in known.get(left, ()):
            shared = _shared(sources, start, size) if left == size else set()
            return MergedPart(size, min(shared)) if shared else MergedPart(1)
    return MergedPart(1)
