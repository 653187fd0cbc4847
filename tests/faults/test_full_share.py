"""A real file system that is full or read-only: one line that says where and what to do, and nothing that was done is lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from phraseloom.data.prepare import prepare
from phraseloom.options.data import DataConfig
from phraseloom.text.lines import write_lines

NAMESPACE = ["unshare", "--map-root-user", "--mount"]
WORDS = ["the", "a", "old", "new", "house", "dog", "bird", "garden"]


def can_mount(folder: Path) -> bool:
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def test_a_full_and_a_read_only_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    if not can_mount(folder):
        pytest.skip("a file system cannot be mounted here")
    rng = random.Random(1)
    for side in "st":
        write_lines(tmp_path / side, (" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(3000)))
    data = {
        "source_language": "en",
        "target_language": "de",
        "train": [{"source": "s", "target": "t"}],
        "subwords": {"kind": "subword_nmt", "merges": 5},
        "processes": 1,
    }
    recipe = tmp_path / "r.yaml"
    recipe.write_text(json.dumps({"format": 1, "name": "r", "data": data | {"folder": str(folder / "out")}}))
    script = [sys.executable, str(Path(__file__).with_name("full_share.py")), str(folder), str(tmp_path), str(recipe)]
    done = subprocess.run([*NAMESPACE, *script], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for name in ("full", "read-only", "read-only table"):
        code, err = result[name]
        assert code == 1 and err.count("\n") == 1, (name, err)
    assert "train-000000.part: the disk is full (or the quota is used up); free some space" in result["full"][1]
    assert result["after"] == ["out.parts"]
    for name in ("read-only", "read-only table"):
        assert "nothing can be written here: a read-only file system; make it writable" in result[name][1]
    assert result["full lock"] == "locked"  # so that what cannot be written is named, not the lock
    assert result["read-only lock"].startswith("FileProblem: ")
    assert result["read-only lock"].endswith("Read-only file system; make it writable, or choose another folder")
    assert result["again"][0] == 0
    whole = prepare(DataConfig.model_validate(data | {"folder": str(tmp_path / "whole")}), data_root=tmp_path).folder
    assert result["dataset"] == {
        str(p.relative_to(whole)): p.read_bytes().hex() for p in whole.rglob("*") if p.is_file()
    }
