"""`phraseloom align train --with` and `align lexicon` as commands."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.align.programs import EFLOMAL, FAST_ALIGN, install, path_with

from .conftest import Command

SOURCE = "a b c\n\nd e\na b c d e f\n"
TARGET = "u v\nw\nx y z\nu\n"
WITH = ("align", "train", "-s", "source", "-t", "target", "--links", "links", "--max-words", "5", "--with")


@pytest.fixture(params=["fast_align", "eflomal"])
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that is installed, beside `source` and `target`: four pairs, one with a blank side, one too long."""
    chosen: str = request.param
    program = "fast_align" if chosen == "fast_align" else "eflomal-align"
    install(tmp_path / "bin", program, FAST_ALIGN if chosen == "fast_align" else EFLOMAL)
    monkeypatch.setenv("PATH", path_with(tmp_path / "bin"))
    (tmp_path / "source").write_bytes(SOURCE.encode())
    (tmp_path / "target").write_bytes(TARGET.encode())
    return chosen


def test_links_by_another_program(command: Command, tmp_path: Path, name: str) -> None:
    done = command(*WITH, name, "--method", "union")
    assert (done.code, done.out) == (0, ""), done.err
    told = "phraseloom align: 2 pairs; left out: 1 with a blank side, 1 of more than 5 words\n"
    assert done.err == told
    assert (tmp_path / "links").read_bytes() == b"0-0 1-1 2-1\n\n0-0 0-2 1-1 1-2\n\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "links", "source", "target"]


def test_default_method_direction_and_options(command: Command, tmp_path: Path, name: str) -> None:
    assert command(*WITH, name).code == 0
    assert (tmp_path / "links").read_bytes() == b"0-0 1-1 2-1\n\n0-0 1-1 1-2\n\n"
    program = "fast_align" if name == "fast_align" else "eflomal-align"
    log = tmp_path / "bin" / f"{program}.log"
    log.unlink()
    assert (
        command(*WITH, name, "--direction", "backward", "--with-options", "-m 1", "--lowercase", "--overwrite").code
        == 0
    )
    (call,) = log.read_text().splitlines()
    assert " -m 1 " in call
    assert " -r" in call
    assert (tmp_path / "links").read_bytes() == b"0-0 1-1 2-1\n\n0-2 1-1\n\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "model"), "-o is for the model that is learned without --with"),
        (("--iterations", "5"), "--iterations is for the model that is learned without --with"),
        (("--no-variational-bayes",), "--variational-bayes is for the model"),
        (("--p-null", "0.1"), "--p-null is for the model"),
        (("--direction", "forward", "--method", "union"), "the method union needs a model of the backward direction"),
        (("--links", "source"), "source: --links is also an input of the command"),
    ],
)
def test_options_that_do_not_go_with_it(
    command: Command, tmp_path: Path, name: str, arguments: tuple[str, ...], message: str
) -> None:
    done = command(*WITH, name, *arguments)
    assert done.code == 2
    assert done.is_one_line_of("align")
    assert message in done.err
    assert not (tmp_path / "links").exists()


@pytest.mark.usefixtures("name")
def test_what_is_missing(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("align", "train", "-s", "source", "-t", "target")
    done = command(*texts, "--with", "eflomal")
    assert (done.code, "--with eflomal writes links only; give --links FILE" in done.err) == (2, True)
    done = command(*texts, "--links", "links")
    assert (done.code, "-o FILE is missing" in done.err) == (2, True)
    done = command(*texts, "-o", "model", "--with-options", "-m 1")
    assert (done.code, "--with-options is for --with" in done.err) == (2, True)
    monkeypatch.setenv("PATH", os.defpath)
    done = command(*WITH, "fast_align")
    assert done.code == 1
    assert done.is_one_line_of("align")
    assert "the program fast_align is not installed; build it from https://github.com/clab/fast_align" in done.err


def test_a_failing_program_leaves_old_links_alone(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "links").write_bytes(b"old\n")
    program = "fast_align" if name == "fast_align" else "eflomal-align"
    install(tmp_path / "bin", program, 'sys.exit("no memory")')
    done = command(*WITH, name, "--overwrite")
    assert done.code == 1
    assert done.is_one_line_of("align")
    assert f"{program} failed (exit code 1): no memory" in done.err
    assert (tmp_path / "links").read_bytes() == b"old\n"


# --- lexicon ----------------------------------------------------------------------------------------------------------

LEXICON = ("align", "lexicon", "-s", "s", "-t", "t", "-a", "a", "-o", "out")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    for name, lines in {
        "s": "das Haus\ndas Haus\ndas\n\nx\ty\n",
        "t": "the house\nthis house\nthe\n\nz\n",
        "a": "0-0 1-1\n0-0 1-1\n0-0\n\n0-0\n",
    }.items():
        (tmp_path / name).write_bytes(lines.encode())
    return tmp_path


def test_lexicon(command: Command, text: Path) -> None:
    done = command(*LEXICON)
    assert (done.code, done.out) == (0, ""), done.err
    assert (text / "out").read_bytes() == b"das\tthe\t2\t3\nHaus\thouse\t2\t2\n"
    assert done.err.splitlines() == [
        "phraseloom align: 5 pairs, 5 links: 2 source words",
        "phraseloom align: 1 link of words with a tab, which a lexicon cannot hold: left out",
    ]
    assert command(*LEXICON, "--min-count", "3", "--overwrite").code == 0
    assert (text / "out").read_bytes() == b""
    piped = command("align", "lexicon", "-s", "s", "-t", "-", "-a", "a", "-o", "again", stdin=(text / "t").read_bytes())
    assert piped.code == 0, piped.err
    assert command(*LEXICON, "--overwrite").code == 0
    assert (text / "again").read_bytes() == (text / "out").read_bytes()


def test_lexicon_of_files_that_do_not_fit(command: Command, text: Path) -> None:
    (text / "a").write_bytes(b"0-0\n0-2\n")
    done = command(*LEXICON)
    assert (done.code, "a:2: 0-2: the target has 2 words" in done.err) == (1, True)
    assert done.is_one_line_of("align")
    (text / "a").write_bytes(b"0-0\n0-1\n")
    done = command(*LEXICON)
    assert (done.code, "a: ends after 2 lines" in done.err) == (1, True)
    assert not (text / "out").exists()
    assert command(*LEXICON[:-1], "out.gz").code == 2


def test_lexicon_by_our_own_aligner(command: Command, tmp_path: Path) -> None:
    words = {"a": "ein", "dog": "hund", "cat": "katze", "runs": "rennt", "red": "rot"}
    rng = random.Random(3)
    lines = [rng.sample(list(words), rng.randint(1, 5)) for _ in range(100)]
    (tmp_path / "s").write_bytes("".join(" ".join(line) + "\n" for line in lines).encode())
    german = "".join(" ".join(words[w] for w in line) + "\n" for line in lines)
    (tmp_path / "t").write_bytes(german.encode())
    assert command("align", "train", "-s", "s", "-t", "t", "-o", "model", "--links", "a").code == 0
    assert command(*LEXICON).code == 0
    rows = [row.split("\t")[:2] for row in (tmp_path / "out").read_bytes().decode().splitlines()]
    assert dict(rows) == words
