"""The run folder from the command line: real data, real model, a few updates; resume, changes, bad input."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.helpers import HANGS, run_records, training_in_this_process

from phraseloom import files
from phraseloom.cli.main import run as phraseloom
from phraseloom.cli.train import _retry_hint
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import prepare
from phraseloom.recipe import load_recipe
from phraseloom.report.run.runs import System, read_system
from phraseloom.training import run as runs

WORDS = ["one", "two", "three", "four", "five", "six", "red", "blue", "green", "cat", "dog", "house"]


@pytest.fixture(scope="module")
def place(_one_process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its prepared dataset of 200 pairs: the target is the source backwards, in capitals."""
    folder = tmp_path_factory.mktemp("place")
    random = np.random.default_rng(1)
    for name, count in (("train", 200), ("valid", 30)):
        lines = [" ".join(random.choice(WORDS, random.integers(2, 7))) for _ in range(count)]
        files.atomic_write_text(folder / f"{name}.en", "".join(f"{x}\n" for x in lines))
        backwards = (" ".join(x.upper().split(" ")[::-1]) for x in lines)
        files.atomic_write_text(folder / f"{name}.de", "".join(f"{x}\n" for x in backwards))
    recipe: dict[str, Any] = {
        "format": 1,
        "name": "small",
        "data": {
            "folder": str(folder / "dataset"),
            "source_language": "en",
            "target_language": "de",
            "train": [{"source": "train.en", "target": "train.de"}],
            "valid": [{"source": "valid.en", "target": "valid.de"}],
            "subwords": {"kind": "subword_nmt", "merges": 60, "joint": True},
            "processes": 1,
        },
        "model": {"width": 32, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 1}},
        "training": {
            "batch_tokens": 200,
            "schedule": {"kind": "inverse_sqrt_peak", "peak": 0.01, "warmup": 10},
            "max_updates": 12,
            "checkpoint_every": 4,
            "bleu_every": 3,
            "average_last": 2,
            "processes": 1,
            "log_every": 4,
        },
    }
    files.atomic_write_text(folder / "small.yaml", yaml.safe_dump(recipe))
    prepare(load_recipe(folder / "small.yaml").data, data_root=folder)
    return folder


@pytest.fixture(autouse=True, scope="module")
def _one_process() -> Iterator[None]:
    with training_in_this_process():
        yield


@pytest.fixture(scope="module")
def done(place: Path) -> Path:
    """A finished run."""
    folder = place / "done"
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(folder)]) == 0
    return folder


def test_a_run_leaves_what_the_manual_says(done: Path) -> None:
    names = {p.name for p in done.iterdir()} - {"curves.png", ".lock"}
    assert names == {
        "averaged", "best", "checkpoints", "config.yaml", "last", "metrics.jsonl", "run.json", "timing.jsonl", "train.log",
    }  # fmt: skip
    assert sorted(p.name for p in (done / "checkpoints").iterdir()) == [
        "step_00000004",
        "step_00000008",
        "step_00000012",
    ]
    validations = [r["validation"] for r in run_records(done) if "validation" in r]
    assert len(validations) == 3 and "bleu" not in validations[0]
    assert 0 <= validations[2]["bleu"] <= 100 and validations[2]["signature"].startswith("nrefs:1|case:mixed|")
    for folder in (done / "best", done / "last", done / "averaged"):
        assert "model.safetensors" in files.verify_manifest(folder)
    assert load_recipe(done / "config.yaml") == load_recipe(done.parent / "small.yaml")


def test_the_examples_of_an_epoch_are_those_of_the_dataset(done: Path) -> None:
    updates = [r for r in run_records(done) if "loss" in r]
    epochs = [sum(r["examples"] for r in updates if r["epoch"] == epoch) for epoch in range(updates[-1]["epoch"])]
    dataset = Dataset.open(load_recipe(done / "config.yaml").data.folder)
    assert epochs and set(epochs) == {len(dataset.split("train"))}


def test_checkpoints_and_averages_are_models(done: Path) -> None:
    from phraseloom.models.store import load_model

    for folder in (done, done / "averaged", done / "checkpoints" / "step_00000004"):
        model, tokenizer, _ = load_model(folder)
        assert len(tokenizer.target.vocabulary) == model.output.weight.shape[0]


