"""`phraseloom phrases sample`: sample phrases of a system for human judgement, and count the judgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.phrases.files import InputFiles, single_stdin
from phraseloom.cli.streams import note
from phraseloom.errors import DataError, UsageError, plural

if TYPE_CHECKING:
    from phraseloom.phrases.sample import SampleCounts

SIZE, SEED = 100, 1

SampledSystems = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="NAME=FILE: translations as text, or as .jsonl from translate "
        "--output json. Phrases are drawn from the first system.",
    ),
]


def command(
    source: Annotated[str | None, typer.Option("-s", "--source", metavar="FILE", help="Source text.")] = None,
    reference: Annotated[
        str | None, typer.Option("-r", "--reference", metavar="FILE", help="Its translation, line by line.")
    ] = None,
    system: SampledSystems = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Look for these phrases in the first system's words, instead of joined tokens."
        ),
    ] = None,
    size: Annotated[int, typer.Option("-n", "--size", metavar="N", min=1, help="Number of phrases to draw.")] = SIZE,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the draw.")] = SEED,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="The sheet to write.")] = None,
    overwrite: Overwrite = False,
    tally: Annotated[
        str | None,
        typer.Option(metavar="SHEET", help="Count the judgements on a completed sheet and print the result."),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="With --tally: also write the counts to a file as JSON."),
    ] = None,
) -> None:
    """Sample phrases that a system wrote and make a sheet for human judgements; --tally counts the judgements.

    The sheet is a tab-separated table with one row per phrase. Judges fill in the category (CN compound noun, VP
    verb phrase, CO collocation, other) and, for each system, correct (1 or 0). The sheet already says whether the
    reference and the other systems have the phrase.

    Example: phraseloom phrases sample -s test.de -r test.en --system new=new.jsonl --system base=base.en -o
    sheet.tsv

    Example: phraseloom phrases sample --tally sheet.tsv
    """

    if tally is not None:
        if any((source, reference, system, table, output)) or (size, seed) != (SIZE, SEED):
            raise UsageError("--tally takes nothing but a sheet, --json and --overwrite")
        check_outputs({"--json": json_file}, inputs=[tally], overwrite=overwrite)
        _tally(tally, json_file)
        return
    required = {"-s FILE": source, "-r FILE": reference, "--system NAME=FILE": system, "-o FILE": output}
    missing = [name for name, value in required.items() if not value]
    if missing or source is None or reference is None or output is None:
        raise UsageError(
            f"a sheet needs {', '.join(missing)}", hint="to count the judgements of one, give --tally SHEET"
        )
    if json_file is not None:
        raise UsageError("--json is for --tally")
    files = _systems(system or [])
    single_stdin(source, reference, table, *files.values())
    check_outputs({"-o": output}, inputs=[source, reference, table, *files.values()], overwrite=overwrite)
    _draw(source, reference, files, table, size, seed, output)


def _systems(arguments: list[str]) -> dict[str, str]:
    """File by name."""

    files: dict[str, str] = {}
    for text in arguments:
        name, equals, file = text.partition("=")
        name = name.strip()
        if not (name and equals and file) or not name.isprintable():
            raise UsageError(f"--system {text}: not NAME=FILE", hint="such as --system new=new.en")
        if name in files:
            raise UsageError(f"two systems are called {name}")
        files[name] = file
    return files


def _draw(
    source: str, reference: str, systems: dict[str, str], table: str | None, size: int, seed: int, output: str
) -> None:
    from phraseloom.phrases.sample import draw, generated, write_sheet
    from phraseloom.phrases.segmenters import index_phrases, read_phrases

    phrases = None if table is None else index_phrases(read_phrases(table))
    inputs = InputFiles()
    texts = [inputs.lines(path) for path in (source, reference, *systems.values())]
    drawn, counts = draw(generated(texts[0], texts[1], texts[2:], phrases), size, seed)
    if not drawn:
        first = next(iter(systems.values()))
        what = "phrases of the table" if table else "tokens of joined words, such as quality_of_life"
        hint = None if table else "give translate's --output json of a model with phrases, or --table FILE"
        raise DataError(f"no {what} in {plural(counts.lines, 'line')}", file=first, hint=hint)
    write_sheet(output, drawn, list(systems))
    inputs.note_changes()
    note("phrases", _summary(counts, len(drawn)))


def _summary(counts: SampleCounts, drawn: int) -> str:
    from phraseloom.phrases.sample import FOUND

    shares = ", ".join(f"{kind} {counts.in_reference[kind] / counts.phrases:.1%}" for kind in FOUND)
    return (
        f"{plural(counts.lines, 'line')}, {counts.with_phrase:,} with a phrase; {plural(counts.phrases, 'phrase')}, "
        f"{len(counts.different):,} different; in the reference: {shares}; {drawn:,} drawn"
    )


def _tally(sheet: str, json_file: str | None) -> None:
    from phraseloom import results
    from phraseloom.phrases.sample import read_sheet
    from phraseloom.report.phrase_sample import render, tally

    result = tally(read_sheet(sheet))
    print(render(result), end="")
    if json_file is not None:
        results.write(json_file, result)
