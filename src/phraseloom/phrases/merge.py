"""Merge the words of phrases into one token, and count the fertility of each source word.

    longest    the longest phrase of the table, from left to right; for text without translation (`segmenters.word_phrases`)
    aligned    the longest phrase of the table whose words share a source word
    released   as the released code of PCoNMT: if the next two words share a source word, it looks up the next 4, 3 and 2
               words. It takes the first phrase of the table if its words share a source word; if they do not, it tries no
               shorter one. If fewer words are left in the line, it looks up all of them but does not take them: it never
               takes a phrase of 2 or 3 words at the end of a line.

Park and Tsvetkov 2019, §2.2. A phrase represents the source word that its words share, the first if there are several (the
released code draws one). The fertility of a source word is n if a phrase of n words represents it, 1 if it is linked to a
word outside phrases, and 0 otherwise; the last such part of the target line decides.
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
    """A phrase of `size` words and the source word that it represents; other words are parts of size 1 without source."""

    size: int
    source: int | None = None


def merge_aligned(words: Sequence[str], links: Links, phrases: Phrases, rule: str = "released") -> list[MergedPart]:
    """The parts of a target line by `rule`, one of RULES; `phrases` comes from `segmenters.index_phrases`.

    An empty word represents an extra space; no phrase contains it, and links do not count it. Raises UsageError.
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
    """The number of words that each of `num_source` source words gave, for the parts of a target line."""
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
    """The source words that each word is linked to; an empty word has none."""
    sources: list[set[int]] = [set() for _ in words]
    places = [place for place, word in enumerate(words) if word]
    for source, target in links:
        sources[places[target]].add(source)
    return sources


def _shared(sources: Sequence[set[int]], start: int, size: int) -> set[int]:
    return set.intersection(*sources[start : start + size])


def _aligned(words: Sequence[str], start: int, sources: Sequence[set[int]], known: dict[int, set[str]]) -> MergedPart:
    for size, listed in known.items():
        if 1 < size <= len(words) - start and " ".join(words[start : start + size]) in listed:
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
