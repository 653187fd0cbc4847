"""Standard streams that the caller closed (`2>&-`): pointed to nowhere, before a file of ours gets their number."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["open_closed_streams", "silence"]


def open_closed_streams() -> None:
    """Open the null device in place of each closed standard stream.

    Otherwise the next file that is opened would get its number, and what a library prints would end up in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
            buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
            setattr(sys, name, io.TextIOWrapper(buffer, encoding="utf-8"))


def silence(stream: object) -> None:
    """Point a stream that nobody can take any more to nowhere: the interpreter's last flush is then quiet."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except (AttributeError, OSError, ValueError):  # no real file behind it
        return
    os.dup2(nowhere, number)
    os.close(nowhere)
