"""Checkpoints of a run folder: written atomically, read only if complete, rotated without losing the best one.

    run/checkpoints/step_00001000/   a model folder + optimizer.safetensors + state.json + manifest.json over all files
    run/checkpoints/undone/          checkpoints of undone updates (`--from`, divergence); never read
    run/best, run/last               links to two checkpoints

A checkpoint is written under a hidden name, every file fsynced, the manifest last, and then renamed. It is complete only if its
manifest verifies. The links are for convenience: a run resumes from the newest complete checkpoint.

Averaging: each parameter is the arithmetic mean over the checkpoints, summed in float64, so the order of the
checkpoints changes at most the last bit.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from phraseloom import files
from phraseloom.errors import CorruptError, FileProblem, ModelError, PhraseloomError, UsageError
from phraseloom.models.store import CONFIG, MODEL, load_tensors, read_config
from phraseloom.options.training import differing_options
from phraseloom.replace import (
    FolderKind,
    check_folder,
    discard,
    move_own,
    new_folder,
    point_link,
    remove_marked,
    remove_own,
    swap,
)
from phraseloom.training.state import Progress

__all__ = [
    "average_checkpoints",
    "average_tensors",
    "check_space",
    "disk_errors",
    "find_checkpoint",
    "go_back",
    "is_average_of",
    "last_checkpoints",
    "list_checkpoints",
    "load_optimizer",
    "newest_whole",
    "rotate",
    "save_checkpoint",
    "save_state",
    "set_aside",
    "set_link",
    "settle",
]

FOLDER, UNDONE, OPTIMIZER, STATE = "checkpoints", "undone", "optimizer.safetensors", "state.json"
CHECKPOINT = FolderKind("checkpoint", needs=(STATE,))
# Files that identify a hidden folder as a checkpoint of phraseloom; config.json is written first.
MARKS = (files.MANIFEST, STATE, OPTIMIZER, "model.safetensors", "config.json")
Warn = Callable[[str], None]


def step_name(update: int) -> str:
    """The folder name of the checkpoint after `update` updates."""
    return f"step_{update:08d}"


def list_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(update, folder) of every folder with the name of a checkpoint, oldest first; not verified."""
    checkpoints = []
    for path in (run / FOLDER).iterdir() if (run / FOLDER).is_dir() else ():
        number = path.name.removeprefix("step_")
        if path.name.startswith("step_") and number.isascii() and number.isdigit() and path.is_dir():
            checkpoints.append((int(number), path))
    return sorted(checkpoints)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn OSError into a FileProblem with a clear message."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full (or the quota is used up)" if full else f"cannot write: {error.strerror or error}"
        hint = "fix this and run the same command again: it resumes from the newest whole checkpoint"
        raise FileProblem(what, file=path, hint=hint) from error


def save_checkpoint(
    run: Path, state: Progress, tensors: dict[str, Tensor], write_model: Callable[[Path], None]
) -> Path:
    """Write the checkpoint of the current update and return its folder.

    `write_model` writes the model into a folder; `tensors` is the state of the optimiser. Raises FileProblem, and then leaves
    the run as it was.
    """
    folder = run / FOLDER
    final, temporary, old = (folder / name for name in (step_name(state.update), ".saving", ".old"))
    is_started = False
    with disk_errors(final):
        try:
            files.disk.mkdir(folder)
            for stale in (temporary, old):
                remove_marked(stale, *MARKS)
            files.disk.mkdir(temporary)
            is_started = True
            write_model(temporary)
            files.atomic_write_bytes(temporary / OPTIMIZER, safetensors.torch.save(tensors))
            files.atomic_write_json(temporary / STATE, state.as_json())
            names = [p.relative_to(temporary).as_posix() for p in sorted(temporary.rglob("*")) if p.is_file()]
            files.write_manifest(temporary, [n for n in names if n != files.MANIFEST])
            swap(temporary, final, old)  # an old folder is incomplete, or of this same update
            remove_marked(old, *MARKS)
        except BaseException:
            if is_started:
                discard(temporary)
            raise
    return final


