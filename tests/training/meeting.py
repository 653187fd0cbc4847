"""A training process that starts and then goes wrong: `python meeting.py early|late die|hang`, as a child of `launch`."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from phraseloom.training import distributed

if __name__ == "__main__":
    when, how = sys.argv[1:]
    if when == "late":
        rank, size = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
        port = int(os.environ[distributed.PORT])
        store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=timedelta(seconds=60))
        store.set(f"here {rank}", "")
        store.add("here", 1)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1000)
