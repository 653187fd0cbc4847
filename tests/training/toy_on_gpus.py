"""The toy run, with processes that exchange tensors as on GPUs, where the loss of a process is not noticed by an operation.

NCCL only queues an operation. The main thread then waits for the device, which waits for all processes, whether they are alive
or not; leaving the group waits for all of them too. Here such a wait looks for keys of the common store.

python toy_on_gpus.py RUN JSON-of-training-keys

TOY_EXCHANGE_FAILS=1: NCCL reports an error to this rank. TOY_LEAVES_LATE=1: it needs seconds more than the others to leave.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import toy

from phraseloom.training import distributed

World = distributed.World
wait_for_gloo = World.wait_for
worlds: list[distributed.World] = []
count = 0


def meet(what: str) -> None:
    """Wait without end for all processes."""
    world = worlds[0]
    world.store.set(f"came {what} {world.rank}", "")
    while not all(world.store.check([f"came {what} {rank}"]) for rank in range(world.size)):
        time.sleep(0.005)


class Broken:
    """An operation that NCCL reports as failed."""

    def wait(self) -> None:
        """Raise what torch does."""
        raise RuntimeError("NCCL error: unhandled system error")


def wait_for(self: distributed.World, work: Any) -> None:
    """`World.wait_for` in the place of NCCL."""
    global count
    if worlds:
        count += 1
        if count == 40 and os.environ.get("TOY_EXCHANGE_FAILS") == str(self.rank):
            wait_for_gloo(self, Broken())
        meet(str(count))
    try:
        work.wait()
    except RuntimeError:  # gloo notices the loss of a process, NCCL does not
        threading.Event().wait()


def emulate() -> None:
    """Put the waits of NCCL in the place of gloo's."""
    World.on_gpus = property(lambda self: True)  # type: ignore[assignment, method-assign]
    World.wait_for = wait_for  # type: ignore[method-assign]
    launch, leave = distributed.launch, distributed.dist.destroy_process_group

    def launch_and_note(*arguments: Any, **more: Any) -> distributed.World:
        worlds.append(launch(*arguments, **more))
        return worlds[0]

    def leave_together() -> None:
        meet("to leave")
        leave()
        if os.environ.get("TOY_LEAVES_LATE") == str(worlds[0].rank):
            time.sleep(8)

    distributed.launch = launch_and_note
    distributed.dist.destroy_process_group = leave_together


if __name__ == "__main__":
    torch.set_num_threads(1)
    emulate()
    sys.exit(toy.run_once(Path(sys.argv[1]), json.loads(sys.argv[2])))
