"""`phraseloom fertility evaluate`: precision, recall and F1 of each class of fertility, as in Tables 4 and 5 of paper 003."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.fertility.train import LabelledText, Labels, MaxTokens, SourceTags
from phraseloom.cli.options import BySentence, Device, require_json
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import note
from phraseloom.errors import plural
from phraseloom.files import require_file
from phraseloom.metrics.ratio import plain

if TYPE_CHECKING:
    from phraseloom.analysis.fertility import Calibration, ClassScore, FertilityScore


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder that fertility train wrote.")],
    source: LabelledText,
    labels: Labels,
    max_tokens: MaxTokens = 256,
    recall: Annotated[
        float,
        typer.Option(
            metavar="R",
            help="Recall of phrases, between 0 and 1, at which to print their precision. The paper has 0.28 for German "
            "to English and 0.10 for Turkish to English.",
        ),
    ] = 0.28,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write scores and the confusion matrix as JSON.")
    ] = None,
    tags: SourceTags = None,
    by_sentence: BySentence = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Score the fertility module of a model against labels: precision, recall and F1 of each class, in per cent.

    Scores are over source tokens; each subword has the class of its word. The second table scores the choice between
    word and phrase: the module chooses a phrase if a phrase is more likely. The row "as trained" leaves out the
    correction of the probabilities. The row "break-even" chooses as many phrases as the labels have, "recall 28" as few
    as reach the recall of the paper, or that of --recall. The last table compares the predicted probabilities of a
    phrase with the actual shares.

    Example: phraseloom fertility evaluate models/gated -s test.tok.de --labels test.fertility
    """
    from phraseloom import results
    from phraseloom.analysis.fertility import evaluate_fertility

    check_outputs({"--json": json}, inputs=[model, source, labels], overwrite=overwrite)
    require_json(by_sentence, json is not None, "--json FILE")
    require_file(source, "source text")
    require_file(labels, "file of fertilities")
    score = evaluate_fertility(
        model,
        source,
        labels,
        device=device,
        max_tokens=max_tokens,
        recall=recall,
        tags=tags,
        report=partial(note, "fertility"),
    )
    print(_tables(score))
    if json is not None:
        inputs = {"model": str(model), "source": str(source), "labels": str(labels)}
        results.write(json, results.FertilityResult.model_validate({**inputs, **plain(score.as_dict(), by_sentence)}))


def _tables(score: FertilityScore) -> str:
    about = (
        f"{plural(score.sentences, 'sentence')}, {plural(score.tokens, 'source token')}; in per cent; "
        f"accuracy {100 * score.accuracy:.2f}, loss {score.loss:.4f}"
    )
    choices = dict(score.gate)
    if score.as_trained:
        choices["phrase, as trained"] = score.as_trained["gate"]["phrase"]
    if score.break_even is not None:
        choices["phrase, break-even"] = score.break_even
    if score.at_paper_recall is not None:
        choices[f"phrase, recall {100 * score.paper_recall:g}"] = score.at_paper_recall
    tables = [about, _table("words", score.classes, score.tokens), _table("choice", choices, score.tokens)]
    if score.calibration is not None:
        tables += [_calibration(score.calibration)]
    return "\n\n".join(tables)


def _calibration(calibration: Calibration) -> str:
    from phraseloom.report.markup import terminal

    data = calibration.as_dict()
    rows = [
        [
            f"{100 * b['from']:g} to {100 * b['to']:g}",
            *(f"{100 * b[key]:.2f}" for key in ("probability", "share")),
            b["tokens"],
        ]
        for b in data["bins"]
    ]
    about = f"probability of a phrase {100 * data['mean']:.2f} on average; expected calibration error {100 * data['error']:.2f}"
    return f"{about}\n\n{terminal(['probability', 'mean', 'share of phrases', 'tokens'], rows)}"


def _table(first: str, scores: Mapping[str, ClassScore], tokens: int) -> str:
    from phraseloom.report.markup import terminal

    rows: list[list[Any]] = [
        [name, *(100 * value for value in (s.total / tokens, s.precision, s.recall, s.f1)), s.total, s.predicted]
        for name, s in scores.items()
    ]
    return terminal([first, "share", "precision", "recall", "F1", "tokens", "predicted"], rows)
