"""`reproduce TABLE --data`: which corpora a table reads, whether they are right, and where to get them."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phraseloom.cli.main import run
from phraseloom.errors import CorruptError, PhraseloomError
from phraseloom.recipe import load_recipe
from phraseloom.reproduce.corpora import check_data, folder_of, read_sources
from phraseloom.reproduce.steps import Step, StepScope, recipe_files

ROOT = Path(__file__).resolve().parents[2]
TEXT = b"a small corpus\nof two lines\n"
KNOWN = {"bytes": len(TEXT), "sha256": hashlib.sha256(TEXT).hexdigest()}


def sources(recipes: Path, **files: Any) -> None:
    corpus = {"name": "A corpus", "get": "https://example.org/corpus", "about": "One line a pair.", "files": files}
    recipes.mkdir(exist_ok=True)
    (recipes / "corpora.json").write_text(json.dumps({"format": 1, "corpora": {"corpus": corpus}}))


def step(root: Path, *names: str) -> Step:
    reads = tuple((name, root / name) for name in names)
    return Step("s", StepScope(), ("x",), "0" * 64, root, reads=reads)


def test_each_state_of_a_file(tmp_path: Path) -> None:
    sources(tmp_path / "recipes", **dict.fromkeys(("a", "b.gz", "c.xz", "short", "other", "cut.gz", "gone"), KNOWN))
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a").write_bytes(TEXT)
    (folder / "b.gz").write_bytes(gzip.compress(TEXT, 1))
    (folder / "c.xz").write_bytes(lzma.compress(TEXT))
    (folder / "short").write_bytes(TEXT[:-1])
    (folder / "other").write_bytes(TEXT.replace(b"two", b"six"))
    (folder / "cut.gz").write_bytes(gzip.compress(TEXT)[:-9])
    (folder / "free").write_bytes(b"x\n")
    names = ["a", "b.gz", "c.xz", "short", "other", "cut.gz", "gone", "free"]
    steps = [step(tmp_path, *(f"corpus/{name}" for name in names)), step(tmp_path, "corpus/a", "alone/b")]
    checked = check_data(steps, str(tmp_path), tmp_path / "recipes")
    states = {file.name.partition("/")[2]: file.state for file in checked.files}
    assert states == {
        "a": "right",
        "b.gz": "right",
        "c.xz": "right",
        "short": "different",
        "other": "different",
        "cut.gz": "unreadable",
        "gone": "missing",
        "free": "unknown",
        "b": "missing",
    }
    assert {file.name: file.steps for file in checked.files}["corpus/a"] == 2
    text = checked.text()
    assert "corpus/short   another text: 27 bytes, not 28\n" in text
    assert "corpus/: A corpus. Get it: https://example.org/corpus. One line a pair.\n" in text
    assert "alone/: corpora.json does not say where to get it" in text
    with pytest.raises(
        PhraseloomError, match=r"5 files of 9 cannot be used, first alone/b \(missing\); get or replace"
    ):
        checked.require()
    assert not checked.data()["usable"]


def test_a_table_without_corpora_and_a_bad_list(tmp_path: Path) -> None:
    checked = check_data([step(tmp_path)], ".", tmp_path)
    checked.require()
    assert checked.text() == "no step reads a corpus\n"
    for content in ('{"format": 2, "corpora": {}}', '{"format": 1, "corpora": {"a": {"name": "x"}}}', "[]", "{"):
        (tmp_path / "corpora.json").write_text(content)
        with pytest.raises(CorruptError) as caught:
            read_sources(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*more: str) -> tuple[int, str, str]:
        code = run(["reproduce", "002-table1", "--data-root", str(tmp_path), "--folder", str(tmp_path / "out"), *more])
        return (code, *capsys.readouterr())

    return call


def test_the_command(tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = command("--scale", "small", "--data")
    assert code == 1 and "multi30k/train.en.gz" in out and "Get it: https://github.com/multi30k/dataset" in out
    assert err.count("\n") == 1 and "6 files of 6 cannot be used" in err
    code, out, err = command("--scale", "small", "--data", "--json")
    assert code == 1 and {file["state"] for file in json.loads(out)["files"]} == {"missing"}
    assert command("--data") == (0, "no step reads a corpus\n", "")
    assert command("--data", "--plan")[0] == 2
    assert not (tmp_path / "out").exists()


def test_the_checksums_are_those_of_the_corpora(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]], shared: Path
) -> None:
    shutil.copytree(shared / "data" / "multi30k", tmp_path / "multi30k")
    code, out, err = command("--scale", "small", "--data", "--json")
    assert (code, err) == (0, "") and {file["state"] for file in json.loads(out)["files"]} == {"right"}


def test_the_list_knows_every_corpus_of_the_recipes() -> None:
    known = read_sources(ROOT / "recipes")
    named = {
        folder_of(name)
        for path in (ROOT / "recipes").rglob("paper00[0-4]/*.yaml")
        for name in recipe_files(load_recipe(path))
    }
    assert named - known.keys() == set()
    assert all(len(file.sha256) == 64 for source in known.values() for file in source.files.values())
