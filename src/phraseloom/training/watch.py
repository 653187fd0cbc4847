"""Notices processes of a run that hang or are lost, on any machine, without comparing clocks.

A thread of every process counts up every `BEAT_SECONDS` and writes the count to the common store, if the main thread has used
processor time since, or is waiting for the others. The count of a process stops when its machine is lost, when it is
suspended, and when its main thread is stuck (a disk that does not answer). The others see a count that has not changed for
`hang_seconds()` of their own time. On GPUs the main thread may use no processor time while it waits, so there the count only
stops with the machine or the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["BeatLog", "Watch", "hang_seconds", "processor_seconds"]

BEAT_SECONDS = 2.0
HANG_SECONDS = 300.0
VARIABLE = "PHRASELOOM_HANG_SECONDS"


def hang_seconds() -> float:
    """Seconds without progress after which a process counts as lost: 300, or PHRASELOOM_HANG_SECONDS."""
    text = os.environ.get(VARIABLE, "")
    return max(2 * BEAT_SECONDS, float(text)) if text.replace(".", "", 1).isdigit() else HANG_SECONDS


def processor_seconds(process: int, thread: int | None = None) -> float | None:
    """Processor time that a process, or one of its threads, has used; None where the system does not say."""
    part = "" if thread is None else f"/task/{thread}"
    try:
        fields = Path(f"/proc/{process}{part}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class BeatLog:
    """How long the count of each process has not changed, in seconds of this process.

    A look that comes late (this process was suspended itself) adds at most `longest` seconds.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._before: float | None = None
        self._counts: dict[int, bytes] = {}
        self.still: dict[int, float] = {}

    def look(self, counts: Mapping[int, bytes], now: float) -> None:
        """Note the counts by rank at the time `now`."""
        passed = 0.0 if self._before is None else min(now - self._before, self._longest)
        self._before = now
        for rank, count in counts.items():
            changed = self._counts.get(rank) != count
            self.still[rank] = 0.0 if changed else self.still.get(rank, 0.0) + passed
        self._counts = dict(counts)


class Watch:
    """The thread that counts for this process and looks at the counts of the others.

    `store`: a connection that nothing else uses. Every process has to have called `Watch.enter` before one is started.
    `check`: called with it after every look, with None if it does not answer. Then the main thread always counts as waiting.
    """

    def __init__(self, store: Any, rank: int, size: int, check: Callable[[Any | None], None] | None = None) -> None:
        self.waiting = check is not None  # the main thread waits for other processes
        self._check = check
        self.interval = max(BEAT_SECONDS, size / 32)  # so that a large run does not flood the store
        self.patience = max(hang_seconds(), 2 * self.interval)
        self.beats = BeatLog(2 * self.interval)
        self._store, self._rank, self._size = store, rank, size
        self._main = threading.get_native_id()
        self._looked = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @staticmethod
    def enter(store: Any, rank: int) -> None:
        """Write the first count of this process."""
        store.set(_key(rank), "0")

    def start(self) -> Watch:
        """Start the thread."""
        self._thread.start()
        if self._check is not None and self._rank != 0:
            threading.Thread(target=self._guard, name="guard", daemon=True).start()
        return self

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def stopped_within(self, seconds: float) -> bool:
        """Wait for `stop`; whether it came in time."""
        return self._stop.wait(seconds)

    def _run(self) -> None:
        count, used = 0, -1.0
        others = [rank for rank in range(self._size) if rank != self._rank]
        while not self._stop.wait(self.interval):
            seconds = processor_seconds(os.getpid(), self._main)
            if self.waiting or seconds is None or seconds != used:
                count, used = count + 1, -1.0 if seconds is None else seconds
            try:
                self._store.set(_key(self._rank), str(count))
                values = self._store.multi_get([_key(rank) for rank in others])
            except RuntimeError:  # the store is gone: `lost` says so
                if self._check is not None:
                    self._check(None)
                return
            self.beats.look(dict(zip(others, values, strict=True)), time.monotonic())
            self._looked = time.monotonic()
            if self._check is not None:
                self._check(self._store)

    def _guard(self) -> None:
        """Notice that the store does not answer, which may hold up the thread without end."""
        looked, waited = self._looked, 0.0
        while self._thread.is_alive() and not self._stop.wait(self.interval):
            waited = waited + self.interval if looked == self._looked else 0.0
            looked = self._looked
            if waited >= self.patience and self._check is not None:
                self._check(None)

    def lost(self, patience: float | None = None) -> list[int]:
        """The ranks without a sign of life for `patience` seconds (default: `hang_seconds()`).

        Rank 0 too if the store, which belongs to it, does not answer.
        """
        limit = self.patience if patience is None else patience
        ranks = [rank for rank, still in self.beats.still.items() if still >= limit]
        silent = self._rank != 0 and time.monotonic() - self._looked >= limit + self.interval
        return sorted({*ranks, *([0] if silent else [])})


def _key(rank: int) -> str:
    return f"beat {rank}"
