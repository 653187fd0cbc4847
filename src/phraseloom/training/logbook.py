"""What a run writes down: `metrics.jsonl` (the same bytes however often it was interrupted), `timing.jsonl`, `train.log`.

`metrics.jsonl` has one object an update, `{"update", "epoch", "loss", "nll", "lr", "grad_norm", "tokens",
"source_tokens"}` (loss and nll per target token, in nats; `"skipped": true` and nulls where a step was not finite), and one a
validation, `{"update", "validation": {"perplexity", "loss"?, "cosine_loss"?, "nll", "tokens", "bleu"?, "signature"?}, "best"}`.
Whatever depends on the clock is in `timing.jsonl`: `{"update", "seconds", "source_tokens", "target_tokens"}`, all since the
start of the run, at each line of the log and each validation.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import IO, Any

from phraseloom import files
from phraseloom.errors import FileProblem, escape_controls
from phraseloom.reading import MIB, inside, read_bounded
from phraseloom.training.checkpoint import disk_errors

__all__ = ["METRICS", "TIMING", "Logbook", "read_records"]

MAX_LOG_BYTES = 1024 * MIB
METRICS, TIMING, LOG = "metrics.jsonl", "timing.jsonl", "train.log"


def read_records(path: Path, update: int | None = None, validated: int = -1) -> tuple[list[dict[str, Any]], bytes]:
    """The whole objects of a JSON-lines file and their bytes; lines that are not whole (a crash) are left out.

    With `update`, only those up to that update, and validations only up to `validated`.
    """
    if not path.is_file():
        return [], b""
    records, kept = [], bytearray()
    for line in read_bounded(inside(path.parent, path.name), "log of the run", MAX_LOG_BYTES).split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or not isinstance(record.get("update"), int):
            continue
        if update is not None and record["update"] > (validated if "validation" in record else update):
            continue
        records.append(record)
        kept += line + b"\n"
    return records, bytes(kept)


def finite(value: float) -> float | None:
    """`value`, or None where JSON has no word for it."""
    return value if math.isfinite(value) else None


class Logbook:
    """The three files of a run, opened at the update a run starts or resumes from."""

    def __init__(self, run: Path, update: int = 0, validated: int = -1) -> None:
        self.run = run
        self.start = time.monotonic()
        self.before = 0.0
        self.tokens = (0, 0)
        for name in (METRICS, TIMING, LOG):
            if os.path.lexists(run / name):  # a pipe would wait, and a link leads out of the run
                inside(run, name, "log of the run")
        for name in (METRICS, TIMING):
            records, kept = read_records(run / name, update, validated)
            if name == TIMING and records:
                last = records[-1]
                self.before = float(last.get("seconds", 0.0))
                self.tokens = (int(last.get("source_tokens", 0)), int(last.get("target_tokens", 0)))
            if not (run / name).is_file() or (run / name).stat().st_size != len(kept):
                files.atomic_write_bytes(run / name, kept)
        self.missing = _gap(run / METRICS, update)
        self._handles: dict[str, IO[bytes]] = {}
        try:
            for name in (METRICS, TIMING, LOG):
                with disk_errors(run / name):
                    self._handles[name] = files.disk.open(run / name, "ab")
        except FileProblem:
            self.close()
            raise

    def seconds(self) -> float:
        """Wall time spent on this run so far, all sittings together."""
        return self.before + time.monotonic() - self.start

    def metrics(self, record: dict[str, Any]) -> None:
        """Add one record to `metrics.jsonl`."""
        self._append(METRICS, json.dumps(record, allow_nan=False, ensure_ascii=False))

    def timing(self, update: int) -> None:
        """Note the clock and the tokens seen at an update."""
        source, target = self.tokens
        record = {
            "update": update,
            "seconds": round(self.seconds(), 3),
            "source_tokens": source,
            "target_tokens": target,
        }
        self._append(TIMING, json.dumps(record))

    def count(self, source: int, target: int) -> None:
        """Add tokens that an update has used."""
        self.tokens = (self.tokens[0] + source, self.tokens[1] + target)

    def say(self, text: str) -> None:
        """Add a line with date and time to `train.log`."""
        self._append(LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escape_controls(text)}")

    def sync(self) -> None:
        """Wait until what was written is on the disk; done before each checkpoint."""
        for name in (METRICS, TIMING):
            with disk_errors(self.run / name):
                files.disk.fsync(self._handles[name])

    def _append(self, name: str, line: str) -> None:
        with disk_errors(self.run / name):
            files.append_line(self._handles[name], line)

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles.values():
            with contextlib.suppress(OSError):  # what could not be written was reported when it was
                handle.close()


def _gap(path: Path, update: int) -> int:
    """How many updates before `update` have no record (a damaged file)."""
    records, _ = read_records(path)
    return update - sum("loss" in r for r in records)
