"""Options of recipes with `data.target_phrases` or `training.fertility` that do not fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from phraseloom.cli.main import run
from phraseloom.config import validate
from phraseloom.errors import ConfigError, DataError
from phraseloom.options.data import DataConfig
from phraseloom.recipe import load_recipe
from phraseloom.reproduce.phrase_data import make_phrase_data

from .test_phrase_data import RECIPE, write

WITH_TREES = [{"source": "train.de", "target": "train.en", "trees": "train.trees"}]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"subwords": {"kind": "sentencepiece"}}, "target_phrases needs subwords: {kind: words, phrases: N}"),
        ({"subwords": {"kind": "words", "vectors": {"train": {}}}}, "target_phrases needs subwords"),
        ({"subwords": {"kind": "words", "phrases": 9, "vectors": "en.vec"}}, "subwords.vectors: {train: {}}"),
        ({"text": {}}, "needs tokenize: moses"),
        ({"target_phrases": None}, "is for data.target_phrases"),
        ({"temperature": 5.0}, "has no weight, tag or links, and no temperature"),
        ({"target_phrases": {"rule": "other"}}, "rule"),
        ({"train": WITH_TREES, "filter": {"decontaminate": 5}}, "leaves pairs out before trees are read"),
        ({"train": WITH_TREES, "filter": {"deduplicate": True}}, "leaves pairs out before trees are read"),
    ],
)
def test_options_that_do_not_fit_are_refused(change: dict[str, Any], says: str) -> None:
    data = {**RECIPE["data"], "subwords": {**RECIPE["data"]["subwords"], "joined": True}, **change}
    with pytest.raises(ConfigError) as error:
        validate(DataConfig, data)
    assert says in str(error.value)


# The recipe as issue 20 sketched it, with the keys that every recipe needs. Two of its keys stand elsewhere.
SKETCH = """\
name: sketch
data:
  folder: dataset
  source_language: de
  target_language: en
  train: [{source: train.de, target: train.en}]
  text: {tokenize: moses}
  target_phrases: {align: auto, filter: paper, rule: aligned}
  subwords: {kind: words, phrases: 50000, vectors: {train: {sample: 0.001, text: [mono.en]}}}
model: {output: {kind: word_or_phrase, fertility: {classes: 2}}}
training: {fertility: {downsample: false}}
"""


def test_keys_of_the_sketched_recipe_that_stand_elsewhere_are_named(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"

    def refused_with(text: str) -> str:
        recipe.write_text(text)
        with pytest.raises(ConfigError) as error:
            load_recipe(recipe)
        return str(error.value).removeprefix(f"{recipe}:")

    wrong = "8: data.target_phrases: to train an aligner on the training text, leave aligner out; aligner: FILE is a file of"
    assert refused_with(SKETCH).startswith(wrong)
    assert refused_with(SKETCH.replace("align: auto", "aligner: auto")).startswith(wrong)
    without = SKETCH.replace("align: auto, ", "")
    assert "to train it, write training: {fertility: {classes: 2}}, or use" in refused_with(without)
    recipe.write_text(
        without.replace(", fertility: {classes: 2}", "").replace("{downsample", "{classes: 2, downsample")
    )
    stage = load_recipe(recipe).training.fertility
    assert stage is not None and (stage.classes, stage.downsample) == (2, False)


def test_no_phrases_in_the_vocabulary_is_a_choice() -> None:
    words = {**RECIPE["data"]["subwords"], "phrases": 0}
    assert validate(DataConfig, {**RECIPE["data"], "subwords": words}).subwords.phrases == 0  # type: ignore[union-attr]


def test_a_fertility_stage_has_one_weight_a_class(tmp_path: Path) -> None:
    stage = {**RECIPE["training"]["fertility"], "classes": 4}
    with pytest.raises(ConfigError, match="weights has 2 numbers for 4 classes"):
        load_recipe(write(tmp_path, {**RECIPE, "training": {**RECIPE["training"], "fertility": stage}}))


@pytest.mark.parametrize("what", ["decoder.attention: fixed has none", "cannot read the parse trees"])
def test_what_would_stop_the_fertility_stage_after_the_training(tmp_path: Path, what: str) -> None:
    data, model = dict(RECIPE["data"]), dict(RECIPE["model"])
    if what.startswith("decoder"):
        model |= {"encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent", "attention": "fixed"}}
    else:
        data["phrases"] = {"kind": "tree"}
        for split in ("train", "valid", "test"):
            data[split] = [{**files, "trees": "some.trees"} for files in data[split]]
        model = {"preset": "tiny", "output": model["output"], "tied": "two_way"}
        model["phrases"] = {"segments": {"kind": "dataset"}}
    with pytest.raises(ConfigError, match=f"training.fertility.*{what}"):
        load_recipe(write(tmp_path, {**RECIPE, "data": data, "model": model}))


def test_the_vectors_of_a_tokenizer_are_those_of_the_output(tmp_path: Path) -> None:
    """`data.tokenizer` replaces `data.subwords`, so that these need no vectors, and none are read."""
    data = {key: value for key, value in RECIPE["data"].items() if key not in ("target_phrases", "subwords")}
    rest = {**RECIPE, "data": data, "training": {**RECIPE["training"], "fertility": None}}
    with pytest.raises(ConfigError, match=r"data\.subwords must name them"):
        load_recipe(write(tmp_path, rest))
    assert load_recipe(write(tmp_path, {**rest, "data": {**data, "tokenizer": "old"}})).data.tokenizer == "old"


def test_a_fertility_stage_needs_labels(tmp_path: Path) -> None:
    data = {k: v for k, v in RECIPE["data"].items() if k != "target_phrases"}
    data["subwords"] = {"kind": "words", "joined": True, "phrases": 9, "vectors": "en.vec"}
    with pytest.raises(
        ConfigError, match=re.escape("needs model.output: {kind: word_or_phrase} and the labels of data.target_phrases")
    ):
        load_recipe(write(tmp_path, {**RECIPE, "data": data}))


@pytest.mark.parametrize("option", [("--merge", "other.parts"), ("--part", "1/2")])
def test_parts_are_refused_before_the_first_step(
    option: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    assert run(["prepare", "recipe.yaml", *option]) == 2
    error = capsys.readouterr().err
    assert f"leave {option[0]} out" in error and "data.target_phrases" in error and error.count("\n") == 1
    assert not (tmp_path / "dataset.phrases").exists()


@pytest.mark.parametrize(
    ("language", "line", "advice"),
    [
        ("zh", "一个男人睡在绿色的房间里。", "set data.text.tokenize: jieba, or cut"),
        ("ja", "男性が緑色の部屋で眠っています。", "cut all texts of the language"),
        ("zho_Hans", "一个 男人 睡 在 绿色 的 房间 里 。", None),
        ("fi", "Lentokonesuihkuturbiinimoottoriapumekaanikkoaliupseerioppilas .", None),
    ],
)
def test_text_without_spaces_is_cut_into_words_first(
    language: str, line: str, advice: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    data = {**RECIPE["data"], "source_language": language}
    for name in ("train", "valid", "test"):
        Path(f"{name}.de").write_text(f"{line}\n")
        Path(f"{name}.en").write_text("A man sleeps in a green room .\n")
    with pytest.raises(DataError) as error:  # a line is too little text to find phrases
        make_phrase_data(validate(DataConfig, data), say=lambda text: None)
    assert ("the source text has no words" in str(error.value)) is (advice is not None)
    assert advice is None or (str(error.value).startswith("train.de: ") and advice in str(error.value))
