"""Datasets of one language: lines in place of pairs, through the same preparation."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from phraseloom.config import validate
from phraseloom.data.batches import BatchPlan
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import Report, prepare
from phraseloom.data.tally import table
from phraseloom.errors import ConfigError, CorruptError, DataError
from phraseloom.options.data import DataConfig, TextDataConfig
from phraseloom.recipe import load_recipe
from phraseloom.text.lines import write_lines

LINES = [
    "the old dog",
    "",
    "a house",
    "the old dog",
    " \u3000 ",
    "word " * 40,
    "a",
    "the small bird sings in the garden",
] * 30


def make(place: Path, *, overwrite: bool = False, **more: Any) -> Report:
    if not (place / "a.txt").exists():
        write_lines(place / "a.txt", LINES[:150])
        write_lines(place / "b.txt", LINES[150:])
        write_lines(place / "v.txt", ["the dog", "", "word " * 100])
    given = {
        "folder": str(place / "out"),
        "language": "en",
        "train": [{"text": "a.txt"}, {"text": "b.txt"}],
        "valid": [{"text": "v.txt"}],
        "subwords": {"kind": "sentencepiece", "size": 290},
        "filter": {"max_tokens": 30},
        "processes": 1,
        **more,
    }
    return prepare(TextDataConfig.model_validate(given), data_root=place, overwrite=overwrite)


def test_lines_become_targets_without_a_source(tmp_path: Path) -> None:
    report = make(tmp_path)
    dataset = Dataset.open(tmp_path / "out")
    train, valid = dataset.split("train"), dataset.split("valid")
    assert dataset.is_text and isinstance(dataset.config, TextDataConfig)
    decode = dataset.tokenizer.target.decode
    kept = [line for line in LINES if line.strip() and len(line.split()) < 40]
    assert [decode(train.target(i).tolist()) for i in range(len(train))] == kept
    assert [LINES[n] for n in train.lines] == kept
    assert train.source_lengths.max() == 0 and train.target_lengths.min() > 0
    source, source_lengths, target, lengths = train.batch([0, 2])
    assert source.shape == (2, 0) and source_lengths.tolist() == [0, 0] and target.shape == (2, lengths.max())
    dropped = report.index.splits["train"].dropped
    assert {r: (d.pairs, d.first_file, d.first_line) for r, d in dropped.items()} == {
        "empty": (60, "a.txt", 2),
        "too_long": (30, "a.txt", 6),
    }
    assert valid.text() == (["", "", ""], ["the dog", "", "word " * 100])
    assert valid.target_lengths.tolist()[1] == 0 and valid.target_lengths[2] > 30  # nothing is left out of valid
    text = table(report.index)
    assert "lines read" in text and "source" not in text and "vocabulary: 290" in text
    assert "left out 60 lines: the line is blank (first: a.txt:2)" in text
    assert "left out 30 lines: it has more than max_tokens subwords (first: a.txt:6)" in text


def test_duplicates_and_processes(tmp_path: Path) -> None:
    report = make(tmp_path, filter={"max_tokens": 30, "deduplicate": True})
    assert report.index.splits["train"].pairs == 4
    assert "the same line came before" in table(report.index)
    one = {p.name: p.read_bytes() for p in sorted((tmp_path / "out" / "train").iterdir())}
    make(tmp_path, overwrite=True, filter={"max_tokens": 30, "deduplicate": True}, shard_pairs=7)
    tokens = b"".join(p.read_bytes() for p in sorted((tmp_path / "out" / "train").glob("*.target.tokens")))
    assert tokens == one["00000.target.tokens"]


def test_worker_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    one = (tmp_path / "out" / "index.json").read_bytes()
    monkeypatch.setattr("phraseloom.data.prepare.CHUNK_PAIRS", 20)
    monkeypatch.setattr("phraseloom.data.prepare.SMALL_CHUNKS", 1)
    make(tmp_path, overwrite=True, processes=2)
    assert (tmp_path / "out" / "index.json").read_bytes() == one


def test_bad_files_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    wrong = hashlib.sha256(b"").hexdigest()
    with pytest.raises(CorruptError, match=f"the recipe has {wrong}"):
        make(tmp_path, folder=str(tmp_path / "o"), train=[{"text": "a.txt", "text_sha256": wrong}])
    with pytest.raises(
        DataError, match="no train line is left: 60 the line is blank, 180 it has fewer than min_tokens"
    ):
        make(tmp_path, folder=str(tmp_path / "o"), filter={"min_tokens": 1000, "max_tokens": 9999})
    write_lines(tmp_path / "empty.txt", [])
    with pytest.raises(DataError, match=r"empty.txt: the train files are empty"):
        make(tmp_path, folder=str(tmp_path / "o"), train=[{"text": "empty.txt"}])
    assert not (tmp_path / "o").exists()


PAIR = {"source": "a", "target": "b"}
TEXT = {"folder": "d", "language": "en", "train": [{"text": "a"}]}
PAIRS = {"folder": "d", "source_language": "en", "target_language": "de", "train": [PAIR]}


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (TextDataConfig, PAIRS, "source_language and target_language are for task: translation"),
        (DataConfig, TEXT, "language is for task: language_model"),
        (TextDataConfig, {**TEXT, "valid": [PAIR]}, r"valid.0: a language model is trained on \{text: FILE\}"),
        (DataConfig, {**PAIRS, "test": [{"text": "a"}]}, r"test.0: a translation is trained on \{source: FILE"),
        (TextDataConfig, {**TEXT, "filter": {"max_ratio": 2}}, "unknown key filter.max_ratio"),
        (
            TextDataConfig,
            {**TEXT, "subwords": {"kind": "sentencepiece", "joint": False}},
            "joint: false has no meaning where there is one language",
        ),
        (TextDataConfig, {**TEXT, "train": []}, "train"),
    ],
)
def test_a_mix_up_of_tasks_says_so(kind: Any, value: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(kind, value)


def test_the_task_of_a_recipe_decides(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(
        b"name: x\ntask: language_model\ndata: {folder: d, language: en, train: [{text: a}]}\nmodel: {preset: tiny}\n"
    )
    assert load_recipe(path).model.attention.model_fields_set <= {"decoder_self"}
    for change, message in {
        "task=language_modell": "did you mean language_model",
        "task=[1]": "is not known; one of translation, language_model",
        "task=translation": "r.yaml:3: data: language is for task: language_model",
        "training.bleu_every=1": "a language model has no BLEU",
        "training.fertility={classes: 2}": "training.fertility is for translations",
        "decoding.beam=3": "unknown key decoding.beam",
        "decoding.samples=3": "samples above 1 need sample",
        "model.encoder.layers=1": "r.yaml:4: model: encoder has no meaning",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_recipe(path, [change])
        assert message in str(caught.value)


def test_batches_of_text_count_no_source() -> None:
    import numpy as np

    lengths = np.array([3, 5, 2, 9, 4, 4, 7, 1] * 40, np.int32)
    plan = BatchPlan(None, lengths, seed=1, batch_tokens=60)
    pairs = BatchPlan(np.zeros_like(lengths), lengths, seed=1, batch_tokens=60)
    examples = np.concatenate(plan.update(0))
    assert plan.count(examples) == (0, int(lengths[examples].sum()) + len(examples))
    assert pairs.count(examples)[0] == len(examples)
    assert sorted(plan.epoch(0).order.tolist()) == list(range(len(lengths)))
    of_text = [int((lengths[b] + 1).sum()) for u in range(plan.updates_per_epoch) for b in plan.update(u)]
    assert max(of_text) - min(of_text) <= 10  # pieces are equal in tokens alone
    assert 0 < plan.padding() < 0.5
