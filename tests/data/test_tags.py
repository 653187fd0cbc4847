"""Tags of corpora: tokens before the source that are in the vocabulary, and that no text is encoded as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.test_prepare import make
from tests.helpers import content

from phraseloom.data.corpus import Dataset
from phraseloom.errors import CorruptError, DataError, UsageError
from phraseloom.phrases.source import word_of_piece
from phraseloom.text.lines import read_lines, write_lines
from phraseloom.text.tokenizer import Tokenizer

KINDS: list[dict[str, Any]] = [
    {"kind": "sentencepiece", "size": 340},
    {"kind": "sentencepiece", "size": 340, "joint": False},
    {"kind": "sentencepiece", "model": "unigram", "size": 300},
    {"kind": "subword_nmt", "merges": 60},
]


def tagged() -> dict[str, Any]:
    return {
        "train": [
            {"source": "a.s", "target": "a.t", "tag": "<2de>"},
            {"source": "b.s", "target": "b.t", "tag": ["<2fr>", "<news>"]},
        ],
        "valid": [{"source": "v.s", "target": "v.t", "tag": "<2de>"}],
    }


@pytest.mark.parametrize("subwords", KINDS)
def test_tags_come_first_and_are_not_split(tmp_path: Path, subwords: dict[str, Any]) -> None:
    make(tmp_path, subwords=subwords, **tagged())
    dataset = Dataset.open(tmp_path / "out")
    tokenizer, train = dataset.tokenizer, dataset.split("train")
    assert tokenizer.tags == ("<2de>", "<2fr>", "<news>")
    ids = tokenizer.tag_ids(tokenizer.tags)
    assert [tokenizer.source.vocabulary.piece(n) for n in ids] == list(tokenizer.tags)
    lines = [*read_lines(tmp_path / "a.s"), *read_lines(tmp_path / "b.s")]
    for number, line in enumerate(train.lines):
        tags = [ids[0]] if line < 200 else ids[1:]
        assert train.source(number).tolist() == tags + tokenizer.source.encode(lines[line])
    assert not set(ids) & {int(n) for number in range(len(train)) for n in train.target(number)}
    source, lengths, _, _ = dataset.split("valid").batch([0, 3])
    assert source[:, 0].tolist() == [ids[0]] * 2 and (lengths > 1).all()


@pytest.mark.parametrize("subwords", KINDS)
def test_no_text_becomes_a_tag(tmp_path: Path, subwords: dict[str, Any]) -> None:
    make(tmp_path, subwords=subwords, **tagged())
    side = Dataset.open(tmp_path / "out").tokenizer.source
    for text in ("<2de>", "a <2de> house", "<2de>the", "the<news>", "<2fr><news>"):
        assert not set(side.encode(text)) & set(side.tag_ids.values())
    ids = [*side.tag_ids.values(), *side.encode("the old house")]
    assert side.decode(ids) == "the old house"
    assert side.word_starts(ids)[:3] == [False] * 3 and sum(side.word_starts(ids)) == 3
    assert word_of_piece(side, "the old house", ids)[3:] == side.word_of_piece(ids)[3:]
    assert side.word_of_piece(ids)[3:] == side.word_of_piece(side.encode("the old house"))
    line, torn = " the o★d h★★use", side.encode(" the o★d h★★use")
    ids = [*side.tag_ids.values(), *torn]
    assert side.word_of_piece(ids, side.pieces_of(line, ids)) == [0] * 3 + word_of_piece(side, line, torn)


def test_a_blank_line_has_no_tag_and_the_others_have(tmp_path: Path) -> None:
    make(tmp_path)
    write_lines(tmp_path / "v.s", ["the house", "", "a dog"])
    write_lines(tmp_path / "v.t", ["a", "", "b"])
    make(tmp_path, overwrite=True, **tagged())
    valid = Dataset.open(tmp_path / "out").split("valid")
    assert [len(valid.source(n)) > 0 for n in range(3)] == [True, False, True]


def test_processes_do_not_change_a_tagged_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from phraseloom.data import prepare as module

    monkeypatch.setattr(module, "CHUNK_PAIRS", 40)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 1)
    make(tmp_path, **tagged())
    alone = content(tmp_path / "out")
    make(tmp_path, overwrite=True, processes=2, **tagged())
    assert content(tmp_path / "out") == alone


def test_a_dataset_without_tags_says_nothing_of_them(tmp_path: Path) -> None:
    make(tmp_path)
    whole = content(tmp_path / "out")
    assert b'"tag' not in whole["index.json"] and b'"tag' not in whole["tokenizer/tokenizer.json"]


def test_a_tag_in_the_text_is_refused_with_its_line(tmp_path: Path) -> None:
    make(tmp_path)
    lines = [*read_lines(tmp_path / "b.t")]
    write_lines(tmp_path / "b.t", [*lines[:41], "say <2de> to", *lines[42:]])
    with pytest.raises(DataError, match="the text has the tag <2de>") as caught:
        make(tmp_path, overwrite=True, **tagged())
    assert (
        caught.value.line == 42 and str(caught.value.file).endswith("b.t") and "another tag" in str(caught.value.hint)
    )


def test_a_reused_tokenizer_keeps_its_tags_and_gets_new_ones(tmp_path: Path) -> None:
    make(tmp_path, **tagged())
    old = Dataset.open(tmp_path / "out").tokenizer
    (tmp_path / "out").rename(tmp_path / "old")
    make(
        tmp_path, tokenizer=str(tmp_path / "old"), train=[{"source": "a.s", "target": "a.t", "tag": "<2cs>"}], valid=[]
    )
    new = Dataset.open(tmp_path / "out").tokenizer
    assert new.tags == (*old.tags, "<2cs>") and [*new.source.vocabulary][:-1] == [*old.source.vocabulary]


def test_an_unknown_tag_names_the_known_ones(tmp_path: Path) -> None:
    make(tmp_path, **tagged())
    tokenizer = Dataset.open(tmp_path / "out").tokenizer
    with pytest.raises(UsageError, match="<2it> is not known") as caught:
        tokenizer.tag_ids(["<2it>"])
    assert caught.value.hint == "its tags: <2de>, <2fr>, <news>"


def test_a_damaged_list_of_tags_is_corrupt(tmp_path: Path) -> None:
    make(tmp_path, **tagged())
    path = tmp_path / "out" / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("<2de>", "<2it>"))
    with pytest.raises(CorruptError, match="the tag <2it> is not in the vocabulary"):
        Tokenizer.load(path.parent)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"train": [{"source": "a.s", "target": "a.t", "tag": "2de"}]}, "tag"),
        ({"train": [{"source": "a.s", "target": "a.t", "tag": "<unk>"}]}, "<unk> is a special token"),
        ({"train": [{"source": "a.s", "target": "a.t", "tag": "<0x0A>"}]}, "piece of a byte"),
        ({"valid": [{"source": "v.s", "target": "v.t", "tag": "<2it>"}]}, "no corpus of data.train has the tag <2it>"),
        ({**tagged(), "subwords": {"kind": "words"}}, "tags need subwords for the source"),
        ({**tagged(), "phrases": {"kind": "table", "file": "x"}}, "tags and data.phrases exclude each other"),
    ],
)
def test_bad_tags_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **more)


def test_filters_do_not_count_tags(tmp_path: Path) -> None:
    make(tmp_path, filter={"max_ratio": 1.0})
    lines = Dataset.open(tmp_path / "out").split("train").lines
    make(tmp_path, overwrite=True, filter={"max_ratio": 1.0}, **tagged())
    assert np.array_equal(Dataset.open(tmp_path / "out").split("train").lines, lines)
