"""Sheets: what is written, what spreadsheets make of it, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phraseloom.errors import DataError
from phraseloom.phrases.sample import LONGEST, Generated, JudgedPhrase, Sheet, read_sheet, write_sheet

HEADER = [
    "line", "word", "phrase", "category", "correct new", "correct base", "found in reference", "found by base", "source",
    "reference", "output new", "output base", "note",
]  # fmt: skip
ONE = Generated(3, 7, "at risk", "gefährdet", 'so "at risk"', ("at_risk", "risk"), ("exact", "partly"))
TWO = Generated(12, 1, "full of", "voller", "full of", ("full_of", "put"), ("exact", "absent"))


def table(path: Path) -> list[list[str]]:
    body = path.read_bytes().decode()
    return list(csv.reader(body.removesuffix("\n").split("\n"), "excel-tab"))


def write(path: Path, rows: list[list[str]], end: str = "\n") -> Path:
    path.write_bytes("".join("\t".join(row) + end for row in rows).encode())
    return path


def filled(*values: str) -> list[list[str]]:
    return [HEADER, ["3", "7", "at risk", *values, "exact", "partly", "a", "b", "c", "d", ""]]


def test_a_sheet_and_back(tmp_path: Path) -> None:
    path = tmp_path / "sheet.tsv"
    assert write_sheet(path, iter([ONE, TWO]), ["new", "base"]) == 2
    rows = table(path)
    assert rows[:2] == [
        HEADER,
        ["3", "7", "at risk", "", "", "", "exact", "partly", "gefährdet", 'so "at risk"', "at_risk", "risk", ""],
    ]
    assert read_sheet(path) == Sheet(
        ["new", "base"],
        ["found in reference", "found by base"],
        [
            JudgedPhrase(3, 7, "at risk", None, None, ["exact", "partly"]),
            JudgedPhrase(12, 1, "full of", None, None, ["exact", "absent"]),
        ],
    )


AWKWARD = st.text(st.sampled_from("\t\n\r\0\"'=+-@ a_\u0085\u2028\u00a0é漢😀,;"), max_size=12)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=st.lists(AWKWARD, min_size=4, max_size=4))
def test_awkward_text_stays_in_its_cell(texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "sheet.tsv"
    source, reference, *outputs = (text.replace("\n", "") for text in texts)
    write_sheet(path, [Generated(1, 1, "a b", source, reference, tuple(outputs), ("exact", "absent"))], ["x", "y"])
    assert path.read_bytes().count(b"\n") == 2
    assert not {"\r", "\0", "\u2028", "\u0085"} & set(path.read_bytes().decode())
    (_, row) = table(path)
    assert len(row) == len(HEADER)
    for cell, text in zip(row[8:12], (source, reference, *outputs), strict=True):
        assert not cell.startswith(("=", "+", "-", "@"))
        kept = "".join(" " if c in "\t\r\0\u0085\u2028" else c for c in text)
        assert cell.removeprefix(" ") == kept.removeprefix(" ")
    assert read_sheet(path).rows[0].found == ["exact", "absent"]


def test_cells_hold_so_much(tmp_path: Path) -> None:
    long = "x" * (2 * LONGEST)
    write_sheet(tmp_path / "s", [Generated(1, 1, "a b", long, long[:LONGEST], (long,), ("exact",))], ["new"])
    row = table(tmp_path / "s")[1]
    assert row[6] == long[: LONGEST - 1] + "…" and row[7] == long[:LONGEST]
    assert len(read_sheet(tmp_path / "s").rows) == 1


@pytest.mark.parametrize(
    ("values", "category", "correct"),
    [
        (("CN", "1", "0"), "CN", [True, False]),
        ((" vps ", "yes", "No"), "VP", [True, False]),
        (("Collocation", "Y", "n"), "CO", [True, False]),
        (("Other", "FALSE", "TRUE"), "other", [False, True]),
    ],
)
def test_what_can_be_filled_in(tmp_path: Path, values: tuple[str, ...], category: str, correct: list[bool]) -> None:
    (row,) = read_sheet(write(tmp_path / "s", filled(*values))).rows
    assert (row.category, row.correct) == (category, correct)


def test_what_a_spreadsheet_may_change(tmp_path: Path) -> None:
    """A byte order mark, CRLF, columns moved, added, deleted, blank rows, no empty cells at the end, a note of two lines."""
    header = ["phrase", "found in reference", "mine", "category", "word", "line", "correct new", "", "note"]
    rows = [
        header,
        ["at risk", "absent", "x", "CO", "7", "3", "1", "", '"one\r\ntwo ""quoted"""'],
        [""] * 9,
        ["full of", "exact", "", "", "1", "12"],
        ["went to", "partly", *[""] * 2, "2", "12", *[""] * 5],
    ]
    path = write(tmp_path / "s", rows, "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = read_sheet(path)
    assert (found.systems, found.places) == (["new"], ["found in reference"])
    assert found.rows == [
        JudgedPhrase(3, 7, "at risk", "CO", [True], ["absent"]),
        JudgedPhrase(12, 1, "full of", None, None, ["exact"]),
        JudgedPhrase(12, 2, "went to", None, None, ["partly"]),
    ]


BAD: list[tuple[list[list[str]], str]] = [
    (filled("XX", "1", "0"), "s:2: column 'category': 'XX'; one of CN, VP, CO, other"),
    (filled("CN", "1", "maybe"), "s:2: column 'correct base': 'maybe'; 1 "),
    (filled("CN", "1", ""), "s:2: column 'correct base': empty, but other cells of the row are filled in; fill in all of them"),
    (filled("", "1", "0"), "s:2: column 'category': empty, but other cells"),
    ([*filled("CN", "1", "0"), *filled("CN", "1", "0")[1:]], "s:3: the phrase of line 3, word 7 is also in row 2"),
    ([HEADER, ["x", *filled("", "", "")[1][1:]]], "s:2: column 'line': 'x' is not a number"),
    ([HEADER, ["3", "²", *filled("", "", "")[1][2:]]], "s:2: column 'word': '²' is not a number"),
    ([HEADER, ["3", "7", " ", *filled("", "", "")[1][3:]]], "s:2: column 'phrase': empty"),
    ([HEADER, ["3", "7", "a b", "", "", "", "exakt", "partly"]], "s:2: column 'found in reference': 'exakt'; one of exact, "),
    ([HEADER, ["3", "7", "a b", "", "", "", "exact", ""]], "s:2: column 'found by base': ''; one of exact, "),
    ([HEADER, [*filled("", "", "")[1], "more"]], "s:2: 14 cells, but 13 columns"),
    ([HEADER], "s: the sheet has no phrases"),
    ([], "s:1: no column 'line', 'word', 'phrase', 'category', 'found in reference', 'correct NAME'"),
    ([HEADER[:4] + HEADER[6:]], "s:1: no column 'correct NAME'; keep the names that phrases sample writes"),
    ([[*HEADER, "phrase"]], "s:1: two columns have the name 'phrase'"),
    ([HEADER, ['"open', "x"]], "s:2: not a row of a table with tabs"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[list[str]], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("s"), rows)
    with pytest.raises(DataError) as error:
        read_sheet("s")
    assert str(error.value).startswith(message)
