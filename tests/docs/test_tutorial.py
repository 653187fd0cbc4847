"""docs/tutorial.md: every command runs in its order; with small numbers always, as it stands in the long tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.page_runner import in_bash, in_process, shell_lines, working_folder
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
TEXT = PAGE.read_bytes().decode()
TINY = ["model.width=32", "model.ffn_width=32", "model.encoder.layers=1", "model.decoder.layers=1"]
SMALL = {
    "world": ["--train", "400", "--valid", "10", "--test", "10", "--contrastive", "10"],
    "prepare": ["data.subwords.size=700"],
    "train": [
        *TINY, "training.max_updates=4", "training.checkpoint_every=2", "training.processes=1", "training.schedule.warmup=1",
        "training.schedule.updates=99",
    ],
    "evaluate": ["--bootstrap", "20"],
    "report": ["--bootstrap", "20"],
}  # fmt: skip
WRITTEN = ["map.png", "explain.html", "report.html", "spans.txt"]


def check(folder: Path) -> None:
    for name in WRITTEN:
        assert (folder / "tutorial" / name).stat().st_size > 0, name
    for name in ("explain.html", "report.html"):
        page = (folder / "tutorial" / name).read_bytes()
        assert b"phrasal" in page and b"base" in page
    lines = [(folder / "tutorial" / f"{name}.de").read_bytes().count(b"\n") for name in ("base", "phrasal")]
    assert lines[0] == lines[1] > 0


def test_the_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(working_folder(tmp_path))
    lines = list(shell_lines(PAGE))
    verbs = [line.split()[1] for line in lines if line.startswith("phraseloom ")]
    assert {"world", "prepare", "train", "translate", "evaluate", "analyse", "explain", "report"} <= set(verbs)
    for line in lines:
        in_process(line, tmp_path, SMALL, capsysbinary)
    check(tmp_path)


@pytest.mark.full
def test_the_commands_run_as_they_stand(tmp_path: Path) -> None:
    """With the real sizes; the scores that the page shows come out, to what another machine may round differently."""
    working_folder(tmp_path)
    said = {line: in_bash(line, tmp_path) for line in shell_lines(PAGE)}
    check(tmp_path)
    (evaluated,) = (text for line, text in said.items() if line.startswith("phraseloom evaluate"))
    for system in ("base", "phrasal"):
        pattern = rf"^ *BLEU +tutorial/{system}\.de\D*(\d+\.\d+)"
        told, found = (float(re.search(pattern, text, re.MULTILINE)[1]) for text in (TEXT, evaluated))  # type: ignore[index]
        assert found == pytest.approx(told, abs=6.0), system
    (prepared,) = (text for line, text in said.items() if line.startswith("phraseloom prepare"))
    for row in re.findall(r"^    ((?:train|valid|test) +[\d, ]+)$", TEXT, re.MULTILINE):
        assert row in prepared


def test_output_shown_looks_like_that_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The first column of every table on the page is one that the commands print now."""
    from phraseloom.cli.main import run

    monkeypatch.chdir(tmp_path)
    assert run(["world", "w", "--train", "50", "--valid", "5", "--test", "5", "--contrastive", "10"]) == 0
    lines = Path("w/test.de").read_bytes()
    Path("a.de").write_bytes(lines)
    Path("b.de").write_bytes(lines)
    capsysbinary.readouterr()
    assert run(["evaluate", "--reference", "w/test.de", "--bootstrap", "20", "--metrics", "bleu", "a.de", "b.de"]) == 0
    assert run(["analyse", "phenomena", "w", "a.de", "b.de", "--split", "test"]) == 0
    printed = capsysbinary.readouterr().out.decode()
    for head in ("metric  system", "phenomenon  instances  system"):
        (shown,) = re.findall(rf"^    ({head}.*)$", TEXT, re.MULTILINE)
        (now,) = re.findall(rf"^({head}.*)$", printed, re.MULTILINE)
        assert shown.split() == now.split()
