"""Training and translating do not wait two seconds for a compiler that they do not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import HANGS

CODE = """
import sys
from phraseloom.cli.main import run
code = run(sys.argv[1:])
print(sorted({"torch._dynamo", "sympy"} & sys.modules.keys()), file=sys.stderr)
sys.exit(code)
"""
ATTENTION = ["model.attention=queryk heterogeneous 1-2"]
LSTM = ["model.encoder={kind: recurrent, layers: 1}", "model.decoder={kind: recurrent, layers: 1}"]


def run(folder: Path, *arguments: str | Path, stdin: str = "") -> str:
    """The last line of standard error: the modules that were imported."""
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, text=True, encoding="utf-8", check=False, timeout=HANGS
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("changes", [ATTENTION, pytest.param(LSTM, marks=pytest.mark.full)], ids=["phrasal", "lstm"])
def test_training_and_translating_import_no_compiler(changes: list[str], project: Path, tmp_path: Path) -> None:
    made = run(project, "train", "recipe.yaml", "--run", tmp_path / "run", "training.max_updates=2", *changes)
    assert made == "[]"
    assert run(project, "translate", tmp_path / "run", stdin="a dog runs\n") == "[]"
