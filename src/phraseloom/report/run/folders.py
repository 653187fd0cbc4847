"""The description of a model, checkpoint, run or dataset folder as plain data, without loading torch.

`describe` reads what it can. Damage does not stop it: an entry of `problems` is one line with file and reason.
`report/run/description.py` prints the description.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phraseloom.errors import FileProblem, PhraseloomError
from phraseloom.files import MANIFEST, read_json, require_folder, verify_manifest
from phraseloom.options.model import fill_stored
from phraseloom.phrases.source import load_segmenter
from phraseloom.reading import MIB, inside, own_folder, read_header
from phraseloom.report.run.history import METRICS, read_history

Description = dict[str, Any]
WEIGHTS, STATE, INDEX, RUN_CONFIG = "model.safetensors", "state.json", "index.json", "config.yaml"


def describe(path: str | Path, *, verify: bool = True, depth: int = 1) -> Description:
    """The kind and content of a folder. Raises FileProblem if phraseloom did not write it.

    `verify` reads every file and compares checksums; parameters are grouped by the first `depth` parts of their names.
    """
    folder = require_folder(path, "model, dataset or run folder, or a recipe (.yaml)")
    if (folder / WEIGHTS).is_file() or (folder / "config.json").is_file():
        return describe_model(folder, verify=verify, depth=depth)
    if (folder / INDEX).is_file():
        return describe_dataset(folder, verify=verify)
    if any((folder / name).exists() for name in ("checkpoints", RUN_CONFIG, METRICS)):
        return describe_run(folder, verify=verify, depth=depth)
    raise FileProblem(
        "not a model (model.safetensors), dataset (index.json) or run folder (config.yaml)",
        file=folder,
        hint="phraseloom writes such folders with prepare, train and average",
    )


def describe_model(folder: Path, *, verify: bool = True, depth: int = 1) -> Description:
    """A model folder, or a checkpoint (a model folder with the state of its training)."""
    description = _start("checkpoint" if (folder / STATE).is_file() else "model", folder, verify)
    config = _try(description, lambda: _json(folder, "config.json", "model configuration"))
    if isinstance(config, dict):
        for key in ("phraseloom", "task", "languages", "vocabularies", "model"):
            description[key] = fill_stored(config.get(key)) if key == "model" else config.get(key)
        if config.get("segmenter"):
            description["segmenter"] = _try(description, lambda: str(load_segmenter(own_folder(folder, "segmenter"))))
    tensors = _try(description, lambda: read_header(inside(folder, WEIGHTS)))
    if tensors is not None:
        description["parameters"] = sum(t.size for t in tensors)
        description["parts"] = parts([(t.name, t.size) for t in tensors], depth)
        description["types"] = dict(Counter(t.dtype for t in tensors))
        stated = config.get("parameters") if isinstance(config, dict) else None
        if stated not in (None, description["parameters"]):
            description["problems"].append(
                f"config.json says {stated} parameters, {WEIGHTS} holds {description['parameters']}"
            )
    if (folder / "generation_config.json").is_file():
        description["generation"] = _try(
            description, lambda: _json(folder, "generation_config.json", "generation settings")
        )
    if (folder / STATE).is_file():
        description["training"] = _try(description, lambda: _json(folder, STATE, "training state"))
    return description


def _json(folder: Path, name: str, what: str) -> Any:
    return read_json(inside(folder, name, what), what, limit=MIB)


def parts(sizes: Sequence[tuple[str, int]], depth: int) -> list[dict[str, Any]]:
    """Named sizes by the first `depth` parts of their names, in order: {part, tensors, parameters}."""
    groups: dict[str, list[int]] = {}
    for name, size in sizes:
        names = name.split(".")
        groups.setdefault(".".join(names[: min(depth, max(1, len(names) - 1))]), []).append(size)
    return [{"part": n, "tensors": len(g), "parameters": sum(g)} for n, g in groups.items()]


def describe_run(folder: Path, *, verify: bool = True, depth: int = 1) -> Description:
    """A run folder: its updates, its checkpoints, and the model of its best (else newest) checkpoint."""
    description = _start("run", folder, False)
    description["checksums"] = None
    history = _try(description, lambda: read_history(folder))
    if history is not None and (history.training or history.validation):
        description["updates"] = max([*history.training, *history.validation])
        description["seconds"] = max(history.seconds.values(), default=None)
        description["validations"] = [{"update": u, **v} for u, v in sorted(history.validation.items())]
        description["unreadable_lines"] = history.unreadable
    description["checkpoints"] = []
    for path in sorted((folder / "checkpoints").glob("step_*")) if (folder / "checkpoints").is_dir() else []:
        problem = _damage(path) if verify else None
        whole = problem is None if verify else None
        description["checkpoints"].append({"name": path.name, "whole": whole, "problem": problem})
        if problem:
            description["problems"].append(problem)
    for link in ("best", "last", "averaged"):
        if (folder / link).is_dir():
            description[link] = (folder / link).resolve().name
            if not (folder / link).resolve().is_relative_to(folder.resolve()):
                description["problems"].append(f"{folder / link}: a link that leads out of its run folder")
    chosen = next((folder / n for n in ("best", "last") if (folder / n).is_dir()), None)
    if chosen is not None and not chosen.resolve().is_relative_to(folder.resolve()):
        chosen = None
    if chosen is not None:
        model = description["model_folder"] = describe_model(chosen, verify=False, depth=depth)
        damaged = {checkpoint["name"] for checkpoint in description["checkpoints"] if checkpoint["problem"]}
        if chosen.resolve().name not in damaged:
            description["problems"] += model["problems"]
    return description


def describe_dataset(folder: Path, *, verify: bool = True) -> Description:
    """A dataset: the content of each split, what was left out and why, and sentence lengths in subwords."""
    from phraseloom.data.corpus import Dataset
    from phraseloom.data.shards import as_stored, read_index

    description = _start("dataset", folder, verify)
    index = _try(description, lambda: read_index(folder))
    if index is None:
        return description
    dataset = _try(description, lambda: Dataset.open(folder, verify=False))
    description |= {"config": index.config, "subwords": as_stored(index.subwords.model_dump()), "splits": {}}
    if dataset is not None and dataset.segmenter is not None:
        description["segmenter"] = str(dataset.segmenter)
    for name, split in index.splits.items():
        counts = {"read", "pairs", "source_tokens", "target_tokens", "source_phrases", "dropped", "no_tree"}
        counts |= {"source_unknown", "target_unknown"}
        entry = as_stored(split.model_dump(include=counts))
        entry["files"] = as_stored([f.model_dump() for f in split.files])
        entry["shards"] = len(split.shards)
        if dataset:
            entry["lengths"] = _try(description, lambda: _lengths(dataset.split(name), dataset.is_text))  # noqa: B023
        else:
            entry["lengths"] = None
        description["splits"][name] = entry
    return description


def _lengths(split: Any, is_text: bool) -> dict[str, Any]:
    """Quantiles and a histogram (bins that double) of sentence lengths in subwords, for each side or the text."""
    import numpy as np

    result: dict[str, Any] = {}
    sides = {"source": split.source_lengths, "target": split.target_lengths}
    for side, lengths in ({"text": split.target_lengths} if is_text else sides).items():
        edges = [0, 5, 10, 20, 40, 80, 160, 320]
        counts = [int(((lengths > a) & (lengths <= b)).sum()) for a, b in zip(edges, [*edges[1:], 2**62], strict=True)]
        labels = [f"{a + 1}–{b}" for a, b in itertools.pairwise(edges)] + [f">{edges[-1]}"]
        quantiles = [int(q) for q in np.quantile(lengths, [0.5, 0.9, 0.99, 1.0])] if len(lengths) else [0, 0, 0, 0]
        names = ("median", "p90", "p99", "longest")
        result[side] = dict(zip(names, quantiles, strict=True)) | {"histogram": dict(zip(labels, counts, strict=True))}
    return result


def _start(kind: str, folder: Path, verify: bool) -> Description:
    description: Description = {"kind": kind, "folder": str(folder), "problems": [], "checksums": None}
    if verify:
        problem = _damage(folder)
        description["checksums"] = problem is None
        if problem:
            description["problems"].append(problem)
    return description


def _damage(folder: Path) -> str | None:
    """How a folder differs from its manifest; None if it does not."""
    if not (folder / MANIFEST).is_file():
        return f"{folder / MANIFEST}: missing; the folder is incomplete"
    try:
        verify_manifest(folder)
    except PhraseloomError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _try(description: Description, read: Callable[[], Any]) -> Any:
    """The result of `read`; None with a line in `problems` if the file cannot be read."""
    try:
        return read()
    except PhraseloomError as error:
        text = str(error)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}"
    if text not in description["problems"]:
        description["problems"].append(text)
    return None
