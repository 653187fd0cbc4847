"""Dynamic batching: texts of all clients wait in one line, and one worker thread takes those that go together.

While the worker computes, texts arrive; then the text that has waited longest and all that fit with it (the same model,
the same options) are the next batch. So a busy server works in large batches and an idle one at once. Everything but the
work itself runs in the thread of the event loop: there is nothing to lock. The work asks now and then whether anybody
still wants its batch; when every caller is gone, has an error or was told that it took too long, it ends.

No batch holds the worker for longer than `batch_seconds`: then it is ended, and each of its requests is worked on again by
itself, the smallest first. A request that is by itself and takes longer gets a 503. So one request delays those that came
with it, or after it, by `batch_seconds` at most twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from phraseloom.options.serving import ServingConfig
from phraseloom.serving.message import overloaded

logger = logging.getLogger(__name__)

Cancelled = Callable[[], bool]
# The result of an item that the work left for the next batch.
POSTPONED = object()
_OUT_OF_TIME = object()
Work = Callable[[Any, Sequence[Any], Cancelled], Sequence[Any]]


class WorkQueue(NamedTuple):
    """A kind of work: those of one line share `most`, the texts that may wait, and are worked on `together` at most."""

    name: str
    most: int
    together: int


class ItemError(Exception):
    """The error of one item of a call, and its number (from 1)."""

    def __init__(self, error: Exception, number: int) -> None:
        super().__init__(str(error))
        self.error, self.number = error, number


@dataclass(eq=False)
class _Job:
    """One text, the `number`-th of its call. `key`: what it must have in common with others of its batch.

    `call` is one object for all texts of a call, `size` that of the whole call. `alone`: only with texts of its call.
    """

    line: WorkQueue
    key: Hashable
    item: Any
    number: int
    done: asyncio.Future[Any]
    call: object
    size: int
    alone: bool = False


class Batcher:
    """Runs `work(key, items, cancelled)`, which gives one result per item, in a thread of its own.

    A result may be an error of that item alone, or POSTPONED; the first item must not be postponed. `cancelled()` is true
    once nobody wants the batch any more, or its time is up by `clock` (seconds); then the work may end with any error.
    """

    def __init__(self, work: Work, config: ServingConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._config, self._clock = work, config, clock
        self._waiting: deque[_Job] = deque()
        self._present: Sequence[_Job] = ()
        self._counts: dict[str, int] = {}
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")
        self._task: asyncio.Task[None] | None = None
        self._rate = 10.0  # items a second, a running mean
        self._since: float | None = None
        self.answered = self.batches = 0
        self.closed = False

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    @property
    def busy_seconds(self) -> float:
        """For how long the worker has been at its present batch; 0 if it has none."""
        return 0.0 if self._since is None else self._clock() - self._since

    async def __aenter__(self) -> Batcher:
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_up()
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def submit(self, line: WorkQueue, key: Hashable, items: Sequence[Any], *, size: int = 0) -> list[Any]:
        """The result of each item, in order. Problem 503 where they do not fit in the line or are not done in time.

        `size`: how large they are together, in any unit. Raises ItemError for the first item that failed. If the caller is
        cancelled, nothing more is done for it.
        """
        if self.closed:
            raise overloaded("the server is stopping", close=True)
        if self._counts.get(line.name, 0) + len(items) > line.most:
            raise overloaded(
                f"too many texts are waiting (limit {line.most}); try again later", retry_after=self._backlog_seconds()
            )
        loop = asyncio.get_running_loop()
        call = object()
        jobs = [_Job(line, key, item, n, loop.create_future(), call, size) for n, item in enumerate(items, 1)]
        self._waiting.extend(jobs)
        self._count(line, len(jobs))
        self._arrived.set()
        try:
            async with asyncio.timeout(self._config.answer_seconds):
                return await asyncio.gather(*(job.done for job in jobs))
        except TimeoutError:
            raise overloaded(
                f"not done within answer_seconds = {self._config.answer_seconds:g}",
                retry_after=self._backlog_seconds(),
            ) from None
        finally:
            self._withdraw(jobs)

    def give_up(self) -> None:
        """Answer everything that waits or is worked on with 503, and take nothing more."""
        self.closed = True
        for job in [*self._waiting, *self._present]:
            if not job.done.done():
                job.done.set_exception(overloaded("the server is stopping", close=True))

    def _count(self, line: WorkQueue, change: int) -> None:
        self._counts[line.name] = self._counts.get(line.name, 0) + change

    def _withdraw(self, jobs: Sequence[_Job]) -> None:
        """Forget the jobs of a caller that is gone or has an error; a batch of none but such jobs ends."""
        left = set(map(id, jobs)) & set(map(id, self._waiting))
        if left:
            self._waiting = deque(job for job in self._waiting if id(job) not in left)
            self._count(jobs[0].line, -len(left))
        for job in jobs:
            job.done.cancel()
            if not job.done.cancelled():
                job.done.exception()  # looked at, so that nobody misses it

    def _backlog_seconds(self) -> float:
        return len(self._waiting) / self._rate

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(self._config.gather_seconds)
            self._present = batch = self._take()
            if not batch:
                continue
            start = self._since = self._clock()
            results = await loop.run_in_executor(self._thread, self._do, batch, start + self._config.batch_seconds)
            seconds = max(self._clock() - start, 1e-6)
            self._rate = 0.8 * self._rate + 0.2 * len(batch) / seconds
            self._present, self._since = (), None
            self.batches += 1
            again: list[_Job] = []
            for job, result in zip(batch, results, strict=True):
                if job.done.done():
                    continue
                if result is POSTPONED:
                    again.append(job)
                elif result is _OUT_OF_TIME:
                    self._end_late(job, batch, again)
                else:
                    self.answered += 1
                    if isinstance(result, Exception):
                        job.done.set_exception(ItemError(result, job.number))
                    else:
                        job.done.set_result(result)
            failed = {job.call for job in batch if job.done.done() and (job.done.cancelled() or job.done.exception())}
            again = [job for job in again if job.call not in failed]
            if again:
                again.sort(key=lambda job: (job.alone, job.size if job.alone else 0))
                self._waiting.extendleft(reversed(again))
                self._count(again[0].line, len(again))

    def _end_late(self, job: _Job, batch: Sequence[_Job], again: list[_Job]) -> None:
        """A job whose batch was ended: a 503 where the batch was of one call, else another try with its call alone."""
        if all(other.call is job.call for other in batch):
            seconds = self._config.batch_seconds
            advice = "send fewer or shorter texts, or ask for a narrower beam"
            job.done.set_exception(
                overloaded(
                    f"not done within batch_seconds = {seconds:g}; {advice}", retry_after=self._backlog_seconds()
                )
            )
        else:
            job.alone = True
            again.append(job)

    def _take(self) -> list[_Job]:
        """The job that has waited longest and those that go with it, in order."""
        batch: list[_Job] = []
        others: deque[_Job] = deque()
        for job in self._waiting:
            if not batch or (len(batch) < batch[0].line.together and self._fits(job, batch[0])):
                batch.append(job)
            else:
                others.append(job)
        self._waiting = others
        if batch:
            self._count(batch[0].line, -len(batch))
        return batch

    @staticmethod
    def _fits(job: _Job, first: _Job) -> bool:
        return job.key == first.key and (job.call is first.call or not (job.alone or first.alone))

    def _do(self, jobs: Sequence[_Job], end: float) -> Sequence[Any]:
        """Results or errors; in the worker thread, until `end`. After an error both halves are tried again: no item
        spoils another."""

        def wanted() -> bool:
            return any(not job.done.done() for job in jobs)

        def cancelled() -> bool:
            return not wanted() or self._clock() >= end

        try:
            results = self._work(jobs[0].key, [job.item for job in jobs], cancelled)
            if len(results) != len(jobs):
                raise RuntimeError(f"{len(results)} results of {len(jobs)} texts")
            return results
        except Exception as error:
            if self._clock() >= end:
                return [_OUT_OF_TIME] * len(jobs)
            if len(jobs) == 1 or not wanted():
                return [error] * len(jobs)
            middle = len(jobs) // 2
            return [*self._do(jobs[:middle], end), *self._do(jobs[middle:], end)]
