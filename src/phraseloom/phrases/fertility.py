"""Classes of fertility, the number of target words that a source word gives, as the fertility module learns them (spec §4.8).

    4 classes   min(number, 3)
    2 classes   0 for at most one word, 1 for a phrase

Park and Tsvetkov 2019, §2.3. The numbers are made in `merge.py`. Every subword of a source word is of the class of the word.
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
"""How many classes there can be."""


def fertility_class(count: int, classes: int) -> int:
    """The class of a source word that gave `count` words. Raises UsageError for a number of classes that is not defined."""
    if classes not in CLASSES:
        raise UsageError(f"fertility has no form of {classes} classes", hint="2 or 4")
    return min(count, 3) if classes == 4 else int(count > 1)


def format_fertilities(counts: Sequence[int]) -> str:
    """A line of a file of fertilities."""
    return " ".join(map(str, counts))


def read_fertilities(path: str | Path, lengths: Iterable[int]) -> Iterator[list[int]]:
    """The fertilities of each line of a file (plain, .gz, .xz); `lengths`: the words of each source line.

    Raises DataError (file, line) for what is no number of at most two digits, and where the numbers are not one a word.
    """
    lines, number = read_lines(path), 0
    with closing(lines):
        for number, words in enumerate(lengths, 1):
            line = next(lines, None)
            if line is None:
                raise DataError(f"ends after {plural(number - 1, 'line')}, but the source goes on", file=path)
            fields = line.split()
            if not all(field.isascii() and field.isdigit() and len(field) < 3 for field in fields):
                hint = "one number a source word, such as 1 0 2"
                raise DataError("not numbers of words", file=path, line=number, hint=hint)
            if len(fields) != words:
                raise DataError(
                    f"{len(fields)} numbers, but the source line has {plural(words, 'word')}", file=path, line=number
                )
            yield [int(field) for field in fields]
        if next(lines, None) is not None:
            raise DataError(f"goes on after the {plural(number, 'line')} of the source", file=path, line=number + 1)


def read_labelled(source: str | Path, labels: str | Path) -> Iterator[tuple[str, list[int]]]:
    """The lines of a text, each with the fertilities of its words (what stands between blanks).

    Raises DataError as `read_fertilities`.
    """
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
    """For each subword id of a raw line the number of its word, given those of the words of the line.

    A subword is of the word in which its first character stands, however the line was normalised. Raises DataError where
    normalisation changes more than the single words, so that this cannot be told.
    """
    if not ids:
        return []
    words, text = words_of(line), side.normaliser(line)
    sizes = word_counts(side, ids, words) if words_of(text) == words else None
    if sizes is None:
        sizes = tree_counts(side, text, ids, words)
    return [count for count, size in zip(counts, sizes, strict=True) for _ in range(size)]
