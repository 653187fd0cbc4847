"""The records of steps: `step.json` in the folder of each step, and whether its files are still complete.

    {"format": 1, "step", "identity", "argv", "status": "running" | "done" | "failed", "exit", "message", "seconds",
     "attempts": [{"began", "seconds", "exit", "commit"}], "inputs": {name: {"bytes", "mtime_ns", "ctime_ns", "sha256"}},
     "needs": {identity of a step: SHA-256 of its outputs}, "outputs": {name: {"bytes", "sha256"}}, "phraseloom", "commit",
     "machine", "flop"}

A step is done if its record says so for the same identity, every output has its size, every file of the data root is the one
that was read (`steps.changed`), and no step that it needs was repeated with another result; otherwise it is run (again).
A training resumes, unless what it reads has changed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from phraseloom import __version__
from phraseloom.errors import PhraseloomError
from phraseloom.files import (
    MANIFEST,
    atomic_write_json,
    available_cores,
    json_bytes,
    read_json,
    read_manifest,
    sha256_file,
)
from phraseloom.reproduce.steps import Step, changed, in_order
from phraseloom.reproduce.table import RECORD

LOG = "log.txt"
SOURCE = Path(__file__).resolve().parents[3]  # the root of the checkout, if phraseloom runs from one
GIT_SECONDS = 20
LONGEST_SECONDS = 1e10  # more is no time of a step
COMMIT_DIGITS = 10
UNLISTED = {"checkpoints", RECORD, LOG, ".lock"}  # checkpoints have manifests of their own
JOURNAL = {"run.json", "train.log", "metrics.jsonl", "timing.jsonl", "curves.png"}  # of a run: times, other each time
State = Literal["done", "failed", "stopped", "changed", "new"]


@dataclass(frozen=True)
class Record:
    """The record of a step and its `state`. `changed`: how what the step read differs now, by file of the data root or step."""

    state: State
    content: dict[str, Any]
    changed: Mapping[str, str] = field(default_factory=dict)

    @property
    def commits(self) -> set[str]:
        """The commits that ran its attempts; old records know the last one only."""
        found = [self.content, *self.content.get("attempts", [])]
        return {str(commit) for part in found if (commit := part.get("commit"))}

    @property
    def seconds(self) -> float:
        """Wall time: of a training that of all attempts, of another step that of the last one."""
        return float(self.content.get("seconds", 0.0))

    @property
    def message(self) -> str:
        """The last message of a failed step."""
        return str(self.content.get("message", ""))


def read_record(step: Step) -> Record:
    """The record of a step; "new" if there is none or it is damaged."""
    path = step.folder / RECORD
    if not path.is_file():
        return Record("new", {})
    try:
        content = read_json(path, "record of a step")
    except PhraseloomError:
        return Record("new", {})
    if not isinstance(content, dict) or content.get("identity") != step.identity or content.get("format") != 1:
        return Record("new", {})
    if not _is_sound(content):
        return Record("new", {})
    status = content.get("status")
    different: dict[str, str] = {}
    if status == "done" or step.trains:
        different = changed(step, content["inputs"]) if "inputs" in content else changed(step, {}, _began(step))
        different |= _repeated(step, content.get("needs"))
    if different:
        return Record("changed", content, different)
    if status == "failed":
        return Record("failed", content)
    if status != "done" or not _is_complete(step.folder, content.get("outputs")):
        return Record("stopped", content)
    return Record("done", content)


def _is_sound(content: Mapping[str, Any]) -> bool:
    """Whether the values that are computed with have their types; old records lack some of them."""
    attempts = content.get("attempts", [])
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        return False
    ended = (attempt["seconds"] for attempt in attempts if attempt.get("seconds") is not None)
    listed = content.get("outputs", {})
    return (
        all(type(t) in (int, float) and 0 <= t < LONGEST_SECONDS for t in (content.get("seconds", 0.0), *ended))
        and isinstance(listed, dict)
        and all(isinstance(entry, dict) for entry in listed.values())
        and isinstance(content.get("machine", {}), dict)
        and isinstance(content.get("inputs", {}), dict)
        and isinstance(content.get("message", ""), str)
    )


def _repeated(step: Step, known: object) -> dict[str, str]:
    """The steps that `step` needs that were repeated with another result since. Old records do not know them."""
    if not isinstance(known, dict):
        return {}
    now = needs(step)
    again = [n for n in step.needs if n.identity in now and known.get(n.identity, now[n.identity]) != now[n.identity]]
    return {need.title: "repeated, with another result" for need in again}


def needs(step: Step) -> dict[str, str]:
    """Identity and SHA-256 of the outputs of each step that `step` needs; those that are not done are left out."""
    result = {}
    for need in step.needs:
        try:
            content = read_json(need.folder / RECORD, "record of a step")
            listed = {
                n: e["sha256"] for n, e in content["outputs"].items() if not need.trains or Path(n).name not in JOURNAL
            }
        except (PhraseloomError, KeyError, TypeError, AttributeError):
            continue
        if content.get("status") == "done":
            result[need.identity] = hashlib.sha256(json_bytes(listed)).hexdigest()
    return result


def _began(step: Step) -> float:
    """The earliest start of a step and the steps that it needs, from their records; 0 if one has no start.

    Old records have no `inputs` and are judged by this time.
    """
    times = []
    for needed in in_order([step]):
        try:
            content = read_json(needed.folder / RECORD, "record of a step")
            times.append(datetime.fromisoformat(content["attempts"][0]["began"]).timestamp())
        except (PhraseloomError, KeyError, IndexError, TypeError, ValueError):
            return 0.0
    return min(times)


def unsettled(steps: Iterable[Step], records: Mapping[str, Record]) -> set[str]:
    """Identities of the steps, in an order in which they can run, that are done and need one that is not, directly or not."""
    open_, result = {identity for identity, record in records.items() if record.state != "done"}, set()
    for step in steps:
        if step.identity not in open_ and any(need.identity in open_ for need in step.needs):
            open_.add(step.identity)
            result.add(step.identity)
    return result


def begin(step: Step, old: Record, *, inputs: Mapping[str, Any], flop: float | None, began: str) -> dict[str, Any]:
    """Record that a step is running. Returns the content of the record."""
    commit = source_commit()
    earlier = _closed(step, old.content.get("attempts", []))
    attempts = [*earlier, {"began": began, "seconds": None, "exit": None, "commit": commit}]
    content = {
        "format": 1,
        "step": step.title,
        "identity": step.identity,
        "argv": list(step.argv),
        "status": "running",
        "exit": None,
        "message": "",
        "seconds": round(sum(a["seconds"] for a in earlier), 3) if step.trains else 0.0,  # other steps start anew
        "attempts": attempts,
        "inputs": dict(inputs),
        "needs": needs(step),
        "outputs": {},
        "phraseloom": __version__,
        "commit": commit,
        "machine": machine(),
        "flop": flop,
    }
    atomic_write_json(step.folder / RECORD, content)
    return content


def _closed(step: Step, attempts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The attempts; one that was killed, and so has no time, lasted until the last line of its log, or now if that is later."""
    closed = []
    for attempt in attempts:
        seconds = attempt.get("seconds")
        if seconds is None:
            try:
                ended = min((step.folder / LOG).stat().st_mtime, time.time())  # clocks of two machines may differ
                seconds = round(max(0.0, ended - datetime.fromisoformat(attempt["began"]).timestamp()), 3)
            except (OSError, KeyError, TypeError, ValueError):
                seconds = 0.0
        closed.append({**attempt, "seconds": seconds})
    return closed


