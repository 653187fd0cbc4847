"""Standard streams that the caller closed, and what is said of awkward input (docs/decoding.md, "Lines")."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.helpers import HANGS

LINES = b"a dog\xff\na red cat\n"


def shell(redirections: str, *arguments: str | Path, stdin: bytes = LINES) -> subprocess.CompletedProcess[bytes]:
    """The real command, started by a shell that may close streams."""
    line = f'"$0" -m phraseloom "$@" {redirections}'
    command = ["sh", "-c", line, sys.executable, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, check=False, timeout=HANGS)


def test_warnings_never_go_to_standard_output(project: Path) -> None:
    done = shell("2>&-", "translate", project / "run", "--beam", "1")
    assert done.returncode == 0 and done.stdout.count(b"\n") == 2 and not done.stderr
    done = shell("2>&-", "translate", project / "none")
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize(
    ("redirections", "message"),
    [
        (">&-", b"standard output is closed"),
        pytest.param("<&-", b"standard input is closed", marks=pytest.mark.full),
        pytest.param(">&- <&-", b"is closed", marks=pytest.mark.full),
    ],
)
def test_a_closed_stream_that_is_used_is_named(project: Path, redirections: str, message: bytes) -> None:
    done = shell(redirections, "translate", project / "run", "--beam", "1")
    assert done.returncode == 1 and done.stdout == b""
    assert message in done.stderr and done.stderr.count(b"\n") == 1 and b"internal error" not in done.stderr


def test_a_closed_stream_that_is_not_used_does_not_matter() -> None:
    done = shell("<&- 2>&-", "--version")
    assert done.returncode == 0 and done.stdout.startswith(b"phraseloom ")


def test_what_the_reader_changed_is_one_warning(command: Command, project: Path) -> None:
    done = command("translate", project / "run", "--beam", "1", stdin=b"\xef\xbb\xbfa\r\ndog\0\na\xff\n")
    assert done.code == 0 and done.out.count("\n") == 3
    (warning,) = [line for line in done.err.splitlines() if "input:" in line]
    for part in (r"1 line ended by \r\n", "1 byte order mark", "1 line with NUL", "1 line with invalid UTF-8"):
        assert part in warning
    assert "input" not in command("translate", project / "run", "--beam", "1", stdin=b"a\n").err
