"""`phraseloom align MODEL`: the word alignments that a translation model's attention gives to sentence pairs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.align.apply import text_of
from phraseloom.cli.align.evaluate import GoldForm, read_gold_text
from phraseloom.cli.options import (
    Device,
    Model,
    OutputFile,
    SourceText,
    TargetText,
    Trees,
    grouped,
    options_of,
    warn_without_tag,
)
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import naming
from phraseloom.cli.streams import warn
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import require_file
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import PARALLEL, LineReport, read_lines, write_lines

if TYPE_CHECKING:
    from phraseloom.analysis.alignment import AlignedPair, MeasuredAlignment
    from phraseloom.decoding.long_lines import CroppedLines
    from phraseloom.decoding.translator import Translator

SHOWN = 5


Select = Literal["auto"]


@options_of(
    DecodingConfig,
    only=("alignment_layer", "alignment_head", "alignment_method", "tags"),
    forms={
        "alignment_layer": {"names": ["--layer"]},
        "alignment_head": {"names": ["--head"], "show_default": "the model's setting; mean with --layer"},
        "alignment_method": {"names": ["--method"]},
    },
)
@grouped
def command(
    model: Model,
    source: SourceText,
    target: TargetText,
    *,
    options: dict[str, Any],
    trees: Trees = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write i-j=w, where w is the attention of target word j to source word i.")
    ] = False,
    output: OutputFile = None,
    select: Annotated[
        Select | None,
        typer.Option(help="auto: find the best layer, head and method on --gold, and store them in the model folder."),
    ] = None,
    gold: Annotated[Path | None, typer.Option(metavar="FILE", help="Gold links of the pairs, for --select.")] = None,
    form: GoldForm,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Align the words of sentence pairs by the attention of a translation model. The output is Pharaoh i-j links,
    one line per pair.

    The model decodes the given target (forced decoding). Words are separated by spaces and counted from 0. A blank
    side gives a blank line. The defaults for layer, head and method are the model's settings, as for translate
    --alignments. --select auto scores every layer, head, mean and maximum of heads, and method on gold links. It prints
    the five best and stores the best in the model folder.

    Example: phraseloom align runs/mine -s test.en -t test.de --layer 4 --method union > test.links

    Example: phraseloom align runs/mine -s dev.en -t dev.de --select auto --gold dev.talp --base 1
    """
    from phraseloom.decoding.translator import Translator

    check_outputs({"-o": output}, inputs=[model, source, target, trees, gold], overwrite=overwrite)
    if (select is None) != (gold is None):
        raise UsageError("--select auto and --gold go together", hint="phraseloom align evaluate scores links")
    if select is None and form != GoldForm():
        raise UsageError("--format, --base and --reverse are about --gold")
    if gold is not None:
        if options.keys() - {"tags"} or scores or output is not None:
            raise UsageError("--select finds layer, head and method, and writes no links", hint="align afterwards")
        _select(model, (source, target, gold, trees), form, device, options)
        return
    translator = Translator.from_pretrained(model, device=device, **options)
    translator.require_trees(trees is not None)
    warn_without_tag("align", {model: translator})
    _align(translator, source, target, trees, scores=scores, output=output)


def _align(
    translator: Translator, source: Path, target: Path, trees: Path | None, *, scores: bool, output: Path | None
) -> None:
    """Print the links of two files, or write them to a file that appears whole."""
    from phraseloom.analysis.attention import cross_structures
    from phraseloom.decoding.alignment import choose
    from phraseloom.decoding.long_lines import CroppedLines

    choose(translator.config, cross_structures(translator.model))
    reports, cropped = (LineReport(), LineReport()), CroppedLines("pair")
    lines = (
        text_of(pair, scores=scores) for pair in _noted(_aligned(translator, source, target, trees, reports), cropped)
    )
    if output is None:
        for line in lines:
            sys.stdout.write(line + "\n")
    else:
        write_lines(output, lines)
    for text in (*cropped.warnings(translator.config), *reports[0].warnings(source), *reports[1].warnings(target)):
        warn("align", text)


def _aligned(
    translator: Translator, source: Path, target: Path, trees: Path | None, reports: tuple[LineReport, LineReport]
) -> Iterator[AlignedPair]:
    """The alignment of each pair, a window of lines at a time."""
    from phraseloom.analysis.alignment import align_pairs
    from phraseloom.cli.parallel import ParallelFile

    beside = None if trees is None else ParallelFile(trees, "trees", "tree file")
    both = [
        read_lines(path, invalid="replace", report=report)
        for path, report in zip((source, target), reports, strict=True)
    ]
    before = 0
    while sources := list(islice(both[0], translator.config.window)):
        targets = list(islice(both[1], len(sources)))
        if len(targets) < len(sources):
            raise DataError(
                f"{plural(before + len(targets), 'line')}, but {source} has more", file=target, hint=PARALLEL
            )
        of_sources = None if beside is None else beside.take(len(sources))
        with contextlib.nullcontext() if beside is None else beside.places():
            pairs = align_pairs(
                translator, sources, targets, trees=of_sources, files=(source, target), first_line=before + 1
            )
            yield from pairs
        before += len(sources)
    if next(both[1], None) is not None:
        raise DataError(f"more than {plural(before, 'line')}, but {source} has no more", file=target, hint=PARALLEL)
    if beside is not None:
        beside.finish()


def _noted(pairs: Iterator[AlignedPair], cropped: CroppedLines) -> Iterator[AlignedPair]:
    """Count the cropped pairs and pass all on."""
    for pair in pairs:
        cropped.note(pair.cropped)
        yield pair


def _select(
    model: Path, files: tuple[Path, Path, Path, Path | None], form: GoldForm, device: str, options: dict[str, Any]
) -> None:
    """Print the best settings on gold links and write the best of them into the model folder."""
    from phraseloom.analysis.alignment import measure, ranked, remember
    from phraseloom.decoding.long_lines import CroppedLines
    from phraseloom.decoding.translator import Translator
    from phraseloom.report.markup import terminal

    source, target, gold, trees = files
    for path in (source, target, gold):
        if not require_file(path, "text file").is_file():
            raise UsageError("--select stores the checksum of this file, so it cannot be a pipe", file=path)
    translator = Translator.from_pretrained(model, device=device, **options)
    warn_without_tag("align", {model: translator})
    text = read_gold_text(*files, form, [translator.tokenizer])
    cropped = CroppedLines("pair")
    with naming("trees", trees):
        settings = ranked(
            measure(
                translator,
                text.sources,
                text.targets,
                text.gold,
                trees=text.trees,
                files=(source, target),
                cropped=cropped,
            )
        )
    for warning in cropped.warnings(translator.config):
        warn("align", f"{warning}; gold links there count as missed")
    rows = [_row(setting) for setting in settings[:SHOWN]]
    print(f"{plural(len(text.gold), 'sentence')}, {len(settings):,} settings; the best:\n")
    print(terminal(["layer", "head", "method", "AER", "precision", "recall", "links"], rows))
    folder = remember(model, settings[0], source=source, target=target, gold=gold)
    print(f"\nstored in {folder}")


def _row(setting: MeasuredAlignment) -> list[object]:
    score = setting.score
    percents = [100 * value for value in (score.aer, score.precision, score.recall)]
    return [str(setting.layer), str(setting.head or "mean"), setting.method, *percents, score.links]
