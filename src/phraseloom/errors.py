"""Every error that a user or a file can cause, as one tree; the command line prints them as one line.

PhraseloomError            exit 1   something went wrong that the user can fix
├── UsageError             exit 2   a wrong flag or combination of flags
│   └── ConfigError        exit 2   a recipe that cannot be read: key, value, file and line
├── DataError              exit 1   the content of a text or annotation file
├── FileProblem            exit 1   a path: missing, a folder, not readable, in the way, disk full
│   └── CorruptError       exit 1   a file that does not match its checksum or format
├── ModelError             exit 1   a model, vocabulary or checkpoint that does not fit
├── InterruptedRun         exit 3   stopped by a signal after saving; can be resumed
└── DivergedError          exit 4   training that cannot continue (non-finite, exploding)
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

__all__ = [
    "ConfigError",
    "CorruptError",
    "DataError",
    "DivergedError",
    "FileProblem",
    "InterruptedRun",
    "ModelError",
    "PhraseloomError",
    "UsageError",
    "escape_controls",
    "plural",
]


_BYTES = re.compile("[\udc80-\udcff]+")  # of a file name, as Python reads them where the locale does not decode them


def plural(number: int, noun: str) -> str:
    """A number with its noun: `1 line`, `1,204 lines`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escape_controls(text: str) -> str:
    """`text` with control characters escaped (`\\x1b`), so that a message cannot control a terminal.

    Spaces of all widths and joiners are text: French has no-break spaces, Persian has non-joiners. A file name in UTF-8 is
    text in every locale, also where Python reads its bytes as halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    text = _BYTES.sub(lambda run: run[0].encode("ascii", "surrogateescape").decode("utf-8", "surrogateescape"), text)
    return "".join(c if _is_text(c) else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _is_text(character: str) -> bool:
    return character.isprintable() or character in "\u200c\u200d" or unicodedata.category(character) == "Zs"


class PhraseloomError(Exception):
    """What went wrong, where (file, line), and what to do; always one line.

    `what`: the cause, with the offending value. `file`, `line` (from 1): the place. `hint`: how to fix it.
    """

    exit_code = 1

    def __init__(
        self, what: str, *, file: str | Path | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        self.what, self.file, self.line, self.hint = what, file, line, hint
        place = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(escape_controls(f"{place}{what}" + (f"; {hint}" if hint else "")))


class UsageError(PhraseloomError):
    """A wrong flag, or flags that exclude each other."""

    exit_code = 2


class ConfigError(UsageError):
    """A recipe or override that cannot be read."""


class DataError(PhraseloomError):
    """The content of a text or annotation file."""


class FileProblem(PhraseloomError):
    """A path that is missing, of the wrong kind, unreadable, in the way, or on a full disk."""


class CorruptError(FileProblem):
    """A file that does not match its checksum or its format."""


class ModelError(PhraseloomError):
    """A model, vocabulary or checkpoint that does not fit the request."""


class InterruptedRun(PhraseloomError):
    """A run that a signal stopped after its state was saved; the same command resumes it."""

    exit_code = 3


class DivergedError(PhraseloomError):
    """Training that cannot continue: non-finite or exploding values."""

    exit_code = 4
