"""Extract phrase candidates from word-aligned text: the target words that one source word is linked to.

The input is a source file, its translation and a file of links `i-j` (see `align/links.py`), line by line. If a source word
is linked to two target words or more, these words in sentence order are one occurrence of a candidate. They need not be
adjacent. Park and Tsvetkov 2019, §2.2, after Tang et al. 2016.

A file of candidates has one row per phrase and source word, columns separated by tabs:

    phrase (words separated by spaces), source word, its links to this phrase, its occurrences with any link

The most frequent phrases come first, ties by their text (code points, with a tab at the end). The source words of a phrase
have the same order.
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
    """The words of a sentence and of its translation, the links between them, and the raw target line."""

    source: list[str]
    target: list[str]
    links: Links
    target_line: str


def words_of(line: str) -> list[str]:
    """The words of a line, separated by U+0020."""
    return [word for word in line.split(" ") if word]


NOT_PARALLEL = "the files must be parallel, line by line; a pair without links is a blank line"


class Lines(NamedTuple):
    """The lines of a text, and its name for messages."""

    name: str | Path
    lines: Iterable[str]


def lines_of(path: str | Path) -> Lines:
    """The lines of a file (plain, .gz, .xz), read lazily."""
    return Lines(path, read_lines(path))


@contextmanager
def closing(*texts: Iterable[str]) -> Iterator[None]:
    """Close the files behind `texts` at the end of the block, even after an error."""
    try:
        yield
    finally:
        for lines in texts:
            if isinstance(lines, Generator):
                lines.close()


def read_aligned(source: Lines, target: Lines, links: Lines) -> Iterator[AlignedLine]:
    """The lines of three parallel texts, the last one of links.

    Raises DataError (file and line) for links outside the sentences and for files of different length.
    """
    texts = (source, target, links)
    with closing(*(text.lines for text in texts)):
        for number, lines in enumerate(zip_longest(*(text.lines for text in texts)), 1):
            if None in lines:
                raise too_short([text.name for text in texts], lines, number, NOT_PARALLEL)
            source_words, target_words = words_of(lines[0]), words_of(lines[1])
            lengths = len(source_words), len(target_words)
            line_links = parse_links(lines[2], file=links.name, line=number, lengths=lengths)
            yield AlignedLine(source_words, target_words, line_links, lines[1])


def too_short(
    names: Sequence[str | Path], rows: Sequence[object | None], number: int, hint: str | None = None
) -> DataError:
    """The error for parallel files, of which one has no row `number` (None in `rows`)."""
    longer = next(name for name, row in zip(names, rows, strict=True) if row is not None)
    what = f"ends after {plural(number - 1, 'line')}, but {longer} has more"
    return DataError(what, file=names[rows.index(None)], hint=hint)


_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """A source word of a candidate: how often it is linked to exactly this phrase, and how often it has a link."""

    word: str
    count: int
    linked: int


@dataclass(frozen=True, slots=True)
class PhraseCandidate:
    """A phrase (words separated by spaces) and its source words, most frequent first, then by code points."""

    phrase: str
    sources: tuple[Source, ...]

    @property
    def words(self) -> list[str]:
        """The words of the phrase."""
        return self.phrase.split(" ")

    @property
    def count(self) -> int:
        """The number of occurrences, over all source words."""
        return sum(source.count for source in self.sources)


@dataclass
class Candidates:
    """The candidates of aligned text, and counts of the text. Iterate over it for the candidates.

    `rows` has the occurrences by "phrase<tab>source word" (such keys need a third of the memory of nested dictionaries).
    `linked` has the occurrences of each source word that have a link. `pairs`, `blank` (a side without words) and `unlinked`
    (words on both sides, no link) count sentence pairs. `with_tab` counts occurrences that are left out because a word has a
    tab.
    """

    rows: dict[str, int] = field(default_factory=dict)
    linked: Counter[str] = field(default_factory=Counter)
    pairs: int = 0
    blank: int = 0
    unlinked: int = 0
    with_tab: int = 0

    @property
    def occurrences(self) -> int:
        """The number of source words linked to several target words."""
        return sum(self.rows.values())

    def __iter__(self) -> Iterator[PhraseCandidate]:
        keys = sorted(self.rows)
        spans = []
        for _, group in groupby(range(len(keys)), key=lambda place: keys[place].partition("\t")[0]):
            places = list(group)
            spans.append((-sum(self.rows[keys[place]] for place in places), places[0], places[-1] + 1))
        for _, start, end in sorted(spans):
            sources = [(-self.rows[key], key.partition("\t")[2]) for key in keys[start:end]]
            ordered = tuple(Source(word, -count, self.linked[word]) for count, word in sorted(sources))
            yield PhraseCandidate(keys[start].partition("\t")[0], ordered)


def one_to_many(links: Iterable[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """Each source word with two target words or more, in the order of the source, and its target words in order."""
    for source, group in groupby(sorted(links), key=lambda link: link[0]):
        targets = [target for _, target in group]
        if len(targets) > 1:
            yield source, targets


def extract(lines: Iterable[AlignedLine]) -> Candidates:
    """The candidates of aligned text. Memory grows with the number of distinct candidates, not with the text."""
    result = Candidates()
    for line in lines:
        result.pairs += 1
        result.blank += not (line.source and line.target)
        result.unlinked += bool(line.source and line.target and not line.links)
        result.linked.update(line.source[index] for index in {source for source, _ in line.links})
        for index, targets in one_to_many(line.links):
            phrase, word = " ".join(line.target[t] for t in targets), line.source[index]
            if "\t" in phrase or "\t" in word:
                result.with_tab += 1
                continue
            row = f"{phrase}\t{word}"
            result.rows[row] = result.rows.get(row, 0) + 1
    return result


def format_candidates(candidates: Iterable[PhraseCandidate]) -> Iterator[str]:
    """The rows of a file of candidates."""
    for candidate in candidates:
        for source in candidate.sources:
            yield f"{candidate.phrase}\t{source.word}\t{source.count}\t{source.linked}"


def read_candidates(path: str | Path) -> Iterator[PhraseCandidate]:
    """The candidates of a file (plain, .gz, .xz). Raises FileProblem; DataError (file, line) for invalid or unsorted rows."""
    lines = read_lines(path)
    before: tuple[int, str] | None = None
    with closing(lines):
        rows = (_parse(row, path, number) for number, row in enumerate(lines, 1))
        for phrase, group in groupby(rows, key=lambda row: row[0]):
            sources = list(group)
            candidate = PhraseCandidate(phrase, tuple(source for _, source, _ in sources))
            place = (-candidate.count, f"{phrase}\t")
            if before is not None and place <= before:
                raise DataError(
                    f"{phrase!r} is not in the order of a file of candidates",
                    file=path,
                    line=sources[0][2],
                    hint="sort as phrases extract does: by count, most frequent first, then by phrase",
                )
            before = place
            yield candidate


def _parse(row: str, path: str | Path, line: int) -> tuple[str, Source, int]:
    columns = row.split("\t")
    if len(columns) == 4 and all(_NUMBER.fullmatch(number) for number in columns[2:]):
        phrase, word, count, linked = columns[0], columns[1], int(columns[2]), int(columns[3])
        if len(parts := phrase.split(" ")) > 1 and all(parts) and word and 0 < count <= linked:
            return phrase, Source(word, count, linked), line
    hint = (
        "write a phrase of two words or more, a source word and two numbers, separated by tabs, as phrases extract does"
    )
    raise DataError("not a row of a file of candidates", file=path, line=line, hint=hint)
