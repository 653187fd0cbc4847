"""`phraseloom analyse entropy`: how spread the attention of each decoder layer is, as in Figure 1 of paper 004."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import BySentence, Device, Models, SourceText, Trees, once, options_of, require_json
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import naming
from phraseloom.cli.streams import warn
from phraseloom.errors import plural
from phraseloom.metrics.ratio import plain
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import read_parallel

if TYPE_CHECKING:
    from phraseloom.analysis.entropy import AttentionEntropy, Reading


Average = Literal["steps", "sentences"]


@options_of(DecodingConfig, only=("tags",))
def command(
    models: Models,
    source: SourceText,
    target: Annotated[
        Path | None,
        typer.Option(
            "-t",
            "--target",
            metavar="FILE",
            help="Its translation, for forced decoding. Default: each model's own output.",
        ),
    ] = None,
    *,
    trees: Trees = None,
    options: dict[str, Any],
    mean: Annotated[
        Average,
        typer.Option(
            help="How the table averages: over all steps, or first over "
            "the steps of a sentence and then over sentences."
        ),
    ] = "steps",
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all results, with each head, as one JSON object.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot the entropy over tokens by layer: .png, .svg or .pdf.")
    ] = None,
    by_sentence: BySentence = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Print the entropy of the cross-attention of each decoder layer, in nats. The row `all` is for the mean of all
    layers.

    Heads are averaged first. The steps are those of the model's own translation with its own settings, or of a
    given translation; EOS counts. `uniform` is the entropy of uniform attention, the maximum over tokens. Models
    with phrase slots have a second row, over slots. docs/analysis.md has the details.

    Example: phraseloom analyse entropy runs/base runs/noenc -s test.en --plot entropy.svg
    """
    once(models)
    check_outputs({"--json": json, "--plot": plot}, inputs=[*models, source, target, trees], overwrite=overwrite)
    if plot is not None:
        from phraseloom.report.charts.picture import can_draw

        can_draw(plot, len(models))
    require_json(by_sentence, json is not None, "--json FILE")
    measured = _measure(models, source, target, trees, device, options)
    print(_table(measured, mean))
    if json is not None:
        from phraseloom import results

        files = {"source": str(source), "target": None if target is None else str(target)}
        systems = [{"model": name, **plain(asdict(of_model), by_sentence)} for name, of_model in measured.items()]
        results.write(json, results.EntropyResult.model_validate({**files, "unit": "nats", "systems": systems}))
    if plot is not None:
        _draw(measured, mean, plot)


def _measure(
    models: Sequence[Path],
    source: Path,
    target: Path | None,
    trees: Path | None,
    device: str,
    options: dict[str, Any],
) -> dict[str, AttentionEntropy]:
    """Measure every model on the text; all models are loaded first. Print warnings about left-out and cropped lines."""
    from phraseloom.analysis.attention import cross_structures
    from phraseloom.analysis.entropy import attention_entropy
    from phraseloom.cli.analyse.models import load_models, warn_without_readers

    lines = read_parallel(source, target, trees)
    translators, readers = load_models(models, device, trees=trees is not None, **options)
    for translator in translators.values():
        cross_structures(translator.model)
    warn_without_readers(trees is not None, readers)
    of_target, measured = None if target is None else lines[target], {}
    for name, translator in translators.items():
        of_source = lines[trees] if trees is not None and name in readers else None
        with naming("trees", trees):
            measured[name] = attention_entropy(translator, lines[source], of_target, trees=of_source)
        _warn_of(measured[name], name, translator.config)
    return measured


def _warn_of(result: AttentionEntropy, name: str, config: DecodingConfig) -> None:
    from phraseloom.cli.analyse.models import limits

    for count, noun, text in (
        (result.blank, "line", "with a blank side: left out"),
        (result.cropped, "pair", f"of more than {limits(config)}: cropped"),
        (result.unfinished, "translation", "as long as allowed: the limit ended it, not the model"),
    ):
        if count:
            warn("analyse", f"{name}: {plural(count, noun)} {text}")


def _table(measured: Mapping[str, AttentionEntropy], mean: str) -> str:
    """A row per model and reading; no column `over` if no model has phrase slots."""
    from phraseloom.report.markup import terminal

    layers = max(len(of_model.tokens.layers) for of_model in measured.values())
    readings = any(of_model.slots is not None for of_model in measured.values())
    headers = ["model", *["over"] * readings, "steps", *map(str, range(1, layers + 1)), "all", "uniform"]
    rows = [
        [name, *[over] * readings, of_model.steps, *_cells(reading, layers, mean)]
        for name, of_model in measured.items()
        for over, reading in _readings(of_model)
    ]
    return terminal(headers, rows)


def _readings(result: AttentionEntropy) -> Iterator[tuple[str, Reading]]:
    yield "tokens", result.tokens
    if result.slots is not None:
        yield "slots", result.slots


def _cells(reading: Reading, layers: int, mean: str) -> list[str]:
    values = [f"{getattr(value, mean):.3f}" for value in reading.layers]
    ends = [f"{getattr(value, mean):.3f}" for value in (reading.whole, reading.uniform)]
    return [*values, *[""] * (layers - len(values)), *ends]


def _draw(measured: Mapping[str, AttentionEntropy], mean: str, output: Path) -> None:
    from phraseloom.report.charts.picture import draw
    from phraseloom.report.charts.places import LayerValues, by_layer, last_parts

    def value(of_model: Any) -> float:
        return float(getattr(of_model, mean))

    names = last_parts(list(measured))
    systems = [
        LayerValues(names[name], [value(m) for m in r.layers], value(r.whole), value(r.uniform))
        for name, r in ((name, of_model.tokens) for name, of_model in measured.items())
    ]
    styles = {name: i for i, name in enumerate(names.values())}
    first = next(iter(measured.values()))
    targets = "each model's own translations" if first.own else "the given translation"
    over = "the steps of " * (mean == "steps") + f"{plural(first.sentences, 'sentence')}"
    note = f"cross-attention to tokens, heads averaged; mean over {over}\n{targets}"
    title = "Attention entropy by decoder layer"
    chart = by_layer(title, systems, styles, y="attention entropy (nats)", digits=3, levels="uniform")
    draw([chart], output, title=title, note=note)
