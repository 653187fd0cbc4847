"""`phraseloom phrases parse`: one line out per line in, blank where there is no tree, counted on standard error."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import pytest

from .conftest import Command

FAKE = """\
import sys
for line in sys.stdin:
    if line[0] == "!":
        print("width set to", line.partition("=")[2].strip())
    elif "die" in line:
        sys.exit(1)
    else:
        print("(S (NP " + line.strip() + "))\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `link-parser` on the path that makes every line a noun phrase and dies of some."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "link-parser").write_bytes(f"#!{sys.executable} -IS\n{FAKE}".encode())
    (folder / "link-parser").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.usefixtures("fake")
def test_one_line_out_per_line_in(command: Command) -> None:
    lines = ["The dog", "", "!exit", "they die", "w " * 61, "x\u2028y", "bad \udcff", "end"]
    outcome = command("phrases", "parse", stdin="\n".join(lines).encode("utf-8", "surrogateescape"))
    assert outcome.code == 0
    trees = ["(S (NP The dog))", "", "(S ! (NP exit))", "", "", "(S (NP x y))", "(S (NP bad \ufffd))", "(S (NP end))"]
    assert outcome.out == "".join(tree + "\n" for tree in trees)
    summary, flat, warning = outcome.err.splitlines()
    assert flat == "phraseloom phrases: warning: the first line without a tree is line 4: lost"
    said = "8 lines, 5 trees; 1 blank line; 2 without a tree, 28.57% (1 too long, 1 lost); "
    assert summary.startswith(f"phraseloom phrases: {said}")
    assert re.search(r"; [\d,]+ lines/s$", summary)
    assert "1 line held invalid UTF-8, replaced (first: line 7)" in warning


@pytest.mark.usefixtures("fake")
def test_a_file_and_the_limits(command: Command, tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"one two\none two three\n" * 600))
    for processes in ("1", "2"):
        outcome = command("phrases", "parse", tmp_path / "text.gz", "--max-words", "2", "--processes", processes)
        assert (outcome.code, outcome.out) == (0, "(S (NP one two))\n\n" * 600)
        assert "1,200 lines, 600 trees; 600 without a tree, 50.00% (600 too long)" in outcome.err


@pytest.mark.usefixtures("fake")
def test_lines_in_parts_are_counted(command: Command) -> None:
    outcome = command("phrases", "parse", "--max-words", "3", stdin=b"a b. c d\ndie. c d e\n")
    assert outcome.out == "(S (S (NP a b.)) (S (NP c d)))\n(S (S die.) (S (NP c d e)))\n"
    assert "2 lines parsed in parts, cut at punctuation, 1 part flat\n" in outcome.err
    assert "without a tree is" not in outcome.err


@pytest.mark.usefixtures("fake")
def test_nothing_in_nothing_out(command: Command) -> None:
    outcome = command("phrases", "parse")
    assert (outcome.code, outcome.out) == (0, "")
    assert "0 lines, 0 trees" in outcome.err


def test_a_missing_program_says_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    outcome = command("phrases", "parse", stdin=b"A dog.\n")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.is_one_line_of("phrases")
    assert "apt install link-grammar" in outcome.err


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--processes", "0"], ["--linkages", "x"], ["none.txt"]])
@pytest.mark.usefixtures("fake")
def test_wrong_options(command: Command, arguments: list[str]) -> None:
    outcome = command("phrases", "parse", *arguments)
    assert outcome.code == (1 if arguments == ["none.txt"] else 2)
    assert outcome.is_one_line_of("phrases")


def test_the_table_of_subcommands(command: Command) -> None:
    outcome = command("phrases", "--help")
    assert outcome.code == 0
    assert "parse" in outcome.out
    assert command("phrases").code == 2
