"""docs/continuous_output.md: its commands step by step run as they stand, from raw text to a score on the multi-word subset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page_runner import in_process, working_folder
from tests.test_phrases_page import pairs, write

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "continuous_output.md").read_bytes().decode()
SECTION = PAGE[PAGE.index("### The same, step by step") :].split("\n## ")[0]
COMMANDS = [line.strip() for line in SECTION.splitlines() if line.startswith("    ")]
# What makes the commands of the page quick; nothing of what they show is in here.
QUICK = {
    "embeddings": "--width 12 --sample 0.01 --epochs 3 --min-count 1",
    "prepare": "data.subwords.min_frequency=1 data.processes=1",
    "train": "model.width=16 training.max_updates=4 training.checkpoint_every=2 training.processes=1 "
    "data.subwords.min_frequency=1 data.processes=1",
    "fertility": "--widths 4 --epochs 2",
}


def single(line: str) -> Iterator[str]:
    """The commands of a line, which may be a loop over `$p`."""
    loop = re.fullmatch(r"for p in ([\w ]+); do (.+); done", line)
    for name in loop[1].split() if loop else [""]:
        for command in (loop[2] if loop else line).split("; "):
            yield command.replace("$p", name).replace("--min-count 2", "")


def test_the_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    pytest.importorskip("gensim")
    monkeypatch.chdir(working_folder(tmp_path))
    for name, number in (("train", 300), ("valid", 20), ("test", 20)):
        for language, lines in zip(("de", "en"), pairs(number, number), strict=True):
            write(str(tmp_path / f"{name}.{language}"), lines)
    commands = [command for line in COMMANDS for command in single(line)]
    assert len(commands) == 22 and {command.split()[1] for command in commands} >= QUICK.keys()
    more = {verb: options.split() for verb, options in QUICK.items()}
    said = [in_process(command, tmp_path, more, capsysbinary) for command in commands]
    assert "BLEU" in said[-1]
    outputs = (tmp_path / "pconmt.en").read_bytes().decode().splitlines()
    assert len(outputs) == 20 and not any("_" in line for line in outputs)
    assert (tmp_path / "pconmt-fertility2" / "fertility.json").is_file()
