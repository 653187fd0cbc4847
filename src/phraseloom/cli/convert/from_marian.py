"""`phraseloom convert from-marian`: a MarianMT folder of Hugging Face as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A MarianMT folder (config.json, weights, vocab.json, source.spm, target.spm), or one of Marian (.npz).",
        ),
    ],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model folder to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing model.")] = False,
) -> None:
    """Write a model of Marian (OPUS-MT and others), of Hugging Face or Marian itself, as a model folder, with the same outputs.

    The model has the logits that transformers computes, and by default the search of its generate. Nothing is downloaded:
    FOLDER is a folder that you have. Weights are read from model.safetensors, or
    from pytorch_model.bin by torch's weights-only loader.
    """
    from phraseloom.bridges.from_marian import import_marian

    imported = import_marian(folder, model, overwrite=overwrite)
    for note in imported.notes:
        typer.echo(f"left out, as there is no such setting: {note}", err=True)
    spoken = " → ".join(name or "?" for name in imported.languages)
    typer.echo(f"{model}: {spoken}, {imported.parameters:,} parameters")
