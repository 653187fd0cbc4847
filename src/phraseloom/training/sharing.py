"""Summing gradients through memory that the processes of one machine share, instead of through sockets.

Each process has its gradient in a slot of a common block. Process r adds up slice r of all slots, in the order of the
slots, into a common total; then each takes the total over. The sums are the same bits in every process, and two passes
over memory are faster than a ring over the loopback interface (measured for 7.5 M parameters and two busy cores: 18
against 45 ms).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SharedGradient", "share_gradient"]


class SharedGradient:
    """The slots of all processes and the total, over one mapped block of memory."""

    def __init__(self, block: mmap.mmap, rank: int, size: int, length: int, wait: Callable[[], None]) -> None:
        rows = torch.frombuffer(block, dtype=torch.float32, count=(size + 1) * length).view(size + 1, length)
        self.slots, self.total = rows[:size], rows[size]
        self.own = self.slots[rank]
        step = -(-length // size)
        self.slice = slice(min(length, rank * step), min(length, (rank + 1) * step))
        self._wait, self._block = wait, block

    def sum_(self) -> None:
        """Make the own slot the sum of all slots."""
        self._wait()  # until all have filled their slots
        part = self.total[self.slice]
        torch.add(self.slots[0][self.slice], self.slots[1][self.slice], out=part)
        for slot in self.slots[2:]:
            part.add_(slot[self.slice])
        self._wait()  # until all have done their parts
        self.own.copy_(self.total)


def share_gradient(world: Any, length: int) -> SharedGradient | None:
    """A common block for float32 gradients of this length, or None where that is not possible (another system or machine,
    GPUs, no rights); all processes get the same answer."""
    if world.size == 1 or not world.one_machine or world.device.type != "cpu":
        return None
    token = torch.zeros(1)

    def wait() -> None:
        world.sum_(token)

    block, handle = None, -1
    count = 4 * length * (world.size + 1)
    with contextlib.suppress(OSError, AttributeError):
        if world.first:
            handle = os.memfd_create("phraseloom", os.MFD_CLOEXEC)
            os.posix_fallocate(handle, 0, count)
            block = mmap.mmap(handle, count)
    path = world.send_text(f"/proc/{os.getpid()}/fd/{handle}" if block is not None else "")
    with contextlib.suppress(OSError):
        if path and not world.first:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            block = mmap.mmap(handle, count)
    refused = world.any(block is None)
    if handle >= 0:
        os.close(handle)
    return None if refused or block is None else SharedGradient(block, world.rank, world.size, length, wait)
