"""A file parallel to the input lines of a command (`--prefixes`, `--trees`), read as far as these have come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from phraseloom.errors import DataError
from phraseloom.files import require_file
from phraseloom.text.lines import read_lines


class ParallelFile:
    """The lines of a file, a window at a time; `what` they are, in the plural. Raises FileProblem where there is none."""

    def __init__(self, path: Path, what: str, kind: str) -> None:
        self.path, self.what = require_file(path, kind), what
        self._lines, self._taken, self._before = read_lines(path), 0, 0

    def take(self, count: int) -> list[str]:
        """The next `count` lines. Raises DataError where there are fewer."""
        lines = list(islice(self._lines, count))
        if len(lines) != count:
            raise DataError(f"fewer {self.what} than input lines ({self._taken + len(lines)})", file=self.path)
        self._before, self._taken = self._taken, self._taken + count
        return lines

    def finish(self) -> None:
        """Raise DataError where more lines follow."""
        if next(self._lines, None) is not None:
            raise DataError(
                f"more {self.what} than input lines ({self._taken})",
                file=self.path,
                line=self._taken + 1,
                hint="the file must be parallel to the input line by line",
            )

    @contextlib.contextmanager
    def places(self) -> Iterator[None]:
        """Let an error about one of the lines that were taken last name its line of this file."""
        try:
            yield
        except DataError as error:
            if error.file != self.what or error.line is None:
                raise
            raise DataError(error.what, file=self.path, line=self._before + error.line, hint=error.hint) from error
