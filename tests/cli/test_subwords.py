from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from phraseloom.cli.main import run
from phraseloom.text.lines import write_lines
from phraseloom.text.tokenizer import Tokenizer

LINES = ["the old house", "a dog ran", "small birds sing in the garden", "ein Haus"] * 30


def filtered(monkeypatch: pytest.MonkeyPatch, arguments: list[str], given: bytes) -> bytes:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, write_through=True))
    assert run(["subwords", *arguments]) == 0
    return out.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        ["--size", "320"],
        ["--size", "60", "--no-byte-fallback"],
        ["--kind", "subword_nmt", "--size", "20"],
        ["--kind", "words", "--size", "5", "--min-frequency", "1"],
    ],
)
def test_learned_from_files_applied_and_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    write_lines(tmp_path / "a", LINES)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"a small house\n"))
    folder = str(tmp_path / "sub")
    assert run(["subwords", "train", folder, str(tmp_path / "a"), str(tmp_path / "b.gz"), *options]) == 0
    given = b"the  bird \n\na \xe2\x96\x81 @@ dog\xff\r\n"
    pieces = filtered(monkeypatch, ["apply", folder], given)
    error = capsys.readouterr().err
    assert "1 line with invalid UTF-8, replaced (first: line 3)" in error and r"ended by \r\n" in error
    assert pieces.count(b"\n") == 3 and pieces.split(b"\n")[1] == b""
    assert filtered(monkeypatch, ["undo", folder], pieces).decode() == "the  bird \n\na \u2581 @@ dog\ufffd\n"


def test_what_reading_changes_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "\r\n".join(LINES).encode()
    (tmp_path / "a").write_bytes(given)
    options = ["--kind", "subword_nmt", "--size", "9"]
    assert run(["subwords", "train", str(tmp_path / "one"), str(tmp_path / "a"), *options]) == 0
    assert rf"a: {len(LINES) - 1} lines ended by \r\n, read as \n (first: line 1)" in capsys.readouterr().err
    filtered(monkeypatch, ["train", str(tmp_path / "two"), *options], given)
    assert rf"subwords: {len(LINES) - 1} lines ended by \r\n" in capsys.readouterr().err


def test_learned_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sub"
    given = "".join(line + "\n" for line in LINES).encode()
    assert filtered(monkeypatch, ["train", str(folder), "--size", "310", "--sample-lines", "100"], given) == b""
    assert len(Tokenizer.load(folder).source.vocabulary) == 310


def test_errors_are_one_line_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "a", LINES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    for arguments, code, text in [
        (
            ["train", str(tmp_path / "s"), str(tmp_path / "a"), "--size", "9999"],
            1,
            "too small for 9999 subwords; set --size to at",
        ),
        (["train", str(tmp_path / "s"), str(tmp_path / "a"), "--size", "3"], 2, "size"),
        (["train", str(tmp_path / "s"), str(tmp_path / "missing")], 1, "text file not found"),
        (["train", str(tmp_path / "full"), str(tmp_path / "a")], 2, "not empty"),
        (["train", str(tmp_path / "s"), str(tmp_path / "a"), "--kind", "word"], 2, "kind"),
        (["apply", str(tmp_path / "missing")], 1, "tokenizer not found"),
        (["apply", str(tmp_path / "full")], 1, "tokenizer not found"),
    ]:
        assert run(["subwords", *arguments]) == code
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "words", "--model", "bpe"], "--model is for --kind sentencepiece, and this is --kind words"),
        (
            ["--kind", "subword_nmt", "--no-byte-fallback"],
            "--no-byte-fallback is for --kind sentencepiece, and this is",
        ),
        (
            ["--min-frequency", "50"],
            "--min-frequency is for --kind subword_nmt or words, and this is --kind sentencepiece",
        ),
    ],
)
def test_options_of_another_kind_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "a", LINES)
    assert run(["subwords", "train", str(tmp_path / "s"), str(tmp_path / "a"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.endswith("out\n") and error.count("\n") == 1
    assert not (tmp_path / "s").exists()
