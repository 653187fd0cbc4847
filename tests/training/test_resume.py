"""R1–R3: a run interrupted anywhere ends with the same bytes; each example comes once an epoch; a finished run is left."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy

from phraseloom.errors import InterruptedRun
from phraseloom.training import checkpoint
from phraseloom.training.signals import StopSignal


class Killed(BaseException):
    """Stands for the end of the process at that place."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of the run that nothing interrupted."""
    run = tmp_path_factory.mktemp("whole")
    toy.finish(run)
    return toy.result(run)


def stop_after(update: int) -> Any:
    """A stop signal that arrives while update number `update` runs, and the batch function that sets it off."""
    stop, data = StopSignal(), toy.ToyData()
    calls = 0

    def batch(indices: np.ndarray) -> Any:
        nonlocal calls
        calls += 1
        if (calls - 2) // 2 + 1 >= update:  # one probe, then two micro-batches an update
            stop.name = "SIGTERM"
        return data.batch(indices)

    return {"stop": stop, "batch_of": batch}


def epoch_length() -> int:
    data, c = toy.ToyData(), toy.config()
    return max(1, round((int(data.target_lengths.sum()) + len(data.target_lengths)) / c.batch_tokens))


def stops() -> list[int]:
    edge = epoch_length()
    assert 4 < edge < 20
    return sorted({1, 2, 4, 5, 6, edge - 1, edge, edge + 1, 2 * edge, 22})


@pytest.mark.parametrize("update", stops())
def test_signal_after_any_update_changes_no_byte(tmp_path: Path, whole: dict[str, bytes], update: int) -> None:
    with pytest.raises(InterruptedRun):
        toy.finish(tmp_path, **stop_after(update))
    state = json.loads((tmp_path / "last" / "state.json").read_bytes())
    assert state["update"] == update
    metrics, times = (
        [json.loads(line) for line in (tmp_path / name).read_bytes().splitlines()]
        for name in ("metrics.jsonl", "timing.jsonl")
    )
    assert times[-1]["update"] == update
    assert times[-1]["target_tokens"] == sum(record.get("tokens", 0) for record in metrics)
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 8, 11, 12, 25, 2 * epoch_length() + 1, 2 * epoch_length() + 2, 46])
def test_killed_in_a_micro_batch_changes_no_byte(tmp_path: Path, whole: dict[str, bytes], micro_batch: int) -> None:
    data, calls = toy.ToyData(), 0

    def batch(indices: np.ndarray) -> Any:
        nonlocal calls
        calls += 1
        if calls == micro_batch:
            raise Killed
        return data.batch(indices)

    with pytest.raises(Killed):
        toy.finish(tmp_path, batch_of=batch)
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


@pytest.mark.parametrize("validation", [1, 2, 5])
@pytest.mark.parametrize("how", [["signal"], ["kill"], ["signal", "kill"], ["signal", "kill in the save"]])
def test_stopped_while_validating_changes_no_byte(
    tmp_path: Path, whole: dict[str, bytes], validation: int, how: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in how:
        stop, calls = StopSignal(), 0
        job = toy.make(tmp_path, toy.config(), stop=stop)
        which = validation if kind == how[0] else 1
        inner = job.validate

        def validate(
            j: Any, kind: str = kind, which: int = which, inner: Any = inner, stop: Any = stop
        ) -> dict[str, Any]:
            nonlocal calls
            calls += 1
            if calls == which and kind == "kill":
                raise Killed
            if calls == which and kind == "signal":
                stop.name = "SIGINT"
            return inner(j)

        def killed(*_: Any) -> None:
            raise Killed

        job.validate = validate
        with monkeypatch.context() as patch:
            if kind == "kill in the save":
                patch.setattr(checkpoint, "save_state", killed)
            with pytest.raises(InterruptedRun if kind == "signal" else Killed):
                toy.runs.train_or_skip(job)
        job.close()
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


@pytest.mark.parametrize("which", [1, 2, 4])
def test_killed_in_a_save_changes_no_byte(tmp_path: Path, whole: dict[str, bytes], which: int) -> None:
    job, calls = toy.make(tmp_path, toy.config()), 0
    inner = job.write_model

    def write(folder: Path) -> None:
        nonlocal calls
        calls += 1
        inner(folder)
        if calls == which:
            raise Killed

    job.write_model = write
    with pytest.raises(Killed):
        toy.runs.train_or_skip(job)
    assert job.log is not None
    job.log.close()
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


@pytest.mark.parametrize("updates", [10, 23], ids=["unfinished", "finished"])
def test_what_a_killed_save_of_the_state_left_is_removed(tmp_path: Path, whole: dict[str, bytes], updates: int) -> None:
    toy.finish(tmp_path, toy.config(max_updates=updates))
    newest = (tmp_path / "last").resolve()
    for name in (".manifest.json.188820197120362.tmp", ".state.json.7.tmp", ".notes.7.tmp"):
        (newest / name).write_bytes(b"half")
    toy.finish(tmp_path, toy.config(max_updates=updates))
    assert [p.name for p in newest.glob(".*")] == [".notes.7.tmp"]  # not a name of the checkpoint: a user's file
    (newest / ".notes.7.tmp").unlink()
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


def test_resuming_a_finished_run_changes_no_byte(tmp_path: Path) -> None:
    toy.finish(tmp_path)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    for _ in range(3):
        toy.finish(tmp_path)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()} == before


def test_longer_run_is_the_continuation_of_a_shorter(tmp_path: Path, whole: dict[str, bytes]) -> None:
    toy.finish(tmp_path, toy.config(max_updates=10))
    toy.finish(tmp_path)
    assert toy.result(tmp_path) == whole


def test_each_example_once_an_epoch_over_interruptions(tmp_path: Path) -> None:
    """R2: what was seen up to each checkpoint and from there on, put together, is each epoch's examples once."""
    data = toy.ToyData()
    seen: dict[int, list[int]] = {}
    for stop_at in (3, 4, epoch_length() - 4, 5, None):
        stop = StopSignal()
        job = toy.make(tmp_path, toy.config(max_updates=2 * epoch_length()), stop=stop)
        first = job.state.update

        def batch(indices: np.ndarray, job: Any = job, stop: Any = stop, first: int = first, at: Any = stop_at) -> Any:
            seen.setdefault(job.state.update, []).extend(int(i) for i in indices)
            if at is not None and job.state.update - first + 1 >= at:
                stop.name = "SIGTERM"
            return data.batch(indices)

        job.batch_of = batch
        toy.runs.probe_largest(job)
        seen.pop(job.state.update)  # the probe's examples
        with contextlib.suppress(InterruptedRun):
            toy.runs.train(job)
        job.log.close()  # type: ignore[union-attr]
    assert sorted(seen) == list(range(2 * epoch_length()))
    for epoch in range(2):
        used = [i for u in range(epoch * epoch_length(), (epoch + 1) * epoch_length()) for i in seen[u]]
        assert sorted(used) == list(range(len(data.sources)))


def test_another_order_in_each_epoch() -> None:
    data = toy.ToyData()
    plan = toy.BatchPlan(data.source_lengths, data.target_lengths, seed=1, batch_tokens=60)
    assert not np.array_equal(plan.epoch(0).order, plan.epoch(1).order)
