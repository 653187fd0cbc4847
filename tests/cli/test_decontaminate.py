"""`phraseloom decontaminate`: the pairs that remain, and what a user can get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command

from phraseloom.cli import decontaminate

HELD_OUT = ("--held-out-source", "test.de", "--held-out-target", "test.en", "--words", "3")
PAIRS = ("decontaminate", "-s", "a.de", "-t", "a.en")


def write(folder: Path) -> None:
    (folder / "a.de").write_text("Das ist gut .\nJa .\nEin Haus\n\nZwei alte Männer\n")
    (folder / "a.en").write_text("That is good .\nYes .\nThe house is old\nx\nTwo old men\n")
    (folder / "test.de").write_text("das ist gut\nJa .\n")
    (folder / "test.en").write_text("This is fine .\nYes .\nThe house, is old!\n")


def test_pairs_in_held_out_text_are_left_out(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decontaminate, "BLOCK", 2)
    write(tmp_path)
    done = command(*PAIRS, *HELD_OUT, "-o", "clean")
    assert (done.code, done.out) == (0, "")
    assert done.err == "phraseloom decontaminate: left out 2 of 5 pairs (40.00%): a side is in held-out text\n"
    assert (tmp_path / "clean" / "source.txt").read_text() == "Ja .\n\nZwei alte Männer\n"
    assert (tmp_path / "clean" / "target.txt").read_text() == "Yes .\nx\nTwo old men\n"
    assert (tmp_path / "clean" / "lines.txt").read_text() == "2\n4\n5\n"
    assert "not empty" in command(*PAIRS, *HELD_OUT, "-o", "clean").err
    assert command(*PAIRS, "--held-out-source", "test.de", "--words", "1", "-o", "clean", "--overwrite").code == 0
    assert (tmp_path / "clean" / "target.txt").read_text() == "The house is old\nx\nTwo old men\n"


def test_repeated_pairs_are_left_out(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("ja\nja\nnein\nja\nDas ist gut .\nja\n")
    (tmp_path / "a.en").write_text("yes\nyeah\nno\nyes\nThat is good .\nyes\n")
    (tmp_path / "test.de").write_text("das ist gut\n")
    said = "phraseloom decontaminate: left out {} of 6 pairs ({}): {}\n"
    done = command(*PAIRS, "--deduplicate", "-o", "clean")
    assert (done.code, done.err) == (0, said.format(2, "33.33%", "the same pair came before"))
    assert (tmp_path / "clean" / "lines.txt").read_text() == "1\n2\n3\n5\n"
    assert (tmp_path / "clean" / "target.txt").read_text() == "yes\nyeah\nno\nThat is good .\n"
    done = command(*PAIRS, "--held-out-source", "test.de", "--words", "3", "--deduplicate", "-o", "both")
    assert done.err == said.format(1, "16.67%", "a side is in held-out text") + said.format(
        2, "33.33%", "the same pair came before"
    )
    assert (tmp_path / "both" / "lines.txt").read_text() == "1\n2\n3\n"


def test_what_reading_changes_is_reported(command: Command, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "a.de").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "a.de").read_bytes().replace(b"\n", b"\r\n"))
    (tmp_path / "test.en").write_bytes((tmp_path / "test.en").read_bytes().replace(b"Yes", b"Y\0s"))
    said = command(*PAIRS, *HELD_OUT, "-o", "clean").err.splitlines()
    assert sorted(said[:2]) == [
        r"phraseloom decontaminate: a.de: 5 lines ended by \r\n, read as \n (first: line 1); 1 byte order mark at the "
        "beginning, left out (first: line 1)",
        "phraseloom decontaminate: test.en: 1 line with NUL (first: line 2)",
    ]


def test_errors_write_nothing(command: Command, tmp_path: Path) -> None:
    write(tmp_path)
    assert "no held-out text; give --held-out-source" in command(*PAIRS, "-o", "clean").err
    assert command(*PAIRS, "--held-out-source", "none", "-o", "clean").code == 1
    whole = command(*PAIRS, "--held-out-source", "a.de", "--held-out-target", "a.en", "--words", "1", "-o", "clean")
    assert whole.code == 1 and "no pair is left: 5 pairs in held-out text" in whole.err
    (tmp_path / "a.en").write_text("That is good .\nYes .\n")
    short = command(*PAIRS, *HELD_OUT, "-o", "clean")
    assert short.code == 1 and "a.en:3: this file ends before the other side" in short.err
    assert not (tmp_path / "clean").exists()
