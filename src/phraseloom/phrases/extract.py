"""Candidates for phrases of the target language: the words that one source word is linked to.

For each source word that is linked to two target words or more, these words in their order in the sentence are one
occurrence of a candidate. They need not be adjacent. Park and Tsvetkov 2019, §2.2, after Tang et al. 2016 (spec §4.7).

A file of candidates has a row for each phrase and source word, columns separated by tabs:

    phrase (words separated by blanks), source word, how often linked so, how often this source word is linked at all

The phrases with most occurrences come first, of equally many the first by its text (code points, a tab at its end); so do the
source words of each.

Word-aligned text, line by line: a source file, its translation, and a file of links `i-j` (see `align/links.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import NamedTuple

from phraseloom.align.links import Links, parse_links
from phraseloom.errors import DataError, plural
from phraseloom.text.lines import read_lines


class AlignedLine(NamedTuple):
    """The words of a sentence and of its translation, links between them, and the line that the translation was."""

    source: list[str]
    target: list[str]
    links: Links
    target_line: str


def words_of(line: str) -> list[str]:
    """What stands between blanks (U+0020)."""
    return [word for word in line.split(" ") if word]


class Lines(NamedTuple):
    """The lines of a file, and its name for messages."""

    name: str | Path
    lines: Iterable[str]


def lines_of(path: str | Path) -> Lines:
    """The lines of a file (plain, .gz, .xz), as they are read."""
    return Lines(path, read_lines(path))


@contextmanager
def closing(*texts: Iterable[str]) -> Iterator[None]:
    """At the end of the block close the files that are read, also where an error is on its way."""
    try:
        yield
    finally:
        for lines in texts:
            if isinstance(lines, Generator):
                lines.close()


def read_aligned(source: Lines, target: Lines, links: Lines) -> Iterator[AlignedLine]:
    """The lines of three parallel texts, the last one of links.

    Raises DataError (file and line) for links that do not fit the words, and where a file ends before another.
    """
    texts = (source, target, links)
    with closing(*(text.lines for text in texts)):
        for number, lines in enumerate(zip_longest(*(text.lines for text in texts)), 1):
            if None in lines:
                raise _too_short(texts, lines, number)
            one, other = words_of(lines[0]), words_of(lines[1])
            found = parse_links(lines[2], file=links.name, line=number, lengths=(len(one), len(other)))
            yield AlignedLine(one, other, found, lines[1])


def _too_short(texts: Sequence[Lines], lines: Sequence[str | None], number: int) -> DataError:
    short = texts[lines.index(None)].name
    long = next(text.name for text, line in zip(texts, lines, strict=True) if line is not None)
    return DataError(
        f"ends after {plural(number - 1, 'line')}, but {long} goes on",
        file=short,
        hint="the files must be parallel, line by line; a pair without links is a blank line",
    )


_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """A source word of a candidate: how often it is linked to just this phrase, and how often to any word."""

    word: str
    count: int
    linked: int


@dataclass(frozen=True, slots=True)
class PhraseCandidate:
    """A phrase, its words separated by blanks, and its source words, most frequent first, then by code points."""

    phrase: str
    sources: tuple[Source, ...]

    @property
    def words(self) -> list[str]:
        """The words of the phrase."""
        return self.phrase.split(" ")

    @property
    def count(self) -> int:
        """Occurrences as the words of one source word."""
        return sum(source.count for source in self.sources)


@dataclass
class Candidates:
    """What was found in aligned text: iterate for the candidates.

    `rows`: occurrences by phrase and source word, a tab between (a key of one string takes a third of the memory of nested
    dictionaries). `linked`: occurrences of each source word that have a link. `pairs`, `blank` (a side without words) and
    `unlinked` (words on both sides, no link) count sentence pairs, `with_tab` the occurrences left out because a word of
    them holds a tab.
    """

    rows: dict[str, int] = field(default_factory=dict)
    linked: Counter[str] = field(default_factory=Counter)
    pairs: int = 0
    blank: int = 0
    unlinked: int = 0
    with_tab: int = 0

    @property
    def occurrences(self) -> int:
        """How often a source word was linked to several target words."""
        return sum(self.rows.values())

    def __iter__(self) -> Iterator[PhraseCandidate]:
        keys = sorted(self.rows)
        spans = []
        for _, group in groupby(range(len(keys)), key=lambda place: keys[place].partition("\t")[0]):
            places = list(group)
            spans.append((-sum(self.rows[keys[place]] for place in places), places[0], places[-1] + 1))
        for _, start, end in sorted(spans):
            sources = [(-self.rows[key], key.partition("\t")[2]) for key in keys[start:end]]
            some = tuple(Source(word, -count, self.linked[word]) for count, word in sorted(sources))
            yield PhraseCandidate(keys[start].partition("\t")[0], some)


def one_to_many(links: Iterable[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """(source word, its target words in order), in the order of the source, for each with two target words or more."""
    for source, some in groupby(sorted(links), key=lambda link: link[0]):
        targets = [target for _, target in some]
        if len(targets) > 1:
            yield source, targets


def extract(lines: Iterable[AlignedLine]) -> Candidates:
    """The candidates of aligned text. Memory grows with the number of different candidates, not with the text."""
    found = Candidates()
    for line in lines:
        found.pairs += 1
        found.blank += not (line.source and line.target)
        found.unlinked += bool(line.source and line.target and not line.links)
        found.linked.update(line.source[index] for index in {source for source, _ in line.links})
        for index, targets in one_to_many(line.links):
            phrase, word = " ".join(line.target[t] for t in targets), line.source[index]
            if "\t" in phrase or "\t" in word:
                found.with_tab += 1
                continue
            row = f"{phrase}\t{word}"
            found.rows[row] = found.rows.get(row, 0) + 1
    return found


def format_candidates(candidates: Iterable[PhraseCandidate]) -> Iterator[str]:
    """The rows of a file of candidates."""
    for candidate in candidates:
        for source in candidate.sources:
            yield f"{candidate.phrase}\t{source.word}\t{source.count}\t{source.linked}"


def read_candidates(path: str | Path) -> Iterator[PhraseCandidate]:
    """The candidates of a file (plain, .gz, .xz), one after the other. Raises DataError (file, line) for rows not of this form
    or not in this order, FileProblem.
    """
    lines = read_lines(path)
    before: tuple[int, str] | None = None
    with closing(lines):
        rows = (_parse(row, path, number) for number, row in enumerate(lines, 1))
        for phrase, group in groupby(rows, key=lambda row: row[0]):
            some = list(group)
            candidate = PhraseCandidate(phrase, tuple(source for _, source, _ in some))
            place = (-candidate.count, f"{phrase}\t")
            if before is not None and place <= before:
                raise DataError(
                    f"{phrase!r}: not in the order of a file of candidates",
                    file=path,
                    line=some[0][2],
                    hint="a file as phrases extract writes it: by count, most frequent first, then by phrase",
                )
            before = place
            yield candidate


def _parse(row: str, path: str | Path, line: int) -> tuple[str, Source, int]:
    columns = row.split("\t")
    if len(columns) == 4 and all(_NUMBER.fullmatch(number) for number in columns[2:]):
        phrase, word, count, linked = columns[0], columns[1], int(columns[2]), int(columns[3])
        if len(parts := phrase.split(" ")) > 1 and all(parts) and word and 0 < count <= linked:
            return phrase, Source(word, count, linked), line
    hint = "rows are of phrases extract: phrase of two words or more, source word, two numbers, with tabs between"
    raise DataError("not a row of a file of candidates", file=path, line=line, hint=hint)
