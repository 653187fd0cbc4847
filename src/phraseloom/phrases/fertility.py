"""Fertility classes for the fertility module: how many target words a source word gives.

    4 classes   min(number, 3)
    2 classes   0 for at most one word, 1 for a phrase

Park and Tsvetkov 2019, §2.3. `merge.py` computes the numbers. Every subword of a source word has the class of the word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from phraseloom.errors import DataError, UsageError, plural
from phraseloom.phrases.extract import closing, words_of
from phraseloom.phrases.source import tree_counts, word_counts
from phraseloom.text.lines import read_lines
from phraseloom.text.tokenizer import Side

CLASSES = (2, 4)
"""The supported numbers of classes."""


def fertility_class(count: int, classes: int) -> int:
    """The class of a source word that gave `count` words. Raises UsageError for an unsupported number of classes."""
    if classes not in CLASSES:
        raise UsageError(f"fertility cannot have {classes} classes", hint="choose 2 or 4")
    return min(count, 3) if classes == 4 else int(count > 1)


def format_fertilities(counts: Sequence[int]) -> str:
    """A line of a file of fertilities."""
    return " ".join(map(str, counts))


def read_fertilities(path: str | Path, lengths: Iterable[int]) -> Iterator[list[int]]:
    """The fertilities of each line of a file (plain, .gz, .xz); `lengths` are the numbers of words of the source lines.

    Raises DataError (file, line) for a field that is not a number of at most two digits, and unless each word has one number.
    """
    lines, number = read_lines(path), 0
    with closing(lines):
        for number, words in enumerate(lengths, 1):
            line = next(lines, None)
            if line is None:
                raise DataError(f"ends after {plural(number - 1, 'line')}, but the source has more", file=path)
            fields = line.split()
            if not all(field.isascii() and field.isdigit() and len(field) < 3 for field in fields):
                hint = "write one number per source word, such as 1 0 2"
                raise DataError(
                    "the line holds something other than numbers of words", file=path, line=number, hint=hint
                )
            if len(fields) != words:
                raise DataError(
                    f"{len(fields)} numbers, but the source line has {plural(words, 'word')}", file=path, line=number
                )
            yield [int(field) for field in fields]
        if next(lines, None) is not None:
            raise DataError(f"has more than the {plural(number, 'line')} of the source", file=path, line=number + 1)


def read_labelled(source: str | Path, labels: str | Path) -> Iterator[tuple[str, list[int]]]:
    """The lines of a text, each with the fertilities of its words. Raises DataError as `read_fertilities` does."""
    current = ""

    def lengths() -> Generator[int]:
        nonlocal current
        lines = read_lines(source)
        with closing(lines):
            for current in lines:
                yield len(words_of(current))

    words = lengths()
    with contextlib.closing(words):
        for counts in read_fertilities(labels, words):
            yield current, counts


def spread(side: Side, line: str, ids: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Spread the counts of the words of a raw line over its subword ids.

    A subword belongs to the word of its first character, also after normalisation. Raises DataError if normalisation changes
    more than single words, so that the word is unknown.
    """
    if not ids:
        return []
    words, text = words_of(line), side.text(line)
    sizes = word_counts(side, ids, words) if words_of(text) == words else None
    if sizes is None:
        sizes = tree_counts(side, text, ids, words)
    return [count for count, size in zip(counts, sizes, strict=True) for _ in range(size)]
