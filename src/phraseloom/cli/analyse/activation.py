"""`phraseloom analyse activation`: the shares of token and phrase attention, as tables like those of paper 002."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import (
    BySentence,
    Device,
    Model,
    SourceText,
    TargetText,
    Trees,
    options_of,
    require_json,
    warn_without_tag,
)
from phraseloom.cli.streams import warn
from phraseloom.errors import plural
from phraseloom.metrics.ratio import plain
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import read_parallel

if TYPE_CHECKING:
    from phraseloom.analysis.activation import Activation, Shares

READINGS = {
    "mass": "probability mass, within the queries of each kind",
    "joint": "probability mass, all queries together",
    "activation": "cells above tau = {tau:g}",
}


Use = Literal["cross", "encoder-self", "decoder-self", "all"]


Output = Literal["table", "json"]


@options_of(DecodingConfig, only=("tags",))
def command(
    model: Model,
    source: SourceText,
    target: TargetText,
    tau: Annotated[float, typer.Option(help="An attention weight above this counts as active.")] = 0.1,
    use: Annotated[Use, typer.Option(help="Which attention.")] = "cross",
    mean_heads: Annotated[
        bool, typer.Option("--mean-heads", help="Count active weights in the mean of the heads, not in each head.")
    ] = False,
    trees: Trees = None,
    output: Annotated[Output, typer.Option(help="table: per cent by layer; json: all results as one object.")] = (
        "table"
    ),
    by_sentence: BySentence = False,
    *,
    options: dict[str, Any],
    device: Device = "cpu",
) -> None:
    """Print how much of a model's attention goes to tokens and how much to phrases, in per cent by layer.

    The model decodes the given targets (forced decoding). Each share is computed per sentence and then averaged
    over sentences. docs/analysis.md explains the readings.

    Example: phraseloom analyse activation runs/mine -s test.en -t test.de --use all
    """
    require_json(by_sentence, output == "json", "--output json")
    lines = read_parallel(source, target, trees)
    from phraseloom import results
    from phraseloom.analysis.activation import USES, activation_shares
    from phraseloom.cli.analyse.models import limits
    from phraseloom.decoding.translator import Translator

    uses = USES if use == "all" else (use,)
    translator = Translator.from_pretrained(model, device=device, **options)
    warn_without_tag("analyse", {model: translator})
    result = activation_shares(
        translator,
        lines[source],
        lines[target],
        tau=tau,
        uses=uses,
        mean_heads=mean_heads,
        trees=None if trees is None else lines[trees],
    )
    if result.blank:
        warn("analyse", f"{plural(result.blank, 'pair')} with a blank side left out")
    if result.cropped:
        warn("analyse", f"{plural(result.cropped, 'pair')} of more than {limits(translator.config)}: cropped")
    if output == "json":
        print(results.line(results.ActivationResult.model_validate(plain(asdict(result), by_sentence))))
    else:
        print("\n\n".join(render(result)))


def render(result: Activation) -> list[str]:
    """One table per use and reading, with a row per layer and a column per quadrant; equal readings are left out."""
    from phraseloom.report.markup import terminal

    tables = []
    for use, layers in result.uses.items():
        for reading, words in READINGS.items():
            if reading == "joint" and all(layer.joint == layer.mass for layer in layers):
                continue
            names = list(getattr(layers[0], reading))
            title = f"{use}: {words.format(tau=result.tau)} (% of each sentence, mean of {result.sentences:,})"
            rows = [_row(layer, getattr(layer, reading), names) for layer in layers]
            tables.append(f"{title}\n" + terminal(["layer", *names], rows))
    return tables


def _row(layer: Shares, values: dict[str, float | None], names: list[str]) -> list[Any]:
    return [layer.layer, *("–" if values[n] is None else values[n] for n in names)]
