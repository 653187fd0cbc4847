"""`phraseloom analyse alignment`: how well the attention of each decoder layer aligns words, as in Figure 2 of paper 004."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.align.evaluate import GoldForm, read_gold_text
from phraseloom.cli.options import (
    BySentence,
    Device,
    ForcedTarget,
    Models,
    SourceText,
    Trees,
    grouped,
    once,
    options_of,
    require_json,
)
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import naming
from phraseloom.cli.streams import warn
from phraseloom.errors import plural
from phraseloom.metrics.ratio import plain
from phraseloom.options.decoding import AlignmentMethod, DecodingConfig

if TYPE_CHECKING:
    from phraseloom.analysis.alignment import MeasuredAlignment
    from phraseloom.cli.align.evaluate import GoldText


Heads = Literal["mean", "max"]
HEADS_IN_WORDS: dict[Heads, str] = {"mean": "mean of the heads", "max": "largest weight over the heads"}


@options_of(DecodingConfig, only=("tags",))
@grouped
def command(
    models: Models,
    source: SourceText,
    target: ForcedTarget,
    gold: Annotated[Path, typer.Option("-g", "--gold", metavar="FILE", help="Gold links of the pairs.")],
    *,
    form: GoldForm,
    method: Annotated[
        AlignmentMethod, typer.Option(help="How links are made from attention in the first table and in the plot.")
    ] = "union",
    heads: Annotated[
        Heads, typer.Option(help="How all heads of a layer are combined in the first table and in the plot.")
    ] = "mean",
    trees: Trees = None,
    options: dict[str, Any],
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the results of every layer, head and method as one JSON object."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot the AER of all heads together by layer: .png, .svg or .pdf."),
    ] = None,
    by_sentence: BySentence = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Print the alignment error rate, precision and recall of each decoder layer's attention against gold links, in
    per cent.

    The model decodes the given target (forced decoding). The first table shows, for each layer, the mean of its
    heads and the head with the lowest AER. The second shows the AER by every method: of the mean,
    of the largest weight over the heads, and of the best head. Paper 004 uses the mean of the heads and the union.
    --heads max uses the largest weight instead of the mean (its footnote 7). docs/alignment.md has the details.

    Example: phraseloom analyse alignment runs/base runs/noenc -s test.de -t test.en -g test.talp --plot aer.svg
    """
    once(models)
    check_outputs({"--json": json, "--plot": plot}, inputs=[*models, source, target, gold, trees], overwrite=overwrite)
    if plot is not None:
        from phraseloom.report.charts.picture import can_draw

        can_draw(plot, len(models))
    require_json(by_sentence, json is not None, "--json FILE")
    text, measured, cropped = _measure(models, (source, target, gold, trees), form, device, options)
    print("\n".join(_tables(measured, method, heads, len(text.gold))))
    if json is not None:
        from phraseloom import results

        files = {"source": str(source), "target": str(target), "gold": str(gold)}
        systems = [
            {"model": name, "settings": [plain(m.as_dict(), by_sentence) for m in of_model]}
            for name, of_model in measured.items()
        ]
        results.write(json, results.AlignmentResult.model_validate({**files, "systems": systems, "cropped": cropped}))
    if plot is not None:
        _draw(measured, method, heads, plot, f"{plural(len(text.gold), 'sentence')}, gold links of {gold.name}")


def _measure(
    models: Sequence[Path],
    files: tuple[Path, Path, Path, Path | None],
    form: GoldForm,
    device: str,
    options: dict[str, Any],
) -> tuple[GoldText, dict[str, list[MeasuredAlignment]], dict[str, int]]:
    """The text, and the scores and cropped pairs of every model on it; all models are loaded first. Print warnings about the
    cropped pairs.
    """
    from phraseloom.analysis.alignment import measure
    from phraseloom.analysis.attention import cross_structures
    from phraseloom.cli.analyse.models import load_models, warn_without_readers
    from phraseloom.decoding.long_lines import CroppedLines

    source, target, _, trees = files
    translators, readers = load_models(models, device, trees=trees is not None, **options)
    for translator in translators.values():
        cross_structures(translator.model)
    warn_without_readers(trees is not None, readers)
    text = read_gold_text(*files, form, [t.tokenizer for t in translators.values()])
    result, cropped = {}, {}
    for name, translator in translators.items():
        counted = CroppedLines("pair")
        with naming("trees", trees):
            of_sources = text.trees if name in readers else None
            result[name] = measure(
                translator,
                text.sources,
                text.targets,
                text.gold,
                trees=of_sources,
                files=(source, target),
                cropped=counted,
            )
        for warning in counted.warnings(translator.config):
            warn("analyse", f"{name}: {warning}; gold links there count as missed")
        cropped[name] = counted.cropped
    return text, result, cropped


