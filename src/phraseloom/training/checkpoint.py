"""Checkpoints of a run folder: written whole or not at all, read only if whole, rotated without ever losing the best.

    run/checkpoints/step_00001000/   a model folder + optimizer.safetensors + state.json + manifest.json over all files
    run/best, run/last               links to two of them

A checkpoint is built under a hidden name, every file fsynced, the manifest last, and renamed. It exists only if its
manifest verifies. The links are a convenience: what resumes is the newest whole checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from phraseloom import files
from phraseloom.errors import CorruptError, FileProblem, PhraseloomError
from phraseloom.reading import read_header
from phraseloom.replace import FolderKind, discard, move_own, point_link, remove_marked, swap
from phraseloom.training.state import Progress

__all__ = [
    "check_space",
    "disk_errors",
    "list_checkpoints",
    "load_optimizer",
    "newest_whole",
    "rotate",
    "save_checkpoint",
    "set_link",
]

FOLDER, OPTIMIZER, STATE = "checkpoints", "optimizer.safetensors", "state.json"
CHECKPOINT = FolderKind("checkpoint", needs=(STATE,))
# What shows that a hidden folder is a checkpoint of ours; config.json is written first.
MARKS = (files.MANIFEST, STATE, OPTIMIZER, "model.safetensors", "config.json")
Warn = Callable[[str], None]


def step_name(update: int) -> str:
    """The folder name of the checkpoint after `update` updates."""
    return f"step_{update:08d}"


def list_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(update, folder) of everything in the run that is named like a checkpoint, oldest first; not verified."""
    found = []
    for path in (run / FOLDER).iterdir() if (run / FOLDER).is_dir() else ():
        number = path.name.removeprefix("step_")
        if path.name.startswith("step_") and number.isascii() and number.isdigit() and path.is_dir():
            found.append((int(number), path))
    return sorted(found)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the system says about a disk into a FileProblem that says it in words."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full (or the quota is used up)" if full else f"cannot write: {error.strerror or error}"
        raise FileProblem(what, file=path, hint="the checkpoints before it are whole; mend it and run again") from error


def save_checkpoint(
    run: Path, state: Progress, tensors: dict[str, Tensor], write_model: Callable[[Path], None]
) -> Path:
    """Write the checkpoint of the present update and return its folder.

    `write_model` fills a folder with the model; `tensors` is the optimiser's state. Raises FileProblem; whatever was in the
    run before is then still there.
    """
    folder = run / FOLDER
    final, temporary, old = (folder / name for name in (step_name(state.update), ".saving", ".old"))
    made = False
    with disk_errors(final):
        try:
            files.disk.mkdir(folder)
            for stale in (temporary, old):
                remove_marked(stale, *MARKS)
            files.disk.mkdir(temporary)
            made = True
            write_model(temporary)
            files.atomic_write_bytes(temporary / OPTIMIZER, safetensors.torch.save(tensors))
            files.atomic_write_json(temporary / STATE, state.as_json())
            names = [p.relative_to(temporary).as_posix() for p in sorted(temporary.rglob("*")) if p.is_file()]
            files.write_manifest(temporary, [n for n in names if n != files.MANIFEST])
            swap(temporary, final, old)  # what is there is not whole, or of this same update
            remove_marked(old, *MARKS)
        except BaseException:
            if made:
                discard(temporary)
            raise
    return final


def set_link(run: Path, name: str, update: int | None) -> None:
    """Make `run/name` a link to the checkpoint of `update`, in one step; nothing if there is no such checkpoint."""
    if update is None or not (run / FOLDER / step_name(update)).is_dir():
        return
    text = f"{FOLDER}/{step_name(update)}"
    link = run / name
    if link.is_symlink() and str(link.readlink()) == text:
        return
    with disk_errors(link):
        point_link(link, text)


def rotate(run: Path, state: Progress, *, keep_last: int, regular_every: int, warn: Warn) -> None:
    """Delete checkpoints up to the present update except the best, the newest, and the `keep_last` newest regular ones.

    Regular are those at multiples of `regular_every`: a save made for an interruption takes no regular one's place, so an
    interrupted run ends with the same checkpoints. What cannot be deleted is reported and left.
    """
    present = [(u, p) for u, p in list_checkpoints(run) if u <= state.update]
    regular = [u for u, _ in present if u % regular_every == 0]
    keep = {*regular[-keep_last:], state.best_update, max((u for u, _ in present), default=None)}
    for update, path in present:
        if update in keep:
            continue
        gone = path.with_name(".old")
        try:
            CHECKPOINT.check(path)
            remove_marked(gone, *MARKS)
            move_own(path, gone)  # a half-deleted folder must not look like a checkpoint
            remove_marked(gone, *MARKS)
        except OSError as error:
            warn(f"cannot delete the old checkpoint {path}: {error.strerror or error}")
        except PhraseloomError as error:
            warn(f"cannot delete the old checkpoint {path}: {error}")


def newest_whole(run: Path, warn: Warn) -> tuple[Path, Progress] | None:
    """The newest checkpoint whose files all fit its manifest, and its state; each refused one is named to `warn`."""
    for update, path in reversed(list_checkpoints(run)):
        try:
            names = files.verify_manifest(path)
            for needed in (STATE, OPTIMIZER, "model.safetensors"):
                if needed not in names:
                    raise CorruptError(f"the manifest does not name {needed}", file=path / files.MANIFEST)
            state = Progress.from_json(files.read_json(path / STATE, "training state"), path / STATE)
            if state.update != update:
                raise CorruptError(f"is of update {state.update}, not of {update}", file=path / STATE)
            return path, state
        except PhraseloomError as error:
            warn(f"checkpoint refused: {error}; using the one before")
    return None


def load_optimizer(folder: Path) -> dict[str, Tensor]:
    """The optimiser's tensors of a checkpoint."""
    read_header(folder / OPTIMIZER)
    try:
        return safetensors.torch.load_file(folder / OPTIMIZER)
    except (safetensors.SafetensorError, OSError) as error:
        raise CorruptError(f"not a safetensors file: {error}", file=folder / OPTIMIZER) from error


def check_space(run: Path, parameters: int, *, checkpoints: int) -> None:
    """FileProblem unless there is room for that many checkpoints of a model of this size (12 bytes a parameter)."""
    needed = checkpoints * (12 * parameters + 2**20)
    free = shutil.disk_usage(run).free
    if free < needed:
        raise FileProblem(
            f"too little space: {checkpoints} checkpoints need {needed:,} bytes, {free:,} are free",
            file=run,
            hint="free some, or choose another --run folder",
        )
