"""`phraseloom align train`: a word alignment model of parallel text, and the links of that text; or links by other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phraseloom.cli.options import SourceText, TargetText, grouped
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import PairReader, same_length
from phraseloom.cli.streams import first_sign, note
from phraseloom.errors import UsageError, plural
from phraseloom.files import disk
from phraseloom.text.lines import LineReport, read_lines, write_lines

if TYPE_CHECKING:
    from phraseloom.align.aligner import Aligner
    from phraseloom.align.ibm import BitextCounts, IBMProgress, IBMSettings


# Options that say how to train a model, and where to write it.
OF_A_MODEL = (
    "output",
    "model",
    "iterations",
    "variational_bayes",
    "alpha",
    "p_null",
    "tension",
    "optimize_tension",
    "scratch",
)

Model = Literal["ibm1", "diagonal"]
Other = Literal["fast_align", "eflomal"]
Direction = Literal["forward", "backward", "both"]


@dataclass(frozen=True)
class LearningOptions:
    """How an aligner is learned; with an external program, only the direction, case and lengths count."""

    model: Annotated[Model, typer.Option(help="IBM model 1, without or with a diagonal prior.")] = "diagonal"
    direction: Annotated[
        Direction, typer.Option(help="forward: link each target word to one source word; backward: the reverse.")
    ] = "both"
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of expectation maximisation.")] = 5
    variational_bayes: Annotated[bool, typer.Option(help="Prefer few translations of each word.")] = True
    alpha: Annotated[
        float,
        typer.Option(help="The Dirichlet prior of --variational-bayes. A smaller value prefers fewer translations."),
    ] = 0.01
    p_null: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Prior probability of no link. Default: 0.08; for ibm1, 1 / (words + 1). 0: always a link.",
        ),
    ] = None
    tension: Annotated[float, typer.Option(help="How strongly diagonal prefers the diagonal, 0.1 to 14.")] = 4.0
    optimize_tension: Annotated[
        bool, typer.Option("--optimize-tension", help="Fit the tension to the text; --tension is the initial value.")
    ] = False
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False
    max_words: Annotated[int, typer.Option(min=1, help="Do not learn from pairs with a longer side.")] = 200

    @property
    def directions(self) -> tuple[str, ...]:
        """Those to learn."""
        from phraseloom.align.ibm import DIRECTIONS

        return DIRECTIONS if self.direction == "both" else (self.direction,)

    def settings(self) -> IBMSettings:
        """The settings of one direction. Raises UsageError."""
        from phraseloom.align.ibm import IBMSettings

        return IBMSettings(
            self.model,
            self.iterations,
            self.variational_bayes,
            self.alpha,
            self.p_null,
            self.tension,
            self.optimize_tension,
        )

    def learn(self, lines: Iterable[tuple[str, str]], jobs: int, scratch: Path | None) -> tuple[Aligner, BitextCounts]:
        """An aligner of these sentence pairs, and how many it was learned from; `scratch`: see the option."""
        from phraseloom.align.aligner import learn_aligner
        from phraseloom.align.ibm import read_bitext

        with _scratch(scratch) as folder:
            bitext = read_bitext(lines, lowercase=self.lowercase, max_words=self.max_words, folder=folder)
            aligner = learn_aligner(
                bitext,
                self.settings(),
                directions=self.directions,
                jobs=jobs,
                lowercase=self.lowercase,
                report=partial(_tell, self.iterations),
                folder=folder,
            )
            counted = bitext.counted
            del bitext  # its files are removed here
        return aligner, counted


ModelFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="The model to write; not used with --with.")
]
LinkFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the links of the training text, as align apply does."),
]
Jobs = Annotated[int, typer.Option(min=1, max=2, help="2: train both directions in parallel. The result is the same.")]
Scratch = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Keep the sentences in temporary files there, not in memory. The result is the same."
    ),
]
OtherProgram = Annotated[
    Other | None,
    typer.Option(
        "--with", help="Write --links with this external program, which must be installed. No model is written."
    ),
]
OtherOptions = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Options for the external program. Default: -d -o -v for fast_align, none for others."
    ),
]


@grouped
def command(
    context: typer.Context,
    source: SourceText,
    target: TargetText,
    output: ModelFile = None,
    *,
    learning: LearningOptions,
    links: LinkFile = None,
    method: Annotated[str | None, typer.Option(metavar="NAME", help="How to make --links; see align apply.")] = None,
    jobs: Jobs = 1,
    scratch: Scratch = None,
    overwrite: Overwrite = False,
    other: OtherProgram = None,
    with_options: OtherOptions = None,
) -> None:
    """Train a word aligner from parallel text; nothing else is needed.

    Words are separated by spaces, so tokenise first. Pairs with a blank side are skipped. Memory: 4 bytes for each
    pair of words of each sentence pair, or the same on disk with --scratch, and about 100 bytes for each distinct pair
    of words (docs/alignment.md).

    Example: phraseloom align train -s train.en -t train.de -o en-de.aligner --links train.links

    Example: phraseloom align train -s train.en -t train.de --with eflomal --links train.links
    """
    from phraseloom.align.aligner import choose_method, save_aligner

    check_outputs({"-o": output, "--links": links}, inputs=[source, target], overwrite=overwrite)
    first_sign("align train", f"reading {source} and {target}")
    settings = learning.settings()
    chosen = choose_method(method, learning.directions)
    if other is not None:
        _refuse_with(other, context, links)
    elif output is None:
        raise UsageError("-o FILE is missing", hint="it names the model to write")
    elif with_options is not None:
        raise UsageError("--with-options is for --with")
    if links is None and method is not None:
        raise UsageError("--method says how --links are made", hint="align apply takes it too")
    same_length(source, target)
    reports = [(path, LineReport()) for path in (source, target)]
    lines = zip(*(read_lines(path, report=report) for path, report in reports), strict=True)
    if other is not None:
        assert links is not None
        counted = _align_with(other, lines, links, chosen, with_options, learning, jobs)
        note("align", _left_out(counted, learning.max_words))
        _note_changes(reports)
        return
    assert output is not None
    aligner, counted = learning.learn(lines, jobs, scratch)
    save_aligner(output, aligner, notes={**asdict(settings), "pairs": counted.used})
    note("align", _summary(counted, aligner, learning.max_words))
    _note_changes(reports)
    if links is not None:
        _write_links(aligner, source, target, links, method)


def _note_changes(reports: Sequence[tuple[Path, LineReport]]) -> None:
    for path, report in dict(reports).items():
        for text in report.warnings(path):
            note("align", text)


@contextmanager
def _scratch(parent: Path | None) -> Iterator[Path | None]:
    """A temporary folder in `parent`, or None."""
    from tempfile import TemporaryDirectory

    from phraseloom.replace import system_errors

    if parent is None:
        yield None
        return
    with system_errors(parent):
        disk.mkdir(parent)
        with TemporaryDirectory(prefix="phraseloom-align-", dir=parent) as name:
            yield Path(name)


def _tell(iterations: int, now: IBMProgress) -> None:
    bits = -now.log_likelihood / math.log(2) / now.words
    tension = f", tension {now.tension:.2f}" if now.tension else ""
    note("align", f"{now.direction} {now.iteration} of {iterations}: {bits:.3f} bits a word{tension}")


def _summary(counted: BitextCounts, aligner: Aligner, max_words: int) -> str:
    sizes = ", ".join(f"{len(table.probabilities):,} {name}" for name, table in aligner.tables.items())
    return f"{_left_out(counted, max_words)}; word pairs kept: {sizes}"


def _left_out(counted: BitextCounts, max_words: int) -> str:
    reasons = [
        f"{number:,} {reason}"
        for number, reason in ((counted.blank, "with a blank side"), (counted.long, f"of more than {max_words} words"))
        if number
    ]
    return f"{plural(counted.used, 'pair')}; left out: {', '.join(reasons) or 'none'}"


def _refuse_with(other: Other, context: typer.Context, links: Path | None) -> None:
    """Raise UsageError for options of the own aligner beside --with, and where the links have no file."""

    if links is None:
        raise UsageError(f"--with {other} writes links only", hint="give --links FILE")
    for name in OF_A_MODEL:
        origin = context.get_parameter_source(name)
        if origin is not None and origin.name == "COMMANDLINE":
            flag = "-o" if name == "output" else f"--{name.replace('_', '-')}"
            hint = "leave it out; --with-options passes options to the program"
            raise UsageError(f"{flag} is for the model that is learned without --with", hint=hint)


def _align_with(
    name: str,
    lines: Iterable[tuple[str, str]],
    links: Path,
    method: str,
    options: str | None,
    learning: LearningOptions,
    jobs: int,
) -> BitextCounts:
    """Write the links of the program `name`; return a summary."""
    from tempfile import TemporaryDirectory

    from phraseloom.align.external import PROGRAMS, read_links, run_program, write_numbers
    from phraseloom.align.ibm import DIRECTIONS
    from phraseloom.align.links import format_links

    program = PROGRAMS[name]
    program.find()
    directions = (method,) if method in DIRECTIONS else DIRECTIONS
    with TemporaryDirectory(prefix="phraseloom-align-") as folder:
        text = write_numbers(lines, Path(folder) / "text", lowercase=learning.lowercase, max_words=learning.max_words)
        files = run_program(program, text, directions=directions, options=options, jobs=jobs)
        write_lines(links, map(format_links, read_links(program, text, files, method)))
    return text.counted


def _write_links(aligner: Aligner, source: Path, target: Path, links: Path, method: str | None) -> None:
    from phraseloom.cli.align.apply import WINDOW, LeftOut, aligned, text_of

    left_out = LeftOut()
    alignments = left_out.watch(aligned(aligner, PairReader(source, target).windows(WINDOW), method))
    write_lines(links, (text_of(pair) for window in alignments for pair in window))
    for text in left_out.warnings():
        note("align", f"{links}: {text}")
