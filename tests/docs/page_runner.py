"""Run the commands of a page, one after the other, as a reader would who copies them line by line."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, SHELLS, blocks, is_command, logical_lines

from phraseloom.cli.main import run


def shell_lines(page: Path) -> Iterator[str]:
    """The lines of the shell blocks of a page that are commands, comments taken off."""
    for block in blocks(page.read_bytes().decode()):
        if block.language is None or block.language in SHELLS:
            for _, line in logical_lines(block):
                if is_command(line):
                    yield line.removeprefix("$ ").partition("    #")[0].rstrip()


def in_bash(line: str, folder: Path) -> str:
    """Run a line by bash, with the installed `phraseloom` on the PATH; what it printed, both streams."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    words = ["bash", "-o", "pipefail", "-c", line]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, check=False)
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, f"{line}\n{said[-3000:]}"
    return said


def in_process(
    line: str, folder: Path, more: Mapping[str, Sequence[str]], capture: pytest.CaptureFixture[bytes]
) -> str:
    """Run a line here, with `more` options for its verb, if it is one `phraseloom` command, with files or an `echo` as
    its standard input and output; any other line by bash. What it printed."""
    words = shlex.split(line)
    given = None
    if words[0] == "echo" and words[2:4] == ["|", "phraseloom"]:
        given, words = folder / "echo.txt", words[3:]
        given.write_bytes(f"{shlex.split(line)[1]}\n".encode())
    if words[0] != "phraseloom" or "|" in words:
        assert "phraseloom" not in words, f"a pipe that this test does not know: {line}"
        return in_bash(line, folder)
    files = {}
    for sign in ("<", ">"):
        if sign in words:
            at = words.index(sign)
            files[sign] = folder / words[at + 1]
            del words[at : at + 2]
    capture.readouterr()
    with pytest.MonkeyPatch.context() as patch, Path(given or files.get("<", "/dev/null")).open("rb") as stream:
        patch.setattr("sys.stdin", io.TextIOWrapper(stream))
        code = run([*words[1:], *more.get(words[1], ())])
    out, err = capture.readouterr()
    assert code == 0, f"{line}\n{err.decode()[-3000:]}"
    if ">" in files:
        files[">"].write_bytes(out)
    return (out + err).decode()


def working_folder(folder: Path) -> Path:
    """A folder that looks like the project's to a command: with its recipes."""
    (folder / "recipes").symlink_to(ROOT / "recipes", target_is_directory=True)
    return folder
