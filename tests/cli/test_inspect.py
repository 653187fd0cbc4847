"""`phraseloom inspect` and `doctor`: what they say of whole and damaged folders, and of this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from phraseloom.cli import doctor
from phraseloom.models import build, device
from phraseloom.report.run import machine
from phraseloom.report.run.folders import describe

from .conftest import Command


def test_model(command: Command, project: Path) -> None:
    model = project / "run" / "best"
    outcome = command("inspect", model)
    assert outcome.code == 0, outcome.out
    for text in ("checkpoint", "en → de", "encoder", "decoder", "width", "checksums: all files", "state: update"):
        assert text in outcome.out
    found = json.loads(command("inspect", model, "--output", "json").out)
    assert found["parameters"] == json.loads((model / "config.json").read_bytes())["parameters"]
    assert sum(p["parameters"] for p in found["parts"]) == found["parameters"]
    deeper = describe(model, depth=3)
    assert len(deeper["parts"]) > len(found["parts"])
    assert sum(p["parameters"] for p in deeper["parts"]) == found["parameters"]


def test_run(command: Command, project: Path) -> None:
    outcome = command("inspect", project / "run")
    assert outcome.code == 0, outcome.out
    for text in ("4 updates", "step_00000004  whole", "last", "perplexity", "the model of"):
        assert text in outcome.out
    found = describe(project / "run")
    assert [c["name"] for c in found["checkpoints"]] == ["step_00000002", "step_00000004"]
    assert (found["last"], found["updates"], found["unreadable_lines"]) == ("step_00000004", 4, 0)


def test_dataset(command: Command, project: Path) -> None:
    outcome = command("inspect", project / "dataset")
    assert outcome.code == 0, outcome.out
    found = describe(project / "dataset")
    assert (found["splits"]["train"]["read"], found["splits"]["valid"]["pairs"]) == (120, 12)
    lengths = found["splits"]["train"]["lengths"]
    assert sum(lengths["source"]["histogram"].values()) == 120
    assert lengths["source"]["longest"] >= lengths["source"]["median"] >= 1


def test_one_damaged_checkpoint_of_a_run(command: Command, project: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(project / "run", tmp_path / "run", symlinks=True))
    path = run / "checkpoints" / "step_00000002" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    outcome = command("inspect", "run")
    assert outcome.code == 1
    assert "step_00000002  DAMAGED" in outcome.out
    assert "step_00000004  whole" in outcome.out
    assert "step_00000002/model.safetensors: checksum differs" in outcome.out
    assert command("inspect", "run", "--quick").code == 0


@pytest.mark.parametrize("name", ["train/00000.source.offsets", "index.json", "manifest.json"])
def test_a_damaged_dataset(name: str, command: Command, project: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(project / "dataset", tmp_path / "dataset"))
    (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    outcome = command("inspect", "dataset")
    assert outcome.code == 1
    assert "checksums: DAMAGED" in outcome.out
    assert "problem: " in outcome.out


def test_unfinished_runs(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_bytes(b"format: 1\n")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b'{"update": 1, "loss": 3.0, "nll": 2.5}\n{"upd')
    outcome = command("inspect", "run")
    assert outcome.code == 0
    assert "no checkpoint yet" in outcome.out
    assert "1 line of the log could not be read" in outcome.out


def test_a_folder_of_something_else(command: Command, tmp_path: Path) -> None:
    outcome = command("inspect", ".")
    assert outcome.code == 1
    assert outcome.is_one_line_of("inspect")
    assert "not a model" in outcome.err
    assert command("inspect", ".", "--output", "xml").code == 2


def test_doctor(command: Command) -> None:
    outcome = command("doctor")
    assert outcome.code == 0, outcome.out
    for text in ("Python", "torch", "sacrebleu", "extra plot", "cores", "memory", "disk", "locale", "GFLOP/s", "ready"):
        assert text in outcome.out
    assert "✓  start of training" in outcome.out
    findings = json.loads(command("doctor", "--quick", "--output", "json").out)
    assert {f["state"] for f in findings} <= {"ok", "note"}
    assert not any("GFLOP" in f["text"] for f in findings)
    assert command("doctor", "--output", "xml").code == 2


def test_doctor_says_what_bf16_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.bf16().what == "bf16"
    monkeypatch.setattr(device, "bf16_cost", lambda: 30.04)
    finding = doctor.bf16()
    assert finding.state == "note"
    assert finding.text == "a product takes 30 times as long as in fp32: train with training.precision=fp32 on this CPU"
    monkeypatch.setattr(device, "bf16_cost", lambda: 0.6)
    assert (doctor.bf16().state, doctor.bf16().text) == ("ok", "a product takes 0.6 times as long as in fp32")


@pytest.mark.parametrize("collapsed", [False, True])
def test_doctor_says_whether_a_new_model_tells_tokens_apart(collapsed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real = build.build_model

    def broken(*args: Any) -> Any:
        model = real(*args)
        for parameter in model.parameters():
            parameter.detach().zero_()
        return model

    if collapsed:
        monkeypatch.setattr(build, "build_model", broken)
    before = torch.random.get_rng_state()
    finding = doctor.start_of_training()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (finding.what, finding.state) == ("start of training", "note" if collapsed else "ok")
    assert finding.text.startswith("separation of tokens at the start: encoder ")
    assert "(model.init: fan_in_uniform, source phrases)" in finding.text
    hint = "; collapsed (encoder, decoder, gradient): see model.init in docs/training.md"
    assert finding.text.endswith(hint) == collapsed, finding.text
    assert ("collapsed" in finding.text) == collapsed


def test_doctor_names_what_is_missing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real = machine.importlib.metadata.version

    def version(name: str) -> str:
        if name == "sacremoses":
            raise machine.importlib.metadata.PackageNotFoundError(name)
        return "1.0" if name == "numpy" else real(name)

    monkeypatch.setattr(machine.importlib.metadata, "version", version)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    outcome = command("doctor", "--quick")
    assert outcome.code == 1
    assert "✗  sacremoses" in outcome.out
    assert "1.0 is older than 1.26" in outcome.out
    assert "pip install 'phraseloom[plot]'" in outcome.out
    assert "2 things to mend" in outcome.out


def test_doctor_never_falls_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[machine.Finding]:
        raise OSError("no such call here")

    monkeypatch.setattr(machine, "_memory", broken)
    findings = machine.examine(probe=False)
    assert next(f.state for f in findings if f.what == "broken") == "note"


def test_versions_are_compared_as_numbers() -> None:
    assert machine._numbers("2.13.0+cpu") > machine._numbers("2.6")
    assert machine._parse("PyYAML>=6.0.1") == ("PyYAML", "6.0.1")
    assert machine._plain("Subword_NMT") == "subword-nmt"
