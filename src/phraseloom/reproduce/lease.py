"""A lease on one step, so that several commands, on several machines, share a folder and no step runs twice at a time.

A lease is a small file that its owner rewrites every `RENEW_SECONDS`. Whoever waits for it compares contents: if they have not
changed for `LEASE_SECONDS` of its own clock, the owner is gone, and the lease may be taken. No clocks are compared, so they may
differ. On the same machine a lease of a process that is gone counts at once; its step has ended with it (`parent.py`). An owner
that was only suspended asks `is_lost` before it records anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from phraseloom import files
from phraseloom.replace import move_own, remove_own

__all__ = ["StepLease"]

RENEW_SECONDS = 20.0
LEASE_SECONDS = 180.0


class StepLease:
    """The lease in the file `path`. `clock` returns seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._token = uuid.uuid4().hex
        self._renewals = 0
        self._seen: tuple[bytes, float] | None = None
        self._stop = threading.Event()
        self._writing = threading.Lock()

    def take(self) -> bool:
        """Take the lease if it is free, or if its owner is gone. Otherwise False: call again later."""
        files.disk.mkdir(self.path.parent)
        if not self._create():
            content = self._read()
            if content is None or not self._is_stale(content):
                return False
            aside = self.path.with_name(f"{self.path.name}.{self._token}")
            with contextlib.suppress(OSError):
                move_own(self.path, aside)
                if aside.read_bytes() != content:  # somebody else was faster, and this is a new lease
                    os.link(aside, self.path)
                remove_own(aside)
            if not self._create():
                return False
        threading.Thread(target=self._renew, name="lease", daemon=True).start()
        return True

    def release(self) -> None:
        """Give the lease back."""
        self._stop.set()
        with self._writing, contextlib.suppress(OSError):
            if self._is_own(self._read()):
                remove_own(self.path)

    def is_lost(self) -> bool:
        """Whether another command has taken the lease, as it may while this process is suspended."""
        content = self._read()
        return content is not None and not self._is_own(content)

    def _content(self) -> bytes:
        owner = {"host": socket.gethostname(), "process": os.getpid(), "token": self._token, "renewals": self._renewals}
        return files.json_bytes(owner)

    def _create(self) -> bool:
        """Create the file with its content in one step."""
        new = self.path.with_name(f"{self.path.name}.{self._token}.new")
        files.atomic_write_bytes(new, self._content())
        try:
            os.link(new, self.path)
            return True
        except FileExistsError:
            return False
        except OSError as error:
            raise files.disk_problem(error, self.path) from error
        finally:
            remove_own(new)

    def _read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def _is_own(self, content: bytes | None) -> bool:
        return content is not None and self._token.encode() in content

    def _is_stale(self, content: bytes) -> bool:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            owner = json.loads(content)
            if owner["host"] == socket.gethostname() and not _is_alive(int(owner["process"])):
                return True
        if self._seen is None or self._seen[0] != content:
            self._seen = content, self._clock()
        return self._clock() - self._seen[1] >= LEASE_SECONDS

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            with self._writing, contextlib.suppress(OSError, files.FileProblem):
                if not self._stop.is_set() and self._is_own(self._read()):
                    self._renewals += 1
                    files.atomic_write_bytes(self.path, self._content())


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
