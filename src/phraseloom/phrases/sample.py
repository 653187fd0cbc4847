"""Draw random phrases from the output of a system for human evaluation, and find their words in other translations.

    exact       the words of the phrase, adjacent and in order
    scattered   all of its words, elsewhere or in another order
    partly      some of its words
    absent      none of its words

The comparison ignores case and splits text into runs of letters and digits and single signs, so tokenised and plain text
compare equal. Every phrase occurrence has the same chance (Park and Tsvetkov 2019, §3, Analysis on Generated Phrases, Table 6).

A sheet for human evaluation is a table with tabs that a spreadsheet opens, with one row per phrase:

    line  word  phrase  category  correct NAME …  found in reference  found by NAME …  source  reference  output NAME …  note

The judge fills in `category` and `correct`: all cells of a row or none. Categories: Park and Tsvetkov 2019, §3.
"""

from __future__ import annotations

import csv
import heapq
import html
import io
import json
import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from phraseloom.errors import DataError
from phraseloom.phrases.extract import Lines, closing, too_short
from phraseloom.phrases.segmenters import Phrases, word_phrases
from phraseloom.text.lines import read_lines, write_lines
from phraseloom.text.words import is_phrase, join_line, split, split_line

FOUND = ("exact", "scattered", "partly", "absent")
JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.xz")


class SystemOutput(NamedTuple):
    """A line of the output of a system: its text, its words, and its tokens with phrases joined."""

    text: str
    words: list[str]
    tokens: list[str]


@dataclass(frozen=True, slots=True)
class Generated:
    """A phrase of the first system: its line and first word (both from 1), its words, and the line in the other texts.

    `outputs` has the line of every system, with phrases joined for the first. `found` has one of FOUND for the reference, then
    for every other system.
    """

    line: int
    word: int
    phrase: str
    source: str
    reference: str
    outputs: tuple[str, ...]
    found: tuple[str, ...]


@dataclass
class SampleCounts:
    """Counts of lines, lines with a phrase, phrases, distinct phrases, and how the reference has them (one of FOUND)."""

    lines: int = 0
    with_phrase: int = 0
    phrases: int = 0
    different: set[str] = field(default_factory=set)
    in_reference: Counter[str] = field(default_factory=Counter)


def read_outputs(lines: Lines) -> Iterator[SystemOutput]:
    """The translations in a file: a `.jsonl` file of `translate --output json`, else text with words separated by spaces.

    Raises DataError (file and line) for JSON that is not a translation.
    """
    as_json = str(lines.name).endswith(JSON_LINES)
    for number, line in enumerate(lines.lines, 1):
        if as_json:
            yield _from_json(line, lines.name, number)
        else:
            words = line.split(" ")
            yield SystemOutput(split_line(line), words, words)


def _from_json(line: str, file: Any, number: int) -> SystemOutput:
    try:
        value = json.loads(line)
        output = SystemOutput(value["text"], value["words"], value["tokens"])
        valid = isinstance(output.text, str) and all(
            isinstance(part, list) and all(isinstance(word, str) for word in part) for part in output[1:]
        )
    except (ValueError, RecursionError, LookupError, TypeError):
        valid = False
    if not valid:
        hint = "translate --output json writes one object with text, words and tokens per line"
        raise DataError("not a translation as JSON", file=file, line=number, hint=hint)
    return output


def generated(
    source: Lines, reference: Lines, systems: Sequence[Lines], phrases: Phrases | None = None
) -> Iterator[list[Generated]]:
    """The phrases of the first system, line by line: its joined tokens, or the longest matches of `phrases` in its words.

    Raises DataError for files of different length.
    """
    outputs = [read_outputs(lines) for lines in systems]
    texts = (source, reference, *systems)
    with closing(*(text.lines for text in texts)):
        rows: Iterable[tuple[Any, ...]] = zip_longest(source.lines, reference.lines, *outputs)
        for number, row in enumerate(rows, 1):
            if None in row:
                raise too_short([t.name for t in texts], row, number, "the files must be parallel, line by line")
            yield list(_phrases_of_line(number, row[0], row[1], row[2:], phrases))


def _phrases_of_line(
    number: int, source: str, reference: str, outputs: tuple[SystemOutput, ...], phrases: Phrases | None
) -> Iterator[Generated]:
    first, *others = outputs
    tokens = first.tokens
    if phrases is not None:
        tokens = join_line(first.words, word_phrases(first.words, phrases)).split(" ")
    if not any(map(is_phrase, tokens)):
        return
    shown = (" ".join(tokens), *(other.text for other in others))
    places = [comparable(text) for text in (reference, *(other.text for other in others))]
    start = 1
    for token in tokens:
        words = split(token)
        if len(words) > 1:
            phrase = comparable(" ".join(words))
            found = tuple(find(phrase, place) for place in places)
            yield Generated(number, start, " ".join(words), source, reference, shown, found)
        start += len(words) if token else 0  # an empty token is an extra space


