"""Steps as jobs of submitit, in local processes and on a Slurm of four small programs; leases; devices."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import HANGS

from phraseloom.errors import InterruptedRun, PhraseloomError, UsageError
from phraseloom.reproduce import cluster, execute, lease
from phraseloom.reproduce.cluster import ClusterExecution
from phraseloom.reproduce.execute import Execution, lease_path
from phraseloom.reproduce.lease import StepLease
from phraseloom.reproduce.records import read_record
from phraseloom.reproduce.steps import Step, in_order
from phraseloom.reproduce.table_run import TableOptions, merge, open_plan, plan_data, run_step

from . import slurm
from .fakes import make_steps, make_table, one, program, table_data
from .test_steps import with_recipe, write_recipe

CHAIN: dict[str, Any] = {
    "data": {"each": "table", "run": ["write", "{here}/ref", "a b c d"]},
    "translate": {"run": ["copy"], "stdin": ["{data}/ref"], "stdout": "out.txt"},
}


@pytest.fixture
def slurm_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from submitit.slurm.slurm import SlurmJob

    folder = slurm.install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    SlurmJob.watcher.clear()
    yield folder
    SlurmJob.watcher.clear()


def execution(folder: Path, steps: list[Step], on: Any = "local", jobs: int = 2, **more: Any) -> ClusterExecution:
    lines: list[str] = []
    result = ClusterExecution(
        in_order(steps), on, jobs, lines.append, {}, program(folder), folder / "jobs", poll_seconds=0.1, **more
    )
    result.lines = lines  # type: ignore[attr-defined]
    return result


def both(folder: Path, steps: dict[str, Any], name: str) -> list[Step]:
    made = make_steps(folder, steps)
    return [one(made, name, row) for row in ("base", "new")]


def test_local_jobs_run_the_steps_once_each_with_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    table = {**CHAIN, "see": {"run": ["device", "{translate}", "{row}"], "stdout": "seen"}}
    steps = both(tmp_path, table, "see")
    run = execution(tmp_path, steps)
    assert {record.state for record in run.run().values()} == {"done"}
    assert sorted((step.folder / "seen").read_text() for step in steps) == ["3\n", "5\n"]
    assert (steps[0].needs[0].folder / "out.txt").read_text() == "a b c d\n"
    again = execution(tmp_path, steps)
    again.run()
    assert again.lines == ["4 of 4 steps are done already"]  # type: ignore[attr-defined]


def test_steps_here_share_the_devices_too(tmp_path: Path) -> None:
    steps = both(tmp_path, {"see": {"run": ["device", "{row}"], "stdout": "seen"}}, "see")
    Execution(in_order(steps), 2, lambda _: None, program=program(tmp_path), devices=["3", "5"]).run()
    assert sorted((step.folder / "seen").read_text() for step in steps) == ["3\n", "5\n"]


def test_a_step_that_fails_is_tried_twice_and_stops_only_what_needs_it(tmp_path: Path) -> None:
    made = make_steps(tmp_path, {
        "work": {"run": ["fail", "out of luck"], "rows": ["base"]},
        "after": {"run": ["translate", "{work}"], "rows": ["base"], "stdout": "x"},
        "fine": {"run": ["translate", "well"], "rows": ["new"], "stdout": "x"},
    })  # fmt: skip
    steps = [one(made, "after"), one(made, "fine", "new")]
    records = execution(tmp_path, steps).run()
    work = records[steps[0].needs[0].identity]
    assert (work.state, work.message, len(work.content["attempts"])) == ("failed", "out of luck", 2)
    assert records[steps[0].identity].message == "not run: work base seed 1 failed"
    assert records[steps[1].identity].state == "done"


def test_a_folder_in_the_way_is_a_failure_without_a_job(tmp_path: Path) -> None:
    steps = both(tmp_path, CHAIN, "translate")
    other = both(tmp_path, {**CHAIN, "more": {"run": ["translate", "{row}"], "stdout": "x"}}, "more")
    steps[0].folder.mkdir(parents=True)
    (steps[0].folder / "mine").write_text("keep me")
    run = execution(tmp_path, [steps[0], other[1]])
    records = run.run()
    record = records[steps[0].identity]
    assert record.state == "failed" and "in the way, and not made by phraseloom" in record.message
    assert records[other[1].identity].state == "done" and (steps[0].folder / "mine").is_file()
    assert not any("translate" in line for line in run.lines if line.startswith("job"))  # type: ignore[attr-defined]


def test_a_signal_reaches_the_training_in_the_job_which_saves(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    train = {"train": {"run": ["train", "{recipe}", "--run", "{here}/run", "wait=yes"]}}
    step = one(make_steps(tmp_path, train, **with_recipe()), "train")

    def stop() -> None:
        deadline = time.monotonic() + HANGS
        log = step.folder / "log.txt"
        while time.monotonic() < deadline and not (log.exists() and "ready" in log.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=stop)
    helper.start()
    with pytest.raises(InterruptedRun, match="to resume"):
        execution(tmp_path, [step]).run()
    helper.join()
    assert (step.folder / "run" / "saved").exists()
    assert read_record(step).state == "stopped"


def test_jobs_repeat_what_needs_a_step_that_has_another_result(tmp_path: Path) -> None:
    steps = both(tmp_path, CHAIN, "translate")
    execution(tmp_path, steps).run()
    data = steps[0].needs[0]
    (data.folder / "ref").unlink()
    again = execution(tmp_path, steps)
    again.run()
    assert [line.split()[2] for line in again.lines if line.startswith("job")] == ["data"]  # type: ignore[attr-defined]
    assert [len(read_record(step).content["attempts"]) for step in steps] == [1, 1]  # the same result
    (data.folder / "ref").unlink()
    script = tmp_path / "program.py"
    script.write_text(script.read_text().replace('rest[1] + "', 'rest[1] + "!'))
    last = ClusterExecution(
        in_order(steps),
        "local",
        2,
        lambda _: None,
        {},
        [sys.executable, str(script)],
        tmp_path / "jobs",
        poll_seconds=0.1,
    )
    assert {record.state for record in last.run().values()} == {"done"}
    assert {(step.folder / "out.txt").read_text() for step in steps} == {"a b c d!\n"}


def test_slurm_with_a_full_queue_and_a_lost_machine(tmp_path: Path, slurm_folder: Path) -> None:
    """The queue refuses once; one job dies with its machine and is submitted again; two steps are one array."""
    for name in ("full", "lose"):
        (slurm_folder / name).touch()
    steps = both(tmp_path, {"say": {"run": ["translate", "{row}"], "stdout": "x"}}, "say")
    run = execution(tmp_path, steps, "slurm", slurm={"partition": "gpu", "time": "60"})
    assert {record.state for record in run.run().values()} == {"done"}
    lines = "\n".join(run.lines)  # type: ignore[attr-defined]
    assert "the queue refuses jobs for now: sbatch: error: QOSMaxSubmitJobPerUserLimit" in lines
    assert "submitted again (1 of 20)" in lines
    assert (slurm_folder / "submitted").read_text() == "2"
    scripts = [path.read_text() for path in (tmp_path / "jobs").rglob("*.sh")]
    assert scripts and all("#SBATCH --partition=gpu" in text and "#SBATCH --time=60" in text for text in scripts)


@pytest.mark.parametrize("state", ["PREEMPTED", "TIMEOUT"])
def test_slurm_takes_a_job_away_and_it_is_submitted_again(tmp_path: Path, slurm_folder: Path, state: str) -> None:
    (slurm_folder / "lose").write_text(state)
    step = both(tmp_path, {"say": {"run": ["translate", "{row}"], "stdout": "x"}}, "say")[0]
    run = execution(tmp_path, [step], "slurm")
    assert {record.state for record in run.run().values()} == {"done"}
    assert "submitted again (1 of 20)" in "\n".join(run.lines)  # type: ignore[attr-defined]
    assert (slurm_folder / "submitted").read_text() == "2"


def test_a_queue_that_takes_nothing_is_one_line(
    tmp_path: Path, slurm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "SUBMISSIONS", 1)
    (slurm_folder / "full").touch()
    steps = both(tmp_path, CHAIN, "translate")
    with pytest.raises(PhraseloomError, match=r"^the queue refused the jobs 1 times: sbatch: error: QOSMax"):
        execution(tmp_path, steps, "slurm").run()
    with pytest.raises(UsageError, match="--slurm"):
        execution(tmp_path, steps, "slurm", slurm={"partitoin": "x"}).run()


def test_without_submitit_or_slurm_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = both(tmp_path, CHAIN, "translate")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="run this where sbatch and srun are"):
        execution(tmp_path, steps, "slurm").run()
    load = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "submitit":
            raise ImportError(name)
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"--on local needs submitit; install it: pip install \"phraseloom\[cluster\]"):
        execution(tmp_path, steps).run()


def test_two_commands_share_a_folder_and_no_step_runs_twice(tmp_path: Path) -> None:
    steps = both(tmp_path, CHAIN, "translate")
    data = steps[0].needs[0]
    other = StepLease(lease_path(data))
    assert other.take()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting for another command"):  # which now finishes the step
            other.release()
            Execution([data], say=lambda _: None, program=program(tmp_path)).run()

    Execution(in_order(steps), say=say, program=program(tmp_path)).run()
    assert lines[0] == "waiting for another command, which runs data"
    assert not any("phraseloom write" in line for line in lines)
    assert len(json.loads((data.folder / "step.json").read_text())["attempts"]) == 1
    assert not list((tmp_path / "work" / ".leases").iterdir())


@pytest.mark.parametrize("stopped", [False, True])
def test_a_command_that_was_suspended_leaves_a_step_that_another_took_over(
    tmp_path: Path, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its process nor its record touch the folder, which is the other's; it waits for it."""
    monkeypatch.setattr(execute, "LOOK_SECONDS", 0.05)
    write_recipe(tmp_path)
    train = {"train": {"run": ["train", "{recipe}", "--run", "{here}/run", "wait=yes"]}}
    step = one(make_steps(tmp_path, train, **with_recipe()), "train")
    said: list[str] = []
    own = Execution([step], 1, said.append, program=program(tmp_path))
    other = StepLease(tmp_path / "other")  # its token

    def wait_for(happens: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not happens():
            time.sleep(0.02)

    def take_over() -> None:
        log = step.folder / "log.txt"
        wait_for(lambda: log.exists() and "ready" in log.read_text())
        shutil.rmtree(step.folder)
        step.folder.mkdir()
        (step.folder / "file").write_text("of the other")
        if stopped:
            monkeypatch.setattr(execute, "LOOK_SECONDS", HANGS)
        lease_path(step).write_bytes(other._content())
        if stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        wait_for(lambda: any("took over" in line for line in said))
        (step.folder / "run").mkdir(exist_ok=True)
        (step.folder / "run" / "saved").write_text("yes")  # its training ends at once
        lease_path(step).unlink()

    helper = threading.Thread(target=take_over)
    helper.start()
    if stopped:
        with pytest.raises(InterruptedRun):
            own.run()
    else:
        own.run()
    helper.join()
    assert f"    another command took over while this one was suspended: {step.title}" in said
    if stopped:
        assert [path.name for path in step.folder.iterdir()] == ["file"]
        assert lease_path(step).read_bytes() == other._content()
    else:
        assert read_record(step).state == "done"
        assert (step.folder / "run" / "attempts").read_text() == "one\n"  # the second start


def test_a_lease_of_a_lost_machine_runs_out_by_the_own_clock(tmp_path: Path) -> None:
    now = 0.0
    first = StepLease(tmp_path / "lease")
    second = StepLease(tmp_path / "lease", lambda: now)
    assert first.take()
    first._stop.set()
    content = json.loads((tmp_path / "lease").read_bytes()) | {"host": "elsewhere"}
    (tmp_path / "lease").write_text(json.dumps(content))
    assert not second.take()
    now = lease.LEASE_SECONDS - 1
    assert not second.take()
    (tmp_path / "lease").write_text(json.dumps(content | {"renewals": 1}))  # it lives
    now = lease.LEASE_SECONDS + 1
    assert not second.take()
    now = 2 * lease.LEASE_SECONDS + 1
    assert second.take()
    first.release()  # not its own any more
    assert (tmp_path / "lease").exists()
    second.release()
    assert not list(tmp_path.iterdir())


def test_a_lease_of_a_dead_process_of_this_machine_is_free(tmp_path: Path) -> None:
    first, second = StepLease(tmp_path / "lease"), StepLease(tmp_path / "lease")
    assert first.take()
    first._stop.set()
    assert not second.take()
    content = json.loads((tmp_path / "lease").read_bytes()) | {"process": 2**22 + 1}
    (tmp_path / "lease").write_text(json.dumps(content))
    assert second.take()
    second.release()


def test_one_step_of_the_plan(tmp_path: Path) -> None:
    make_table(tmp_path, table_data(CHAIN))
    options = TableOptions(folder=tmp_path / "made", program=program(tmp_path), flops=1e9)

    def plan() -> Any:
        return open_plan("table", tmp_path / "recipes", options)

    listed = plan_data(plan(), options)["steps"]
    assert [(step["step"], step["state"]) for step in listed[:2]] == [("data", "new"), ("translate base seed 1", "new")]
    data, translate = listed[0]["id"], listed[1]["id"]
    assert listed[1]["needs"] == [data]

    def call(identity: str) -> str:
        from dataclasses import replace

        return run_step(plan(), replace(options, step=identity), print).state

    with pytest.raises(UsageError, match=f"translate base seed 1 needs data; run --step {data} first"):
        call(translate)
    with pytest.raises(UsageError, match="no step begins with zz"):
        call("zz")
    assert [call(data), call(translate)] == ["done", "done"]
    assert [step["state"] for step in plan_data(plan(), options)["steps"][:2]] == ["done", "done"]


def test_finished_steps_of_another_machine_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(tmp_path, table_data(CHAIN))
    folders = [tmp_path / name for name in ("there", "here")]
    there, here = (TableOptions(folder=folder, program=program(tmp_path), flops=1e9) for folder in folders)

    def plan(options: TableOptions) -> Any:
        return open_plan("table", tmp_path / "recipes", options)

    steps = plan(there).ordered
    Execution(steps, say=lambda _: None, program=program(tmp_path)).run()
    (steps[-1].folder / "out.txt").unlink()  # this one is not whole
    lines: list[str] = []
    # Of merges that were killed: a record and nothing else, and half a copy.
    left = plan(here).steps.work / f".merge-{steps[0].identity[:12]}"
    left.mkdir(parents=True)
    shutil.copy(steps[0].folder / "step.json", left)
    begun = plan(here).steps.work / ".merge" / steps[0].identity[:12]
    begun.mkdir(parents=True)
    (begun / "half").write_bytes(b"")

    def fails(_: object, target: Path, **options: object) -> None:
        del options
        target.mkdir(parents=True)
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device")])

    with monkeypatch.context() as patch, pytest.raises(PhraseloomError, match=r"cannot copy a step: .*No space left"):
        patch.setattr(shutil, "copytree", fails)
        merge(plan(here), folders[0], here, lines.append)
    assert not begun.exists()
    assert merge(plan(here), folders[0], here, lines.append) == len(steps) - 1
    assert lines[0] == "copied: data"
    states = [step["state"] for step in plan_data(plan(here), here)["steps"]]
    assert states == ["done"] * (len(steps) - 1) + ["new"]
    assert not any(begun.parent.iterdir()) and all(not step.folder.name.startswith(".") for step in plan(here).ordered)
    assert merge(plan(here), folders[0], here, lines.append) == 0
    with pytest.raises(PhraseloomError, match="steps of the other folder not found"):
        merge(plan(here), tmp_path / "nowhere", here, print)
