"""`phraseloom tokenize`: tokenise lines, or detokenise them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Annotated, Literal

import typer

STDIN = "-"


Method = Literal["moses", "jieba"]


def command(
    language: Annotated[
        str, typer.Option("-l", "--language", metavar="CODE", help="Language of the text, such as en, de, tr.")
    ],
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Text file (plain, .gz, .xz). The default, -, is standard input.")
    ] = STDIN,
    method: Annotated[Method, typer.Option(help="moses, or jieba for Chinese.")] = "moses",
    normalize: Annotated[bool, typer.Option("--normalize", help="Normalise punctuation first, as Moses does.")] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower case.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Detokenise: turn tokenised lines back into plain text.")
    ] = False,
) -> None:
    """Tokenise lines into words and punctuation, separated by single spaces: one line out per line in, on standard
    output.

    The result is that of tokenize, normalize and lowercase under text in a recipe. Unlike in Moses' scripts,
    characters are not escaped (' stays, and does not become &apos;). A blank line stays blank. --undo cannot
    restore upper case or what was normalised.

    Example: phraseloom tokenize -l de < train.de > train.tok.de

    Example: phraseloom tokenize -l de --undo train.tok.de > train.again.de
    """
    from phraseloom.errors import UsageError
    from phraseloom.options.text import TextConfig
    from phraseloom.text.normalize import Normaliser

    if undo and (normalize or lowercase):
        raise UsageError("--undo takes neither --normalize nor --lowercase: they cannot be undone")
    config = TextConfig(tokenize=method, normalize="moses" if normalize else "none", lowercase=lowercase)
    normaliser = Normaliser(config, language)
    _filter(text, normaliser.detokenise if undo else normaliser)


def _filter(text: str, change: Callable[[str], str]) -> None:
    """Print every changed line; blank lines become empty."""
    from phraseloom.errors import escape_controls
    from phraseloom.text.lines import LineReport, encode_lines, open_binary, read_blocks

    report = LineReport()
    name = "stdin" if text == STDIN else text
    with contextlib.nullcontext(sys.stdin.buffer) if text == STDIN else open_binary(text) as handle:
        for lines in read_blocks(handle, name=name, report=report):
            changed = [change(line) if line.strip() else "" for line in lines]
            sys.stdout.buffer.write(encode_lines(changed, file=name, before=report.lines - len(lines)))
            sys.stdout.buffer.flush()
    for change_note in report.changes():
        print(f"phraseloom tokenize: {escape_controls(name)}: {change_note}", file=sys.stderr)
