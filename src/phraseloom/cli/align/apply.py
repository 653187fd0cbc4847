"""`phraseloom align apply`: align sentence pairs with a model of `align train`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import OutputFile
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import PairReader, same_length
from phraseloom.cli.streams import warn
from phraseloom.errors import UsageError
from phraseloom.text.lines import write_lines

if TYPE_CHECKING:
    from phraseloom.align.aligner import Aligner, Alignment, WordCoverage
    from phraseloom.analysis.alignment import AlignedPair

WINDOW = 8192  # sentence pairs aligned at a time
REASONS = {"blank": "a blank side", "long": "a side that is too long"}


def command(
    model: Annotated[Path, typer.Argument(help="A model file written by align train.", metavar="MODEL")],
    source: Annotated[
        Path | None,
        typer.Option(
            "-s", "--source", metavar="FILE", help="Source text. Default: standard input as SOURCE<tab>TARGET."
        ),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("-t", "--target", metavar="FILE", help="Its translation, line by line.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="forward, backward, or a method of align symmetrize. Default: "
            "grow-diag-final-and, or the direction of the model.",
        ),
    ] = None,
    scores: Annotated[
        bool,
        typer.Option(
            "--scores",
            help="Write i-j=p, where p is the posterior probability of the link (the mean of both directions).",
        ),
    ] = False,
    output: OutputFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Align the words of sentence pairs. The output is Pharaoh i-j links, one line per pair, in order.

    Words are separated by spaces and counted from 0. A pair with a blank side gives a blank line. The number of
    such pairs goes to standard error, and a warning if the model knows less than half of the first words of a side.

    Example: phraseloom align apply en-de.aligner -s test.en -t test.de > test.links
    """
    from phraseloom.align.aligner import WordCoverage, choose_method, load_aligner

    check_outputs({"-o": output}, inputs=[model, source, target], overwrite=overwrite)
    if (source is None) != (target is None):
        raise UsageError(
            "-s and -t go together", hint="without both, lines SOURCE<tab>TARGET are read from standard input"
        )
    aligner = load_aligner(model)
    choose_method(method, aligner.tables)
    if source is not None:
        same_length(source, target)
    pairs, left_out, coverage = PairReader(source, target), LeftOut(), WordCoverage(aligner)
    windows = _counted(pairs.windows(WINDOW), coverage)
    alignments = left_out.watch(aligned(aligner, windows, method, scores=scores))
    if output is not None:
        write_lines(output, (text_of(alignment, scores=scores) for window in alignments for alignment in window))
    else:
        for window in alignments:
            sys.stdout.write("".join(text_of(alignment, scores=scores) + "\n" for alignment in window))
            sys.stdout.flush()
    problem = coverage.problem()
    if problem is not None:
        warn("align", f"{model} {problem}; use a model of this pair of languages, for text tokenised like this")
    for text in left_out.warnings() + pairs.warnings():
        warn("align", text)


def _counted(
    windows: Iterable[tuple[list[str], list[str]]], coverage: WordCoverage
) -> Iterator[tuple[list[str], list[str]]]:
    """The windows; the words of the first one are counted."""
    for number, (sources, targets) in enumerate(windows):
        if number == 0:
            coverage.add(sources, targets)
        yield sources, targets


def aligned(
    aligner: Aligner,
    windows: Iterable[tuple[Sequence[str], Sequence[str]]],
    method: str | None,
    *,
    scores: bool = False,
) -> Iterator[list[Alignment]]:
    """The alignments of windows of source and target lines."""
    for sources, targets in windows:
        yield aligner.align(list(zip(sources, targets, strict=True)), method=method, weights=scores)


def text_of(alignment: Alignment | AlignedPair, *, scores: bool = False) -> str:
    """A line of output: `i-j` for each link, with `scores` `i-j=w`."""
    from phraseloom.align.links import format_links

    if not scores:
        return format_links(alignment.links)
    return " ".join(f"{s}-{t}={alignment.weights[s, t]:.4f}" for s, t in sorted(alignment.links))


class LeftOut:
    """Counts the pairs that could not be aligned."""

    def __init__(self) -> None:
        self.pairs, self.counts = 0, Counter[str]()

    def watch(self, windows: Iterable[list[Alignment]]) -> Iterator[list[Alignment]]:
        """Count the pairs in `windows` and pass them on."""
        for window in windows:
            self.pairs += len(window)
            self.counts.update(alignment.left_out for alignment in window if alignment.left_out)
            yield window

    def warnings(self) -> list[str]:
        """A sentence for each reason that occurred."""
        return [
            f"{self.counts[name]:,} of {self.pairs:,} pairs have {reason}: a blank line"
            for name, reason in REASONS.items()
            if self.counts[name]
        ]
