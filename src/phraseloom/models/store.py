"""A model folder: written atomically, read only if every checksum matches. No pickle.

config.json             format, task, languages, vocabulary sizes and hashes, the model configuration
model.safetensors       each parameter once (a shared matrix under its first name; the configuration has the sharing)
tokenizer/              converts text to ids and back
segmenter/              cuts a source into phrases, if its length does not determine them
generation_config.json  default decoding options
lexicon.tsv             word translations for `unknown: replace`, if the generation settings name a lexicon
README.md               the model card: a short description, and the command that uses the model
manifest.json           size and SHA-256 of all files; without it the folder is not a model

A folder may come from an untrusted source. Nothing outside it is read, and the header of its weights is compared with the
configuration before memory is allocated for a model.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from phraseloom import __version__
from phraseloom.config import validate
from phraseloom.errors import CorruptError, FileProblem, ModelError, UsageError, escape_controls, plural
from phraseloom.files import (
    MANIFEST,
    FolderLock,
    atomic_write,
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    disk,
    json_bytes,
    read_json,
    read_manifest,
    replace_listed,
    require_folder,
    verify_files,
    write_manifest,
)
from phraseloom.hub import MODEL, fetched, parse_address
from phraseloom.layers.initialisation import NothingDrawn, ShapesOnly
from phraseloom.models.build import AnyModelConfig
from phraseloom.models.device import usable
from phraseloom.models.language_model import LanguageModel
from phraseloom.models.tasks import TASKS, build, task_of
from phraseloom.options.model import DecoderConfig, EncoderConfig, ModelConfig, fill_stored
from phraseloom.phrases.source import Segmenter, load_segmenter
from phraseloom.reading import MIB, TensorInfo, inside, limit_of, own_folder, read_header
from phraseloom.replace import new_folder
from phraseloom.text.lines import read_lines
from phraseloom.text.tokenizer import Tokenizer


def _layers(part: EncoderConfig | DecoderConfig, name: str) -> str:
    if part.kind == "none":
        return f"no {name}"
    kind = "" if part.kind == "transformer" else f"{part.kind} "
    return plural(part.layers, f"{kind}{name} layer")


def model_card(config: AnyModelConfig, languages: tuple[str, str], model: nn.Module, tokenizer: Tokenizer) -> str:
    """The text of README.md in a model folder. `languages`: source and target."""
    parameters, task = sum(p.numel() for p in model.parameters()), TASKS[task_of(config)]
    if isinstance(config, ModelConfig):
        of = " → ".join(languages)
        layers = f"{_layers(config.encoder, 'encoder')} and {_layers(config.decoder, 'decoder')}"
        words = f"vocabularies of {len(tokenizer.source.vocabulary)} and {len(tokenizer.target.vocabulary)} subwords"
    else:
        of, layers = languages[1], plural(config.decoder.layers, "layer")
        words = f"a vocabulary of {len(tokenizer.target.vocabulary)} subwords"
    return (
        f"# {task.title} {of}\n\n"
        f"A phraseloom {__version__} model: {layers}, width {config.width}, {plural(config.heads, 'head')}, "
        f"{_feed_forward(config)}, {parameters:,} parameters; {words}.\n\n"
        f"    {task.use}\n"
    )


def _feed_forward(config: Any) -> str:
    if getattr(config, "feed_forward", "pointwise") == "interleaved":
        return "convolutions in place of feed-forward layers"
    return f"feed-forward {config.ffn_width}"


logger = logging.getLogger(__name__)

FORMAT = 1
LEXICON, OPTIMIZER = "lexicon.tsv", "optimizer.safetensors"
CONFIG_MAX_BYTES = MIB
# The size limit for everything but the weights, the optimiser and the word vectors.
REST_MAX_BYTES = 1024 * MIB
PART_BYTES = 16 * MIB  # of a safetensors file, in one write
FLOATS = ("F16", "BF16", "F32", "F64")
CONFIG, WEIGHTS, TOKENIZER, SEGMENTER, GENERATION, CARD = (
    "config.json",
    "model.safetensors",
    "tokenizer",
    "segmenter",
    "generation_config.json",
    "README.md",
)


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors as one safetensors file, atomically; in float32, without a copy of all of them in memory."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if not whole or any(tensor.dtype != torch.float32 for tensor in whole.values()):
        atomic_write_bytes(path, safetensors.torch.save(whole))
        return

    def write(temporary: Path) -> None:
        with disk.open(temporary, "wb") as handle:
            for part in _safetensors(whole):
                disk.write(handle, part)
            disk.flush(handle)

    atomic_write(path, write)


def _safetensors(whole: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """The bytes of a safetensors file of float32 tensors, equal to those of its own library, in parts of some MiB."""
    header, end = {}, 0
    for name in sorted(whole):
        begin, end = end, end + 4 * whole[name].numel()
        header[name] = {"dtype": "F32", "shape": list(whole[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = bytearray(len(text).to_bytes(8, "little") + text)
    for name in sorted(whole):
        content = whole[name].reshape(-1).view(torch.uint8).numpy().data
        if len(part) + len(content) > PART_BYTES:
            yield memoryview(part)
            part = bytearray()
        if len(content) > PART_BYTES:
            yield content
        else:
            part += content
    yield memoryview(part)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file. Raises CorruptError if it is damaged."""
    read_header(path)
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CorruptError(f"not a readable safetensors file ({error})", file=path) from error


