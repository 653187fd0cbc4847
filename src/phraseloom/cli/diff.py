"""`phraseloom diff`: what is different in two runs, and the sentences that they translate most differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import Device, ResampleSeed
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.report_input import TestReference, TestTags, TestTrees
from phraseloom.cli.streams import note, warn
from phraseloom.errors import ModelError, UsageError
from phraseloom.files import atomic_write_json, atomic_write_text

if TYPE_CHECKING:
    from phraseloom.cli.report_input import ParallelText
    from phraseloom.report.diff.diff import ComparedSentences, RunComparison, SystemSide
    from phraseloom.report.run.parts import ScoresPart
    from phraseloom.report.run.runs import Missing, System, SystemFacts

ENDINGS = (".html", ".htm", ".json", ".txt")


By = Literal["chrf", "log-prob"]


ComparedText = Annotated[
    Path | None, typer.Option("-s", "--source", metavar="FILE", help="Source text, which both runs translate.")
]
GivenOutputs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE", help="NAME=FILE: translations of a run; NAME is the last part of its path. Repeatable."
    ),
]
RankBy = Annotated[By, typer.Option(help="Rank sentences by the difference in chrF, or in log P of the reference.")]
WithAlignments = Annotated[bool, typer.Option("--alignments", help="Add the phrase alignments of the translations.")]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="Write to a .html, .json or .txt file instead of the terminal."
    ),
]


def command(
    first: Annotated[str, typer.Argument(metavar="RUN1", help="RUN, NAME=RUN, or NAME=RUN,RUN for several seeds.")],
    second: Annotated[str, typer.Argument(metavar="RUN2", help="The other run, in the same form.")],
    source: ComparedText = None,
    reference: TestReference = None,
    outputs: GivenOutputs = None,
    trees: TestTrees = None,
    tags: TestTags = None,
    sentences: Annotated[int, typer.Option(metavar="N", min=0, help="Number of sentences to list.")] = 10,
    by: RankBy = "chrf",
    alignments: WithAlignments = False,
    bootstrap: Annotated[int, typer.Option(metavar="N", min=0, help="Number of resamples for the paired test.")] = 1000,
    seed: ResampleSeed = 12345,
    output: ReportFile = None,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Compare two runs: recipe, data, versions and learning curves; with texts, also their translations.

    Differences are the second minus the first. With --source, both runs translate the text, or --outputs gives
    their translations. With --reference, there are scores with a paired test, and a list of the sentences where the
    two differ most in sentence chrF or in the log-probability of the reference. Without it, the list has the
    sentences whose translations are least alike.

    Example: phraseloom diff runs/base runs/phrases -s test.de -r test.en --sentences 20 -o diff.html
    """
    from phraseloom.cli import report_input as inputs
    from phraseloom.report.diff.diff import build
    from phraseloom.report.run.runs import parse_systems, read_system

    if output is not None:
        inputs.is_page(output, ENDINGS)
    systems = parse_systems([first, second])
    sources = [source, reference, trees, *inputs.places_of(systems, outputs or [])]
    check_outputs({"-o": output}, inputs=sources, overwrite=overwrite)
    files = inputs.parse_outputs(outputs or [], systems)
    unknown = [name for name in files if name not in {s.name for s in systems}]
    if unknown:
        raise UsageError(
            f"--outputs of {unknown[0]}: no such run",
            hint=f"the runs are called {systems[0].name} and {systems[1].name}",
        )
    if files and len(files) == 1 and source is None:
        raise UsageError("--outputs of one run alone", hint="give those of both, or --source")
    text = inputs.read_texts(source, reference, trees)
    if by == "log-prob" and (text.sources is None or text.references is None):
        raise UsageError("--by log-prob is about the reference", hint="give --source and --reference")
    if text.sources is None and (reference is not None or trees is not None) and not files:
        raise UsageError("there are no translations to compare", hint="give --source, or --outputs of both")
    known = [read_system(system) for system in systems]
    translations = inputs.read_outputs(files, text)
    lacks: list[Missing] = []
    options = {"tags": tags or (), "alignments": alignments, "device": device, "say": partial(note, "diff")}
    sides = _sides(systems, known, text, translations, options, lacks)
    scores, differences = _compare(sides, text, by, sentences, (bootstrap, seed)) if sides else (None, None)
    if differences is not None and differences.by != by:
        why = next((lack.why for lack in lacks if lack.what == "log P"), "log P is not known for both")
        warn("diff", f"sentences are ranked by {differences.by}, not by {by}: {why}")
    _write(build(known, scores=scores, sentences=differences, lacks=lacks), output)


