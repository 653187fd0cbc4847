"""`phraseloom join`: several lines joined to one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Annotated

import typer

from phraseloom.cli.options import TextOrStdin
from phraseloom.cli.streams import name_of, note, opened
from phraseloom.replace import STDIN
from phraseloom.text.lines import LineReport, encode_lines, group_sizes, join_lines, read_blocks

WRITTEN = 2000  # lines written at a time


def command(
    sizes: Annotated[
        str, typer.Argument(metavar="N", help="Lines to join into one: 2, or 2-3 for two and three in turn.")
    ],
    text: TextOrStdin = STDIN,
) -> None:
    """Join lines into longer ones: this makes a corpus of long sentences from short ones. Prints to standard output.

    Only the line numbers decide which lines are joined, so two parallel files stay parallel. The last output line may
    join fewer.

    Example: phraseloom join 2-3 train.en.gz > long.en

    Example: phraseloom join 2-3 train.de.gz > long.de
    """
    from itertools import islice

    low, high = group_sizes(sizes)
    report = LineReport()
    name = name_of(text)
    with opened(text) as handle:
        joined = join_lines(_lines(handle, name, report), low, high)
        while joined_lines := list(islice(joined, WRITTEN)):
            sys.stdout.buffer.write(encode_lines(joined_lines, file=name))
    sys.stdout.buffer.flush()
    for told in report.changes():
        note("join", f"{name}: {told}")


def _lines(handle: IO[bytes], name: str, report: LineReport) -> Iterator[str]:
    for block in read_blocks(handle, name=name, report=report):
        yield from block