def _tables(
    measured: Mapping[str, Sequence[MeasuredAlignment]], method: str, heads: Heads, sentences: int
) -> Iterator[str]:
    from phraseloom.decoding.alignment import METHODS
    from phraseloom.report.markup import terminal

    yield f"{plural(sentences, 'sentence')}; {method}, in per cent: {HEADS_IN_WORDS[heads]}, and the head with the lowest AER\n"
    headers = ["model", "layer", "AER", "precision", "recall", "head", "AER", "precision", "recall"]
    rows: list[list[Any]] = []
    for name, layer in _layers(measured):
        together, best = _together(measured[name], layer, method, heads), _best(measured[name], layer, method)
        rows.append([name, layer, *_percents(together), str(best.head), *_percents(best)])
    yield terminal(headers, rows)
    choices: list[tuple[str, Callable[[Sequence[MeasuredAlignment], int, str], MeasuredAlignment]]] = [
        (f"the {words}", partial(_together, heads=name)) for name, words in HEADS_IN_WORDS.items()
    ]
    for title, choose in [*choices, ("the head with the lowest AER (its number)", _best)]:
        yield f"\nAER by method: {title}\n"
        cells = [
            [name, layer, *(_aer(choose(measured[name], layer, m)) for m in METHODS)]
            for name, layer in _layers(measured)
        ]
        yield terminal(["model", "layer", *METHODS], cells)


def _layers(measured: Mapping[str, Sequence[MeasuredAlignment]]) -> Iterator[tuple[str, int]]:
    for name, of_model in measured.items():
        yield from ((name, layer) for layer in dict.fromkeys(m.layer for m in of_model))


def _together(measured: Sequence[MeasuredAlignment], layer: int, method: str, heads: Heads) -> MeasuredAlignment:
    head = None if heads == "mean" else heads
    return next(m for m in measured if (m.layer, m.head, m.method) == (layer, head, method))


def _best(measured: Sequence[MeasuredAlignment], layer: int, method: str) -> MeasuredAlignment:
    from phraseloom.analysis.alignment import ranked

    return ranked([m for m in measured if m.layer == layer and isinstance(m.head, int) and m.method == method])[0]


def _percents(measured: MeasuredAlignment) -> list[float]:
    return [100 * value for value in (measured.score.aer, measured.score.precision, measured.score.recall)]


def _aer(measured: MeasuredAlignment) -> str:
    return f"{100 * measured.score.aer:.2f}" + (f" ({measured.head})" if isinstance(measured.head, int) else "")


def _draw(
    measured: Mapping[str, Sequence[MeasuredAlignment]], method: str, heads: Heads, output: Path, about: str
) -> None:
    from phraseloom.report.charts.picture import draw
    from phraseloom.report.charts.places import LayerValues, by_layer, last_parts

    aer = {
        name: [100 * _together(of_model, layer, method, heads).score.aer for _, layer in _layers({name: of_model})]
        for name, of_model in measured.items()
    }
    names = last_parts(list(aer))
    styles = {name: i for i, name in enumerate(names.values())}
    systems = [LayerValues(names[name], values) for name, values in aer.items()]
    title = "Alignment error rate by decoder layer"
    links = method if "-to-" in method else f"{method} of both directions"
    note = f"cross-attention, {HEADS_IN_WORDS[heads]}; {links}\n{about}"
    draw([by_layer(title, systems, styles, y="alignment error rate (%)", digits=2)], output, title=title, note=note)
