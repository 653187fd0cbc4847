"""`phraseloom embeddings train`, `nearest` as commands."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.phrases import embeddings
from phraseloom.phrases.embeddings import EmbeddingSettings
from phraseloom.text.vectors import Vectors, read_vectors, write_vectors
from phraseloom.text.word_vectors import whitened

from .conftest import Command

TRAIN = ["--width", "8", "--min-count", "2", "--epochs", "2"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Joined text, a phrase table, and vectors of which the neighbours are known."""
    rng = random.Random(1)
    words = ["went", "went_to", "the", "house", "quality_of_life", "é", "counts"]
    lines = [" ".join(rng.choices(words, k=rng.randint(0, 7))) for _ in range(60)] + ["once"]
    (tmp_path / "text").write_bytes("".join(line + "\n" for line in lines).encode())
    (tmp_path / "table").write_bytes(b"went to\t9\nat home\t4\nquality of life\t3\nhouse\t2\n")
    tokens = ["went", "went_to", "go", "zero", "at_home", "home"]
    matrix = np.array([[1, 0], [1, 0.1], [1, 0.2], [0, 0], [0, 1], [-0.1, 1]], np.float32)
    write_vectors(tmp_path / "small.vec", tokens, matrix)
    return tmp_path


def test_the_group(command: Command) -> None:
    outcome = command("embeddings", "--help")
    assert outcome.code == 0
    assert re.findall(r"^  (\w+) +\w", outcome.out.partition("Commands:")[2], re.MULTILINE) == [
        "train",
        "check",
        "nearest",
    ]


# --- train --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("files")
def test_vectors_of_a_text(command: Command) -> None:
    pytest.importorskip("gensim")
    outcome = command("embeddings", "train", "text", "-o", "out/a.vec", *TRAIN, "--vocabulary", "table")
    assert (outcome.code, outcome.out) == (0, "")
    vectors = read_vectors("out/a.vec", width=8)
    assert set(vectors.tokens[:7]) == {"went", "went_to", "the", "house", "quality_of_life", "é", "counts"}
    assert vectors.tokens[7:] == ["at_home"]  # once is too rare
    text = Path("text").read_bytes().decode()
    counts = [sum(line.split(" ").count(token) for line in text.split("\n")) for token in vectors.tokens[:7]]
    assert counts == sorted(counts, reverse=True)
    total = sum(counts) + 1
    share = f"{(total - 1) / total:.2%}"
    assert outcome.err.startswith(
        f"phraseloom embeddings: 61 lines, {total} tokens; 7 occur at least 2 times, {share} of the text\n"
        "phraseloom embeddings: epoch 1 of 2\nphraseloom embeddings: epoch 2 of 2\n"
        "phraseloom embeddings: out/a.vec: 8 vectors, 3 of phrases, 1 of them of n-grams alone\n"
    )


@pytest.mark.usefixtures("files")
def test_the_same_bytes_again_and_of_compressed_text(command: Command) -> None:
    pytest.importorskip("gensim")
    data = Path("text").read_bytes()
    Path("text.gz").write_bytes(gzip.compress(data))
    Path("text.xz").write_bytes(lzma.compress(data))
    for name in ("text", "text.gz", "text.xz"):
        assert command("embeddings", "train", name, "-o", f"{name}.vec", *TRAIN).code == 0
    assert command("embeddings", "train", "text", "-o", "packed.vec.gz", *TRAIN).code == 0
    assert command("embeddings", "train", "text", "-o", "seed.vec", *TRAIN, "--seed", "2").code == 0
    first = Path("text.vec").read_bytes()
    assert Path("text.gz.vec").read_bytes() == Path("text.xz.vec").read_bytes() == first
    assert gzip.decompress(Path("packed.vec.gz").read_bytes()) == first
    assert Path("seed.vec").read_bytes() != first


@pytest.mark.usefixtures("files")
def test_what_else_is_said(command: Command) -> None:
    pytest.importorskip("gensim")
    Path("text").write_bytes(Path("text").read_bytes().replace(b"\n", b"\r\n"))
    Path("table").write_bytes(b"ab\nabc\n")
    more = ["--ngrams", "5-6", "--vocabulary", "table", "--jobs", "2", "--rate", "0.00001"]
    outcome = command("embeddings", "train", "text", "-o", "a.vec", *TRAIN, *more)
    assert outcome.code == 0
    assert r"text: 61 lines ended by \r\n, read as \n (first: line 1)" in outcome.err
    assert "2 threads: another run will give other vectors; --jobs 1 gives the same again" in outcome.err
    assert "1 of them of n-grams alone; left out: 1 shorter than every n-gram" in outcome.err
    assert "warning" not in outcome.err


