"""`training.tracker`: a function of the user sees every record, and never stops a training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import toy

from phraseloom.errors import UsageError
from phraseloom.training.logbook import Hook


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    result = ModuleType("my_tracker")
    monkeypatch.setitem(sys.modules, "my_tracker", result)
    return result


def test_the_function_gets_every_record_of_the_metrics(tmp_path: Path, module: ModuleType) -> None:
    records: list[dict[str, Any]] = []
    module.log = records.append  # type: ignore[attr-defined]
    toy.finish(tmp_path / "run", toy.config(tracker="my_tracker:log", max_updates=12))
    assert records == [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]


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


@pytest.mark.parametrize("name", ["no_such_module:log", "my_tracker:missing", "my_tracker:value"])
def test_a_function_that_is_not_there_is_refused_at_the_start(module: ModuleType, name: str) -> None:
    module.value = 3  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=f"training.tracker: {name}"):
        Hook(name, print)


@pytest.mark.parametrize("name", ["my_tracker", "a/b:c", "my_tracker:log()"])
def test_the_form_is_module_and_function(name: str) -> None:
    with pytest.raises(ValueError, match="tracker"):
        toy.config(tracker=name)
