"""A run never loses its last good state: failing validations, bad weights, going back, other folders, signals."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import toy
from tests.helpers import HANGS

from phraseloom import files
from phraseloom.errors import CorruptError, DivergedError, FileProblem, InterruptedRun, PhraseloomError, UsageError
from phraseloom.training import checkpoint, loop
from phraseloom.training.signals import StopSignal

PROGRAM = Path(toy.__file__)


class Killed(BaseException):
    """Stands for the end of the process at that place."""


def steps(run: Path) -> list[int]:
    return [update for update, _ in checkpoint.list_checkpoints(run)]


def undone(run: Path) -> list[str]:
    folder = run / "checkpoints" / "undone"
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def linked(run: Path, name: str) -> str | None:
    return (run / name).readlink().name if (run / name).is_symlink() else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of the run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole")
    toy.finish(run)
    return toy.result(run)


@pytest.mark.parametrize(
    "error",
    [Killed(), RuntimeError("a fault"), RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()],
)
def test_a_failing_validation_costs_no_checkpoint(
    tmp_path: Path, whole: dict[str, bytes], error: BaseException
) -> None:
    def fail(_: Any) -> dict[str, Any]:
        raise error

    with pytest.raises((type(error), PhraseloomError)) as caught:
        toy.finish(tmp_path, validate=fail)
    if "memory" in str(error) or isinstance(error, MemoryError):
        assert isinstance(caught.value, PhraseloomError) and caught.value.exit_code == 1
        assert "out of memory in the validation after update 5; lower training.valid_tokens" in str(caught.value)
    assert checkpoint.newest_whole(tmp_path, pytest.fail)[1].update == 5  # type: ignore[index]
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_killed_while_the_result_of_a_validation_is_recorded(
    tmp_path: Path, whole: dict[str, bytes], writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state in the checkpoint is replaced in three writes; after each of them the run may end."""
    count = 0
    inner = files.atomic_write_bytes

    def write(path: Path, data: bytes) -> None:
        nonlocal count
        if count == writes:
            raise Killed
        count += 1
        inner(path, data)

    def replace(folder: Path, name: str, data: bytes) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(files, "atomic_write_bytes", write)
            original(folder, name, data)

    original = files.replace_listed
    with monkeypatch.context() as patch:
        patch.setattr(files, "replace_listed", replace)
        with pytest.raises(Killed):
            toy.finish(tmp_path)
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


def break_losses(job: loop.Job, after: int) -> None:
    """All training losses after update `after` are NaN, whatever the weights; validation stays finite."""
    inner = job.loss

    def loss(batch: Any) -> toy.Sums:
        sums = inner(batch)
        bad = job.model.training and job.state.update >= after
        return toy.Sums(sums.objective * math.nan, sums.nll, sums.tokens) if bad else sums

    job.loss = loss


def test_finite_weights_that_give_no_finite_loss_displace_no_good_checkpoint(tmp_path: Path) -> None:
    settings = toy.config(checkpoint_every=2, keep_last=1)
    job = toy.make(tmp_path, settings)
    break_losses(job, after=6)
    with pytest.raises(DivergedError) as caught:
        toy.runs.train_or_skip(job)
    job.close()
    assert caught.value.exit_code == 4
    assert steps(tmp_path) and max(steps(tmp_path)) == 4, "6, 8 and 10 gave nothing but NaN"
    assert linked(tmp_path, "last") == "step_00000004"
    assert (tmp_path / "best").exists() or linked(tmp_path, "best") is None
    assert undone(tmp_path) == ["step_00000006", "step_00000008", "step_00000010"]
    toy.finish(tmp_path, settings)
    whole = tmp_path.with_name(f"{tmp_path.name}-whole")
    toy.finish(whole, settings)
    assert toy.result(tmp_path) == toy.result(whole)


