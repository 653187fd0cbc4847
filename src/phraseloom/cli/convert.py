"""`phraseloom convert`: models from and to other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from phraseloom.cli.group import small_group, subcommand
from phraseloom.cli.outputs import OverwriteModel

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model or run folder.")]
OverwriteExport = Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")]
Quantization = Literal["int8", "int8_float32", "int16", "float16", "float32"]

app = small_group(help="Convert models from and to other programs.")


@subcommand(app, "from-marian", "A folder of MarianMT or Marian (OPUS-MT) as a model folder.")
def from_marian(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A MarianMT folder (config.json, weights, vocab.json, source.spm, target.spm), or one of Marian (.npz).",
        ),
    ],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model folder to write.")],
    overwrite: OverwriteModel = False,
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


@subcommand(app, "to-ctranslate2", "A plain Transformer as a folder of CTranslate2.")
def to_ctranslate2(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The CTranslate2 folder to write.")],
    quantization: Annotated[Quantization, typer.Option(help="How weights are stored.")] = "float32",
    overwrite: OverwriteExport = False,
) -> None:
    """Write a plain Transformer for CTranslate2; needs phraseloom[ctranslate2].

    Greedy search in CTranslate2 gives the same outputs; its beam search has other stopping rules. Models with phrases, or
    without plain attention, are refused by name. source.spm and target.spm split text into the tokens that it reads; they
    are not written for a model whose text is normalised, tokenised or lower-cased first.
    """
    from phraseloom.bridges.to_ctranslate2 import export_ctranslate2
    from phraseloom.options.text import TextConfig

    source = export_ctranslate2(model, folder, quantization=quantization, overwrite=overwrite)
    vocabularies = " and ".join(str(len(getattr(source.tokenizer, s).vocabulary)) for s in ("source", "target"))
    typer.echo(f"{folder}: {quantization}, vocabularies of {vocabularies} pieces")
    if source.tokenizer.text != TextConfig():
        why = (
            "no .spm files, because the text of this model is normalised, tokenised or lower-cased before its subwords"
        )
        typer.echo(f"{why}; Tokenizer.pieces gives its tokens", err=True)


@subcommand(app, "to-marian", "A plain post-norm Transformer as a MarianMT folder of Hugging Face.")
def to_marian(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The MarianMT folder to write.")],
    overwrite: OverwriteExport = False,
) -> None:
    """Write a plain post-norm Transformer as a MarianMT folder of Hugging Face.

    MarianMTModel.from_pretrained and AutoTokenizer.from_pretrained load it. The model needs joint sentencepiece subwords,
    norm: post and no tags; other models are refused by name. Settings of the search that generate does not have are left
    out and named on standard error.
    """
    from phraseloom.bridges.to_marian import export_marian, left_out

    source = export_marian(model, folder, overwrite=overwrite)
    for setting in left_out(source):
        typer.echo(f"left out, as there is no such setting: {setting}", err=True)
    typer.echo(f"{folder}: a vocabulary of {len(source.tokenizer.target.vocabulary)} pieces")
