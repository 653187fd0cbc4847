"""A small project (text, recipe, dataset, run) made once by the real commands, for the tests of the verbs."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.helpers import HANGS

from phraseloom.cli.main import run

RECIPE = """\
format: 1
name: toy
data:
  folder: dataset
  source_language: en
  target_language: de
  train: [{source: train.en, target: train.de}]
  valid: [{source: valid.en, target: valid.de}]
  subwords: {kind: sentencepiece, model: bpe, size: 50, joint: true, byte_fallback: false}
  processes: 1
model:
  width: 8
  heads: 2
  ffn_width: 16
  encoder: {kind: transformer, layers: 1}
  decoder: {kind: transformer, layers: 1}
training: {batch_tokens: 200, max_updates: 4, checkpoint_every: 2, processes: 1}
"""


def phraseloom(
    *arguments: str | Path, cwd: Path, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """The real command in a process of its own."""
    command = [sys.executable, "-m", "phraseloom", *map(str, arguments)]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, env=variables, check=False, timeout=HANGS)


@dataclass
class Outcome:
    """What a command line did."""

    code: int
    out: str
    err: str

    def is_one_line_of(self, verb: str) -> bool:
        """Whether standard error is the one line of a foreseen error, and standard output is empty."""
        one = self.err.endswith("\n") and self.err.count("\n") == 1
        return one and self.err.startswith(f"phraseloom {verb}: ") and "internal error" not in self.err and not self.out


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run a command line in this process, in an empty folder: `command("evaluate", path, stdin=b"…")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHRASELOOM_DEBUG", raising=False)

    def call(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return call


def write_text(folder: Path) -> None:
    """Parallel text of a few words: train 120, valid 12 pairs."""
    rng = random.Random(1)
    words = {
        "a": "ein",
        "dog": "hund",
        "cat": "katze",
        "runs": "rennt",
        "sleeps": "schläft",
        "red": "rot",
        "here": "hier",
    }
    for name, pairs in (("train", 120), ("valid", 12)):
        lines = [rng.choices(list(words), k=rng.randint(1, 9)) for _ in range(pairs)]
        (folder / f"{name}.en").write_bytes("".join(" ".join(line) + "\n" for line in lines).encode())
        german = [" ".join(words[w] for w in line) + "\n" for line in lines]
        (folder / f"{name}.de").write_bytes("".join(german).encode())
    (folder / "recipe.yaml").write_bytes(RECIPE.encode())


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, `recipe.yaml`, `dataset` and the finished run `run`. Copy it before changing anything."""
    folder = tmp_path_factory.mktemp("project")
    write_text(folder)
    for arguments in (("prepare", "recipe.yaml"), ("train", "recipe.yaml", "--run", "run")):
        done = phraseloom(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr.decode()
    return folder
