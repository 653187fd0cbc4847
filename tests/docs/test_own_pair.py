"""docs/own_pair.md and the five commands of README.md, run on the text of the built-in world as raw files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.page_runner import in_process, shell_lines, working_folder
from tests.docs.pages import ROOT

from phraseloom.cli.main import run

PAGE = ROOT / "docs" / "own_pair.md"
TINY = [
    "model.preset=tiny", "model.width=32", "model.ffn_width=32", "model.encoder.layers=1", "model.decoder.layers=1",
    "training.max_updates=3", "training.checkpoint_every=1", "training.processes=1", "training.bleu_every=0",
    "training.schedule.warmup=1",
]  # fmt: skip
SMALL = {
    "prepare": ["data.subwords.size=700"],
    "train": TINY,
    "translate": ["--beam", "1"],
    "evaluate": ["--bootstrap", "20"],
}


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """raw.en and raw.de, a few lines of which are there twice; so are the files that README begins with."""
    monkeypatch.chdir(working_folder(tmp_path))
    assert run(["world", "world", "--train", "400", "--valid", "5", "--test", "5", "--contrastive", "10"]) == 0
    for language, side in (("en", "source"), ("de", "target")):
        lines = (tmp_path / "world" / f"train.{language}").read_bytes()
        first = b"".join(line + b"\n" for line in lines.split(b"\n")[:3])
        (tmp_path / f"raw.{language}").write_bytes(lines + first)
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.{side}").write_bytes((tmp_path / "world" / f"{split}.{language}").read_bytes())
    return tmp_path


def test_own_pair(raw: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = list(shell_lines(PAGE))
    said = {}
    for line in lines:
        smaller = line
        if line.startswith(("head", "tail")):
            smaller = re.sub(r"\b(1000|2000|2001)\b", lambda m: str(int(m[0]) % 1000 + int(m[0]) // 100), line)
        said[line] = in_process(smaller, raw, SMALL, capsysbinary)
    twice = next(text for line, text in said.items() if "comm -12" in line)
    assert int(twice) == 3
    names = [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("source", "target")]
    sizes = [(raw / name).read_bytes().count(b"\n") for name in names]
    assert sizes == [403 - 20 - 3] * 2 + [10] * 4
    for name in ("test.translated", "averaged.translated", "phrasal.translated"):
        assert (raw / name).read_bytes().count(b"\n") == 10
    assert (raw / "runs" / "my-phrasal" / "best" / "config.json").is_file()
    assert any("BLEU" in text for line, text in said.items() if line.startswith("phraseloom evaluate"))


def test_readme(raw: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = [line for line in shell_lines(ROOT / "README.md") if not line.startswith("make")]
    assert [line.split()[1] for line in lines if line.startswith("phraseloom")] == [
        "prepare",
        "train",
        "translate",
        "evaluate",
    ]
    for line in lines:
        in_process(line, raw, {**SMALL, "evaluate": []}, capsysbinary)
    assert (raw / "test.translated").read_bytes().count(b"\n") == 5


ERRORS = [
    (["prepare", "my.yaml"], {}, "text file not found"),
    (
        ["prepare", "my.yaml"],
        {"train.source": b"a\nb\nc\n", "train.target": b"a\nb\n", "valid.source": b"a\n", "valid.target": b"a\n"},
        "line counts differ: 3 in",
    ),
    (
        ["prepare", "my.yaml"],
        {"train.source": b"ab\xff\n", "train.target": b"a\n", "valid.source": b"a\n", "valid.target": b"a\n"},
        "invalid UTF-8: byte 3 of the line is 0xff",
    ),
    (["prepare", "my.yaml", "data.subword.size=3"], {}, "unknown key data.subword; did you mean subwords?"),
    (
        ["prepare", "my.yaml"],
        {"train.source": b"a b\nc\n", "train.target": b"a b\nc\n", "valid.source": b"a\n", "valid.target": b"a\n"},
        "the text is too small for 8000 subwords; set data.subwords.size to at most",
    ),
    (
        ["prepare", "my.yaml"],
        {"datasets/my-model/x": b"", "train.source": b"a\n", "train.target": b"a\n"},
        "datasets/my-model: dataset folder is not empty",
    ),
    (["train", "my.yaml"], {}, "the prepared dataset is not there; run phraseloom prepare first"),
]


@pytest.mark.parametrize(("words", "files", "message"), ERRORS, ids=[message for *_, message in ERRORS])
def test_the_errors_of_the_table_are_those_of_the_program(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    words: list[str],
    files: dict[str, bytes],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_bytes((ROOT / "recipes" / "own" / "small.yaml").read_bytes())
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    assert run(words) in (1, 2)
    assert message in capsysbinary.readouterr().err.decode()
    assert message in PAGE.read_bytes().decode()