def test_a_signal_between_bad_updates_leaves_last_on_the_good_checkpoint(tmp_path: Path) -> None:
    stop = StopSignal()
    job = toy.make(tmp_path, toy.config(), stop=stop)
    break_losses(job, after=7)
    inner = job.batch_of

    def batch(indices: Any) -> Any:
        if job.state.update == 8:
            stop.name = "SIGTERM"
        return inner(indices)

    job.batch_of = batch
    with pytest.raises(InterruptedRun):
        toy.runs.train_or_skip(job)
    job.close()
    assert steps(tmp_path) == [5, 9] and linked(tmp_path, "last") == "step_00000005"


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e9])
def test_a_checkpoint_with_a_bad_validation_is_set_aside(tmp_path: Path, value: float) -> None:
    def validate(job: loop.Job) -> dict[str, Any]:
        return {"perplexity": value if job.state.update >= 15 else 3.0}

    with pytest.raises(DivergedError, match="validation perplexity"):
        toy.finish(tmp_path, validate=validate)
    assert steps(tmp_path) == [5, 10] and undone(tmp_path) == ["step_00000015"]
    assert linked(tmp_path, "last") == "step_00000010" and linked(tmp_path, "best") == "step_00000005"


@pytest.mark.parametrize("which", ["weight", "exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_state_with_one_value_that_is_not_finite_is_never_written(tmp_path: Path, which: str, value: float) -> None:
    toy.finish(tmp_path, toy.config(max_updates=10))
    job = toy.make(tmp_path, toy.config())
    tensor = job.flat.data if which == "weight" else job.optimizer.moments[which]
    tensor[3] = value
    job.state.update += 1
    before = toy.result(tmp_path)
    with pytest.raises(DivergedError, match="not finite after update 11"):
        loop.save(job)
    job.close()
    assert toy.result(tmp_path) == before


def test_too_little_memory_elsewhere_is_said(tmp_path: Path) -> None:
    from phraseloom.training import guard

    errors = [MemoryError(), RuntimeError("CUDA error: out of memory"), OSError(12, "Cannot allocate memory")]
    for error in errors:
        with (
            pytest.raises(PhraseloomError, match="out of memory while x; do y"),
            guard.naming_memory("while x", "do y"),
        ):
            raise error
    with pytest.raises(RuntimeError, match="a fault"), guard.naming_memory("while x", "do y"):
        raise RuntimeError("a fault")


# going back


@pytest.mark.parametrize("name", ["step_00000010", "step_10", "10"])
def test_going_back_ends_with_the_bytes_of_the_uninterrupted_run(
    tmp_path: Path, whole: dict[str, bytes], name: str
) -> None:
    toy.finish(tmp_path, toy.config(keep_last=5))
    assert checkpoint.go_back(tmp_path, name, lambda _: None) == 10
    assert steps(tmp_path) == [5, 10] and linked(tmp_path, "last") == "step_00000010"
    assert undone(tmp_path) == ["metrics_00000023.jsonl", "step_00000015", "step_00000020", "step_00000023"]
    assert (tmp_path / "best").exists() or linked(tmp_path, "best") is None
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole
    assert len(undone(tmp_path)) == 4, "what was undone stays"


def test_going_back_to_best_and_last(tmp_path: Path) -> None:
    toy.finish(tmp_path, toy.config(keep_last=5), validate=lambda job: {"perplexity": abs(job.state.update - 11.0)})
    assert checkpoint.go_back(tmp_path, "last", pytest.fail) == 23
    assert checkpoint.go_back(tmp_path, "best", lambda _: None) == 10


def test_going_back_before_a_better_checkpoint_that_is_gone_forgets_it(tmp_path: Path) -> None:
    """Updates 5, 10 and 15 got better, and only the last best was kept; after going back, 15 is gone too."""
    values = {5: 60.0, 10: 50.0, 15: 70.0, 20: 40.0}
    toy.finish(
        tmp_path, toy.config(keep_last=2), validate=lambda job: {"perplexity": values.get(job.state.update, 99.0)}
    )
    assert steps(tmp_path) == [15, 20, 23]
    checkpoint.go_back(tmp_path, "15", lambda _: None)
    toy.finish(tmp_path, toy.config(keep_last=2), validate=lambda job: {"perplexity": 55.0 + job.state.update})
    assert "the best checkpoint so far, of update 10, is gone" in (tmp_path / "train.log").read_text()
    assert linked(tmp_path, "best") == "step_00000020"


@pytest.mark.parametrize("name", ["step_11", "11", "x", "", "../5", "step_", "٥", "0x5", "-5", "1" * 400])
def test_going_back_to_nothing_moves_nothing(tmp_path: Path, name: str) -> None:
    toy.finish(tmp_path)
    before = toy.result(tmp_path)
    with pytest.raises(UsageError, match="no such checkpoint; this run has step_0000"):
        checkpoint.go_back(tmp_path, name, pytest.fail)
    assert toy.result(tmp_path) == before and not undone(tmp_path)


def test_nothing_is_deleted_where_undone_checkpoints_are_kept(tmp_path: Path) -> None:
    toy.finish(tmp_path, toy.config(keep_last=5))
    logs = []
    for number in range(2):
        with (tmp_path / "metrics.jsonl").open("ab") as log:
            log.write(b"the end of training %d" % number)
        logs.append((tmp_path / "metrics.jsonl").read_bytes())
        checkpoint.go_back(tmp_path, "20", lambda _: None)
        toy.finish(tmp_path, toy.config(keep_last=5))
    aside = tmp_path / "checkpoints" / "undone"
    names = ["metrics_00000023.jsonl", "metrics_00000023_2.jsonl"]
    assert undone(tmp_path) == [*names, "step_00000023", "step_00000023_2"]
    assert [(aside / name).read_bytes() for name in names] == logs


def test_a_file_in_the_place_of_the_folder_is_said_and_nothing_moves(tmp_path: Path) -> None:
    toy.finish(tmp_path, toy.config(keep_last=5))
    (tmp_path / "checkpoints" / "undone").write_bytes(b"mine")
    with pytest.raises(FileProblem, match="folder expected"):
        checkpoint.go_back(tmp_path, "10", pytest.fail)
    assert steps(tmp_path) == [5, 10, 15, 20, 23]


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (math.nan, 1.0), (1e308, 1e308)])
def test_a_validation_that_cannot_be_summed_is_divergence(tmp_path: Path, values: tuple[float, float]) -> None:
    job = toy.make(tmp_path, toy.config())
    inner, calls = job.loss, 0

    def loss(batch: Any) -> toy.Sums:
        nonlocal calls
        sums = inner(batch)
        if job.model.training:
            return sums
        calls += 1
        return toy.Sums(sums.objective, torch.tensor(values[calls % 2], dtype=torch.float64), sums.tokens)

    job.loss = loss
    with pytest.raises(DivergedError, match="validation perplexity"):
        toy.runs.train_or_skip(job)
    job.close()


