"""What a user can get wrong, for every verb: one line with what, where and the way out; exit 1 or 2; nothing written.

Reliability.md O3–O6 and S1–S4: wrong key, missing file, folder for a file, recipe of a later format,
truncated model, empty corpus, pickles under the names that we read.
"""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import RECIPE, Command, write_text


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with its content."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() and not p.is_fifo() else None
        for p in sorted(folder.rglob("*"))
        if p.name != ".lock"
    }


def make_missing(path: Path) -> None:
    """Nothing there."""


def make_folder(path: Path) -> None:
    path.mkdir()


def make_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 20)


def make_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Marker()))


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


class Marker:
    """Unpickling this makes a file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("pickle_was_run",)


KINDS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("make_"): make for name, make in list(globals().items()) if name.startswith("make_")
}

# (verb, arguments with {} for the path in question, what it should be)
PLACES = [
    ("prepare", ["{}"], "file"),
    ("train", ["{}"], "file"),
    ("evaluate", ["-r", "{}", "good.txt"], "file"),
    ("evaluate", ["-r", "good.txt", "{}"], "file"),
    ("evaluate", ["-r", "good.txt", "good.txt", "-s", "{}", "--by-length", "3"], "file"),
    ("subwords", ["train", "out", "{}"], "file"),
    ("subwords", ["apply", "{}"], "folder"),
    ("subwords", ["undo", "{}"], "folder"),
    ("translate", ["{}"], "folder"),
    ("score", ["{}"], "folder"),
    ("average", ["out", "{}"], "folder"),
    ("average", ["out", "{}", "--last", "2"], "folder"),
    ("inspect", ["{}"], "folder"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("verb", "arguments", "wanted"), PLACES, ids=[" ".join((p[0], *p[1])) for p in PLACES])
def test_a_path_of_the_wrong_kind(
    verb: str, arguments: list[str], wanted: str, kind: str, command: Command, tmp_path: Path
) -> None:
    if verb == "subwords" and arguments[0] == "train" and kind in ("binary", "empty"):
        pytest.skip("text of another kind, see tests of subwords")
    (tmp_path / "good.txt").write_bytes(b"a b c\n")
    path = tmp_path / "thing"
    KINDS[kind](path)
    before = snapshot(tmp_path)
    outcome = command(verb, *(a.replace("{}", str(path)) for a in arguments), stdin=b"a\tb\n")
    assert outcome.code in (1, 2), outcome
    assert outcome.is_one_line_of(verb), outcome.err
    assert "thing" in outcome.err
    assert snapshot(tmp_path) == before


# (verb, arguments with {} for a text that is read more than once)
READ_AGAIN = [
    ("align", ["train", "-s", "{}", "-t", "good.txt", "-o", "out"]),
    ("align", ["apply", "model", "-s", "good.txt", "-t", "{}", "-o", "out"]),
    ("decontaminate", ["-s", "{}", "-t", "good.txt", "--held-out-source", "held.txt", "-o", "out"]),
    ("embeddings", ["check", "{}"]),
    ("embeddings", ["check", "good.vec", "--text", "{}"]),
    ("embeddings", ["train", "{}", "--min-count", "1", "-o", "out.vec"]),
    ("fertility", ["train", "model", "-s", "{}", "--labels", "good.txt", "-o", "out"]),
    ("phrases", ["filter", "candidates", "-t", "{}", "--tags", "good.txt", "-o", "out"]),
    ("phrases", ["mwt", "-s", "{}", "-t", "good.txt", "-a", "links", "--table", "good.txt", "-o", "out"]),
    ("phrases", ["segment", "{}", "--table", "good.txt", "-s", "good.txt", "-a", "links"]),
    ("subwords", ["train", "out", "{}"]),
    ("tokenize", ["-l", "en", "{}", "--learn-truecaser", "out"]),
]


@pytest.mark.parametrize(("verb", "arguments"), READ_AGAIN, ids=[" ".join((v, *a)) for v, a in READ_AGAIN])
def test_a_pipe_for_a_text_that_is_read_again(
    verb: str, arguments: list[str], command: Command, tmp_path: Path
) -> None:
    """`<(zcat text.gz)` is empty when it is read again, so it is refused before it is read."""
    if arguments[:2] == ["train", "{}"]:
        pytest.importorskip("gensim")
    texts = {"good.txt": "A b c\n" * 3, "held.txt": "d e\n", "links": "0-0\n" * 3, "good.vec": "2 1\nb 1\nc 2\n"}
    for name, text in {**texts, "candidates": "b c\tx\t2\t2\n"}.items():
        (tmp_path / name).write_text(text)
    assert command("align", "train", "-s", "good.txt", "-t", "good.txt", "-o", "model").code == 0
    before = snapshot(tmp_path)
    reading, writing = os.pipe()
    os.write(writing, (tmp_path / "good.txt").read_bytes())
    os.close(writing)
    outcome = command(verb, *(a.replace("{}", f"/dev/fd/{reading}") for a in arguments))
    os.close(reading)
    assert (outcome.code, outcome.out) == (1, "")
    assert f"/dev/fd/{reading}: this is a pipe or device; " in outcome.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(("verb", "arguments", "wanted"), PLACES, ids=[" ".join((p[0], *p[1])) for p in PLACES])
@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "\x1b[31m", "dir/none", "\ud800"])
def test_a_strange_name(
    verb: str, arguments: list[str], wanted: str, name: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "good.txt").write_bytes(b"a b c\n")
    outcome = command(verb, *(a.replace("{}", name) for a in arguments), stdin=b"a\tb\n")
    assert outcome.code in (1, 2), outcome
    assert outcome.is_one_line_of(verb), outcome.err
    assert "\x1b" not in outcome.err


@pytest.mark.parametrize(("verb", "arguments"), [(p[0], p[1]) for p in PLACES if p[2] == "file"])
def test_an_unreadable_file(
    verb: str, arguments: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, hence the refusal is simulated where files.py asks for it."""
    for name in ("good.txt", "thing"):
        (tmp_path / name).write_bytes(b"a b c\n")
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode, **k: False if str(path).endswith("thing") else real(path, mode, **k)
    )
    outcome = command(verb, *(a.replace("{}", "thing") for a in arguments))
    assert outcome.code in (1, 2), outcome  # typer may look first
    assert outcome.is_one_line_of(verb), outcome.err
    assert "permission denied" in outcome.err or "not readable" in outcome.err


