"""`phraseloom fertility evaluate`: precision, recall and F1 of each class of fertility, as in Tables 4 and 5 of paper 003."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.fertility.train import say
from phraseloom.cli.options import BySentence, Device, require_json
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.errors import plural
from phraseloom.metrics.ratio import plain

if TYPE_CHECKING:
    from phraseloom.analysis.fertility import ClassScore, FertilityScore


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder that fertility train wrote.")],
    source: Annotated[
        Path,
        typer.Option(
            "-s", "--source", metavar="FILE", help="Source text, tokenised in the same way as for the labels."
        ),
    ],
    labels: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Fertility of each source word, written by phrases segment --fertility."),
    ],
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Skip lines with more subwords.")] = 256,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write scores and the confusion matrix as JSON.")
    ] = None,
    by_sentence: BySentence = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Score the fertility module of a model against labels: precision, recall and F1 of each class, in per cent.

    Scores are over source tokens; each subword has the class of its word. The second table scores the choice
    between word and phrase that the module makes by itself: it takes a phrase if a phrase is more likely.

    Example: phraseloom fertility evaluate models/gated -s test.tok.de --labels test.fertility
    """
    from phraseloom import results
    from phraseloom.analysis.fertility import evaluate_fertility
    from phraseloom.files import require_file

    check_outputs({"--json": json}, inputs=[model, source, labels], overwrite=overwrite)
    require_json(by_sentence, json is not None, "--json FILE")
    require_file(source, "source text")
    require_file(labels, "file of fertilities")
    found = evaluate_fertility(model, source, labels, device=device, max_tokens=max_tokens, report=say)
    print(_tables(found))
    if json is not None:
        given = {"model": str(model), "source": str(source), "labels": str(labels)}
        results.write(json, results.FertilityResult.model_validate({**given, **plain(found.as_dict(), by_sentence)}))


def _tables(found: FertilityScore) -> str:
    about = (
        f"{plural(found.sentences, 'sentence')}, {plural(found.tokens, 'source token')}; in per cent; "
        f"accuracy {100 * found.accuracy:.2f}, loss {found.loss:.4f}"
    )
    gate = _table("choice", found.gate, found.tokens)
    return f"{about}\n\n{_table('words', found.classes, found.tokens)}\n\n{gate}"


def _table(first: str, scores: Mapping[str, ClassScore], tokens: int) -> str:
    from phraseloom.report.markup import terminal

    rows: list[list[Any]] = [
        [name, *(100 * value for value in (s.total / tokens, s.precision, s.recall, s.f1)), s.total, s.predicted]
        for name, s in scores.items()
    ]
    return terminal([first, "share", "precision", "recall", "F1", "tokens", "predicted"], rows)
