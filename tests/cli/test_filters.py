"""The verbs that read lines and write lines, one line out per line in, quiet ends, any locale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import HANGS

from .conftest import Command, Outcome, phraseloom

LINES = ["a dog runs", "", "   ", "red cat sleeps here", "x\u2028y\x85z", "a\rb", "schläft |||  @@ </s>", "dog\t cat"]
PAIRS = [line.replace("\t", " ") + "\t" + line.replace("\t", " ") for line in LINES]
FILTERS = {
    "translate": (["translate", "run", "--beam", "2"], LINES),
    "translate json": (["translate", "run", "--output", "json", "--beam", "2"], LINES),
    "score": (["score", "run"], PAIRS),
    "subwords apply": (["subwords", "apply", "dataset"], LINES),
    "subwords undo": (["subwords", "undo", "dataset"], LINES),
    "tokenize": (["tokenize", "-l", "en"], LINES),
    "tokenize undo": (["tokenize", "-l", "en", "--undo"], LINES),
}


def encoded(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


# Each process imports torch: the plain forms are tested always, the others by make test-full.
SOME = [n if n in ("translate", "subwords apply") else pytest.param(n, marks=pytest.mark.full) for n in FILTERS]


def call(name: str, command: Command, project: Path, stdin: bytes) -> Outcome:
    """The filter in this process."""
    verb, *rest = FILTERS[name][0]
    places = [str(project / a) if (project / a).exists() else a for a in rest]
    return command(verb, *places, stdin=stdin)


@pytest.mark.parametrize("name", FILTERS)
def test_one_line_out_per_line_in(name: str, project: Path, command: Command) -> None:
    lines = FILTERS[name][1]
    outcome = call(name, command, project, encoded(lines))
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == len(lines)
    assert outcome.out.endswith("\n")


@pytest.mark.parametrize("name", FILTERS)
def test_nothing_in_nothing_out(name: str, project: Path, command: Command) -> None:
    outcome = call(name, command, project, b"")
    assert (outcome.code, outcome.out) == (0, "")


@pytest.mark.parametrize("name", SOME)
def test_the_same_bytes_in_every_locale(name: str, project: Path, command: Command) -> None:
    arguments, lines = FILTERS[name]
    here = call(name, command, project, encoded(lines))
    done = phraseloom(*arguments, cwd=project, stdin=encoded(lines), LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout.decode()) == (0, here.out), done.stderr.decode()


@pytest.mark.parametrize("name", SOME)
def test_a_reader_that_leaves_is_no_error(name: str, project: Path) -> None:
    """`… | head -1` (reliability O1): no traceback, nothing on standard error, an exit code that is not 0."""
    arguments, lines = FILTERS[name]
    command = [sys.executable, "-m", "phraseloom", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=project, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(encoded(lines * 40), timeout=HANGS)
    assert b"Traceback" not in err
    assert b"Broken pipe" not in err
    assert process.returncode == 141, err.decode()