@pytest.mark.usefixtures("files")
def test_every_option_reaches_training(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def train(
        text: object, counted: object, settings: EmbeddingSettings, *, extra: list[str], jobs: int, report: object
    ) -> Vectors:
        given.extend((settings, extra, jobs))
        return Vectors(["a"], np.ones((1, 2), np.float32))

    monkeypatch.setattr(embeddings, "require_gensim", lambda: None)
    monkeypatch.setattr(embeddings, "train_vectors", train)
    options = (
        "--width 2 --epochs 3 --min-count 4 --window 6 --ngrams 2-7 --buckets 8 --negative 9 --rate 0.5 --sample 0.25 --seed 11"
        " --jobs 12 --vocabulary table"
    )
    assert command("embeddings", "train", "text", "-o", "a.vec", *options.split()).code == 0
    assert command("embeddings", "train", "text", "-o", "a.vec", "--overwrite").code == 0
    extra = ["at_home", "house", "quality_of_life", "went_to"]
    assert given == [EmbeddingSettings(2, 3, 4, 6, (2, 7), 8, 9, 0.5, 0.25, 11), extra, 12, EmbeddingSettings(), [], 1]


@pytest.mark.usefixtures("files")
def test_vectors_that_are_all_alike_are_warned_of(command: Command) -> None:
    """Every vector has moved the same way, and no word has told itself apart."""
    pytest.importorskip("gensim")
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghij", k=4)) for _ in range(150)]
    Path("short").write_bytes("".join(" ".join(rng.choices(words, k=7)) + "\n" for _ in range(2000)).encode())
    for more in ([], ["--whiten"]):
        options = ["-o", "a.vec", "--overwrite", "--width", "20", "--epochs", "5", *more]
        outcome = command("embeddings", "train", "short", *options)
        assert outcome.code == 0
        assert re.search(
            r"warning: two vectors have a cosine of (0\.9\d|1\.00) on average: the text is too short", outcome.err
        )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["text"], 2, "Missing option '-o'"),
        (["none", "-o", "a"], 1, "none: text file not found"),
        (["latin", "-o", "a"], 1, "latin:2: invalid UTF-8: byte 3"),
        (["blank", "-o", "a"], 1, "blank: a text without words"),
        (["text", "-o", "a", "--min-count", "900"], 1, "text: no token is there 900 times; the most frequent, "),
        (["text", "-o", "a", "--ngrams", "6-3"], 2, "--ngrams 6-3; the shortest and the longest length, such as 3-6"),
        (["text", "-o", "a", "--ngrams", "3"], 2, "--ngrams 3; "),
        (["text", "-o", "a", "--ngrams", "0-3"], 2, "--ngrams 0-3; "),
        (["text", "-o", "a", "--rate", "nan"], 2, "--rate nan; "),
        (["text", "-o", "a", "--rate", "inf"], 2, "--rate inf; "),
        (["text", "-o", "a", "--rate", "0"], 2, "--rate 0.0; "),
        (["text", "-o", "a", "--sample", "nan"], 2, "--sample"),
        (["text", "-o", "a", "--dimensions", "4"], 2, "--dimensions 4 without --whiten"),
        (["text", "-o", "a", "--whiten", "--dimensions", "301"], 2, "--dimensions 301 is more than --width 300"),
        (["text", "-o", "text"], 2, "text: -o is also an input of the command"),
        (["text", "-o", "table", "--vocabulary", "table"], 2, "table: -o is also an input of the command"),
        (["text", "-o", "folder"], 1, "folder: a file to write expected, but this is a folder"),
        (["text", "-o", "a", "--vocabulary", "holes"], 1, "holes:2: the line has no phrase"),
    ],
)
def test_what_train_refuses(arguments: list[str], code: int, message: str, command: Command, files: Path) -> None:
    pytest.importorskip("gensim")
    (files / "latin").write_bytes("a\nö\xfc\n".encode("latin-1").replace(b"\xf6", "ö".encode()))
    (files / "blank").write_bytes(b"\n \n")
    (files / "holes").write_bytes(b"went to\n\n")
    (files / "folder").mkdir()
    outcome = command("embeddings", "train", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.is_one_line_of("embeddings"), outcome
    assert not (files / "a").exists()


@pytest.mark.usefixtures("files")
def test_gensim_is_missed_before_anything_is_read(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    outcome = command("embeddings", "train", "none", "-o", "a")
    assert outcome.code == 2
    assert outcome.is_one_line_of("embeddings")
    assert "needs the package gensim; pip install 'phraseloom[embeddings]'" in outcome.err


@pytest.mark.usefixtures("files")
def test_whitened_vectors(command: Command) -> None:
    pytest.importorskip("gensim")
    assert command("embeddings", "train", "text", "-o", "plain.vec", *TRAIN).code == 0
    assert command("embeddings", "train", "text", "-o", "white.vec", *TRAIN, "--whiten", "--dimensions", "3").code == 0
    plain, white = read_vectors("plain.vec"), read_vectors("white.vec", width=3)
    assert white.tokens == plain.tokens
    expected = whitened(plain, 3).matrix_VM
    assert np.array_equal(white.matrix_VM, expected)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1)


# --- check --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("files")
def test_a_bad_table_is_a_warning_that_says_what_to_do(command: Command) -> None:
    """Rows with a common direction; the text repeats itself, so that the likeliest token is known."""
    rng, names = np.random.default_rng(1), [f"w{n}" for n in range(60)]
    rows = rng.standard_normal((60, 20)) * 0.6 ** np.arange(20) + 4 * np.eye(20)[0]
    write_vectors("bad.vec", names, rows)
    write_vectors("good.vec", names, rng.standard_normal((60, 20)))
    words = random.Random(2)
    lines = [" ".join(f"w{(3 * n + min(words.randrange(4), 2)) % 60}" for n in range(k, k + 8)) for k in range(400)]
    Path("corpus").write_bytes("".join(line + "\n" for line in lines).encode())
    bad = command("embeddings", "check", "bad.vec", "--text", "corpus", "--json", "bad.json")
    assert bad.code == 0
    assert (
        "bad.vec: two vectors have a cosine of 0." in bad.err and "whiten them (data.subwords.whiten: true)" in bad.err
    )
    assert re.search(r"nearest to the posterior mean is the likeliest +[\d.]+ % +[\d.]+ % +[\d.]+ % +[\d.]+ %", bad.out)
    found = json.loads(Path("bad.json").read_bytes())
    assert list(found["tables"]) == ["as they are", "centred", "whitened", "random"]
    assert found["tables"]["as they are"]["likeliest"] < found["tables"]["random"]["likeliest"]
    assert len(found["problems"]) == bad.err.count("warning") > 0
    good = command("embeddings", "check", "good.vec", "--text", "corpus")
    assert (good.code, good.err) == (0, "")
    short = command("embeddings", "check", "good.vec", "--size", "7")
    assert (short.code, short.err) == (0, "")
    assert re.search(r"^vectors +7 +7 +7 +7$", short.out, re.MULTILINE) and "posterior" not in short.out


@pytest.mark.usefixtures("files")
def test_vectors_that_lack_much_of_the_text_are_a_warning_and_most_of_it_an_error(command: Command) -> None:
    write_vectors("few.vec", ["a", "b", "c"], np.eye(3))
    Path("half").write_bytes(b"a b c d a c e f\n" * 40)
    half = command("embeddings", "check", "few.vec", "--text", "half", "--json", "half.json")
    assert half.code == 0
    assert "vectors for 62.5% of the 320 tokens of the text, 3 of 6 different ones\n" in half.out
    assert "warning: few.vec: vectors for 62.5% of the 320 tokens" in half.err
    assert json.loads(Path("half.json").read_bytes())["coverage"] == 0.625
    Path("foreign").write_bytes(b"a x y z w\n" * 40)
    foreign = command("embeddings", "check", "few.vec", "--text", "foreign")
    assert foreign.is_one_line_of("embeddings"), foreign
    assert (
        "few.vec: vectors for 20.0% of the 200 tokens of the text, 1 of 5 different ones (at least 40%" in foreign.err
    )


@pytest.mark.usefixtures("files")
def test_words_far_along_a_line_count_too(command: Command) -> None:
    write_vectors("few.vec", ["a", "b", "c"], np.eye(3))
    Path("long").write_bytes((b"a b c d " * 25 + b"x " * 300 + b"\n") * 20)
    outcome = command("embeddings", "check", "few.vec", "--text", "long")
    assert outcome.is_one_line_of("embeddings"), outcome
    assert "vectors for 18.8% of the 8,000 tokens of the text, 3 of 5 different ones (at least 40%" in outcome.err


@pytest.mark.usefixtures("files")
def test_tables_without_variance(command: Command) -> None:
    for rows, fault in ((1, "there is only one vector"), (3, "all vectors are the same")):
        write_vectors("same.vec", list("abc")[:rows], np.ones((rows, 2)))
        outcome = command("embeddings", "check", "same.vec", "--json", f"{rows}.json")
        assert outcome.code == 0 and f"warning: same.vec: {fault}\n" in outcome.err
        assert "center" not in outcome.err and "more text" in outcome.err
        found = json.loads(Path(f"{rows}.json").read_bytes())["tables"]["as they are"]
        assert found["effective_rank"] is None and found["share_of_64"] is None
        assert re.search(r"^effective rank +[^1 ]", outcome.out, re.MULTILINE) is None


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.vec"], 1, "none.vec: file of vectors not found"),
        (["small.vec", "--text", "none"], 1, "none: text file not found"),
        (["small.vec", "--text", "blank"], 1, "blank: a text without words"),
        (
            ["small.vec", "--text", "foreign"],
            1,
            "small.vec: none of the tokens has a vector other than 0 here; is this the text of",
        ),
        (["small.vec", "--text", "short"], 1, "the text is too short for the posterior-mean test"),
        (["text"], 1, "text:1: the first line is"),
        (["empty.vec"], 1, "empty.vec: the file has no vectors"),
        (["zero.vec"], 1, "zero.vec: none of the tokens has a vector other than 0 here"),
        (["small.vec", "--json", "small.vec"], 2, "small.vec: --json is also an input of the command"),
    ],
)
def test_what_check_refuses(arguments: list[str], code: int, message: str, command: Command) -> None:
    Path("blank").write_bytes(b"\n \n")
    Path("foreign").write_bytes(b"xyz abc\n" * 50)
    Path("short").write_bytes(b"went go\n")
    Path("empty.vec").write_bytes(b"0 2\n")
    Path("zero.vec").write_bytes(b"2 2\na 0 0\nb 0 0\n")
    outcome = command("embeddings", "check", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.is_one_line_of("embeddings"), outcome


# --- nearest ------------------------------------------------------------------------------------------------------------

NEAREST = """\
token    neighbour  cosine
───────  ─────────  ──────
went     went_to     0.995
         go          0.981
went_to  go          0.995
         went        0.995
"""


@pytest.mark.usefixtures("files")
def test_the_nearest_tokens(command: Command) -> None:
    outcome = command("embeddings", "nearest", "small.vec", "went", "went to", "-k", "2", "--json", "n.json")
    assert (outcome.code, outcome.out, outcome.err) == (0, NEAREST, "")
    found = json.loads(Path("n.json").read_bytes())
    assert {name: value for name, value in found.items() if name != "neighbours"} == {
        "format": 1, "kind": "nearest", "file": "small.vec", "count": 2, "phrases_only": False,
    }  # fmt: skip
    assert list(found["neighbours"]) == ["went", "went_to"]
    assert [token for token, _ in found["neighbours"]["went_to"]] == ["go", "went"]
    assert found["neighbours"]["went"][0][1] == pytest.approx(1.01**-0.5)


@pytest.mark.usefixtures("files")
def test_nearest_phrases(command: Command) -> None:
    outcome = command(
        "embeddings", "nearest", "small.vec", "went_to", "home", "zero", "--phrases-only", "--json", "n.json"
    )
    assert outcome.code == 0
    found = json.loads(Path("n.json").read_bytes())["neighbours"]
    assert {token: [one for one, _ in some] for token, some in found.items()} == {
        "went_to": ["at_home"], "home": ["at_home", "went_to"], "zero": [],
    }  # fmt: skip
    assert outcome.out.endswith("\nzero\n")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["small.vec"], 2, "Missing argument 'TOKEN'"),
        (["none.vec", "a"], 1, "none.vec: file of vectors not found"),
        (["small.vec", "wont"], 1, "small.vec: no vector of 'wont'; did you mean went"),
        (["small.vec", "qqq"], 1, "small.vec: no vector of 'qqq'\n"),
        (["small.vec", "at work"], 1, "no vector of 'at_work'"),
        (["text", "went"], 1, "text:1: the first line is"),
        (["small.vec", "went", "--json", "."], 1, "a file to write expected, but this is a folder"),
        (["small.vec", "went", "-k", "0"], 2, "'-k'"),
    ],
)
def test_what_nearest_refuses(arguments: list[str], code: int, message: str, command: Command) -> None:
    outcome = command("embeddings", "nearest", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.is_one_line_of("embeddings"), outcome
