"""Data-parallel training: one process per CPU core or GPU, with gradients summed over all processes.

Every process has the whole model. All numbers that affect decisions (sums of losses, the gradient norm, stop requests) have the
same bits in every process, so all processes take the same steps and decisions without a master.

`phraseloom train` (`launch`), `torchrun` or `srun` (`launcher.py`) starts the processes. Local ones use the loopback interface
only. If one dies, the others see its connections close; if one hangs, `watch.py` says so. Both end the run with an error. On
GPUs, where no connection tells of a loss and the main thread waits for the device, the thread of `watch.py` ends the process.

**The sum of gradients** is taken in the order of the micro-batches, ((g_0 + g_1) + g_2) + …, so on CPUs the number of
processes does not change a bit of it. Processes take micro-batches in rounds: micro-batch i goes to process i mod P, in round
i div P; after each round its gradients are added to the total. GPUs add up their own micro-batches first, and sum over
processes while the backward pass of the last one still runs (`OverlappedGradient`).

**Shared memory** replaces sockets for gradients on one machine. Each process has its gradient in a slot of a common block.
Process r adds up slice r of all slots, in the order of the slots, into a common total; then each process copies the total. The
sums have the same bits in every process, and two passes over memory are faster than a ring over the loopback interface (18
against 45 ms, measured for 7.5 M parameters and two busy cores).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phraseloom.errors import DivergedError, InterruptedRun, PhraseloomError, UsageError, escape_controls
from phraseloom.files import available_cores
from phraseloom.options.training import TrainingConfig
from phraseloom.parent import PARENT, end_with_parent
from phraseloom.training.launcher import LaunchedProcess, launched_process
from phraseloom.training.watch import BEAT_SECONDS, Watch, processor_seconds

__all__ = [
    "ExchangedGradient",
    "LostProcess",
    "OverlappedGradient",
    "SharedGradient",
    "World",
    "bound_memory",
    "choose_device",
    "choose_processes",
    "is_child",
    "keep_pages",
    "launch",
    "share_gradient",
]


class SharedGradient:
    """The gradient slots of all processes and their total, in one mapped block of memory."""

    def __init__(self, block: mmap.mmap, rank: int, size: int, length: int, wait: Callable[[], None]) -> None:
        rows = torch.frombuffer(block, dtype=torch.float32, count=(size + 1) * length).view(size + 1, length)
        self.slots, self.total = rows[:size], rows[size]
        self.own = self.slots[rank]
        step = -(-length // size)
        self.slice = slice(min(length, rank * step), min(length, (rank + 1) * step))
        self._wait, self._block = wait, block

    def add(self, *, first: bool) -> None:
        """Add all slots, in their order, to the total, which is zero before the `first` round."""
        self._wait()  # all slots are full
        part = self.total[self.slice]
        begin = 0
        if first:
            torch.add(self.slots[0][self.slice], self.slots[1][self.slice], out=part)
            begin = 2
        for slot in self.slots[begin:]:
            part.add_(slot[self.slice])
        self._wait()  # all slices are summed, and all slots are free

    def finish(self) -> None:
        """Copy the total to the own slot."""
        self.own.copy_(self.total)


class ExchangedGradient:
    """The same ordered sum over sockets: process r gets slice r of all gradients, adds them up and sends the result."""

    def __init__(self, world: World, length: int) -> None:
        self._world, self._length = world, length
        self._step = -(-length // world.size)
        self._parts = torch.zeros(world.size, self._step)
        self._sum = torch.zeros(self._step)

    def add(self, gradient: Tensor, *, first: bool) -> None:
        """Add the gradients of all processes, in the order of ranks, to the total."""
        padded = torch.zeros(self._step * self._world.size)
        padded[: self._length] = gradient
        self._world.wait_for(dist.all_to_all_single(self._parts.view(-1), padded, async_op=True))
        if first:
            self._sum.zero_()
        for part in self._parts:
            self._sum.add_(part)

    def finish(self, gradient: Tensor) -> None:
        """Write the total into `gradient`, in every process."""
        self._world.wait_for(dist.all_gather(list(self._parts), self._sum, async_op=True))
        gradient.copy_(self._parts.view(-1)[: self._length])


class OverlappedGradient:
    """The sum over processes of a flat gradient, in buckets, each as soon as the backward pass has finished its parameters.

    `parameters`: with their places in the gradient, in the order of the places. Buckets are summed from the last to the first,
    about the order of the backward pass, and in this order in every process, whatever its backward pass finishes first.
    """

    def __init__(self, world: World, gradient: Tensor, parameters: Sequence[tuple[int, Tensor]], elements: int) -> None:
        self._world, self._gradient = world, gradient
        self._buckets: list[slice] = []
        self._sizes: list[int] = []
        end, size = len(gradient), 0
        for number, (begin, parameter) in enumerate(reversed(parameters), 1):
            size += 1
            parameter.register_post_accumulate_grad_hook(self._hook(len(self._buckets)))
            if end - begin >= elements or number == len(parameters):
                self._buckets.append(slice(begin, end))
                self._sizes.append(size)
                end, size = begin, 0
        self._missing: list[int] = []
        self._works: list[Any] = []

    def arm(self) -> None:
        """The next backward pass is the last one of this process in this update."""
        self._missing = list(self._sizes)

    def finish(self) -> None:
        """Sum the buckets that are left, and wait for all of them."""
        for part in self._buckets[len(self._works) :]:
            self._sum(part)
        for work in self._works:
            self._world.wait_for(work)
        self._works, self._missing = [], []

    def _hook(self, bucket: int) -> Callable[[Tensor], None]:
        def finished(_: Tensor) -> None:
            if not self._missing:
                return
            self._missing[bucket] -= 1
            while len(self._works) < len(self._buckets) and self._missing[len(self._works)] == 0:
                self._sum(self._buckets[len(self._works)])

        return finished

    def _sum(self, part: slice) -> None:
        self._works.append(dist.all_reduce(self._gradient[part], async_op=True))


def share_gradient(world: Any, length: int) -> SharedGradient | None:
    """A common block for float32 gradients of this length, or None if that is impossible (other systems, several machines,
    GPUs, missing rights); the same answer in all processes."""
    if world.size == 1 or not world.one_machine or world.on_gpus:
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


WAIT = timedelta(minutes=60)  # for one another: a rank may save or validate for long; a death is seen at once
START_SECONDS = 300  # a busy machine may take minutes to import torch several times, but is never idle in them
IDLE_SECONDS = 25  # a process that starts and has used no processor time for so long hangs
LEAVING_SECONDS = 60  # to leave the group after the first process
MEETING_SECONDS = 25  # for processes that have all started to connect to each other
PROCESSES_A_CORE = 2
BUCKET = 2**22  # elements of a gradient that GPUs sum at a time, 16 MiB
PORT = "PHRASELOOM_STORE_PORT"


def is_child() -> bool:
    """Whether this is not the first process of a run, whoever started it."""
    if PORT in os.environ:
        return True
    launched = launched_process()
    return launched is not None and launched.rank != 0


def choose_device(config: TrainingConfig) -> torch.device:
    """The device of the recipe. Raises UsageError if the machine does not have it."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda is asked for, but there is no usable GPU", hint="set training.device=auto")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def choose_processes(config: TrainingConfig, device: torch.device, pieces: int | None = None) -> int:
    """The number of local processes. `auto`: one per core (GPU), at most one per micro-batch (`pieces`, if the run has a number
    already). A number: at most two per core (one per GPU), so that the recipe of a large machine runs on a small one."""
    places = available_cores() if device.type == "cpu" else torch.cuda.device_count()
    pieces = pieces or config.pieces
    if config.processes != "auto":
        places = min(config.processes, PROCESSES_A_CORE * places if device.type == "cpu" else places)
    return places if pieces is None else min(places, pieces)


