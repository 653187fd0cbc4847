"""One test per awkwardness of reliability.md T1 to T15 that the text verbs can meet; the files are in files.py."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phraseloom.cli.main import run
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import Report, prepare
from phraseloom.data.tally import table
from phraseloom.errors import DataError
from phraseloom.options.data import DataConfig
from phraseloom.text.lines import LineReport, count_lines, read_lines, write_lines
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import Vocabulary

CHANGED = {"crlf.txt", "mixed.txt", "bom.txt", "invalid_utf8.txt", "latin1.txt", "truncated_utf8.txt"}
FIVE = [
    "plain.txt", "separators.txt", "crlf.txt", "lone_cr.txt", "mixed.txt", "bom.txt", "bom_inside.txt", "nul.txt",
    "controls.txt", "blank.txt", "only_blank.txt", "no_last_end.txt", "delimiters.txt", "spaces.txt", "tabs.txt",
    "astral.txt",
]  # fmt: skip


def through(monkeypatch: pytest.MonkeyPatch, arguments: list[str], given: bytes) -> bytes:
    """What a verb that runs in this process writes to standard output."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, write_through=True))
    assert run(arguments) == 0
    return out.getvalue()


def make(tmp_path: Path, source: Path, target: Path, **more: object) -> Report:
    """Prepare five plain pairs and `source`, `target`; the latter are also the valid data."""
    for side in "st":
        write_lines(tmp_path / f"plain.{side}", ["the house", "a dog", "small birds", "the garden", "all good"] * 20)
    files = {"source": str(source), "target": str(target)}
    train = [{"source": str(tmp_path / "plain.s"), "target": str(tmp_path / "plain.t")}, files]
    given = {"folder": str(tmp_path / "out"), "source_language": "en", "target_language": "de", "train": train, **more}
    given = {"subwords": {"kind": "sentencepiece", "size": 290}, "valid": [files], **given}
    return prepare(DataConfig.model_validate(given))


@pytest.mark.parametrize("name", FIVE)
def test_t1_every_file_has_five_lines(awkward: Path, tmp_path: Path, name: str) -> None:
    lines = list(read_lines(awkward / name))
    assert len(lines) == 5 == count_lines(awkward / name)
    assert write_lines(tmp_path / "again", lines) == 5
    if name not in CHANGED:
        assert (tmp_path / "again").read_bytes().rstrip(b"\n") == (awkward / name).read_bytes().rstrip(b"\n")
    assert list(read_lines(tmp_path / "again")) == lines


@pytest.mark.parametrize("name", FIVE)
def test_t1_prepare_keeps_the_pairing(awkward: Path, tmp_path: Path, name: str) -> None:
    report = make(tmp_path, awkward / name, awkward / "plain.txt")
    valid = Dataset.open(report.folder).split("valid")
    assert len(valid) == 5 and valid.text()[1][4] == "all good"
    assert valid.text()[0] == list(read_lines(awkward / name))
    assert report.index.splits["train"].read == 105
    left_out = sum(d.pairs for d in report.index.splits["train"].dropped.values())
    assert report.index.splits["train"].pairs == 105 - left_out


