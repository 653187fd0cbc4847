"""A lexicon from word alignments: for each source word the target word that it is linked to most often.

    lexicon(f) = argmax_e c(f, e)        c: links of f and e in the whole text; equal counts: the lower word by code points

Rows: source word, target word, c(f, e), links of f in all, separated by tabs; source words with the most links first, equal
ones by code points. Words stand between blanks (U+0020); one with a tab cannot be in a row: its links are left out and counted.
It is what unknown words are translated by (`decoding/parts.py`); Luong et al. 2015, §3.3, make theirs so too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from phraseloom.align.links import Links
from phraseloom.errors import DataError
from phraseloom.text.lines import read_lines


class LexiconEntry(NamedTuple):
    """A source word, its target word, how often they are linked, and how often the source word is linked to anything."""

    source: str
    target: str
    linked: int
    total: int


class LinkCounts:
    """Links between words, counted line by line. Memory: an entry for each distinct pair of linked words.

    `lines`: sentence pairs that were added; `links`: links that count; `with_tab`: links left out for a tab in a word.
    """

    def __init__(self) -> None:
        self.lines = self.links = self.with_tab = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, source: Sequence[str], target: Sequence[str], links: Links) -> None:
        """Count the links of a sentence pair, given the words of both sides."""
        self.lines += 1
        for s, t in links:
            pair = source[s], target[t]
            if "\t" in pair[0] or "\t" in pair[1]:
                self.with_tab += 1
            else:
                self._counts[pair] += 1
                self.links += 1

    def entries(self, min_count: int = 1) -> list[LexiconEntry]:
        """The lexicon, without the words whose best pair is linked less often than `min_count` times."""
        best: dict[str, tuple[int, str]] = {}
        totals: Counter[str] = Counter()
        for (source, target), count in self._counts.items():
            totals[source] += count
            least, word = best.get(source, (0, ""))
            if count > least or (count == least and target < word):
                best[source] = count, target
        found = (LexiconEntry(s, t, count, totals[s]) for s, (count, t) in best.items() if count >= min_count)
        return sorted(found, key=lambda entry: (-entry.total, entry.source))


def format_entries(entries: Iterable[LexiconEntry]) -> Iterator[str]:
    """The rows of a lexicon."""
    return ("\t".join(map(str, entry)) for entry in entries)


def read_lexicon(path: str | Path) -> dict[str, str]:
    """The target word of each source word, from the first two columns of a file (plain, .gz, .xz).

    Raises FileProblem, and DataError (file and line) for a row without two columns, for what is not one word, and for a
    source word that has a row already.
    """
    lexicon: dict[str, str] = {}
    for line, row in enumerate(read_lines(path), 1):
        source, *rest = row.split("\t")
        if not rest:
            hint = "a row is SOURCE<tab>TARGET, more columns may follow; align lexicon writes such a file"
            raise DataError("a row of one column", file=path, line=line, hint=hint)
        for name, word in (("source", source), ("target", rest[0])):
            if not word or " " in word:
                raise DataError(f"the {name} {word!r} is not one word", file=path, line=line)
        if source in lexicon:
            raise DataError(f"the source word {source!r} has a row already", file=path, line=line)
        lexicon[source] = rest[0]
    return lexicon
