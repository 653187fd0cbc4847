"""torchrun, two of its agents, and srun: each gives the bytes of one process; mistakes are one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.helpers import HANGS, training_in_this_process

from phraseloom.cli.main import run as phraseloom
from phraseloom.data.batches import BatchPlan
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import prepare
from phraseloom.errors import PhraseloomError, UsageError
from phraseloom.files import atomic_write_text, sha256_file
from phraseloom.options.training import TrainingConfig
from phraseloom.recipe import load_recipe
from phraseloom.training import distributed
from phraseloom.training.launcher import first_host, launched_process
from phraseloom.training.run import share_pieces
from phraseloom.training.run_folder import noted_pieces
from phraseloom.training.watch import BeatLog, Watch, hang_seconds

NUMBERS = ["one", "two", "three", "four", "five"]
LAST = "checkpoints/step_00000004"


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Iterator[None]:
    with training_in_this_process():
        yield


@pytest.fixture(scope="module")
def place(_one_process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with three micro-batches an update, its dataset, and the run `alone` of one process."""
    folder = tmp_path_factory.mktemp("place")
    lines = [" ".join(NUMBERS[(i * k) % 5] for k in range(1, 3 + i % 4)) for i in range(60)]
    for name in ("t.en", "t.de"):
        atomic_write_text(folder / name, "".join(f"{line}\n" for line in lines))
    recipe: dict[str, Any] = {
        "name": "small",
        "data": {
            "folder": str(folder / "dataset"),
            "source_language": "en",
            "target_language": "de",
            "train": [{"source": "t.en", "target": "t.de"}],
            "valid": [{"source": "t.en", "target": "t.de"}],
            "subwords": {"kind": "subword_nmt", "merges": 10},
            "processes": 1,
        },
        "model": {"width": 16, "heads": 2, "ffn_width": 16, "encoder": {"layers": 1}, "decoder": {"layers": 1}},
        "training": {"batch_tokens": 100, "micro_batches": 3, "max_updates": 4, "checkpoint_every": 2, "device": "cpu"},
    }
    atomic_write_text(folder / "small.yaml", yaml.safe_dump(recipe))
    prepare(load_recipe(folder / "small.yaml").data, data_root=folder)
    torch.set_num_threads(1)
    assert phraseloom(["train", str(folder / "small.yaml"), "--run", str(folder / "alone")]) == 0
    return folder


