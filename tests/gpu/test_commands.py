"""Commands on a GPU: training as on the CPU, resume, and verbs with --device cuda."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.conftest import Command, phraseloom, write_text

STILL = ("model.dropout=0", "training.tf32=false", "training.log_every=1", "model.output.label_smoothing=0")
RUN: dict[str, tuple[str, ...]] = {
    "plain": (),
    "phrasal": ("model.attention=queryk heterogeneous 1-2",),
    "relative": tuple(
        f"model.attention.{side}_self=queryk-relative heterogeneous 1-2" for side in ("encoder", "decoder")
    ),
    "recurrent": ("model.encoder.kind=recurrent", "model.decoder.kind=recurrent"),
    "phrases": (
        "model.phrases.glance=max",
        "model.phrases.attention=softmax",
    ),
}


def train(folder: Path, run: str, *settings: str) -> list[dict[str, Any]]:
    done = phraseloom("train", "recipe.yaml", "--run", run, "--", *settings, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    lines = (folder / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def losses(lines: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in lines if "loss" in line]


def weights(folder: Path, run: str) -> dict[str, torch.Tensor]:
    return load_file(next((folder / run).glob("**/model.safetensors")))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    write_text(folder)
    assert phraseloom("prepare", "recipe.yaml", cwd=folder).returncode == 0
    return folder


@pytest.mark.parametrize("name", RUN)
def test_training_has_the_losses_of_the_cpu(name: str, text: Path) -> None:
    found = [
        train(text, f"{name}-{device}", *RUN[name], *STILL, f"training.device={device}") for device in ("cpu", "cuda")
    ]
    assert losses(found[1]) and losses(found[1]) == pytest.approx(losses(found[0]), rel=1e-2)
    log = (text / f"{name}-cuda" / "train.log").read_text(encoding="utf-8")
    assert "on cuda:0" in log


@pytest.mark.parametrize(
    "settings", [("training.precision=bf16",), ("training.compile=true",), ("training.checkpoint_activations=true",)]
)
def test_other_arithmetic_trains_nearly_the_same(settings: tuple[str, ...], text: Path) -> None:
    common = ("model.attention=queryk heterogeneous 1-2", *STILL, "training.device=cuda")
    name = settings[0].split("=")[0].rpartition(".")[2]
    assert losses(train(text, name, *common, *settings)) == pytest.approx(
        losses(train(text, f"{name}-base", *common)), rel=2e-2
    )


def test_a_resumed_run_ends_as_one_that_never_stopped(text: Path) -> None:
    common = ("training.device=cuda", "model.dropout=0.1", "training.checkpoint_every=2")
    train(text, "through", *common, "training.max_updates=8")
    train(text, "halves", *common, "training.max_updates=4")
    train(text, "halves", *common, "training.max_updates=8")
    one, other = weights(text, "through"), weights(text, "halves")
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)


VERBS: dict[str, tuple[str, ...]] = {
    "translate": ("translate", "run"),
    "translate beam": ("translate", "run", "--beam", "4"),
    "score": ("score", "run", "valid.en", "valid.de"),
    "align model": ("align", "model", "run", "-s", "valid.en", "-t", "valid.de"),
    "analyse activation": ("analyse", "activation", "run", "-s", "valid.en", "-t", "valid.de"),
    "analyse entropy": ("analyse", "entropy", "run", "-s", "valid.en"),
    "explain": ("explain", "run", "-s", "valid.en", "-o", "page.html"),
    "report": ("report", "run", "-o", "report.html", "-s", "valid.en", "-r", "valid.de"),
    "diff": ("diff", "run", "other", "-s", "valid.en", "-r", "valid.de", "-o", "diff.html"),
    "heatmap": ("analyse", "heatmap", "run", "--sentence", "a dog", "-o", "map.svg"),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_says_what_it_says_on_the_cpu(name: str, command: Command, project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    shutil.copytree(project / "run", tmp_path / "other")
    found = []
    for device in ("cpu", "cuda"):
        for page in (*tmp_path.glob("*.html"), *tmp_path.glob("*.svg")):
            page.unlink()
        done = command(*VERBS[name], "--device", device, stdin=(tmp_path / "valid.en").read_bytes())
        assert done.code == 0, done.err
        found.append(done.out.split())
    if name == "score":
        assert [float(x) for x in found[1]] == pytest.approx([float(x) for x in found[0]], abs=2e-3)
    elif name not in ("report", "diff"):  # they print the time that they took
        assert found[1] == found[0]
