"""`phraseloom report`: one page on one or more runs, with every number also as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.align.evaluate import Base, Format, Reverse
from phraseloom.cli.options import Device, ResampleSeed
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import first_sign, note
from phraseloom.errors import UsageError

if TYPE_CHECKING:
    from phraseloom.analysis.measurements import Material
    from phraseloom.report.run.parts import Part, ScoredOn
    from phraseloom.report.run.runs import System


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="RUN, NAME=RUN, or NAME=RUN,RUN for several seeds; the first is the baseline."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page, an .html file.")],
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the data of the page as JSON.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("-s", "--test-source", metavar="FILE", help="Test source text, which the runs translate."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("-r", "--reference", metavar="FILE", help="Their reference translations.")
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="NAME=FILE: translations of a system (FILE,FILE for "
            "several runs), instead of translating. Repeatable.",
        ),
    ] = None,
    trees: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Parse trees of the sources, for models that take phrases from trees."),
    ] = None,
    mwt: Annotated[
        Path | None,
        typer.Option(metavar="LINES", help="Also score these lines separately: a file of line numbers, one per line."),
    ] = None,
    contrastive: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Contrastive items as for analyse contrastive --items. Repeatable."),
    ] = None,
    bins: Annotated[str, typer.Option(metavar="EDGES", help="Upper edges of the distance bins.")] = "0-15",
    gold: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Gold links of the sources and their references.")
    ] = None,
    format: Format = "auto",
    base: Base = 0,
    reverse: Reverse = False,
    fertility_source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Source text, as for fertility evaluate.")
    ] = None,
    fertility_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="Fertilities of its words.")] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="NAME=FILE: JSON written by evaluate, analyse, align or fertility. Repeatable."
        ),
    ] = None,
    metrics: Annotated[str, typer.Option(metavar="NAMES", help="Comma-separated: bleu, chrf, ter.")] = "bleu,chrf",
    scores: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE,…",
            help="Scores of each sentence by another program, such as COMET: one number per "
            "line, a file for each file of --outputs, in their order. Repeatable.",
        ),
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of bootstrap resamples; 0 for no intervals.")
    ] = 1000,
    seed: ResampleSeed = 12345,
    most: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of pairs for entropy and activation, from the first.")
    ] = 500,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Heading of the page.")] = "Report on runs",
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Compare runs on one page: learning curves, scores with intervals and paired tests, attention, speed, recipes.

    The page shows everything that the runs contain, and everything that can be measured with the given texts. It
    ends with a list of what is missing. Models translate --test-source unless --outputs gives their translations.
    Runs given as NAME=RUN,RUN count as one system: means with deviations. The page needs no network and can be
    printed. docs/report.md describes the measurements.

    Example: phraseloom report runs/base phrases=runs/p1,runs/p2 -o report.html -s test.de -r test.en

    Example: phraseloom report runs/base -o report.html --add base=activation.json
    """
    from phraseloom.cli import report_input as inputs
    from phraseloom.files import atomic_write_json, atomic_write_text
    from phraseloom.report.run.page import report_page
    from phraseloom.report.run.parts import read_part
    from phraseloom.report.run.report import build
    from phraseloom.report.run.runs import parse_systems, read_system

    inputs.is_page(output)
    systems = parse_systems(runs)
    sources = [source, reference, trees, mwt, *(contrastive or []), gold, fertility_source, fertility_labels]
    sources += [Path(name.partition("=")[2]) for name in (add or [])]
    sources += inputs.places_of(systems, outputs or [])
    score_files = [Path(file) for text in scores or [] for file in text.partition("=")[2].split(",") if file]
    check_outputs({"-o": output, "--json": json}, inputs=[*sources, *score_files], overwrite=overwrite)
    first_sign("report", f"reading {', '.join(runs)}")
    files = inputs.parse_outputs(outputs or [], systems)
    named = inputs.parse_added(add or [])
    text = inputs.read_texts(source, reference, trees, gold, format=format, base=base, reverse=reverse)
    fertility = inputs.both(fertility_source, fertility_labels, "--fertility-source and --fertility-labels")
    items, edges = inputs.read_items(contrastive or [], bins)
    test = inputs.read_test(text, reference, mwt, metrics, bootstrap, seed)
    if files and test is None:
        raise UsageError("--outputs are scored against a reference", hint="give it with --reference")
    known = [read_system(system) for system in systems]
    for system in known:
        system["outputs"] = [str(path) for path in files.get(system["name"], ())]
    translations = inputs.read_outputs(files, text)
    if scores:
        test = inputs.with_scores(test, scores, files, inputs.translating(known, files, source))
    material = inputs.material(text, items, fertility, most)
    measured, lacks = _measure(systems, known, material, translations, device)
    parts = _parts(measured, translations, test, text, items, edges, lacks)
    parts += [read_part(name, path) for name, path in named]
    about = {
        "test sources": source,
        "references": reference,
        "gold links": gold,
        "lines with phrases": mwt,
        "trees": trees,
    }
    document = build(known, parts, lacks=lacks, about=inputs.files_with_checksums(about), title=title)
    if json is not None:
        atomic_write_json(json, document)
    atomic_write_text(output, report_page(document))


def _measure(
    systems: Sequence[System],
    known: Sequence[dict[str, Any]],
    material: Material,
    translations: dict[str, list[list[str]]],
    device: str,
) -> tuple[dict[str, dict[str, list[Any]]], list[dict[str, str | None]]]:
    """The measurements by kind and system, and what is missing. Runs without a model are left out."""
    from dataclasses import replace

    from phraseloom.cli.report_input import NO_TRANSLATION
    from phraseloom.report.run.parts import split_lacks
    from phraseloom.report.run.report import translates

    by_system: dict[str, list[dict[str, Any]]] = {}
    if material.is_empty:
        return {}, []
    from phraseloom.analysis.measurements import measure_model

    others: list[dict[str, str | None]] = []
    for system, facts in zip(systems, known, strict=True):
        if not translates(facts):
            others.append({"system": system.name, "what": "everything about translations", "why": NO_TRANSLATION})
        if not translates(facts) or not all(run["has_model"] for run in facts["runs"]):
            continue
        own = replace(material, translate=material.translate and system.name not in translations)
        if not own.is_empty:
            by_system[system.name] = [
                measure_model(folder, own, device=device, say=partial(note, "report")) for folder in system.folders
            ]
    measured, lacks = split_lacks(by_system)
    return measured, others + lacks


def _parts(
    measured: dict[str, dict[str, list[Any]]],
    translations: dict[str, list[list[str]]],
    test: ScoredOn | None,
    text: Any,
    items: Sequence[Any],
    edges: Sequence[int],
    lacks: list[dict[str, str | None]],
) -> list[Part]:
    from phraseloom.report.run import parts as forms

    translated = measured.get("translation", {})
    parts: list[Part] = []
    if test is not None:
        whole = {name: [run.lines for run in runs] for name, runs in translated.items()} | translations
        if whole:
            note("report", "scores")
            parts += forms.score_parts(whole, test)
    if translated:
        parts.append(forms.speed_part(translated, len(text.sources)))
    if "contrastive" in measured:
        name = ", ".join(dict.fromkeys(str(Path(item.file).name) for item in items))
        parts.append(forms.contrastive_part(measured["contrastive"], items, edges, name))
    return parts + forms.layer_parts(measured, text.gold_name, len(text.sources or []))
