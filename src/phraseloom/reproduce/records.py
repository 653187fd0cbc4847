"""What has been run: `step.json` in the folder of each step, written whole, and what of it is still there.

    {"format": 1, "step", "identity", "argv", "status": "running" | "done" | "failed", "exit", "message", "seconds",
     "attempts": [{"began", "seconds", "exit"}], "inputs": {name: {"bytes", "mtime_ns", "sha256"}},
     "outputs": {name: {"bytes", "sha256"}}, "phraseloom", "machine", "flop"}

A step is done if its record says so for the same identity, every output has its size, and every file of the data root is the
one that was read (inputs.py); anything else is run (again). A training goes on where it stopped, unless such a file changed.

A table from its own files: the numbers of `table.json` and the sentences beside it give its intervals and claims again.

The files of tables: which there are, the one of a name, and reading it with the steps that its scales use.
"""

from __future__ import annotations

import difflib
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pydantic

from phraseloom import __version__
from phraseloom.config import Places, merge, read_yaml, validate
from phraseloom.errors import CorruptError, PhraseloomError, UsageError
from phraseloom.files import MANIFEST, atomic_write_json, read_json, require_folder, sha256_file
from phraseloom.reproduce.measure import MeasuredValue, scorer_of
from phraseloom.reproduce.result import Result, compare
from phraseloom.reproduce.sentences import TableSentences, read_sentences
from phraseloom.reproduce.steps import Step, changed, in_order
from phraseloom.reproduce.table import RECORD, JsonMetric, TableConfig, TextMetric
from phraseloom.reproduce.writing import FORMAT, JSON, OLD_FORMATS, PICTURE, write

LOG = "log.txt"
UNLISTED = {"checkpoints", RECORD, LOG, ".lock"}  # checkpoints have manifests of their own
State = Literal["done", "failed", "stopped", "changed", "new"]


@dataclass(frozen=True)
class Record:
    """The record of a step, and whether it stands: `state`; `changed`: why it does not, by file of the data root."""

    state: State
    content: dict[str, Any]
    changed: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Wall time of all attempts that came to an end."""
        return float(self.content.get("seconds", 0.0))

    @property
    def message(self) -> str:
        """What a failed step said last."""
        return str(self.content.get("message", ""))


def read_record(step: Step) -> Record:
    """The record of a step; a damaged one counts as none."""
    path = step.folder / RECORD
    if not path.is_file():
        return Record("new", {})
    try:
        content = read_json(path, "record of a step")
    except PhraseloomError:
        return Record("new", {})
    if not isinstance(content, dict) or content.get("identity") != step.identity or content.get("format") != 1:
        return Record("new", {})
    status = content.get("status")
    others: dict[str, str] = {}
    if status == "done" or step.trains:
        others = changed(step, content["inputs"]) if "inputs" in content else changed(step, {}, _began(step))
    if others:
        return Record("changed", content, others)
    if status == "failed":
        return Record("failed", content)
    if status != "done" or not _whole(step.folder, content.get("outputs")):
        return Record("stopped", content)
    return Record("done", content)


def _began(step: Step) -> float:
    """When the first of a step and those that it needs began, as their records say; 0 where one does not.

    Records that were written before corpora were noted have no `inputs`; they are judged by this time.
    """
    found = []
    for one in in_order([step]):
        try:
            content = read_json(one.folder / RECORD, "record of a step")
            found.append(datetime.fromisoformat(content["attempts"][0]["began"]).timestamp())
        except (PhraseloomError, KeyError, IndexError, TypeError, ValueError):
            return 0.0
    return min(found)


def begin(step: Step, old: Record, *, inputs: Mapping[str, Any], flop: float | None, began: str) -> dict[str, Any]:
    """Note that a step is running; the record of it."""
    attempts = [*old.content.get("attempts", []), {"began": began, "seconds": None, "exit": None}]
    content = {
        "format": 1,
        "step": step.title,
        "identity": step.identity,
        "argv": list(step.argv),
        "status": "running",
        "exit": None,
        "message": "",
        "seconds": old.seconds,
        "attempts": attempts,
        "inputs": dict(inputs),
        "outputs": {},
        "phraseloom": __version__,
        "machine": machine(),
        "flop": flop,
    }
    atomic_write_json(step.folder / RECORD, content)
    return content


def finish(step: Step, content: dict[str, Any], *, code: int, seconds: float, message: str) -> Record:
    """Note how a step ended, with the checksums of what it wrote."""
    last = {**content["attempts"][-1], "seconds": round(seconds, 3), "exit": code}
    status = "done" if code == 0 else "stopped" if code == 3 else "failed"
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
    return Record("done" if code == 0 else "stopped" if code == 3 else "failed", content)


def outputs(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every plain file below a step's folder; of checkpoints only the manifests of best and last."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(_files(folder))
    }


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() and (path / MANIFEST).is_file():  # best and last of a run: the manifest names the rest
            yield path / MANIFEST
        if path.name in UNLISTED or path.is_symlink() or path.name.endswith(".tmp"):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _whole(folder: Path, listed: Any) -> bool:
    if not isinstance(listed, dict):
        return False
    paths = [(folder / name, entry) for name, entry in listed.items()]
    return all(path.is_file() and path.stat().st_size == entry.get("bytes") for path, entry in paths)


def machine() -> dict[str, Any]:
    """Where this runs: processor, cores, Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": cores,
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


def recompute(folder: Path) -> Result:
    """Judge a stored table again from its own files, and write it; nothing is trained and no corpus is read.

    Raises UsageError where its sentences are not stored, CorruptError where a file is damaged or does not fit the others.
    """
    result = read_result(folder)
    write(result, folder, picture=(folder / PICTURE).is_file())
    return result


