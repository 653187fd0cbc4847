"""`phraseloom explain`: a page that shows why a model translates as it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phraseloom.cli.decoding_options import AlignmentMethod, given, head
from phraseloom.cli.device import Device
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.errors import UsageError, plural

MAX_MODELS = 2


Use = Literal["cross", "encoder-self", "decoder-self", "encoder-phrases", "decoder-phrases", "all"]


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODEL",
            help="Model folder, run folder (its best checkpoint) or checkpoint; two are shown side by side.",
        ),
    ],
    source: Annotated[
        str,
        typer.Option("-s", "--source", metavar="FILE", help="Source text, one sentence per line; - is standard input."),
    ],
    targets: Annotated[
        str | None,
        typer.Option(
            "-t",
            "--targets",
            metavar="FILE",
            help="Translations for forced decoding. Default: each model's own output.",
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="FILE", help="Human translations, shown next to the model's.")
    ] = None,
    trees: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Parse trees of the source, for a model that takes phrases from trees."),
    ] = None,
    lines: Annotated[
        str | None, typer.Option(metavar="LINES", help="Line numbers, such as 3,7-9. Default: from the first line.")
    ] = None,
    max_sentences: Annotated[int, typer.Option(min=1, help="Most sentences on the page.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most subwords of a sentence, on each side.")] = 250,
    use: Annotated[Use, typer.Option(help="Which attention the page shows.")] = "all",
    beam: Annotated[
        int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. Default: the model's setting.")
    ] = None,
    alignment_layer: Annotated[
        int | None,
        typer.Option(
            min=1, help="Decoder layer whose attention gives the alignment, from 1. Default: the model's setting."
        ),
    ] = None,
    alignment_head: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Head of that layer, from 1, or mean or max of all heads. Default: mean with --alignment-layer.",
        ),
    ] = None,
    alignment_method: Annotated[
        AlignmentMethod | None, typer.Option(help="How links are made from attention. Default: the model's setting.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The page, one .html file.")
    ] = None,
    json_: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the data of the page as JSON; with or without --output."),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Write a page with everything a model does with some sentences: word and phrase links, all attention,
    attention shares, segments, source phrases, fertilities. The page is one file and loads nothing from a network.

    Example: phraseloom explain runs/base runs/phrasal -s test.en --reference test.de --lines 3,7-9 -o page.html
    """
    from phraseloom.cli.explain_input import choose
    from phraseloom.cli.model_names import named

    if len(models) > MAX_MODELS:
        raise UsageError(f"{len(models)} models: one can be looked at, or two side by side")
    if output is None and json_ is None:
        raise UsageError("nothing would be written", hint="name the page with -o FILE, or its data with --json FILE")
    folders = named(models)
    sources = [*folders.values(), source, targets, reference, trees]
    check_outputs({"-o": output, "--json": json_}, inputs=sources, overwrite=overwrite)
    chosen = choose(
        {"source": source, "targets": targets, "reference": reference, "trees": trees}, lines, max_sentences
    )
    from phraseloom.analysis.explain import ORDER, explain
    from phraseloom.decoding.translator import Translator

    options = given(
        beam=beam,
        n_best=None if beam is None else 1,
        alignment_layer=alignment_layer,
        alignment_method=alignment_method,
    )
    options |= head(alignment_head, "alignment-head")
    translators = {
        name: Translator.from_pretrained(folder, device=device, **options) for name, folder in folders.items()
    }
    with chosen.places():
        document = explain(
            translators,
            chosen.texts["source"] or [],
            chosen.texts["targets"],
            references=chosen.texts["reference"],
            trees=chosen.texts["trees"],
            lines=chosen.lines,
            uses=ORDER if use == "all" else (use,),
            max_tokens=max_tokens,
        )
    _write(document, output, json_)
    _say(document, chosen.asked)


def _write(document: dict[str, Any], output: Path | None, json_: Path | None) -> None:
    from phraseloom.cli.phrases_input import note
    from phraseloom.files import atomic_write_text

    texts = []
    if json_ is not None:
        texts.append((json_, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"))
    if output is not None:
        from phraseloom.report.explain_page import explain_page

        texts.append((output, explain_page(document)))
    for path, text in texts:
        atomic_write_text(path, text)
        note(f"{path}: {plural(len(document['sentences']), 'sentence')}, {path.stat().st_size / 1e6:.1f} MB", "explain")


def _say(document: dict[str, Any], asked: int) -> None:
    """On standard error, what is not on the page or not as it was meant."""
    from phraseloom.cli.phrases_input import note

    left_out = asked - len(document["sentences"])
    if left_out:
        note(f"{left_out:,} of {asked:,} lines were left out; --lines and --max-sentences choose", "explain")
    found: dict[str, list[int]] = {}
    for sentence in document["sentences"]:
        for model, view in zip(document["models"], sentence["views"], strict=True):
            for text in view["notes"]:
                found.setdefault(f"{model['label']}: {text}", []).append(sentence["line"])
    for text, places in found.items():
        where = ", ".join(map(str, places[:5])) + (", …" if len(places) > 5 else "")
        note(f"{text} (line {where})", "explain")
