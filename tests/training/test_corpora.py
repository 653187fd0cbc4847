"""Runs on several corpora with weights: the log, resuming, and the number of processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy
import yaml
from tests.helpers import training_in_this_process

from phraseloom import files
from phraseloom.cli.main import run as phraseloom
from phraseloom.data.mixture import Mixture

WORDS = ["one", "two", "three", "four", "five", "six", "red", "blue", "green", "cat", "dog", "house"]


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Any:
    with training_in_this_process():
        yield


def write_recipe(folder: Path, **data: Any) -> Path:
    """A recipe of two corpora of 60 and 20 pairs, whose targets are their sources backwards or in capitals."""
    for name, count, change in (("a", 60, str.upper), ("b", 20, str.title), ("valid", 10, str.upper)):
        lines = [" ".join(WORDS[(7 * n + k) % 12] for k in range(2 + n % 5)) for n in range(count)]
        files.atomic_write_text(folder / f"{name}.en", "".join(f"{x}\n" for x in lines))
        files.atomic_write_text(folder / f"{name}.de", "".join(f"{change(x)}\n" for x in lines))
    recipe = {
        "name": "small",
        "data": {
            "folder": str(folder / "dataset"),
            "source_language": "en",
            "target_language": "de",
            "train": [
                {"source": "a.en", "target": "a.de", "weight": 0.5},
                {"source": "b.en", "target": "b.de", "weight": 2.5},
            ],
            "valid": [{"source": "valid.en", "target": "valid.de"}],
            "subwords": {"kind": "subword_nmt", "merges": 40},
            "processes": 1,
            **data,
        },
        "model": {"width": 16, "heads": 2, "ffn_width": 16, "encoder": {"layers": 1}, "decoder": {"layers": 1}},
        "training": {"batch_tokens": 100, "max_updates": 20, "checkpoint_every": 5, "processes": 1, "log_every": 5},
    }
    path = folder / "small.yaml"
    files.atomic_write_text(path, yaml.safe_dump(recipe))
    assert phraseloom(["prepare", str(path), "--data-root", str(folder)]) == 0
    return path


def test_a_weighted_run_is_logged_and_resumes_bit_by_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    assert "corpus b.en: 20 pairs, 50 in an epoch (62.5 %)" in capsys.readouterr().out
    assert phraseloom(["train", str(recipe), "--run", str(tmp_path / "whole")]) == 0
    log = (tmp_path / "whole" / "train.log").read_text()
    assert "corpus a.en: 60 examples, 30 in an epoch (37.5 %)" in log
    assert "corpus b.en: 20 examples, 50 in an epoch (62.5 %)" in log
    records = map(json.loads, (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    assert {record["epoch"] for record in records if "epoch" in record} == {0, 1, 2}
    assert phraseloom(["train", str(recipe), "--run", str(tmp_path / "cut"), "training.max_updates=13"]) == 0
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step_00000013")  # as if killed after update 10
    assert phraseloom(["train", str(recipe), "--run", str(tmp_path / "cut")]) == 0
    for name in ("metrics.jsonl", "last/model.safetensors", "last/optimizer.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_other_weights_are_another_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    run = ["train", str(recipe), "--run", str(tmp_path / "run")]
    assert phraseloom([*run, "training.max_updates=5"]) == 0
    assert phraseloom(["prepare", str(recipe), "--data-root", str(tmp_path), "--overwrite", "data.temperature=5"]) == 0
    capsys.readouterr()
    assert phraseloom(run) == 2
    assert "data" in capsys.readouterr().err


def test_the_examples_of_an_update_do_not_depend_on_the_processes(tmp_path: Path) -> None:
    """Every process plans the same updates and takes its micro-batches of them (loop.accumulate)."""
    data = toy.ToyData()
    mixture = Mixture("ab", [60, 30], [15, 75], seed=1)
    plans = [
        toy.BatchPlan(data.source_lengths, data.target_lengths, seed=1, batch_tokens=60, mixture=mixture)
        for _ in range(2)
    ]
    for update in (0, 7, 40):
        pieces = [plan.update(update) for plan in plans]
        assert [p.tolist() for p in pieces[0]] == [p.tolist() for p in pieces[1]]
