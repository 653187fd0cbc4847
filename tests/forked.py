"""Processes that begin with torch and phraseloom imported: a server imports them once and forks.

An import of torch takes longer than most of the commands that tests run. What depends on a fresh start (streams, signals, what
is imported when) is tested in processes of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from phraseloom.parent import PARENT

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",  # which counting FLOP imports
        "phraseloom.cli.main",
        "phraseloom.decoding.translator",
        "phraseloom.models.flops",
        "phraseloom.models.store",
        "phraseloom.training.run",
    ]
)


def _run(words: list[str], cwd: str, environment: dict[str, str], streams: tuple[str, ...]) -> None:
    """What the interpreter does with `[-W error] (-m MODULE | FILE) …`."""
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND), number)
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop(PARENT, None)  # the parent of this process is the server
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        del words[:2]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


class Popen:
    """What is used here of `subprocess.Popen`: a command of this interpreter, which adds to its output files."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: IO[bytes] | int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
        start_new_session: bool = True,
        cwd: Path | None = None,
    ) -> None:
        assert command[0] == sys.executable and start_new_session
        taken = os.devnull if isinstance(stdin, int) else stdin.name
        streams = tuple(str(Path(name).absolute()) for name in (taken, stdout.name, stderr.name))
        self._process = SERVER.Process(target=_run, args=([*command[1:]], str(cwd or Path.cwd()), {**env}, streams))
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], work: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of this interpreter to its end. Its output goes to files in `work` before it is read."""
    with (work / "out.txt").open("wb") as out, (work / "err.txt").open("wb") as err:
        code = Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd).wait()
    return subprocess.CompletedProcess(command, code, *((work / name).read_text() for name in ("out.txt", "err.txt")))
