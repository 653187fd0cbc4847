"""Arrays that the processes of one machine share: one of them makes an array, and all map the same memory.

The memory is a file without a name (memfd), so nothing lies on a disk, and it is gone with the last process, however that ends.
Two processes are on one machine if its kernel has the same boot and they see the same process numbers, whoever started them:
two torchrun agents on a machine share too, and two containers do not. A process that cannot open the memory (another system
than Linux, missing rights) makes the arrays itself, so they are equal either way.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MEMORY", "NodeMemory"]

MEMORY = "phraseloom-arrays"  # the name in /proc/PID/maps
TOKEN = 16  # bytes at the begin that only this memory has
ALIGNMENT = 64

Arrays = list[np.ndarray]


class NodeMemory:
    """The arrays that the processes of a machine share. All processes of the run make one, and call it in the same order."""

    def __init__(self, world: Any) -> None:
        self._world = world
        own = _machine()
        machines = world.gather_lines([own])
        self._first = machines.index(own) if own else world.rank
        self._shares = bool(own) and machines.count(own) > 1

    def share(self, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of `make()`, which runs in the first process of each machine; read-only where they are shared."""
        world, handle, offer = self._world, -1, ""
        arrays: Arrays | None = None
        if world.rank == self._first:
            arrays = make()
            if self._shares:
                with contextlib.suppress(OSError, AttributeError):
                    handle, offer = _store(arrays)
        offered = world.gather_lines([offer])[self._first]
        if offered and arrays is None:
            arrays = _open(offered)
        world.any(False)  # all have opened it
        if handle >= 0:
            os.close(handle)
        return make() if arrays is None else arrays


def _machine() -> str:
    """What processes that see each other's files in /proc have in common; empty on other systems than Linux."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().decode().strip()
        return f"{boot} {os.uname().nodename} {Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def _store(arrays: Arrays) -> tuple[int, str]:
    """Move arrays to memory without a name; its handle, and how another process opens it. Raises OSError, and then moves none.

    They move one by one, so that the largest is in memory twice at most.
    """
    begins, size = [], TOKEN
    for array in arrays:
        begins.append(-(-size // ALIGNMENT) * ALIGNMENT)
        size = begins[-1] + array.nbytes
    handle = os.memfd_create(MEMORY, os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(handle, 0, size)  # too little memory is an error here, and no signal later
        block = mmap.mmap(handle, size)
    except OSError:
        os.close(handle)
        raise
    block[:TOKEN] = token = secrets.token_bytes(TOKEN)
    places = [(array.dtype.str, len(array), begin) for array, begin in zip(arrays, begins, strict=True)]
    for number, place in enumerate(places):
        view = _view(block, *place)
        view[:] = arrays[number]
        view.flags.writeable = False
        arrays[number] = view
    offer = {"path": f"/proc/{os.getpid()}/fd/{handle}", "size": size, "token": token.hex(), "places": places}
    return handle, json.dumps(offer)


def _open(offer: str) -> Arrays | None:
    """The arrays of another process, read-only; None if they cannot be opened."""
    value = json.loads(offer)
    try:
        handle = os.open(value["path"], os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        block = mmap.mmap(handle, value["size"], prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)
    return [_view(block, *place) for place in value["places"]] if block[:TOKEN].hex() == value["token"] else None


def _view(block: mmap.mmap, kind: str, count: int, begin: int) -> np.ndarray:
    return np.frombuffer(block, dtype=kind, count=count, offset=begin)