def write_model(
    folder: Path, model: nn.Module, config: AnyModelConfig, tokenizer: Tokenizer, *, languages: tuple[str, str] = ("", ""),
    generation: dict[str, Any] | None = None, card: str = "", segmenter: Segmenter | None = None,
    lexicon: bytes | None = None,
) -> list[str]:  # fmt: skip
    """Write the files of a model, without the manifest, into an existing folder; returns their names.

    `segmenter`: the segmenter of the training data, for a model that `needs_phrases`. `lexicon`: the result of `lexicon_bytes`
    for the file that `generation` names; None reads that file.
    """
    generation = dict(generation or {})
    if generation.get("lexicon") is not None:
        lexicon = lexicon_bytes(generation["lexicon"]) if lexicon is None else lexicon
        atomic_write_bytes(folder / LEXICON, lexicon)
        generation["lexicon"] = LEXICON
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
    atomic_write_json(folder / GENERATION, generation)
    atomic_write_text(folder / CARD, card or model_card(config, languages, model, tokenizer))
    tokenizer.save(folder / TOKENIZER)
    inner = sorted(p.relative_to(folder).as_posix() for p in (folder / TOKENIZER).rglob("*") if p.is_file())
    if segmenter is not None:
        inner += [f"{SEGMENTER}/{name}" for name in segmenter.save(folder / SEGMENTER)]
    if generation.get("lexicon") is not None:
        inner.append(LEXICON)
    return [CONFIG, WEIGHTS, GENERATION, CARD, *inner]


def lexicon_bytes(path: str | Path) -> bytes:
    """The lexicon file of a model: the first two columns of the lexicon of the decoding options.

    Raises FileProblem, CorruptError, DataError; ModelError if it is too large for a model folder.
    """
    rows = ["\t".join(row.split("\t")[:2]) for row in read_lines(path)]
    content = "".join(f"{row}\n" for row in rows).encode()
    limit = limit_of(LEXICON)
    if limit is not None and len(content) > limit:
        hint = "align lexicon --min-count N leaves rare words out"
        raise ModelError(f"a lexicon of {len(content):,} bytes; a model holds {limit:,}", file=path, hint=hint)
    return content


def save_model(
    folder: Path,
    model: nn.Module,
    config: AnyModelConfig,
    tokenizer: Tokenizer,
    *,
    overwrite: bool = False,
    **kwargs: Any,
) -> None:
    """Write a complete model folder; see `write_model` for the other arguments."""
    with new_folder(folder, MODEL, overwrite=overwrite) as new:
        write_manifest(new, write_model(new, model, config, tokenizer, **kwargs))