def save_state(run: Path, state: Progress) -> None:
    """Replace the state in the checkpoint of the current update, which is always complete. Raises FileProblem."""
    folder = run / FOLDER / step_name(state.update)
    with disk_errors(folder):
        files.replace_listed(folder, STATE, files.json_bytes(state.as_json()))


def set_link(run: Path, name: str, update: int | None) -> None:
    """Point the link `run/name` to the checkpoint of `update`, atomically; without a checkpoint remove a dangling link."""
    if update is None or not (run / FOLDER / step_name(update)).is_dir():
        if (run / name).is_symlink() and not (run / name).exists():
            with disk_errors(run / name):
                remove_own(run / name)
        return
    text = f"{FOLDER}/{step_name(update)}"
    link = run / name
    if link.is_symlink() and str(link.readlink()) == text:
        return
    with disk_errors(link):
        point_link(link, text)


def rotate(run: Path, state: Progress, *, keep_last: int, regular_every: int, warn: Warn) -> None:
    """Delete checkpoints up to the current update except the best, the newest, and the `keep_last` newest regular ones.

    Regular checkpoints are at multiples of `regular_every`. While there are fewer than `keep_last`, the newest other ones that
    were validated stay too: `regular_every` may have changed. A checkpoint saved at an interruption is not validated, so an
    interrupted run ends with the same checkpoints. A checkpoint that cannot be deleted causes a warning.
    """
    present = [(u, p) for u, p in list_checkpoints(run) if u <= state.update]
    regular = [u for u, _ in present if u % regular_every == 0][-keep_last:]
    others = [u for u, path in reversed(present) if u % regular_every and _is_validated(path, u)]
    keep = {
        *regular,
        *others[: keep_last - len(regular)],
        state.best_update,
        max((u for u, _ in present), default=None),
    }
    for update, path in present:
        if update in keep:
            continue
        gone = path.with_name(".old")
        try:
            if path.is_symlink():  # its owner moved it to another disk: remove the link only
                remove_own(path)
                continue
            CHECKPOINT.check(path)
            remove_marked(gone, *MARKS)
            move_own(path, gone)  # a half-deleted folder must not look like a checkpoint
            remove_marked(gone, *MARKS)
        except OSError as error:
            warn(f"cannot delete the old checkpoint {path}: {error.strerror or error}")
        except PhraseloomError as error:
            warn(f"cannot delete the old checkpoint {path}: {error}")


def _is_validated(path: Path, update: int) -> bool:
    """Whether a checkpoint was saved with its validation, by its state; False where this cannot be read."""
    try:
        value = files.read_json(path / STATE, "training state")
    except PhraseloomError:
        return False
    return isinstance(value, dict) and value.get("validated") == update


def set_aside(run: Path, update: int, warn: Warn) -> list[str]:
    """Move the checkpoints from `update` on into `checkpoints/undone`, newest first, and update the links; return their names.

    `last` then points to the newest remaining one. If `undone` already has a checkpoint of that name, the new one gets a number
    (`step_00000400_2`): nothing is deleted there. Raises FileProblem.
    """
    present = list_checkpoints(run)
    left = [u for u, _ in present if u < update]
    moved = [path for u, path in reversed(present) if u >= update]
    if moved and left:
        set_link(run, "last", left[-1])
    undone = run / FOLDER / UNDONE
    with disk_errors(undone):
        for path in moved:
            files.disk.mkdir(undone)
            aside = next(name for name in _names(undone / path.name) if not os.path.lexists(name))
            move_own(path, aside)
            warn(f"{path.name} is set aside as {aside}")
        if moved:
            files.disk.fsync_folder(run / FOLDER)
    for name in ("best", "last"):
        set_link(run, name, None)
    return [path.name for path in moved]


