"""Dynamic batching: the texts of all clients wait in one queue, and one worker thread takes those that fit together.

The next batch is the text that has waited longest and all texts with the same model and options. So a busy server works in
large batches, and an idle one starts at once. Everything but the work itself runs in the thread of the event loop, so no
lock is needed. The work regularly checks whether anybody still needs its batch; it ends when every caller has left, failed
or timed out.

A batch that takes longer than `batch_seconds` is cancelled, and its requests are tried again one by one, the smallest first.
A request that takes longer on its own gets a 503. A request of many batches goes to the end of the queue after each batch once
it has used more than `batch_seconds`, and shares no batch from then on. So one request delays the others by at most twice
`batch_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from phraseloom.options.serving import ServingConfig
from phraseloom.serving.message import overloaded

ShouldCancel = Callable[[], bool]
# The result of an item that is left for the next batch.
POSTPONED = object()
_OUT_OF_TIME = object()
Work = Callable[[Any, Sequence[Any], ShouldCancel], Sequence[Any]]


class WorkQueue(NamedTuple):
    """A kind of work: at most `most` of its texts wait, and at most `together` of them form a batch."""

    name: str
    most: int
    together: int


class ItemError(Exception):
    """The error of one item of a call, and its number (from 1)."""

    def __init__(self, error: Exception, number: int) -> None:
        super().__init__(str(error))
        self.error, self.number = error, number


@dataclass(eq=False)
class _Call:
    """What all texts of a call share: their size together, and the `seconds` of the batches that computed any of them.

    `alone`: its texts are batched only with each other.
    """

    size: int
    seconds: float = 0.0
    alone: bool = False


@dataclass(eq=False)
class _Job:
    """One text, the `number`-th of its call. All texts of a batch have the same `key`."""

    queue: WorkQueue
    key: Hashable
    item: Any
    number: int
    done: asyncio.Future[Any]
    call: _Call


class Batcher:
    """Runs `work(key, items, should_cancel)` in a thread of its own; it returns one result per item.

    A result may be an error of that item alone, or POSTPONED; the first item must not be postponed. `should_cancel()` is
    true once no caller needs the batch, or its time is up by `clock` (seconds); then the work may end with any error.
    """

    def __init__(self, work: Work, config: ServingConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._config, self._clock = work, config, clock
        self._waiting: deque[_Job] = deque()
        self._current: Sequence[_Job] = ()
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
        """Number of waiting items."""
        return len(self._waiting)

    @property
    def busy_seconds(self) -> float:
        """How long the worker has been computing its current batch; 0 if it is idle."""
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

    async def submit(self, queue: WorkQueue, key: Hashable, items: Sequence[Any], *, size: int = 0) -> list[Any]:
        """The result of each item, in order.

        `size`: the size of all items together, in any unit. Raises Problem 503 if the queue is full or time runs out, and
        ItemError for the first item that failed. If the caller is cancelled, its items are dropped.
        """
        if self.closed:
            raise overloaded("the server is stopping", close=True)
        if self._counts.get(queue.name, 0) + len(items) > queue.most:
            raise overloaded(
                f"too many texts are waiting (limit {queue.most}); try again later", retry_after=self._backlog_seconds()
            )
        loop = asyncio.get_running_loop()
        call = _Call(size)
        jobs = [_Job(queue, key, item, n, loop.create_future(), call) for n, item in enumerate(items, 1)]
        self._waiting.extend(jobs)
        self._count(queue, len(jobs))
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
        """Answer all waiting and running items with 503, and accept no more."""
        self.closed = True
        for job in [*self._waiting, *self._current]:
            if not job.done.done():
                job.done.set_exception(overloaded("the server is stopping", close=True))

    def _count(self, queue: WorkQueue, change: int) -> None:
        self._counts[queue.name] = self._counts.get(queue.name, 0) + change

    def _withdraw(self, jobs: Sequence[_Job]) -> None:
        """Drop the jobs of a caller that has left or failed; a batch that has no other jobs ends."""
        dropped = set(map(id, jobs)) & set(map(id, self._waiting))
        if dropped:
            self._waiting = deque(job for job in self._waiting if id(job) not in dropped)
            self._count(jobs[0].queue, -len(dropped))
        for job in jobs:
            job.done.cancel()
            if not job.done.cancelled():
                job.done.exception()  # retrieved, so that asyncio does not log it as unhandled

    def _backlog_seconds(self) -> float:
        return len(self._waiting) / self._rate

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(self._config.gather_seconds)
            self._current = batch = self._take()
            if not batch:
                continue
            start = self._since = self._clock()
            results = await loop.run_in_executor(self._thread, self._do, batch, start + self._config.batch_seconds)
            seconds = max(self._clock() - start, 1e-6)
            self._rate = 0.8 * self._rate + 0.2 * len(batch) / seconds
            self._current, self._since = (), None
            self.batches += 1
            worked_on = {job.call for job, result in zip(batch, results, strict=True) if result is not POSTPONED}
            self._queue_again(batch[0].queue, self._deliver(batch, results), worked_on, seconds)

    def _deliver(self, batch: Sequence[_Job], results: Sequence[Any]) -> list[_Job]:
        """Give each job its result; return those that need another try."""
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
        return [job for job in again if job.call not in failed]

    def _queue_again(self, queue: WorkQueue, again: list[_Job], worked_on: set[_Call], seconds: float) -> None:
        """Queue jobs for another try, before the others.

        `worked_on`: the calls whose texts the last batch computed, in `seconds`. All jobs of a call that has used more than
        `batch_seconds` go to the end.
        """
        limit = self._config.batch_seconds
        for call in worked_on:
            call.seconds += min(seconds, limit)  # a batch may end a little after its time
        overdrawn = {call for call in worked_on if call.seconds > limit}
        for call in overdrawn:
            call.alone = True
        again.sort(key=lambda job: job.call.size if job.call.alone else -1)
        self._waiting.extendleft(reversed(again))
        self._count(queue, len(again))
        if overdrawn:
            self._waiting = deque(sorted(self._waiting, key=lambda job: job.call in overdrawn))

    def _end_late(self, job: _Job, batch: Sequence[_Job], again: list[_Job]) -> None:
        """A job whose batch was cancelled: 503 if the batch held one call only, else another try with its own call."""
        if all(other.call is job.call for other in batch):
            seconds = self._config.batch_seconds
            advice = "send fewer or shorter texts, or ask for a narrower beam"
            job.done.set_exception(
                overloaded(
                    f"not done within batch_seconds = {seconds:g}; {advice}", retry_after=self._backlog_seconds()
                )
            )
        else:
            job.call.alone = True
            again.append(job)

    def _take(self) -> list[_Job]:
        """The job that has waited longest and those that fit with it, in order."""
        batch: list[_Job] = []
        others: deque[_Job] = deque()
        for job in self._waiting:
            if not batch or (len(batch) < batch[0].queue.together and self._fits(job, batch[0])):
                batch.append(job)
            else:
                others.append(job)
        self._waiting = others
        if batch:
            self._count(batch[0].queue, -len(batch))
        return batch

    @staticmethod
    def _fits(job: _Job, first: _Job) -> bool:
        return job.key == first.key and (job.call is first.call or not (job.call.alone or first.call.alone))

    def _do(self, jobs: Sequence[_Job], end: float) -> Sequence[Any]:
        """Results or errors; runs in the worker thread, until `end`. After an error both halves are tried again, so that one
        item does not spoil the others."""

        def is_needed() -> bool:
            return any(not job.done.done() for job in jobs)

        def should_cancel() -> bool:
            return not is_needed() or self._clock() >= end

        try:
            results = self._work(jobs[0].key, [job.item for job in jobs], should_cancel)
            if len(results) != len(jobs):
                raise RuntimeError(f"{len(results)} results of {len(jobs)} texts")
            return results
        except Exception as error:
            if self._clock() >= end:
                return [_OUT_OF_TIME] * len(jobs)
            if len(jobs) == 1 or not is_needed():
                return [error] * len(jobs)
            middle = len(jobs) // 2
            return [*self._do(jobs[:middle], end), *self._do(jobs[middle:], end)]