def draw(lines: Iterable[list[Generated]], size: int, seed: int) -> tuple[list[Generated], SampleCounts]:
    """Draw `size` phrases (or all) without replacement, in the order of drawing; also return the counts of all phrases.

    A larger sample begins with the smaller one of the same seed. Memory grows with the sample and the distinct phrases.
    """
    counts, chance = SampleCounts(), random.Random(seed)

    def counted() -> Iterator[Generated]:
        for phrases in lines:
            counts.lines += 1
            counts.with_phrase += bool(phrases)
            counts.phrases += len(phrases)
            for phrase in phrases:
                counts.different.add(phrase.phrase)
                counts.in_reference[phrase.found[0]] += 1
                yield phrase

    return heapq.nsmallest(size, counted(), key=lambda _: chance.random()), counts


def comparable(text: str) -> list[str]:
    """The words of a text in lower case and single signs; entities (`&apos;`) are decoded."""
    text = unicodedata.normalize("NFC", html.unescape(text) if "&" in text else text)
    return "".join(c if unicodedata.category(c)[0] in "LMN" else f" {c} " for c in text).casefold().split()


def find(phrase: Sequence[str], text: Sequence[str]) -> str:
    """How the words of a text have the words of a phrase, one of FOUND."""
    size = len(phrase)
    if any(list(text[i : i + size]) == list(phrase) for i in range(len(text) - size + 1)):
        return "exact"
    missing = Counter(phrase) - Counter(text)
    if not missing:
        return "scattered"
    return "partly" if missing.total() < size else "absent"


CATEGORIES = {"CN": "compound noun", "VP": "verb phrase", "CO": "collocation", "other": "none of these"}
VERDICTS = {"1": True, "yes": True, "y": True, "true": True, "0": False, "no": False, "n": False, "false": False}
CORRECT, BY, REFERENCE = "correct ", "found by ", "found in reference"
FORMULA = ("=", "+", "-", "@")
LONGEST = 32_000  # characters that a cell of a spreadsheet holds


class JudgedPhrase(NamedTuple):
    """A row: its place, the phrase, where it was found, and the judgement, or None if it is empty."""

    line: int
    word: int
    phrase: str
    category: str | None
    correct: list[bool] | None
    found: list[str]


class Sheet(NamedTuple):
    """The judged systems, the names of the `found …` columns, and the rows."""

    systems: list[str]
    places: list[str]
    rows: list[JudgedPhrase]


def write_sheet(path: str | Path, phrases: Iterable[Generated], systems: Sequence[str]) -> int:
    """Write a sheet for phrases of the first of `systems`, with the outputs of all; return the number of phrases."""
    header = ["line", "word", "phrase", "category", *(CORRECT + name for name in systems), REFERENCE]
    header += [BY + name for name in systems[1:]]
    header += ["source", "reference", *(f"output {name}" for name in systems), "note"]
    empty = [""] * (1 + len(systems))

    def rows() -> Iterator[str]:
        yield _row(header)
        for p in phrases:
            yield _row([str(p.line), str(p.word), p.phrase, *empty, *p.found, p.source, p.reference, *p.outputs, ""])

    return write_lines(path, rows()) - 1


def _row(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, "excel-tab", lineterminator="").writerow([_cell(cell) for cell in cells])
    return buffer.getvalue()


def _cell(text: str) -> str:
    """`text` without control characters, and with a space before a sign that would begin a formula."""
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in text)
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f" {text}" if text.startswith(FORMULA) else text


def read_sheet(path: str | Path) -> Sheet:
    """The rows of a sheet; its columns may have any order, and there may be others.

    Raises FileProblem, and DataError (file, line, column) for missing columns, invalid categories and verdicts, and rows that
    are partly filled in.
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
        raise DataError("the sheet has no phrases", file=path)
    return Sheet(systems, places, rows)


def _columns(header: Sequence[str], path: str | Path) -> dict[str, int]:
    """The place of each named column."""
    named = [name for name in header if name]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two columns have the name {twice!r}", file=path, line=1)
    missing = [name for name in ("line", "word", "phrase", "category", REFERENCE) if name not in named]
    missing += [] if any(name.startswith(CORRECT) for name in named) else [f"{CORRECT}NAME"]
    if missing:
        hint = "keep the names that phrases sample writes, and the tabs between the columns"
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
            raise self._wrong(empty, "empty, but other cells of the row are filled in", "fill in all of them or none")
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