def read_result(folder: Path) -> Result:
    """The result that a folder holds, with its intervals and claims computed anew."""
    path = require_folder(folder) / JSON
    content = read_json(path, "table")
    if isinstance(content, dict) and content.get("format") in OLD_FORMATS:
        raise _not_stored(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptError(f"not a table of format {FORMAT}", file=path, hint="reproduce TABLE writes it again")
    try:
        sentences = _sentences(folder, content["sentences"])
        result = _result(content, sentences)
    except PhraseloomError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, pydantic.ValidationError) as error:
        raise CorruptError(f"not a whole table ({type(error).__name__})", file=path) from error
    _check(result, path)
    compare(result)
    return result


def _not_stored(path: Path) -> UsageError:
    hint = "reproduce TABLE writes them, from the steps that are there"
    return UsageError("the sentences of this table are not stored", file=path, hint=hint)


def _sentences(folder: Path, said: dict[str, str] | None) -> TableSentences | None:
    if said is None:
        return None
    path = folder / Path(said["file"]).name
    sentences = read_sentences(path)
    if sha256_file(path) != said["sha256"]:
        raise CorruptError(f"not the file that {JSON} was written with", file=path, hint="reproduce TABLE writes both")
    return sentences


def _result(content: dict[str, Any], sentences: TableSentences | None) -> Result:
    table = TableConfig.model_validate(content["definition"])
    result = Result(table, content["table"], content["scale"], content["seeds"], machine=content["machine"])
    result.versions, result.left_out = set(content["phraseloom"]), list(content["left_out"])
    arrays = {} if sentences is None else sentences.arrays()
    hypotheses = [] if sentences is None else sentences.hypotheses
    lines = {((h.task, h.row, metric), h.seed): tuple(h.lines) for h in hypotheses for metric in h.metrics}
    for row in content["rows"]:
        place = (row["task"], row["row"])
        if row["failures"]:
            result.failures[place] = list(row["failures"])
        if row["parameters"] is not None:
            result.counted[place] = row["parameters"]
        if row["run"]:
            result.facts[place] = {int(seed): dict(facts) for seed, facts in row["run"].items()}
        for key, entry in row["metrics"].items():
            metric, cell = table.metrics[key], (*place, key)
            seeds = result.measured.setdefault(cell, {})
            for seed, value in ((int(name), value) for name, value in entry["seeds"].items()):
                seeds[seed] = MeasuredValue(
                    value,
                    entry["missing"].get(str(seed), ""),
                    (entry["signature"] or "") if value is not None else "",
                    arrays.get((cell, seed), {}),
                    scorer_of(metric) if isinstance(metric, TextMetric | JsonMetric) else None,
                    lines.get((cell, seed), ()),
                )
    return result


def _check(result: Result, path: Path) -> None:
    """CorruptError where the stored sentences do not make the stored numbers, UsageError where a number has none."""
    for (task, row, metric), seeds in result.measured.items():
        config = result.table.metrics[metric]
        of_sentences = isinstance(config, TextMetric) or (
            isinstance(config, JsonMetric) and config.by_sentence is not None
        )
        for seed, measured in seeds.items():
            if of_sentences and measured.value is not None and not measured.statistics:
                raise _not_stored(path)
            for label, rows in measured.statistics.items():
                value = measured.value.get(label) if isinstance(measured.value, dict) else measured.value
                assert measured.scorer is not None
                made = measured.scorer.value(rows.sum(0))
                if value is None or not math.isclose(made, value, rel_tol=1e-6, abs_tol=1e-6):
                    where = " ".join(filter(None, (task, row, metric, label))) + f", seed {seed}"
                    raise CorruptError(f"the sentences of {where} make {made:g}, the table says {value}", file=path)


def find_table(name: str, recipes: Path) -> Path:
    """The file of a table: a path, or a name such as 002-table1 in RECIPES/tables. UsageError with the nearest name."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    names = [path.stem for path in all_tables(recipes)]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        there = f"tables: {', '.join(names)}" if names else "--recipes names the folder that holds tables/"
        raise UsageError(
            f"no table {name!r} in {recipes / 'tables'}", hint=f"did you mean {near[0]}?" if near else there
        )
    return recipes / "tables" / f"{name}.yaml"


def all_tables(recipes: Path) -> list[Path]:
    """The files of all tables, by name."""
    return sorted((recipes / "tables").glob("*.yaml"))


def recipes_folder() -> Path:
    """`recipes` of the present folder, or else of the checkout that this program runs from."""
    here = Path("recipes")
    checkout = Path(__file__).resolve().parents[3] / "recipes"
    return here if (here / "tables").is_dir() or not checkout.is_dir() else checkout


def load_table(path: Path) -> TableConfig:
    """Read and check a table; ConfigError names the key, the file and the line."""
    value, places = read_yaml(path)
    scales = value.get("scales")
    if isinstance(scales, dict):
        for scale, given in scales.items():
            if isinstance(given, dict) and "use" in given:
                scales[scale] = _used(path, given, places, scale)
    return validate(TableConfig, value, file=path, places=places)


def _used(path: Path, given: dict[str, Any], places: Places, scale: str) -> dict[str, Any]:
    """The keys of a scale over those of the file that it uses."""
    name = given["use"]
    if not isinstance(name, str):
        raise places[("scales", scale, "use")].problem("use names one file beside the table")
    below, _ = read_yaml(path.parent / name)
    return merge(below, {key: value for key, value in given.items() if key != "use"})
