"""`phraseloom phrases parse`: English lines in, one parse tree per line out."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from phraseloom.cli.streams import note, standard_input, warn, windows
from phraseloom.errors import plural
from phraseloom.text.lines import LineReport, open_binary


def command(
    text: Annotated[
        Path | None, typer.Argument(help="Text file (plain, .gz, .xz). Default: standard input.", metavar="TEXT")
    ] = None,
    seconds: Annotated[
        int, typer.Option(min=1, help="Time limit for one sentence. A slower sentence is cut at punctuation.")
    ] = 2,
    max_words: Annotated[
        int, typer.Option(min=1, help="Longer lines are cut at punctuation and parsed in parts.")
    ] = 60,
    linkages: Annotated[
        int, typer.Option(min=1, help="Number of analyses to compare. Fewer is faster but less accurate.")
    ] = 1000,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, max=512, help="Number of parallel parsers. Default: one per core. The output does not depend on it."
        ),
    ] = None,
) -> None:
    """Parse English text with link-grammar: one Penn-style tree per line, in order.

    A line that is too long, or cannot be parsed in time, is cut after punctuation; one root joins the trees of its
    parts. If that fails too, the output line is blank, and prepare treats the sentence as flat. A blank line stays
    blank. Standard error shows the number of lines without a tree, and the first of them. You need the program
    link-parser (Debian: apt install link-grammar). Trees of another parser work as well: see docs/trees.md.

    Example: phraseloom phrases parse train.en > train.trees
    """
    from phraseloom.phrases.parser import LinkParser

    report = LineReport()
    begin = time.monotonic()
    with LinkParser(seconds=seconds, max_words=max_words, linkages=linkages, processes=processes) as parser:
        for lines in _windows(text, parser.window, report):
            sys.stdout.write("".join(tree + "\n" for tree in parser.parse(lines)))
            sys.stdout.flush()
    note("phrases", summary(parser.counts, time.monotonic() - begin))
    if parser.in_parts:
        flat = f", {plural(parser.flat_parts, 'part')} flat" if parser.flat_parts else ""
        message = f"{plural(parser.in_parts, 'line')} parsed in parts, cut at punctuation{flat}"
        note("phrases", message)
    if parser.first_flat is not None:
        number, why = parser.first_flat
        warn("phrases", f"the first line without a tree is line {number}: {why}")
    if report.invalid_utf8:
        first = report.first.get("invalid_utf8")
        bad = f"{plural(report.invalid_utf8, 'line')} held invalid UTF-8, replaced (first: line {first})"
        warn("phrases", bad)


def _windows(text: Path | None, size: int, report: LineReport) -> Iterator[list[str]]:
    if text is None:
        yield from windows(standard_input(), size, report=report)
        return
    with open_binary(text) as handle:
        yield from windows(handle, size, report=report)


def summary(counts: Counter[str], seconds: float) -> str:
    """A one-line summary of the parsed lines."""
    lines = sum(counts.values())
    without = {name: counts[name] for name in ("too long", "no parse", "lost") if counts[name]}
    missing = sum(without.values())
    parts = [f"{plural(lines, 'line')}, {plural(counts['parsed'], 'tree')}"]
    if counts["blank"]:
        parts.append(f"{plural(counts['blank'], 'blank line')}")
    share = missing / max(1, lines - counts["blank"])
    why = f" ({', '.join(f'{number:,} {name}' for name, number in without.items())})" if without else ""
    parts.append(f"{missing:,} without a tree, {share:.2%}{why}")
    return "; ".join(parts) + f"; {lines / max(seconds, 1e-9):,.0f} lines/s"
