"""`phraseloom phrases extract`, `filter`, `segment`, `mwt` as commands."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phraseloom.cli import phrases
from phraseloom.cli.main import run
from phraseloom.files import verify_manifest

from .conftest import Command, phraseloom

SOURCE = ["Lebensqualität zählt .", "er ging heim .", "sie ging los .", "", "die Lebensqualität sinkt ."]
TARGET = ["quality of life counts .", "he went to  his home .", "she went to .", "", "the quality of life falls ."]
LINKS = ["0-0 0-1 0-2 1-3 2-4", "0-0 1-1 1-2 2-3 2-4 3-5", "0-0 1-1 1-2 3-3", "", "0-0 1-1 1-2 1-3 2-4 3-5"]
CANDIDATES = """\
quality of life\tLebensqualität\t2\t2
went to\tging\t2\t2
his home\theim\t1\t1
"""
PAIR = ["-s", "source", "-t", "target", "-a", "links"]


def write(path: str | Path, lines: list[str]) -> None:
    Path(path).write_bytes("".join(line + "\n" for line in lines).encode())


def text(path: str | Path) -> str:
    return Path(path).read_bytes().decode()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "source", SOURCE)
    write(tmp_path / "target", TARGET)
    write(tmp_path / "links", LINKS)
    write(tmp_path / "table", ["quality of life\t2\t9.1", "went to"])
    (tmp_path / "candidates").write_bytes(CANDIDATES.encode())
    return tmp_path


def test_the_group(command: Command) -> None:
    outcome = command("phrases", "--help")
    assert outcome.code == 0
    assert re.findall(r"^  (\w+) +\w", outcome.out.partition("Commands:")[2], re.MULTILINE) == [
        "parse", "extract", "filter", "segment", "mwt", "sample",
    ]  # fmt: skip


# --- extract ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("files")
def test_candidates(command: Command) -> None:
    outcome = command("phrases", "extract", *PAIR, "-o", "out/c.tsv")
    assert (outcome.code, outcome.out) == (0, "")
    assert text("out/c.tsv") == CANDIDATES
    assert outcome.err == (
        "phraseloom phrases: 5 pairs, 1 with a blank side, 0 without links; 5 times a source word with several target words: "
        "3 candidates, 3 rows\n"
    )


@pytest.mark.usefixtures("files")
def test_compressed_files_and_standard_input(command: Command) -> None:
    Path("source.gz").write_bytes(gzip.compress(Path("source").read_bytes()))
    outcome = command(
        "phrases", "extract", "-s", "source.gz", "-t", "target", "-a", "-", "-o", "c", stdin=Path("links").read_bytes()
    )
    assert (outcome.code, text("c")) == (0, CANDIDATES)


@pytest.mark.usefixtures("files")
def test_what_was_changed_in_reading_is_said(command: Command) -> None:
    Path("target").write_bytes(Path("target").read_bytes().replace(b"\n", b"\r\n"))
    write("links", [*LINKS[:4], "0-0"])
    write("source", [*SOURCE[:4], "x\ty z"])
    outcome = command("phrases", "extract", *PAIR, "-o", "c")
    assert (outcome.code, text("c").count("\r")) == (0, 0)
    assert r"target: 5 lines ended by \r\n, read as \n (first: line 1)" in outcome.err
    assert "left out" not in outcome.err
    write("links", [*LINKS[:4], "0-0 0-1"])
    assert (
        "1 more were left out: a word with a tab cannot stand in a table"
        in command("phrases", "extract", *PAIR, "-o", "c", "--overwrite").err
    )


@pytest.mark.usefixtures("files")
def test_a_first_row_that_begins_with_a_byte_order_mark_comes_back(command: Command) -> None:
    """U+FEFF in the middle of a text, as where files were joined, is part of a word in every step."""
    write("source", ["ja .", "Lebensqualität zählt .", "die Lebensqualität sinkt ."])
    write("target", ["yes .", "\ufeffquality of life counts .", "the \ufeffquality of life falls ."])
    write("links", ["0-0 1-1", LINKS[0], LINKS[4]])
    assert command("phrases", "extract", *PAIR, "-o", "c").code == 0
    outcome = command("phrases", "filter", "c", "--no-pmi", "--min-count", "1", "-o", "t")
    assert (outcome.code, text("t").removeprefix("\ufeff").split("\t")[0]) == (0, "\ufeffquality of life")
    assert "\ufeffquality_of_life counts ." in command("phrases", "segment", "target", "--table", "t").out


def test_extract_says_that_only_words_with_tabs_are_left(command: Command, files: Path) -> None:
    write(files / "tabs", ["a\tb c"])
    write(files / "others", ["x y"])
    write(files / "of tabs", ["0-0 0-1"])
    outcome = command("phrases", "extract", "-s", "tabs", "-t", "others", "-a", "of tabs", "-o", "c")
    assert outcome.code == 1 and outcome.is_one_line_of("phrases")
    assert "others: no candidate: 1 " in outcome.err and "tab" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([*PAIR], 2, "Missing option '-o'"),
        (["-s", "none", *PAIR[2:], "-o", "c"], 1, "none: text file not found"),
        (["-s", "-", "-t", "target", "-a", "-", "-o", "c"], 2, "only one of the files can be -"),
        ([*PAIR, "-o", "c.gz"], 2, "c.gz: the output is not compressed"),
        (["-s", "table", *PAIR[2:], "-o", "c"], 1, "links:2: "),
        (
            ["-s", "target", "-t", "target", "-a", "short", "-o", "c"],
            1,
            "short: ends after 1 line, but target has more",
        ),
        (["-s", "source", "-t", "source", "-a", "links", "-o", "c"], 1, "links:1: 1-3: the target has 3 words, 0 to 2"),
        (["-s", "source", "-t", "latin", "-a", "links", "-o", "c"], 1, "latin:1: invalid UTF-8: byte 1"),
        (
            [*PAIR[:4], "-a", "unlinked", "-o", "c"],
            1,
            "unlinked: no candidate: in 5 pairs, no source word is linked to several target words; 1 with a blank side, "
            "4 without links; these links",
        ),
    ],
)
def test_what_extract_refuses(arguments: list[str], code: int, message: str, command: Command, files: Path) -> None:
    write(files / "short", ["0-0"])
    write(files / "unlinked", [""] * 5)
    (files / "latin").write_bytes("ü\n".encode("latin-1"))
    outcome = command("phrases", "extract", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.is_one_line_of("phrases"), outcome
    assert not (files / "c").exists()


# --- filter -------------------------------------------------------------------------------------------------------------

SUMMARY = """\
filter           dropped  left
───────────────  ───────  ────
candidates                   3
count below 2          1     2
PMI not above 0        1     1
"""


@pytest.mark.usefixtures("files")
def test_the_table_of_phrases(command: Command) -> None:
    write("text", ["quality of life", "went", "to quality of life", "went x to"])
    outcome = command("phrases", "filter", "candidates", "-t", "text", "-o", "p", "--moses", "m")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == SUMMARY
    # log2(2 · 11² / (2 · 2 · 2)), of 11 words
    assert text("p") == "quality of life\t2\t4.918863\t2\tLebensqualität\n"
    assert text("m") == "Lebensqualität ||| quality of life ||| 1 1 ||| 0-0 0-1 0-2 ||| 2 2 2\n"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--no-pmi"], ["quality of life", "went to"]),
        (["--no-pmi", "--min-count", "1"], ["quality of life", "went to", "his home"]),
        (["--no-pmi", "--max-words", "2"], ["went to"]),
        (["--no-pmi", "--stop-words", "stop"], ["quality of life"]),
        (["--no-pmi", "--stop-words", "en", "--stop-rule", "any"], []),
        (["--no-pmi", "--stop-words", "none", "--min-count", "1"], ["quality of life", "went to", "his home"]),
        (["-t", "target"], ["quality of life", "went to"]),
        (["-t", "target", "--min-pmi", "4"], ["quality of life"]),
        (["-t", "target", "--within-lines"], ["quality of life", "went to"]),
        (["-t", "ends"], ["went to"]),
        (["-t", "ends", "--within-lines"], []),
        (["--preset", "released", "--no-parts-of-speech", "-t", "target"], ["quality of life", "went to"]),
        (["--preset", "released", "-t", "target", "--tags", "tags"], ["quality of life"]),
        (["-t", "target", "--tags", "tags"], ["quality of life"]),
        (["-t", "target", "--tags", "tags", "--no-pmi"], ["quality of life"]),
    ],
)
def test_options_of_filter(options: list[str], phrases: list[str], command: Command) -> None:
    write("stop", ["Went", "to"])
    write("ends", ["went", "to x went", "to"])
    write("tags", ["NN IN NN VBZ .", "PRP VBD TO PRP NN .", "PRP VBD TO .", "", "DT NN IN NN VBZ ."])
    outcome = command("phrases", "filter", "candidates", "-o", "p", *options)
    assert outcome.code == (0 if phrases else 1), outcome.err
    assert outcome.err.startswith("filter ")
    if phrases:
        assert [row.split("\t")[0] for row in text("p").split("\n")[:-1]] == phrases
    else:
        assert "candidates: no candidate passed the filters: --" in outcome.err
        assert "; relax these filters, or give more text; the table above has all counts\n" in outcome.err
        assert not Path("p").exists()


def test_a_table_without_a_candidate_is_named(command: Command) -> None:
    write("none", [])
    outcome = command("phrases", "filter", "none", "-o", "p", "--no-pmi")
    said = "phraseloom phrases: none: the table has no candidate; phraseloom phrases extract finds them"
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, said)


@pytest.mark.usefixtures("files")
def test_filters_that_dropped_every_candidate_are_named(command: Command) -> None:
    """The filter that dropped most comes first, with the value that it had."""
    outcome = command("phrases", "filter", "candidates", "-o", "p", "--no-pmi", "--min-count", "3", "--max-words", "2")
    assert outcome.err.splitlines()[-1] == (
        "phraseloom phrases: candidates: no candidate passed the filters: --min-count 3 dropped 2, --max-words 2 "
        "dropped 1; relax these filters, or give more text; the table above has all counts"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["candidates", "-o", "p"], 2, "PMI needs the target text; give -t FILE, or --no-pmi"),
        (["candidates", "-o", "p", "--no-pmi", "--min-pmi", "1"], 2, "--min-pmi and --no-pmi exclude each other"),
        (
            ["candidates", "-o", "p", "--preset", "released", "-t", "target"],
            2,
            "needs the tags of the target text; give",
        ),
        (["candidates", "-o", "p", "--no-pmi", "--tags", "links"], 2, "--tags needs the target text"),
        (
            ["candidates", "-o", "p", "--no-pmi", "--tags", "links", "--no-parts-of-speech"],
            2,
            "--tags is for the filter",
        ),
        (["candidates", "-o", "p", "-t", "target", "--tags", "source"], 1, "source:1: 3 tags, but the line of target"),
        (["candidates", "-o", "p.xz", "--no-pmi"], 2, "p.xz: the output is not compressed"),
        (["candidates", "-o", "p", "--no-pmi", "--moses", "m.gz"], 2, "m.gz: the output is not compressed"),
        (["candidates", "-o", "p", "--no-pmi", "--min-count", "0"], 2, "--min-count"),
        (["candidates", "-o", "p", "--no-pmi", "--stop-words", "xx"], 1, "xx: text file not found"),
        (["candidates", "-o", "p", "--no-pmi", "--preset", "mine"], 2, "--preset"),
        (["target", "-o", "p", "--no-pmi"], 1, "target:1: not a row of a file of candidates"),
        (["none", "-o", "p", "--no-pmi"], 1, "none: table of candidates not found"),
    ],
)
def test_what_filter_refuses(arguments: list[str], code: int, message: str, command: Command, files: Path) -> None:
    outcome = command("phrases", "filter", *arguments)
    assert outcome.code == code, outcome
    assert message in outcome.err
    assert outcome.is_one_line_of("phrases"), outcome
    assert not (files / "p").exists()


# --- segment ------------------------------------------------------------------------------------------------------------

LONGEST = ["quality_of_life counts .", "he went_to  his home .", "she went_to .", "", "the quality_of_life falls ."]


@pytest.mark.usefixtures("files")
def test_longest_matches_and_back(command: Command) -> None:
    outcome = command("phrases", "segment", "target", "--table", "table")
    assert outcome.code == 0
    assert outcome.out == "".join(line + "\n" for line in LONGEST)
    assert outcome.err == (
        "phraseloom phrases: 5 lines, 4 with a phrase; 4 phrases joined, 2 different of the 2 of the table\n"
    )
    same = command("phrases", "segment", "--table", "table", stdin=Path("target").read_bytes())
    assert (same.out, same.err) == (outcome.out, outcome.err)
    undone = command("phrases", "segment", "--undo", stdin=outcome.out.encode())
    assert (undone.code, undone.out, undone.err) == (0, text("target"), "")


@pytest.mark.usefixtures("files")
def test_parallel_text_and_fertility(command: Command) -> None:
    write("links", ["0-0 0-1 0-2 1-3 2-4", "1-1 0-0", "1-1 1-2 0-0 3-3", "", "1-0 1-1 1-2 1-3 2-4"])
    arguments = ["phrases", "segment", "target", "--table", "table", "-s", "source", "-a", "links"]
    outcome = command(*arguments, "--fertility", "f")
    lines = [LONGEST[0], TARGET[1], *LONGEST[2:]]
    assert (outcome.code, outcome.out) == (0, "".join(line + "\n" for line in lines)), outcome.err
    assert text("f") == "3 1 1\n1 1 0 0\n1 2 0 1\n\n0 3 1 0\n"
    assert "5 lines, 3 with a phrase; 3 phrases joined, 2 different" in outcome.err
    assert command(*arguments).out == outcome.out
    target = ["phrases", "segment", "-", *arguments[3:]]
    assert command(*target, stdin=Path("target").read_bytes()).out == outcome.out


@pytest.mark.usefixtures("files")
def test_the_rules(command: Command) -> None:
    write("target", ["a b c", "a b c d e"])
    write("source", ["x", "x"])
    write("links", ["0-0 0-1 0-2", "0-0 0-1 0-2 0-3 0-4"])
    write("table", ["a b", "b c", "a b c d e", "one"])
    arguments = ["phrases", "segment", "target", "--table", "table", "-s", "source", "-a", "links"]
    released, aligned = command(*arguments), command(*arguments, "--rule", "aligned")
    assert (released.out, aligned.out) == ("a_b c\na_b c d e\n", "a_b c\na_b_c_d_e\n")
    assert released.err.count("\n") == 2
    assert "1 phrase of more than 4 words: never joined by the rule released" in released.err
    assert aligned.err.count("\n") == 1
    assert aligned.err.endswith("2 different of the 4 of the table; 1 phrase of one word, nothing to join\n")


@pytest.mark.usefixtures("files")
def test_more_lines_than_are_written_at_once(command: Command) -> None:
    for name, line in {"source": "a b", "target": "x y z", "links": "0-0 0-1 1-2"}.items():
        write(name, [line] * 2500)
    write("table", ["x y"])
    arguments = ["phrases", "segment", "target", "--table", "table"]
    outcome = command(*arguments, "-s", "source", "-a", "links", "--fertility", "f")
    assert outcome.out == "x_y z\n" * 2500 == command(*arguments).out
    assert text("f") == "2 1\n" * 2500


PIECES = [
    "_",
    "&#95;",
    "&#38;",
    "&",
    " ",
    "  ",
    "a",
    "b",
    "a b",
    "\t",
    "\0",
    "\r",
    "\u00a0",
    "\u2028",
    "\u0085",
    "é",
    "漢",
    "😀",
    "\n",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_any_text_comes_back_byte_for_byte(
    body: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    body = re.sub(r"\r+\n", "\n", body + "\n")  # \r\n is a line end, and is read as \n
    (tmp_path / "table").write_bytes("a b\nb a\na é\n_ _\n&#95; &#95;\n".encode())
    (tmp_path / "text").write_bytes(body.encode())
    capsysbinary.readouterr()
    assert run(["phrases", "segment", str(tmp_path / "text"), "--table", str(tmp_path / "table")]) == 0
    joined = capsysbinary.readouterr().out
    (tmp_path / "joined").write_bytes(joined)
    assert joined.count(b"\n") == body.count("\n")
    assert run(["phrases", "segment", str(tmp_path / "joined"), "--undo"]) == 0
    assert capsysbinary.readouterr().out == body.encode()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["target"], 2, "no phrases to join; give --table FILE"),
        (
            ["target", "--table", "table", "-s", "source"],
            2,
            "the source text and the links go together; give -s and -a",
        ),
        (
            ["target", "--table", "table", "--fertility", "f"],
            2,
            "--rule and --fertility need the source text and links",
        ),
        (
            ["target", "--table", "table", "--rule", "aligned"],
            2,
            "--rule and --fertility need the source text and links",
        ),
        (["target", "--table", "table", *PAIR[:2], "-a", "links", "--rule", "longest"], 2, "--rule"),
        (["target", "--undo", "--table", "table"], 2, "--undo takes nothing but joined text"),
        (["-", "--table", "table", "-s", "-", "-a", "links"], 2, "only one of the files can be -"),
        (["none", "--table", "table"], 1, "none: text file not found"),
        (["target", "--table", "none"], 1, "none: text file not found"),
        (["target", "--table", "empty"], 1, "empty: the phrase table has no phrases"),
        (["target", "--table", "table", "-s", "table", "-a", "links"], 1, "table: ends after 2 lines, but target has"),
        (["source", "--table", "table", "-s", "source", "-a", "links"], 1, "links:1: 1-3: the target has 3 words"),
        (
            ["target", "--table", "table", "-s", "source", "-a", "links", "--fertility", "f.gz"],
            2,
            "f.gz: the output is not compressed",
        ),
        (
            ["table", "--table", "table", "-s", "source", "-a", "empty"],
            1,
            "empty: ends after 0 lines, but source has more",
        ),
    ],
)
def test_what_segment_refuses(arguments: list[str], code: int, message: str, command: Command, files: Path) -> None:
    (files / "empty").write_bytes(b"")
    outcome = command("phrases", "segment", *arguments)
    assert outcome.code == code, outcome
    assert message in outcome.err
    assert outcome.is_one_line_of("phrases"), outcome


def test_segment_writes_nothing_if_a_file_is_too_short(command: Command, files: Path) -> None:
    """Also beyond the first block; standard input is written as far as the files go."""
    for name, lines in (("s", 1500), ("t", 1500), ("l", 1400)):
        write(files / name, ["0-0" if name == "l" else "went"] * lines)
    parallel = ["--table", "table", "-s", "s", "-a", "l"]
    outcome = command("phrases", "segment", "t", *parallel, "--fertility", "f")
    assert (outcome.code, outcome.out) == (1, "") and not (files / "f").exists()
    assert "l: ends after 1,400 lines, but s has more; the files must be parallel" in outcome.err
    streamed = command("phrases", "segment", *parallel, stdin=(files / "t").read_bytes())
    assert (streamed.code, streamed.out.count("\n")) == (1, 1000) and "l: ends after 1,400 lines" in streamed.err


@pytest.mark.full
def test_the_same_bytes_in_every_locale(files: Path) -> None:
    done = phraseloom(
        "phrases",
        "segment",
        "--table",
        "table",
        cwd=files,
        stdin=b"went to\n" * 5,
        LC_ALL="C",
        PYTHONIOENCODING="ascii",
    )
    assert (done.returncode, done.stdout) == (0, b"went_to\n" * 5)


# --- mwt ----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("files")
def test_the_multi_word_subset(command: Command) -> None:
    write("more.raw", [f"line {n}" for n in range(1, 6)])
    Path("source.gz").write_bytes(gzip.compress(Path("source").read_bytes()))
    write("links", [LINKS[0], "0-0", *LINKS[2:]])
    outcome = command(
        "phrases", "mwt", "-s", "source.gz", *PAIR[2:], "--table", "table", "-o", "mwt", "--also", "more.raw"
    )
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert outcome.err == "phraseloom phrases: 3 of 5 sentences hold a phrase for one source word (60.00%)\n"
    assert sorted(verify_manifest("mwt")) == ["lines.txt", "more.raw", "source", "target", "target.joined"]
    found = {path.name: text(path) for path in Path("mwt").iterdir() if path.name != "manifest.json"}
    assert found == {
        "lines.txt": "1\n3\n5\n",
        "source": "".join(SOURCE[n] + "\n" for n in (0, 2, 4)),
        "target": "".join(TARGET[n] + "\n" for n in (0, 2, 4)),
        "target.joined": "".join(LONGEST[n] + "\n" for n in (0, 2, 4)),
        "more.raw": "line 1\nline 3\nline 5\n",
    }
    again = command("phrases", "mwt", *PAIR, "--table", "table", "-o", "mwt")
    assert again.code == 2 and "multi-word subset folder is not empty" in again.err
    assert command("phrases", "mwt", *PAIR, "--table", "table", "-o", "mwt", "--overwrite").code == 0
    assert not Path("mwt/more.raw").exists()


@pytest.mark.usefixtures("files")
def test_the_subset_by_the_other_rule(command: Command) -> None:
    write("source", ["ging"])
    write("target", ["he went to"])
    write("links", ["0-1 0-2"])
    for rule, lines in {"released": "", "aligned": "1\n"}.items():
        outcome = command("phrases", "mwt", *PAIR, "--table", "table", "-o", rule, "--rule", rule)
        assert (outcome.code, text(Path(rule, "lines.txt"))) == (0, lines)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([*PAIR, "--table", "table"], 2, "Missing option '-o'"),
        ([*PAIR, "-o", "mwt"], 2, "Missing option '--table'"),
        (["-s", "-", *PAIR[2:], "--table", "table", "-o", "mwt"], 2, "none can be - (standard input)"),
        ([*PAIR, "--table", "table", "-o", "mwt", "--also", "table"], 1, "table: 2 lines, but source has 5"),
        ([*PAIR, "--table", "table", "-o", "mwt", "--also", "other/target"], 2, "would have the name target"),
        ([*PAIR, "--table", "table", "-o", "mwt", "--also", "lines.txt"], 2, "would have the name lines.txt"),
        ([*PAIR, "--table", "table", "-o", "mwt", "--also", "none"], 1, "none: text file not found"),
        ([*PAIR[:4], "-a", "table", "--table", "table", "-o", "mwt"], 1, "table:1: field 1, 'quality', is not a link"),
    ],
)
def test_what_mwt_refuses(arguments: list[str], code: int, message: str, command: Command, files: Path) -> None:
    outcome = command("phrases", "mwt", *arguments)
    assert outcome.code == code, outcome
    assert message in outcome.err
    assert outcome.is_one_line_of("phrases"), outcome
    assert not (files / "mwt").exists()


# --- docs/phrases.md ------------------------------------------------------------------------------------------------------


def test_the_page(root: Path, command: Command, files: Path) -> None:
    """Its example of literal tokens, its options and the numbers of its table are those of the code."""
    page = text(root / "docs" / "phrases.md")
    plain, joined = re.findall(r"^    (the quality.*?)      (?:the text|joined)$", page, re.MULTILINE)
    write(files / "table", ["quality of life"])
    assert command("phrases", "segment", "--table", "table", stdin=plain.encode()).out == joined + "\n"
    named = set(re.findall(r"(--[a-z][a-z-]+)", page))
    others = (["align", "train"], ["evaluate"], ["translate"])
    helped = "".join(command(*task, "--help").out for task in (*(["phrases", task] for task in phrases.TASKS), *others))
    assert named <= set(re.findall(r"--[a-z][a-z-]+", helped)), named
    numbers = [
        [int(n.replace(",", "")) for n in row] for row in re.findall(r"\| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    ]
    left = int(re.findall(r"^\| candidates \| +\| ([\d,]+) \|", page, re.MULTILINE)[0].replace(",", ""))
    for dropped, after in numbers:
        left -= dropped
        assert left == after
