"""Averages are arithmetic means; checkpoints of different models or runs, and damaged ones, are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import toy

from phraseloom import files
from phraseloom.cli.average import command
from phraseloom.errors import CorruptError, FileProblem, ModelError, UsageError
from phraseloom.training.checkpoint import average_checkpoints, is_average_of, last_checkpoints


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    toy.finish(run, toy.config(max_updates=20, keep_last=3))
    return run


def test_mean_of_the_last(finished: Path, tmp_path: Path) -> None:
    chosen = last_checkpoints(finished, 3)
    assert [p.name[-2:] for p in chosen] == ["10", "15", "20"]
    average_checkpoints(tmp_path / "mean", chosen)
    mean, *parts = (safetensors.torch.load_file(p / "model.safetensors") for p in (tmp_path / "mean", *chosen))
    for name, value in mean.items():
        expected = torch.stack([p[name].double() for p in parts]).mean(0)
        assert value.dtype == torch.float32
        assert torch.equal(value, expected.float())
    assert sorted(files.verify_manifest(tmp_path / "mean")) == ["average.json", "config.json", "model.safetensors"]
    assert is_average_of(tmp_path / "mean", chosen) and not is_average_of(tmp_path / "mean", chosen[1:])


def test_order_does_not_matter(finished: Path, tmp_path: Path) -> None:
    chosen = last_checkpoints(finished, 3)
    for name, order in (("a", chosen), ("b", [chosen[1], chosen[0], chosen[2]])):
        average_checkpoints(tmp_path / name, order)
    a, b = (safetensors.torch.load_file(tmp_path / n / "model.safetensors") for n in "ab")
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_checkpoints_that_were_trained_again_have_no_average_yet(finished: Path, tmp_path: Path) -> None:
    """After `--from`, a run has checkpoints of the same names and other weights."""
    chosen = last_checkpoints(finished, 2)
    average_checkpoints(tmp_path / "mean", chosen)
    again = tmp_path / chosen[-1].name
    shutil.copytree(chosen[-1], again)
    weights = safetensors.torch.load_file(again / "model.safetensors")
    safetensors.torch.save_file({name: value + 1 for name, value in weights.items()}, again / "model.safetensors")
    files.write_manifest(
        again, [path.name for path in again.iterdir() if path.is_file() and path.name != files.MANIFEST]
    )
    assert is_average_of(tmp_path / "mean", chosen)
    assert not is_average_of(tmp_path / "mean", [chosen[0], again])


def test_refusals(finished: Path, tmp_path: Path) -> None:
    chosen = last_checkpoints(finished, 2)
    with pytest.raises(FileProblem, match="9 checkpoints are asked for, the run has 3"):
        last_checkpoints(finished, 9)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_bytes(b"")
    with pytest.raises(UsageError, match="not empty"):
        average_checkpoints(tmp_path / "full", chosen)
    assert (tmp_path / "full" / "mine").exists()
    with pytest.raises(FileProblem, match="not a model of phraseloom"):
        average_checkpoints(tmp_path / "full", chosen, overwrite=True)
    assert (tmp_path / "full" / "mine").exists()
    average_checkpoints(tmp_path / "mean", chosen[:1])
    average_checkpoints(tmp_path / "mean", chosen, overwrite=True)
    assert is_average_of(tmp_path / "mean", chosen)
    with pytest.raises(UsageError, match="no checkpoint"):
        average_checkpoints(tmp_path / "none", [])
    with pytest.raises(UsageError, match="are the same checkpoint"):
        average_checkpoints(tmp_path / "twice", [*chosen, finished / "last"])
    with pytest.raises(UsageError, match="is a run, not a checkpoint"):
        command(tmp_path / "of_run", [finished])


def make(folder: Path, config: bytes, **tensors: torch.Tensor) -> Path:
    folder.mkdir()
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(safetensors.torch.save(tensors))
    files.write_manifest(folder, ["config.json", "model.safetensors"])
    return folder


def options(version: str = "1", **keys: object) -> bytes:
    """A config.json with these options of the model."""
    model = {"width": 64, "heads": 8, **keys}
    return json.dumps({"format": 1, "task": "translation", "phraseloom": version, "model": model}).encode()


def test_options_of_training_alone_may_differ(tmp_path: Path) -> None:
    old = make(tmp_path / "old", options("0.9", dropout=0.1), a=torch.zeros(2))
    new = make(
        tmp_path / "new", options(dropout=0.2, output={"kind": "softmax", "label_smoothing": 0.2}), a=torch.ones(2)
    )
    average_checkpoints(tmp_path / "mean", [old, new])
    assert safetensors.torch.load_file(tmp_path / "mean" / "model.safetensors")["a"].tolist() == [0.5, 0.5]
    assert (tmp_path / "mean" / "config.json").read_bytes() == (new / "config.json").read_bytes()


def test_other_models_are_refused(tmp_path: Path) -> None:
    one = make(tmp_path / "one", options(), a=torch.ones(2))
    for name, config, tensors, match in (
        ("config", options(heads=4), {"a": torch.ones(2)}, r"another model than that of .*one \(model\.heads: 4 → 8\)"),
        ("shape", options(), {"a": torch.ones(3)}, "parameter a does not fit"),
        ("names", options(), {"b": torch.ones(2)}, "parameter a does not fit"),
    ):
        with pytest.raises(ModelError, match=match):
            average_checkpoints(tmp_path / "mean", [make(tmp_path / name, config, **tensors), one])
        assert not (tmp_path / "mean").exists()


def test_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    one = make(tmp_path / "one", b"1", a=torch.ones(2))
    (one / "model.safetensors").write_bytes(b"x" * (one / "model.safetensors").stat().st_size)
    with pytest.raises(CorruptError, match="checksum"):
        average_checkpoints(tmp_path / "mean", [one])
    files.write_manifest(one, ["config.json", "model.safetensors"])
    with pytest.raises(CorruptError, match="not a safetensors file"):
        average_checkpoints(tmp_path / "mean", [one])
