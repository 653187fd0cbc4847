"""The sentences of a test set that are scored, by the numbers of their lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from phraseloom.errors import DataError
from phraseloom.text.lines import read_lines


def read_line_numbers(path: str | Path, lines: int) -> list[int]:
    """The numbers in a file, one a line, as indices from 0 in rising order; `lines` is the length of the texts.

    Raises FileProblem, DataError (file and line) for what is no number from 1 to `lines`, a number that is there twice, and a
    file without numbers.
    """
    place: dict[int, int] = {}
    for at, text in enumerate(read_lines(path), 1):
        digits = text.strip()
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else 0
        if not 1 <= number <= lines:
            hint = "one number a line, as phrases mwt writes them to lines.txt"
            raise DataError(f"{text!r} is not the number of a line, 1 to {lines:,}", file=path, line=at, hint=hint)
        if place.setdefault(number, at) != at:
            raise DataError(f"{number} is also in line {place[number]}", file=path, line=at)
    if not place:
        raise DataError("no numbers of lines: nothing to score", file=path)
    return sorted(number - 1 for number in place)


def take(texts: Iterable[Sequence[str]], chosen: Sequence[int]) -> list[list[str]]:
    """Those lines of each text."""
    return [[lines[i] for i in chosen] for lines in texts]
