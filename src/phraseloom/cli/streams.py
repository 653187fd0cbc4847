"""Standard streams that work even if the caller closed some (`2>&-`, a daemon), and windows of input lines.

In Python a closed stream is None: `print(…, file=sys.stderr)` would then write warnings to standard output. And the next file
to be opened would get the number of the closed stream, so that a message of a library could end up in it.

`windows` returns the lines that have arrived, so that a filter is fast and still prompt on a slow pipe.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from phraseloom.errors import FileProblem, escape_controls
from phraseloom.replace import STDIN
from phraseloom.text.lines import LineReport, open_binary, read_blocks, read_lines, read_stream


class _Closed(io.RawIOBase):
    """A stream that was closed before the start; its first use is an error."""

    def __init__(self, name: str) -> None:
        self._name, self._reported = name, False

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
        """Raises FileProblem once; later writes are discarded, so that the interpreter can exit quietly."""
        if not self._reported:
            self._reported = True
            raise FileProblem(f"{self._name} is closed", hint="open it, or let it be /dev/null")
        return len(data)


def replace_closed_streams() -> None:
    """Reserve the numbers of closed streams; using standard input or output is then an error, and standard error is
    discarded."""
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


def first_sign(verb: str, text: str) -> None:
    """Print on a terminal what begins now, because imports and loading take seconds; nothing goes to a log.

    Further processes of a training print nothing. The command continues if the terminal has gone.
    """
    if "PHRASELOOM_STORE_PORT" in os.environ or not sys.stderr.isatty():
        return
    with contextlib.suppress(OSError):
        print(f"phraseloom {verb}: {escape_controls(text)} …", file=sys.stderr, flush=True)


def note(verb: str, text: str) -> None:
    """Print a line to standard error."""
    print(f"phraseloom {verb}: {escape_controls(text)}", file=sys.stderr, flush=True)


def warn(verb: str, text: str) -> None:
    """Print a warning to standard error."""
    note(verb, f"warning: {text}")


def silence(stream: object) -> None:
    """Redirect a stream whose reader has gone to /dev/null, so that the final flush of the interpreter is quiet."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except (AttributeError, OSError, ValueError):  # no real file behind it
        return
    os.dup2(nowhere, number)
    os.close(nowhere)


def name_of(path: str) -> str:
    """The name of a file in messages; standard input (-) is `stdin`."""
    return "stdin" if path == STDIN else path


def opened(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """A file (plain, .gz, .xz) as a stream of bytes, or standard input for -, which stays open."""
    return contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else open_binary(path)


def lines_of(path: str, report: LineReport | None = None) -> Iterator[str]:
    """The lines of a file (plain, .gz, .xz), or of standard input for -; invalid UTF-8 is an error."""
    if path == STDIN:
        return read_stream(sys.stdin.buffer, invalid="stop", report=report)
    return read_lines(path, report=report)


GATHER_SECONDS = 0.2
READ_AHEAD = 4


def standard_input() -> IO[bytes]:
    """Standard input as an unbuffered binary stream of our own; closing it leaves `sys.stdin` alone."""
    try:
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    except (OSError, ValueError):
        return sys.stdin.buffer


def windows(
    stream: IO[bytes], size: int, *, seconds: float = GATHER_SECONDS, report: LineReport | None = None
) -> Iterator[list[str]]:
    """Lists of 1 to `size` lines in order: those that arrive within `seconds` of the first.

    Invalid UTF-8 is replaced and counted in `report`. A thread reads ahead by a few blocks, so memory stays bounded.
    Errors of the reader are raised here.
    """
    arrived: queue.Queue[Any] = queue.Queue(READ_AHEAD)

    def read() -> None:
        try:
            for block in read_blocks(stream, invalid="replace", report=report):
                arrived.put(block)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    threading.Thread(target=read, name="read-ahead", daemon=True).start()
    held: list[str] = []
    ended = False
    while not ended or held:
        deadline = time.monotonic() + seconds
        while not ended and len(held) < size:
            try:
                wait = None if not held else max(0.0, deadline - time.monotonic())
                block = arrived.get(timeout=wait)
            except queue.Empty:
                break
            if isinstance(block, BaseException):
                raise block
            if block is None:
                ended = True
                break
            if not held:
                deadline = time.monotonic() + seconds
            held += block
        if held:
            yield held[:size]
            del held[:size]
