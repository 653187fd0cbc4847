"""`phraseloom analyse phenomena`: how often translations of the built-in world get each of its phenomena right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import Resamples, ResampleSeed, TableForm, once, rising_numbers
from phraseloom.cli.streams import warn
from phraseloom.files import require_file
from phraseloom.text.lines import read_lines

if TYPE_CHECKING:
    from phraseloom.results import PhenomenonAccuracy, SystemAccuracy


def command(
    world: Annotated[Path, typer.Argument(metavar="WORLD", help="A folder that phraseloom world wrote.")],
    outputs: Annotated[
        list[Path],
        typer.Argument(metavar="OUTPUT", help="Translations of the split, line by line; the first is the baseline."),
    ],
    split: Annotated[str, typer.Option(help="test, valid, challenge-idioms, challenge-long, train.")] = "test",
    by_frequency: Annotated[
        str | None,
        typer.Option(metavar="EDGES", help="Also group by the phrase's frequency in training: edges such as 1,10,50."),
    ] = None,
    bootstrap: Resamples = 1000,
    seed: ResampleSeed = 12345,
    output: TableForm = "table",
) -> None:
    """Print the accuracy of translations of the built-in world on idioms, compounds and all its other phenomena.

    An instance is right if the translation contains its gold words, in the right order and form (docs/world.md).
    Accuracies have 95 % intervals (Wilson). Each system is compared with the first: the difference with its 95 %
    bootstrap interval over sentences, and the exact McNemar test.

    Example: phraseloom analyse phenomena worlds/small base.de phrases.de --split test
    """
    from phraseloom import results
    from phraseloom.analysis.gold import read_world
    from phraseloom.analysis.phenomena import compare_systems
    from phraseloom.metrics.compare import few_sentences

    once(outputs)
    edges = [] if by_frequency is None else rising_numbers(by_frequency, "--by-frequency", "such as 1,10,50")
    for path in outputs:
        require_file(path, "translation")
    truth = read_world(world, split, edges=edges)
    systems = {str(path): list(read_lines(path, invalid="stop")) for path in outputs}
    phenomena = compare_systems(truth, systems, samples=bootstrap, seed=seed)
    options = {"world": str(world), "split": split, "sentences": len(truth.gold), "bootstrap": bootstrap, "seed": seed}
    result = results.PhenomenaResult.model_validate({**options, "phenomena": phenomena})
    for group in result.phenomena if len(outputs) > 1 else ():
        if few := few_sentences(group.sentences or 0):
            warn("analyse", f"{group.phenomenon}: {few}")
    if output == "json":
        print(results.line(result))
    else:
        print(_table(result.phenomena, several=len(outputs) > 1, markdown=output == "markdown"))


def _table(groups: Sequence[PhenomenonAccuracy], *, several: bool, markdown: bool) -> str:
    from phraseloom.report import markup as tables

    headers = ["phenomenon", "instances", "system", "right %", "95 %", "sentences exact %"]
    headers += ["difference", "95 %", "won:lost", "p"] if several else []
    rows: list[list[object]] = []
    for group in groups:
        for number, entry in enumerate(group.systems):
            low, high = (f"{100 * bound:.1f}" for bound in entry.interval)
            row: list[object] = [None, None] if number else [group.phenomenon, group.instances]
            row += [
                entry.system,
                f"{100 * entry.accuracy:.1f}",
                f"{low} … {high}",
                f"{100 * (entry.exact_sentences or 0):.1f}",
            ]
            if several:
                row += [None] * 4 if not number else _comparison(entry)
            rows.append(row)
    return (tables.markdown if markdown else tables.terminal)(headers, rows)


def _comparison(entry: SystemAccuracy) -> list[object]:
    from phraseloom.report.markup import p_text

    assert entry.difference is not None and entry.difference_interval is not None and entry.p is not None
    low, high = (f"{100 * bound:+.1f}" for bound in entry.difference_interval)
    return [f"{100 * entry.difference:+.1f}", f"{low} … {high}", f"{entry.won}:{entry.lost}", p_text(entry.p)]
