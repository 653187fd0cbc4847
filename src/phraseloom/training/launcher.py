"""The place of this process among those that torchrun or Slurm's `srun` started, read from the environment.

`srun` sets no address: the first process listens on the first host of the step's node list (`MASTER_ADDR` replaces it), on a
port made from the numbers of job and step (`MASTER_PORT` replaces it). Two jobs may get one port, so the keys of the store also
have these numbers: no process can join those of another job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from phraseloom.errors import UsageError

__all__ = ["LaunchedProcess", "first_host", "launched_process"]

FIRST_PORT, PORTS = 20_000, 10_000  # below the ports that Linux gives to outgoing connections (32,768 and above)


@dataclass(frozen=True)
class LaunchedProcess:
    """Rank and number of processes, in all and on this machine; the address of the store where they meet.

    `hosts_store`: whether this process runs the store. `attempt`: how often torchrun has restarted the processes. `job`: the
    numbers of job and step of Slurm.
    """

    launcher: Literal["torchrun", "srun"]
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    hosts_store: bool
    attempt: int = 0
    job: str = ""


def launched_process(environment: Mapping[str, str] = os.environ) -> LaunchedProcess | None:
    """This process as torchrun or `srun` describes it; None if neither started it, or `srun` started no other one.

    Raises UsageError for a variable that is missing or not a number.
    """
    if "TORCHELASTIC_RUN_ID" in environment or "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:  # a batch script without srun has no step
        return _of_slurm(environment)
    return None


def _of_torchrun(environment: Mapping[str, str]) -> LaunchedProcess:
    rank, size = _number(environment, "RANK", "0"), _number(environment, "WORLD_SIZE")
    return LaunchedProcess(
        "torchrun",
        rank,
        size,
        local_rank=_number(environment, "LOCAL_RANK", str(rank)),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", str(size)),
        host=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=_number(environment, "MASTER_PORT", "29500"),
        hosts_store=rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _of_slurm(environment: Mapping[str, str]) -> LaunchedProcess | None:
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    size = _number(environment, tasks, "1")
    if size == 1:
        return None
    rank = _number(environment, "SLURM_PROCID")
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = next((environment[name] for name in names if environment.get(name)), "")
    host = environment.get("MASTER_ADDR") or first_host(nodes)
    if not host:
        raise UsageError("srun names no node: SLURM_STEP_NODELIST is not set", hint="set MASTER_ADDR and MASTER_PORT")
    job, step = _number(environment, "SLURM_JOB_ID", "0"), _number(environment, "SLURM_STEP_ID", "0")
    single = environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_JOB_NUM_NODES", "1")) == "1"
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", ""))
    here = size if single else _tasks_of_node(counts, _number(environment, "SLURM_NODEID", "0"), size)
    return LaunchedProcess(
        "srun",
        rank,
        size,
        local_rank=_number(environment, "SLURM_LOCALID", "0"),
        local_size=here,
        host=host,
        port=_number(environment, "MASTER_PORT", str(FIRST_PORT + (31 * job + step) % PORTS)),
        hosts_store=rank == 0,
        job=f"{job}.{step}",
    )


def _number(environment: Mapping[str, str], name: str, default: str | None = None) -> int:
    value = environment.get(name, default)
    if value is None or not (value.isascii() and value.isdigit()):
        problem = "is not set" if value is None else f"is {value!r}, not a whole number"
        raise UsageError(f"{name} {problem}", hint="torchrun and srun set it; start the processes with one of them")
    return int(value)


def first_host(nodes: str) -> str:
    """The first host of a node list of Slurm: `gpu[03-07,9],cpu1` gives `gpu03`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes.strip())
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _tasks_of_node(counts: str, node: int, default: int) -> int:
    """The number of tasks of a node in Slurm's `2(x3),1`: nodes 0 to 2 have two tasks, node 3 has one."""
    numbers: list[int] = []
    for part in re.finditer(r"(\d+)(?:\(x(\d+)\))?", counts):
        numbers += [int(part[1])] * min(int(part[2] or 1), 100_000)
    return numbers[node] if node < len(numbers) else default
