"""Lines of a stream in windows: as many as have arrived, so that a filter is fast and yet prompt on a slow pipe."""

from __future__ import annotations

import io
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from phraseloom.text.lines import LineReport, read_blocks

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
