"""`phraseloom analyse heatmap`: a picture of the attention of one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phraseloom.cli.options import Device, Model, options_of, warn_without_tag
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import warn
from phraseloom.errors import DataError, UsageError
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import read_lines

Use = Literal["cross", "encoder-self", "decoder-self", "encoder-phrases", "decoder-phrases"]


@options_of(DecodingConfig, only=("tags",))
def command(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The picture: .png, .svg or .pdf.")],
    sentence: Annotated[str | None, typer.Option(metavar="TEXT", help="The source sentence.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("-s", "--source", metavar="FILE", help="A file with the source sentence, instead of --sentence."),
    ] = None,
    line: Annotated[int | None, typer.Option(min=1, help="Line number in the --source file, from 1.")] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A translation for forced decoding. Default: the model's own output."),
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option(metavar="TREE", help="The parse tree of the source, for a model that takes phrases from trees."),
    ] = None,
    use: Annotated[Use, typer.Option(help="Which attention.")] = "cross",
    layer: Annotated[int | None, typer.Option(min=1, help="Layer, from 1. Default: the last but one.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head, from 1. Default: the mean of all heads.")] = None,
    overwrite: Overwrite = False,
    *,
    options: dict[str, Any],
    device: Device = "cpu",
) -> None:
    """Draw the attention of one sentence. Rows are queries; columns are slots, in blocks of tokens and n-grams, or
    source phrases.

    Example: phraseloom analyse heatmap runs/mine --sentence "A dog runs." --layer 3 -o map.png
    """
    from phraseloom.report.charts.picture import can_draw

    check_outputs({"-o": output}, inputs=[model, source], overwrite=overwrite)
    can_draw(output)
    text = _sentence(sentence, source, line)
    from phraseloom.analysis.heatmap import heat_map
    from phraseloom.decoding.long_lines import CroppedLines
    from phraseloom.decoding.translator import Translator
    from phraseloom.report.charts.heatmap import draw

    translator = Translator.from_pretrained(model, device=device, **options)
    warn_without_tag("analyse", {model: translator})
    cropped = CroppedLines("side")
    for side, words, limit in (
        (translator.tokenizer.source, text, translator.config.max_input_tokens),
        (translator.tokenizer.target, target or "", translator.config.max_target_tokens),
    ):
        cropped.note(len(side.encode(words)) > limit)
    for warning in cropped.warnings(translator.config):
        warn("analyse", warning)
    options = {"use": use, "layer": layer, "head": head, "tree": tree, "number": (line or 1) - 1}
    draw(heat_map(translator, text, target, **options), output)


def _sentence(sentence: str | None, source: Path | None, line: int | None) -> str:
    if (sentence is None) == (source is None) or (source is None) != (line is None):
        raise UsageError("heatmap takes either --sentence TEXT, or --source FILE with --line N")
    if sentence is not None:
        return sentence

    assert source is not None
    count = 0
    for count, text in enumerate(read_lines(source, invalid="stop"), 1):
        if count == line:
            return text
    raise DataError(f"no line {line}: the file has {count}", file=source)