def find_model(path: str | Path) -> Path:
    """The model folder at `path`: itself, or the best (else last) checkpoint of a run folder.

    `hf://owner/name[@revision]` is the model of that repository on the Hugging Face Hub, which is fetched (`hub.py`).
    """
    address = parse_address(path)
    folder = fetched(address) if address is not None else _require_model_folder(path)
    for candidate in (folder, folder / "best", folder / "last"):
        if not (candidate / MANIFEST).is_file():
            continue
        if candidate != folder and not candidate.resolve().is_relative_to(folder.resolve()):
            hint = f"give the model folder itself: {escape_controls(os.path.realpath(candidate))[:200]}"
            raise CorruptError("a link that leads out of its run folder", file=candidate, hint=hint)
        return candidate
    if (folder / "source.spm").is_file() and (folder / "vocab.json").is_file():
        raise ModelError(
            "a MarianMT folder of Hugging Face", file=folder, hint="make a model of it: phraseloom convert from-marian"
        )
    for name in (CONFIG, WEIGHTS):
        if (folder / name).exists():
            raise ModelError(f"{MANIFEST} is missing: this model folder is incomplete", file=folder)
    raise ModelError("neither a model folder nor a run folder with a checkpoint", file=folder)


def _require_model_folder(path: str | Path) -> Path:
    """`path`, if it is a folder. The hint for a missing one that looks like a repository of the Hub says how to get it."""
    name = Path(path).as_posix()
    if not Path(path).exists() and re.fullmatch(r"(Helsinki-NLP/[\w.-]+|[\w.-]+/opus-mt-[\w.-]+)", name):
        mine = name.rpartition("/")[2]
        hint = (
            f"import it from the Hugging Face Hub: phraseloom hub pull {name} {mine}, then phraseloom convert from-marian "
            f"{mine} {mine.removeprefix('opus-mt-')} (docs/bridges.md)"
        )
        raise FileProblem("no such folder; this is the name of a MarianMT model", file=name, hint=hint)
    return require_folder(path, "model or run folder")


def read_config(folder: Path) -> tuple[dict[str, Any], AnyModelConfig]:
    """The raw content of config.json, and the model configuration in it (by default of a translation model)."""
    path = inside(folder, CONFIG, "model configuration")
    raw = read_json(path, "model configuration", limit=CONFIG_MAX_BYTES)
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise CorruptError("not a model configuration", file=folder / CONFIG)
    if type(raw.get("format")) is not int or raw["format"] != FORMAT:
        raise ModelError(
            f"model format {raw.get('format')!r} is not known to phraseloom {__version__} (it reads {FORMAT})",
            file=folder / CONFIG,
            hint="use the phraseloom that wrote it, or a later one",
        )
    task = TASKS.get(str(raw.get("task", "translation")))
    if task is None:
        known = f"it knows {' and '.join(TASKS)}"
        raise ModelError(
            f"task {str(raw['task'])[:80]!r} is not known to phraseloom {__version__} ({known})", file=folder / CONFIG
        )
    return raw, validate(task.config, fill_stored(raw["model"]), file=folder / CONFIG)


def find_task(path: str | Path) -> str:
    """The task of the model at `path`."""
    return task_of(read_config(find_model(path))[1])


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[Any, Tokenizer, dict[str, Any]]:
    """Verify every file and load the translation model (in evaluation mode), its tokenizer and its generation settings.

    Raises CorruptError or ModelError with the file that does not fit; ModelError for a model of another task.
    """
    model, tokenizer, generation = _load(path, device, "translation")
    assert not isinstance(model, LanguageModel)
    return model, tokenizer, generation


def load_language_model(
    path: str | Path, device: str | torch.device = "cpu"
) -> tuple[LanguageModel, Tokenizer, dict[str, Any]]:
    """As `load_model`, for a language model."""
    model, tokenizer, generation = _load(path, device, "language_model")
    assert isinstance(model, LanguageModel)
    return model, tokenizer, generation


OTHER = {
    "translation": "this is a translation model, not a language model; use phraseloom translate or score",
    "language_model": "this is a language model, where a translation model is needed; phraseloom generate and score take it",
}


