"""Worker processes: jobs run in them and their results come back in order, with a bounded number of jobs on the way.

A process starts when the first job needs it. All end with their parent, and at once if it leaves with an error.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from phraseloom.errors import PhraseloomError

Result = TypeVar("Result")


class Workers:
    """Up to `processes` worker processes; with one, every job runs in the process that asks for it."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._open: Connection | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._pool is None or self._open is None:
            return
        if kind is not None:
            self._open.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._open.close()

    def run(
        self, function: Callable[..., Result], jobs: Iterable[tuple[Any, ...]], *, here: bool = False
    ) -> Iterator[tuple[tuple[Any, ...], Result]]:
        """Each job with `function(*job)`, in order. `here`: in this process, because starting another takes longer.

        Raises what the first job that fails raises, and PhraseloomError if a worker process dies.
        """
        if here or self.processes == 1:
            for job in jobs:
                yield job, function(*job)
            return
        pool = self._started()
        waiting: deque[tuple[tuple[Any, ...], Future[Result]]] = deque()
        try:
            for job in jobs:
                waiting.append((job, pool.submit(function, *job)))
                if len(waiting) > self.processes + 1:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        except BrokenProcessPool as error:
            hint = "try data.processes=1, or --processes 1"
            raise PhraseloomError("a worker process was killed; it may have run out of memory", hint=hint) from error

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            closed, self._open = context.Pipe(duplex=False)
            self._pool = ProcessPoolExecutor(self.processes, context, _start, (closed,))
        return self._pool


def _start(closed: Connection) -> None:
    """End this worker process when its parent ends for any reason, or closes its end of the pipe."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=([parent.sentinel, closed],), daemon=True).start()


def _end_with(ends: list[Any]) -> None:
    multiprocessing.connection.wait(ends)
    os._exit(1)
