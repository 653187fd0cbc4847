"""Chunks of raw pairs go to worker processes and come back encoded, in order; a worker that dies is an error."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from phraseloom.data.config import AnyFilter
from phraseloom.data.encode import Encoded, encode_chunk, start_worker, work
from phraseloom.errors import PhraseloomError
from phraseloom.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Chunk:
    """Raw pairs: number of the file, line of the first pair in it (from 1), and its number in the split (from 0).

    Of text without a source, all source lines are empty.
    """

    file: int
    first: int
    base: int
    source: list[str]
    target: list[str]


class Encoder:
    """Encodes chunks in this process or in several, always giving them back in order."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, processes: int, token_type: str) -> None:
        self.tokenizer, self.folder, self.processes, self.token_type = tokenizer, folder, processes, token_type
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Encoder:
        if self.processes > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.processes, context, start_worker, (str(self.folder),))
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, chunks: Iterator[Chunk], filters: AnyFilter | None) -> Iterator[tuple[Chunk, Encoded]]:
        """Each chunk with its encoding. Raises FileProblem when a worker process dies."""
        if self._pool is None:
            for chunk in chunks:
                yield chunk, encode_chunk(self.tokenizer, chunk.source, chunk.target, filters, self.token_type)
            return
        waiting: deque[tuple[Chunk, Future[Encoded]]] = deque()
        try:
            for chunk in chunks:
                lines = "\n".join(chunk.source), "\n".join(chunk.target)
                waiting.append((chunk, self._pool.submit(work, *lines, filters, self.token_type)))
                if len(waiting) > self.processes + 1:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        except BrokenProcessPool as error:
            raise PhraseloomError(
                "a worker process was killed, perhaps for want of memory", hint="try processes=1"
            ) from error
