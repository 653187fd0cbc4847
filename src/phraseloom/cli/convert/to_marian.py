"""`phraseloom convert to-marian`: a plain post-norm Transformer as a MarianMT folder of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model or run folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The MarianMT folder to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
) -> None:
    """Write a plain post-norm Transformer as a MarianMT folder of Hugging Face.

    MarianMTModel.from_pretrained and AutoTokenizer.from_pretrained load it. The model needs joint sentencepiece subwords and
    norm: post; other models are refused by name.
    """
    from phraseloom.bridges.to_marian import export_marian

    source = export_marian(model, folder, overwrite=overwrite)
    typer.echo(f"{folder}: a vocabulary of {len(source.tokenizer.target.vocabulary)} pieces")
