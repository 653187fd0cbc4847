"""A table of source phrases and the target phrases that their translations must contain.

The number of tab-separated columns of the first row says which table it is:

    2   source phrase, target phrase                                            terminology of your own
    4   target phrase, source word, two counts                                  `phrases extract`
    5   target phrase, count, PMI, occurrences, source word                     `phrases filter`

In the tables of `phrases` the first row of a source word counts, which is its most frequent phrase; their phrases are
detokenised. In your own table a source phrase may have one target phrase only.

Matching: words of the line against words of the source phrases (`constraints.words_of`), from left to right, the longest match
first; words that are matched are not matched again. A source phrase without capital letters also matches capitalised words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from phraseloom.decoding.constraints import canonical, words_of
from phraseloom.errors import DataError
from phraseloom.files import require_file
from phraseloom.text.lines import read_lines

if TYPE_CHECKING:
    from phraseloom.text.tokenizer import Tokenizer

_COLUMNS = {2: (0, 1), 4: (1, 0), 5: (4, 0)}  # where source and target are
TABLE = "terms"  # the name of a mapping of terms in messages


class Term(NamedTuple):
    """A target phrase, its line in the table, and its source phrase."""

    target: str
    line: int
    source: str


class Terms:
    """The target phrase of each source phrase, by its words. `path`: for messages. `first_counts`: see `_add`."""

    def __init__(self, terms: dict[tuple[str, ...], Term], path: Path, *, first_counts: bool = False) -> None:
        self.terms, self.path, self._first_counts = terms, path, first_counts
        self._fitted: tuple[Tokenizer, Terms] | None = None
        self._next: dict[Any, Any] = {}  # by word, what can follow; None → the term that ends here
        for words, term in terms.items():
            node = self._next
            for word in words:
                node = node.setdefault(word, {})
            node[None] = term

    @staticmethod
    def read(path: str | Path, detokenise: Callable[[str], str] = str) -> Terms:
        """Read a table (plain, .gz, .xz). `detokenise`: for the phrases of a table of `phrases`.

        Raises FileProblem; DataError (file, line) for a row without two phrases, and for a source phrase with two targets.
        """
        path = require_file(path, "table of terms")
        terms: dict[tuple[str, ...], Term] = {}
        columns = 0
        for line, row in enumerate(read_lines(path), 1):
            if not row.strip():
                continue
            cells = row.split("\t")
            columns = columns or len(cells)
            if len(cells) != columns or columns not in _COLUMNS:
                raise DataError(
                    f"a row of {len(cells)} columns", file=path, line=line, hint="write SOURCE<tab>TARGET in every row"
                )
            source, target = (cells[place] for place in _COLUMNS[columns])
            target = target if columns == 2 else detokenise(target)
            _add(terms, source, target, path, line, first_counts=columns != 2)
        if not terms:
            raise DataError("the table has no terms", file=path)
        return Terms(terms, path, first_counts=columns != 2)

    @staticmethod
    def of(table: Mapping[str, str]) -> Terms:
        """The terms of a mapping from source to target phrases; messages call it `terms` and count its entries from 1.

        Raises DataError for an empty phrase, and for two source phrases with the same words and different targets.
        """
        terms: dict[tuple[str, ...], Term] = {}
        for line, (source, target) in enumerate(table.items(), 1):
            _add(terms, source, target, Path(TABLE), line)
        return Terms(terms, Path(TABLE))

    def fitted(self, tokenizer: Tokenizer) -> Terms:
        """The terms in the characters that a tokenizer leaves of text; made once for the last tokenizer.

        Raises DataError if a phrase becomes empty, or the same as another one.
        """
        if self._fitted is None or self._fitted[0] is not tokenizer:
            characters, written = tokenizer.source.characters, tokenizer.target.written
            terms: dict[tuple[str, ...], Term] = {}
            for own in self.terms.values():
                source, target = characters(own.source), written(own.target)
                _add(terms, source, target, self.path, own.line, first_counts=self._first_counts)
            self._fitted = tokenizer, Terms(terms, self.path, first_counts=self._first_counts)
        return self._fitted[1]

    def matches(self, text: str) -> list[Term]:
        """The terms of a source line, in its order; a term that occurs twice is there once."""
        words = words_of(text)
        lower = [word.lower() for word in words]
        found: dict[Term, None] = {}
        start = 0
        while start < len(words):
            # the longest; of two of one length, the one with the capitals of the line
            size, term = max(self._longest(words, start), self._longest(lower, start), key=lambda match: match[0])
            if term is not None:
                found[term] = None
            start += max(1, size)
        return list(found)

    def _longest(self, words: Sequence[str], start: int) -> tuple[int, Term | None]:
        """The number of words of the longest term that begins here, and the term; 0 and None without one."""
        node, size, term = self._next, 0, None
        for place in range(start, len(words)):
            node = node.get(words[place], {})
            if not node:
                break
            if None in node:
                size, term = place + 1 - start, node[None]
        return size, term


def _add(
    terms: dict[tuple[str, ...], Term], source: str, target: str, path: Path, line: int, *, first_counts: bool = False
) -> None:
    """Add a term unless its source phrase is there. Raises DataError for an empty phrase, and, unless the first one counts,
    for a second target."""
    key, target = tuple(words_of(source)), canonical(target)
    if not key or not target:
        raise DataError("a phrase is empty", file=path, line=line, hint="write SOURCE<tab>TARGET, or remove it")
    before = terms.setdefault(key, Term(target, line, source))
    if before.target != target and not first_counts:
        raise DataError(
            f"{canonical(source)!r} has another target in line {before.line}",
            file=path,
            line=line,
            hint="keep one of the two",
        )
