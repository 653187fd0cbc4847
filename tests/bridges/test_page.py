"""docs/bridges.md: its commands on a folder that transformers wrote, and its Python, as they stand there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bridges import marian
from tests.docs.pages import ROOT, blocks

from phraseloom.cli.main import run

pytest.importorskip("transformers", reason=marian.REASON)
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'phraseloom[ctranslate2]'")
PAGE = (ROOT / "docs" / "bridges.md").read_bytes().decode()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    marian.write_folder(Path("opus-mt-en-de"))
    lines = [line.strip() for line in PAGE.split("\n") if line.startswith("    phraseloom convert")]
    assert len(lines) == 3
    for line in lines:
        assert run(shlex.split(line)[1:]) == 0, line
        assert shlex.split(line)[4] in capsys.readouterr().out
        assert run(shlex.split(line)[1:]) == 2, "the folder is there already"
        assert "not empty" in capsys.readouterr().err
        assert run([*shlex.split(line)[1:], "--overwrite"]) == 0
    assert run(["inspect", "en-de"]) == 0
    assert "swish" in capsys.readouterr().out
    shutil.rmtree("opus-mt-en-de")
    assert run(["convert", "from-marian", "opus-mt-en-de", "other"]) == 1
    assert "MarianMT folder not found" in capsys.readouterr().err and not Path("other").exists()


def test_the_python(tmp_path: Path) -> None:
    code = [block.text for block in blocks(PAGE) if block.language == "python"]
    assert len(code) == 1
    done = subprocess.run([sys.executable, "-c", code[0]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["equal at first: True", "trained: [[0, 8, 7, 6, 5, 1]]", "loaded: True", ""]
