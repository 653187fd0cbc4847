"""Links by other programs: what they are given, how they are called, and what becomes of what they write."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.align.programs import EFLOMAL, FAST_ALIGN, install, path_with
from tests.helpers import HANGS

from phraseloom.align.external import PROGRAMS, read_links, run_program, write_numbers
from phraseloom.align.links import Links, symmetrize
from phraseloom.errors import DataError, FileProblem, PhraseloomError, UsageError

PAIRS = [
    ("Das Haus das", "the house"),
    ("", "nothing"),
    ("a ||| b", "x\ty \u00a0 \x85 z\r"),
    ("blank", "  "),
    ("one two three four five", "too long"),
    ("Haus", "the  house house "),
]
FORWARD = [{(0, 0), (1, 1)}, {(0, 0), (1, 1), (2, 2), (2, 3)}, {(0, 0), (0, 1), (0, 2)}]
BACKWARD = [{(0, 0), (1, 1), (2, 1)}, {(0, 3), (1, 1), (2, 2)}, {(0, 0)}]


@pytest.fixture(params=["fast_align", "eflomal"])
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the two programs, installed for this test."""
    chosen: str = request.param
    install(tmp_path / "bin", PROGRAMS[chosen].file, FAST_ALIGN if chosen == "fast_align" else EFLOMAL)
    monkeypatch.setenv("PATH", path_with(tmp_path / "bin"))
    return chosen


def calls(tmp_path: Path, name: str) -> list[str]:
    """The arguments of each call, the folder of the text cut off."""
    return (tmp_path / "bin" / f"{PROGRAMS[name].file}.log").read_text().replace(f"{tmp_path}/", "").splitlines()


def aligned(name: str, folder: Path, method: str, **options: Any) -> list[Links]:
    text = write_numbers(PAIRS, folder / "text", max_words=4)
    files = run_program(PROGRAMS[name], text, **options)
    return list(read_links(PROGRAMS[name], text, files, method))


def whole(links: list[Any]) -> list[Links]:
    """Links of the pairs that are aligned, with nothing for the others."""
    first, second, third = map(frozenset, links)
    return [first, frozenset(), second, frozenset(), frozenset(), third]


def test_pairs_are_written_as_numbers(tmp_path: Path) -> None:
    text = write_numbers(PAIRS, tmp_path / "text", max_words=4)
    assert text.path.read_bytes() == b"0 1 2 ||| 0 1\n3 4 5 ||| 2 3 4 5\n1 ||| 0 1 1\n"
    assert list(zip(text.source_lengths, text.target_lengths, strict=True)) == [
        (3, 2),
        (0, 0),
        (3, 4),
        (0, 0),
        (0, 0),
        (1, 3),
    ]
    assert text.counted == (3, 2, 1)
    lower = write_numbers([("Das das", "A a")], tmp_path / "lower", lowercase=True)
    assert lower.path.read_bytes() == b"0 0 ||| 0 0\n"
    with pytest.raises(DataError, match="no sentence pair to learn from"):
        write_numbers([("", "a"), ("b", " ")], tmp_path / "none")


@pytest.mark.parametrize("jobs", [1, 2])
def test_links_are_joined_and_pairs_left_out_have_none(tmp_path: Path, name: str, jobs: int) -> None:
    expected = [symmetrize(frozenset(f), frozenset(b), "union") for f, b in zip(FORWARD, BACKWARD, strict=True)]
    assert aligned(name, tmp_path, "union", jobs=jobs) == whole(expected)
    grown = [
        symmetrize(frozenset(f), frozenset(b), "grow-diag-final-and") for f, b in zip(FORWARD, BACKWARD, strict=True)
    ]
    assert grown != expected
    assert aligned(name, tmp_path, "grow-diag-final-and", jobs=jobs) == whole(grown)


@pytest.mark.parametrize(("direction", "expected"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_one_direction(tmp_path: Path, name: str, direction: str, expected: list[Any]) -> None:
    assert aligned(name, tmp_path, direction, directions=(direction,)) == whole(expected)
    (call,) = calls(tmp_path, name)
    assert (
        call
        == {
            ("fast_align", "forward"): "-i text -d -o -v",
            ("fast_align", "backward"): "-i text -d -o -v -r",
            ("eflomal", "forward"): "-i text -f text.forward",
            ("eflomal", "backward"): "-i text -r text.backward",
        }[name, direction]
    )


def test_options_stand_instead_of_the_usual_ones(tmp_path: Path, name: str) -> None:
    aligned(name, tmp_path, "union", options="-I 6 -m '1 2'")
    told = calls(tmp_path, name)
    assert len(told) == (2 if name == "fast_align" else 1)
    assert all("-i text -I 6 -m 1 2" in call and "-d" not in call for call in told)
    with pytest.raises(UsageError, match="cannot be read"):
        aligned(name, tmp_path, "union", options="'")


def test_a_program_that_is_not_there(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FileProblem, match=f"the program {PROGRAMS[name].file} is not installed; .*remove --with"):
        PROGRAMS[name].find()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert PROGRAMS[name].find() == str(tmp_path / "bin" / PROGRAMS[name].file)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ('sys.stderr.write("one\\nout of memory\\n\\n")\nsys.exit(3)', r"failed \(exit code 3\): out of memory$"),
        ("sys.exit(1)", "failed .exit code 1.: no message"),
        ('LINES("0-0\\n")', "wrote only 1 line of links for more pairs"),
        ('LINES("0-0\\n" * 4)', "wrote more lines of links than the 3 pairs of its input"),
        ('LINES("0-0\\n0-7\\n0-0\\n")', r"forward:2: 0-7: the target has 4 words"),
        ('LINES("0-0\\nError\\n0-0\\n")', r"forward:2: field 1, 'Error', is not a link"),
    ],
)
def test_a_program_that_fails(tmp_path: Path, name: str, rest: str, message: str) -> None:
    write = "sys.stdout.write" if name == "fast_align" else "pathlib.Path(sys.argv[-1]).write_text"
    install(tmp_path / "bin", PROGRAMS[name].file, rest.replace("LINES", write))
    with pytest.raises(PhraseloomError, match=message):
        aligned(name, tmp_path, "forward", directions=("forward",))


def test_a_program_that_says_it_is_well_but_writes_nothing(tmp_path: Path, name: str) -> None:
    install(tmp_path / "bin", PROGRAMS[name].file, "")
    with pytest.raises(PhraseloomError, match="wrote"):
        aligned(name, tmp_path, "forward", directions=("forward",))


def test_no_program_outlives_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two calls fails: the other one is ended."""
    rest = f"""
import os, time
if "-r" in arguments:
    pathlib.Path({str(tmp_path / "new")!r}).write_text(str(os.getpid()))
    os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "other")!r})
    time.sleep({2 * HANGS})
while not pathlib.Path({str(tmp_path / "other")!r}).exists():
    time.sleep(0.05)
sys.exit(2)
"""
    install(tmp_path / "bin", "fast_align", rest)
    monkeypatch.setenv("PATH", path_with(tmp_path / "bin"))
    begin = time.monotonic()
    with pytest.raises(PhraseloomError, match="exit code 2"):
        aligned("fast_align", tmp_path, "union", jobs=2)
    assert time.monotonic() - begin < HANGS
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "other").read_text()), 0)
