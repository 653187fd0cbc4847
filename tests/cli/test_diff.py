"""`phraseloom diff`: two real runs compared, in text, JSON and HTML."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_run_report import Checker

from phraseloom.analysis import measurements
from phraseloom.analysis.measurements import ScoredRun
from phraseloom.decoding.translator import Translator

from .conftest import Command, phraseloom


@pytest.fixture(scope="module")
def material(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the project and a second one, with another seed and a little longer."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("train.en", "train.de", "valid.en", "valid.de", "dataset", "run"):
        copy = shutil.copytree if (project / name).is_dir() else shutil.copy
        copy(project / name, folder / name, **({"symlinks": True} if name == "run" else {}))
    recipe = (project / "recipe.yaml").read_bytes().decode().replace("max_updates: 4", "max_updates: 6, seed: 7")
    (folder / "second.yaml").write_bytes(recipe.encode())
    done = phraseloom("train", "second.yaml", "--run", "second", cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.fixture
def diff(material: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(material)
    return lambda *arguments: command("diff", *arguments)


TEXTS = ("-s", "valid.en", "-r", "valid.de", "--bootstrap", "9")


def test_recipes_and_curves(diff: Any) -> None:
    done = diff("run", "second")
    assert (done.code, done.err) == (0, ""), done.err
    rows = [line.split() for line in done.out.split("\n")]
    assert ["training.seed", "1", "7"] in rows
    assert ["training.max_updates", "4", "6"] in rows
    assert "Data: the same" in done.out
    assert "120 pairs" in done.out
    assert "Validation perplexity by update" in done.out
    assert "Scores" not in done.out


def test_sentences_in_three_forms(diff: Any, material: Path, tmp_path: Path) -> None:
    arguments = ("run", "second", *TEXTS, "--sentences", "3", "--alignments")
    text = diff(*arguments).out
    for name in ("d.json", "d.html", "d.txt"):
        assert diff(*arguments, "-o", tmp_path / name).code == 0
    assert (tmp_path / "d.txt").read_bytes().decode() == text
    found = json.loads((tmp_path / "d.json").read_bytes())
    page = "".join(Checker((tmp_path / "d.html").read_bytes().decode()).texts)
    listed = found["sentences"]["listed"]
    assert 1 <= len(listed) <= 3
    gaps = [abs(one["chrf_difference"]) for one in listed]
    assert gaps == sorted(gaps, reverse=True)
    for one in listed:
        assert f"line {one['line']}:" in text
        assert f"Line {one['line']}" in page
    (score,) = Translator.from_pretrained(material / "run").score([listed[0]["source"]], [listed[0]["reference"]])
    assert listed[0]["systems"][0]["log_prob"] == pytest.approx(score.log_prob)


def test_by_log_probability(diff: Any, tmp_path: Path) -> None:
    assert diff("run", "second", *TEXTS, "--by", "log-prob", "-o", tmp_path / "d.json").code == 0
    listed = json.loads((tmp_path / "d.json").read_bytes())["sentences"]["listed"]
    gaps = [abs(one["log_prob_difference"]) for one in listed]
    assert len(gaps) == 10
    assert gaps == sorted(gaps, reverse=True)


def test_a_ranking_that_cannot_be_is_not_replaced_in_silence(
    diff: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of models whose targets are joined text."""

    def unknown(folder: Path, sources: list[str], references: list[str], *options: Any, **more: Any) -> ScoredRun:
        return ScoredRun(references if folder.name == "run" else sources, None, None, "")

    monkeypatch.setattr(measurements, "translate_and_score", unknown)
    done = diff("run", "second", *TEXTS, "--by", "log-prob", "-o", tmp_path / "d.json")
    assert done.code == 0
    assert (
        "warning: sentences are ranked by chrf, not by log-prob: the targets of the model are joined text" in done.err
    )
    assert diff("run", "second", *TEXTS, "-o", tmp_path / "e.json").err == ""


def test_without_a_reference(diff: Any, tmp_path: Path) -> None:
    assert diff("run", "second", "-s", "valid.en", "-o", tmp_path / "d.json").code == 0
    found = json.loads((tmp_path / "d.json").read_bytes())
    assert found["scores"] is None
    assert found["sentences"]["log_prob_of"] == "own translation"


