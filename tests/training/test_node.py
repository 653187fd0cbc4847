"""Arrays that processes of one machine share: who makes them, and when each makes its own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.data.batches import BatchPlan
from phraseloom.training import node
from phraseloom.training.distributed import World
from phraseloom.training.node import NodeMemory


class Meeting:
    """The worlds of `size` threads of this process, which are on these machines."""

    def __init__(self, machines: Sequence[str]) -> None:
        self.machines, self._lines = machines, [""] * len(machines)
        self._barrier = threading.Barrier(len(machines), timeout=60)

    def world(self, rank: int) -> World:
        result = World(rank, len(self.machines))

        def gather_lines(lines: Sequence[str]) -> list[str]:
            self._lines[rank] = lines[0]
            self._barrier.wait()
            everything = [*self._lines]
            self._barrier.wait()
            return everything

        result.gather_lines = gather_lines  # type: ignore[method-assign]
        result.any = lambda flag: bool(gather_lines([str(flag)]))  # type: ignore[method-assign]
        return result


def share(machines: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[np.ndarray]], list[int]]:
    """The arrays of every process, and the ranks that made them."""
    meeting, made = Meeting(machines), list[int]()
    results: list[Any] = [None] * len(machines)
    monkeypatch.setattr(node, "_machine", lambda: machines[int(threading.current_thread().name)])

    def run(rank: int) -> None:
        def make() -> list[np.ndarray]:
            made.append(rank)
            return [np.arange(70_000, dtype=np.int32), np.array([2**40, -1]), np.zeros(0, np.int32)]

        results[rank] = NodeMemory(meeting.world(rank)).share(make)

    threads = [threading.Thread(target=run, args=(rank,), name=str(rank)) for rank in range(len(machines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for arrays in results:
        assert [a.dtype.str for a in arrays] == ["<i4", "<i8", "<i4"]
        assert np.array_equal(arrays[0], np.arange(70_000)) and arrays[1].tolist() == [2**40, -1] and not len(arrays[2])
    return results, sorted(made)


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_first_process_of_each_machine_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before = handles()
    results, made = share(["a", "b", "a", "c", "b", "a"], monkeypatch)
    assert made == [0, 1, 3]
    assert [arrays[0].flags.writeable for arrays in results] == [False, False, False, True, False, False]
    del results  # a mapping has a handle of its own
    assert handles() == before


def test_without_a_machine_or_memory_every_process_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share(["", ""], monkeypatch)[1] == [0, 1]

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    before = handles()
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert share(["a", "a"], monkeypatch)[1] == [0, 1]
    assert handles() == before


def test_memory_of_another_process_with_the_same_number_is_not_used() -> None:
    arrays = [np.arange(5)]
    handle, offer = node._store(arrays)
    try:
        assert [a.tolist() for a in node._open(offer) or ()] == [[0, 1, 2, 3, 4]]
        token = offer.split('"token": "')[1][:32]
        assert node._open(offer.replace(token, "0" * 32)) is None
        assert node._open(offer.replace("/fd/", "/nothing/")) is None
    finally:
        os.close(handle)


def test_this_machine_is_known_on_linux() -> None:
    assert (node._machine() != "") == Path("/proc/sys/kernel/random/boot_id").exists()


def test_an_epoch_is_freed_before_the_next_one_is_made() -> None:
    held: list[bool] = []

    def share(make: Any) -> list[np.ndarray]:
        held.append(plan._epoch is not None)
        return make()  # type: ignore[no-any-return]

    lengths = np.full(50, 5, np.int32)
    plan = BatchPlan(lengths, lengths, seed=1, batch_tokens=60, share=share)
    for epoch in (0, 0, 1):
        plan.epoch(epoch)
    assert held == [False, False]
