"""`prepare` with whole words: joined targets, vectors, what is unknown, and the same bytes from any number of processes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.data import prepare as module
from phraseloom.data.config import DataConfig, TextDataConfig
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import Report, prepare
from phraseloom.data.report import table
from phraseloom.errors import CorruptError, DataError, FileProblem
from phraseloom.report.description import render
from phraseloom.report.folders import describe_dataset
from phraseloom.text.lines import write_lines
from phraseloom.text.vectors import write_vectors
from phraseloom.text.vocabulary import UNK
from phraseloom.text.words import Words

SOURCE = ["Das Haus ist alt.", "Die Lebensqualität ist gut!", "Das Haus, Haus."]
TARGET = ["the house is old .", "the quality_of_life is good !", "The house , old_house ."]
KEPT = ("the", "house", "is", ".", "good", "!", "quality_of_life", "old_house", "old", "quality", "of")


def make(tmp_path: Path, *, name: str = "out", copies: int = 1, processes: int = 1, **words: Any) -> Report:
    write_lines(tmp_path / "a.s", SOURCE * copies)
    write_lines(tmp_path / "a.t", TARGET * copies)
    write_lines(tmp_path / "v.s", ["Das Haus ist gut."])
    write_lines(tmp_path / "v.t", ["old_house of_the zoo ."])
    rows = np.random.default_rng(3).normal(size=(len(KEPT) + 1, 4))
    write_vectors(tmp_path / "v.vec.gz", [*KEPT, "elsewhere"], rows)
    given = {
        "folder": str(tmp_path / name),
        "source_language": "de",
        "target_language": "en",
        "train": [{"source": "a.s", "target": "a.t"}],
        "valid": [{"source": "v.s", "target": "v.t"}],
        "text": {"tokenize": "moses", "lowercase": True},
        "subwords": {"kind": "words", "joined": True, "phrases": 1, "vectors": "v.vec.gz", **words},
        "processes": processes,
    }
    return prepare(DataConfig.model_validate(given), data_root=tmp_path)


def of_target(dataset: Dataset) -> Words:
    words = dataset.tokenizer.target.subwords
    assert isinstance(words, Words)
    return words


def test_the_source_is_tokenised_and_joined_text_is_not(tmp_path: Path) -> None:
    dataset = Dataset.open(make(tmp_path).folder)
    side, words = dataset.tokenizer, of_target(dataset)
    assert set(side.source.vocabulary) >= {"das", "haus", "lebensqualität", "."} and not side.source.joined
    # Two phrases once each: the first by code point is kept, quality_of_life is read as its words; life has no vector.
    assert words.vocabulary.piece(words.first_phrase) == "old_house" and words.first_phrase == len(words.vocabulary) - 1
    assert set(words.vocabulary) == {*KEPT, "<pad>", "<unk>", "<s>", "</s>"} - {"quality_of_life"}
    train = dataset.split("train")
    decoded = [side.target.decode(train.target(n).tolist()) for n in range(3)]
    assert decoded == ["the house is old.", "the quality of ⁇ is good!", "⁇ house ⁇ old house."]
    assert dataset.split("valid").text()[1] == ["old_house of_the zoo ."]
    assert words.vectors is not None and words.vectors.shape == (len(words.vocabulary), 4)


def test_what_is_unknown_is_counted_and_said(tmp_path: Path) -> None:
    report = make(tmp_path, copies=2, source_size=3)
    splits, info = report.index.splits, report.index.subwords
    dataset = Dataset.open(report.folder)
    for name, split in splits.items():
        pairs = dataset.split(name)
        ids = [np.concatenate([side(n) for n in range(len(pairs))]) for side in (pairs.source, pairs.target)]
        assert [split.source_unknown, split.target_unknown] == [int((own == UNK).sum()) for own in ids]
    # life, The and the comma; quality_of_life counts as its words.
    assert splits["train"].target_unknown == 6 and splits["valid"].target_unknown == 1
    assert info.target_words is not None and info.source_words is not None
    assert info.target_words.model_dump() == {
        "types": 13, "tokens": 34, "unknown_types": 3, "unknown_tokens": 6, "split_types": 1, "split_tokens": 2,
    }  # fmt: skip
    assert (info.source_words.types, info.source_words.unknown_types) == (10, 7)
    text = table(report.index)
    assert "target words" in text and "words learned on 6 pairs; vocabulary: 7 source, 14 target" in text
    assert "train: unknown are 16 of 30 (53.3 %) source words and 6 of 34 (17.6 %) target words" in text
    assert "valid: unknown are 2 of 5 (40.0 %) source words and 1 of 5 (20.0 %) target words" in text
    assert (
        "target: unknown are 3 of 13 (23.1 %) different words and 6 of 34 (17.6 %) words; "
        "1 phrases (2 times) are read as their words" in text
    )
    assert "source: unknown are 7 of 10 (70.0 %) different words and 16 of 30 (53.3 %) words\n" in text
    shown = render(describe_dataset(report.folder))
    assert "unknown target words" in shown and "subword" not in shown.split("sentence lengths")[0]


def test_the_bytes_do_not_depend_on_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 4)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 0)
    folders = [make(tmp_path, name=f"out{n}", copies=3, processes=n).folder for n in (1, 2)]
    one, other = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders)
    assert one == other and Path("tokenizer/target.vectors.safetensors") in one


def test_the_file_of_vectors_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    make(tmp_path, name="first")
    right = hashlib.sha256((tmp_path / "v.vec.gz").read_bytes()).hexdigest()
    make(tmp_path, name="second", vectors_sha256=right)
    with pytest.raises(CorruptError, match=r"SHA-256 is .*, the recipe says 000") as caught:
        make(tmp_path, vectors_sha256="0" * 64)
    assert "vectors_sha256" in str(caught.value.hint)
    with pytest.raises(FileProblem, match="not found"):
        make(tmp_path, vectors="other.vec")
    write_vectors(tmp_path / "foreign.vec", ["x"], np.ones((1, 4)))
    with pytest.raises(DataError, match=r"none of the .* has a vector"):
        make(tmp_path, vectors="foreign.vec")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_lines_of_long_unknown_words_are_kept(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.s", ["a b", "a " + "x" * 5000])
    write_lines(tmp_path / "a.t", ["a b", "a b"])
    data = {
        "folder": str(tmp_path / "out"), "source_language": "de", "target_language": "en",
        "train": [{"source": "a.s", "target": "a.t"}], "subwords": {"kind": "words", "size": 1}, "processes": 1,
    }  # fmt: skip
    index = prepare(DataConfig.model_validate(data), data_root=tmp_path).index
    assert index.splits["train"].pairs == 2 and index.splits["train"].source_unknown == 2


def test_one_vocabulary_for_both_sides_and_for_text_alone(tmp_path: Path) -> None:
    report = make(tmp_path, joint=True, joined=False, phrases=0, vectors=None)
    dataset = Dataset.open(report.folder)
    assert dataset.tokenizer.joint and {"haus", "house"} <= set(dataset.tokenizer.source.vocabulary)
    text = {
        "folder": str(tmp_path / "text"), "language": "en", "train": [{"text": "a.t"}], "processes": 1,
        "subwords": {"kind": "words", "joint": True, "size": 4},
    }  # fmt: skip
    index = prepare(TextDataConfig.model_validate(text), data_root=tmp_path).index
    assert index.splits["train"].source_unknown is None and index.splits["train"].target_unknown == 7
    assert "train: unknown are 7 of 15 (46.7 %) words\n" in table(index)
    assert "text: unknown are 7 of 11 (63.6 %) different words and" in table(index)


def test_indexes_of_subwords_say_nothing_of_words(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.s", SOURCE)
    data = {
        "folder": str(tmp_path / "out"), "source_language": "de", "target_language": "en", "processes": 1,
        "train": [{"source": "a.s", "target": "a.s"}], "subwords": {"kind": "subword_nmt", "merges": 5},
    }  # fmt: skip
    report = prepare(DataConfig.model_validate(data), data_root=tmp_path)
    text = (report.folder / "index.json").read_text()
    assert "unknown" not in text and "_words" not in text