def snapshot(run: Path) -> dict[Path, tuple[bytes, int]]:
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.rglob("*") if p.is_file() and p.name != ".lock"}


def test_the_same_command_on_a_finished_run_changes_nothing(
    place: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(done)
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(done)]) == 0
    assert snapshot(done) == before
    assert "this run is finished: 12 updates are done" in capsys.readouterr().err


def test_a_changed_recipe_on_a_finished_run_deletes_no_checkpoint(place: Path, done: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(done, run, symlinks=True)
    command = ["train", str(place / "small.yaml"), "--run", str(run)]
    steps = [f"step_000000{number}" for number in ("04", "08", "12")]
    for change in ("training.checkpoint_every=1000", "training.keep_last=1"):
        for _ in range(2):  # the second time, the change is that of the run
            assert phraseloom([*command, change, "training.average_last=0"]) == 0
            assert sorted(p.name for p in (run / "checkpoints").iterdir()) == steps
    changes = ["training.checkpoint_every=1000", "training.max_updates=14"]
    assert phraseloom([*command, *changes, "training.average_last=0"]) == 0
    assert {*steps[1:], "step_00000014"} <= {p.name for p in (run / "checkpoints").iterdir()}


def test_a_moved_run_goes_on_and_ends_as_an_uninterrupted_one(place: Path, done: Path, tmp_path: Path) -> None:
    """R9, with the real model: stopped after 6 of 12 updates, moved, resumed."""
    arguments = ["train", str(place / "small.yaml"), "--run"]
    assert phraseloom([*arguments, str(tmp_path / "a"), "training.max_updates=6"]) == 0
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "step_00000006")  # as if killed after update 4
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert phraseloom([*arguments, str(tmp_path / "b")]) == 0
    for name in ("metrics.jsonl", "last/model.safetensors", "last/optimizer.safetensors", "last/state.json"):
        assert (tmp_path / "b" / name).read_bytes() == (done / name).read_bytes(), name
    assert (tmp_path / "b/averaged/model.safetensors").read_bytes() == (
        done / "averaged/model.safetensors"
    ).read_bytes()


def make_dataset_again(place: Path) -> None:
    """Prepare other text of the same length in the folder of the dataset."""
    config = load_recipe(place / "small.yaml").data
    for name in ("train", "valid"):
        for language in ("en", "de"):
            lines = (place / f"{name}.{language}").read_text().splitlines()
            (place / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines[::-1]))
    prepare(config, data_root=place, overwrite=True)


def moved(place: Path, to: Path) -> Path:
    """A copy of the text, the dataset and the recipe."""
    for path in place.iterdir():
        if path.name == "dataset":
            shutil.copytree(path, to / path.name)
        elif path.suffix in (".en", ".de", ".yaml"):
            shutil.copy(path, to)
    text = (to / "small.yaml").read_text()
    (to / "small.yaml").write_text(text.replace(str(place / "dataset"), str(to / "dataset")))
    return to


