"""`phraseloom align train` and `align apply` as commands."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from phraseloom.align.links import read_links

from .conftest import Command, phraseloom

WORDS = {"a": "ein", "dog": "hund", "cat": "katze", "runs": "rennt", "sleeps": "schläft", "red": "rot", "here": "hier"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """en, de: 200 pairs of up to 7 different words, word by word; pairs 3 and 5 have a blank side."""
    rng = random.Random(3)
    lines = [rng.sample(list(WORDS), rng.randint(1, 7)) for _ in range(200)]
    english = [" ".join(line) for line in lines]
    german = [" ".join(WORDS[word] for word in line) for line in lines]
    english[2], german[4] = "", " "
    (tmp_path / "en").write_bytes("".join(line + "\n" for line in english).encode())
    (tmp_path / "de").write_bytes("".join(line + "\n" for line in german).encode())
    return tmp_path


TRAIN = ("align", "train", "-s", "en", "-t", "de", "-o", "model")


def test_train_and_apply(command: Command, text: Path) -> None:
    trained = command(*TRAIN, "--links", "links")
    assert (trained.code, trained.out) == (0, ""), trained.err
    told = trained.err.splitlines()
    assert len(told) == 12
    assert all(line.startswith("phraseloom align: ") for line in told)
    assert told[0].startswith("phraseloom align: forward 1 of 5: ")
    assert told[0].endswith(" bits a word, tension 4.00")
    assert told[9].startswith("phraseloom align: backward 5 of 5: ")
    assert told[10].startswith("phraseloom align: 198 pairs; left out: 2 with a blank side; word pairs kept: ")
    assert told[11] == "phraseloom align: links: 2 of 200 pairs have a blank side: a blank line"
    links = read_links(text / "links")
    words = [len(line.split()) for line in (text / "en").read_bytes().decode().split("\n")[:-1]]
    expected = [{(i, i) for i in range(0 if n == 4 else count)} for n, count in enumerate(words)]
    assert [set(one) for one in links] == expected

    applied = command("align", "apply", "model", "-s", "en", "-t", "de")
    assert applied.code == 0
    assert applied.out == (text / "links").read_bytes().decode()
    assert applied.err == "phraseloom align: warning: 2 of 200 pairs have a blank side: a blank line\n"
    to_file = command("align", "apply", "model", "-s", "en", "-t", "de", "-o", "again")
    assert (to_file.code, to_file.out) == (0, "")
    assert (text / "again").read_bytes() == (text / "links").read_bytes()


def test_what_reading_changes_is_reported(command: Command, text: Path) -> None:
    (text / "en").write_bytes((text / "en").read_bytes().replace(b"\n", b"\r\n", 3))
    said = command(*TRAIN).err.splitlines()
    assert said[-1] == r"phraseloom align: en: 3 lines ended by \r\n, read as \n (first: line 1)"
    assert command("align", "train", "-s", "en", "-t", "en", "-o", "same").code == 0


@pytest.mark.usefixtures("text")
def test_apply_to_other_text_from_files_and_from_standard_input(command: Command, text: Path) -> None:
    assert command(*TRAIN, "--model", "ibm1").code == 0
    pairs = [("dog red", "rot hund"), ("", "rot"), ("bird red", "vogel rot"), ("cat", "die katze")]
    (text / "s.gz").write_bytes(gzip.compress("".join(s + "\n" for s, _ in pairs).encode()))
    (text / "t").write_bytes("".join(t + "\n" for _, t in pairs).encode())
    files = command("align", "apply", "model", "-s", "s.gz", "-t", "t", "--method", "forward")
    assert files.code == 0, files.err
    assert files.out.split("\n")[:3] == ["0-1 1-0", "", "0-0 1-1"]
    stdin = "".join(f"{s}\t{t}\n" for s, t in pairs).encode()
    piped = command("align", "apply", "model", "--method", "forward", stdin=stdin)
    assert (piped.code, piped.out, piped.err) == (0, files.out, files.err)
    bad = command("align", "apply", "model", stdin=b"dog\thund\ncat\n")
    assert bad.code == 1
    assert "stdin:2: 1 tab-separated field instead of 2" in bad.err


@pytest.mark.usefixtures("text")
def test_scores_are_probabilities(command: Command) -> None:
    assert command(*TRAIN).code == 0
    plain = command("align", "apply", "model", "-s", "en", "-t", "de").out
    scored = command("align", "apply", "model", "-s", "en", "-t", "de", "--scores").out
    fields = [field.partition("=") for line in scored.splitlines() for field in line.split()]
    assert [link for link, _, _ in fields] == plain.split()
    assert all(0 < float(weight) <= 1 and len(weight) == 6 for _, _, weight in fields)


@pytest.mark.usefixtures("text")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_one_direction(direction: str, command: Command, text: Path) -> None:
    one = command(*TRAIN, "--direction", direction, "--links", "one", "--model", "ibm1")
    assert one.code == 0, one.err
    assert "tension" not in one.err
    both = command(*TRAIN, "--links", "both", "--method", direction, "--model", "ibm1", "--jobs", "2", "--overwrite")
    assert both.code == 0
    assert (text / "one").read_bytes() == (text / "both").read_bytes()
    assert command(*TRAIN, "--direction", direction, "--overwrite").code == 0
    wrong = command("align", "apply", "model", "-s", "en", "-t", "de", "--method", "union")
    assert wrong.code == 2
    assert wrong.is_one_line_of("align")


@pytest.mark.usefixtures("text")
def test_options_reach_the_model(command: Command, text: Path) -> None:
    found = set()
    for options in (
        (),
        ("--iterations", "2"),
        ("--no-variational-bayes",),
        ("--alpha", "0.5"),
        ("--p-null", "0.3"),
        ("--tension", "8"),
        ("--optimize-tension",),
        ("--model", "ibm1"),
        ("--max-words", "5"),
    ):
        outcome = command(*TRAIN, *options, "--overwrite")
        assert outcome.code == 0, outcome.err
        found.add((text / "model").read_bytes())
    assert len(found) == 9
    assert "left out: 2 with a blank side, " in outcome.err
    assert " of more than 5 words; " in outcome.err


def test_case(command: Command, text: Path) -> None:
    (text / "en").write_bytes(b"Dog cat\ncat\n" * 5)
    (text / "de").write_bytes(b"katze Hund\nkatze\n" * 5)
    assert command(*TRAIN, "--lowercase", "--model", "ibm1").code == 0
    assert command("align", "apply", "model", stdin=b"CAT DOG\tHUND KATZE\n").out == "0-1 1-0\n"


@pytest.mark.usefixtures("text")
def test_the_same_bytes_in_another_process(text: Path) -> None:
    models = []
    for name, seed, jobs in (("one", "1", "1"), ("two", "2", "2")):
        done = phraseloom(*TRAIN[:-1], name, "--jobs", jobs, cwd=text, PYTHONHASHSEED=seed, LC_ALL="C")
        assert done.returncode == 0, done.stderr
        models.append((text / name).read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--model", "hmm"), "hmm"),
        (("--method", "union"), "--method says how --links are made"),
        (("--method", "best", "--links", "l"), "no method 'best'"),
        (("--method", "union", "--links", "l", "--direction", "forward"), "needs a model of the backward direction"),
        (("--links", "model"), "model: -o and --links are the same file"),
        (("--links", "en"), "en: --links is also an input of the command"),
        (("--alpha", "0"), "alpha 0"),
        (("--p-null", "1"), "null probability 1"),
        (("--tension", "15"), "tension 15"),
        (("--jobs", "3"), "less than or equal to 2"),
    ],
)
def test_wrong_options_are_refused_before_work(
    options: tuple[str, ...], says: str, command: Command, text: Path
) -> None:
    before = sorted(text.iterdir())
    outcome = command(*TRAIN, *options)
    assert outcome.code == 2
    assert outcome.is_one_line_of("align")
    assert says in outcome.err
    assert "bits a word" not in outcome.err
    assert sorted(text.iterdir()) == before


def test_bad_files_are_named(command: Command, text: Path) -> None:
    (text / "short").write_bytes(b"ein\n")
    outcome = command("align", "train", "-s", "en", "-t", "short", "-o", "model")
    assert (outcome.code, outcome.err) == (
        1,
        "phraseloom align: en: 200 lines, but short has 1; the files must be parallel, line by line\n",
    )
    (text / "bytes").write_bytes(b"\xff\n")
    outcome = command("align", "train", "-s", "bytes", "-t", "short", "-o", "model")
    assert outcome.code == 1
    assert outcome.err.startswith("phraseloom align: bytes:1: invalid UTF-8")
    (text / "blank").write_bytes(b"\n")
    outcome = command("align", "train", "-s", "blank", "-t", "short", "-o", "model")
    assert outcome.code == 1
    assert "no sentence pair to learn from" in outcome.err
    for name, says in (("none", "not found"), ("de", "not a whole safetensors file")):
        outcome = command("align", "apply", name, "-s", "en", "-t", "de")
        assert outcome.code == 1
        assert outcome.is_one_line_of("align")
        assert says in outcome.err
    outcome = command("align", "apply", "de", "-s", "en")
    assert outcome.code == 2
    assert "-s and -t go together" in outcome.err
    assert not (text / "model").exists()


@pytest.mark.usefixtures("text")
def test_invalid_utf8_is_replaced_and_counted_when_applied(command: Command) -> None:
    assert command(*TRAIN).code == 0
    outcome = command("align", "apply", "model", stdin=b"dog \xff\thund x\n")
    assert outcome.out == "0-0 1-1\n"
    assert outcome.err == "phraseloom align: warning: input: 1 line with invalid UTF-8, replaced (first: line 1)\n"


def test_scratch_files_give_the_same_model_and_are_removed(command: Command, text: Path) -> None:
    assert command(*TRAIN).code == 0
    scratch = ("--scratch", "temporary")
    assert command("align", "train", "-s", "en", "-t", "de", "-o", "again", *scratch).code == 0
    assert (text / "again").read_bytes() == (text / "model").read_bytes()
    assert list((text / "temporary").iterdir()) == []
    (text / "file").write_text("")
    refused = command("align", "train", "-s", "en", "-t", "de", "-o", "third", "--scratch", "file")
    assert (refused.code, refused.err.count("\n")) == (1, 1)


def test_a_model_of_the_other_direction_or_of_other_languages_is_reported(command: Command, text: Path) -> None:
    assert command(*TRAIN).code == 0
    applied = command("align", "apply", "model", "-s", "de", "-t", "en")
    knows, use = (
        "phraseloom align: warning: model knows only ",
        "; use a model of this pair of languages, for text tokenised",
    )
    assert applied.code == 0
    both = "0% of the source words and 0% of the target words: it is of the other direction"
    assert applied.err.startswith(f"{knows}{both}{use}")
    (text / "other").write_bytes((text / "en").read_bytes().upper())
    assert command("align", "apply", "model", "-s", "other", "-t", "de").err.startswith(
        f"{knows}0% of the source words{use}"
    )
    assert "knows only" not in command("align", "apply", "model", stdin=b"a dog owl\tein hund eule\n\t\n").err
    assert "knows only 33% of the target words;" in command("align", "apply", "model", stdin=b"a dog\tein x y\n").err
