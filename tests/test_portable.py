"""What other systems lack: without `fcntl` and the flags of Unix the program starts, and filelock locks folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phraseloom import files

WINDOWS = "import os, sys\nsys.modules['fcntl'] = None\ndel os.O_NONBLOCK, os.O_CLOEXEC\n"
HOLD = f"""{WINDOWS}
from phraseloom.files import FolderLock
with FolderLock(sys.argv[1]) as lock:
    lock.check()
    print("held", flush=True)
    sys.stdin.read()
"""


def python(code: str, *words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")


def test_commands_start_and_read_files(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"name: toy\nbase: none.yaml\n")
    code = f"{WINDOWS}from phraseloom.cli.main import run\nsys.exit(run(['prepare', sys.argv[1]]))"
    process = python(code, str(tmp_path / "r.yaml"))
    _, err = process.communicate()
    assert process.returncode == 2 and "r.yaml:2: the recipe names base none.yaml" in err


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    first = python(HOLD, folder)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    _, err = python(HOLD, folder).communicate()
    assert "the folder is in use by another process" in err
    first.communicate()
    out, err = python(HOLD, folder).communicate()
    assert out == "held\n", err


def test_a_moved_folder_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    folder = tmp_path / "run"
    with files.FolderLock(folder) as lock:
        lock.check()
        folder.rename(tmp_path / "moved")
        with pytest.raises(files.LostFolder, match="moved or deleted"):
            lock.check()
        folder.mkdir()
        with pytest.raises(files.LostFolder, match="replaced"):
            lock.check()