def test_a_dataset_that_is_made_again_during_a_training_does_not_disturb_it(
    place: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even before the first batch and the first validation are read."""
    copy, start = moved(place, tmp_path), runs.train_or_skip

    def late(job: Any) -> str:
        make_dataset_again(copy)
        return start(job)

    monkeypatch.setattr(runs, "train_or_skip", late)
    assert phraseloom(["train", str(copy / "small.yaml"), "--run", str(copy / "run")]) == 0
    for name in ("metrics.jsonl", "last/model.safetensors"):
        assert (copy / "run" / name).read_bytes() == (done / name).read_bytes(), name


def test_a_dataset_that_is_replaced_while_it_is_opened_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, build = moved(place, tmp_path), runs.build

    def late(*args: Any) -> Any:
        make_dataset_again(copy)
        return build(*args)

    monkeypatch.setattr(runs, "build", late)
    assert phraseloom(["train", str(copy / "small.yaml"), "--run", str(copy / "run")]) != 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert "dataset: the dataset was replaced while it was opened; run the same command again" in said


def test_a_longer_run_makes_a_new_average(place: Path, done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    assert (
        phraseloom(["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "training.max_updates=16"]) == 0
    )
    origin = json.loads((tmp_path / "run" / "averaged" / "average.json").read_text())
    assert origin["checkpoints"] == ["step_00000012", "step_00000016"]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


def test_changed_recipe_is_refused_with_the_difference(
    place: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(done)
    arguments = [
        "train",
        str(place / "small.yaml"),
        "--run",
        str(done),
        "training.batch_tokens=300",
        "model.dropout=0.2",
    ]
    assert phraseloom(arguments) == 2
    text = one_line(capsys)
    assert "model.dropout: 0.1 → 0.2; training.batch_tokens: 200 → 300" in text and "--allow-changed" in text
    assert snapshot(done) == before


def test_changed_recipe_is_taken_with_allow_changed(
    place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "--allow-changed"]
    assert phraseloom([*arguments, "training.batch_tokens=300", "training.max_updates=14"]) == 0
    said = capsys.readouterr().err
    assert "changed since this run was started: training.batch_tokens: 200 → 300" in said
    assert "decoding is changed" not in said
    assert load_recipe(tmp_path / "run" / "config.yaml").training.batch_tokens == 300
    again = ["training.batch_tokens=300", "training.max_updates=14", "decoding.beam=2"]
    assert phraseloom([*arguments, *again]) == 0
    assert "for existing ones, give it to translate" in capsys.readouterr().err
    stored = json.loads((tmp_path / "run" / "last" / "generation_config.json").read_text())
    assert stored["beam"] != 2, "a finished run writes no checkpoint"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--from", "step_401", "training.schedule.peak=0.0005"], "--from step_401: no such checkpoint"),
        (
            ["training.freeze=[encoder]", "training.max_updates=14"],
            "step_00000012: other parameters are trained than in this checkpoint: exp_avg.encoder",
        ),
        (
            ["training.freeze=[encoder]", "training.max_updates=14"],
            "training.freeze cannot change in a run; a new run can",
        ),
        (
            ["training.start_from=runs/other"],
            "these keys count only when a run begins: training.start_from.optimizer: None",
        ),
        (["training.embeddings=other.vec"], "training.embeddings.fixed: None → False"),
        (
            ["model.init=xavier_uniform"],
            "fan_in_uniform → xavier_uniform; set them back, or choose another --run folder",
        ),
        (
            ["model.ffn_width=24", "training.max_updates=14"],
            "this key cannot change in a run; a new run can begin with its weights (training.start_from)",
        ),
    ],
)
def test_a_change_that_fails_leaves_the_run_as_it_was(
    place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], said: str
) -> None:
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run")]
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("config.yaml", "run.json")}
    assert phraseloom([*arguments, "--allow-changed", *changes]) != 0
    assert said in one_line(capsys)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    assert phraseloom(arguments) == 0


def test_a_run_that_stopped_before_its_first_update_takes_the_corrected_recipe(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--allow-changed`, as the error asks for a change."""
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "training.max_updates=1", *STEPS]

    def probe(job: Any) -> None:
        if job.config.max_micro_tokens is None:
            raise MemoryError

    monkeypatch.setattr(runs, "probe_largest", probe)
    assert phraseloom(arguments) != 0
    before = json.loads((tmp_path / "run" / "run.json").read_text())
    capsys.readouterr()
    assert phraseloom([*arguments, "training.max_micro_tokens=100"]) == 0
    assert "changed since" not in capsys.readouterr().err
    assert load_recipe(tmp_path / "run" / "config.yaml").training.max_micro_tokens == 100
    assert json.loads((tmp_path / "run" / "run.json").read_text())["run"] != before["run"]
    assert phraseloom([*arguments, "training.max_micro_tokens=90"]) == 2
    assert "this run was made from another recipe" in one_line(capsys)