def _sides(
    systems: Sequence[System],
    known: Sequence[SystemFacts],
    text: ParallelText,
    translations: dict[str, list[list[str]]],
    options: Mapping[str, Any],
    lacks: list[Missing],
) -> list[SystemSide]:
    """Both systems on the texts; empty if there is nothing to compare or one of them has no translations.

    `options`: those of `translate_and_score`.
    """
    from phraseloom.report.diff.diff import SystemSide
    from phraseloom.report.run.runs import Missing

    if text.sources is None:
        return [SystemSide(system.name, translations[system.name]) for system in systems] if translations else []
    unable = {facts.name: why for facts in known if (why := _why_unable(facts)) is not None}
    for name, why in unable.items():
        lacks.append(Missing(system=name, what="log P" if name in translations else "translations", why=why))
    if unable.keys() - translations.keys():
        return []
    from phraseloom.analysis.measurements import GIVEN_LINES, UNKNOWN_PHRASES, translate_and_score

    sides, alignments = [], options["alignments"]
    for system in systems:
        if system.name in unable:
            sides.append(SystemSide(system.name, translations[system.name]))
            if alignments:
                lacks.append(Missing(system=system.name, what="phrase alignments", why=GIVEN_LINES))
            continue
        outputs = translations.get(system.name, [None] * len(system.folders))
        runs = []
        for folder, lines in zip(system.folders, outputs, strict=True):
            try:
                given = (folder, text.sources, text.references, lines)
                runs.append(translate_and_score(*given, trees=text.trees, **options))
            except ModelError as error:
                raise ModelError(error.what, file=folder, hint=error.hint) from error
        if alignments and runs[0].phrases is None:
            lacks.append(Missing(system=system.name, what="phrase alignments", why=runs[0].why))
        phrases, scored = runs[0].phrases, [run.log_probs for run in runs if run.log_probs is not None]
        if len(scored) < len(runs):
            lacks.append(Missing(system=system.name, what="log P", why=UNKNOWN_PHRASES))
            scored = []
        sides.append(SystemSide(system.name, [run.lines for run in runs], scored, phrases))
    return sides


def _why_unable(system: SystemFacts) -> str | None:
    """Why the models of a system neither translate nor score; None if they do."""
    from phraseloom.report.run.measured import NO_TRANSLATION

    if not all(run.has_model for run in system.runs):
        return "there is no checkpoint yet"
    return None if system.translates else NO_TRANSLATION


def _compare(
    sides: Sequence[SystemSide], text: ParallelText, by: str, most: int, bootstrap: tuple[int, int]
) -> tuple[ScoresPart | None, ComparedSentences]:
    from phraseloom.report.diff.diff import compare_sentences
    from phraseloom.report.run.measured import ScoredOn, score_parts

    scores = None
    if text.references is not None:
        name = "test" if text.reference_file is None else text.reference_file.name
        test = ScoredOn(text.references, text.sources, samples=bootstrap[0], seed=bootstrap[1], name=name)
        scores = score_parts({side.name: side.runs for side in sides}, test)[0]
    return scores, compare_sentences(sides, text.sources, text.references, by=by, most=most)


def _write(document: RunComparison, output: Path | None) -> None:
    from phraseloom.report.diff.page import diff_page
    from phraseloom.report.diff.text import render

    if output is None:
        print(render(document), end="")
    elif output.suffix.lower() == ".json":
        atomic_write_json(output, document.as_json())
    else:
        atomic_write_text(output, render(document) if output.suffix.lower() == ".txt" else diff_page(document))