@pytest.mark.parametrize(
    "name", [*FIVE, "long_line.txt", "invalid_utf8.txt", "latin1.txt", "truncated_utf8.txt", "empty.txt"]
)
def test_t1_filters_give_one_line_a_line(
    awkward: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = (awkward / name).read_bytes()
    expected = "".join(line + "\n" for line in read_lines(awkward / name, invalid="replace")).encode()
    pieces = through(monkeypatch, ["subwords", "apply", str(tokenizer_folder)], given)
    assert pieces.count(b"\n") == count_lines(awkward / name)
    assert through(monkeypatch, ["subwords", "undo", str(tokenizer_folder)], pieces) == expected


@pytest.mark.parametrize(("name", "crlf"), [("crlf.txt", 5), ("lone_cr.txt", 0), ("mixed.txt", 2)])
def test_t2_carriage_returns(awkward: Path, tmp_path: Path, name: str, crlf: int) -> None:
    report = make(tmp_path, awkward / name, awkward / "plain.txt").index.splits["train"].files[1]
    assert report.source_report["crlf"] == crlf
    lines = list(read_lines(awkward / name))
    assert sum("\r" in line for line in lines) == {"crlf.txt": 0, "lone_cr.txt": 3, "mixed.txt": 1}[name]


def test_t3_byte_order_mark(awkward: Path, tmp_path: Path) -> None:
    assert list(read_lines(awkward / "bom.txt")) == list(read_lines(awkward / "plain.txt"))
    assert list(read_lines(awkward / "bom_inside.txt"))[2] == "\ufeffsmall birds"
    report = make(tmp_path, awkward / "bom.txt", awkward / "plain.txt")
    assert report.index.splits["train"].files[1].source_report["bom"] == 1
    assert "byte order mark" in table(report.index)


@pytest.mark.parametrize(
    ("name", "line", "byte"), [("invalid_utf8.txt", 3, 7), ("latin1.txt", 1, 4), ("truncated_utf8.txt", 5, 9)]
)
def test_t4_invalid_utf8_stops_prepare_and_writes_nothing(
    awkward: Path, tmp_path: Path, name: str, line: int, byte: int
) -> None:
    with pytest.raises(DataError, match=rf"{name}:{line}: invalid UTF-8: byte {byte} "):
        make(tmp_path, awkward / name, awkward / "plain.txt")
    assert not list(tmp_path.glob("out*"))


def test_t4_invalid_utf8_is_replaced_and_counted_in_filters(awkward: Path) -> None:
    report = LineReport()
    lines = list(read_lines(awkward / "invalid_utf8.txt", invalid="replace", report=report))
    assert lines[2] == "small \ufffd\ufffdbirds" and report.invalid_utf8 == 1 and report.first == {"invalid_utf8": 3}


def test_t5_nul_loses_no_line_and_enters_no_vocabulary(awkward: Path, tmp_path: Path) -> None:
    for subwords in ({"kind": "sentencepiece", "size": 290}, {"kind": "subword_nmt", "merges": 10}):
        folder = str(tmp_path / str(subwords["kind"]))
        report = make(tmp_path, awkward / "nul.txt", awkward / "nul.txt", subwords=subwords, folder=folder)
        dataset = Dataset.open(report.folder)
        assert not any("\0" in piece for piece in dataset.tokenizer.source.vocabulary)
        assert len(dataset.split("train")) == 105
        assert report.index.splits["train"].files[1].source_report["nul"] == 1


def test_t6_long_line_is_left_out_of_training_with_a_count(awkward: Path, tmp_path: Path) -> None:
    report = make(tmp_path, awkward / "long_line.txt", awkward / "long_line.txt", valid=[])
    dropped = report.index.splits["train"].dropped["too_long"]
    assert (dropped.pairs, dropped.first_line) == (1, 2) and report.index.splits["train"].pairs == 102
    assert "left out 1 pair: a side has more than max_tokens" in table(report.index)


def test_t7_blank_lines(awkward: Path, tmp_path: Path) -> None:
    report = make(tmp_path, awkward / "blank.txt", awkward / "plain.txt")
    dropped = report.index.splits["train"].dropped
    assert {reason: d.pairs for reason, d in dropped.items()} == {"empty_source": 3}
    assert dropped["empty_source"].first_line == 2
    valid = Dataset.open(report.folder).split("valid")
    assert valid.source_lengths.tolist()[1:4] == [0, 0, 0] and valid.text()[0][2:4] == [" ", "\u3000\u00a0"]


def test_t7_both_sides_blank(awkward: Path, tmp_path: Path) -> None:
    report = make(tmp_path, awkward / "only_blank.txt", awkward / "only_blank.txt")
    assert report.index.splits["train"].dropped["empty_both"].pairs == 5


@pytest.mark.parametrize(("left", "right"), [(5, 4), (5, 6), (5, 0), (0, 5)])
def test_t8_counts_that_differ_are_refused_before_any_work(tmp_path: Path, left: int, right: int) -> None:
    write_lines(tmp_path / "l", ["x"] * left)
    write_lines(tmp_path / "r", ["x"] * right)
    with pytest.raises(DataError, match=f"line counts differ: {left} in l, {right} in r"):
        make(tmp_path, tmp_path / "l", tmp_path / "r")
    assert not list(tmp_path.glob("out*"))


def test_t8_the_first_break_of_blank_parity_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "l", ["a", "", "b", "", "c", "d"])
    write_lines(tmp_path / "r", ["a", "", "b", "c", "d"])
    with pytest.raises(DataError, match=r"l:4: line counts differ: 6 in l, 5 in r; .*is 4 \(l\)"):
        make(tmp_path, tmp_path / "l", tmp_path / "r")


def test_t11_delimiters_and_specials_are_ordinary_text(awkward: Path, tokenizer_folder: Path) -> None:
    side = Tokenizer.load(tokenizer_folder).source
    for line in read_lines(awkward / "delimiters.txt"):
        assert side.subwords.undo(side.pieces(line)) == line
        assert not {0, 2, 3} & set(side.encode(line))
    joined, apart = side.encode("quality_of_life"), side.encode("quality of life")
    assert joined != apart


def test_t12_vocabulary_of_space_like_pieces(tmp_path: Path) -> None:
    odd = ["\u00a0", "\u3000", "\u2028", "\u0085", "\r", " ", "\t", "\ufeff", "</s>", "a\r", "\u200b", "\x0b"]
    vocabulary = Vocabulary(["<pad>", "<unk>", "<s>", "</s>", *odd])
    vocabulary.save(tmp_path / "v")
    again = Vocabulary.load(tmp_path / "v")
    assert again == vocabulary and again.sha256 == vocabulary.sha256
    assert [again.id(piece) for piece in odd] == list(range(4, 4 + len(odd)))


def test_t14_the_same_bytes_in_every_locale(awkward: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    given = (awkward / "spaces.txt").read_bytes() + (awkward / "astral.txt").read_bytes()
    results = []
    for locale in ("C", "C.UTF-8"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
        environment |= {"LC_ALL": locale, "PYTHONUTF8": "0"}
        command = [sys.executable, "-m", "phraseloom", "subwords", "apply", str(tokenizer_folder)]
        results.append(subprocess.run(command, input=given, env=environment, capture_output=True, check=True).stdout)
    assert results[0] == results[1] and results[0].count(b"\n") == 10


@pytest.mark.parametrize("name", ["tabs.txt", "spaces.txt", "astral.txt", "separators.txt", "controls.txt"])
def test_t15_undo_gives_the_line_back(awkward: Path, tokenizer_folder: Path, name: str) -> None:
    subwords = Tokenizer.load(tokenizer_folder).source.subwords
    for line in read_lines(awkward / name):
        assert subwords.undo(subwords.pieces(line)) == line