class LostProcess(PhraseloomError):
    """Another process of the run has died; its own error says why."""

    of_first = False
    """Whether it is the first one, which otherwise reports the loss."""


class World:
    """One process and its connections to the others; `World()` is a run of one process."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")
        self.children: list[subprocess.Popen[bytes]] = []
        self.one_machine = True
        self.notice = ""  # a message to the user about the processes
        self.store: Any = None  # processes write the reason for their end here
        self.watch: Watch | None = None
        self.launched = False  # by torchrun or srun, which also end the processes
        self._hangs = False
        self._leaves = False
        self._failed_with: int | None = None  # the exit code of the error that ends this process
        self._shared: SharedGradient | None = None
        self._exchanged: ExchangedGradient | None = None
        self._overlapped: OverlappedGradient | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    @property
    def on_gpus(self) -> bool:
        """Whether processes exchange tensors with NCCL, which does not notice that one is lost, and waits on the device."""
        return self.device.type != "cpu"

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up `tensor` over all processes, in place; the same bits everywhere."""
        if self.size > 1:
            self.wait_for(dist.all_reduce(tensor, async_op=True))
        return tensor

    def wait_for(self, work: Any) -> None:
        """Wait for an operation of all processes. Raises LostProcess, with the rank, if one has died or hangs."""
        watch = None if self.on_gpus else self.watch
        try:
            if watch is None:
                work.wait()
                return
            watch.waiting = True
            while not self._is_complete(work, watch):
                pass
        except RuntimeError as error:
            hint, why = "run the same command again", self._dead()
            if self.on_gpus and not why:
                raise PhraseloomError(f"the exchange of tensors failed: {error}", hint=hint) from error
            lost = LostProcess(f"lost another training process{why}", hint=hint)
            lost.of_first = why.startswith(" (rank 0,")
            raise lost from error
        finally:
            if watch is not None:
                watch.waiting = False

    def _is_complete(self, work: Any, watch: Watch) -> bool:
        try:
            work.wait(timedelta(seconds=BEAT_SECONDS))
            return True
        except RuntimeError:
            if work.is_completed():  # it has failed, or ended a moment after the time was up
                work.wait()
                return True
        if ranks := watch.lost():
            self._hangs = True
            named = ", ".join(map(str, ranks))
            what = f"training process of rank {named} hangs or is lost: no sign of life for {watch.patience:g} s"
            lost = LostProcess(what, hint="see why on its machine, and run the same command again")
            lost.of_first = 0 in ranks
            raise lost
        return False

    def gradient_buffer(self, like: Tensor) -> Tensor:
        """A zeroed tensor like `like` that `sum_gradient_` sums fast, if the processes can share memory."""
        self._shared = share_gradient(self, like.numel()) if like.dtype == torch.float32 else None
        if self._shared is not None:
            return self._shared.own.zero_()
        if self.size > 1 and not self.on_gpus:
            self._exchanged = ExchangedGradient(self, like.numel())
        return torch.zeros_like(like)

    def overlap(self, gradient: Tensor, parameters: Sequence[tuple[int, Tensor]], elements: int = BUCKET) -> None:
        """Have `add_gradients` sum this tensor during the backward pass that follows `last_backward`."""
        if self.size > 1:
            self._overlapped = OverlappedGradient(self, gradient, parameters, elements)

    def last_backward(self) -> None:
        """The next backward pass completes the gradient of this process."""
        if self._overlapped is not None:
            self._overlapped.arm()

    def add_gradients(self, gradient: Tensor, *, first: bool, last: bool) -> None:
        """Add up the tensor of `gradient_buffer` over the processes after one round of micro-batches (see the module).

        After the `last` round the tensor has the sum over all rounds, else zero. GPUs only add up after the last.
        """
        if self.size == 1:
            return
        if self._overlapped is not None:
            if last:
                self._overlapped.finish()
            return
        if self.on_gpus:
            if last:
                self.sum_(gradient)
            return
        if self._shared is not None:
            self._shared.add(first=first)
        elif self._exchanged is not None:
            self._exchanged.add(gradient, first=first)
        if not last:
            gradient.zero_()
        elif self._shared is not None:
            self._shared.finish()
        elif self._exchanged is not None:
            self._exchanged.finish(gradient)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set in any process."""
        return flag if self.size == 1 else bool(self.sum_(torch.tensor([float(flag)], device=self.device)).item())

    def send_(self, tensor: Tensor) -> Tensor:
        """Copy the tensor of the first process to all others, in place."""
        if self.size > 1:
            self.wait_for(dist.broadcast(tensor, 0, async_op=True))
        return tensor

    def send_text(self, text: str) -> str:
        """The text of the first process, in all of them."""
        if self.size == 1:
            return text
        data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        size = self.send_(torch.tensor([len(data)], device=self.device))
        if not self.first:
            data = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        return bytes(self.send_(data).tolist()).decode()

    def gather_lines(self, lines: Sequence[str]) -> list[str]:
        """Collect lines that were distributed as lines[rank::size]: all lines in order, in every process."""
        if self.size == 1:
            return list(lines)
        texts = []
        for rank in range(self.size):  # a sum of one text and zeros is that text
            own = "\n".join(lines).encode() if rank == self.rank else b""
            size = self.sum_(
                torch.tensor([len(own), len(lines) if own or rank == self.rank else 0], device=self.device)
            )
            data = torch.zeros(int(size[0]), dtype=torch.uint8, device=self.device)
            if own:
                data.copy_(torch.tensor(list(own), dtype=torch.uint8))
            text = bytes(self.sum_(data).tolist()).decode()
            texts.append(text.split("\n") if int(size[1]) else [])
        return [texts[i % self.size][i // self.size] for i in range(sum(map(len, texts)))]

    def check_same(self, parts: Mapping[str, str]) -> None:
        """Raise UsageError, with the ranks, if a part (such as the recipe) does not have the same text in all processes."""
        if self.size == 1:
            return
        digests = [hashlib.sha256(text.encode()).hexdigest() for text in parts.values()]
        rows = [line.split() for line in self.gather_lines([" ".join(digests)])]
        for number, name in enumerate(parts):
            others = [rank for rank, row in enumerate(rows) if row[number] != rows[0][number]]
            if others:
                named = ", ".join(map(str, others[:8])) + (" …" if len(others) > 8 else "")
                hint = "start all with the same command, on the same dataset and version"
                raise UsageError(f"{name} of rank {named} differs from that of rank 0", hint=hint)

    def _dead(self) -> str:
        """The rank of a process that has died and why, as far as this process can find out in a few seconds."""
        if self.store is None:
            return ""
        interval = self.watch.interval if self.watch is not None and not self.children else 0.0
        deadline = time.monotonic() + max(2.0, 4 * interval)
        with contextlib.suppress(RuntimeError):
            self.store.set(f"left {self.rank}", "")
            while time.monotonic() < deadline:
                if why := self._why_lost(self.store, 2.5 * interval or None):
                    return f" ({why})"
                time.sleep(0.05)
            return ""
        return " (rank 0, whose store does not answer)"

    def _why_lost(self, store: Any, patience: float | None = None) -> str:
        """The rank of a process that has failed or is lost, and why, or "". A process that left the group is neither."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank in others:
            if store.check([f"error {rank}"]):
                return f"rank {rank}: {store.get(f'error {rank}').decode()}"
        codes = [child.poll() for child in self.children]  # first: a process leaves the group before it ends
        stayed = [rank for rank in others if not store.check([f"left {rank}"])]
        for rank, code in enumerate(codes, 1):
            if rank in stayed and code is not None and code != 0:
                return f"rank {rank}, " + (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        silent = [rank for rank in self.watch.lost(patience) if rank in stayed] if self.watch is not None else []
        return f"rank {', '.join(map(str, silent))}, without a sign of life" if silent else ""

    def leave_if_lost(self, store: Any | None) -> None:
        """End this process, with an error, if another one has failed or is lost; for the thread of the watch, on GPUs.

        The main thread may wait for it without end, so nothing can be saved. `store`: the thread's own connection; None if it
        does not answer.
        """
        try:
            why = "rank 0, whose store does not answer" if store is None else self._why_lost(store)
        except RuntimeError:
            why = "rank 0, whose store does not answer"
        if why and self._failed_with is None and not self._ends_soon(why):
            if not is_child() or why.startswith("rank 0,"):  # else the first process reports it
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    said = f"lost another training process ({why}); run the same command again"
                    sys.stderr.write(f"phraseloom train: {escape_controls(said)}\n")
            self._end_children(0)
            _exit_now(LostProcess.exit_code)

    def _ends_soon(self, why: str) -> bool:
        """Whether this process ends in good order: then the first one, with its store, may have ended already."""
        if self.watch is None or not why.startswith("rank 0, whose store"):
            return False
        return self.watch.stopped_within(LEAVING_SECONDS if self._leaves else 2 * self.watch.interval)

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Leave the error of a child for the first process, which alone says what happened: LostProcess in its place."""
        try:
            yield
        except (DivergedError, InterruptedRun):  # of all processes
            raise
        except BaseException as error:
            self._failed_with = getattr(error, "exit_code", 1)
            if self.store is None or isinstance(error, LostProcess):
                raise
            with contextlib.suppress(RuntimeError):
                self.store.set(f"error {self.rank}", str(error) or type(error).__name__)
            if self.first or not isinstance(error, PhraseloomError):
                raise
            raise LostProcess(str(error)) from error

    def kill_children(self) -> None:
        """End the other local processes at once."""
        for child in self.children:
            child.kill()

    def close(self) -> None:
        """Leave the group; children that are still there after a while are ended."""
        failed = self._failed_with if self.on_gpus and self.size > 1 else None
        if self._hangs or failed is not None:
            self._stop_watch()
            self._end_children(0)
            if not self.children or failed is not None:  # leaving the group would wait for the others
                atexit.register(_exit_now, LostProcess.exit_code if failed is None else failed)
                return
        self._leaves = True
        if self.store is not None:
            with contextlib.suppress(RuntimeError):
                self.store.set(f"left {self.rank}", "")
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()
        self._stop_watch()
        self._end_children(10)

    def _end_children(self, seconds: float) -> None:
        """Wait for the other local processes; end those that are still there after this time."""
        for child in self.children:
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _stop_watch(self) -> None:
        if self.watch is not None:
            self.watch.stop()


def _exit_now(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def launch(config: TrainingConfig, command: Sequence[str] | None = None, *, pieces: int | None = None) -> World:
    """Join or make the group of processes of a run, and share the cores out among them.

    Under torchrun and srun, and as a child of a first process: join. Otherwise become the first process and start `command`
    (default: this very command line) once for every other rank; at most `pieces` processes, if given.
    """
    device = choose_device(config)
    if PORT in os.environ:
        return _join_as_child(device)
    launched = launched_process()
    if launched is not None:
        return _join_launched(device, launched)
    size = choose_processes(config, device, pieces)
    notice = ""
    if config.processes != "auto" and size < config.processes:
        notice = f"training.processes is {config.processes}: this machine runs {size}, the most that its {_parts(device)} allow"
    _share_cores(size)
    if size == 1:
        world = World(0, 1, device if device.type == "cpu" else torch.device("cuda", 0))
        world.notice = notice
        return world
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start = timedelta(seconds=START_SECONDS)
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False, timeout=start)
    world = World(0, size, device)
    world.store, world.notice = store, notice
    command = list(command or [sys.executable, "-m", "phraseloom", *sys.argv[1:]])
    for rank in range(1, size):
        place = {"RANK": str(rank), "WORLD_SIZE": str(size), PORT: str(store.port), PARENT: str(os.getpid())}
        threads = str(torch.get_num_threads())  # of every process alike: results depend on it
        env = {**os.environ, **place, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        world.children.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL))
    try:
        _wait_for_children(world, store)
        _meet_children(world, store)
    except BaseException:
        world.kill_children()
        for child in world.children:
            child.wait()
        raise
    return world


def _parts(device: torch.device) -> str:
    return f"{available_cores()} core(s)" if device.type == "cpu" else f"{torch.cuda.device_count()} GPU(s)"


def _wait_for_children(world: World, store: Any) -> None:
    start = time.monotonic()
    used: dict[int, tuple[float, float]] = {}  # rank: processor time, and when it last grew
    while store.add("here", 0) < world.size - 1:
        _raise_if_dead(world, "did not start")
        now = time.monotonic()
        for rank, child in enumerate(world.children, 1):
            seconds = processor_seconds(child.pid)
            if seconds is None:
                continue
            before, since = used.get(rank, (-1.0, now))
            if seconds > before:
                used[rank] = (seconds, now)
            elif now - since > IDLE_SECONDS and not store.check([f"here {rank}"]):
                what = f"training process of rank {rank} hangs: it did nothing for {IDLE_SECONDS} s while it started"
                raise PhraseloomError(what, hint="try again, or set training.processes=1")
        if now - start > START_SECONDS:
            raise PhraseloomError(
                f"training processes did not start within {START_SECONDS} s",
                hint="the machine is busy, or too small for so many: try again, or set training.processes=1",
            )
        time.sleep(0.02)


def _raise_if_dead(world: World, what: str) -> None:
    for rank, child in enumerate(world.children, 1):
        code = child.poll()
        if code is not None:
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            raise PhraseloomError(f"training process of rank {rank} {what} ({how})", hint="run the same command again")


def _meet_children(world: World, store: Any) -> None:
    try:
        _start_group(world, store, ("127.0.0.1", store.port))
    except RuntimeError as error:
        _raise_if_dead(world, "ended before the processes met")
        ranks = ", ".join(str(rank) for rank in range(1, world.size))
        raise PhraseloomError(
            f"training processes did not meet within {MEETING_SECONDS} s: one of rank {ranks} hangs",
            hint="try again, or set training.processes=1",
        ) from error


def _join_as_child(device: torch.device) -> World:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    end_with_parent()
    _share_cores(size)
    start = timedelta(seconds=START_SECONDS)
    store = dist.TCPStore("127.0.0.1", int(os.environ[PORT]), size, is_master=False, timeout=start)
    store.set(f"here {rank}", "")
    store.add("here", 1)
    world = World(rank, size, device)
    world.store = store
    try:
        _start_group(world, store, ("127.0.0.1", int(os.environ[PORT])))
    except RuntimeError as error:  # the first process says who is missing
        raise LostProcess("training processes did not meet") from error
    return world


def _join_launched(device: torch.device, place: LaunchedProcess) -> World:
    cores = os.environ.get("SLURM_CPUS_PER_TASK", "") if place.launcher == "srun" else ""
    _share_cores(max(1, available_cores() // int(cores)) if cores.isdigit() and int(cores) else place.local_size)
    world = World(place.rank, place.size, device)
    world.launched = True
    world.one_machine = place.local_size == place.size
    if device.type == "cuda":  # Slurm may show each process its own GPU only
        world.device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    if place.size > 1:
        if place.host in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        world.store = _open_store(place)
        _wait_for_others(world, place)
        try:
            _start_group(world, world.store, (place.host, place.port), prefix=_prefix(place))
        except RuntimeError as error:
            raise PhraseloomError(
                f"the {place.size} processes did not connect to each other within {MEETING_SECONDS} s",
                hint="set GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) to the interface that joins the machines",
            ) from error
    return world


def _prefix(place: LaunchedProcess) -> str:
    return f"phraseloom/{place.job}/{place.attempt}"  # torchrun's store outlives the processes that it restarts


def _open_store(place: LaunchedProcess) -> Any:
    """The common store. Raises PhraseloomError if the first process does not answer, or its port is taken."""
    where = f"{place.host}:{place.port}"
    hint = "set MASTER_ADDR and MASTER_PORT to an address that all machines reach"
    if not place.hosts_store:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection((place.host, place.port), 5).close()
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    what = f"rank {place.rank} gets no answer from the rendezvous at {where} ({START_SECONDS} s)"
                    raise PhraseloomError(f"{what}: {error.strerror or error}", hint=hint) from error
                time.sleep(0.5)
    try:
        return dist.PrefixStore(_prefix(place), _connect(place.host, place.port, place.size, place.hosts_store))
    except RuntimeError as error:
        what = f"rank {place.rank} cannot {'open' if place.hosts_store else 'use'} the rendezvous at {where}"
        if place.hosts_store:
            hint = "another job may use this port; set MASTER_PORT to one that is free, for all processes"
        raise PhraseloomError(what, hint=hint) from error


def _connect(host: str, port: int, size: int, is_master: bool = False) -> Any:
    start = timedelta(seconds=START_SECONDS)
    return dist.TCPStore(host, port, size, is_master=is_master, timeout=start, wait_for_workers=False)


def _wait_for_others(world: World, place: LaunchedProcess) -> None:
    world.store.set(f"here {world.rank}", "")
    deadline = time.monotonic() + START_SECONDS
    missing = list(range(world.size))
    while missing := [rank for rank in missing if not world.store.check([f"here {rank}"])]:
        if time.monotonic() >= deadline:
            named = ", ".join(map(str, missing[:8]))
            what = f"rank {named} of {world.size} did not come to {place.host}:{place.port} within {START_SECONDS} s"
            raise PhraseloomError(what, hint=f"see its own message, and whether {place.launcher} started it")
        time.sleep(0.05)


def _start_group(world: World, store: Any, address: tuple[str, int], prefix: str = "") -> None:
    if world.device.type == "cuda":
        if world.device.index is None:
            world.device = torch.device("cuda", world.rank)
        torch.cuda.set_device(world.device)
    backend = "nccl" if world.device.type == "cuda" else "gloo"
    Watch.enter(store, world.rank)
    meeting = timedelta(seconds=MEETING_SECONDS)
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=meeting)
    dist.all_reduce(torch.zeros(1, device=world.device))  # the meeting itself, where connections are made late
    dist.distributed_c10d._set_pg_timeout(WAIT, dist.group.WORLD)
    connection = _connect(*address, world.size)
    connection = dist.PrefixStore(prefix, connection) if prefix else connection
    world.watch = Watch(connection, world.rank, world.size, check=world.leave_if_lost if world.on_gpus else None)
    world.watch.start()


def _share_cores(processes: int) -> None:
    """Threads of this process: its share of the cores, or fewer where OMP_NUM_THREADS says so."""
    threads = max(1, available_cores() // processes)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(min(threads, int(asked)) if asked.isdigit() and int(asked) > 0 else threads)


def keep_pages() -> None:
    """Tell glibc to keep freed memory instead of giving it back and faulting it in again every update (4-9 % of time)."""
    _set_malloc({_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 64 << 20})


def bound_memory() -> None:
    """Keep the memory of a process flat that works for days on batches of ever other shapes. Call it before the first product.

    oneDNN and torch each keep the products they have compiled, one for each number of rows; here the last 128, unless the
    environment says otherwise. glibc gives freed memory back: two arenas, large blocks outside of them, fixed thresholds.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "128")
    _set_malloc({_ARENA_MAX: 2, _MMAP_THRESHOLD: 1 << 20, _TRIM_THRESHOLD: 32 << 20})


# Of malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


def _set_malloc(values: dict[int, int]) -> None:
    """Options of glibc's malloc, where there is one."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for option, value in values.items():
            libc.mallopt(option, value)