def recipes() -> Iterator[tuple[str, str, str]]:
    """(what is wrong, recipe text, what the message must hold)."""
    yield "later format", RECIPE.replace("format: 1", "format: 2"), "recipe.yaml:1: recipe format 2"
    yield "unknown key", RECIPE.replace("  heads: 2", "  head: 2"), "did you mean heads?"
    yield "unknown section", RECIPE + "trainings: {}\n", "did you mean training?"
    yield "key twice", RECIPE + "name: again\n", "given twice"
    yield "no data", "format: 1\nname: x\n", "data is missing"
    yield "wrong type", RECIPE.replace("width: 8", "width: wide"), "recipe.yaml:12: model.width"
    yield "width and heads", RECIPE.replace("heads: 2", "heads: 3"), "heads"
    yield "evil kind", RECIPE.replace("kind: transformer", "kind: os.system"), "kind"
    yield "tag", RECIPE.replace("name: toy", "name: !!python/object/apply:os.mkdir [evil]"), "recipe.yaml:2"
    yield "alias", RECIPE + "x: &a [1]\ny: *a\n", "anchors"
    yield "not a mapping", "- 1\n", "mapping"
    yield "not yaml", "a: [1\n", "not valid YAML"
    yield "latin-1", RECIPE + "# M\udce4dchen\n", "UTF-8"
    yield "huge", "#" * 2_000_000, "larger than"
    yield "deep", "a: " + "[" * 300, "recipe.yaml"
    yield "empty", "", "mapping"
    yield "no base", "base: none.yaml\n" + RECIPE, "none.yaml"


