"""The logs of a run, `metrics.jsonl` and `timing.jsonl`, for plots and descriptions.

If a run was killed while it wrote a line and was resumed later, a log has incomplete lines: they are skipped and counted. If an
update has several lines, the last one counts.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from phraseloom.reading import inside
from phraseloom.text.lines import read_lines

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class RunHistory:
    """The `training` and `validation` records of a run and `seconds` of wall time since its start, by update.

    `best`: the updates of validations that were the best so far, as the run itself judged.
    """

    name: str
    training: dict[int, dict[str, Any]] = field(default_factory=dict)
    validation: dict[int, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    best: set[int] = field(default_factory=set)
    unreadable: int = 0

    def curve(self, key: str, *, of: str = "training") -> Curve:
        """(updates, values) of one key, in the order of updates; values that are not finite numbers are skipped."""
        records = self.training if of == "training" else self.validation
        points = [(u, float(r[key])) for u, r in sorted(records.items()) if is_finite(r.get(key))]
        return np.array([u for u, _ in points], dtype=float), np.array([v for _, v in points], dtype=float)

    def clock(self) -> Curve:
        """(updates, seconds), both increasing; two empty arrays without timing."""
        updates, seconds = [0.0], [0.0]
        for update, second in sorted(self.seconds.items()):
            if update > updates[-1] and second > seconds[-1]:
                updates.append(float(update))
                seconds.append(second)
        if len(updates) < 2:
            return np.zeros(0), np.zeros(0)
        return np.array(updates), np.array(seconds)

    def at_time(self, updates: np.ndarray) -> np.ndarray | None:
        """Seconds at each update, interpolated; None without timing."""
        known, seconds = self.clock()
        return np.interp(updates, known, seconds) if len(known) else None


def read_history(folder: str | Path) -> RunHistory:
    """The history of a run folder, empty if the files are missing. Raises FileProblem for unreadable files."""
    folder = Path(folder)
    history = RunHistory(folder.resolve().name)
    unreadable = 0
    for file in (METRICS, TIMING):
        records, bad = read_records(folder / file)
        unreadable += bad
        for record in records:
            _add(history, record)
    return RunHistory(history.name, history.training, history.validation, history.seconds, history.best, unreadable)


def read_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects with an update number in a file of JSON lines, and the number of unreadable lines."""
    if not path.exists():
        return [], 0
    records, bad = [], 0
    for line in read_lines(inside(path.parent, path.name, "log of the run"), invalid="replace"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and _is_update(record.get("update")):
            records.append(record)
        else:
            bad += 1
    return records, bad


def training_speed(folder: Path) -> dict[str, float | None]:
    """`seconds` of wall time of a training and its target `tokens_per_second`; None without timing.

    `reproduce` stores all of them in `table.json`.
    """
    records, _ = read_records(folder / TIMING)
    seconds = max((float(r["seconds"]) for r in records if is_finite(r.get("seconds"))), default=0.0)
    tokens = max((r["target_tokens"] for r in records if is_finite(r.get("target_tokens"))), default=0)
    return {"seconds": seconds or None, "tokens_per_second": tokens / seconds if seconds and tokens else None}


def _add(history: RunHistory, record: dict[str, Any]) -> None:
    update = record["update"]
    if isinstance(record.get("validation"), dict):
        history.validation.setdefault(update, {}).update(record["validation"])
        if record.get("best") is True:
            history.best.add(update)
    if is_finite(record.get("seconds")):
        history.seconds[update] = float(record["seconds"])
    if "loss" in record or "nll" in record:
        history.training[update] = record


def _is_update(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value of a log is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Whether a value of a log is a finite number."""
    return is_number(value) and math.isfinite(value)
