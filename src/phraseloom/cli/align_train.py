"""`phraseloom align train`: a word alignment model of parallel text, and the links of that text; or links by other programs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.errors import plural

if TYPE_CHECKING:
    from phraseloom.align.aligner import Aligner
    from phraseloom.align.bitext import Counted
    from phraseloom.align.ibm import Progress


# Options that say how a model is learned, and where it goes.
OF_A_MODEL = (
    "output",
    "model",
    "iterations",
    "variational_bayes",
    "alpha",
    "p_null",
    "tension",
    "optimize_tension",
)


class Model(StrEnum):
    """What `--model` takes."""

    ibm1 = "ibm1"
    diagonal = "diagonal"


class Other(StrEnum):
    """What `--with` takes."""

    fast_align = "fast_align"
    eflomal = "eflomal"


class Direction(StrEnum):
    """What `--direction` takes."""

    forward = "forward"
    backward = "backward"
    both = "both"


def command(
    context: typer.Context,
    source: Annotated[Path, typer.Option("-s", "--source", metavar="FILE", help="Source text, one sentence per line.")],
    target: Annotated[Path, typer.Option("-t", "--target", metavar="FILE", help="Its translation, line by line.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The model to write; none with --with.")
    ] = None,
    model: Annotated[Model, typer.Option(help="IBM model 1, or the same with a diagonal prior.")] = Model.diagonal,
    direction: Annotated[
        Direction, typer.Option(help="forward: each target word is linked to one source word; backward: the reverse.")
    ] = Direction.both,
    iterations: Annotated[int, typer.Option(min=1, help="Steps of expectation maximisation.")] = 5,
    variational_bayes: Annotated[bool, typer.Option(help="Prefer few translations of each word.")] = True,
    alpha: Annotated[float, typer.Option(help="The Dirichlet prior of --variational-bayes; less: fewer.")] = 0.01,
    p_null: Annotated[
        float | None,
        typer.Option(metavar="P", help="Prior of no link; default: 0.08, with ibm1 1 / (words + 1); 0: always a link."),
    ] = None,
    tension: Annotated[float, typer.Option(help="How strongly diagonal prefers the diagonal, 0.1 to 14.")] = 4.0,
    optimize_tension: Annotated[
        bool, typer.Option("--optimize-tension", help="Fit the tension to the text, from --tension on.")
    ] = False,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Take upper and lower case as the same.")] = False,
    max_words: Annotated[int, typer.Option(min=1, help="Pairs with a longer side are not learned from.")] = 200,
    links: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the links of the text, as align apply does.")
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="NAME", help="How --links are made; see align apply.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=2, help="2: both directions at once. Same result.")] = 1,
    overwrite: Overwrite = False,
    other: Annotated[
        Other | None,
        typer.Option("--with", help="Write --links by this program, which must be installed; no model is made."),
    ] = None,
    with_options: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the program is told; default: -d -o -v for fast_align, else nothing."),
    ] = None,
) -> None:
    """Learn to align words from parallel text, without any other knowledge.

    Words stand between blanks, so tokenise first. Pairs with a blank side are left out. Memory: 4 bytes for each pair of words
    of each sentence pair and about 100 for each distinct one (docs/alignment.md).

    Example: phraseloom align train -s train.en -t train.de -o en-de.aligner --links train.links

    Example: phraseloom align train -s train.en -t train.de --with eflomal --links train.links
    """
    from phraseloom.align.aligner import choose_method, learn_aligner
    from phraseloom.align.bitext import read_bitext
    from phraseloom.align.ibm import Settings
    from phraseloom.align.model_file import save_aligner
    from phraseloom.align.prior import DIRECTIONS
    from phraseloom.cli.score_input import _same_length
    from phraseloom.errors import UsageError
    from phraseloom.text.lines import read_lines

    check_outputs({"-o": output, "--links": links}, inputs=[source, target], overwrite=overwrite)
    settings = Settings(model.value, iterations, variational_bayes, alpha, p_null, tension, optimize_tension)
    directions = DIRECTIONS if direction is Direction.both else (direction.value,)
    chosen = choose_method(method, directions)
    if other is not None:
        _refuse_with(other, context, links)
    elif output is None:
        raise UsageError("-o FILE is missing", hint="it names the model to write")
    elif with_options is not None:
        raise UsageError("--with-options is for --with")
    if links is None and method is not None:
        raise UsageError("--method says how --links are made", hint="align apply takes it too")
    _same_length(source, target)
    lines = zip(read_lines(source), read_lines(target), strict=True)
    if other is not None:
        assert links is not None
        counted = _align_with(
            other.value, lines, links, chosen, with_options, lowercase=lowercase, max_words=max_words, jobs=jobs
        )
        _say(_left_out(counted, max_words))
        return
    assert output is not None
    bitext = read_bitext(lines, lowercase=lowercase, max_words=max_words)
    aligner = learn_aligner(
        bitext, settings, directions=directions, jobs=jobs, lowercase=lowercase, report=partial(_tell, iterations)
    )
    save_aligner(output, aligner, notes={**asdict(settings), "pairs": bitext.counted.used})
    _say(_summary(bitext.counted, aligner, max_words))
    if links is not None:
        _write_links(aligner, source, target, links, method)


def _tell(iterations: int, now: Progress) -> None:
    bits = -now.log_likelihood / math.log(2) / now.words
    tension = f", tension {now.tension:.2f}" if now.tension else ""
    _say(f"{now.direction} {now.iteration} of {iterations}: {bits:.3f} bits a word{tension}")


def _summary(counted: Counted, aligner: Aligner, max_words: int) -> str:
    kept = ", ".join(f"{len(table.probabilities):,} {name}" for name, table in aligner.tables.items())
    return f"{_left_out(counted, max_words)}; word pairs kept: {kept}"


def _left_out(counted: Counted, max_words: int) -> str:
    reasons = [
        f"{number:,} {reason}"
        for number, reason in ((counted.blank, "with a blank side"), (counted.long, f"of more than {max_words} words"))
        if number
    ]
    return f"{plural(counted.used, 'pair')}; left out: {', '.join(reasons) or 'none'}"


def _refuse_with(other: Other, context: typer.Context, links: Path | None) -> None:
    """Raise UsageError for options of the own aligner beside --with, and where the links have no file."""
    from phraseloom.errors import UsageError

    if links is None:
        raise UsageError(f"--with {other.value} writes links only", hint="give --links FILE")
    for name in OF_A_MODEL:
        found = context.get_parameter_source(name)
        if found is not None and found.name == "COMMANDLINE":
            flag = "-o" if name == "output" else f"--{name.replace('_', '-')}"
            hint = "leave it out; --with-options is what the program is told"
            raise UsageError(f"{flag} is for the model that is learned without --with", hint=hint)


def _align_with(
    name: str,
    lines: Iterable[tuple[str, str]],
    links: Path,
    method: str,
    options: str | None,
    *,
    lowercase: bool,
    max_words: int,
    jobs: int,
) -> Counted:
    """Write the links of the program `name`; what became of the pairs."""
    from tempfile import TemporaryDirectory

    from phraseloom.align.external import PROGRAMS, read_links, run_program, write_numbers
    from phraseloom.align.links import format_links
    from phraseloom.align.prior import DIRECTIONS
    from phraseloom.text.lines import write_lines

    program = PROGRAMS[name]
    program.find()
    directions = (method,) if method in DIRECTIONS else DIRECTIONS
    with TemporaryDirectory(prefix="phraseloom-align-") as folder:
        text = write_numbers(lines, Path(folder) / "text", lowercase=lowercase, max_words=max_words)
        files = run_program(program, text, directions=directions, options=options, jobs=jobs)
        write_lines(links, map(format_links, read_links(program, text, files, method)))
    return text.counted


def _write_links(aligner: Aligner, source: Path, target: Path, links: Path, method: str | None) -> None:
    from phraseloom.cli.align_apply import WINDOW, LeftOut, aligned, text_of
    from phraseloom.cli.score_input import _pairs
    from phraseloom.text.lines import LineReport, write_lines

    left_out = LeftOut()
    found = left_out.watch(aligned(aligner, _pairs(source, target, WINDOW, LineReport(), LineReport()), method))
    write_lines(links, (text_of(one) for window in found for one in window))
    for text in left_out.told():
        _say(f"{links}: {text}")


def _say(text: str) -> None:
    from phraseloom.errors import escape_controls

    print(f"phraseloom align: {escape_controls(text)}", file=sys.stderr)
