"""docs/add_a_mechanism.md, followed literally in a copy of the package: files made, edits applied, commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, Block, blocks, commands

PAGE = ROOT / "docs" / "add_a_mechanism.md"
TEXT = PAGE.read_bytes().decode()
SMALL = {
    "world": ["--train", "300", "--valid", "20", "--test", "6", "--contrastive", "10"],
    "prepare": ["data.subwords.size=600"],
    "train": [
        "training.max_updates=2", "training.checkpoint_every=2", "training.processes=1", "training.schedule.warmup=1",
        "training.schedule.updates=100", "training.bleu_every=0", "model.width=32", "model.ffn_width=64",
    ],
    "translate": ["--beam", "1"],
}  # fmt: skip


def file_before(block: Block) -> str:
    """The last file that the text names before a block: the one that the block is, or changes."""
    before = "\n".join(TEXT.split("\n")[: block.line - 2])
    return re.findall(r"`((?:src|tests)/[\w/.]+\.py|\w+\.yaml)`", before)[-1]


def apply_diff(text: str, diff: str) -> str:
    """The text with one hunk applied; its context must be there exactly once."""
    lines = diff.rstrip("\n").split("\n")
    assert all(line[:1] in (" ", "+", "-", "") for line in lines)
    old = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
    new = "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))
    assert text.count(old) == 1, f"{text.count(old)} places for\n{old}"
    return text.replace(old, new)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with everything done that the page says."""
    folder = tmp_path_factory.mktemp("copy")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("src", "tests", "recipes"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    done, lines = [], []
    for block in blocks(TEXT):
        if block.language in ("python", "yaml"):
            path = folder / file_before(block)
            assert not path.exists(), f"{path.name} is called new"
            path.write_bytes(block.text.encode())
        elif block.language == "diff":
            path = folder / file_before(block)
            path.write_bytes(apply_diff(path.read_bytes().decode(), block.text).encode())
            lines += [line for line in block.text.split("\n") if line.startswith(("+", "-"))]
        done.append(block.language)
    assert done.count("python") == 2 and done.count("yaml") == 1, "one file and its test, one recipe"
    assert len(lines) == 1 and lines[0].startswith("+"), "one line in one table"
    return folder


# One interpreter for all commands: each is (words, file of standard input or null, file of standard output or null).
DRIVER = """
import io, json, sys
import phraseloom
from phraseloom.cli.main import run
print(phraseloom.__file__, file=sys.stderr)
for words, given, written in json.load(open("commands.json")):
    sys.stdin = io.TextIOWrapper(open(given or "/dev/null", "rb"))
    sys.stdout = io.TextIOWrapper(open(written, "wb"), write_through=True) if written else sys.__stdout__
    code = run(words)
    assert code == 0, (words, code)
    sys.stdout.flush()
"""


def python(copy: Path, *words: str, source: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Python in the copy, whose package (or that of `source`) comes before the one installed."""
    env = os.environ | {"PYTHONPATH": str(source or copy / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=copy, env=env, capture_output=True, check=False)


def pytest_in(copy: Path, chosen: str, *paths: str, source: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    given = ["-m", "pytest", "-p", "no:cacheprovider", "-x", *paths, "-k", chosen]
    return python(copy, *given, source=source)


def test_the_recipe_trains_and_translates(copy: Path) -> None:
    """The commands of the page in their order, with less data and two updates."""
    wanted = []
    for command in commands(PAGE):
        if command.inline or command.words[0] != "phraseloom":
            continue
        verb = command.words[1]
        files = ("demo/world/test.en", "test.de") if verb == "translate" else (None, f"{verb}.out")
        wanted.append(([*command.words[1:], *SMALL.get(verb, [])], *files))
    assert [words[0] for words, *_ in wanted] == [
        "world", "prepare", "train", "inspect", "translate", "evaluate", "analyse",
    ]  # fmt: skip
    (copy / "commands.json").write_bytes(json.dumps(wanted).encode())
    done = python(copy, "-c", DRIVER)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert done.stderr.decode().startswith(str(copy / "src" / "phraseloom")), "not the copy was run"
    assert "biased" in (copy / "runs" / "biased" / "config.yaml").read_bytes().decode()
    assert (copy / "spans.txt").read_bytes().count(b"\n") == 6
    assert b"cross" in (copy / "analyse.out").read_bytes()


@pytest.mark.full
def test_its_own_test_and_a_part_of_the_contract(copy: Path) -> None:
    some = "bias or (biased and heterogeneous_1-2 and not keys and (steps_equal or padding_never))"
    done = pytest_in(copy, some, "tests/layers/test_biased.py", "tests/contracts/test_attention.py")
    assert done.returncode == 0, done.stdout.decode()[-3000:]


@pytest.mark.full
def test_the_whole_contract_and_the_style(copy: Path) -> None:
    done = pytest_in(copy, "biased", "tests/contracts/test_attention.py")
    number = re.search(r"seam .*: (\d+) tests", TEXT)
    assert number and re.search(rf"\b{number[1]} passed", done.stdout.decode()), done.stdout[-300:]
    changed = sorted(
        path for path in set(re.findall(r"`((?:src|tests)/[\w/.]+\.py)`", TEXT)) if (copy / path).is_file()
    )
    sources = [path for path in changed if path.startswith("src/")]
    assert len(sources) == 2
    tools = [["ruff", "check", *changed], ["ruff", "format", "--check", *changed], ["mypy", *sources]]
    for tool in tools:
        done = subprocess.run([sys.executable, "-m", *tool], cwd=copy, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode()


@pytest.mark.full
@pytest.mark.parametrize(
    ("find", "replace", "fails"),
    [
        ("return result + ", "return result / result.shape[-1] + ", "padding_never_matters"),
        ("self.bias.repeat(1, length) if by_time else ", "", "steps_equal_the_full_forward"),
    ],
    ids=["scores that know the padded length", "one layout for steps and wholes"],
)
def test_the_breaks_that_the_page_suggests_are_caught(
    copy: Path, tmp_path: Path, find: str, replace: str, fails: str
) -> None:
    source = tmp_path / "src"
    shutil.copytree(copy / "src", source)
    path = source / "phraseloom" / "layers" / "attention" / "biased.py"
    text = path.read_bytes().decode()
    assert text.count(find) == 1
    path.write_bytes(text.replace(find, replace).encode())
    done = pytest_in(copy, f"biased and {fails} and heterogeneous", "tests/contracts/test_attention.py", source=source)
    assert done.returncode == 1, done.stdout[-2000:]
