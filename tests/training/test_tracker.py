"""`training.tracker`: a function of the user sees every record, and never stops a training."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import toy
from tests.helpers import run_records

from phraseloom.errors import FileProblem, UsageError
from phraseloom.training.logbook import Hook, Tracker


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    result = ModuleType("my_tracker")
    monkeypatch.setitem(sys.modules, "my_tracker", result)
    return result


def test_the_function_gets_every_record_of_the_metrics(tmp_path: Path, module: ModuleType) -> None:
    records: list[dict[str, Any]] = []
    module.log = records.append  # type: ignore[attr-defined]
    toy.finish(tmp_path / "run", toy.config(tracker="my_tracker:log", max_updates=12))
    assert records == run_records(tmp_path / "run")


def test_an_error_is_logged_once_and_changes_nothing(tmp_path: Path, module: ModuleType) -> None:
    calls: list[int] = []

    def log(record: dict[str, Any]) -> None:
        calls.append(record["update"])
        record.clear()
        if record == {} and calls[-1] == 3:
            raise ConnectionError("no network\nat all")

    module.log = log  # type: ignore[attr-defined]
    toy.finish(tmp_path / "run", toy.config(tracker="my_tracker:log", max_updates=12))
    toy.finish(tmp_path / "plain", toy.config(max_updates=12))
    assert calls == [1, 2, 3]
    message = "warning: training.tracker my_tracker:log failed and is not called again (ConnectionError: no network)"
    assert (tmp_path / "run" / "train.log").read_text().count(message) == 1
    for name in ("metrics.jsonl", "last/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_a_module_that_fails_while_it_is_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_tracker.py").write_text("raise RuntimeError('no key')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"failing_tracker:log cannot be imported \(RuntimeError: no key\)"):
        Hook("failing_tracker:log", print)


@pytest.mark.parametrize("name", ["no_such_module:log", "my_tracker:missing", "my_tracker:value"])
def test_a_function_that_is_not_there_is_refused_at_the_start(module: ModuleType, name: str) -> None:
    module.value = 3  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=f"training.tracker: {name}"):
        Hook(name, print)


@pytest.mark.parametrize("name", ["my_tracker", "a/b:c", "my_tracker:log()"])
def test_the_form_is_module_and_function(name: str) -> None:
    with pytest.raises(ValueError, match="tracker"):
        toy.config(tracker=name)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_disk_error_of_a_tracker_loses_no_update(
    tmp_path: Path, module: ModuleType, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    """Also where the numbers of several updates are reported at once, in the middle of them and at the end of the run."""
    writers = pytest.importorskip("torch.utils.tensorboard")
    keys: dict[str, Any] = {"max_updates": 12, "checkpoint_every": 100, "log_every": 5}
    full = OSError(errno.ENOSPC, "No space left on device")
    ended: list[str] = []

    def log(record: dict[str, Any]) -> None:
        if record["update"] == 8:
            raise full

    class Writer:
        def __init__(self, folder: str) -> None: ...

        def add_scalar(self, name: str, value: float, update: int) -> None:
            if update == 7:
                raise full

        def close(self) -> None:
            ended.append("closed")
            raise full

    module.log = log  # type: ignore[attr-defined]
    toy.finish(tmp_path / "plain", toy.config(**keys), deferred=deferred)
    monkeypatch.setattr(writers, "SummaryWriter", Writer)
    job = toy.finish(
        tmp_path / "run", toy.config(**keys, tracker="my_tracker:log", tensorboard=True), deferred=deferred
    )
    job.close()
    assert job.state.update == 12 and not ended
    assert toy.result(tmp_path / "run").keys() == toy.result(tmp_path / "plain").keys()
    for name in ("metrics.jsonl", "last/model.safetensors", "last/optimizer.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    text = (tmp_path / "run" / "train.log").read_text()
    for what in ("training.tracker my_tracker:log", "training.tensorboard"):
        assert text.count(f"warning: {what} failed and is not called again (OSError: [Errno 28] No space left") == 1


def test_events_that_fail_at_the_end_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = pytest.importorskip("torch.utils.tensorboard")
    said: list[str] = []

    def close(_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(writers.SummaryWriter, "close", close)
        Tracker(tmp_path, said.append).close()
    assert said == [
        "warning: training.tensorboard failed and is not called again (OSError: [Errno 5] Input/output error)"
    ]
    (tmp_path / "run").write_text("a file, so there is no place for events")
    with pytest.raises(
        FileProblem, match=r"run/tensorboard: cannot write: .*; fix this and run the same command again"
    ):
        Tracker(tmp_path / "run", said.append)
