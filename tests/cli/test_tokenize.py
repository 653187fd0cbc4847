"""`phraseloom tokenize`: what `prepare` does to a line, and what `translate` does to its words."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.options.text import SubwordNmtConfig, TextConfig
from phraseloom.text.normalize import Normaliser
from phraseloom.text.tokenizer import Side, learn_subwords

from .conftest import Command

LINES = [
    "The dogs' owner (42) doesn't know, does he?",
    "",
    " \u3000 ",
    "„Schön“ — sagte Z.B. Herr Dr. Müller.",
    "a  b\tc\u2028d\x85e ",
    "x & y < z | w [1] @-@ &apos; &#95; quality_of_life 100 %",
    "İstanbul'da 3,5 km.",
]
OPTIONS = [(), ("--normalize",), ("--lowercase",), ("--normalize", "--lowercase")]


def encoded(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def printed(command: Command, *arguments: str | Path, lines: list[str]) -> list[str]:
    outcome = command("tokenize", *arguments, stdin=encoded(lines))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith("\n")
    return outcome.out[:-1].split("\n")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("language", ["en", "de", "tr", "fr"])
def test_what_a_recipe_does(language: str, options: tuple[str, ...], command: Command) -> None:
    """Tokenised text is what the subwords of `Side` are cut of, and undoing it is how `Side` decodes."""
    normalize, lowercase = "--normalize" in options, "--lowercase" in options
    config = TextConfig(tokenize="moses", normalize="moses" if normalize else "none", lowercase=lowercase)
    normaliser = Normaliser(config, language)
    side = Side(normaliser, learn_subwords([normaliser(line) for line in LINES], SubwordNmtConfig(merges=20)))
    done = printed(command, "-l", language, *options, lines=LINES)
    assert [[word for word in line.split(" ") if word] for line in done] == [side.words(line) for line in LINES]
    undone = printed(command, "-l", language, "--undo", lines=done)
    assert undone == [side.decode(side.encode(line)) for line in LINES]


def test_words_and_back(command: Command) -> None:
    done = printed(command, "-l", "en", lines=LINES[:3])
    assert done == ["The dogs ' owner ( 42 ) doesn 't know , does he ?", "", ""]
    assert printed(command, "--language", "en", "--undo", lines=done) == [LINES[0], "", ""]


def test_chinese(command: Command) -> None:
    pytest.importorskip("jieba")
    done = printed(command, "-l", "zh", "--method", "jieba", lines=["我来到北京清华大学"])
    assert done == ["我 来到 北京 清华大学"]
    assert printed(command, "-l", "zh", "--method", "jieba", "--undo", lines=done) == ["我来到北京清华大学"]
    assert printed(command, "-l", "zh", "--method", "jieba", "--undo", lines=["  ", "\u3000"]) == ["", ""]


def test_jieba_without_chinese_says_what_it_does(command: Command) -> None:
    outcome = command("tokenize", "-l", "deu", "--method", "jieba", stdin=encoded(["Ja, Dr. Müller."]))
    assert (outcome.code, outcome.out) == (0, "Ja , Dr. Müller .\n")
    said = "phraseloom tokenize: warning: jieba is for Chinese; this text is deu, so --method moses is used, as in a recipe"
    assert outcome.err == said + "\n"


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
def test_one_line_stays_one(line: str) -> None:
    normaliser = Normaliser(TextConfig(tokenize="moses", normalize="moses"), "en")
    done = normaliser(line)
    assert "\n" not in done
    assert "\n" not in normaliser.detokenise(done)
    assert "\n" not in normaliser.detokenise(line)


def test_files(command: Command, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(encoded(LINES))
    (tmp_path / "text.gz").write_bytes(gzip.compress(encoded(LINES)))
    expected = printed(command, "-l", "en", lines=LINES)
    for name in ("text", "text.gz"):
        assert printed(command, "-l", "en", name, lines=[]) == expected
    assert printed(command, "-l", "en", "-", lines=LINES) == expected


def test_what_was_changed_in_reading_is_said(command: Command) -> None:
    outcome = command("tokenize", "-l", "en", stdin=b"\xef\xbb\xbfa\r\nb,\r\n")
    assert (outcome.code, outcome.out) == (0, "a\nb ,\n")
    assert outcome.err == (
        "phraseloom tokenize: stdin: 2 lines ended by \\r\\n, read as \\n (first: line 1)\n"
        "phraseloom tokenize: stdin: 1 byte order mark at the beginning, left out (first: line 1)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        ([], b"", 2, "Missing option '-l'"),
        (["-l", "en", "none"], b"", 1, "none: text file not found"),
        (["-l", "en"], b"\xff\n", 1, "stdin:1: invalid UTF-8: byte 1"),
        (["-l", "en", "latin"], b"", 1, "latin:3: invalid UTF-8: byte 2"),
        (["-l", "en", "--undo", "--lowercase"], b"", 2, "--undo takes neither --normalize nor --lowercase"),
        (["-l", "en", "--undo", "--normalize"], b"", 2, "--undo takes neither --normalize nor --lowercase"),
        (["-l", "en", "--method", "spacy"], b"", 2, "'--method'"),
    ],
)
def test_what_is_refused(
    arguments: list[str], stdin: bytes, code: int, message: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "latin").write_bytes(b"a\nb\nc\xff\n")
    outcome = command("tokenize", *arguments, stdin=stdin)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.is_one_line_of("tokenize"), outcome


def test_truecasing(command: Command, tmp_path: Path) -> None:
    """Learned on one text and used on another; what is undone begins in upper case, as `translate` writes it."""
    text, model = tmp_path / "train", tmp_path / "en.truecase"
    lines = ["The old house, Peter.", "Peter sees the house!", "He sees the old house."]
    text.write_bytes(encoded(lines))
    done = command("tokenize", "-l", "en", text, "--learn-truecaser", model)
    assert (done.code, done.err) == (0, "")
    assert done.out.split("\n")[:2] == ["the old house , Peter .", "Peter sees the house !"]
    assert printed(command, "-l", "en", "--truecaser", model, lines=["The house.", ""]) == ["the house .", ""]
    undone = printed(command, "-l", "en", "--undo", "--undo-truecase", lines=["the house . he sees it", ""])
    assert undone == ["The house. He sees it", ""]
    again = command("tokenize", "-l", "en", text, "--learn-truecaser", model)
    assert again.code == 2 and again.is_one_line_of("tokenize")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--truecaser", "none"], 1, "none: truecaser not found"),
        (["--learn-truecaser", "a"], 2, "so it cannot be standard input"),
        (["--truecaser", "a", "--lowercase"], 2, "one of --lowercase, --truecaser and --learn-truecaser"),
        (["--undo", "--truecaser", "a"], 2, "--undo goes with --undo-truecase"),
        (["--undo-truecase"], 2, "--undo goes with --undo-truecase"),
    ],
)
def test_truecasing_that_is_refused(arguments: list[str], code: int, message: str, command: Command) -> None:
    outcome = command("tokenize", "-l", "en", *arguments, stdin=b"a\n")
    assert outcome.code == code and message in outcome.err
    assert outcome.is_one_line_of("tokenize")
