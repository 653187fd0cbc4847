"""`phraseloom analyse coverage`: how well the attention to phrase slots covers gold phrases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.options import (
    Device,
    ForcedTarget,
    Resamples,
    ResampleSeed,
    TableForm,
    Trees,
    options_of,
    warn_without_tag,
)
from phraseloom.cli.streams import warn
from phraseloom.errors import DataError, plural
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import read_parallel

if TYPE_CHECKING:
    from phraseloom.results import CoverageResult, LayerCoverage


@options_of(DecodingConfig, only=("tags",))
def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, run folder or checkpoint.")],
    source: Annotated[Path, typer.Option("-s", "--source", metavar="FILE", help="Source text.")],
    target: ForcedTarget,
    phrases: Annotated[
        Path, typer.Option(metavar="FILE", help="Gold phrases: s1:s2 spans of source words, or the world's .phrases.")
    ],
    alignments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Word links i-j, which give the target words of a phrase.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(metavar="KINDS", help="Only phrases of these kinds, such as idiom,compound.")
    ] = None,
    trees: Trees = None,
    bootstrap: Resamples = 1000,
    seed: ResampleSeed = 12345,
    output: TableForm = "table",
    *,
    options: dict[str, Any],
    device: Device = "cpu",
) -> None:
    """Print how much of the attention to phrase slots covers gold phrases, compared with uniform attention over
    these slots.

    Results are for encoder self-attention and cross-attention, by layer and order. They give the share of the mass
    that is exactly on, inside, across the border of, and outside gold phrases of two or more words; chance; and the
    lift (covered / chance). For each phrase they also tell whether the strongest slot is in it. Without
    --alignments, the target words of a phrase are those given in the phrase file.

    Example: phraseloom analyse coverage runs/12 -s test.en -t test.de --phrases test.phrases --alignments
    test.align
    """
    from phraseloom import results
    from phraseloom.analysis.coverage import measure, read_phrases
    from phraseloom.decoding.translator import Translator
    from phraseloom.metrics.compare import few_sentences

    lines = read_parallel(source, target, phrases, alignments, trees)
    requested = [k.strip() for k in (kinds or "").split(",") if k.strip()]
    links = lines[alignments] if alignments else None
    gold = read_phrases(lines[phrases], file=phrases, links=links, links_file=alignments, kinds=requested)
    if requested and not any(gold):
        raise DataError(f"no phrase of two and more source words is of the kind {', '.join(requested)}", file=phrases)
    translator = Translator.from_pretrained(model, device=device, **options)
    warn_without_tag("analyse", {model: translator})
    measured = measure(
        translator,
        lines[source],
        lines[target],
        gold,
        samples=bootstrap,
        seed=seed,
        trees=lines[trees] if trees else None,
        files=(source, target, phrases),
    )
    options = {"model": str(model), "bootstrap": bootstrap, "seed": seed}
    result = results.CoverageResult.model_validate({**options, **measured})
    if few := few_sentences(result.sentences):
        warn("analyse", few)
    print(results.line(result) if output == "json" else "\n".join(_text(result, markdown=output == "markdown")))


def _text(result: CoverageResult, *, markdown: bool) -> Iterator[str]:
    from phraseloom.report import markup as tables

    form = tables.markdown if markdown else tables.terminal
    left = result.left_out
    yield (
        f"{plural(result.phrases, 'phrase')} in {plural(result.sentences, 'sentence')}; left out: "
        f"{plural(left['without_phrases'], 'sentence')} without one, {left['too_long']:,} too long. "
        "% of the mass of each order; (chance).\n"
    )
    headers = ["attention", "layer", "order", "mass", "exact", "inside", "crossing", "covered", "lift", "95 %"]
    layers = [(use, layer) for use, of_use in result.uses.items() for layer in of_use]
    yield form(headers, [row for use, layer in layers for row in _mass_rows(use, layer)])
    rows = [row for use, layer in layers for row in _phrase_rows(use, layer)]
    if rows:
        yield "\nThe strongest phrase slot of each phrase: % in it for its own queries, for all others, by chance.\n"
        names = ["attention", "layer", "kind", "phrases", "own", "95 %", "others", "chance", "exact", "mass"]
        yield form(names, rows)


def _mass_rows(use: str, layer: LayerCoverage) -> Iterator[list[object]]:
    for entry in layer.orders:
        places = (entry.exact, entry.inside, entry.crossing)
        cells = [f"{_percent(c.share)} ({_percent(c.chance)})" for c in places]
        cells.append(f"{_percent(entry.covered.share.value)} ({_percent(entry.covered.chance)})")
        ends = entry.lift.interval and "{:.2f} … {:.2f}".format(*entry.lift.interval)
        mass = _percent(entry.mass.value)
        yield [use, layer.layer, str(entry.order), mass, *cells, entry.lift.value, ends]


def _phrase_rows(use: str, layer: LayerCoverage) -> Iterator[list[object]]:
    for kind, entry in layer.strongest.items():
        ends = " … ".join(_percent(bound) for bound in entry.hit.interval or ())
        values = [_percent(v) for v in (entry.others.value, entry.chance, entry.exact.value, entry.share.value)]
        yield [use, layer.layer, kind or "all", entry.phrases, _percent(entry.hit.value), ends, *values]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