def _load(path: str | Path, device: str | torch.device, task: str) -> tuple[nn.Module, Tokenizer, dict[str, Any]]:
    device, folder = usable(device), find_model(path)
    listed = read_manifest(folder)
    for name in (CONFIG, WEIGHTS, GENERATION, f"{TOKENIZER}/tokenizer.json"):
        if name not in listed:
            raise CorruptError(f"the manifest does not name {name}", file=folder / MANIFEST)
    _check_sizes(folder, listed)
    large = [name for name in listed if name.endswith(".safetensors")]
    verify_files(folder, {name: entry for name, entry in listed.items() if name not in large})
    raw, config = read_config(folder)
    if (stored_task := task_of(config)) != task:
        message, _, hint = OTHER[stored_task].partition("; ")
        raise ModelError(message, file=folder, hint=hint)
    tokenizer = Tokenizer.load(own_folder(folder, TOKENIZER, "tokenizer"))
    described = raw.get("vocabularies")
    for name, side_name in TASKS[task].sides.items():
        side = getattr(tokenizer, side_name)
        entry = described.get(name) if isinstance(described, dict) else None
        if not isinstance(entry, dict):
            raise CorruptError(f"no vocabularies.{name} with its size and sha256", file=folder / CONFIG)
        if entry.get("sha256") != side.vocabulary.sha256:
            size = entry.get("size")
            raise ModelError(
                f"the {name} vocabulary ({len(side.vocabulary)} entries) is not the one this model was trained with "
                f"({str(size)[:20]} entries)",
                file=folder / TOKENIZER,
            )
    check_weights(config, tokenizer, folder / WEIGHTS)
    verify_files(folder, {name: listed[name] for name in large})
    with NothingDrawn():  # so loading does not change the caller's random state either
        model = build(config, tokenizer).to(device)
    tensors = load_tensors(folder / WEIGHTS)
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ModelError(f"parameter {name} holds NaN or infinity", file=folder / WEIGHTS)
    load_parameters(model, tensors, folder / WEIGHTS)
    return model.eval(), tokenizer, _generation(folder, listed)


def _check_sizes(folder: Path, listed: Iterable[str]) -> None:
    """Raise CorruptError for files that are too large for a model: hashing them could take hours."""
    sizes = {name: (folder / name).stat().st_size for name in listed}
    weights = sizes.pop(WEIGHTS)
    optimizer = sizes.pop(OPTIMIZER, 0)
    if optimizer > 4 * weights + MIB:
        raise CorruptError(f"{optimizer:,} bytes for a model of {weights:,}", file=folder / OPTIMIZER)
    others = sum(size for name, size in sizes.items() if not name.startswith(f"{TOKENIZER}/"))
    if others > REST_MAX_BYTES:
        raise CorruptError(f"{others:,} bytes beside the weights; a model has less than 1 GiB", file=folder / MANIFEST)


def check_weights(config: AnyModelConfig, tokenizer: Tokenizer, file: Path) -> None:
    """Compare the header of a weights file with the parameters of a configuration, without allocating memory for them.

    Raises CorruptError for an incomplete safetensors file; ModelError for the first parameter that is missing, extra, of
    another shape or not floating point, and for a model larger than the memory of the machine.
    """
    stored = {tensor.name: tensor for tensor in read_header(file)}
    layers = sum(getattr(getattr(config, part, None), "layers", 0) for part in ("encoder", "decoder"))
    if layers > len(stored):  # each layer has parameters; do not build thousands of layers to find out
        message = f"{plural(len(stored), 'parameter')}, the configuration has {plural(layers, 'layer')}"
        raise ModelError(message, file=file)
    with ShapesOnly():
        shapes = {name: tuple(p.shape) for name, p in build(config, tokenizer).named_parameters()}
    _compare(shapes, stored, file)
    needed, memory = 4 * sum(t.size for t in stored.values()), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ModelError(f"the model needs {needed:,} bytes of memory, this machine has {memory:,}", file=file)


