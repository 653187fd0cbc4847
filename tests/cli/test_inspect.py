"""`phraseloom inspect` and `doctor`: what they say of whole and damaged folders, of recipes, and of this machine."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phraseloom.cli import doctor
from phraseloom.models import build, device
from phraseloom.report.run import machine
from phraseloom.report.run.folders import describe
from phraseloom.report.run.machine import EXTRAS

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


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_the_model_of_a_run_is_cut_short(name: str, command: Command, project: Path, tmp_path: Path) -> None:
    """This is seen without checksums too, and by `report`."""
    run = Path(shutil.copytree(project / "run", tmp_path / "run", symlinks=True))
    path = next(run / link for link in ("best", "last") if (run / link).is_dir()).resolve() / name
    path.write_bytes(path.read_bytes()[:50])
    for arguments in (("inspect", "run", "--quick"), ("report", "run", "-o", "page.html")):
        outcome = command(*arguments)
        said = outcome.out + outcome.err
        assert outcome.code == 1 and re.search(rf"run/(best|last)/{name}: ", said), said
        assert "internal error" not in said


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


RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TINY = ["model.width=16", "model.heads=2", "model.ffn_width=16", "--rows", "50"]


def test_a_recipe_and_the_start_of_its_model(command: Command) -> None:
    recipe = RECIPES / "multi30k" / "phrases" / "max_attn_ta.yaml"
    outcome = command("inspect", recipe, *TINY)
    assert outcome.code == 0 and not outcome.err, outcome.err
    for text in (
        "max_attn_ta.yaml: recipe",
        "name ",
        "multi30k-phrases-max-attn-ta",
        "task ",
        "translation",
        "en → de",
    ):
        assert text in outcome.out
    for text in ("source 50, target 50 (--rows)", "phrases.segments.kind", "encoder ", "source_embedding"):
        assert text in outcome.out
    line = outcome.out.splitlines()[-1]
    assert line.startswith("separation of tokens at the start: encoder 0.") and "; gradient 0." in line
    assert line.count("signal/noise") == 3 and line.endswith("; collapsed: nothing")
    assert command("inspect", recipe, *TINY, "--seed", "1").out == outcome.out
    assert command("inspect", recipe, *TINY, "--seed", "2").out != outcome.out


def test_a_collapsed_start_is_named(command: Command) -> None:
    start = "model.init={kind: uniform, range: 1e-30}"
    outcome = command("inspect", RECIPES / "language_model" / "base.yaml", *TINY, start, "--output", "json")
    found = json.loads(outcome.out, parse_constant=pytest.fail)
    assert (outcome.code, found["task"], found["languages"]) == (0, "language_model", {"text": "en"})
    assert found["start"]["collapsed"] == ["decoder"]
    assert list(found["start"]["parts"]) == ["decoder", "gradient"]
    without_dropout = ["model.dropout=0.0", "model.attention_dropout=0.0", "model.ffn_dropout=0.0"]
    outcome = command("inspect", RECIPES / "language_model" / "base.yaml", *TINY, *without_dropout, "--output", "json")
    assert json.loads(outcome.out, parse_constant=pytest.fail)["start"]["parts"]["decoder"]["signal"] is None


def test_a_recipe_has_the_vocabularies_and_parameters_of_its_model(command: Command, project: Path) -> None:
    trained = describe(project / "run" / "best")
    outcome = command("inspect", project / "recipe.yaml", f"data.folder={project / 'dataset'}", "--output", "json")
    found = json.loads(outcome.out)
    assert found["vocabularies"]["from"] == f"of the dataset {project / 'dataset'}"
    assert found["vocabularies"]["sizes"] == {side: v["size"] for side, v in trained["vocabularies"].items()}
    assert (found["parameters"], found["parts"]) == (trained["parameters"], trained["parts"])
    for override, target, origin in (
        ("data.subwords.size=60", 60, "as the recipe asks; there is no dataset yet"),
        ("data.subwords={kind: subword_nmt, merges: 70}", 70, "as the recipe asks; there is no dataset yet"),
        ("data.tokenizer=elsewhere", 50, "assumed; elsewhere is not read"),
    ):
        outcome = command(
            "inspect", project / "recipe.yaml", "data.folder=none", override, "--quick", "--output", "json"
        )
        found = json.loads(outcome.out)
        assert (found["vocabularies"]["sizes"]["target"], found["vocabularies"]["from"]) == (target, origin)
        assert found["start"] is None


def test_a_recipe_of_vectors_needs_none(command: Command) -> None:
    recipe = RECIPES / "continuous" / "ladder" / "random.yaml"
    words = ["data.subwords.size=20", "data.folder=none"]
    found = json.loads(command("inspect", recipe, *words, "--output", "json").out)
    wider = json.loads(command("inspect", recipe, *words, "data.subwords.vectors.random=129", "--output", "json").out)
    assert found["start"]["collapsed"] == [] and wider["parameters"] > found["parameters"]


def test_what_is_no_recipe_is_one_line(command: Command, project: Path, tmp_path: Path) -> None:
    recipe = project / "recipe.yaml"
    (tmp_path / "bad.yaml").write_bytes(b"a: [")
    (tmp_path / "model.txt").write_bytes(b"")
    for arguments, code, message in (
        ([recipe, "model.widht=3"], 2, "did you mean width?"),
        ([recipe, "model.width"], 2, "not of the form key.sub=value"),
        ([recipe, "--rows", "3"], 2, "--rows"),
        (["bad.yaml"], 2, "not valid YAML"),
        (["none.yaml"], 1, "none.yaml: recipe not found"),
        (["model.txt"], 1, "model, dataset or run folder, or a recipe (.yaml) expected, but this is a file"),
        (
            [project / "run", "model.width=3"],
            2,
            f"KEY=VALUE is for a recipe (.yaml); {project / 'run'} is a run folder",
        ),
        ([project / "dataset", "--rows", "50"], 2, "--rows is for a recipe (.yaml)"),
        ([project / "dataset", "--seed", "0"], 2, "--seed is for a recipe (.yaml)"),
    ):
        outcome = command("inspect", *arguments)
        assert outcome.code == code and message in outcome.err, (arguments, outcome)
        assert outcome.is_one_line_of("inspect"), outcome


def test_doctor_names_every_extra_that_a_command_needs() -> None:
    """All of pyproject.toml but those for work on the project itself, its pages and its comparisons."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev", "docs", "notebooks", "peers"}


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


def test_doctor_says_how_rivals_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(pl_lanes=lambda number: number < 2, pl_has_farthest=lambda: 0)
    monkeypatch.setattr("phraseloom.native.library.load", lambda: library)
    says = "generic, avx2; kernels: auto takes avx2; rivals of max-margin losses are found "
    assert doctor.native_kernels().text == says + "in eager torch (no AVX-512 VNNI)"
    library.pl_has_farthest = lambda: 1
    assert doctor.native_kernels().text == says + "by products of bytes"


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