def test_going_back_in_a_run_that_does_not_exist_makes_none(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "--from", "best"]
    assert phraseloom(arguments) == 2
    assert "this run has none" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_was(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.atomic_write_text(tmp_path / "mine" / "thesis.tex", "chapter 1")
    command = ["train", str(place / "small.yaml"), "--run"]
    assert phraseloom([*command, str(tmp_path / "mine")]) == 2
    assert "not empty (thesis.tex is there); choose another --run folder" in one_line(capsys)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    for folder in ("mine/thesis.tex", "mine/thesis.tex/run"):
        assert phraseloom([*command, str(tmp_path / folder)]) == 1
        assert "cannot write: " in (said := one_line(capsys)) and "a file, or in one: choose another folder" in said
    with files.FolderLock(tmp_path / "used"):
        assert phraseloom([*command, str(tmp_path / "used")]) == 1
    assert "; wait until it has ended, or choose another folder" in one_line(capsys)


def test_an_average_of_undone_checkpoints_is_made_again(place: Path, done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    before = (tmp_path / "run" / "averaged" / "model.safetensors").read_bytes()
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "--allow-changed"]
    assert phraseloom([*arguments, "--from", "step_4", "training.schedule.peak=0.0005"]) == 0
    assert (tmp_path / "run" / "averaged" / "model.safetensors").read_bytes() != before


def test_a_run_whose_model_changed_is_averaged_where_it_computes_the_same(
    place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another dropout is of training alone; with another `scale_embeddings`, the run ends without a new average."""
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    command = [
        "train",
        str(place / "small.yaml"),
        "--run",
        str(tmp_path / "run"),
        "--allow-changed",
        "model.dropout=0.2",
    ]
    assert phraseloom([*command, "training.max_updates=16"]) == 0
    origin = json.loads((tmp_path / "run" / "averaged" / "average.json").read_text())
    assert origin["checkpoints"] == ["step_00000012", "step_00000016"]
    capsys.readouterr()
    assert phraseloom([*command, "training.max_updates=20", "model.scale_embeddings=false"]) == 0
    assert "no average: " in (said := capsys.readouterr().err) and "model.scale_embeddings: True → False" in said
    assert json.loads((tmp_path / "run" / "averaged" / "average.json").read_text()) == origin


def test_a_run_too_short_for_its_average_says_so(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "training.max_updates=6"]
    assert phraseloom(arguments) == 0
    assert (
        "no average: training.average_last is 2, the run has 1 checkpoint at every 4 updates" in capsys.readouterr().err
    )
    assert not (tmp_path / "run" / "averaged").exists()


def test_another_dataset_is_refused(
    place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.atomic_write_text(tmp_path / "train.en", "one two\n" * 50)
    files.atomic_write_text(tmp_path / "train.de", "TWO ONE\n" * 50)
    for language in ("en", "de"):
        shutil.copy(place / f"valid.{language}", tmp_path)
    folder = f"data.folder={tmp_path / 'other'}"
    prepare(load_recipe(place / "small.yaml", [folder]).data, data_root=tmp_path)
    capsys.readouterr()
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(done), folder]) == 2
    assert "dataset: " in one_line(capsys)


def test_a_dataset_without_validation_text_is_refused_before_there_is_a_run(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [f"data.folder={tmp_path / 'other'}", "data.valid=[]"]
    prepare(load_recipe(place / "small.yaml", changes).data, data_root=place)
    capsys.readouterr()
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), *changes]) == 2
    assert "training needs validation text, and this dataset has none; give data.valid" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_all_checkpoints_damaged(place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    for path in (tmp_path / "run").glob("checkpoints/*/model.safetensors"):
        path.write_bytes(b"")
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(tmp_path / "run")]) == 1
    assert "no whole checkpoint is left" in one_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["no.yaml"], 1, "recipe not found"),
        (["small.yaml", "training.batch_token=5"], 2, "did you mean batch_tokens?"),
        (["small.yaml", "data.folder=nowhere"], 1, "run phraseloom prepare first"),
        (["small.yaml", "training.processes=5"], 2, "some would have nothing to do"),
        (["small.yaml", "--run", "small.yaml"], 1, ""),
        (
            ["small.yaml", "training.schedule={kind: plateau, rate: 0.1, by: bleu}", "training.bleu_every=0"],
            2,
            "schedule.by: bleu needs bleu_every of at least 1",
        ),
        (["small.yaml", "--run", "."], 2, "not a run folder"),
    ],
)
def test_bad_input_is_one_line(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    monkeypatch.chdir(place)
    assert phraseloom(["train", *arguments]) == code
    assert text in one_line(capsys)


def test_tensorboard_events_are_written(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "training.tensorboard=true"]
    assert phraseloom([*arguments, "training.max_updates=2", "training.average_last=0"]) == 0
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_average_verb(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert phraseloom(["average", str(tmp_path / "mean"), str(done), "--last", "2"]) == 0
    mean = (tmp_path / "mean" / "model.safetensors").read_bytes()
    assert mean == (done / "averaged" / "model.safetensors").read_bytes()
    both = [str(done / "checkpoints" / f"step_000000{n:02d}") for n in (8, 12)]
    assert phraseloom(["average", str(tmp_path / "again"), *both]) == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == mean
    capsys.readouterr()
    assert phraseloom(["average", str(tmp_path / "again"), *both]) == 2
    assert "not empty" in one_line(capsys)
    assert phraseloom(["average", str(tmp_path / "more"), str(done), "--last", "9"]) == 1
    assert "9 checkpoints are asked for, the run has 3" in one_line(capsys)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (["decoding.lexicon=no.tsv"], 1, "no.tsv: decoding.lexicon: lexicon not found; "),
        (["decoding.lexicon=bad.tsv"], 1, "bad.tsv:2: the row has one column; write SOURCE<tab>TARGET"),
        (["decoding.unknown=replace", "decoding.alignment_layer=9"], 2, "alignment_layer 9"),
        (["decoding.unknown=replace", "decoding.alignment_head=9"], 2, "alignment_head 9: layer 1 of the decoder"),
        (
            ["training.embeddings={source: no.vec}"],
            1,
            "no.vec: no such model folder or file of vectors; it is named in",
        ),
    ],
)
def test_what_the_first_bleu_would_need_is_asked_for_before_the_first_update(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: list[str],
    code: int,
    text: str,
) -> None:
    def too_late(*_: object) -> None:
        raise AssertionError("training has begun")

    monkeypatch.setattr(runs, "probe_largest", too_late)
    monkeypatch.setattr(runs, "train", too_late)
    files.atomic_write_text(tmp_path / "bad.tsv", "one\tONE\ntwo\n")
    monkeypatch.chdir(tmp_path)
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), *changes]) == code
    assert text in one_line(capsys)
    if "lexicon" in text or "vectors" in text:
        assert not (tmp_path / "run" / "config.yaml").exists(), "refused before the run folder is written"


def test_a_run_from_before_init_is_read_with_the_start_that_it_had(
    place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(done, run, symlinks=True)
    old = yaml.safe_load((run / "config.yaml").read_bytes())
    del old["model"]["init"]
    (run / "config.yaml").write_bytes(yaml.safe_dump({**old, "model": {**old["model"], "init_range": None}}).encode())
    (facts,) = read_system(System("old", (run,))).runs
    assert facts.config is not None and facts.config["model"]["init"] == {"kind": "xavier_uniform"}
    arguments = ["train", str(place / "small.yaml"), "--run", str(run)]
    assert phraseloom(arguments) == 2
    assert "model.init.kind: xavier_uniform → fan_in_uniform" in one_line(capsys)
    assert phraseloom([*arguments, "model.init=xavier_uniform"]) == 0
    assert "this run is finished" in capsys.readouterr().err


def test_the_dataset_counts_where_the_recipe_has_other_data(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "training.max_updates=1", *STEPS]
    assert phraseloom([*command, "data.text.lowercase=true", "data.subwords.merges=9"]) == 0
    shown = capsys.readouterr().err
    for log in (shown, (tmp_path / "run" / "train.log").read_text()):
        assert "warning: this dataset was prepared with data.text.lowercase: False, but the recipe has True" in log
        assert "prepared with data.subwords.merges: 60, but the recipe has 9; the dataset counts" in log
    noted = yaml.safe_load((tmp_path / "run" / "config.yaml").read_bytes())["data"]
    assert (noted["text"]["lowercase"], noted["subwords"]["merges"]) == (False, 60)
    assert phraseloom(command) == 0
    assert "prepared with" not in capsys.readouterr().err


@pytest.mark.parametrize("continuous", [False, True])
def test_only_a_softmax_diverges_by_its_perplexity(
    place: Path, tmp_path: Path, continuous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The perplexity of a density that is sure of a wrong word has no bound; such a run has to reach its end."""
    monkeypatch.setattr("phraseloom.training.validate.exp_mean", lambda total, count: 1e8)
    changes = ["training.max_updates=4"]
    if continuous:
        folder = f"data.folder={tmp_path / 'dataset'}"
        words = "data.subwords={kind: words, vectors: {random: 32}, center: false}"
        assert phraseloom(["prepare", str(place / "small.yaml"), "--data-root", str(place), folder, words]) == 0
        changes += [folder, words, "model.output={kind: continuous, loss: vmf_reg1}", "model.tied=two_way"]
    code = phraseloom(["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), *changes])
    assert code == (0 if continuous else 4)


LONG_LSTM = ["model.encoder={kind: recurrent, layers: 6}"]


@pytest.mark.parametrize(
    ("start", "collapsed"),
    [("{recurrent: fan_in_uniform}", ["encoder"]), ("{recurrent: orthogonal}", [])],
)
def test_a_run_warns_of_a_start_that_is_collapsed(
    start: str, collapsed: list[str], place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), *LONG_LSTM, f"model.init={start}"]
    assert phraseloom([*arguments, "training.max_updates=1", *STEPS]) == 0
    for log in (capsys.readouterr().err, (tmp_path / "run" / "train.log").read_bytes().decode()):
        assert "separation of tokens at the start: encoder 0." in log
        named = (
            f"{{kind: fan_in_uniform, {start[1:]}" if collapsed else "fan_in_uniform"
        )  # the other one is the default
        assert f"(model.init: {named})" in log
        assert "warning: training ends at update 1, inside the warm-up: training.schedule.warmup is 10" in log
        warning = f"warning: this start is collapsed ({', '.join(collapsed)}): the model hardly separates tokens"
        assert (warning in log) == bool(collapsed), log
        for way_out in ("phraseloom inspect RECIPE model.init=…", "see model.init in docs/training.md"):
            assert (way_out in log) == bool(collapsed)
    assert phraseloom([*arguments, "training.max_updates=2", *STEPS]) == 0  # goes on: nothing starts here
    assert "at the start" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cost", "precision", "warns"), [(30.0, "bf16", True), (0.6, "bf16", False), (30.0, "fp32", False)]
)
def test_a_run_warns_of_a_cpu_without_bf16(
    cost: float, precision: str, warns: bool, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(runs, "bf16_cost", lambda: cost)
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), f"training.precision={precision}"]
    assert phraseloom([*arguments, "training.max_updates=1", "training.device=cpu", *STEPS]) == 0
    warning = "warning: on this CPU a product in bf16 takes 30 times as long as in fp32; set training.precision=fp32"
    assert (warning in capsys.readouterr().err) == warns


def test_a_lexicon_that_is_there_is_taken(place: Path, tmp_path: Path) -> None:
    files.atomic_write_text(tmp_path / "good.tsv", "one\tONE\n")
    changes = [f"decoding.lexicon={tmp_path / 'good.tsv'}", "decoding.unknown=replace", "training.max_updates=2"]
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), *changes]
    assert phraseloom([*arguments, "training.average_last=0"]) == 0