def test_translations_that_are_given(diff: Any, tmp_path: Path) -> None:
    given = ("--outputs", "run=valid.de", "--outputs", "second=valid.en")
    assert diff("run", "second", "-r", "valid.de", *given, "-o", tmp_path / "d.json").code == 0
    found = json.loads((tmp_path / "d.json").read_bytes())
    assert found["scores"]["systems"][0]["scores"]["BLEU"]["value"] == pytest.approx(100)
    assert found["sentences"]["better"][1] == 0


def test_translations_of_a_run_without_a_checkpoint_are_used(diff: Any, material: Path, tmp_path: Path) -> None:
    """The other run translates; log P of the first is said to be missing. Without its translations, nothing is compared."""
    young = tmp_path / "young"
    shutil.copytree(material / "run", young, ignore=shutil.ignore_patterns("checkpoints", "best", "last"))
    arguments = (young, "second", *TEXTS, "--alignments", "-o", tmp_path / "d.json", "--overwrite")
    assert diff(*arguments, "--outputs", "young=valid.de").code == 0
    found = json.loads((tmp_path / "d.json").read_bytes())
    assert found["scores"]["systems"][0]["scores"]["BLEU"]["value"] == pytest.approx(100)
    first, second = found["sentences"]["listed"][0]["systems"]
    assert (first["log_prob"], first["phrases"]) == (None, None) and second["log_prob"] < 0
    lacks = {(lack["system"], lack["what"]) for lack in found["lacks"]}
    assert {("young", "log P"), ("young", "phrase alignments")} <= lacks and ("young", "translations") not in lacks
    assert diff(*arguments).code == 0
    found = json.loads((tmp_path / "d.json").read_bytes())
    assert found["sentences"] is None and ("young", "translations", "there is no checkpoint yet") in {
        (lack["system"], lack["what"], lack["why"]) for lack in found["lacks"]
    }


def test_a_run_with_itself_has_no_difference(diff: Any, material: Path, tmp_path: Path) -> None:
    shutil.copytree(material / "run", tmp_path / "copy", symlinks=True)
    assert diff("run", tmp_path / "copy", *TEXTS, "-o", tmp_path / "d.json").code == 0
    found = json.loads((tmp_path / "d.json").read_bytes())
    assert found["configuration"]["different"] == []
    assert found["sentences"]["listed"] == []
    assert found["sentences"]["same_translation"] == found["sentences"]["sentences"]
    assert all(row["difference"] == 0 for curve in found["curves"] for row in curve["rows"])


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "one run": (("run",), 2, "RUN2"),
    "the same": (("run", "run"), 2, "given twice"),
    "no run": (("run", "dataset"), 1, "dataset"),
    "nowhere": (("run", "nowhere"), 1, "nowhere"),
    "stranger": (("run", "second", "--outputs", "third=valid.de"), 2, "third"),
    "one output": (("run", "second", "--outputs", "run=valid.de"), 2, "those of both"),
    "reference alone": (("run", "second", "-r", "valid.de"), 2, "--source"),
    "log-prob": (("run", "second", "--by", "log-prob", "-s", "valid.en"), 2, "--reference"),
    "ending": (("run", "second", "-o", "d.pdf"), 2, ".html"),
    "not parallel": (("run", "second", "-s", "valid.en", "-r", "train.de"), 1, "train.de"),
    "short output": (("run", "second", "-s", "valid.en", "--outputs", "run=train.de"), 1, "train.de"),
    "unequal outputs": (("run", "second", "--outputs", "run=valid.de", "--outputs", "second=train.de"), 1, "train.de"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_one_line(name: str, diff: Any) -> None:
    arguments, code, said = WRONG[name]
    done = diff(*arguments)
    assert (done.code, done.is_one_line_of("diff")) == (code, True), done.err
    assert said in done.err


def test_earlier_work_is_not_overwritten(diff: Any, tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_bytes(b"mine")
    assert diff("run", "second", "-o", tmp_path / "d.txt").code == 2
    assert (tmp_path / "d.txt").read_bytes() == b"mine"
    assert diff("run", "second", "-o", tmp_path / "d.txt", "--overwrite").code == 0
