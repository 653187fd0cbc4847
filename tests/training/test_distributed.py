"""One process or several: the same gradients to 1e-6, the same examples, the same files; a death stops all, all saved."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import toy
from tests.helpers import HANGS, run_records

from phraseloom.errors import PhraseloomError
from phraseloom.training import checkpoint, distributed

PROGRAM = Path(toy.__file__)
assert distributed.WAIT.total_seconds() > HANGS


def command(run: Path, **keys: Any) -> list[str]:
    return [sys.executable, str(PROGRAM), str(run), json.dumps(keys)]


def train(run: Path, *, before: list[str] | None = None, env: dict[str, str] | None = None, **keys: Any) -> str:
    """Run the program to its end; what it printed."""
    line = command(run, **keys)
    line = [*before, *line[1:]] if before else line
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANGS, env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize(("asked", "threads"), [("1", 1), (None, 4)])
def test_all_processes_have_the_threads_of_the_first(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, threads: int
) -> None:
    """Results depend on the number of threads, so OMP_NUM_THREADS holds in every process."""
    seen: list[str] = []

    def popen(_: object, *, env: dict[str, str], stdin: int) -> None:
        del stdin
        seen.append(env["OMP_NUM_THREADS"])
        raise OSError("enough seen")

    monkeypatch.setattr(distributed, "available_cores", lambda: 8)
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    before = torch.get_num_threads()
    try:
        with pytest.raises(OSError, match="enough seen"):
            distributed.launch(toy.config(processes=2, micro_batches=2), ["program"], pieces=2)
        assert (seen, torch.get_num_threads()) == ([str(threads)], threads)
    finally:
        torch.set_num_threads(before)


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return {k: t.double() for k, t in safetensors.torch.load_file(path).items()}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(((a[k] - b[k]).norm() / a[k].norm().clamp_min(1e-12)).item() for k in a)


# Updates 5, 7 and 10 end something; 12 is not the end of anything.
WHOLE: dict[str, Any] = {"max_updates": 13, "checkpoint_every": 5, "log_every": 7, "micro_batches": 3}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, of one update and of 13."""
    folder = tmp_path_factory.mktemp("alone")
    for updates in (1, 13):
        job = toy.finish(folder / str(updates), toy.config(**WHOLE | {"max_updates": updates}))
        toy.files.atomic_write_bytes(
            folder / str(updates) / "gradient", safetensors.torch.save({"gradient": job.flat.grad})
        )
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes of 13 updates."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "said").write_text(train(folder / "13", **WHOLE, processes=2))
    return folder


def test_gradient_of_two_processes_is_that_of_one(tmp_path: Path, alone: Path) -> None:
    train(tmp_path, max_updates=1, micro_batches=3, processes=2)
    assert distance(tensors(alone / "1" / "gradient"), tensors(tmp_path / "gradient")) <= 1e-6


def last_gradient(run: Path) -> torch.Tensor:
    found = tensors(run / "gradient")["gradient"]
    assert found.norm() > 0
    return found


