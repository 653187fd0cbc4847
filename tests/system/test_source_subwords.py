"""Subwords of the source beside whole words, phrases and vectors of the target: from text to scores, on the built-in world."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.helpers import run_records

from phraseloom.cli.main import run as phraseloom
from phraseloom.decoding.translator import Translator
from phraseloom.report.run.folders import describe
from phraseloom.text.lines import write_lines
from phraseloom.text.vectors import write_vectors
from phraseloom.world.sampling import train_block

RECURRENT = {"kind": "recurrent", "layers": 1}
UNSEEN = "the grandmotherly zookeepers xylophoned ."

pytestmark = pytest.mark.usefixtures("one_process")


def recipe(folder: Path) -> dict[str, Any]:
    def files(name: str) -> list[dict[str, str]]:
        return [{"source": str(folder / f"{name}.en"), "target": str(folder / f"{name}.joined.de")}]

    source = {"kind": "sentencepiece", "model": "bpe", "size": 350}
    words = {"kind": "words", "source": source, "joined": True, "phrases": 5, "vectors": str(folder / "de.vec")}
    return {
        "name": "two-kinds",
        "data": {
            "folder": str(folder / "dataset"), "source_language": "en", "target_language": "de", "processes": 1,
            "train": files("train"), "valid": files("valid"), "text": {"tokenize": "moses"}, "subwords": words,
        },
        "model": {
            "width": 16, "encoder": RECURRENT, "decoder": {**RECURRENT, "attention": "general"}, "tied": "two_way",
            "output": {"kind": "word_or_phrase"},
        },
        "training": {
            "batch_tokens": 400, "max_updates": 6, "checkpoint_every": 3, "bleu_every": 2, "best_by": "cosine_loss",
            "processes": 1, "schedule": {"kind": "constant", "rate": 0.01},
        },
        "decoding": {"beam": 2, "max_length": {"factor": 0.0, "constant": 8}, "workers": 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def place(one_process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, vectors, a prepared dataset and a run."""
    folder = tmp_path_factory.mktemp("kinds")
    pairs = [pair.annotations() for pair in train_block(3, 0, 92)]
    for name, part in (("train", pairs[:80]), ("valid", pairs[80:])):
        write_lines(folder / f"{name}.en", [pair["en"] for pair in part])
        write_lines(folder / f"{name}.de", [pair["de"] for pair in part])
        write_lines(folder / f"{name}.joined.de", [pair["de"].replace("in der", "in_der") for pair in part])
    tokens = sorted({token for pair in pairs for token in pair["de"].replace("in der", "in_der").split()})
    write_vectors(folder / "de.vec", tokens, np.random.default_rng(1).normal(size=(len(tokens), 12)))
    (folder / "recipe.yaml").write_bytes(yaml.safe_dump(recipe(folder)).encode())
    assert phraseloom(["prepare", str(folder / "recipe.yaml")]) == 0
    assert phraseloom(["train", str(folder / "recipe.yaml"), "--run", str(folder / "run")]) == 0
    return folder


def test_the_model_reads_subwords_and_writes_words(place: Path) -> None:
    translator = Translator.from_pretrained(place / "run")
    source, target = translator.tokenizer.source, translator.tokenizer.target
    assert (source.kind, target.kind, target.joined) == ("sentencepiece", "words", True)
    assert "in_der" in target.vocabulary
    ids = source.encode(UNSEEN)
    assert source.subwords.decode(ids) == UNSEEN and len(ids) > 10  # nothing of the source is unknown
    found = translator.translate([UNSEEN], alignments=True)[0]
    assert found.text
    assert all(s < 5 and t < len(found.words) for s, t in found.alignment or ())


def test_the_run_knows_its_cosine_loss(place: Path) -> None:
    values = {r["update"]: r["validation"]["cosine_loss"] for r in run_records(place / "run") if "validation" in r}
    assert set(values) == {3, 6} and all(0 < value < 2 for value in values.values())
    best = min(values, key=lambda update: values[update])
    assert (place / "run" / "best").resolve().name == f"step_{best:08}"
    assert "cosine_loss" in (place / "run" / "train.log").read_text()
    assert describe(place / "run")["validations"][0]["cosine_loss"] == values[3]


def test_translated_evaluated_and_gated(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fertility module has its labels by words and its items by subwords."""
    english = (place / "valid.en").read_bytes()
    labels = [" ".join("2" if i % 3 == 0 else "1" for i, _ in enumerate(line.split())) for line in
              (place / "train.en").read_text().splitlines()]  # fmt: skip
    write_lines(tmp_path / "labels", labels)
    trained = ["fertility", "train", place / "run", "-s", place / "train.en", "--labels", tmp_path / "labels"]
    sizes = ["--widths", "8", "--epochs", "1", "--classes", "2", "-o", tmp_path / "gated"]
    assert phraseloom([*map(str, [*trained, *sizes])]) == 0
    for model in (place / "run", tmp_path / "gated"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(english)))
        capsys.readouterr()
        assert phraseloom(["translate", str(model)]) == 0
        out = capsys.readouterr().out
        assert len(out.splitlines()) == 12 and "_" not in out
        (tmp_path / "out.de").write_bytes(out.encode())
        files = [str(place / "valid.de"), str(tmp_path / "out.de")]
        assert phraseloom(["evaluate", "--reference", *files]) == 0
