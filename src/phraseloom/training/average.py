"""Averaging checkpoints: each parameter of the result is the arithmetic mean of it over the checkpoints (spec §7).

The sum is taken in float64, so the result does not depend on the order of the checkpoints beyond the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from phraseloom import files
from phraseloom.errors import CorruptError, FileProblem, ModelError, UsageError
from phraseloom.models.store import MODEL
from phraseloom.reading import read_header
from phraseloom.replace import check_folder, new_folder
from phraseloom.training.checkpoint import list_checkpoints

__all__ = ["average_checkpoints", "average_tensors", "averaged_from", "last_checkpoints"]

WEIGHTS, ORIGIN = "model.safetensors", "average.json"
OWN_FILES = ("optimizer.safetensors", "state.json", ORIGIN)  # a checkpoint's, not a model's


def average_tensors(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of safetensors files with the same names and shapes; ModelError where they differ."""
    total: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    for path in paths:
        read_header(path)
        try:
            tensors = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise CorruptError(f"not a safetensors file: {error}", file=path) from error
        if not first:
            first = tensors
            total = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in tensors.items()}
        if tensors.keys() != total.keys() or any(tensors[n].shape != total[n].shape for n in total):
            different = sorted(tensors.keys() ^ total.keys()) or [
                n for n in total if tensors[n].shape != total[n].shape
            ]
            raise ModelError(f"parameter {different[0]} does not fit that of {paths[0]}", file=path)
        for name, tensor in tensors.items():
            total[name] += tensor.double()
    return {name: (t / len(paths)).to(first[name].dtype) for name, t in total.items()}


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """The newest `count` checkpoints of a run, oldest first."""
    found = [path for _, path in list_checkpoints(files.require_folder(run, "run folder"))]
    if len(found) < count:
        raise FileProblem(f"{count} checkpoints are asked for, the run has {len(found)}", file=run)
    return found[-count:]


def average_checkpoints(output: Path, checkpoints: Sequence[Path], *, overwrite: bool = False) -> None:
    """Write a model folder with the averaged parameters; everything else is that of the last checkpoint given.

    All checkpoints are verified, and must be of one model and one vocabulary. The folder appears whole or not at all.
    """
    if not checkpoints:
        raise UsageError("no checkpoint to average")
    check_folder(output, MODEL, overwrite=overwrite, inputs=checkpoints)
    names = [files.verify_manifest(path) for path in checkpoints][-1]
    shared = [n for n in names if n != WEIGHTS and n not in OWN_FILES]
    last = checkpoints[-1]
    for path in checkpoints[:-1]:
        for name in (n for n in shared if n == "config.json" or n.startswith(("tokenizer/", "segmenter/"))):
            if not (path / name).is_file() or files.sha256_file(path / name) != files.sha256_file(last / name):
                raise ModelError(
                    f"{name} differs from that of {last}", file=path, hint="average checkpoints of one run"
                )
    tensors = average_tensors([path / WEIGHTS for path in checkpoints])
    with new_folder(output, MODEL, overwrite=overwrite, inputs=checkpoints) as folder:
        for name in shared:
            files.atomic_write_bytes(folder / name, (last / name).read_bytes())
        files.atomic_write_bytes(folder / WEIGHTS, safetensors.torch.save(tensors))
        origin = [path.resolve().name for path in checkpoints]
        files.atomic_write_json(folder / ORIGIN, {"format": 1, "checkpoints": origin})
        files.write_manifest(folder, [*shared, WEIGHTS, ORIGIN])


def averaged_from(folder: Path) -> list[str]:
    """The names of the checkpoints that an averaged model folder was made from; empty if it is none."""
    if not (folder / files.MANIFEST).is_file() or not (folder / ORIGIN).is_file():
        return []
    value = files.read_json(folder / ORIGIN, "origin of an average")
    return [str(name) for name in value.get("checkpoints", [])] if isinstance(value, dict) else []
