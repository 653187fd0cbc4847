"""A lexicon from word alignments: each source word with the target word that it is linked to most often.

    lexicon(f) = argmax_e c(f, e)        c: links of f and e in the whole text; ties: the first word by code points

A row has the source word, the target word, c(f, e) and the number of all links of f, separated by tabs. Source words with the
most links come first, ties by code points. Words are separated by U+0020. A word with a tab cannot be in a row: its links are
left out and counted. The lexicon translates unknown words (`decoding/parts.py`), as in Luong et al. 2015, §3.3.
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
    """A source word, its target word, the number of their links, and the number of all links of the source word."""

    source: str
    target: str
    linked: int
    total: int


class LinkCounts:
    """Counts links between words. Memory: one entry per distinct pair of linked words.

    `lines` counts sentence pairs, `links` counted links, and `with_tab` links that are left out because a word has a tab.
    """

    def __init__(self) -> None:
        self.lines = self.links = self.with_tab = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, source: Sequence[str], target: Sequence[str], links: Links) -> None:
        """Count the links of a sentence pair with these words."""
        self.lines += 1
        for s, t in links:
            pair = source[s], target[t]
            if "\t" in pair[0] or "\t" in pair[1]:
                self.with_tab += 1
            else:
                self._counts[pair] += 1
                self.links += 1

    def entries(self, min_count: int = 1) -> list[LexiconEntry]:
        """The lexicon without words whose best pair has fewer than `min_count` links."""
        best: dict[str, tuple[int, str]] = {}
        totals: Counter[str] = Counter()
        for (source, target), count in self._counts.items():
            totals[source] += count
            highest, word = best.get(source, (0, ""))
            if count > highest or (count == highest and target < word):
                best[source] = count, target
        entries = (LexiconEntry(s, t, count, totals[s]) for s, (count, t) in best.items() if count >= min_count)
        return sorted(entries, key=lambda entry: (-entry.total, entry.source))


def format_entries(entries: Iterable[LexiconEntry]) -> Iterator[str]:
    """The rows of a lexicon."""
    return ("\t".join(map(str, entry)) for entry in entries)


def read_lexicon(path: str | Path) -> dict[str, str]:
    """The target word of each source word, from the first two columns of a file (plain, .gz, .xz).

    Raises FileProblem, and DataError (file and line) for a row without two columns, a field that is not one word, and a second
    row of a source word.
    """
    lexicon: dict[str, str] = {}
    for line, row in enumerate(read_lines(path), 1):
        source, *columns = row.split("\t")
        if not columns:
            hint = "write SOURCE<tab>TARGET; more columns may follow; align lexicon writes such a file"
            raise DataError("the row has one column", file=path, line=line, hint=hint)
        for name, word in (("source", source), ("target", columns[0])):
            if not word or " " in word:
                raise DataError(f"the {name} {word!r} is not one word", file=path, line=line)
        if source in lexicon:
            raise DataError(f"the source word {source!r} has a row already", file=path, line=line)
        lexicon[source] = columns[0]
    return lexicon
