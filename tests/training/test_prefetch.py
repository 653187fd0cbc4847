"""Batches read by a thread: the same, in the same order; errors arrive; the thread ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy

from phraseloom.data.tensors import make_batch
from phraseloom.errors import CorruptError
from phraseloom.training import loop
from phraseloom.training.prefetch import Prefetcher

CPU = torch.device("cpu")


class Pairs(list):  # type: ignore[type-arg]
    """A batch of the toy that can be moved."""

    def to(self, _: torch.device) -> Pairs:
        return self


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("phraseloom-batches")]


def test_a_run_with_a_thread_has_the_same_bytes(tmp_path: Path) -> None:
    toy.finish(tmp_path / "without", toy.config(micro_batches=3))
    read: list[list[int]] = []

    def batch_of(indices: np.ndarray) -> Pairs:
        read.append(indices.tolist())
        return Pairs(toy.ToyData().batch(indices))

    prefetcher = Prefetcher(batch_of, CPU, pin=False)
    job = toy.make(tmp_path / "with", toy.config(micro_batches=3), prefetcher=prefetcher)
    loop.train(job)
    job.close()
    assert not threads()
    assert toy.result(tmp_path / "with") == toy.result(tmp_path / "without")
    expected = [batch.tolist() for n in range(23) for batch in job.plan.update(n)]
    assert read[: len(expected)] == expected, "each batch once, in order"
    assert len(read) <= len(expected) + 3


def test_batches_that_were_not_requested_are_read_at_once() -> None:
    prefetcher = Prefetcher(lambda indices: Pairs(indices.tolist()), CPU, pin=False)
    a, b, c = np.array([1]), np.array([2]), np.array([3])
    prefetcher.request([a, b])
    assert prefetcher(c) == [3] and prefetcher(b) == [2]
    prefetcher.request([a, b])
    prefetcher.request([a, b, c])
    assert [prefetcher(x) for x in (a, b, c)] == [[1], [2], [3]]
    prefetcher.close()


def test_an_error_of_the_thread_is_raised_where_the_batch_is_taken() -> None:
    def batch_of(indices: np.ndarray) -> Any:
        raise CorruptError("a shard is damaged")

    prefetcher = Prefetcher(batch_of, CPU, pin=False)
    prefetcher.request([np.array([1])])
    with pytest.raises(CorruptError, match="a shard is damaged"):
        prefetcher(np.array([1]))
    prefetcher.close()
    assert not threads()


def test_a_run_that_fails_ends_the_thread(tmp_path: Path) -> None:
    def batch_of(indices: np.ndarray) -> Any:
        if len(seen) == 9:
            raise MemoryError
        seen.append(indices)
        return Pairs(toy.ToyData().batch(indices))

    seen: list[np.ndarray] = []
    job = toy.make(tmp_path, toy.config(), prefetcher=Prefetcher(batch_of, CPU, pin=False))
    with pytest.raises(Exception, match="out of memory"):
        loop.train(job)
    job.close()
    assert not threads()


def test_a_moved_batch_knows_its_sizes() -> None:
    batch = make_batch([[5, 6], [7]], [[5], [6, 7]]).to(CPU)
    assert batch.is_source_padded and batch.real_places is not None
    assert batch.__dict__.keys() >= {"is_source_padded", "real_places"}
    assert batch.real_places.tolist() == [0, 1, 3, 4, 5]
    whole = make_batch([[5], [7]], [[5], [6]]).to(CPU)
    assert not whole.is_source_padded and whole.real_places is None
