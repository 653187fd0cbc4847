"""Slow commands print a line on a terminal before they import torch, and nothing into a log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import SMALLEST_RECIPE

from phraseloom.cli import streams

CODE = """
import sys
from phraseloom.cli.main import run
class Terminal:
    def isatty(self): return True
    def flush(self): pass
    def write(self, text):
        slow = [name for name in ("torch", "gensim", "numpy.random") if name in sys.modules]
        print(text.strip(), slow)
        sys.stdout.flush()
        raise SystemExit(0)
sys.stderr = Terminal()
run(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("translate runs/mine", "phraseloom translate: loading runs/mine … []"),
        ("train r.yaml", "phraseloom train: toy: loading torch and the dataset d … []"),
        ("world w --train 40", "phraseloom world: writing 40 training pairs to w … []"),
        ("explain runs/mine -s a.en -o page.html", "phraseloom explain: loading runs/mine … []"),
        ("report runs/mine -o page.html", "phraseloom report: reading runs/mine … []"),
        ("align train -s a.en -t a.de -o aligner", "phraseloom align train: reading a.en and a.de … ["),
        ("embeddings train a.en -o a.vec", "phraseloom embeddings train: reading a.en … ["),
    ],
)
def test_the_first_line_comes_before_slow_imports(line: str, first: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(SMALLEST_RECIPE.encode())
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_bytes(b"a b c\n")
    command = [sys.executable, "-c", CODE, *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.stdout.startswith(first), done.stdout + done.stderr[-1000:]
    assert "torch" not in done.stdout.rpartition("…")[2]


def test_a_log_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    streams.first_sign("train", "x")
    assert capsys.readouterr().err == ""