@pytest.mark.full
def test_sums_during_the_backward_pass_are_those_after_it(tmp_path: Path, two: Path) -> None:
    """As on GPUs, where a process adds up its own micro-batches first; the third is the second of one process only."""
    train(tmp_path, **WHOLE, processes=2, env={"TOY_OVERLAPS": "1"})
    torch.testing.assert_close(last_gradient(tmp_path), last_gradient(two / "13"), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_sums_of_one_micro_batch_each_are_the_same_bytes(tmp_path: Path) -> None:
    train(tmp_path / "after", max_updates=3, micro_batches=2, processes=2)
    train(tmp_path / "during", max_updates=3, micro_batches=2, processes=2, env={"TOY_OVERLAPS": "1"})
    assert torch.equal(last_gradient(tmp_path / "after"), last_gradient(tmp_path / "during"))


def test_processes_with_deferred_updates_agree_when_to_meet(tmp_path: Path, two: Path) -> None:
    """The first process alone rotates checkpoints; the update after one is settled by all."""
    train(tmp_path, **WHOLE, processes=2, env={"TOY_DEFERRED": "1"})
    torch.testing.assert_close(last_gradient(tmp_path), last_gradient(two / "13"), rtol=1e-4, atol=1e-5)


def test_buckets_are_summed_as_soon_as_they_are_whole_and_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever parameters the backward pass finishes first; what it does not reach is summed at the end."""
    summed: list[tuple[int, int]] = []

    class Done:
        def wait(self) -> None: ...

    def all_reduce(part: torch.Tensor, async_op: bool) -> Done:
        summed.append((part.storage_offset(), len(part)))
        return Done()

    monkeypatch.setattr(distributed.dist, "all_reduce", all_reduce)
    gradient = torch.zeros(40)
    parameters = [torch.nn.Parameter(torch.ones(10)) for _ in range(4)]
    for n, p in enumerate(parameters):
        p.grad = gradient[10 * n : 10 * n + 10]
    world = distributed.World(0, 2)
    world.overlap(gradient, [(10 * n, p) for n, p in enumerate(parameters)], elements=20)
    parameters[3].sum().backward()
    assert not summed, "not armed"
    world.last_backward()
    parameters[0].sum().backward()
    parameters[1].sum().backward()
    assert not summed, "the last bucket goes first"
    parameters[3].sum().backward()
    parameters[2].sum().backward()
    assert summed == [(20, 20), (0, 20)]
    world.add_gradients(gradient, first=True, last=True)
    assert len(summed) == 2
    world.last_backward()
    parameters[3].sum().backward()
    world.add_gradients(gradient, first=True, last=True)
    assert summed[2:] == [(20, 20), (0, 20)]


def test_whole_run_of_two_processes_is_that_of_one(two: Path, alone: Path) -> None:
    assert "2 process(es)" in (two / "said").read_text()
    last = "13/checkpoints/step_00000013/model.safetensors"
    assert distance(tensors(alone / last), tensors(two / last)) <= 1e-4
    for a, b in zip(run_records(alone / "13"), run_records(two / "13"), strict=True):
        assert a["update"] == b["update"] and a.get("tokens") == b.get("tokens")
        if "loss" in a:
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        else:
            assert a["validation"]["perplexity"] == pytest.approx(b["validation"]["perplexity"], rel=1e-4)


@pytest.mark.full
def test_two_processes_stop_on_a_signal_and_resume_to_the_same_bytes(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"max_updates": 60, "checkpoint_every": 25, "processes": 2}
    train(tmp_path / "whole", **keys)
    process = subprocess.Popen(
        command(tmp_path / "parts", **keys), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    wait_for(tmp_path / "parts" / "metrics.jsonl", 20)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=HANGS)
    assert process.returncode == 3, said
    train(tmp_path / "parts", **keys)
    assert toy.result(tmp_path / "parts") == toy.result(tmp_path / "whole")


def wait_for(path: Path, lines: int) -> None:
    deadline = time.monotonic() + HANGS
    while not (path.is_file() and path.read_bytes().count(b"\n") >= lines):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.full)])
def test_death_of_a_process_stops_the_others_with_all_saved(tmp_path: Path, victim: int) -> None:
    """R7: long before the processes stop waiting for one another, with an error, and with a whole checkpoint."""
    keys: dict[str, Any] = {"max_updates": 10**6, "checkpoint_every": 10, "processes": 2}
    process = subprocess.Popen(command(tmp_path, **keys), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    word, *pids = process.stdout.readline().split()
    assert word == "running" and len(pids) == 2
    wait_for(tmp_path / "metrics.jsonl", 25)
    os.kill(int(pids[victim]), signal.SIGKILL)
    _, said = process.communicate(timeout=HANGS)
    if victim == 1:
        assert process.returncode == 1
        assert "lost another training process (rank 1, killed by signal 9)" in said
    deadline = time.monotonic() + HANGS
    while Path(f"/proc/{pids[1]}").exists():
        assert time.monotonic() < deadline, "the child goes when its parent does"
        time.sleep(0.05)
    found = checkpoint.newest_whole(tmp_path, lambda _: None)
    assert found is not None and found[1].update >= 10
    if victim == 1:
        assert found[1].update == max(r["update"] for r in run_records(tmp_path))


ON_GPUS = PROGRAM.with_name("toy_on_gpus.py")
ENDLESS: dict[str, Any] = {"max_updates": 10**6, "processes": 2}


def start_on_gpus(run: Path, keys: dict[str, Any], **env: str) -> subprocess.Popen[str]:
    """A process of a run whose processes wait as on GPUs."""
    line = [sys.executable, str(ON_GPUS), str(run), json.dumps(keys)]
    env = {**os.environ, **env}
    return subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def start_launched_on_gpus(run: Path, keys: dict[str, Any], **env: str) -> list[subprocess.Popen[str]]:
    """Both processes of such a run, as `srun` starts them: the first has the store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env |= {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    env |= {"SLURM_STEP_NODELIST": "127.0.0.1", "MASTER_PORT": port}
    return [start_on_gpus(run, keys, SLURM_PROCID=rank, SLURM_LOCALID=rank, **env) for rank in ("0", "1")]


def begin_on_gpus(run: Path, **env: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Two processes of an endless run, and their numbers."""
    process = start_on_gpus(run, ENDLESS, **env)
    assert process.stdout is not None
    word, *pids = process.stdout.readline().split()
    assert word == "running" and len(pids) == 2
    return process, pids


def said_at_the_end(process: subprocess.Popen[str], pids: list[str]) -> str:
    """What a run that fails printed; both of its processes are gone by then."""
    try:
        _, said = process.communicate(timeout=HANGS)
    finally:
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
    assert (process.returncode, left) == (1, [])
    return str(said)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_a_process_on_gpus_ends_the_others(tmp_path: Path, rank: int) -> None:
    """Though they wait for it without end, and it would wait for them to leave the group."""
    said = said_at_the_end(*begin_on_gpus(tmp_path, TOY_OUT_OF_MEMORY=str(rank)))
    assert "out of memory" in said
    assert ("lost another training process (rank 1: out of memory" in said) == (rank == 1)


def test_death_of_a_process_on_gpus_ends_the_others(tmp_path: Path) -> None:
    process, pids = begin_on_gpus(tmp_path)
    wait_for(tmp_path / "metrics.jsonl", 15)
    os.kill(int(pids[1]), signal.SIGKILL)
    said = said_at_the_end(process, pids)
    assert (
        "phraseloom train: lost another training process (rank 1, killed by signal 9); run the same command again"
        in said
    )


def test_an_error_of_nccl_ends_the_others(tmp_path: Path) -> None:
    """Though the process that has it leaves the group, as one does that has lost another."""
    said = said_at_the_end(*begin_on_gpus(tmp_path, TOY_EXCHANGE_FAILS="1"))
    assert "(rank 1: the exchange of tensors failed: NCCL error: unhandled system error" in said


def test_a_first_process_that_hangs_with_its_store_ends_the_others(tmp_path: Path) -> None:
    first, second = start_launched_on_gpus(tmp_path, ENDLESS, PHRASELOOM_HANG_SECONDS="10")
    try:
        wait_for(tmp_path / "metrics.jsonl", 15)
        first.send_signal(signal.SIGSTOP)
        _, said = second.communicate(timeout=HANGS)
        assert second.returncode == 1
        assert "lost another training process (rank 0, whose store does not answer)" in said
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


@pytest.mark.full
def test_a_process_that_leaves_after_the_first_one_ends_well(tmp_path: Path) -> None:
    both = start_launched_on_gpus(tmp_path, {**WHOLE, "processes": 2}, TOY_LEAVES_LATE="1")
    said = [process.communicate(timeout=HANGS)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said


@pytest.mark.full
def test_a_suspended_process_on_gpus_ends_the_others(tmp_path: Path) -> None:
    process, pids = begin_on_gpus(tmp_path, PHRASELOOM_HANG_SECONDS="20")
    wait_for(tmp_path / "metrics.jsonl", 15)
    os.kill(int(pids[1]), signal.SIGSTOP)
    assert "lost another training process (rank 1, without a sign of life)" in said_at_the_end(process, pids)


def test_a_run_on_gpus_that_is_over_ends_well(tmp_path: Path) -> None:
    """And so does one that a signal stops: a process that has left is not lost, whatever its exit code."""
    process = start_on_gpus(tmp_path / "whole", {**WHOLE, "processes": 2})
    _, said = process.communicate(timeout=HANGS)
    assert (process.returncode, "lost" in said) == (0, False), said
    process, _ = begin_on_gpus(tmp_path / "stopped")
    wait_for(tmp_path / "stopped" / "metrics.jsonl", 15)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=HANGS)
    assert (process.returncode, "lost" in said) == (3, False), said


@pytest.mark.full
def test_under_torchrun(tmp_path: Path, alone: Path) -> None:
    before = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train(tmp_path, before=before, max_updates=1, micro_batches=3)
    assert distance(tensors(alone / "1" / "gradient"), tensors(tmp_path / "gradient")) <= 1e-6


@pytest.mark.full
def test_through_sockets_where_memory_cannot_be_shared(tmp_path: Path, alone: Path) -> None:
    train(tmp_path, env={"TOY_WITHOUT_SHARED_MEMORY": "1"}, max_updates=1, micro_batches=3, processes=2)
    assert distance(tensors(alone / "1" / "gradient"), tensors(tmp_path / "gradient")) <= 1e-6


def test_processes_are_chosen_by_cores_and_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "available_cores", lambda: 4)
    cpu = torch.device("cpu")
    assert distributed.choose_processes(toy.config(processes="auto", micro_batches=2), cpu) == 2
    assert distributed.choose_processes(toy.config(processes="auto", micro_batches=8), cpu) == 4
    assert distributed.choose_processes(toy.config(processes=1, micro_batches=8), cpu) == 1


def test_more_processes_than_the_machine_can_run_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "available_cores", lambda: 2)
    cpu = torch.device("cpu")
    assert distributed.choose_processes(toy.config(processes=400, micro_batches=400), cpu) == 4
    assert distributed.choose_processes(toy.config(processes=3, micro_batches=400), cpu) == 3


def test_fewer_processes_than_asked_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "choose_processes", lambda config, device, pieces: 1)
    threads = torch.get_num_threads()
    world = distributed.launch(toy.config(processes=400, micro_batches=400))
    torch.set_num_threads(threads)
    assert world.notice.startswith("training.processes is 400: this machine runs 1")


@pytest.mark.parametrize(
    ("when", "how", "text"),
    [
        ("early", "die", r"rank 1 did not start \(killed by signal 9\)"),
        ("late", "die", r"rank 1 (did not start|ended before the processes met) \(killed by signal 9\)"),
        ("early", "hang", r"rank 1 hangs: it did nothing for 1 s while it started"),
        ("late", "hang", r"did not meet within 1 s: one of rank 1 hangs"),
    ],
)
def test_a_process_that_fails_before_the_processes_meet_is_named(
    monkeypatch: pytest.MonkeyPatch, when: str, how: str, text: str
) -> None:
    """R7, at the start: a hang is seen after 30 s as the program has it, after one as here."""
    assert distributed.IDLE_SECONDS + distributed.MEETING_SECONDS <= 60
    assert max(distributed.IDLE_SECONDS, distributed.MEETING_SECONDS) < 30
    if (when, how) != ("early", "die"):  # which is seen at once
        monkeypatch.setattr(distributed, {"early": "IDLE_SECONDS", "late": "MEETING_SECONDS"}[when], 1)
    threads = torch.get_num_threads()
    with pytest.raises(PhraseloomError, match=text):
        distributed.launch(
            toy.config(processes=2, micro_batches=2), [sys.executable, str(PROGRAM.with_name("meeting.py")), when, how]
        )
    torch.set_num_threads(threads)
    assert not torch.distributed.is_initialized()


def test_processes_that_do_not_come_are_given_up_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distributed.START_SECONDS >= 300
    monkeypatch.setattr(distributed, "START_SECONDS", 1)
    with pytest.raises(PhraseloomError, match=r"did not start within 1 s; the machine is busy.*training\.processes=1"):
        distributed.launch(toy.config(processes=2, micro_batches=2), ["sleep", "60"])


def test_world_of_one_passes_everything_through() -> None:
    world = distributed.World()
    assert world.send_text("ä") == "ä" and world.gather_lines(["a", ""]) == ["a", ""] and world.any(True)


@pytest.mark.full
def test_a_process_that_hangs_ends_the_run_with_its_rank_and_all_saved(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"max_updates": 10**6, "checkpoint_every": 10, "processes": 2}
    process = subprocess.Popen(
        command(tmp_path, **keys),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PHRASELOOM_HANG_SECONDS": "60"},
    )
    assert process.stdout is not None
    _, *pids = process.stdout.readline().split()
    wait_for(tmp_path / "metrics.jsonl", 15)
    os.kill(int(pids[1]), signal.SIGSTOP)
    _, text = process.communicate(timeout=HANGS)
    assert (process.returncode, "rank 1 hangs or is lost: no sign of life for 60 s" in text) == (1, True), text
    newest = checkpoint.newest_whole(tmp_path, lambda _: None)
    assert newest is not None and newest[1].update == max(r["update"] for r in run_records(tmp_path))
