"""docs/phrases.md: its commands run one after the other as they stand (more of it: `tests/cli/test_phrases_tools.py`)."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path

import pytest

from phraseloom.cli.main import load_verb, run
from phraseloom.phrases.sample import CATEGORIES

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "phrases.md").read_bytes().decode()
COMMANDS = re.findall(r"^    phraseloom (.+)$", PAGE, re.MULTILINE)
WORDS = {
    "Lebensqualität": "quality of life", "gefährdet": "at risk", "heute": "today", "morgen": "tomorrow", "zählt": "counts",
    "sinkt": "falls", "die": "the", "unsere": "our", "ist": "is", "Katze": "cat", "Hund": "dog",
}  # fmt: skip


def write(name: str, lines: list[str]) -> None:
    Path(name).write_bytes("".join(line + "\n" for line in lines).encode())


def pairs(number: int, seed: int) -> tuple[list[str], list[str]]:
    """Sentences without order, the English ones word by word."""
    chance = random.Random(seed)
    german = [chance.sample(list(WORDS), chance.randint(2, 5)) for _ in range(number)]
    return [" ".join(line) + "." for line in german], [" ".join(map(WORDS.__getitem__, line)) + "." for line in german]


def run_line(line: str, capsysbinary: pytest.CaptureFixture[bytes]) -> str:
    """Run a command with its > FILE, as a shell would; what it said on standard error."""
    words = shlex.split(line)
    target = words.pop() if ">" in words else None
    words = words[:-1] if target is not None else words
    capsysbinary.readouterr()
    assert run(words) == 0, (line, capsysbinary.readouterr().err)
    out, err = capsysbinary.readouterr()
    if target is not None:
        Path(target).write_bytes(out)
    return err.decode()


def test_the_commands_run_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, number in (("train", 300), ("test", 20)):
        for language, lines in zip(("de", "en"), pairs(number, number), strict=True):
            write(f"{name}.raw.{language}", lines)
            write(f"{name}.{language}", [line.replace(".", " .") for line in lines] if name == "test" else [])
    write("news.en", ["the quality of life counts ."])
    for system in ("system.en", "base.en", "new.en"):
        write(system, pairs(20, 20)[1])
    said = {}
    for line in COMMANDS:
        if line.startswith("translate"):
            known = {option for parameter in load_verb("translate").params for option in parameter.opts}
            assert set(re.findall(r"(?<= )--[\w-]+", line)) <= known
            output = line.rpartition("> ")[2]
            words = [sentence.replace(".", " .") for sentence in pairs(20, 20)[1]]
            tokens = [sentence.replace("quality of life", "quality_of_life").split() for sentence in words]
            rows = [{"text": w, "words": w.split(), "tokens": t} for w, t in zip(words, tokens, strict=True)]
            write(output, list(map(json.dumps, rows)) if output.endswith(".jsonl") else words)
        else:
            said[line.partition(" -s")[0]] = run_line(line, capsysbinary)
    assert {"quality of life", "at risk"} <= {row.split("\t")[0] for row in Path("phrases.tsv").read_text().split("\n")}
    assert Path("news.joined.en").read_text() == "the quality_of_life counts .\n"
    assert "quality_of_life" in Path("train.joined.en").read_text()
    numbers = [int(row) for row in Path("mwt/lines.txt").read_text().split()]
    assert 0 < len(numbers) < 20 and Path("test-mwt/lines.txt").read_text().split() == list(map(str, numbers))
    raw = Path("test.raw.en").read_text().split("\n")
    assert Path("mwt/test.raw.en").read_text() == "".join(raw[n - 1] + "\n" for n in numbers)
    assert "in the reference: exact 100.0%" in said["phrases sample"]
    assert json.loads(Path("counts.json").read_bytes())["judged"] == 0


def test_the_categories_of_a_sheet() -> None:
    (row,) = re.findall(r"^\| `category` \|.*$", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row)[1:] == list(CATEGORIES)
