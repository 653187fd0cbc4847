"""Sheets on which people judge phrases: a table with tabs that a spreadsheet opens, a row a phrase.

    line  word  phrase  category  correct NAME …  found in reference  found by NAME …  source  reference  output NAME …  note

`category` and `correct` are for the judge; a row is filled in whole or left empty. Categories: Park and Tsvetkov 2019, §3.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from phraseloom.errors import DataError
from phraseloom.phrases.sample import FOUND, Generated
from phraseloom.text.lines import read_lines, write_lines

CATEGORIES = {"CN": "compound noun", "VP": "verb phrase", "CO": "collocation", "other": "none of these"}
VERDICTS = {"1": True, "yes": True, "y": True, "true": True, "0": False, "no": False, "n": False, "false": False}
CORRECT, BY, REFERENCE = "correct ", "found by ", "found in reference"
FORMULA = ("=", "+", "-", "@")
LONGEST = 32_000  # characters that a cell of a spreadsheet holds


class JudgedPhrase(NamedTuple):
    """A row: its place, the phrase, where it was found, and what was filled in, None where nothing is."""

    line: int
    word: int
    phrase: str
    category: str | None
    correct: list[bool] | None
    found: list[str]


class Sheet(NamedTuple):
    """The systems that are judged, the columns of where phrases were found, and the rows."""

    systems: list[str]
    places: list[str]
    rows: list[JudgedPhrase]


def write_sheet(path: str | Path, phrases: Iterable[Generated], systems: Sequence[str]) -> int:
    """Write a sheet for phrases of the first of `systems`, all with their outputs; the number of phrases."""
    header = ["line", "word", "phrase", "category", *(CORRECT + name for name in systems), REFERENCE]
    header += [BY + name for name in systems[1:]]
    header += ["source", "reference", *(f"output {name}" for name in systems), "note"]
    empty = [""] * (1 + len(systems))

    def rows() -> Iterator[str]:
        yield _row(header)
        for one in phrases:
            texts = (one.source, one.reference, *one.outputs)
            yield _row([str(one.line), str(one.word), one.phrase, *empty, *one.found, *texts, ""])

    return write_lines(path, rows()) - 1


def _row(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, "excel-tab", lineterminator="").writerow([_cell(cell) for cell in cells])
    return buffer.getvalue()


def _cell(text: str) -> str:
    """`text` without tabs and other control characters, and so that no spreadsheet takes it for a formula."""
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in text)
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f" {text}" if text.startswith(FORMULA) else text


def read_sheet(path: str | Path) -> Sheet:
    """The rows of a sheet; columns may stand in any order, and more may be there.

    Raises FileProblem, DataError (file, line, column) for missing columns, what is no category or verdict, and for a row that
    is filled in part.
    """
    table = csv.reader((line + "\n" for line in read_lines(path)), "excel-tab", strict=True)
    try:
        header = [name.strip() for name in next(table, [])]
        columns = _columns(header, path)
        systems = [name.removeprefix(CORRECT) for name in columns if name.startswith(CORRECT)]
        places = [name for name in columns if name == REFERENCE or name.startswith(BY)]
        rows: list[JudgedPhrase] = []
        seen: dict[tuple[int, int], int] = {}
        for cells in table:
            if not any(cell.strip() for cell in cells):
                continue
            row = _Row(path, table.line_num, columns, cells).judged(systems, places)
            before = seen.setdefault(row[:2], table.line_num)
            if before != table.line_num:
                what = f"the phrase of line {row.line}, word {row.word} is also in row {before}"
                raise DataError(what, file=path, line=table.line_num, hint="delete one of the rows")
            rows.append(row)
    except csv.Error as error:
        raise DataError(f"not a row of a table with tabs: {error}", file=path, line=table.line_num) from error
    if not rows:
        raise DataError("a sheet without phrases", file=path)
    return Sheet(systems, places, rows)


def _columns(header: Sequence[str], path: str | Path) -> dict[str, int]:
    """Where each column is."""
    named = [name for name in header if name]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two columns are called {twice!r}", file=path, line=1)
    missing = [name for name in ("line", "word", "phrase", "category", REFERENCE) if name not in named]
    missing += [] if any(name.startswith(CORRECT) for name in named) else [f"{CORRECT}NAME"]
    if missing:
        hint = "phrases sample writes a sheet with them; keep the names, and tabs between the columns"
        raise DataError(f"no column {', '.join(map(repr, missing))}", file=path, line=1, hint=hint)
    return {name: header.index(name) for name in named}


class _Row:
    """The cells of a row by the names of their columns."""

    def __init__(self, path: str | Path, line: int, columns: dict[str, int], cells: Sequence[str]) -> None:
        if len(cells) > max(columns.values()) + 1 and any(cell.strip() for cell in cells[max(columns.values()) + 1 :]):
            raise DataError(f"{len(cells)} cells, but {len(columns)} columns", file=path, line=line)
        self._path, self._line = path, line
        self._cells = {name: cells[at].strip() if at < len(cells) else "" for name, at in columns.items()}

    def judged(self, systems: Sequence[str], places: Sequence[str]) -> JudgedPhrase:
        to_fill = ["category", *(CORRECT + name for name in systems)]
        filled = [name for name in to_fill if self._cells[name]]
        if filled and len(filled) < len(to_fill):
            empty = next(name for name in to_fill if not self._cells[name])
            raise self._wrong(empty, "empty, but others of the row are filled in", "fill in all of them or none")
        phrase = self._cells["phrase"] or None
        if phrase is None:
            raise self._wrong("phrase", "empty")
        return JudgedPhrase(
            self._number("line"),
            self._number("word"),
            phrase,
            self._category() if filled else None,
            [self._verdict(CORRECT + name) for name in systems] if filled else None,
            [self._choice(name) for name in places],
        )

    def _category(self) -> str:
        text = self._cells["category"].lower()
        for name, meaning in CATEGORIES.items():
            if text in (name.lower(), f"{name.lower()}s", meaning):
                return name
        raise self._wrong("category", f"{self._cells['category']!r}", f"one of {', '.join(CATEGORIES)}")

    def _verdict(self, column: str) -> bool:
        text = self._cells[column]
        if text.lower() not in VERDICTS:
            raise self._wrong(column, repr(text), "1 (or yes) for a correct translation, 0 (or no)")
        return VERDICTS[text.lower()]

    def _choice(self, column: str) -> str:
        if self._cells[column] not in FOUND:
            raise self._wrong(column, repr(self._cells[column]), f"one of {', '.join(FOUND)}")
        return self._cells[column]

    def _number(self, column: str) -> int:
        text = self._cells[column]
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text)):
            raise self._wrong(column, f"{text!r} is not a number from 1")
        return int(text)

    def _wrong(self, column: str, what: str, hint: str | None = None) -> DataError:
        return DataError(f"column {column!r}: {what}", file=self._path, line=self._line, hint=hint)
