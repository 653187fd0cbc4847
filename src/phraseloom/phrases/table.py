"""A file of phrases, and the form of it in which a longest match is found fast."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from phraseloom.errors import DataError
from phraseloom.phrases.segment import Phrases
from phraseloom.text.lines import read_lines

COLUMNS = " ||| "


def read_phrases(path: str | Path) -> set[str]:
    """The phrases of a file (plain, .gz or .xz), one a line, words separated by one space each.

    Of a line with ` ||| ` (a Moses phrase table) or tabs the first column is the phrase. Raises FileProblem, DataError for
    a line without a phrase and for a file without lines.
    """
    phrases: set[str] = set()
    last = ""
    for number, line in enumerate(read_lines(path), start=1):
        column = line.partition(COLUMNS)[0].partition("\t")[0]
        if column == last and number > 1:
            continue
        last, phrase = column, " ".join(word for word in column.split(" ") if word)
        if not phrase.strip() or phrase == COLUMNS.strip() or phrase.startswith(COLUMNS[1:]):
            hint = "one phrase a line, words separated by spaces; more columns after a tab or ' ||| '"
            raise DataError("a line without a phrase", file=path, line=number, hint=hint)
        phrases.add(phrase)
    if not phrases:
        raise DataError("a phrase table without phrases", file=path)
    return phrases


def index_phrases(phrases: Iterable[str]) -> Phrases:
    """Phrases by their first word and their number of words, longest first."""
    index: Phrases = {}
    for phrase in phrases:
        index.setdefault(phrase.partition(" ")[0], {}).setdefault(phrase.count(" ") + 1, set()).add(phrase)
    return {first: dict(sorted(sizes.items(), reverse=True)) for first, sizes in index.items()}
