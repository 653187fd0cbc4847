"""The logs of a run: `metrics.jsonl` (the same bytes after any number of interruptions), `timing.jsonl`, `train.log`.

`metrics.jsonl` has one object per update, `{"update", "epoch", "loss", "nll", "lr", "grad_norm", "tokens",
"source_tokens", "examples"}` (loss and nll per target token, in nats; so is `guided`, with guided alignment;
`"skipped": true` and nulls if a step was not finite), and one per validation,
`{"update", "validation": {"perplexity", "loss"?, "cosine_loss"?, "nll", "tokens", "bleu"?, "signature"?}, "best"}`.
`timing.jsonl` has everything that depends on the clock: `{"update", "seconds", "source_tokens", "target_tokens"}`, all since
the start of the run, at each line of the log and each validation.

The display on standard error is a progress bar on a terminal, otherwise a line every N updates.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TextIO

from phraseloom import files
from phraseloom.errors import FileProblem, UsageError, escape_controls
from phraseloom.options.training import TrainingConfig
from phraseloom.reading import MIB, inside, read_bounded
from phraseloom.training.checkpoint import disk_errors

__all__ = ["METRICS", "TIMING", "Display", "Hook", "Logbook", "Tracker", "duration", "read_records"]

MAX_LOG_BYTES = 1024 * MIB
METRICS, TIMING, LOG = "metrics.jsonl", "timing.jsonl", "train.log"


def read_records(path: Path, update: int | None = None, validated: int = -1) -> tuple[list[dict[str, Any]], bytes]:
    """The objects of a JSON-lines file and their bytes; incomplete lines (after a crash) are left out.

    With `update`, only records up to that update, and validations only up to `validated`.
    """
    if not path.is_file():
        return [], b""
    records, content = [], bytearray()
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
        content += line + b"\n"
    return records, bytes(content)


def finite(value: float) -> float | None:
    """`value`, or None if it is not finite, which JSON cannot express."""
    return value if math.isfinite(value) else None


class Logbook:
    """The three files of a run, opened at the update a run starts or resumes from."""

    def __init__(self, run: Path, update: int = 0, validated: int = -1) -> None:
        self.run = run
        self.start = time.monotonic()
        self.before = 0.0
        self.tokens = (0, 0)
        for name in (METRICS, TIMING, LOG):
            if os.path.lexists(run / name):  # opening a pipe would block, and a link leads out of the run
                inside(run, name, "log of the run")
        for name in (METRICS, TIMING):
            records, content = read_records(run / name, update, validated)
            if name == TIMING and records:
                last = records[-1]
                self.before = float(last.get("seconds", 0.0))
                self.tokens = (int(last.get("source_tokens", 0)), int(last.get("target_tokens", 0)))
            if not (run / name).is_file() or (run / name).stat().st_size != len(content):
                files.atomic_write_bytes(run / name, content)
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
        """Total wall time of this run, over all its sessions."""
        return self.before + time.monotonic() - self.start

    def metrics(self, record: dict[str, Any]) -> None:
        """Add one record to `metrics.jsonl`."""
        self._append(METRICS, json.dumps(record, allow_nan=False, ensure_ascii=False))

    def timing(self, update: int) -> None:
        """Add the time and the number of tokens at an update to `timing.jsonl`."""
        source, target = self.tokens
        record = {
            "update": update,
            "seconds": round(self.seconds(), 3),
            "source_tokens": source,
            "target_tokens": target,
        }
        self._append(TIMING, json.dumps(record))

    def count(self, source: int, target: int) -> None:
        """Add the tokens of an update."""
        self.tokens = (self.tokens[0] + source, self.tokens[1] + target)

    def say(self, text: str) -> None:
        """Add a line with date and time to `train.log`."""
        self._append(LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escape_controls(text)}")

    def sync(self) -> None:
        """Flush the files to the disk; called before each checkpoint."""
        for name in (METRICS, TIMING):
            with disk_errors(self.run / name):
                files.disk.fsync(self._handles[name])

    def _append(self, name: str, line: str) -> None:
        with disk_errors(self.run / name):
            files.append_line(self._handles[name], line)

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles.values():
            with contextlib.suppress(OSError):  # the failed write raised its error already
                handle.close()


def _gap(path: Path, update: int) -> int:
    """The number of updates before `update` without a record (a damaged file)."""
    records, _ = read_records(path)
    return update - sum("loss" in r for r in records)


def duration(seconds: float) -> str:
    """h:mm:ss."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class QuietStream:
    """A text stream that discards its output once it cannot be written (no reader, a full disk, a closed terminal).

    A display failure must not end training. The broken stream itself is redirected to the null device, so that other writers
    and the last flush of the interpreter raise no error.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text` if possible."""
        try:
            if self._stream is not None:
                self._stream.write(text)
        except (OSError, ValueError):
            self._give_up()
        return len(text)

    def flush(self) -> None:
        """Flush if possible."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def isatty(self) -> bool:
        """Whether this is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        """The file descriptor. Raises OSError if there is none."""
        if self._stream is None:
            raise OSError("no stream")
        return self._stream.fileno()

    def _give_up(self) -> None:
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no real file behind it
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
            os.close(nowhere)