def test_going_back_to_a_damaged_checkpoint_moves_nothing(tmp_path: Path) -> None:
    toy.finish(tmp_path, toy.config(keep_last=5))
    (tmp_path / "checkpoints" / "step_00000010" / "model.safetensors").write_bytes(b"")
    with pytest.raises(CorruptError):
        checkpoint.go_back(tmp_path, "10", pytest.fail)
    assert steps(tmp_path) == [5, 10, 15, 20, 23]


def test_going_back_killed_after_each_move_can_be_repeated(tmp_path: Path, whole: dict[str, bytes]) -> None:
    toy.finish(tmp_path, toy.config(keep_last=5))
    moves = 0

    def kill(_: str) -> None:
        raise Killed

    while len(steps(tmp_path)) > 2 and moves < 5:
        moves += 1
        try:
            checkpoint.go_back(tmp_path, "10", kill)
        except Killed:
            continue
    assert moves == 3
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


# another run in the folder


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        job = toy.make(tmp_path / name, toy.config(max_updates=10))
        job.state.run = name
        toy.runs.train_or_skip(job)
        job.close()
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "step_00000010")
    shutil.copytree(tmp_path / "b" / "checkpoints" / "step_00000010", tmp_path / "a" / "checkpoints" / "step_00000010")
    warnings: list[str] = []
    found = checkpoint.newest_whole(tmp_path / "a", warnings.append, "a")
    assert found is not None and found[1].update == 5 and "belongs to another run" in warnings[0]