STEPS = ["training.checkpoint_every=2", "training.keep_last=2", "training.bleu_every=0", "training.average_last=0"]


def test_a_rate_that_is_far_too_high_costs_no_good_checkpoint_and_the_advice_works(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = ["train", str(place / "small.yaml"), "--run", str(run), *STEPS]
    assert phraseloom([*arguments, "training.max_updates=4"]) == 0
    high = ["training.schedule.peak=1e10", "training.schedule.warmup=1"]
    capsys.readouterr()
    assert phraseloom([*arguments, *high, "--allow-changed"]) == 4
    text = capsys.readouterr().err
    assert (run / "last").readlink().name == "step_00000004" and (run / "best").exists()
    assert [p.name for p in sorted((run / "checkpoints").glob("step_*"))] == ["step_00000002", "step_00000004"]
    advice = text.rpartition("lower the learning rate: ")[2]
    assert "(it resumes from step_00000004; --from step_00000002 goes further back)" in advice
    command = shlex.split(advice.partition(" (it resumes")[0])
    assert command[:2] == ["phraseloom", "train"] and "training.schedule.peak=1e+09" in command
    low = [word.replace("=1e+09", "=0.001") for word in command[1:]]
    assert phraseloom([*low, "--from", "step_2"]) == 0
    said = capsys.readouterr().err
    assert "step_00000004 is set aside as " in said and "resuming after update 2:" in said
    assert (run / "last").readlink().name == "step_00000012"


def test_a_run_that_diverges_before_its_first_checkpoint_is_not_told_of_one(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    high = ["training.schedule.peak=1e10", "training.schedule.warmup=1", *STEPS]
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), *high]) == 4
    text = capsys.readouterr().err
    assert "whole" not in text and "(it starts over, because no checkpoint is left)" in text