@pytest.mark.parametrize(("what", "text", "message"), list(recipes()), ids=[r[0] for r in recipes()])
@pytest.mark.parametrize("verb", ["prepare", "train"])
def test_recipes_that_cannot_be_used(
    verb: str, what: str, text: str, message: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    before = snapshot(tmp_path)
    outcome = command(verb, "recipe.yaml")
    assert outcome.is_one_line_of(verb), outcome.err
    assert outcome.code in (1, 2)
    assert "recipe.yaml" in outcome.err or what == "no base"
    assert message in outcome.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.max_update=3", "did you mean training.max_updates?"),
        ("nonsense", "key.sub=value"),
        ("=3", "key.sub=value"),
        ("training.max_updates=-3", "training.max_updates"),
        ("training.max_updates=.nan", "training.max_updates"),
        ("data.train=!!python/name:os.system", "tag"),
        ("name.x.y=1", "name"),
    ],
)
@pytest.mark.parametrize("verb", ["prepare", "train"])
def test_overrides_that_cannot_be_used(
    verb: str, override: str, message: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_bytes(RECIPE.encode())
    outcome = command(verb, "recipe.yaml", override)
    assert outcome.code == 2
    assert outcome.is_one_line_of(verb), outcome.err
    assert message in outcome.err


CORPORA: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda f: (f / "train.de").unlink(), "train.de"),
    "folder": (lambda f: ((f / "train.de").unlink(), (f / "train.de").mkdir()), "this is a folder"),
    "empty": (lambda f: [(f / n).write_bytes(b"") for n in ("train.en", "train.de")], "empty"),
    "blank": (lambda f: [(f / n).write_bytes(b"\n \n") for n in ("train.en", "train.de")], "train"),
    "one line less": (lambda f: (f / "train.de").write_bytes((f / "train.de").read_bytes()[:-5]), ""),
    "other counts": (lambda f: (f / "train.de").write_bytes(b"ein\n"), "train.de"),
    "invalid UTF-8": (lambda f: (f / "train.de").write_bytes(b"\xff\n" * 120), "train.de:1"),
    "empty validation": (lambda f: [(f / n).write_bytes(b"") for n in ("valid.en", "valid.de")], "empty"),
}


@pytest.mark.parametrize("what", CORPORA)
def test_corpora_that_cannot_be_prepared(what: str, command: Command, tmp_path: Path) -> None:
    write_text(tmp_path)
    damage, message = CORPORA[what]
    damage(tmp_path)
    before = snapshot(tmp_path)
    outcome = command("prepare", "recipe.yaml")
    if what == "one line less":  # only the last line end and letters are gone: still as many lines
        assert outcome.code == 0
        return
    assert outcome.code in (1, 2), outcome
    assert outcome.is_one_line_of("prepare"), outcome.err
    assert message in outcome.err
    assert snapshot(tmp_path) == before


def test_earlier_work_is_not_overwritten(command: Command, project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True, symlinks=True)
    before = snapshot(tmp_path)
    for arguments in (
        ["prepare", "recipe.yaml"],
        ["world", "dataset"],
        ["average", "run", "run/best"],
        ["subwords", "train", "dataset", "train.en"],
        ["train", "recipe.yaml", "--run", "dataset"],
    ):
        outcome = command(*arguments)
        assert outcome.code == 2, outcome
        assert outcome.is_one_line_of(arguments[0]), outcome.err
        assert snapshot(tmp_path) == before, arguments


MODEL_FILES = ["config.json", "model.safetensors", "generation_config.json", "manifest.json"]


def copied(project: Path, folder: Path) -> Path:
    """A copy of the best model."""
    return Path(shutil.copytree((project / "run" / "best").resolve(), folder))


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "flipped", "pickle", "folder"])
@pytest.mark.parametrize("name", MODEL_FILES)
@pytest.mark.parametrize("verb", ["translate", "score", "average", "inspect"])
def test_damaged_models(verb: str, name: str, damage: str, command: Command, project: Path, tmp_path: Path) -> None:
    model = copied(project, tmp_path / "model")
    path, data = model / name, (model / name).read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        flipped = bytes([data[0] ^ 1]) + data[1:]
        new = {"cut": data[: len(data) // 2], "empty": b"", "flipped": flipped, "pickle": pickle.dumps(Marker())}
        path.write_bytes(new[damage])
    outcome = command(verb, *(["out"] if verb == "average" else []), "model", stdin=b"a\tb\n")
    assert outcome.code == 1, outcome
    assert not (tmp_path / "pickle_was_run").exists()
    assert not (tmp_path / "out").exists()
    if verb == "inspect":
        assert "problem: " in outcome.out
        assert outcome.err == ""
    else:
        assert outcome.is_one_line_of(verb), outcome.err
        assert name in outcome.err or "model" in outcome.err


def test_a_file_that_unfolds_to_one_endless_line_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "ref").write_bytes(b"a\n")
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"a" * 80_000_000, 1))
    outcome = command("evaluate", "-r", "ref", "bomb.gz")
    assert outcome.code == 1
    assert outcome.is_one_line_of("evaluate"), outcome.err
    assert "bomb.gz" in outcome.err
