"""Trainers that take turns: each is a process group that is started once, warmed up, and then paused and continued.

So start-up and warm-up are paid once, and a round of turns lasts a minute instead of several, which is short against
the drift of the machine. A paused process uses no processor. The first updates of each turn are not counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import peak_bytes

Tokens = tuple[int, int]


@dataclass(frozen=True)
class Turn:
    """What happened in one turn: updates counted, seconds, real source and target tokens."""

    updates: int
    seconds: float
    source: int
    target: int

    @property
    def rate(self) -> float:
        """Real source and target tokens a second."""
        return (self.source + self.target) / self.seconds


class Trainee:
    """A trainer as a process that prints a line for each update.

    `pattern`: a regular expression whose first group is the number of the update; if it has two more they are the real
    source and target tokens of that update. Otherwise `tokens_of(updates)` tells them.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        pattern: str = r"^update (\d+) tokens (\d+) (\d+)$",
        tokens_of: Callable[[range], list[Tokens]] | None = None,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name, self.command, self.tokens_of = name, list(command), tokens_of
        self.pattern = re.compile(pattern)
        self.environment, self.folder = {**os.environ, **(environment or {})}, folder
        self.marks: dict[int, tuple[float, Tokens | None]] = {}
        self.newest = 0
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self.process: subprocess.Popen[str] | None = None
        self.ended = False

    def start(self, warm_up: int, limit: float) -> None:
        """Start, run `warm_up` updates, pause."""
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._wait(warm_up, limit)
        self._signal(signal.SIGSTOP)

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            now = time.monotonic()
            found = self.pattern.search(line.rstrip("\n"))
            with self.changed:
                self.lines = [*self.lines[-30:], line]
                if found:
                    self.newest = int(found[1])
                    tokens = (int(found[2]), int(found[3])) if len(found.groups()) > 2 else None
                    self.marks[self.newest] = (now, tokens)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _wait(self, update: int, limit: float) -> None:
        with self.changed:
            there = self.changed.wait_for(lambda: self.ended or self.newest >= update, limit)
            if self.newest < update:
                what = "ended" if there else f"did not come to update {update} within {limit:.0f} s"
                raise SystemExit(f"{self.name} {what}:\n{''.join(self.lines)}")

    def turn(self, settle: int, updates: int, limit: float = 600.0) -> Turn:
        """Continue, let `settle` updates pass, count `updates`, pause."""
        first = self.newest + settle
        self._signal(signal.SIGCONT)
        self._wait(first + updates, limit)
        self._signal(signal.SIGSTOP)
        counted = range(first + 1, first + updates + 1)
        seconds = self.marks[counted[-1]][0] - self.marks[first][0]
        told = [self.marks[u][1] for u in counted]
        tokens = self.tokens_of(counted) if self.tokens_of is not None else [t for t in told if t is not None]
        if len(tokens) != updates:
            raise SystemExit(f"{self.name} does not tell its tokens:\n{''.join(self.lines)}")
        return Turn(updates, seconds, sum(s for s, _ in tokens), sum(t for _, t in tokens))

    def peak(self) -> int:
        """Peak resident memory so far, its child processes included, in bytes."""
        return peak_bytes(self.process.pid) if self.process is not None else 0

    def close(self) -> None:
        """End the process and all it started."""
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.wait()

    def _signal(self, number: int) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
