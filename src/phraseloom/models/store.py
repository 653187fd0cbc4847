"""A model folder: written whole or not at all, read only if every checksum fits. No pickle anywhere.

config.json             format, task, languages, vocabulary sizes and hashes, the model configuration
model.safetensors       each parameter once (a shared matrix under its first name; the configuration says what is tied)
tokenizer/              everything that turns text into ids and back
segmenter/              what cuts a source into phrases, where the model reads phrases that do not follow from its length
generation_config.json  how to translate unless told otherwise
README.md               the model card
manifest.json           size and SHA-256 of all of these; without it the folder is not a model
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from phraseloom import __version__
from phraseloom.config import validate
from phraseloom.errors import CorruptError, ModelError
from phraseloom.files import (
    MANIFEST,
    FolderLock,
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    json_bytes,
    read_json,
    replace_listed,
    require_folder,
    verify_manifest,
    write_manifest,
)
from phraseloom.models.build import AnyModelConfig
from phraseloom.models.card import model_card
from phraseloom.models.device import usable
from phraseloom.models.language_model import LanguageModel
from phraseloom.models.segmental import SegmentalModel
from phraseloom.models.tasks import TASKS, build, task_of
from phraseloom.models.translation import TranslationModel
from phraseloom.phrases.source import Segmenter, load_segmenter
from phraseloom.replace import FolderKind, new_folder
from phraseloom.text.tokenizer import Tokenizer

FORMAT = 1
CONFIG, WEIGHTS, TOKENIZER, SEGMENTER, GENERATION, CARD = (
    "config.json",
    "model.safetensors",
    "tokenizer",
    "segmenter",
    "generation_config.json",
    "README.md",
)
MODEL = FolderKind("model", needs=(CONFIG, WEIGHTS), without=("state.json",))  # with a training state: a checkpoint


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors as one safetensors file, atomically."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    atomic_write_bytes(path, safetensors.torch.save(whole))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; CorruptError where it is not one."""
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CorruptError(f"not a readable safetensors file ({error})", file=path) from error


def write_model(
    folder: Path, model: nn.Module, config: AnyModelConfig, tokenizer: Tokenizer, *, languages: tuple[str, str] = ("", ""),
    generation: dict[str, Any] | None = None, card: str = "", segmenter: Segmenter | None = None,
) -> list[str]:  # fmt: skip
    """Write the files of a model into an existing folder, without the manifest; their names.

    `segmenter`: of a model that `needs_phrases`, the one that its training data were cut with.
    """
    task = TASKS[task_of(config)]
    sides = {name: getattr(tokenizer, side).vocabulary for name, side in task.sides.items()}
    spoken = dict(zip(("source", "target"), languages, strict=True))
    atomic_write_json(
        folder / CONFIG,
        {
            "format": FORMAT,
            "task": task_of(config),
            "phraseloom": __version__,
            "languages": {name: spoken[side] for name, side in task.sides.items()},
            "vocabularies": {name: {"size": len(v), "sha256": v.sha256} for name, v in sides.items()},
            **({} if segmenter is None else {"segmenter": {"sha256": segmenter.sha256}}),
            "parameters": sum(p.numel() for p in model.parameters()),
            "model": config.model_dump(mode="json"),
        },
    )
    save_tensors(folder / WEIGHTS, dict(model.named_parameters()))
    atomic_write_json(folder / GENERATION, generation or {})
    atomic_write_text(folder / CARD, card or model_card(config, languages, model, tokenizer))
    tokenizer.save(folder / TOKENIZER)
    inner = sorted(p.relative_to(folder).as_posix() for p in (folder / TOKENIZER).rglob("*") if p.is_file())
    if segmenter is not None:
        inner += [f"{SEGMENTER}/{name}" for name in segmenter.save(folder / SEGMENTER)]
    return [CONFIG, WEIGHTS, GENERATION, CARD, *inner]


def save_model(
    folder: Path,
    model: nn.Module,
    config: AnyModelConfig,
    tokenizer: Tokenizer,
    *,
    overwrite: bool = False,
    **rest: Any,
) -> None:
    """Write a complete model folder (see `write_model` for the rest of the arguments)."""
    with new_folder(folder, MODEL, overwrite=overwrite) as new:
        write_manifest(new, write_model(new, model, config, tokenizer, **rest))


def find_model(path: str | Path) -> Path:
    """The model folder that `path` means: itself, or the best (else last) checkpoint of a run folder."""
    folder = require_folder(path, "model or run folder")
    for candidate in (folder, folder / "best", folder / "last"):
        if (candidate / MANIFEST).is_file():
            return candidate
    if (folder / "source.spm").is_file() and (folder / "vocab.json").is_file():
        raise ModelError(
            "a MarianMT folder of Hugging Face", file=folder, hint="make a model of it: phraseloom convert from-marian"
        )
    for name in (CONFIG, WEIGHTS):
        if (folder / name).exists():
            raise ModelError(f"{MANIFEST} is missing: this model folder is incomplete", file=folder)
    raise ModelError("neither a model folder nor a run folder with a checkpoint", file=folder)


