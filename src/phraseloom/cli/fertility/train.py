"""`phraseloom fertility train`: add a fertility module to a model; its other parameters stay the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from phraseloom.cli.options import Device
from phraseloom.cli.outputs import OverwriteModel
from phraseloom.cli.streams import note
from phraseloom.errors import UsageError

N = TypeVar("N", int, float)
Inputs = Literal["both", "states", "embeddings"]
Classes = Literal["4", "2"]
LabelledText = Annotated[
    Path,
    typer.Option("-s", "--source", metavar="FILE", help="Source text, tokenised in the same way as for the labels."),
]
Labels = Annotated[
    Path,
    typer.Option(
        "--labels", metavar="FILE", help="Fertility of each source word, written by phrases segment --fertility."
    ),
]
SourceTags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Tag before each sentence, for a model with tags; repeat for several. Default: the model's setting.",
    ),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, metavar="N", help="Skip lines with more subwords.")]

TrainedModel = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model or run folder with output: {kind: word_or_phrase}.")
]
ValidSource = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Validation text. Default: a twentieth of the lines.")
]
ClassesOption = Annotated[
    Classes, typer.Option(help="4: zero, one, two, or three or more words. 2: word (at most one) or phrase.")
]
ClassWeights = Annotated[
    str | None,
    typer.Option(metavar="X,…", help="Weight of each class in the loss. Default: 1 for words, 3 for phrases."),
]
Calibrate = Annotated[
    bool,
    typer.Option(
        help="Correct the probabilities for --downsample and --weights. --no-calibrate: as the released program, "
        "which calls far too many words phrases."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Random seed: initial values, data order, sampling.")]
FeatureMemory = Annotated[
    float,
    typer.Option(min=0.0, metavar="GIB", help="Memory for token features, in GiB; the rest is kept in a file."),
]


def command(
    model: TrainedModel,
    source: LabelledText,
    labels: Labels,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The model folder to write.")],
    valid_source: ValidSource = None,
    valid_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="Its labels.")] = None,
    classes: ClassesOption = "4",
    inputs: Annotated[Inputs, typer.Option(help="Features of a token: embedding, encoder state or both.")] = "both",
    widths: Annotated[str, typer.Option(metavar="N,…", help="Sizes of the hidden layers; '' for none.")] = "4096,1024",
    weights: ClassWeights = None,
    downsample: Annotated[bool, typer.Option(help="Downsample words to the number of phrases.")] = True,
    calibrate: Calibrate = True,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data; the best epoch is kept.")] = 10,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 5e-4,
    batch: Annotated[int, typer.Option(min=1, max=2**31 - 1, metavar="N", help="Tokens per update.")] = 256,
    max_tokens: MaxTokens = 256,
    seed: Seed = 1,
    memory: FeatureMemory = 2.0,
    tags: SourceTags = None,
    device: Device = "cpu",
    overwrite: OverwriteModel = False,
) -> None:
    """Train the fertility module: it predicts whether a source word becomes a word or a phrase. The rest of the
    model is frozen.

    Use the text for which `phrases segment --fertility` wrote the labels: one number per word, words separated by
    spaces. The new folder has the same model with the module and its training history (fertility.json).
    docs/fertility.md has the details.

    Example: phraseloom fertility train runs/phrases -s train.tok.de --labels train.fertility -o models/gated
    """
    from phraseloom.training.fertility import Files, train_fertility
    from phraseloom.training.fertility_fit import FertilityFitOptions, best_epoch

    options = FertilityFitOptions(
        classes=int(classes),
        inputs=inputs,
        widths=_numbers(widths, int, "--widths", "whole numbers from 1 to 65,536"),
        weights=None if weights is None else _numbers(weights, float, "--weights", "positive numbers"),
        downsample=downsample,
        calibrate=calibrate,
        epochs=epochs,
        rate=learning_rate,
        batch=batch,
        seed=seed,
        max_tokens=max_tokens,
        memory=int(min(memory, 2**30) * 2**30),
    )
    files = Files(source, labels, valid_source, valid_labels)
    history = train_fertility(
        model, files, output, options, device=device, overwrite=overwrite, tags=tags, report=partial(note, "fertility")
    )
    best = best_epoch(history)
    note("fertility", f"{output}: as after epoch {best.epoch}, validation loss {best.valid_loss:.4f}")


def _numbers(text: str, kind: Callable[[str], N], option: str, what: str) -> tuple[N, ...]:
    """The comma-separated numbers of an option."""

    try:
        numbers = tuple(kind(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = None
    if numbers is None or not all(0 < number <= 65536 for number in numbers):
        raise UsageError(f"{option} {text!r}: {what}, separated by commas, are expected")
    return numbers
