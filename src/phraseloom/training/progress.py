"""What a user sees of a run: a bar on a terminal, a line every N updates elsewhere; both on standard error."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from phraseloom.errors import UsageError, escape_controls
from phraseloom.training.config import TrainingConfig

__all__ = ["Display", "Tracker", "duration"]


def duration(seconds: float) -> str:
    """h:mm:ss."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class QuietStream:
    """A text stream that goes silent when it can no longer be written (no reader, a full disk, a closed terminal).

    A display that fails must not end a training. The broken stream itself is pointed to nowhere as well, so that what others
    write to it, and the last flush of the interpreter, raises nothing.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text` if that is still possible."""
        try:
            if self._stream is not None:
                self._stream.write(text)
        except (OSError, ValueError):
            self._give_up()
        return len(text)

    def flush(self) -> None:
        """Flush if that is still possible."""
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
        """The number of the file; OSError without one."""
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
    """Shows updates as they come. `update` gives back the line of the log, if it is time for one."""

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
        """Take note of an update that ended at `seconds` of the run."""
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
        """Take the bar off."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class Tracker:
    """The figures of `metrics.jsonl` as TensorBoard events in `run/tensorboard` (extra `track`)."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            hint = "pip install 'phraseloom[track]', or set training.tensorboard=false"
            raise UsageError("training.tensorboard needs the package tensorboard", hint=hint) from error
        self.writer = SummaryWriter(str(run / "tensorboard"))

    def record(self, record: dict[str, Any]) -> None:
        """Add one record of `metrics.jsonl`."""
        name, values = ("validation", record["validation"]) if "validation" in record else ("training", record)
        for key, value in values.items():
            if isinstance(value, int | float) and key not in ("update", "epoch"):
                self.writer.add_scalar(f"{name}/{key}", value, record["update"])

    def close(self) -> None:
        """Write out what is left."""
        self.writer.close()
