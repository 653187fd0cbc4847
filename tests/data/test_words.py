"""`prepare` with whole words: joined targets, vectors, what is unknown, and the same bytes from any number of processes."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from tests.helpers import content

from phraseloom.data import prepare as module
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import Report, prepare
from phraseloom.data.tally import table
from phraseloom.errors import CorruptError, DataError, FileProblem
from phraseloom.models.build import build_model
from phraseloom.models.tasks import target_table
from phraseloom.options.data import DataConfig, TextDataConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import WordsConfig
from phraseloom.report.run.description import render
from phraseloom.report.run.folders import describe_dataset
from phraseloom.text.lines import write_lines
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vectors import write_vectors
from phraseloom.text.vocabulary import UNK
from phraseloom.text.words import Words

SOURCE = ["Das Haus ist alt.", "Die Lebensqualität ist gut!", "Das Haus, Haus."]
TARGET = ["the house is old .", "the quality_of_life is good !", "The house , old_house ."]
KEPT = ("the", "house", "is", ".", "good", "!", "quality_of_life", "old_house", "old", "quality", "of")


def make(
    tmp_path: Path,
    *,
    name: str = "out",
    copies: int = 1,
    processes: int = 1,
    rows: dict[str, list[float]] | None = None,
    tokenizer: str | None = None,
    **words: Any,
) -> Report:
    write_lines(tmp_path / "a.s", SOURCE * copies)
    write_lines(tmp_path / "a.t", TARGET * copies)
    write_lines(tmp_path / "v.s", ["Das Haus ist gut."])
    write_lines(tmp_path / "v.t", ["old_house of_the zoo ."])
    if rows is None:
        drawn = np.random.default_rng(3).normal(size=(len(KEPT) + 1, 4)).tolist()
        rows = dict(zip([*KEPT, "elsewhere"], drawn, strict=True))
    write_vectors(tmp_path / "v.vec.gz", list(rows), np.array(list(rows.values())))
    given = {
        "folder": str(tmp_path / name),
        "source_language": "de",
        "target_language": "en",
        "train": [{"source": "a.s", "target": "a.t"}],
        "valid": [{"source": "v.s", "target": "v.t"}],
        "text": {"tokenize": "moses", "lowercase": True},
        "subwords": {"kind": "words", "joined": True, "phrases": 1, "vectors": "v.vec.gz", **words},
        "processes": processes,
        "tokenizer": tokenizer,
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
        "without_vector": 6,
    }  # fmt: skip
    assert (info.source_words.types, info.source_words.unknown_types) == (10, 7)
    text = table(report.index)
    assert "target words" in text and "words learned on 6 pairs; vocabulary: 7 source, 14 target" in text
    assert "train: unknown are 16 of 30 (53.3 %) source words and 6 of 34 (17.6 %) target words" in text
    assert "valid: unknown are 2 of 5 (40.0 %) source words and 1 of 5 (20.0 %) target words" in text
    assert (
        "target: unknown are 3 of 13 (23.1 %) different words and 6 of 34 (17.6 %) words; "
        "1 phrase (2 times) are read as their words" in text
    )
    assert "source: unknown are 7 of 10 (70.0 %) different words and 16 of 30 (53.3 %) words\n" in text
    shown = render(describe_dataset(report.folder))
    assert "unknown target words" in shown and "subword" not in shown.split("sentence lengths")[0]


def test_the_bytes_do_not_depend_on_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 4)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 0)
    folders = [make(tmp_path, name=f"out{n}", copies=3, processes=n).folder for n in (1, 2)]
    one, other = map(content, folders)
    assert one == other and "tokenizer/target.vectors.safetensors" in one


def test_the_file_of_vectors_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    make(tmp_path, name="first")
    right = hashlib.sha256((tmp_path / "v.vec.gz").read_bytes()).hexdigest()
    make(tmp_path, name="second", vectors_sha256=right)
    with pytest.raises(CorruptError, match=r"SHA-256 is .*, but the recipe has 000") as caught:
        make(tmp_path, vectors_sha256="0" * 64)
    assert "vectors_sha256" in str(caught.value.hint)
    with pytest.raises(FileProblem, match="not found"):
        make(tmp_path, vectors="other.vec")
    write_vectors(tmp_path / "foreign.vec", ["x"], np.ones((1, 4)))
    with pytest.raises(DataError, match=r"none of the .* has a vector"):
        make(tmp_path, vectors="foreign.vec")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_vectors_of_another_text_are_refused_and_of_little_of_it_are_a_warning(tmp_path: Path) -> None:
    """Nothing is written for the former."""
    rows = {name: [1.0, float(n), 0.5, 0.25] for n, name in enumerate(KEPT)}
    with pytest.raises(DataError) as caught:
        make(tmp_path, rows={name: rows[name] for name in ("is", "good")}, phrases=0)
    assert str(caught.value) == (
        f"{tmp_path / 'v.vec.gz'}: vectors for 16.7% of the 18 tokens of the text, 2 of 12 different ones "
        "(at least 40% are needed); are they of this language, tokenised and cased like the text? If so, a smaller "
        "--min-count of embeddings train, or vectors of more text, cover more"
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == []
    little = table(
        make(tmp_path, rows={name: rows[name] for name in ("the", "house", "is", "old", ".")}, phrases=0).index
    )
    assert "warning: target: 7 of 18 (38.9 %) words have no vector: are they of this language" in little
    assert "have no vector" not in table(make(tmp_path, name="whole").index)


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


def test_the_rows_of_the_model_by_the_words_of_the_spec(tmp_path: Path) -> None:
    """Spec §4.4 by loops over the text of the file: from `prepare` to what the model compares with and may write."""
    rows = {name: [float(n * n % 7 - 3), float(n + 1), 0.25 * n - 1.5] for n, name in enumerate([*KEPT, "far", "away"])}
    scales = {"house": 1e-4, "is": 250.0, "far": 30.0}
    folder = make(tmp_path, rows={name: [x * scales.get(name, 1.0) for x in row] for name, row in rows.items()}).folder
    text = gzip.decompress((tmp_path / "v.vec.gz").read_bytes()).decode().splitlines()[1:]
    found: dict[str, list[float]] = {}
    outside: list[list[float]] = []
    dataset = Dataset.open(folder)
    known = list(dataset.tokenizer.target.vocabulary)
    for line in text:
        name, *numbers = line.split(" ")
        vector = [float(x) for x in numbers]
        if name not in known:
            outside.append(vector)
            continue
        for epsilon in (1e-6, 0.0):  # at vocabulary building, and again at model building
            norm = math.sqrt(sum(x * x for x in vector)) + epsilon
            vector = [x / norm for x in vector]
        found[name] = vector
    average = [sum(v[i] for v in outside) / len(outside) for i in range(3)]
    norm = math.sqrt(sum(x * x for x in average))
    found |= {"<pad>": [0.0] * 3, "<s>": [0.0] * 3, "</s>": [3**-0.5] * 3, "<unk>": [x / norm for x in average]}
    assert len(outside) == 3 and found.keys() == set(known)
    config = ModelConfig.model_validate({"preset": "tiny", "tied": "two_way", "output": {"kind": "word_or_phrase"}})
    table = target_table(dataset.tokenizer)
    model: Any = build_model(config, len(dataset.tokenizer.source.vocabulary), len(known), table)
    assert model.output.table.first_phrase == min(n for n, name in enumerate(known) if "_" in name)
    np.testing.assert_allclose(model.output.table.rows_VM.numpy(), [found[name] for name in known], atol=1e-6)
    with torch.no_grad():
        p = model.output.log_probs(torch.randn(4, config.width)).exp()
    assert not p[:, [known.index("<pad>"), known.index("<s>")]].any()
    assert p[:, [known.index("</s>"), known.index("<unk>")]].all()


def test_a_tokenizer_of_words_brings_its_vectors(tmp_path: Path) -> None:
    """A file that `data.subwords` names beside it is not read."""
    first = make(tmp_path).folder
    again = make(tmp_path, name="again", tokenizer=str(first), vectors="no.vec").folder
    assert Dataset.open(again).tokenizer.sha256 == Dataset.open(first).tokenizer.sha256


SUBWORDS: list[dict[str, Any]] = [
    {"kind": "sentencepiece", "size": 45, "byte_fallback": False},
    {"kind": "sentencepiece", "model": "unigram", "size": 300},
    {"kind": "subword_nmt", "merges": 12},
]


@pytest.mark.parametrize("source", SUBWORDS, ids=["bpe", "unigram", "subword_nmt"])
def test_subwords_of_the_source_beside_words_of_the_target(tmp_path: Path, source: dict[str, Any]) -> None:
    """Each side is what it is in a dataset of its own kind alone; saved, loaded and described as two kinds."""
    both = make(tmp_path, name="both", copies=4, source=source)
    of_words = make(tmp_path, name="words", copies=4)
    alone = {**of_words.index.config, "folder": str(tmp_path / "sub"), "subwords": {**source, "joint": False}}
    of_subwords = prepare(DataConfig.model_validate(alone), data_root=tmp_path)
    mixed, words, subwords = (Dataset.open(r.folder) for r in (both, of_words, of_subwords))
    assert list(mixed.tokenizer.source.vocabulary) == list(subwords.tokenizer.source.vocabulary)
    assert list(mixed.tokenizer.target.vocabulary) == list(words.tokenizer.target.vocabulary)
    for split in ("train", "valid"):
        for n in range(len(mixed.split(split))):
            assert mixed.split(split).source(n).tolist() == subwords.split(split).source(n).tolist()
            assert mixed.split(split).target(n).tolist() == words.split(split).target(n).tolist()
    described = json.loads((both.folder / "tokenizer" / "tokenizer.json").read_bytes())
    assert described["subwords"] == {"source": source["kind"], "target": "words"}
    assert (mixed.tokenizer.source.kind, mixed.tokenizer.target.kind) == (source["kind"], "words")
    line = "Das unbekannte Haus."
    assert mixed.tokenizer.source.words(line) == ["das", "unbekannte", "haus", "."]
    assert len(mixed.tokenizer.source.encode(line)) > 4
    assert len({d.tokenizer.sha256 for d in (mixed, words, subwords)}) == 3


def test_what_is_said_of_two_kinds(tmp_path: Path) -> None:
    report = make(tmp_path, copies=4, source=SUBWORDS[2])
    info, split = report.index.subwords, report.index.splits["train"]
    assert info.source_words is None and info.target_words is not None
    assert split.source_unknown is None and split.target_unknown == 12
    text, shown = table(report.index), render(describe_dataset(report.folder))
    assert "train: unknown are 12 of 68 (17.6 %) target words\n" in text and "source: unknown" not in text
    for said in (text, shown):
        assert "source subwords" in said and "target words" in said and "source words" not in said
    stored = (make(tmp_path, name="plain").folder / "index.json").read_text()
    assert '"source": null' not in stored  # the bytes of datasets without it stay what they were


def test_kinds_that_a_tokenizer_cannot_have(tmp_path: Path) -> None:
    folder = make(tmp_path, copies=4, source=SUBWORDS[2]).folder / "tokenizer"
    path = folder / "tokenizer.json"
    value = json.loads(path.read_bytes())
    for wrong in ({"source": "words"}, {"source": "subword_nmt", "target": "x"}, {"a": "words", "b": "words"}, None, 3):
        path.write_text(json.dumps(value | {"subwords": wrong}))
        with pytest.raises(CorruptError, match="not a tokenizer description: subwords"):
            Tokenizer.load(folder)
    path.write_text(json.dumps(value | {"subwords": {"source": "sentencepiece", "target": "words"}}))
    with pytest.raises(CorruptError, match="lists unexpected files"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": {"kind": "sentencepiece"}, "source_size": 5}, "source makes subwords: it has a size of its own"),
        ({"source": {"kind": "sentencepiece", "joint": True}}, "joint: true has no meaning here"),
        ({"source": {"kind": "words"}}, "words"),
        ({"source": {"kind": "subword_nmt"}, "joint": True}, "source is of one side"),
    ],
)
def test_sources_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        WordsConfig.model_validate(given)
    fitting = WordsConfig.model_validate({"source": {"kind": "sentencepiece", "size": 9}})
    assert WordsConfig.model_validate(fitting.model_dump()) == fitting


def test_a_source_that_is_too_small_names_its_own_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"too small for 900 subwords; set data\.subwords\.source\.size to at most \d+"):
        make(tmp_path, source={"kind": "sentencepiece", "size": 900})


def test_the_vectors_are_checked_as_they_are_used(tmp_path: Path) -> None:
    """Rows with a common direction are a warning; whitened or random ones are not, and the index has the figures."""
    draw = np.random.default_rng(1)
    rows = {token: draw.normal([6, 0, 0, 0]).tolist() for token in [*KEPT, "elsewhere"]}
    plain = make(tmp_path, name="plain", copies=30, rows=rows)
    info = plain.index.subwords.target_vectors
    assert info is not None and info.mean_cosine is not None and info.mean_cosine > 0.8
    assert len(info.problems) >= 1 and info.problems[0].startswith("two vectors have a cosine of")
    assert info.likeliest is not None and info.random_likeliest is not None
    text = table(plain.index)
    assert f"target vectors: mean cosine {info.mean_cosine:.2f}, median cosine with the nearest" in text
    assert "warning: target vectors: two vectors have a cosine of" in text and "data.subwords.whiten: true" in text
    whitened = make(
        tmp_path, name="white", copies=30, rows=rows, whiten=True, dimensions=3
    ).index.subwords.target_vectors
    assert whitened is not None and whitened.mean_cosine is not None and whitened.mean_cosine < 0.1
    assert not any("two vectors" in problem for problem in whitened.problems)
    stored = json.loads((tmp_path / "plain" / "index.json").read_bytes())["subwords"]["target_vectors"]
    assert stored == info.model_dump()


def test_random_vectors_need_no_file(tmp_path: Path) -> None:
    report = make(tmp_path, vectors={"random": 16})
    words = of_target(Dataset.open(report.folder))
    assert words.vectors is not None and words.vectors.shape == (len(words.vocabulary), 16)
    assert "life" in words.vocabulary  # of a file, only tokens with a vector are in the vocabulary
    assert report.index.config["subwords"]["vectors"] == {"random": 16, "seed": 1}
    info = report.index.subwords.target_vectors
    assert info is not None and info.likeliest is None  # three lines are too few for the test