def read_config(folder: Path) -> tuple[dict[str, Any], AnyModelConfig]:
    """The raw content of config.json, and the model configuration in it (of a translation where it names no task)."""
    raw = read_json(folder / CONFIG, "model configuration")
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise CorruptError("not a model configuration", file=folder / CONFIG)
    if raw.get("format") != FORMAT:
        raise ModelError(
            f"model format {raw.get('format')!r} is not known to phraseloom {__version__} (it reads {FORMAT})",
            file=folder / CONFIG,
            hint="use the phraseloom that wrote it, or a later one",
        )
    task = TASKS.get(str(raw.get("task", "translation")))
    if task is None:
        known = f"it knows {' and '.join(TASKS)}"
        raise ModelError(
            f"task {raw['task']!r} is not known to phraseloom {__version__} ({known})", file=folder / CONFIG
        )
    return raw, validate(task.config, raw["model"], file=folder / CONFIG)


def find_task(path: str | Path) -> str:
    """The task of the model that `path` means."""
    return task_of(read_config(find_model(path))[1])


def load_model(
    path: str | Path, device: str | torch.device = "cpu"
) -> tuple[TranslationModel | SegmentalModel, Tokenizer, dict[str, Any]]:
    """The translation model (in evaluation mode), its tokenizer, and its generation settings; every file is verified first.

    Raises CorruptError or ModelError that names the file that does not fit; ModelError for a model of another task.
    """
    model, tokenizer, generation = _load(path, device, "translation")
    assert isinstance(model, TranslationModel | SegmentalModel)
    return model, tokenizer, generation


def load_language_model(
    path: str | Path, device: str | torch.device = "cpu"
) -> tuple[LanguageModel, Tokenizer, dict[str, Any]]:
    """The same for a language model."""
    model, tokenizer, generation = _load(path, device, "language_model")
    assert isinstance(model, LanguageModel)
    return model, tokenizer, generation


OTHER = {
    "translation": "this is a translation model, not a language model; use phraseloom translate or score",
    "language_model": "this is a language model, which does not translate; use phraseloom generate or score",
}


def _load(path: str | Path, device: str | torch.device, task: str) -> tuple[nn.Module, Tokenizer, dict[str, Any]]:
    device, folder = usable(device), find_model(path)
    names = verify_manifest(folder)
    for name in (CONFIG, WEIGHTS, GENERATION):
        if name not in names:
            raise CorruptError(f"the manifest does not name {name}", file=folder / MANIFEST)
    raw, config = read_config(folder)
    if (found := task_of(config)) != task:
        what, _, hint = OTHER[found].partition("; ")
        raise ModelError(what, file=folder, hint=hint)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    for name, of_tokenizer in TASKS[task].sides.items():
        side = getattr(tokenizer, of_tokenizer)
        said = raw.get("vocabularies", {}).get(name, {})
        if said.get("sha256") != side.vocabulary.sha256:
            raise ModelError(
                f"the {name} vocabulary ({len(side.vocabulary)} entries) is not the one this model was trained with "
                f"({said.get('size')} entries)",
                file=folder / TOKENIZER,
            )
    with torch.random.fork_rng(devices=[]):  # loading draws no random numbers from the caller's stream
        model = build(config, tokenizer).to(device)
    load_parameters(model, load_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return model.eval(), tokenizer, read_json(folder / GENERATION, "generation settings")


def change_generation(path: str | Path, changes: Mapping[str, Any]) -> Path:
    """Write `changes` over the generation settings of the model that `path` means; its folder.

    The model folder is whole at every instant, with the old or the new settings. Raises CorruptError, FileProblem, ModelError.
    """
    folder = find_model(path)
    with FolderLock(folder):
        settings = {**read_json(folder / GENERATION, "generation settings"), **changes}
        replace_listed(folder, GENERATION, json_bytes(settings))
    return folder


def load_segmenter_of(path: str | Path) -> Segmenter | None:
    """The segmenter of the model that `path` means; None where the model needs none.

    Raises CorruptError, FileProblem, ModelError.
    """
    folder = find_model(path)
    said = read_config(folder)[0].get(SEGMENTER)
    if said is None:
        return None
    segmenter = load_segmenter(folder / SEGMENTER)
    if not isinstance(said, dict) or said.get("sha256") != segmenter.sha256:
        raise ModelError("the segmenter is not the one this model was trained with", file=folder / SEGMENTER)
    return segmenter


def load_parameters(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Copy named tensors into the parameters; ModelError names the first that is missing, extra or of another shape."""
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if name not in tensors:
            raise ModelError(f"parameter {name} is missing", file=file)
        if tensors[name].shape != parameter.shape:
            shapes = f"{tuple(tensors[name].shape)}, the configuration says {tuple(parameter.shape)}"
            raise ModelError(f"parameter {name} has shape {shapes}", file=file)
    if extra := sorted(set(tensors) - set(parameters)):
        raise ModelError(f"parameter {extra[0]} is not of this model", file=file)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
