"""The standard streams that a command may rely on, also where the caller closed some (`2>&-`, a daemon).

Python has None for a closed stream: `print(…, file=sys.stderr)` would then write warnings into standard output. And the next
file that is opened would get the number of the closed stream, so that a library's message could end up in it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

from phraseloom.errors import FileProblem


class _Closed(io.RawIOBase):
    """A stream that was closed before we began; the first use of it is an error."""

    def __init__(self, name: str) -> None:
        self._name, self._told = name, False

    def readable(self) -> bool:
        """Always true: the error comes from reading."""
        return True

    def writable(self) -> bool:
        """Always true: the error comes from writing."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises FileProblem."""
        raise FileProblem(f"{self._name} is closed", hint="open it, or let it be /dev/null")

    def write(self, data: Any) -> int:
        """Raises FileProblem; what comes after that goes nowhere, so that the interpreter can end in peace."""
        if not self._told:
            self._told = True
            raise FileProblem(f"{self._name} is closed", hint="open it, or let it be /dev/null")
        return len(data)


def replace_closed_streams() -> None:
    """Let nothing else get the number of a closed stream; using standard input or output is then an error, and what would
    go to standard error goes nowhere."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed("standard input")))
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Closed("standard output")))
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(os.devnull, "w"), errors="backslashreplace", write_through=True)


def silence(stream: object) -> None:
    """Point a stream that nobody can take any more to nowhere: the interpreter's last flush is then quiet."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except (AttributeError, OSError, ValueError):  # no real file behind it
        return
    os.dup2(nowhere, number)
    os.close(nowhere)
