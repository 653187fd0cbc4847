"""Input of the verbs for aligned text and phrase tables: lines of files or standard input, with reports of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.streams import lines_of, name_of, note
from phraseloom.errors import UsageError
from phraseloom.files import require_file
from phraseloom.replace import STDIN
from phraseloom.text.lines import LineReport

if TYPE_CHECKING:
    from phraseloom.phrases.extract import Lines

Source = Annotated[str, typer.Option("-s", "--source", metavar="FILE", help="Source text, one sentence per line.")]
Target = Annotated[
    str,
    typer.Option(
        "-t", "--target", metavar="FILE", help="Its translation, line by line, tokenised (words separated by spaces)."
    ),
]
LinkFile = Annotated[
    str,
    typer.Option("-a", "--links", metavar="FILE", help="Word links i-j (source word i, target word j, both from 0)."),
]
Table = Annotated[
    str,
    typer.Option(metavar="FILE", help="Phrases, one per line; further columns after a tab are ignored."),
]


class InputFiles:
    """The files of a command of `verb`, each with a report."""

    def __init__(self, verb: str = "phrases") -> None:
        self._verb = verb
        self._reports: dict[str, LineReport] = {}

    def lines(self, path: str) -> Lines:
        """The lines of a file (plain, .gz, .xz), or of standard input for -; invalid UTF-8 is an error."""
        from phraseloom.phrases.extract import Lines

        if path != STDIN:
            require_file(path, "text file")
        name = name_of(path)
        report = self._reports[name] = LineReport()
        return Lines(name, lines_of(path, report))

    def note_changes(self) -> None:
        """Print to standard error what reading changed."""
        for name, report in self._reports.items():
            for change in report.changes():
                note(self._verb, f"{name}: {change}")


def single_stdin(*paths: str | None) -> None:
    """Raise UsageError if more than one file is -."""

    if paths.count(STDIN) > 1:
        raise UsageError("only one of the files can be - (standard input)")
