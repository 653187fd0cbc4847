"""Classes of fertility, the number of target words that a source word gives, as the fertility module learns them (spec §4.8).

    4 classes   min(number, 3)
    2 classes   0 for at most one word, 1 for a phrase

Park and Tsvetkov 2019, §2.3. The numbers are made in `merge.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from phraseloom.errors import DataError, UsageError
from phraseloom.phrases.aligned import closing
from phraseloom.text.lines import read_lines

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
                raise DataError(f"ends after {number - 1:,} lines, but the source goes on", file=path)
            fields = line.split()
            if not all(field.isascii() and field.isdigit() and len(field) < 3 for field in fields):
                hint = "one number a source word, such as 1 0 2"
                raise DataError("not numbers of words", file=path, line=number, hint=hint)
            if len(fields) != words:
                raise DataError(f"{len(fields)} numbers, but the source line has {words} words", file=path, line=number)
            yield [int(field) for field in fields]
        if next(lines, None) is not None:
            raise DataError(f"goes on after the {number:,} lines of the source", file=path, line=number + 1)
