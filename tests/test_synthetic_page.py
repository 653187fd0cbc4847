"""docs/synthetic_data.md: its commands on Multi30k work in their order, on a few sentences of the built-in pair."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from phraseloom.cli.main import run
from phraseloom.recipe import load_recipe
from tests.docs.page_runner import in_process, shell_lines, working_folder

ROOT = Path(__file__).resolve().parents[1]
PAIRS = 60
SIZE = ["model.width=16", "model.heads=2", "model.ffn_width=16", "model.encoder.layers=1", "model.decoder.layers=1"]
MORE = {
    "prepare": ["data.subwords.size=150"],
    "train": [
        *SIZE,
        "training.max_updates=2",
        "training.checkpoint_every=2",
        "training.batch_tokens=200",
        "training.processes=1",
    ],
    "translate": ["--max-length", "1,5"],
}


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    monkeypatch.chdir(working_folder(tmp_path))
    world = ["world", "world", "--train", str(PAIRS + 20), "--valid", "10", "--test", "10"]
    assert run(world) == 0
    (tmp_path / "DATA" / "multi30k").mkdir(parents=True)
    for split, name in (("train", "train"), ("valid", "val")):
        for side in ("en", "de"):
            text = (tmp_path / "world" / f"{split}.{side}").read_bytes()
            (tmp_path / "DATA" / "multi30k" / f"{name}.{side}.gz").write_bytes(gzip.compress(text))
    for line in shell_lines(ROOT / "docs" / "synthetic_data.md"):
        if "tatoeba" not in line and "reproduce" not in line:
            small = line.replace("-n 10000", f"-n {PAIRS}").replace("+10001", f"+{PAIRS + 1}")
            in_process(small.replace("--min-score -1.5", "--min-score -50"), tmp_path, MORE, capsysbinary)
    counts = {p.name: len(p.read_text().splitlines()) for p in (tmp_path / "DATA" / "synthetic").iterdir()}
    assert counts == {"real.en": PAIRS, "real.de": PAIRS, "mono.de": 20, "back.en": 20, "distilled.de": PAIRS}
    runs = {"", "-reverse", "-back", "-student", "-distilled"}
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {f"multi30k-10000{end}" for end in runs}
    back = json.loads((tmp_path / "datasets" / "multi30k-10000-back" / "index.json").read_text())
    assert "<bt>" in json.dumps(back), "back-translated pairs are tagged"


def test_every_run_is_trained_before_it_is_used() -> None:
    trained: set[str] = set()
    for line in shell_lines(ROOT / "docs" / "synthetic_data.md"):
        used = set(re.findall(r"runs/([\w-]+)", line))
        if match := re.match(r"phraseloom (prepare|train) (recipes/\S+)", line):
            recipe = load_recipe(ROOT / match[2])
            used |= set(re.findall(r"runs/([\w-]+)", recipe.model_dump_json()))
            if match[1] == "train":
                assert used <= trained, line
                trained.add(recipe.name)
        assert used <= trained, line
