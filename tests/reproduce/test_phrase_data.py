"""`data.target_phrases`: `prepare` joins phrases in plain text and learns vectors; `train` adds the fertility module."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.helpers import training_in_this_process

from phraseloom.cli.main import run
from phraseloom.config import validate
from phraseloom.errors import ConfigError, DataError
from phraseloom.models.store import load_model
from phraseloom.options.data import DataConfig
from phraseloom.recipe import load_recipe
from phraseloom.reproduce.phrase_data import find_labels, make_phrase_data

pytest.importorskip("gensim")

SOURCE = [
    "das haus ist wahrscheinlich gross",
    "der mann ging heim",
    "das haus ging",
    "der mann ist gross",
    "wahrscheinlich ist das haus",
]
TARGET = [
    "the house is most likely big",
    "the man went home",
    "the house went",
    "the man is big",
    "most likely is the house",
]
RECIPE: dict[str, Any] = {
    "name": "phrases",
    "data": {
        "folder": "dataset",
        "source_language": "de",
        "target_language": "en",
        "train": [{"source": "train.de", "target": "train.en"}],
        "valid": [{"source": "valid.de", "target": "valid.en"}],
        "test": [{"source": "valid.de", "target": "valid.en"}],
        "text": {"tokenize": "moses", "truecase": True},
        "target_phrases": {},
        "subwords": {
            "kind": "words",
            "phrases": 100,
            "vectors": {"train": {"width": 8, "epochs": 1, "text": ["more.en"]}},
        },
    },
    "model": {
        "width": 8,
        "encoder": {"kind": "recurrent", "layers": 1},
        "decoder": {"kind": "recurrent", "layers": 1, "attention": "general"},
        "output": {"kind": "word_or_phrase"},
        "tied": "two_way",
        "dropout": 0.0,
    },
    "training": {
        "batch_tokens": 200,
        "schedule": {"kind": "linear", "peak": 0.01, "warmup": 1},
        "max_updates": 2,
        "checkpoint_every": 2,
        "best_by": "loss",
        "fertility": {"classes": 2, "widths": [8], "epochs": 1},
    },
}


def write(folder: Path, recipe: dict[str, Any] = RECIPE) -> Path:
    for name, lines in (("de", SOURCE), ("en", TARGET)):
        (folder / f"train.{name}").write_text("\n".join(lines * 8) + "\n")
        (folder / f"valid.{name}").write_text("\n".join(lines) + "\n")
    (folder / "more.en").write_text("the man is most likely big\n" * 4)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def test_two_commands_give_a_model_with_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text to a trained model of words and phrases; steps that are done are not done again."""
    monkeypatch.chdir(tmp_path)
    recipe = write(tmp_path)
    said: list[str] = []
    config = load_recipe(recipe).data
    assert isinstance(config, DataConfig)
    first = make_phrase_data(config, say=said.append)
    assert "most likely" in first.table.read_text()
    joined = (tmp_path / first.config.train[0].target).read_text().splitlines()
    assert "most_likely" in joined[0].lower()
    assert len(joined) == len(SOURCE) * 8
    assert "most_likely " in first.vectors.read_text()
    assert first.mwt is not None
    assert (first.mwt / "lines.txt").read_text().split() == ["1", "5"]

    done = len(said)
    make_phrase_data(config, say=said.append)
    assert all("steps are done already" in line for line in said[done:]), said[done:]

    (tmp_path / "more.en").write_text("the big man went home\n" * 4)
    done = len(said)
    make_phrase_data(config, say=said.append)
    again = {line.split("] ")[1].split(":")[0] for line in said[done:] if "] " in line}
    assert again == {"target_more_text", "target_more", "joined_more", "text_for_vectors", "vectors"}

    assert run(["prepare", str(recipe)]) == 0
    labels = find_labels(config)
    text, fertility = (path.read_text().splitlines() for path in labels["train"])
    assert [len(line.split()) for line in text] == [len(line.split()) for line in fertility]
    index = json.loads((tmp_path / "dataset" / "index.json").read_text())
    assert str(tmp_path) not in json.dumps(index)
    with training_in_this_process():
        assert run(["train", str(recipe)]) == 0
        model, _, _ = load_model(tmp_path / "runs" / "phrases" / "fertility")
        assert model.fertility is not None
        stored = (tmp_path / "runs" / "phrases" / "fertility" / "model.safetensors").stat().st_mtime_ns
        assert run(["train", str(recipe)]) == 0  # finished: nothing is trained again
    assert (tmp_path / "runs" / "phrases" / "fertility" / "model.safetensors").stat().st_mtime_ns == stored

    rare = config.model_copy(update={"target_phrases": config.target_phrases.model_copy(update={"min_count": 10_000})})
    with pytest.raises(DataError, match="no phrase is left"):
        make_phrase_data(rare, say=said.append)


def test_text_in_the_source_language_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_recipe(write(tmp_path)).data
    (tmp_path / "more.en").write_text("das haus ist gross\n")
    with pytest.raises(DataError, match="looks like the source language: 100 % of its words"):
        make_phrase_data(config)
    assert not (tmp_path / "dataset.phrases").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"subwords": {"kind": "sentencepiece"}}, "target_phrases needs subwords: {kind: words, phrases: N}"),
        ({"subwords": {"kind": "words", "vectors": {"train": {}}}}, "target_phrases needs subwords"),
        ({"subwords": {"kind": "words", "phrases": 9, "vectors": "en.vec"}}, "subwords.vectors: {train: {}}"),
        ({"text": {}}, "needs tokenize: moses"),
        ({"target_phrases": None}, "is for data.target_phrases"),
        ({"target_phrases": {"rule": "other"}}, "rule"),
    ],
)
def test_options_that_do_not_fit_are_refused(change: dict[str, Any], says: str) -> None:
    data = {**RECIPE["data"], "subwords": {**RECIPE["data"]["subwords"], "joined": True}, **change}
    with pytest.raises(ConfigError) as error:
        validate(DataConfig, data)
    assert says in str(error.value)


def test_no_phrases_in_the_vocabulary_is_a_choice() -> None:
    words = {**RECIPE["data"]["subwords"], "phrases": 0}
    assert validate(DataConfig, {**RECIPE["data"], "subwords": words}).subwords.phrases == 0  # type: ignore[union-attr]


def test_a_fertility_stage_needs_labels(tmp_path: Path) -> None:
    data = {k: v for k, v in RECIPE["data"].items() if k != "target_phrases"}
    data["subwords"] = {"kind": "words", "joined": True, "phrases": 9, "vectors": "en.vec"}
    with pytest.raises(
        ConfigError, match=re.escape("needs model.output: {kind: word_or_phrase} and the labels of data.target_phrases")
    ):
        load_recipe(write(tmp_path, {**RECIPE, "data": data}))