def finish(step: Step, content: dict[str, Any], *, code: int, seconds: float, message: str) -> Record:
    """Record how a step ended, with the checksums of its outputs."""
    last = {**content["attempts"][-1], "seconds": round(seconds, 3), "exit": code}
    status: State = "done" if code == 0 else "stopped" if code == 3 else "failed"
    content = {
        **content,
        "status": status,
        "exit": code,
        "message": message,
        "seconds": round(content["seconds"] + seconds, 3),
        "attempts": [*content["attempts"][:-1], last],
        "outputs": outputs(step.folder) if code == 0 else {},
    }
    atomic_write_json(step.folder / RECORD, content)
    return Record(status, content)


def outputs(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file in the folder of a step. Of checkpoints, only the manifests of best and last."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(_files(folder))
    }


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if (
            path.is_symlink() and (path / MANIFEST).is_file()
        ):  # best and last of a run: the manifest names the other files
            yield path / MANIFEST
        if path.name in UNLISTED or path.is_symlink() or path.name.endswith(".tmp"):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _is_complete(folder: Path, listed: Any) -> bool:
    if not isinstance(listed, dict):
        return False
    paths = [(folder / name, entry) for name, entry in listed.items()]
    if not all(path.is_file() and path.stat().st_size == entry.get("bytes") for path, entry in paths):
        return False
    try:
        for path, _ in paths:
            if path.name == MANIFEST:  # it names files that are not listed
                read_manifest(path.parent)
    except PhraseloomError:
        return False
    return True


def commit_names(commits: Iterable[str]) -> str:
    """Commits in a few digits, such as `0123456789 with changes`."""
    return ", ".join(
        commit.partition("-")[0][:COMMIT_DIGITS] + " with changes" * ("-" in commit) for commit in sorted(commits)
    )


def source_commit(root: Path = SOURCE) -> str | None:
    """The commit of the checkout `root`, with `-dirty` if files below its `src` are changed or new; None without a checkout.

    It is not stored between calls: a table runs for days, and the checkout may move on between two steps.
    """
    if not (root / ".git").exists() or not (root / "src" / "phraseloom").is_dir():
        return None
    head = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", "src")
    return None if head is None or changes is None else head + ("-dirty" if changes else "")


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails or is not installed."""
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # status must not write the index
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine() -> dict[str, Any]:
    """This machine: processor, cores, Python."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_bytes().split(b"\n"):
            if line.startswith(b"model name"):
                return line.partition(b":")[2].decode("utf-8", "replace").strip()
    return platform.processor() or platform.machine()
