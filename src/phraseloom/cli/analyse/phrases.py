"""`phraseloom analyse phrases`: the source phrases of a model with phrase representations, and their weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.options import Device, Model, SourceText, TextForm, options_of, warn_without_tag
from phraseloom.cli.streams import warn
from phraseloom.errors import UsageError
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import read_lines

if TYPE_CHECKING:
    from phraseloom.analysis.phrases import PhraseWeights


@options_of(DecodingConfig, only=("tags",))
def command(
    model: Model,
    source: SourceText,
    *,
    trees: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its parse trees, for a model that takes phrases from trees.")
    ] = None,
    level: Annotated[
        int, typer.Option(min=0, help="Level of the phrase vectors: 0 for the embeddings, n for encoder layer n.")
    ] = 0,
    options: dict[str, Any],
    output: TextForm = "text",
    device: Device = "cpu",
) -> None:
    """Print the phrases of each sentence and the weight of each subword in its phrase, in per cent.

    For transparent attention, also print how much each decoder layer reads from each encoder level.

    Example: phraseloom analyse phrases runs/mine -s test.en
    """
    from phraseloom import results
    from phraseloom.analysis.phrases import source_phrases
    from phraseloom.decoding.translator import Translator

    lines = list(read_lines(source, invalid="stop"))
    of_lines = None if trees is None else list(read_lines(trees, invalid="stop"))
    translator = Translator.from_pretrained(model, device=device, **options)
    warn_without_tag("analyse", {model: translator})
    result = source_phrases(translator, lines, of_lines)
    levels = len(translator.model.phrases.representations) - 1
    if level > levels:
        raise UsageError(f"--level {level}: the levels of this model are 0 to {levels}")
    if result.cropped:
        limit = translator.config.max_input_tokens
        warn("analyse", f"{result.cropped} sources were cropped to {limit} subwords")
    if output == "json":
        print(results.line(results.SourcePhrasesResult.model_validate(asdict(result))))
        return
    for sentence in result.sentences:
        print(" ".join(_phrase(phrase, level) for phrase in sentence))
    if result.shares is not None:
        print("\n" + _shares(result.shares))


def _phrase(phrase: PhraseWeights, level: int) -> str:
    weights = phrase.weights[level]
    if weights is None:
        return f"[{' '.join(phrase.pieces)}]"
    return "[" + " ".join(f"{p}:{100 * w:.0f}" for p, w in zip(phrase.pieces, weights, strict=True)) + "]"


def _shares(shares: list[list[float]]) -> str:
    from phraseloom.report.markup import terminal

    headers = ["level, %", *(f"decoder layer {j}" for j in range(1, len(shares[0]) + 1))]
    names = ["0 (embeddings)", *map(str, range(1, len(shares)))]
    rows = [[name, *(f"{100 * share:.1f}" for share in row)] for name, row in zip(names, shares, strict=True)]
    return "transparent attention: how much of each level a decoder layer reads\n" + terminal(headers, rows)