def test_a_live_run_writes_nothing_into_a_folder_that_took_its_place(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with files.FolderLock(run) as lock:
        job = toy.make(run, toy.config(log_every=1000))
        job.lock = lock
        inner = job.batch_of

        def batch(indices: Any) -> Any:
            if job.state.update == 7 and not (run / "new").exists():
                shutil.rmtree(run)
                toy.finish(run, toy.config(max_updates=5, seed=2))
                (run / ".lock").write_bytes(b"")
                (run / "new").mkdir()
            return inner(indices)

        job.batch_of = batch
        with pytest.raises(files.LostFolder, match="was replaced while it was in use; this run stops"):
            toy.runs.train_or_skip(job)
        job.close()
    assert steps(run) == [5] and not (run / "checkpoints" / ".saving").exists()
    toy.finish(tmp_path / "other", toy.config(max_updates=5, seed=2))
    assert toy.result(run) == toy.result(tmp_path / "other")


def test_a_run_whose_folder_is_gone_stops_at_the_next_line_of_its_log(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with files.FolderLock(run) as lock:
        job = toy.make(run, toy.config(log_every=3, checkpoint_every=10**6, max_updates=10**6))
        job.lock = lock
        run.rename(tmp_path / "moved")
        with pytest.raises(files.LostFolder, match="moved or deleted"):
            toy.runs.train(job)
        job.close()
    assert job.state.update == 3 and not run.exists()


# signals


def signalled(run: Path, names: list[str], *, ignored: bool = False) -> tuple[int, str]:
    """Send signals to a running process, each in the next instant; its exit code and messages."""
    command = [sys.executable, str(PROGRAM), str(run), json.dumps({"max_updates": 10**6, "checkpoint_every": 10**5})]
    hangup = signal.SIG_IGN if ignored else signal.SIG_DFL  # whatever it is in these tests, as under nohup
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("running")
        for name in names:
            process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=HANGS)
    finally:
        process.kill()
    return process.returncode, said


LONG = [
    pytest.param(names, marks=pytest.mark.full) for names in (["SIGHUP"], ["SIGHUP", "SIGHUP"], ["SIGTERM", "SIGHUP"])
]


@pytest.mark.parametrize("names", [["SIGHUP", "SIGTERM"], *LONG])
def test_a_closed_terminal_saves(tmp_path: Path, names: list[str]) -> None:
    code, said = signalled(tmp_path, names)
    assert code == 3, said
    state = json.loads((tmp_path / "last" / "state.json").read_bytes())
    assert f"after update {state['update']}, all saved" in said


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    code, said = signalled(tmp_path, ["SIGHUP", "SIGTERM"], ignored=True)
    assert code == 3 and "stopped by SIGTERM" in said


# several processes


@pytest.mark.parametrize("ranks", ["1", *(pytest.param(ranks, marks=pytest.mark.full) for ranks in ("0", "0,1"))])
def test_too_little_memory_in_any_process_is_one_line(tmp_path: Path, ranks: str) -> None:
    keys = {"max_updates": 20, "processes": 2, "micro_batches": 2}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), json.dumps(keys)],
        capture_output=True, text=True, timeout=HANGS, env={**os.environ, "TOY_OUT_OF_MEMORY": ranks},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("out of memory") == 1, done.stderr
    assert "out of memory in update 8: a micro-batch of" in done.stderr
    assert json.loads((tmp_path / "last" / "state.json").read_bytes())["update"] == 7


def test_weights_survive_a_symlinked_checkpoint(tmp_path: Path) -> None:
    """A checkpoint that a user moved to another disk and linked is rotated like any other; its target is left alone."""
    toy.finish(tmp_path / "run", toy.config(max_updates=10))
    place = tmp_path / "run" / "checkpoints" / "step_00000005"
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    toy.finish(tmp_path / "run", toy.config(keep_last=1))
    assert 5 not in steps(tmp_path / "run")
    weights = safetensors.torch.load_file(tmp_path / "elsewhere" / "model.safetensors")
    assert all(torch.isfinite(t).all() for t in weights.values())
