"""`phraseloom fertility train`: a model with a fertility module from one without; nothing else of it changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from phraseloom.cli.device import Device

N = TypeVar("N", int, float)


Inputs = Literal["both", "states", "embeddings"]


Classes = Literal["4", "2"]


def command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model or run folder with output: {kind: word_or_phrase}.")
    ],
    source: Annotated[
        Path, typer.Option("-s", "--source", metavar="FILE", help="Source text, tokenised as it was for the labels.")
    ],
    labels: Annotated[
        Path, typer.Option(metavar="FILE", help="How many words each source word gave: phrases segment --fertility.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The model folder to write.")],
    valid_source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Validation text; default: a twentieth of the lines.")
    ] = None,
    valid_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="Its labels.")] = None,
    classes: Annotated[
        Classes, typer.Option(help="4: none, one, two, three or more words; 2: at most one word, a phrase.")
    ] = "4",
    inputs: Annotated[
        Inputs, typer.Option(help="What is known of a token: embedding, encoder state or both.")
    ] = "both",
    widths: Annotated[str, typer.Option(metavar="N,…", help="Widths of the inner layers; '' for none.")] = "4096,1024",
    weights: Annotated[
        str | None,
        typer.Option(metavar="X,…", help="Weight of each class in the loss; default: 1 of words, 3 of phrases."),
    ] = None,
    downsample: Annotated[bool, typer.Option(help="Learn from no more words than phrases.")] = True,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the data; the best one stays.")] = 10,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 5e-4,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of an update.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Longer lines are left out.")] = 256,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of first values, order, and what is drawn.")] = 1,
    memory: Annotated[
        float, typer.Option(min=0.0, metavar="GIB", help="Hold so much of what is known of tokens; the rest in a file.")
    ] = 2.0,
    device: Device = "cpu",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is already there.")] = False,
) -> None:
    """Train the module that says how likely each source word gives a word or a phrase, with all else of the model frozen.

    The text is that of which `phrases segment --fertility` wrote the labels: one number a word, words between blanks. The new
    folder holds the same model with the module and its history (fertility.json); docs/continuous_output.md says more.

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
        epochs=epochs,
        rate=learning_rate,
        batch=batch,
        seed=seed,
        max_tokens=max_tokens,
        memory=int(memory * 2**30),
    )
    files = Files(source, labels, valid_source, valid_labels)
    history = train_fertility(model, files, output, options, device=device, overwrite=overwrite, report=say)
    best = best_epoch(history)
    say(f"{output}: as after epoch {best.epoch}, validation loss {best.valid_loss:.4f}")


def _numbers(text: str, kind: Callable[[str], N], option: str, what: str) -> tuple[N, ...]:
    """The numbers of an option, separated by commas."""
    from phraseloom.errors import UsageError

    try:
        numbers = tuple(kind(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = None
    if numbers is None or not all(0 < number <= 65536 for number in numbers):
        raise UsageError(f"{option} {text!r}: {what}, separated by commas, are expected")
    return numbers


def say(text: str) -> None:
    """A line for people, on standard error."""
    from phraseloom.errors import escape_controls

    print(f"phraseloom fertility: {escape_controls(text)}", file=sys.stderr, flush=True)
