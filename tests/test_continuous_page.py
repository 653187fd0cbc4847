"""docs/continuous_output.md: its commands step by step run as they stand, from raw text to a score on the multi-word subset."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import HANGS
from tests.test_phrases_page import pairs, write

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "continuous_output.md").read_bytes().decode()
SECTION = PAGE[PAGE.index("### The same, step by step") :].split("\n## ")[0]
COMMANDS = [line.strip() for line in SECTION.splitlines() if line.startswith("    ")]
# What makes the commands of the page quick; nothing of what they show is in here.
QUICK = {
    "embeddings train": "--width 12 --sample 0.01 --epochs 3 --min-count 1",
    "prepare": "data.subwords.min_frequency=1 data.processes=1",
    "train recipes": "model.width=16 training.max_updates=4 training.checkpoint_every=2 training.processes=1 "
    "data.subwords.min_frequency=1 data.processes=1",
    "fertility train": "--widths 4 --epochs 2",
}


def test_the_section_runs(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    for name, number in (("train", 300), ("valid", 20), ("test", 20)):
        for language, lines in zip(("de", "en"), pairs(number, number), strict=True):
            write(str(tmp_path / f"{name}.{language}"), lines)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    script = "\n".join(COMMANDS)
    for verb, more in QUICK.items():
        assert f"phraseloom {verb}" in script
        script = re.sub(rf"(phraseloom {verb}\b[^\n]*)", rf"\1 {more}", script)
    script = script.replace("phraseloom ", f"{sys.executable} -m phraseloom ").replace("--min-count 2 ", "")
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, check=False, timeout=HANGS)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert "BLEU" in done.stdout.decode()
    outputs = (tmp_path / "pconmt.en").read_bytes().decode().splitlines()
    assert len(outputs) == 20 and not any("_" in line for line in outputs)
    assert (tmp_path / "pconmt-fertility2" / "fertility.json").is_file()