def _compare(shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, TensorInfo], file: Path) -> None:
    """Raise ModelError for the first parameter that does not fit."""
    for name, shape in shapes.items():
        if name not in stored:
            raise ModelError(f"parameter {name} is missing", file=file)
        if stored[name].shape != shape:
            shapes_text = f"{stored[name].shape}, the configuration says {shape}"
            raise ModelError(f"parameter {name} has shape {shapes_text}", file=file)
        if stored[name].dtype not in FLOATS:
            raise ModelError(f"parameter {name} is of type {stored[name].dtype}, not of floating point", file=file)
    if extra := sorted(stored.keys() - shapes.keys()):
        raise ModelError(f"parameter {extra[0][:200]} is not of this model", file=file)


def read_generation(folder: Path) -> dict[str, Any]:
    """The generation settings of a model folder, unchanged. Raises FileProblem, CorruptError."""
    path = inside(folder, GENERATION, "generation settings")
    value = read_json(path, "generation settings", limit=CONFIG_MAX_BYTES)
    if not isinstance(value, dict):
        raise CorruptError("generation settings are an object", file=path)
    return value


def _generation(folder: Path, listed: Iterable[str]) -> dict[str, Any]:
    """The generation settings, with `lexicon` as a path in the folder; a path outside the folder is dropped."""
    value = read_generation(folder)
    lexicon = value.get("lexicon")
    if lexicon is None:
        return value
    if lexicon == LEXICON and LEXICON in listed:
        return {**value, "lexicon": str(inside(folder, LEXICON, "lexicon"))}
    logger.warning(
        "%s names the lexicon %s, which is not a file of the model: not read; give it with --lexicon FILE, or train again",
        folder / GENERATION,
        escape_controls(repr(lexicon))[:200],
    )
    return {**value, "lexicon": None}


def change_generation(path: str | Path, changes: Mapping[str, Any]) -> Path:
    """Update the generation settings of the model at `path`; returns its folder.

    The model folder is always complete, with the old or the new settings. Raises CorruptError, FileProblem, ModelError.
    """
    if parse_address(path) is not None:
        raise UsageError("a model on the Hub is not changed", file=path, hint="phraseloom hub pull it, and change that")
    folder = find_model(path)
    with FolderLock(folder):
        settings = {**read_generation(folder), **changes}
        replace_listed(folder, GENERATION, json_bytes(settings))
    return folder


def load_segmenter_of(path: str | Path) -> Segmenter | None:
    """The segmenter of the model at `path`; None if the model needs none.

    Raises CorruptError, FileProblem, ModelError.
    """
    folder = find_model(path)
    entry = read_config(folder)[0].get(SEGMENTER)
    if entry is None:
        return None
    segmenter = load_segmenter(own_folder(folder, SEGMENTER, "segmenter"))
    if not isinstance(entry, dict) or entry.get("sha256") != segmenter.sha256:
        raise ModelError("the segmenter is not the one this model was trained with", file=folder / SEGMENTER)
    return segmenter


def load_parameters(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Copy named tensors into the parameters. Raises ModelError for the first that is missing, extra or of another shape."""
    parameters = _fitting(model, tensors, file)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def put_parameters(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """`load_parameters` without a copy, for a model built on the device `meta`: the tensors become its parameters."""
    for name, parameter in _fitting(model, tensors, file).items():
        torch.utils.swap_tensors(parameter, nn.Parameter(tensors[name], requires_grad=parameter.requires_grad))


def _fitting(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> dict[str, nn.Parameter]:
    """The parameters by name. Raises ModelError for the first that is missing, extra or of another shape."""
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if name not in tensors:
            raise ModelError(f"parameter {name} is missing", file=file)
        if tensors[name].shape != parameter.shape:
            shapes = f"{tuple(tensors[name].shape)}, the configuration says {tuple(parameter.shape)}"
            raise ModelError(f"parameter {name} has shape {shapes}", file=file)
    if extra := sorted(set(tensors) - set(parameters)):
        raise ModelError(f"parameter {extra[0]} is not of this model", file=file)
    return parameters


def read_parameters(model: nn.Module, file: Path) -> None:
    """Check the header of a weights file and load it into the parameters of a model. Raises CorruptError, ModelError."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    _compare(shapes, {tensor.name: tensor for tensor in read_header(file)}, file)
    load_parameters(model, load_tensors(file), file)
