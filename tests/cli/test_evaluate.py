"""`phraseloom evaluate`: numbers, forms of output, standard input, refusals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from phraseloom.metrics.bleu import make_scorer
from phraseloom.report.markup import p_text

from .conftest import Command

REFERENCE = ["a cat sat on the mat .", "the dog is not here .", "", "it rains .", "we saw a red house there ."] * 4
BASE = ["a cat sat at the mat .", "dog is here .", "", "it rains .", "we saw a house ."] * 4
BETTER = ["a cat sat on the mat .", "the dog is here .", "", "it rains .", "we saw a red house ."] * 4


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, lines in {"ref": REFERENCE, "base": BASE, "better": BETTER, "src": REFERENCE}.items():
        (tmp_path / name).write_bytes("".join(line + "\n" for line in lines).encode())
    return tmp_path


def test_text_has_every_score_with_its_signature(files: Path, command: Command) -> None:
    outcome = command("evaluate", "-r", "ref", "base", "better", "--tokenized")
    assert outcome.code == 0
    assert "4 of 20 translations are empty" in outcome.err
    for name in ("bleu", "chrf", "ter", "tokenized"):
        score = make_scorer(name).corpus(BASE, [REFERENCE])
        assert f"{score.value:.2f}" in outcome.out
        assert f"{score.name}: {score.signature}\n" in outcome.out


def test_json(files: Path, command: Command) -> None:
    outcome = command(
        "evaluate", "-r", "ref", "-r", "base", "base", "better", "--source", "src", "--by-length", "3,6",
        "--bootstrap", "50", "--output", "json", "--metrics", "bleu",
    )  # fmt: skip
    report = json.loads(outcome.out)
    assert outcome.out.count("\n") == 1
    assert (report["sentences"], report["references"]) == (20, 2)
    assert [s["name"] for s in report["systems"]] == ["base", "better"]
    assert "nrefs:2" in report["systems"][0]["scores"][0]["signature"]
    groups = report["by_length"]["systems"][1]["groups"]
    assert [(g["label"], g["sentences"]) for g in groups] == [("≤3", 8), ("4–6", 4), (">6", 8)]
    results = report["bootstrap"]["results"]
    assert [r["system"] for r in results] == ["base", "better"]
    assert results[0]["difference"] is None
    assert results[1]["one_seed"] and 0 <= results[1]["p"] <= 1
    assert "bs:50|seed:12345" in results[1]["signature"]


def test_standard_input_and_compressed_files(files: Path, command: Command) -> None:
    (files / "ref.gz").write_bytes(gzip.compress((files / "ref").read_bytes()))
    options = ("--metrics", "bleu", "--output", "json")
    piped = command("evaluate", "-r", "ref.gz", "-", *options, stdin=(files / "base").read_bytes())
    named = command("evaluate", "-r", "ref", "base", *options)
    assert piped.code == 0
    assert piped.out == named.out.replace('"base"', '"stdin"')


def test_every_report_at_once(files: Path, command: Command) -> None:
    outcome = command("evaluate", "-r", "ref", "base", "better", "-s", "src", "--by-length", "3", "--bootstrap", "20")
    assert outcome.code == 0
    assert "by source length" in outcome.out
    assert "Paired bootstrap against base: 20 resamples, seed 12345" in outcome.out
    few = len((files / "ref").read_text().splitlines())
    assert few < 30 and f"warning: intervals and p of {few} sentences are too small" in outcome.err


def test_pairs_in_text_and_json(files: Path, command: Command) -> None:
    (files / "third").write_bytes((files / "ref").read_bytes())
    options = ("-r", "ref", "base", "better", "third", "--metrics", "bleu,ter", "--bootstrap", "30", "--pairs")
    report = json.loads(command("evaluate", *options, "--output", "json").out)
    pairs = report["bootstrap"]["pairs"]
    named = [(p["metric"], p["system"], p["other"]) for p in pairs]
    assert named[:3] == [("BLEU", "better", "base"), ("BLEU", "third", "base"), ("BLEU", "third", "better")]
    assert len(named) == 6
    values = {(r["metric"], r["system"]): r["value"] for r in report["bootstrap"]["results"]}
    for p in pairs:
        assert p["difference"] == values[p["metric"], p["system"]] - values[p["metric"], p["other"]]
        assert p["p_holm"] >= p["p"]
        assert p["difference_low"] <= p["difference_high"]
        assert "bs:30|seed:12345" in p["signature"]
    text = command("evaluate", *options).out
    assert f"{pairs[2]['difference']:+.2f} ({p_text(pairs[2]['p'])})" in text
    assert "Every pair" in text


def test_seeds_of_a_system(files: Path, command: Command) -> None:
    """NAME=FILE,FILE is one system of several runs; a file of that very name is a file."""
    for name in ("base", "better"):
        lines = (files / name).read_bytes()
        (files / f"{name}2").write_bytes(lines.replace(b"mat", b"rug"))
    options = ("-r", "ref", "--metrics", "bleu", "--bootstrap", "30")
    outcome = command("evaluate", *options, "old=base,base2", "new=better,better2", "--output", "json")
    report = json.loads(outcome.out)
    assert [(s["name"], s["runs"], len(s["scores"][0]["runs"])) for s in report["systems"]] == [
        ("old", 2, 2), ("new", 2, 2)
    ]  # fmt: skip
    assert not report["bootstrap"]["results"][1]["one_seed"]
    text = command("evaluate", *options, "old=base,base2", "new=better,better2").out
    assert "new (2 runs)" in text and "Intervals hold sentences and seeds" in text
    assert "say nothing about other seeds" in command("evaluate", *options, "old=base,base2", "new=better").out
    (files / "odd=base").write_bytes((files / "base").read_bytes())
    named = json.loads(command("evaluate", *options, "odd=base", "--output", "json").out)["systems"]
    assert [(s["name"], s["runs"]) for s in named] == [("odd=base", 1)]
    assert "given twice" in command("evaluate", *options, "new=base", "new=better").err
    assert "names no file" in command("evaluate", *options, "new=").err


def test_groups_of_length_with_resamples(files: Path, command: Command) -> None:
    for name in ("ref", "base", "better", "src"):
        (files / name).write_bytes((files / name).read_bytes() * 4)
    options = ("-r", "ref", "base", "better", "-s", "src", "--by-length", "3,6,50", "--bootstrap", "30")
    part = json.loads(command("evaluate", *options, "--output", "json").out)["by_length"]
    assert (part["baseline"], part["samples"], part["seed"]) == ("base", 30, 12345)
    groups = part["systems"][1]["groups"]
    assert [g["sentences"] for g in groups] == [32, 16, 32, 0]
    assert [g["bootstrap"] is not None for g in groups] == [True, False, True, False]
    assert groups[2]["bootstrap"]["low"] <= groups[2]["bootstrap"]["value"] <= groups[2]["bootstrap"]["high"]
    text = command("evaluate", *options).out
    found = groups[2]["bootstrap"]
    assert f"{found['difference_low']:+.2f} … {found['difference_high']:+.2f}" in text
    assert "fewer than 30" in text


def test_a_plot_takes_the_edges_of_the_paper(files: Path, command: Command) -> None:
    pytest.importorskip("matplotlib")
    options = ("evaluate", "-r", "ref", "base", "better", "-s", "src", "--output", "json")
    drawn = command(*options, "--plot", "by length.svg")
    asked = command(*options, "--by-length", "paper")
    assert drawn.out == asked.out == command(*options, "--by-length", "15,30,45").out
    assert b"20 sentences" in (files / "by length.svg").read_bytes()


CHOSEN = (0, 4, 6, 7, 19)


def test_chosen_lines_are_scored_as_if_there_were_no_others(files: Path, command: Command) -> None:
    """Scores, groups of length, resamples, pairs and the note on empty lines are those of files with these lines alone."""
    names = ("ref", "base", "better", "src")
    (files / "lines").write_bytes("".join(f"{i + 1}\n" for i in reversed(CHOSEN)).encode())
    options = ("--by-length", "3,6", "--bootstrap", "40", "--tokenized", "--pairs", "--output", "json")
    files_of = ("-r", "ref", "-r", "src", "base", "better", "-s", "src")
    found = command("evaluate", *files_of, *options, "--lines", "lines")
    assert found.code == 0
    assert "base: 1 of 5 translations are empty" in found.err
    text = command("evaluate", *files_of, "--lines", "lines").out
    assert text.startswith("5 of 20 sentences, 2 references, those of lines\n")
    for name in names:
        kept = (files / name).read_bytes().split(b"\n")
        (files / name).write_bytes(b"".join(kept[i] + b"\n" for i in CHOSEN))
    alone = json.loads(command("evaluate", *files_of, *options).out)
    assert json.loads(found.out) == alone | {"lines": {"file": "lines", "of": 20}}
    assert text.partition("\n")[2] == command("evaluate", *files_of).out.partition("\n")[2]


def test_all_empty_is_zero(files: Path, command: Command) -> None:
    (files / "empty").write_bytes(b"\n" * 20)
    outcome = command("evaluate", "-r", "ref", "empty", "--metrics", "bleu,chrf", "--output", "json")
    assert [s["value"] for s in json.loads(outcome.out)["systems"][0]["scores"]] == [0.0, 0.0]


def test_a_byte_order_mark_and_crlf_change_nothing_and_are_reported(files: Path, command: Command) -> None:
    plain = command("evaluate", "-r", "ref", "base", "--metrics", "bleu")
    (files / "base").write_bytes(b"\xef\xbb\xbf" + (files / "base").read_bytes().replace(b"\n", b"\r\n"))
    changed = command("evaluate", "-r", "ref", "base", "--metrics", "bleu")
    assert changed.out == plain.out
    assert "base: read without its byte order mark" in changed.err
    assert "CRLF line ends (20)" in changed.err


def test_lines_with_nul_are_reported(files: Path, command: Command) -> None:
    rows = (files / "base").read_bytes().split(b"\n")
    (files / "base").write_bytes(b"\n".join([*rows[:2], rows[2] + b" a\0b", *rows[3:]]))
    done = command("evaluate", "-r", "ref", "base", "--metrics", "bleu")
    assert done.code == 0 and "base: 1 line with NUL (first: line 3)" in done.err


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(files: Path, command: Command, separator: str) -> None:
    (files / "base").write_bytes("".join(line + f" x{separator}y\n" for line in BASE).encode())
    assert command("evaluate", "-r", "ref", "base", "--metrics", "bleu,tokenized").code == 0


BAD: list[tuple[list[str], int, str]] = [
    (["-r", "ref", "short"], 1, "short has 19 lines, but ref has 20; line 3 is blank in only one"),
    (["-r", "ref", "-r", "short", "base"], 1, "short has 19 lines"),
    (["-r", "ref", "base", "-s", "short", "--by-length", "3"], 1, "short has 19 lines"),
    (["-r", "void", "void"], 1, "void has no lines"),
    (["-r", "ref", "latin1"], 1, "latin1:1: invalid UTF-8"),
    (["-r", "ref", "none"], 1, "none: hypothesis file not found"),
    (["-r", "reff", "base"], 1, "did you mean ref?"),
    (["-r", ".", "base"], 1, "this is a folder"),
    (["-r", "ref", "base", "-s", "gone"], 1, "source file not found"),
    (["base"], 2, "--reference"),
    (["-r", "ref"], 2, "HYP"),
    (["-r", "-", "base"], 2, "is only allowed for translations"),
    (["-r", "ref", "-", "-"], 2, "given twice"),
    (["-r", "ref", "base", "base"], 2, "given twice"),
    (["-r", "ref", "-", "stdin"], 2, "stdin is given twice"),
    (["-r", "ref", "stdin=base,better", "-"], 2, "stdin is given twice"),
    (["-r", "ref", "base", "--metrics", "blue"], 2, "no metric 'blue'"),
    (["-r", "ref", "base", "--metrics", ","], 2, "names no metric"),
    (["-r", "ref", "base", "--tokenize", "os.system"], 2, "no BLEU tokenizer"),
    (["-r", "ref", "base", "--output", "xml"], 2, "'xml'"),
    (["-r", "ref", "base", "--by-length", "3"], 2, "--source"),
    (["-r", "ref", "base", "-s", "src", "--by-length", "3", "--metrics", "chrf"], 2, "bleu among"),
    (["-r", "ref", "base", "-s", "src", "--by-length", "5,3"], 2, "rising"),
    (["-r", "ref", "base", "-s", "src", "--by-length", "0,3"], 2, "rising"),
    (["-r", "ref", "base", "-s", "src", "--by-length", "²"], 2, "rising"),
    (["-r", "ref", "base", "-s", "src", "--by-length", ""], 2, "rising"),
    (["-r", "ref", "base", "--plot", "x.png"], 2, "--plot needs the source text"),
    (["-r", "ref", "base", "-s", "src", "--plot", "x.jpeg"], 2, "not 'x.jpeg'"),
    (["-r", "ref", "base", "better", "--pairs"], 2, "--pairs needs resamples; give --bootstrap 1000"),
    (["-r", "ref", "base", "--pairs", "--bootstrap", "9"], 2, "--pairs needs at least two systems"),
    (["-r", "ref", "base", "--lines", "gone"], 1, "gone: line number file not found"),
    (
        ["-r", "ref", "base", "--lines", "ref"],
        1,
        "ref:1: 'a cat sat on the mat .' is not a line number from 1 to 20",
    ),
    (["-r", "ref", "base", "--lines", "void"], 1, "void: the file has no line numbers"),
    (["-r", "ref", "short", "--lines", "void"], 1, "short has 19 lines"),
    (["-r", "ref", "base", "--lines", "-"], 2, "is only allowed for translations"),
    (["-r", "ref", "base", "--bootstrap", "-1"], 2, "--bootstrap"),
    (["-r", "ref", "base", "--bootstrap", "many"], 2, "--bootstrap"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), BAD, ids=[" ".join(b[0]) for b in BAD])
def test_refusals(arguments: list[str], code: int, text: str, files: Path, command: Command) -> None:
    (files / "short").write_bytes("".join(line + "\n" for line in REFERENCE[:2] + REFERENCE[3:]).encode())
    (files / "void").write_bytes(b"")
    (files / "latin1").write_bytes(b"M\xe4dchen\n" * 20)
    outcome = command("evaluate", *arguments, stdin=b"a\n")
    assert outcome.code == code
    assert outcome.is_one_line_of("evaluate"), outcome.err
    assert text in outcome.err


def test_tokenised_bleu_by_length_needs_no_other_bleu(files: Path, command: Command) -> None:
    options = ("evaluate", "-r", "ref", "base", "-s", "src", "--by-length", "3,6", "--output", "json")
    alone, added, other = (
        json.loads(command(*options, *more).out)["by_length"]
        for more in (("--metrics", "tokenized"), ("--metrics", "chrf", "--tokenized"), ("--metrics", "bleu,tokenized"))
    )
    assert alone == added and (alone["metric"], other["metric"]) == ("BLEU-tok", "BLEU")
