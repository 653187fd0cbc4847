"""`phraseloom align symmetrize`: two alignments of the same text in, one out, line by line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from phraseloom.cli.streams import lines_of, name_of
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.replace import STDIN


def command(
    forward: Annotated[
        str,
        typer.Argument(metavar="FORWARD", help="Links i-j from the forward direction; - is stdin."),
    ],
    backward: Annotated[
        str, typer.Argument(metavar="BACKWARD", help="Links i-j from the backward direction; - is stdin.")
    ],
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="intersection, union, grow-diag, grow-diag-final or grow-diag-final-and, as in Moses."
        ),
    ] = "grow-diag-final-and",
    reverse_backward: Annotated[
        bool, typer.Option("--reverse-backward", help="BACKWARD has links j-i, with the target word first.")
    ] = False,
) -> None:
    """Symmetrise the alignments of two directions: one line out for each pair of lines in.

    Links are in Pharaoh format: i-j links source word i to target word j, both from 0. Both files have one line per
    sentence, blank if it has no links. FORWARD is what fast_align writes, BACKWARD is what it writes with -r. If
    you ran an aligner with the two languages exchanged, use --reverse-backward. The output is sorted by word.

    Example: phraseloom align symmetrize text.forward text.backward --method grow-diag > text.links
    """
    from itertools import zip_longest

    from phraseloom.align.links import METHODS, format_links, parse_links, symmetrize

    if method not in METHODS:
        raise UsageError(f"no symmetrisation {method!r}", hint=f"--method takes {', '.join(METHODS)}")
    if forward == backward == STDIN:
        raise UsageError("only one of FORWARD and BACKWARD can be - (standard input)")
    pairs = zip_longest(lines_of(forward), lines_of(backward))
    for line, (ahead_text, back_text) in enumerate(pairs, 1):
        if ahead_text is None or back_text is None:
            short, long = (forward, backward) if ahead_text is None else (backward, forward)
            raise DataError(
                f"ends after {plural(line - 1, 'line')}, but {name_of(long)} has more",
                file=name_of(short),
                hint="the files must be parallel, line by line",
            )
        ahead = parse_links(ahead_text, file=name_of(forward), line=line)
        back = parse_links(back_text, file=name_of(backward), line=line, reverse=reverse_backward)
        sys.stdout.write(format_links(symmetrize(ahead, back, method)) + "\n")
