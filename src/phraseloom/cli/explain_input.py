"""What `phraseloom explain` reads: the chosen lines of files that are parallel, and names for the models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from phraseloom.cli.phrases_input import STDIN, InputFiles, single_stdin
from phraseloom.errors import DataError, UsageError, plural

SOURCE = "source"


@dataclass(frozen=True)
class Chosen:
    """The chosen `lines` (numbers from 1, in the order of the text), and of each file its `texts` of them.

    `asked`: how many lines were asked for, of which those beyond `most` are left out.
    """

    lines: list[int]
    texts: dict[str, list[str] | None]
    files: Mapping[str, str | None]
    asked: int

    @contextlib.contextmanager
    def places(self) -> Iterator[None]:
        """Let an error about one of the trees name its line of the file."""
        from phraseloom.decoding.source_phrases import TREES

        try:
            yield
        except DataError as error:
            if error.file != TREES or error.line is None:
                raise
            where = self.lines[error.line - 1]
            raise DataError(error.what, file=self.files["trees"], line=where, hint=error.hint) from error


def choose(files: Mapping[str, str | None], lines: str | None, most: int) -> Chosen:
    """Read `files` by what they are (None: not given; `source` is one of them, and may be -), of `lines` the first `most`.

    `lines` as in `parse_lines`, None for all. Raises UsageError, FileProblem; DataError where the files are not parallel, have
    no such line, or hold no text.
    """
    single_stdin(*files.values())
    wanted = None if lines is None else parse_lines(lines)
    kept: list[int] = [] if wanted is None else wanted[:most]
    inputs, totals = InputFiles("explain"), {}
    texts: dict[str, list[str] | None] = dict.fromkeys(files)
    for name, path in files.items():
        if path is not None:
            texts[name], totals[name] = _read(inputs.lines(path).lines, None if wanted is None else set(kept), most)
    total = totals[SOURCE]
    _require_parallel(files, totals)
    if wanted is not None and wanted[-1] > total:
        raise DataError(f"no line {wanted[-1]}: there are {total:,}", file=_named(files[SOURCE]))
    if wanted is None:
        kept = list(range(1, min(total, most) + 1))
    if not any(text.strip() for text in texts[SOURCE] or []):
        raise DataError("no line with text: there is nothing to look at", file=_named(files[SOURCE]))
    inputs.note_changes()
    return Chosen(kept, texts, files, total if wanted is None else len(wanted))


def _read(lines: Iterable[str], wanted: set[int] | None, most: int) -> tuple[list[str], int]:
    """The wanted lines, or the first `most`, and how many lines there are."""
    found: list[str] = []
    count = 0
    for count, text in enumerate(lines, 1):
        if count <= most if wanted is None else count in wanted:
            found.append(text)
    return found, count


def _require_parallel(files: Mapping[str, str | None], totals: Mapping[str, int]) -> None:
    for name, total in totals.items():
        if total != totals[SOURCE]:
            raise DataError(
                f"{plural(total, 'line')}, but {_named(files[SOURCE])} has {totals[SOURCE]:,}",
                file=_named(files[name]),
                hint="the files must be parallel line by line",
            )


def _named(path: str | None) -> str:
    return "stdin" if path == STDIN else str(path)


def parse_lines(text: str) -> list[int]:
    """`3,7-9` → [3, 7, 8, 9]: ascending, each once. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (side.strip() for side in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends):
            raise UsageError(f"--lines {text!r} are no line numbers", hint="write numbers and ranges, such as 3,7-9")
        low, high = map(int, ends)
        if not 1 <= low <= high:
            raise UsageError(f"--lines {text!r}: {part.strip()!r} is no range of lines, which count from 1")
        if high - low >= 1_000_000:
            raise UsageError(f"--lines {text!r}: {part.strip()!r} are more than a page can show")
        found.update(range(low, high + 1))
    return sorted(found)