class Display:
    """Shows the progress of training."""

    def __init__(
        self,
        config: TrainingConfig,
        *,
        start: int,
        updates_per_epoch: int,
        seconds: float = 0.0,
        stream: TextIO | None = None,
    ) -> None:
        self.stream: Any = QuietStream(stream or sys.stderr)
        self.config = config
        ends = [config.max_updates, config.max_epochs and config.max_epochs * updates_per_epoch]
        self.total = min((e for e in ends if e), default=None)
        self.window: list[dict[str, Any]] = []
        self.since, self.first_update, self.first_second = seconds, start, seconds
        self.bar = self._make_bar(start) if self.stream.isatty() else None

    def _make_bar(self, start: int) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            console=Console(file=self.stream),
            refresh_per_second=4,
        )
        self.task = bar.add_task("training", total=self.total, completed=start, facts="")
        bar.start()
        return bar

    def update(self, record: dict[str, Any], seconds: float) -> str | None:
        """Show an update that ended at `seconds` of the run; returns a line for the log every `log_every` updates."""
        self.window.append(record)
        due = record["update"] % self.config.log_every == 0
        if self.bar is not None and (due or len(self.window) in (1, 10)):
            self.bar.update(self.task, completed=record["update"], facts=self._facts(seconds))
        if not due:
            return None
        line = f"update {record['update']} epoch {record['epoch'] + 1} {self._facts(seconds)}"
        if self.bar is None:
            print(line, file=self.stream, flush=True)
        self.window, self.since = [], seconds
        return line

    def _facts(self, seconds: float) -> str:
        good = [r for r in self.window if r.get("loss") is not None]
        tokens = sum(r["tokens"] for r in good)
        loss = sum(r["loss"] * r["tokens"] for r in good) / tokens if tokens else math.nan
        known = [r for r in good if r["nll"] is not None]
        nll = sum(r["nll"] * r["tokens"] for r in known) / tokens if known else math.nan
        spent = max(seconds - self.since, 1e-9)
        source, target = (sum(r[k] for r in self.window) / spent for k in ("source_tokens", "tokens"))
        last = self.window[-1]
        done = last["update"] - self.first_update
        per_update = (seconds - self.first_second) / max(1, done)
        left = (self.total - last["update"]) * per_update if self.total else math.inf
        if self.config.max_minutes:
            left = min(left, 60 * self.config.max_minutes - seconds)
        perplexity = math.exp(min(nll, 700.0)) if math.isfinite(nll) else math.nan
        skipped = len(self.window) - len(good)
        speed = f"{source:,.0f}+{target:,.0f}" if source else f"{target:,.0f}"
        shown = f"ppl {perplexity:.2f} " if known or not good else ""
        return (
            f"loss {loss:.4f} {shown}lr {last['lr']:.3g} {speed} tok/s "
            f"time {duration(seconds)} left {duration(left)}" + (f" skipped {skipped}" if skipped else "")
        )

    def say(self, text: str) -> None:
        """Show a message above the bar, or as a line."""
        text = escape_controls(text)
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class _Listener:
    """Something that gets the records and whose errors must not end training: after the first one it is left alone."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name, self._say, self._failed = name, say, False

    def attempt(self, call: Callable[[], object]) -> None:
        """Call unless an earlier call failed; an error becomes a warning."""
        if self._failed:
            return
        try:
            call()
        except Exception as error:
            self._failed = True
            cause = f"{type(error).__name__}: {error}".split("\n")[0]
            self._say(f"warning: {self.name} failed and is not called again ({cause})")


class Hook:
    """A function of the user, `MODULE:FUNCTION`, called with a copy of each record of `metrics.jsonl` (docs/training.md).

    Its first error is passed to `say`, and it is not called again; training continues. Raises UsageError if there is no such
    function.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        module, _, function = name.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), function)
        except Exception as error:  # the module is the user's, and may do anything
            hint = "the module must be importable: set PYTHONPATH to its folder"
            what = f"training.tracker: {name} cannot be imported ({type(error).__name__}: {error})"
            raise UsageError(what, hint=hint if isinstance(error, ImportError) else None) from error
        if not callable(self._function):
            raise UsageError(f"training.tracker: {name} is not a function")
        self._listener = _Listener(f"training.tracker {name}", say)

    def record(self, record: dict[str, Any]) -> None:
        """Call the function with a copy of the record, unless it failed before."""
        self._listener.attempt(lambda: self._function(copy.deepcopy(record)))

    def close(self) -> None:
        """Nothing: the function has no end."""


class Tracker:
    """The figures of `metrics.jsonl` as TensorBoard events in `run/tensorboard` (extra `track`).

    The first error, such as a full disk, is passed to `say`; then no more events are written, and training continues. Raises
    UsageError if tensorboard is missing, FileProblem if the events cannot be begun.
    """

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            hint = "pip install 'phraseloom[track]', or set training.tensorboard=false"
            raise UsageError("training.tensorboard needs the package tensorboard", hint=hint) from error
        with disk_errors(run / "tensorboard"):
            self.writer = SummaryWriter(str(run / "tensorboard"))
        self._listener = _Listener("training.tensorboard", say)

    def record(self, record: dict[str, Any]) -> None:
        """Add one record of `metrics.jsonl`."""
        self._listener.attempt(lambda: self._add(record))

    def _add(self, record: dict[str, Any]) -> None:
        name, values = ("validation", record["validation"]) if "validation" in record else ("training", record)
        for key, value in values.items():
            if isinstance(value, int | float) and key not in ("update", "epoch"):
                self.writer.add_scalar(f"{name}/{key}", value, record["update"])

    def close(self) -> None:
        """Flush and close the events file."""
        self._listener.attempt(self.writer.close)
