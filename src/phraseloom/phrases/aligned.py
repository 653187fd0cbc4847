"""Word-aligned text, line by line: a source file, its translation, and a file of links `i-j` (see `align/links.py`)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
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
