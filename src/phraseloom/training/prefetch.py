"""The next batches, read by a thread while the device computes.

The thread reads the examples, makes their tensors in pinned memory, and nothing else: which examples, in which order and when
is up to the loop, so that batches do not depend on the thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

__all__ = ["Prefetcher"]


class Prefetcher:
    """Calls `batch_of` (example indices → a batch on the host) in a thread; calling the object gives the batch on `device`.

    An error of `batch_of` is raised where the batch is taken. `pin`: put batches in pinned memory.
    """

    def __init__(self, batch_of: Callable[[np.ndarray], Any], device: torch.device, *, pin: bool = True) -> None:
        self._batch_of, self._device, self._pin = batch_of, device, pin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="phraseloom-batches")
        self._requested: deque[tuple[np.ndarray, Future[Any]]] = deque()

    def request(self, examples: Sequence[np.ndarray]) -> None:
        """Have the thread read these batches, which are taken next, in this order. Those requested already stay."""
        for indices in list(examples)[len(self._requested) :]:
            self._requested.append((indices, self._thread.submit(self._read, indices)))

    def __call__(self, indices: np.ndarray) -> Any:
        """The batch of these examples on the device."""
        while self._requested:
            requested, batch = self._requested.popleft()
            if np.array_equal(requested, indices):
                return batch.result().to(self._device)
            batch.cancel()  # the loop went elsewhere
        return self._read(indices).to(self._device)

    def close(self) -> None:
        """End the thread; the batches that it has not begun are dropped."""
        self._requested.clear()
        self._thread.shutdown(cancel_futures=True)

    def _read(self, indices: np.ndarray) -> Any:
        batch = self._batch_of(indices)
        return batch.pinned() if self._pin else batch
