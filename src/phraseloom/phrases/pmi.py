"""Pointwise mutual information of the words of a phrase, over adjacent words of a text.

    PMI(w1 … wn) = log2( c(w1 … wn) N^(n-1) / (c(w1) ⋯ c(wn)) )     c: occurrences in the text of N words

Spec §4.7, as the collocation measures of nltk count: the text is one stream of words, so that an n-gram may begin in one line
and end in the next, unless that is forbidden.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from phraseloom.phrases.aligned import words_of
from phraseloom.phrases.table import index_phrases


def pmi(count: int, words: Sequence[int], total: int) -> float:
    """PMI in bits of an n-gram that occurs `count` times, whose n words occur `words` times each in a text of `total` words."""
    return math.log2(count * total ** (len(words) - 1)) - math.log2(math.prod(words))


@dataclass
class PhraseCounts:
    """Occurrences of phrases as adjacent words, and of the words that they have; `total`: all words of the text."""

    phrases: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    total: int = 0

    def pmi(self, phrase: str) -> float:
        """PMI of a phrase that occurs."""
        return pmi(self.phrases[phrase], [self.words[word] for word in phrase.split(" ")], self.total)


def count_phrases(lines: Iterable[str], phrases: Iterable[str], *, across_lines: bool = True) -> PhraseCounts:
    """Count `phrases` (words separated by blanks) in a text; with `across_lines` also where they run over the end of a line.

    Memory grows with the number of phrases, not with the text.
    """
    index = index_phrases(phrases)
    known = {
        word for sizes in index.values() for some in sizes.values() for phrase in some for word in phrase.split(" ")
    }
    longest = max((size for sizes in index.values() for size in sizes), default=1)
    counts, before = PhraseCounts(), list[str]()
    for line in lines:
        words = words_of(line)
        counts.total += len(words)
        counts.words.update(word for word in words if word in known)
        stream, new = [*before, *words], len(before)
        for start, first in enumerate(stream):
            for size, some in index.get(first, {}).items():
                if new < start + size <= len(stream) and (phrase := " ".join(stream[start : start + size])) in some:
                    counts.phrases[phrase] += 1
        before = stream[1 - longest :] if across_lines and longest > 1 else []
    return counts