def test_a_run_that_diverges_from_a_collapsed_start_is_told_of_it(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    high = ["training.schedule.peak=1e10", "training.schedule.warmup=1", *STEPS]
    arguments = [
        "train",
        str(place / "small.yaml"),
        "--run",
        str(tmp_path / "run"),
        "--allow-changed",
        *LONG_LSTM,
        *high,
    ]
    for start, advice in (("fan_in_uniform", True), ("orthogonal", False)):
        assert phraseloom([*arguments, f"model.init={{recurrent: {start}}}"]) == 4
        text = capsys.readouterr().err
        what = ", or choose another model.init: the start was collapsed (encoder)\n"
        assert text.endswith(what) == advice, text
        assert ("the start was collapsed" in text) == advice


def test_a_run_with_checkpoints_is_not_advised_to_change_its_start(place: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_00000004").mkdir(parents=True)
    files.atomic_write_json(tmp_path / "run.json", {"collapsed": ["encoder"]})
    hint = _retry_hint(place / "small.yaml", [], tmp_path, load_recipe(place / "small.yaml"))
    assert hint.endswith(", or begin a new run with another model.init: the start was collapsed (encoder)")


def test_runs_of_one_recipe_have_one_identity_and_others_another(place: Path, done: Path, tmp_path: Path) -> None:
    arguments = ["train", str(place / "small.yaml"), "training.max_updates=1", "training.average_last=0", "--run"]
    for name, change in (("same", []), ("other", ["training.seed=2"])):
        assert phraseloom([*arguments, str(tmp_path / name), *change]) == 0
    identity = {p: json.loads((p / "run.json").read_bytes())["run"] for p in (done, *tmp_path.iterdir())}
    assert identity[done] == identity[tmp_path / "same"] != identity[tmp_path / "other"]
    assert json.loads((done / "last" / "state.json").read_bytes())["run"] == identity[done]


def test_checkpoints_of_another_run_are_not_gone_on_from(
    place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "training.seed=2"]
    assert phraseloom([*arguments, "training.max_updates=4"]) == 0
    shutil.copytree(done / "checkpoints" / "step_00000008", tmp_path / "run" / "checkpoints" / "step_00000008")
    assert phraseloom([*arguments, "training.max_updates=5", "training.average_last=0"]) == 0
    said = capsys.readouterr().err
    assert "checkpoint refused" in said and "belongs to another run" in said and "resuming after update 4:" in said


def test_a_run_of_an_earlier_version_goes_on(place: Path, tmp_path: Path) -> None:
    """Without an identity in `run.json` and in the states, as it was before there was one."""
    run = tmp_path / "run"
    arguments = ["train", str(place / "small.yaml"), "--run", str(run), "training.average_last=0"]
    assert phraseloom([*arguments, "training.max_updates=4"]) == 0
    for path in (run / "run.json", *run.glob("checkpoints/*/state.json")):
        value = json.loads(path.read_bytes())
        del value["run"]
        files.atomic_write_json(path, value)
    for folder in run.glob("checkpoints/step_*"):
        files.write_manifest(folder, json.loads((folder / "manifest.json").read_bytes())["files"])
    assert phraseloom([*arguments, "training.max_updates=8"]) == 0
    assert "run" not in json.loads((run / "last" / "state.json").read_bytes())


@pytest.mark.parametrize(
    "ending",
    [
        "2>&1 | head -1",
        *(
            pytest.param(ending, marks=pytest.mark.full)
            for ending in (">&- 2>&- <&-", ">/dev/full 2>/dev/full", "2>/dev/full", "2>&-", "2>&1 | true")
        ),
    ],
)
def test_a_broken_display_does_not_end_a_training(place: Path, tmp_path: Path, ending: str) -> None:
    run = tmp_path / "run"
    keys = "training.average_last=0 training.bleu_every=0 training.log_every=1"
    program = f"{sys.executable} -m phraseloom train {place / 'small.yaml'} --run {run} {keys}"
    done = subprocess.run(
        ["bash", "-c", f"({program}; echo $? > {tmp_path / 'code'}) {ending}"], capture_output=True, timeout=HANGS
    )
    assert (tmp_path / "code").read_bytes() == b"0\n", done.stderr
    log = (run / "train.log").read_bytes().decode()
    assert "finished: 12 updates are done" in log and log.count("update ") >= 12
    assert b"Traceback" not in done.stderr
    assert len([r for r in run_records(run) if "loss" in r]) == 12


def test_a_terminal_that_goes_away_does_not_end_a_training(place: Path, tmp_path: Path) -> None:
    run, (ours, theirs) = tmp_path / "run", os.openpty()
    keys = ["training.average_last=0", "training.bleu_every=0", "training.log_every=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "phraseloom", "train", str(place / "small.yaml"), "--run", str(run), *keys],
        stderr=theirs, stdout=theirs, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    assert process.wait(HANGS) == 0
    assert b"finished: 12 updates are done" in (run / "train.log").read_bytes()


def test_an_error_whose_display_is_broken_keeps_its_exit_code(place: Path, tmp_path: Path) -> None:
    for ending in ("2>&-", "2>/dev/full"):
        program = f"{sys.executable} -m phraseloom train {place / 'small.yaml'} training.nothing=1 {ending}"
        done = subprocess.run(["bash", "-c", program], capture_output=True, timeout=HANGS)
        assert (done.returncode, done.stdout) == (2, b"")


def test_a_gpu_that_runs_small_micro_batches_in_turn_is_told() -> None:
    advice = runs.advice_for_gpus("cuda", 4, 2, 3000)
    assert (
        advice is not None
        and "2 micro-batches of 750" in advice
        and "training.micro_batches=2 it has one of 1,500" in advice
    )
    assert runs.advice_for_gpus("cpu", 4, 2, 3000) is None  # cores share them
    assert runs.advice_for_gpus("cuda", 2, 2, 3000) is None
    assert runs.advice_for_gpus("cuda", 2, 1, 25_000) is None  # enough to do


def changed_text(place: Path, folder: Path, *, valid: bool = False, tokenizer: Path | None = None) -> list[str]:
    """Overrides of small.yaml for a dataset of other training text, in `folder`."""
    for name in ("train", "valid"):
        for language in ("en", "de"):
            lines = (place / f"{name}.{language}").read_text().splitlines()
            cut = name == "train" or valid
            files.atomic_write_text(folder / f"{name}.{language}", "\n".join(lines[: -20 if cut else None]) + "\n")
    changes = [f"data.folder={folder / 'dataset'}"]
    changes += [] if tokenizer is None else [f"data.tokenizer={tokenizer}"]
    prepare(load_recipe(place / "small.yaml", changes).data, data_root=folder)
    return [*changes, "training.max_updates=16"]


def test_a_run_is_not_resumed_with_another_vocabulary(
    place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even with --allow-changed: a vocabulary learned anew has as many pieces, so that every shape fits."""
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    before = snapshot(tmp_path / "run")
    changes = changed_text(place, tmp_path)
    capsys.readouterr()
    command = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "--allow-changed"]
    assert phraseloom([*command, *changes]) == 2
    text = one_line(capsys)
    assert "this run was trained with another source vocabulary than that of the dataset" in text
    assert f"data.tokenizer: {tmp_path / 'run' / 'checkpoints' / 'step_00000012'}" in text
    assert snapshot(tmp_path / "run") == before


@pytest.mark.parametrize("valid", [False, True])
def test_validations_on_different_texts_are_not_compared(
    valid: bool, place: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done, tmp_path / "run", symlinks=True)
    state = tmp_path / "run" / "checkpoints" / "step_00000012" / "state.json"
    best = json.loads(state.read_text())["best_update"]
    changes = changed_text(place, tmp_path, valid=valid, tokenizer=done)
    capsys.readouterr()
    command = ["train", str(place / "small.yaml"), "--run", str(tmp_path / "run"), "--allow-changed"]
    assert phraseloom([*command, *changes, "training.schedule.peak=1e-12"]) == 0  # which makes no model better
    said = capsys.readouterr().err
    assert "changed since this run was started: dataset: " in said
    assert "data.subwords" not in said and "prepared with" not in said
    assert f"data.tokenizer: None → {done}" in said and "{" not in said, "a list is compared by its entries"
    assert ("the validation text is another: the next validation counts as the best" in said) == valid
    now = json.loads((tmp_path / "run" / "last" / "state.json").read_text())
    assert now["best_update"] == (16 if valid else best)