def start(*command: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*processes: subprocess.Popen[str]) -> str:
    """What the processes print; all have to succeed."""
    texts = [process.communicate(timeout=HANGS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)[-4000:]
    return "\n".join(texts)


def same_bytes(run: Path, alone: Path) -> bool:
    names = [f"{LAST}/{name}" for name in ("model.safetensors", "optimizer.safetensors")] + ["metrics.jsonl"]
    return all(sha256_file(run / name) == sha256_file(alone / name) for name in names)


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def train(place: Path, run: str, *more: str) -> list[str]:
    return ["-m", "phraseloom", "train", str(place / "small.yaml"), *more, "--run-folder", str(place / run)]


def test_torchrun_gives_the_bytes_of_one_process(place: Path) -> None:
    script = Path(sys.executable).with_name("torchrun")
    main = "from torch.distributed.run import main; main()"  # the content of that script
    torchrun = [str(script)] if script.exists() else [sys.executable, "-c", main]
    text = finish(start(*torchrun, "--standalone", "--nproc-per-node", "2", *train(place, "torchrun")))
    assert "3 micro-batches, 2 process(es)" in text
    assert same_bytes(place / "torchrun", place / "alone")


@pytest.mark.full
def test_two_agents_give_the_bytes_of_one_process(place: Path) -> None:
    """Two machines, as far as torchrun can tell: gradients go through sockets."""
    module = [sys.executable, "-m", "torch.distributed.run"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-id", "1", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    agents = [
        start(
            *module, "--nnodes", "2", "--node-rank", rank, "--local-addr", "127.0.0.1", *meeting, *train(place, "two")
        )
        for rank in ("0", "1")
    ]
    finish(*agents)
    assert same_bytes(place / "two", place / "alone")


def test_srun_and_then_fewer_processes_give_the_bytes_of_one(place: Path) -> None:
    """Two tasks of Slurm make two updates, and one process makes the others."""
    variables = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2"}
    variables |= {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_NUM_NODES": "1", "MASTER_PORT": free_port()}
    line = [sys.executable, *train(place, "srun", "training.max_updates=2")]
    finish(*(start(*line, **variables, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in ("0", "1")))
    assert (place / "srun" / "checkpoints" / "step_00000002").is_dir()
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(place / "srun")]) == 0
    assert same_bytes(place / "srun", place / "alone")


@pytest.mark.full
def test_one_process_of_a_machine_plans_and_the_others_map_its_memory(place: Path, tmp_path: Path) -> None:
    """Two launchers on this machine, each of which says that its process is alone there."""
    program = str(Path(__file__).with_name("counted_plan.py"))
    line = [sys.executable, program, str(place / "small.yaml"), str(tmp_path / "run"), str(tmp_path)]
    line += ["training.max_updates=null", "training.max_epochs=2"]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    finish(*(start(*line, **variables, RANK=rank) for rank in "10"))
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["made"] == ["lengths 0", "lengths 1", "epoch 0", "epoch 1"] and second["made"] == []
    assert first["maps"] == second["maps"] and len(first["maps"]) == 3, "two lengths and one epoch"
    assert not (first["writeable"] or second["writeable"])
    pairs = Dataset.open(place / "dataset").split("train")
    plan = BatchPlan(pairs.source_lengths, pairs.target_lengths, seed=1, batch_tokens=100, micro_batches=3)
    assert first["order"] == second["order"] == plan.epoch(1).order.tolist()


def world(size: int, rank: int = 0) -> distributed.World:
    """A world whose other processes agree with this one."""
    result = distributed.World(rank, size)
    result.send_text = lambda text: text  # type: ignore[method-assign]
    return result


def test_processes_without_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^4 processes share 2 micro-batches: 2 would have nothing to do; start 2"):
        share_pieces(world(4), tmp_path, 2, print)
    assert share_pieces(world(2), tmp_path, 3, print) == 3


def test_pieces_follow_the_processes_of_the_first_start(tmp_path: Path) -> None:
    config = TrainingConfig(micro_batches="per_process", processes=5)
    assert config.pieces is None
    atomic_write_text(tmp_path / "run.json", "{}")
    lines: list[str] = []
    assert share_pieces(world(3), tmp_path, noted_pieces(tmp_path), lines.append) == 3
    assert lines == ["training.micro_batches is per_process: 3 in this run, whatever the number of processes later"]
    assert share_pieces(world(2), tmp_path, noted_pieces(tmp_path), lines.append) == 3
    assert distributed.choose_processes(config, torch.device("cpu"), pieces=1) == 1


def test_recipes_of_the_papers_leave_none_of_many_processes_idle(tmp_path: Path) -> None:
    """With `per_process`, for 8 and for 32 processes: every process has a piece of every update."""
    recipes = sorted(path for path in (Path(__file__).parents[2] / "recipes").glob("paper*/*_base.yaml"))
    assert len(recipes) > 10
    atomic_write_text(tmp_path / "run.json", "{}")
    random = np.random.default_rng(1)
    lengths = random.integers(5, 60, 20_000)
    for path in recipes:
        config = load_recipe(path, ["training.micro_batches=per_process"]).training
        for size in (8, 32):
            pieces = share_pieces(world(size), tmp_path, config.pieces, lambda _: None)
            plan = BatchPlan(
                lengths, lengths, seed=1, batch_tokens=config.batch_tokens, micro_batches=pieces,
                max_micro_tokens=config.max_micro_tokens,
            )  # fmt: skip
            for update in range(plan.updates_per_epoch):
                examples = plan.update(update)
                assert all(examples[rank::size] for rank in range(size)), (path, size, update)


def test_ranks_with_another_recipe_or_dataset_are_named() -> None:
    """Rank 2 has another dataset; the order of the sums makes no difference to a text."""
    one = distributed.World(0, 3)
    texts: list[str] = []
    one.gather_lines = lambda lines: texts.append(lines[0]) or [lines[0]] * 3  # type: ignore[func-returns-value,method-assign]
    one.check_same({"the recipe": "a", "the dataset": "b"})
    other = texts[0].split()[0] + " " + "0" * 64
    one.gather_lines = lambda lines: [lines[0], lines[0], other]  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="the dataset of rank 2 differs from that of rank 0; start all with the same"):
        one.check_same({"the recipe": "a", "the dataset": "b"})


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu[03-07,9],cpu1", "gpu03"), ("n1,n2", "n1"), ("a-b", "a-b"), ("r[1-2]n[3-4]-ib,x", "r1n3-ib"), ("", "")],
)
def test_first_host(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_places_by_launcher() -> None:
    assert launched_process({}) is None
    assert launched_process({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None  # a batch script outside srun
    task = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "7", "SLURM_NODEID": "2"}
    task |= {"SLURM_JOB_ID": "123456", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NUM_NODES": "4"}
    found = launched_process({**task, "SLURM_STEP_NODELIST": "n[1-4]"})
    assert found is not None
    assert (found.rank, found.size, found.local_rank, found.local_size) == (5, 7, 1, 2)
    assert (found.host, found.port, found.hosts_store) == ("n1", 27136, False)
    others = [
        launched_process({**task, "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": job, "SLURM_STEP_ID": step})
        for job, step in (("123456", "1"), ("123457", "0"), ("133456", "0"))
    ]
    assert [place is not None and place.port for place in others] == [27137, 27167, 27136]
    prefixes = {distributed._prefix(place) for place in (found, *others) if place is not None}
    assert len(prefixes) == 4, "no process joins those of another job or step, even at the same port"
    with pytest.raises(UsageError, match="set MASTER_ADDR"):
        launched_process(task)
    with pytest.raises(UsageError, match="WORLD_SIZE is 'x', not a whole number"):
        launched_process({"WORLD_SIZE": "x"})


def test_a_rendezvous_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "START_SECONDS", 0)
    task = launched_process({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()})
    assert task is not None
    with pytest.raises(PhraseloomError, match=r"rank 1 gets no answer from the rendezvous at 127\.0\.0\.1:\d+ \(0 s\)"):
        distributed._open_store(task)


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        first = launched_process({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        assert first is not None
        with pytest.raises(
            PhraseloomError, match=f"cannot open the rendezvous at .*{port}; another job may use this port"
        ):
            distributed._open_store(first)


def test_a_count_that_stands_still_is_noticed_but_not_after_an_own_pause() -> None:
    beats = BeatLog(longest=4)
    for now, count in ((0, b"1"), (2, b"2"), (4, b"2"), (6, b"2"), (1000, b"2")):
        beats.look({1: count}, now)
    assert beats.still == {1: 2 + 2 + 4}  # the pause of 994 s counts as 4
    beats.look({1: b"3"}, 1002)
    assert beats.still == {1: 0.0}


def test_ranks_without_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASELOOM_HANG_SECONDS", "20")
    assert hang_seconds() == 20
    watch = Watch(SimpleNamespace(), 1, 3)
    watch.beats.still = {0: 19.0, 2: 21.0}
    assert watch.lost() == [2]
    watch._looked -= 60  # the store, which belongs to rank 0, does not answer
    assert watch.lost() == [0, 2]
