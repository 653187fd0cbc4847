"""What every export shares: the model that is read, what cannot leave phraseloom and why, and the folder that is written.

Beside the files of the other program a folder of an export holds `export.json`, the list of its files, by which `--overwrite`
knows that it may be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phraseloom.config import validate
from phraseloom.errors import ModelError
from phraseloom.files import EXPORT, write_manifest
from phraseloom.models.store import GENERATION, find_model, load_model, read_config
from phraseloom.models.translation import TranslationModel
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig, SoftmaxConfig
from phraseloom.replace import FolderKind
from phraseloom.text.tokenizer import Tokenizer

CTRANSLATE2 = FolderKind("CTranslate2 model", listing=EXPORT, needs=("model.bin",))
MARIAN = FolderKind("MarianMT model", listing=EXPORT, needs=("vocab.json", "model.safetensors"))


@dataclass(frozen=True)
class PlainModel:
    """A model to export, all of whose files were verified."""

    folder: Path
    model: TranslationModel
    config: ModelConfig
    tokenizer: Tokenizer
    decoding: DecodingConfig


def read_plain(path: str | Path, program: str) -> PlainModel:
    """The model that `path` means, if it is a plain Transformer.

    Raises ModelError for what `program` cannot compute, before the weights are read; FileProblem, CorruptError.
    """
    folder = find_model(path)
    _, config = read_config(folder)
    if not isinstance(config, ModelConfig):
        raise ModelError(f"this is a language model; only translation models go to {program}", file=folder)
    if (problem := what_cannot_go(config)) is not None:
        what, hint = problem
        raise ModelError(f"{what}, which {program} cannot compute", file=folder, hint=hint)
    model, tokenizer, generation = load_model(folder)
    assert isinstance(model, TranslationModel)
    return PlainModel(folder, model, config, tokenizer, validate(DecodingConfig, generation, file=folder / GENERATION))


def what_cannot_go(config: ModelConfig) -> tuple[str, str] | None:
    """What no other program computes of such a model, and what can be done; None for a plain Transformer."""
    train = "train a plain Transformer on its translations (sequence-level distillation) and export that"
    for side, part in (("encoder", config.encoder), ("decoder", config.decoder)):
        if part.kind != "transformer":
            return f"{side}: {{kind: {part.kind}}}", train
    for use, block in config.attention.uses().items():
        if block.score.kind != "token" or block.arrangement.orders_seen() != {1}:
            return f"attention.{use} is {block.score.kind} {block.arrangement.kind}", train
    if config.feed_forward != "pointwise":
        return f"feed_forward: {config.feed_forward}", train
    if config.phrases is not None:
        return "the model reads source phrases (phrases)", train
    if config.reordering is not None:
        return "the model reorders its source (reordering)", train
    if not isinstance(config.output, SoftmaxConfig):
        return f"output: {{kind: {config.output.kind}}}", train
    if config.embedding_norm:
        return "embedding_norm: true", "train without it"
    for side in ("source", "target"):
        if getattr(config.positions, side).kind != "sinusoid":
            return f"positions.{side}: {{kind: none}}", "train with sinusoid positions"
    return None


def write_listing(folder: Path, names: Iterable[str]) -> None:
    """Write `export.json` over the named files of an export."""
    write_manifest(folder, names, listing=EXPORT)
