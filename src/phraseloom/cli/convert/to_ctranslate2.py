"""`phraseloom convert to-ctranslate2`: a plain Transformer as a folder of CTranslate2."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Quantization(StrEnum):
    """What `--quantization` takes."""

    int8 = "int8"
    int8_float32 = "int8_float32"
    int16 = "int16"
    float16 = "float16"
    float32 = "float32"


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model or run folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The CTranslate2 folder to write.")],
    quantization: Annotated[Quantization, typer.Option(help="How weights are stored.")] = Quantization.float32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
) -> None:
    """Write a plain Transformer for CTranslate2; needs phraseloom[ctranslate2].

    Greedy search in CTranslate2 gives the same outputs; its beam search has other stopping rules. Models with phrases, or
    without plain attention, are refused by name. source.spm and target.spm split text into the tokens that it reads.
    """
    from phraseloom.bridges.to_ctranslate2 import export_ctranslate2

    source = export_ctranslate2(model, folder, quantization=quantization.value, overwrite=overwrite)
    vocabularies = " and ".join(str(len(getattr(source.tokenizer, s).vocabulary)) for s in ("source", "target"))
    typer.echo(f"{folder}: {quantization.value}, vocabularies of {vocabularies} pieces")
