"""The two files that identify a run: written when it starts, compared when it resumes.

run/config.yaml     the recipe, fully resolved
run/run.json        the dataset, software versions, initial embeddings or model, and the identity of the run
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from phraseloom import __version__, files
from phraseloom.config import NUMBERS, read_yaml
from phraseloom.errors import CorruptError, FileProblem, UsageError
from phraseloom.options.model import fill_stored
from phraseloom.options.training import changed_keys, shaping_keys
from phraseloom.reading import MIB, inside
from phraseloom.recipe import AnyRecipe, check_recipe
from phraseloom.training.checkpoint import find_checkpoint, list_checkpoints
from phraseloom.training.embeddings import Transfer
from phraseloom.training.logbook import METRICS
from phraseloom.training.start_from import StartingPoint

__all__ = [
    "accept_changes",
    "check_place",
    "note_collapse",
    "note_pieces",
    "note_start",
    "note_transfers",
    "noted_collapse",
    "noted_dataset",
    "noted_pieces",
    "noted_rotation",
    "prepare_folder",
    "run_identity",
]

CONFIG, FACTS = "config.yaml", "run.json"
OF_THE_START = ("training.start_from", "training.embeddings", "model.init.", "model.init:")
"""Keys that make the weights with which a run begins."""


def check_place(run: Path, go_back_to: str | None) -> None:
    """Raise UsageError unless `run` is new, empty or a run folder, with the checkpoint `go_back_to`; writes nothing."""
    try:
        names = [p.name for p in run.iterdir() if not p.name.startswith(".")] if run.is_dir() else []
    except OSError as error:
        raise files.disk_problem(error, run) from error
    if names and CONFIG not in names and not set(names) <= {FACTS, "train.log"}:
        hint = "choose another --run folder"
        raise UsageError(f"not a run folder, and not empty ({min(names)} is there)", file=run, hint=hint)
    if go_back_to is not None:
        find_checkpoint(run, go_back_to)


def prepare_folder(recipe: AnyRecipe, run: Path, fingerprint: str, *, allow_changed: bool) -> list[str]:
    """Write the recipe and the facts into a new run folder, or compare them with those of an old one.

    Returns the differences, which `accept_changes` writes once it is clear that the run can be resumed with them. A run that
    stopped before its first update has none: it begins anew with the recipe. Raises UsageError for a change of the training
    steps, unless `allow_changed`, and for one of the start once there is a checkpoint.
    """
    new = recipe.model_dump(mode="json")
    for name in (CONFIG, FACTS):
        if os.path.lexists(run / name):  # a write would follow a link
            inside(run, name)
    if not (run / CONFIG).is_file() or _is_untouched(run):
        files.atomic_write_json(run / FACTS, {**_facts(fingerprint), "run": _identity(new, fingerprint)})
        files.atomic_write_text(run / CONFIG, dump_yaml(new))
        return []
    value, places = read_yaml(inside(run, CONFIG, "recipe of the run"))
    if "model" in value:
        value["model"] = fill_stored(value["model"])
    old = check_recipe(value, file=run / CONFIG, places=places).model_dump(mode="json")
    refused, allowed = changed_keys(old, new)
    if list_checkpoints(run) and (late := [change for change in refused if change.startswith(OF_THE_START)]):
        what = f"this run has checkpoints, and these keys count only when a run begins: {'; '.join(late)}"
        raise UsageError(what, file=run, hint="set them back, or choose another --run folder")
    if old["data"]["tokenizer"] or new["data"]["tokenizer"]:  # `prepare` reads no such options then
        allowed = [change for change in allowed if not change.startswith(("data.text.", "data.subwords."))]
    if (earlier := noted_dataset(run)) != fingerprint:
        refused.append(f"dataset: {earlier[:12]} → {fingerprint[:12]} (another content)")
    if refused and not allow_changed:
        raise UsageError(
            f"this run was made from another recipe ({'; '.join(refused)})",
            file=run,
            hint="choose another --run folder, or give --allow-changed to continue with the changes",
        )
    return refused + allowed


def _is_untouched(run: Path) -> bool:
    """Whether a run has no checkpoint and no record of an update: something stopped it before the first."""
    metrics = run / METRICS
    return not list_checkpoints(run) and not (os.path.lexists(metrics) and metrics.stat().st_size)


def accept_changes(recipe: AnyRecipe, run: Path, fingerprint: str, *, update: int | None = None) -> None:
    """Write the recipe and the dataset with which a run is resumed into its folder.

    `update`: the newest update, if other checkpoints are kept after it.
    """
    _add(run, dataset=fingerprint, **({} if update is None else {"rotation_changed_after": update}))
    files.atomic_write_text(run / CONFIG, dump_yaml(recipe.model_dump(mode="json")))


def noted_rotation(run: Path) -> int | None:
    """The update after which a changed recipe keeps other checkpoints of a run; None if there is no such change."""
    facts = _read(run) if (run / FACTS).is_file() else None
    update = facts.get("rotation_changed_after") if isinstance(facts, dict) else None
    return update if isinstance(update, int) else None


def _facts(fingerprint: str) -> dict[str, Any]:
    return {
        "format": 1,
        "phraseloom": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "dataset": fingerprint,
    }


def _read(run: Path) -> Any:
    return files.read_json(inside(run, FACTS), "facts of the run", limit=MIB)


def _add(run: Path, /, **facts: Any) -> None:
    """Write `facts` into those of a run."""
    files.atomic_write_json(run / FACTS, {**_read(run), **facts})


def noted_dataset(run: Path) -> str:
    """The fingerprint of the dataset of a run. Raises CorruptError where its facts have none."""
    facts = _read(run)
    if not isinstance(facts, dict) or "dataset" not in facts:
        raise CorruptError("does not name the dataset of the run", file=run / FACTS)
    return str(facts["dataset"])


def _identity(recipe: dict[str, Any], fingerprint: str, origin: str | None = None) -> str:
    """A hash of everything that determines the steps of a run; two runs of one recipe have the same identity."""
    shape = {"dataset": fingerprint, "recipe": shaping_keys(recipe)} | (
        {} if origin is None else {"start_from": origin}
    )
    return hashlib.sha256(files.json_bytes(shape)).hexdigest()[:32]


def run_identity(run: Path) -> str | None:
    """The identity in the facts of a run; None in a folder without facts, or from an earlier version."""
    if not (run / FACTS).is_file():
        return None
    facts = _read(run)
    identity = facts.get("run") if isinstance(facts, dict) else None
    if not (identity is None or isinstance(identity, str)):
        raise CorruptError(f"run is {identity!r}", file=run / FACTS)
    return identity


def note_transfers(run: Path, transfers: Sequence[Transfer]) -> None:
    """Write the initial embeddings of a new run into its facts."""
    if transfers:
        _add(run, embeddings=[transfer.facts for transfer in transfers])


def noted_pieces(run: Path) -> int | None:
    """The number of micro-batches of an update that `micro_batches: per_process` gave a run; None in a new run."""
    if not (run / FACTS).is_file():
        return None
    facts = _read(run)
    pieces = facts.get("micro_batches") if isinstance(facts, dict) else None
    if not (pieces is None or (type(pieces) is int and pieces > 0)):
        raise CorruptError(f"micro_batches is {pieces!r}", file=run / FACTS)
    return pieces


def note_pieces(run: Path, pieces: int) -> None:
    """Write the number of micro-batches of an update into the facts of a new run."""
    _add(run, micro_batches=pieces)


def note_collapse(run: Path, parts: Sequence[str]) -> None:
    """Write the collapsed parts of the new model (training/start.py) into the facts of a run; none for a good start."""
    facts = _read(run)
    without = {key: value for key, value in facts.items() if key != "collapsed"}
    if parts or without != facts:
        files.atomic_write_json(run / FACTS, without | ({"collapsed": list(parts)} if parts else {}))


def noted_collapse(run: Path) -> list[str]:
    """The parts of the model that were collapsed when a run started; empty if none, or if nothing is known."""
    try:
        facts = _read(run)
    except FileProblem:  # the caller reports another error
        return []
    parts = facts.get("collapsed") if isinstance(facts, dict) else None
    return [str(part) for part in parts] if isinstance(parts, list) else []


def note_start(recipe: AnyRecipe, run: Path, fingerprint: str, start: StartingPoint) -> None:
    """Write the initial model of a new run into its facts; its weights are part of the identity."""
    identity = _identity(recipe.model_dump(mode="json"), fingerprint, start.facts["sha256"])
    _add(run, run=identity, start_from=start.facts)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in NUMBERS:  # text that our reader takes for a number, such as 1e-3, is quoted
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def dump_yaml(value: dict[str, Any]) -> str:
    """Plain data as YAML without aliases, as in a recipe."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