def _names(path: Path) -> Iterator[Path]:
    """A path, then its name with the numbers 2, 3 … before the suffix."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}_{number}{path.suffix}")


def _keep_log(path: Path, content: bytes) -> None:
    """Write a copy of a log under a name that no other log has; the same log is written once."""
    for name in _names(path):
        if not os.path.lexists(name):
            files.atomic_write_bytes(name, content)
            return
        if name.is_file() and not name.is_symlink() and name.read_bytes() == content:
            return


def find_checkpoint(run: Path, name: str) -> int:
    """The update of a checkpoint (`step_00000400`, `step_400`, `400`, `best`, `last`). Raises UsageError if there is none."""
    present = dict(list_checkpoints(run))
    link = run / name
    if name in ("best", "last") and link.is_symlink():
        name = link.readlink().name
    match = re.fullmatch(r"(?:step_)?0*([0-9]{1,18})", name, re.ASCII)
    update = int(match[1]) if match else None
    if update is None or update not in present:
        known = ", ".join(path.name for path in present.values()) or "none"
        raise UsageError(f"--from {name}: no such checkpoint", file=run, hint=f"this run has {known}")
    return update


def go_back(run: Path, name: str, warn: Warn) -> int:
    """Set aside all checkpoints after the one that `find_checkpoint` finds by its name; return its update.

    The log of the undone updates is stored with them. Raises UsageError if the run has no such checkpoint, CorruptError if it
    is incomplete; then nothing is moved.
    """
    update, present = find_checkpoint(run, name), dict(list_checkpoints(run))
    _read_state(present[update], update)
    newer = [u for u in present if u > update]
    metrics = run / "metrics.jsonl"
    if newer and (run / FOLDER / UNDONE).exists():
        files.require_folder(run / FOLDER / UNDONE)
    if newer and metrics.is_file():
        _keep_log(run / FOLDER / UNDONE / f"metrics_{max(newer):08d}.jsonl", metrics.read_bytes())
    set_aside(run, update + 1, warn)
    return update


def newest_whole(run: Path, warn: Warn, identity: str | None = None) -> tuple[Path, Progress] | None:
    """The newest checkpoint whose files all match its manifest, and its state; warns about each refused one.

    A checkpoint of another run than `identity` is refused too.
    """
    for update, path in reversed(list_checkpoints(run)):
        try:
            state = _read_state(path, update)
            if state.run != identity:
                raise CorruptError("belongs to another run: its identity is not that of run.json", file=path / STATE)
            return path, state
        except PhraseloomError as error:
            warn(f"checkpoint refused: {error}; using the one before")
    return None


def _read_state(path: Path, update: int) -> Progress:
    """Verify a checkpoint and read its state. Raises CorruptError."""
    names = files.verify_manifest(path)
    for needed in (STATE, OPTIMIZER, "model.safetensors"):
        if needed not in names:
            raise CorruptError(f"the manifest does not name {needed}", file=path / files.MANIFEST)
    state = Progress.from_json(files.read_json(path / STATE, "training state"), path / STATE)
    if state.update != update:
        raise CorruptError(f"is of update {state.update}, not of {update}", file=path / STATE)
    return state


def settle(folder: Path) -> None:
    """Finish an interrupted `save_state` in a complete checkpoint.

    The manifest then names one content of each file, and what a killed process had half written is gone.
    """
    manifest = files.read_json(folder / files.MANIFEST, "manifest")
    files.remove_temporaries(folder, {files.MANIFEST, *manifest["files"]})
    if any("next" in entry for entry in manifest["files"].values()):
        files.write_manifest(folder, list(manifest["files"]))


def load_optimizer(folder: Path) -> dict[str, Tensor]:
    """The tensors of the optimiser in a checkpoint."""
    return load_tensors(folder / OPTIMIZER)


def check_space(run: Path, parameters: int, *, checkpoints: int) -> None:
    """Raise FileProblem unless the disk has room for `checkpoints` of a model of this size (12 bytes a parameter)."""
    needed = checkpoints * (12 * parameters + 2**20)
    free = shutil.disk_usage(run).free
    if free < needed:
        raise FileProblem(
            f"too little space: {checkpoints} checkpoints need {needed:,} bytes, {free:,} are free",
            file=run,
            hint="free some space, or choose another --run folder",
        )


WEIGHTS, ORIGIN = "model.safetensors", "average.json"
OWN_FILES = ("optimizer.safetensors", "state.json", ORIGIN)  # files of a checkpoint that a model does not have


def average_tensors(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of safetensors files with the same names and shapes. Raises ModelError if they differ."""
    total: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    for path in paths:
        tensors = load_tensors(path)
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
    checkpoints = [path for _, path in list_checkpoints(files.require_folder(run, "run folder"))]
    if len(checkpoints) < count:
        raise FileProblem(f"{count} checkpoints are asked for, the run has {len(checkpoints)}", file=run)
    return checkpoints[-count:]


