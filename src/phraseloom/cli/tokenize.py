"""`phraseloom tokenize`: tokenise lines, or detokenise them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phraseloom.cli.options import TextOrStdin
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import name_of, note, opened, warn
from phraseloom.errors import UsageError
from phraseloom.files import require_file, require_regular_file
from phraseloom.replace import STDIN
from phraseloom.text.lines import LineReport, encode_lines, read_blocks, read_lines

if TYPE_CHECKING:
    from phraseloom.text.normalize import Normaliser
    from phraseloom.text.truecase import Truecaser

Method = Literal["moses", "jieba"]

LearnTruecaser = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Learn a truecaser on TEXT, write it to FILE, and truecase TEXT with it."),
]


def command(
    language: Annotated[
        str, typer.Option("-l", "--language", metavar="CODE", help="Language of the text, such as en, de, tr.")
    ],
    text: TextOrStdin = STDIN,
    method: Annotated[Method, typer.Option(help="moses, or jieba for Chinese.")] = "moses",
    normalize: Annotated[bool, typer.Option("--normalize", help="Normalise punctuation first, as Moses does.")] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower case.")] = False,
    truecaser: Annotated[Path | None, typer.Option(metavar="FILE", help="Truecase with this truecaser.")] = None,
    learn_truecaser: LearnTruecaser = None,
    undo_truecase: Annotated[
        bool, typer.Option("--undo-truecase", help="With --undo: begin every sentence in upper case.")
    ] = False,
    overwrite: Overwrite = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Detokenise: turn tokenised lines back into plain text.")
    ] = False,
) -> None:
    """Tokenise lines into words and punctuation, separated by single spaces: one line out per line in, on standard
    output.

    It does what the keys tokenize, normalize, lowercase and truecase of data.text do in a recipe. Unlike Moses'
    scripts, it does not escape characters: ' does not become &apos;. A blank line stays blank. --undo can restore
    neither upper case nor normalised punctuation.

    Example: phraseloom tokenize -l de < train.de > train.tok.de

    Example: phraseloom tokenize -l de train.de --learn-truecaser de.truecase > train.tc.de

    Example: phraseloom tokenize -l de --undo train.tok.de > train.again.de
    """
    from phraseloom.options.languages import is_chinese
    from phraseloom.options.text import TextConfig
    from phraseloom.text.normalize import Normaliser
    from phraseloom.text.truecase import Truecaser

    if undo and (normalize or lowercase):
        raise UsageError("--undo takes neither --normalize nor --lowercase: they cannot be undone")
    truecase = truecaser is not None or learn_truecaser is not None
    if (undo_truecase and not undo) or (undo and truecase):
        raise UsageError("--undo goes with --undo-truecase, and not with a truecaser")
    if (truecase and lowercase) or (truecaser is not None and learn_truecaser is not None):
        raise UsageError("one of --lowercase, --truecaser and --learn-truecaser")
    if learn_truecaser is not None and text == STDIN:
        raise UsageError("--learn-truecaser reads TEXT twice, so it cannot be standard input", hint="name a file")
    if method == "jieba" and not is_chinese(language):
        warn("tokenize", f"jieba is for Chinese; this text is {language}, so --method moses is used, as in a recipe")
    config = TextConfig(
        tokenize=method,
        normalize="moses" if normalize else "none",
        lowercase=lowercase,
        truecase=truecase or undo_truecase,
    )
    known = None if truecaser is None else Truecaser.load(require_file(truecaser, "truecaser"), language)
    if learn_truecaser is not None:
        check_outputs({"--learn-truecaser": learn_truecaser}, inputs=[Path(text)], overwrite=overwrite)
        known = _learned(text, Normaliser(config, language))
        known.save(learn_truecaser)
    normaliser = Normaliser(config, language, known)
    _filter(text, normaliser.detokenise if undo else normaliser)


def _learned(text: str, plain: Normaliser) -> Truecaser:
    """A truecaser that is learned from the lines of a file."""
    from phraseloom.text.truecase import learn_truecaser

    return learn_truecaser(
        (plain(line) for line in read_lines(require_regular_file(text)) if line.strip()), plain.language
    )


def _filter(text: str, change: Callable[[str], str]) -> None:
    """Print every changed line; blank lines become empty."""

    report = LineReport()
    name = name_of(text)
    with opened(text) as handle:
        for lines in read_blocks(handle, name=name, report=report):
            changed = [change(line) if line.strip() else "" for line in lines]
            sys.stdout.buffer.write(encode_lines(changed, file=name, before=report.lines - len(lines)))
            sys.stdout.buffer.flush()
    for change_note in report.changes():
        note("tokenize", f"{name}: {change_note}")
