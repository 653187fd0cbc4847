"""`phraseloom phrases sample` as a command: the sheet, the count, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import Command

SOURCE = [
    "an Dinge wie Lebensqualität denken",
    "wer ein Gehirn hat , ist gefährdet .",
    "ich stecke voller Widersprüche .",
]
REFERENCE = [
    "think about things like quality of life",
    "everyone with a brain is at risk .",
    "I am full of contradictions .",
]
BASE = ["think of things like life", "who has a brain is risk .", "I 'm put ."]
NEW = ["think of things like quality_of_life .", "who has a brain is at_risk .", "I 'm full_of contradictions"]
DRAW = ["-s", "source", "-r", "reference", "--system", "new=new", "--system", "base=base", "-o", "sheet"]


def write(path: str | Path, lines: list[str]) -> None:
    Path(path).write_bytes("".join(line + "\n" for line in lines).encode())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, lines in {"source": SOURCE, "reference": REFERENCE, "base": BASE, "new": NEW}.items():
        write(tmp_path / name, lines)
    write(tmp_path / "table", ["quality of life\t2\t9.1", "things like", "at risk"])
    return tmp_path


def cells(path: str = "sheet") -> list[list[str]]:
    return [row.split("\t") for row in Path(path).read_bytes().decode().split("\n")[:-1]]


@pytest.mark.usefixtures("files")
def test_a_sheet_is_drawn_filled_and_counted(command: Command) -> None:
    outcome = command("phrases", "sample", *DRAW)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == (
        "phraseloom phrases: 3 lines, 3 with a phrase; 3 phrases, 3 different; "
        "in the reference: exact 100.0%, scattered 0.0%, partly 0.0%, absent 0.0%; 3 drawn\n"
    )
    header, *rows = cells()
    places = {(row[0], row[1], row[2]) for row in rows}
    assert places == {("1", "5", "quality of life"), ("2", "6", "at risk"), ("3", "3", "full of")}
    for row in rows:
        number = int(row[0]) - 1
        assert row[8:] == [SOURCE[number], REFERENCE[number], NEW[number], BASE[number], ""]
    empty = command("phrases", "sample", "--tally", "sheet")
    assert empty.code == 0 and empty.out.startswith("0 of 3 phrases judged, 3 open\n")
    for row, values in zip(rows, (("CO", "1", "0"), ("CO", "0", "0"), ("CN", "1", "1")), strict=True):
        row[3:6] = values
    write("sheet", ["\t".join(row) for row in (header, *rows)])
    counted = command("phrases", "sample", "--tally", "sheet", "--json", "counts.json")
    assert (counted.code, counted.err) == (0, "")
    assert re.search(r"^all +3 +100% +0\.67 .* 0\.33 ", counted.out, re.MULTILINE)
    found = json.loads(Path("counts.json").read_bytes())
    assert [(c["category"], c["phrases"]) for c in found["categories"]] == [("CN", 1), ("VP", 0), ("CO", 2), ("all", 3)]


@pytest.mark.usefixtures("files")
def test_the_same_seed_draws_the_same(command: Command) -> None:
    for name in ("source", "reference", "base", "new"):
        Path(name).write_bytes(Path(name).read_bytes() * 20)
    sheets = {}
    for name, options in {"a": [], "b": ["--seed", "1"], "c": ["--seed", "2"], "d": ["-n", "30"]}.items():
        assert command("phrases", "sample", *DRAW[:-1], name, "-n", "20", *options).code == 0
        sheets[name] = cells(name)
    assert sheets["a"] == sheets["b"] != sheets["c"]
    assert sheets["d"][:21] == sheets["a"] and len(sheets["d"]) == 31


@pytest.mark.usefixtures("files")
def test_phrases_of_a_table_and_json(command: Command) -> None:
    plain = command("phrases", "sample", *DRAW[:4], "--system", "base=base", "--table", "table", "-o", "plain")
    assert plain.code == 0
    assert [row[2] for row in cells("plain")[1:]] == ["things like"]
    lines = [
        {"text": line.replace("_", " "), "words": line.replace("_", " ").split(), "tokens": line.split()}
        for line in NEW
    ]
    write("new.jsonl", list(map(json.dumps, lines)))
    assert command("phrases", "sample", *DRAW[:4], "--system", "new=new.jsonl", *DRAW[6:8], "-o", "a").code == 0
    assert command("phrases", "sample", *DRAW).code == 0
    assert cells("a") == cells("sheet")


@pytest.mark.usefixtures("files")
def test_standard_input_and_a_byte_order_mark(command: Command) -> None:
    Path("source").write_bytes(b"\xef\xbb\xbf" + Path("source").read_bytes())
    arguments = [*DRAW[:4], "--system", "new=-", *DRAW[6:]]
    outcome = command("phrases", "sample", *arguments, stdin=Path("new").read_bytes())
    assert outcome.code == 0 and "source: 1 byte order mark" in outcome.err
    assert sorted(row[0] for row in cells()[1:]) == ["1", "2", "3"]
    assert "\ufeff" not in Path("sheet").read_bytes().decode()


@pytest.mark.usefixtures("files")
def test_a_sheet_is_not_replaced_without_being_asked(command: Command) -> None:
    write("sheet", ["my work"])
    outcome = command("phrases", "sample", *DRAW)
    assert outcome.code == 2 and outcome.is_one_line_of("phrases")
    assert "sheet: the file is there already; choose another name or give --overwrite" in outcome.err
    assert Path("sheet").read_bytes() == b"my work\n"
    assert command("phrases", "sample", *DRAW, "--overwrite").code == 0
    assert len(cells()) == 4


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "a sheet needs -s FILE, -r FILE, --system NAME=FILE, -o FILE; to count"),
        (DRAW[:-2], 2, "a sheet needs -o FILE"),
        ([*DRAW[:-1], "sheet.gz"], 2, "sheet.gz: the output is not compressed"),
        ([*DRAW, "--json", "x"], 2, "--json is for --tally"),
        ([*DRAW, "--system", "base=new"], 2, "two systems are called base"),
        ([*DRAW, "--system", "new.en"], 2, "--system new.en: not NAME=FILE"),
        ([*DRAW, "--system", "=new.en"], 2, "--system =new.en: not NAME=FILE"),
        ([*DRAW, "--system", "third="], 2, "--system third=: not NAME=FILE"),
        ([*DRAW, "--system", "a\tb=new"], 2, "not NAME=FILE"),
        ([*DRAW, "--system", "third=none"], 1, "none: text file not found"),
        ([*DRAW, "--system", "third=table2"], 1, "table2: ends after 2 lines, but source has more"),
        (["-s", "-", *DRAW[2:], "--system", "third=-"], 2, "only one of the files can be -"),
        (
            [*DRAW[:4], *DRAW[6:]],
            1,
            "base: no tokens of joined words, such as quality_of_life in 3 lines; give translate's",
        ),
        ([*DRAW[:4], *DRAW[6:], "--table", "none"], 1, "none: text file not found"),
        ([*DRAW[:4], *DRAW[6:], "--table", "base"], 1, "base: no phrases of the table in 3 lines"),
        ([*DRAW, "-n", "0"], 2, "-n"),
        ([*DRAW, "--seed", "-1"], 2, "--seed"),
        (["--tally", "none"], 1, "none: "),
        (["--tally", "table"], 1, "table:1: no column 'line'"),
        (["--tally", "table", "-s", "source"], 2, "--tally takes nothing but a sheet, --json and --overwrite"),
        (["--tally", "table", "-n", "3"], 2, "--tally takes nothing but a sheet, --json and --overwrite"),
    ],
)
def test_refusals(arguments: list[str], code: int, message: str, command: Command, files: Path) -> None:
    write(files / "table2", ["a", "b"])
    if "base" in arguments and "--table" in arguments:
        write(files / "base", ["x y", "x", "x"])
        arguments = [*arguments[:-1], "table"]
    outcome = command("phrases", "sample", *arguments)
    assert outcome.code == code, outcome
    assert message in outcome.err
    assert outcome.is_one_line_of("phrases"), outcome
    assert not (files / "sheet").exists()
