"""Graceful stop: the first signal sets a flag, and the loop saves and returns; the second one exits at once.

SIGHUP never counts as the second signal: a closing terminal may send it twice, and systemd sends it after SIGTERM. Under
torchrun and srun no signal does: Slurm and the terminal signal all processes, and torchrun then signals its own again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from phraseloom.errors import InterruptedRun

__all__ = ["LeaveAtOnce", "StopSignal"]

POLITE = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


class StopSignal:
    """A context in which SIGINT, SIGTERM, SIGUSR1 and SIGHUP only set a flag.

    A SIGHUP that is already ignored stays ignored (`nohup`). `at_once` runs before the exit at the second signal; without
    `insists`, the second signal changes nothing.
    """

    def __init__(self, at_once: Callable[[], None] | None = None, *, insists: bool = True) -> None:
        self.name: str | None = None
        self._insisted, self._insists = False, insists
        self._at_once = at_once
        self._before: dict[int, object] = {}

    @property
    def is_set(self) -> bool:
        """Whether a signal has arrived."""
        return self.name is not None

    def _handle(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name != "SIGHUP" and self._insists:
            if self._insisted:
                if self._at_once is not None:
                    self._at_once()
                os._exit(128 + number)
            self._insisted = True
        self.name = self.name or name

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for name in POLITE:
                if hasattr(signal, name):
                    number = getattr(signal, name)
                    if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                        continue
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()


class LeaveAtOnce(StopSignal):
    """A context that the first signal leaves by InterruptedRun with this hint, for work that keeps nothing before its end."""

    def __init__(self, hint: str, *, insists: bool = True) -> None:
        super().__init__(insists=insists)
        self.hint = hint

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self.is_set
        super()._handle(number, frame)
        if first:
            raise _Stopped

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if isinstance(error[1], _Stopped):
            raise InterruptedRun(f"stopped by {self.name}", hint=self.hint) from None


class _Stopped(KeyboardInterrupt):
    """Not an Exception, so that no handler of failures catches it."""
