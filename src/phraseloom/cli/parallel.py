"""Parallel files of a command: line n of one belongs to line n of the other. They are read window by window."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from phraseloom.cli.streams import standard_input, windows
from phraseloom.errors import DataError, plural
from phraseloom.files import require_file, require_regular_file
from phraseloom.text.lines import PARALLEL, LineReport, count_lines, read_lines


@contextlib.contextmanager
def naming(what: str, file: str | Path | None, line: Callable[[int], int] = int) -> Iterator[None]:
    """Make errors about line n of `what` name line `line(n)` of `file`."""
    try:
        yield
    except DataError as error:
        if error.file != what:
            raise
        number = None if error.line is None else line(error.line)
        raise DataError(error.what, file=file, line=number, hint=error.hint) from error


class ParallelFile:
    """The lines of a file, one window at a time. `what`: a plural noun for them. Raises FileProblem if there is no file."""

    def __init__(self, path: Path, what: str, kind: str) -> None:
        self.path, self.what = require_file(path, kind), what
        self._lines, self._taken, self._before = read_lines(path), 0, 0

    def take(self, count: int) -> list[str]:
        """The next `count` lines. Raises DataError if there are fewer."""
        lines = list(islice(self._lines, count))
        if len(lines) != count:
            raise DataError(f"fewer {self.what} than input lines ({self._taken + len(lines)})", file=self.path)
        self._before, self._taken = self._taken, self._taken + count
        return lines

    def finish(self) -> None:
        """Raise DataError if more lines follow."""
        if next(self._lines, None) is not None:
            raise DataError(
                f"more {self.what} than input lines ({self._taken})",
                file=self.path,
                line=self._taken + 1,
                hint="the file must be parallel to the input, line by line",
            )

    def places(self) -> contextlib.AbstractContextManager[None]:
        """Make errors about the last window name the line in this file."""
        return naming(self.what, self.path, lambda line: self._before + line)


def same_length(first: Path, *others: Path | None) -> None:
    """Raise DataError unless all files have as many lines, which are counted, not decoded; FileProblem for a pipe."""
    for path in (first, *others):
        if path is not None:
            require_regular_file(path)
    count = count_lines(first)
    for other in others:
        if other is not None and count_lines(other) != count:
            raise DataError(f"{plural(count, 'line')}, but {other} has {count_lines(other)}", file=first, hint=PARALLEL)


class PairReader:
    """Sentence pairs of two files, or of lines SOURCE<tab>TARGET of standard input; `warnings` is for the end."""

    def __init__(self, source: Path | None, target: Path | None) -> None:
        self.source, self.target = source, target
        self._reports = LineReport(), LineReport()

    def windows(self, size: int) -> Iterator[tuple[list[str], list[str]]]:
        """Sources and targets of at most `size` pairs at a time. Raises DataError, FileProblem."""
        if self.source is None or self.target is None:
            yield from _of_stdin(size, self._reports[0])
            return
        files = zip((self.source, self.target), self._reports, strict=True)
        pairs = zip(*(read_lines(path, invalid="replace", report=report) for path, report in files), strict=True)
        while window := list(islice(pairs, size)):
            yield [s for s, _ in window], [t for _, t in window]

    def warnings(self) -> list[str]:
        """What reading changed."""
        first, second = self._reports
        return first.warnings(self.source or "input") + second.warnings(self.target or "input")


def _of_stdin(size: int, report: LineReport) -> Iterator[tuple[list[str], list[str]]]:
    before = 0
    for lines in windows(standard_input(), size, report=report):
        parts = [line.split("\t") for line in lines]
        bad = next((i for i, p in enumerate(parts) if len(p) != 2), None)
        if bad is not None:
            raise DataError(
                f"{plural(len(parts[bad]), 'tab-separated field')} instead of 2",
                file="stdin",
                line=before + bad + 1,
                hint="write SOURCE<tab>TARGET",
            )
        before += len(lines)
        yield [p[0] for p in parts], [p[1] for p in parts]