def average_checkpoints(output: Path, checkpoints: Sequence[Path], *, overwrite: bool = False) -> None:
    """Write a model folder with averaged parameters and the other files of the last checkpoint, atomically.

    All checkpoints are verified. Raises ModelError unless they have the same vocabularies, and models that compute the same.
    """
    if not checkpoints:
        raise UsageError("no checkpoint to average")
    places: dict[str, Path] = {}
    for path in checkpoints:
        if (before := places.setdefault(os.path.realpath(path), path)) is not path:
            raise UsageError(f"{path} and {before} are the same checkpoint", hint="give each checkpoint once")
    check_folder(output, MODEL, overwrite=overwrite, inputs=checkpoints)
    names = [files.verify_manifest(path) for path in checkpoints][-1]
    shared = [n for n in names if n != WEIGHTS and n not in OWN_FILES]
    last = checkpoints[-1]
    for path in checkpoints[:-1]:
        _check_options(path, last)
        for name in (n for n in shared if n.startswith(("tokenizer/", "segmenter/"))):
            if not (path / name).is_file() or files.sha256_file(path / name) != files.sha256_file(last / name):
                raise ModelError(
                    f"{name} differs from that of {last}", file=path, hint="average checkpoints of one run"
                )
    tensors = average_tensors([path / WEIGHTS for path in checkpoints])
    with new_folder(output, MODEL, overwrite=overwrite, inputs=checkpoints) as folder:
        for name in shared:
            files.atomic_write_bytes(folder / name, (last / name).read_bytes())
        files.atomic_write_bytes(folder / WEIGHTS, safetensors.torch.save(tensors))
        origin = {"checkpoints": [path.resolve().name for path in checkpoints], "weights": _weights(checkpoints)}
        files.atomic_write_json(folder / ORIGIN, {"format": 1, **origin})
        files.write_manifest(folder, [*shared, WEIGHTS, ORIGIN])


def _check_options(path: Path, last: Path) -> None:
    """Raise ModelError if two checkpoints differ in options of the model, other than those of training alone."""
    if (path / CONFIG).is_file() and files.sha256_file(path / CONFIG) == files.sha256_file(last / CONFIG):
        return
    old, new = (read_config(folder)[1].model_dump(mode="json") for folder in (path, last))
    if differing := differing_options(old, new):
        what = f"another model than that of {last} ({'; '.join(differing)})"
        raise ModelError(what, file=path, hint="average checkpoints of one model")


def _weights(checkpoints: Sequence[Path]) -> list[str]:
    """What the manifests say of the weights; checkpoints that were trained again have their names, not their weights."""
    return [str(files.read_manifest(path)[WEIGHTS]["sha256"]) for path in checkpoints]


def is_average_of(folder: Path, checkpoints: Sequence[Path]) -> bool:
    """Whether a folder has the mean of these checkpoints, with the weights that they have now."""
    if not (folder / files.MANIFEST).is_file() or not (folder / ORIGIN).is_file():
        return False
    value = files.read_json(folder / ORIGIN, "origin of an average")
    return isinstance(value, dict) and value.get("weights") == _weights(checkpoints)
