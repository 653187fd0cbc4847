"""Chunks of raw pairs go to worker processes and come back encoded, in order; a worker that dies is an error."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from phraseloom.data.config import AnyFilter
from phraseloom.data.encode import Chunk, Coder, EncodedChunk, packed, start_worker, work
from phraseloom.errors import PhraseloomError


class Encoder:
    """Encodes chunks in this process or in several, always giving them back in order.

    `folder` is where a worker process finds what the coder is made of (`start_worker`).
    """

    def __init__(self, coder: Coder, folder: Path, processes: int) -> None:
        self.coder, self.folder, self.processes = coder, folder, processes
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Encoder:
        if self.processes > 1:
            context = multiprocessing.get_context("spawn")
            given = (str(self.folder), self.coder.token_type)
            self._pool = ProcessPoolExecutor(self.processes, context, start_worker, given)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, chunks: Iterator[Chunk], filters: AnyFilter | None) -> Iterator[tuple[Chunk, EncodedChunk]]:
        """Each chunk with its encoding. Raises DataError, and PhraseloomError when a worker process dies."""
        if self._pool is None:
            for chunk in chunks:
                yield chunk, self.coder.encode(chunk, filters)
            return
        waiting: deque[tuple[Chunk, Future[EncodedChunk]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, self._pool.submit(work, packed(chunk), filters)))
                if len(waiting) > self.processes + 1:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        except BrokenProcessPool as error:
            raise PhraseloomError(
                "a worker process was killed, perhaps for want of memory", hint="try data.processes=1, or --processes 1"
            ) from error
