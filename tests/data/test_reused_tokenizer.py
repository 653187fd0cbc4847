"""`data.tokenizer`: the subwords and vocabularies of another dataset or model; what they cannot spell is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from phraseloom import files
from phraseloom.cli.main import run
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import Report, ignored_keys, prepare
from phraseloom.data.tally import table
from phraseloom.errors import CorruptError, FileProblem, PhraseloomError, UsageError
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.data import DataConfig, TextDataConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import SubwordNmtConfig
from phraseloom.text.extension import extend, spelling
from phraseloom.text.tokenizer import Tokenizer, learn_subwords

OLD = ["the old man sleeps", "a cow is small", "the winter garden is dark", "we invite them tonight"] * 3
NEW = ["the old cow sleeps", "a naïve man is small", "Ωmega is dark €", "the garden is old"]
KINDS: list[dict[str, Any]] = [
    {"kind": "sentencepiece", "size": 60, "byte_fallback": False},
    {"kind": "subword_nmt", "merges": 40},
]


def config(place: Path, lines: list[str], **more: Any) -> DataConfig:
    place.mkdir(exist_ok=True)
    for name in ("s", "t", "v"):
        files.atomic_write_text(place / name, "".join(f"{line}\n" for line in lines))
    given = {
        "folder": str(place / "out"), "source_language": "en", "target_language": "de", "processes": 1,
        "train": [{"source": str(place / "s"), "target": str(place / "t")}],
        "valid": [{"source": str(place / "v"), "target": str(place / "v")}],
    }  # fmt: skip
    return DataConfig.model_validate({**given, **more})


@pytest.fixture(params=KINDS, ids=lambda kind: str(kind["kind"]))
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    prepare(config(tmp_path / "old", OLD, subwords=request.param, text={"lowercase": True}))
    return tmp_path / "old" / "out"


def reused(tmp_path: Path, origin: Path, **more: Any) -> Report:
    return prepare(config(tmp_path / "new", NEW, tokenizer=str(origin), **more))


def test_the_same_vocabularies_and_what_they_cannot_spell(old: Path, tmp_path: Path) -> None:
    report = reused(tmp_path, old)
    theirs, ours = Dataset.open(old).tokenizer, Dataset.open(tmp_path / "new" / "out").tokenizer
    assert ours.sha256 == theirs.sha256 and ours.source.vocabulary == theirs.source.vocabulary
    train = report.index.splits["train"]
    unknown = sum(piece not in ours.source.vocabulary for line in NEW for piece in ours.source.pieces(line))
    assert train.source_unknown == train.target_unknown == unknown >= 3
    assert set(train.unknown_words or ()) == {"naïve", "ωmega", "€"}
    text = table(report.index)
    assert f"train: unknown are {unknown} of {train.source_tokens} (" in text
    assert "source subwords and" in text and "words with unknown pieces: naïve, ωmega, €" in text
    assert "subwords of data.tokenizer; vocabulary: " in text
    assert report.index.config["text"]["lowercase"] is True


def test_where_it_is_found_does_not_change_what_is_written(old: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(old / "tokenizer")
    sizes = len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary)
    torch.manual_seed(0)
    model = ModelConfig.model_validate({"preset": "tiny"})
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    save_model(tmp_path / "run" / "checkpoints" / "m", build_model(model, *sizes), model, tokenizer)
    (tmp_path / "run" / "best").symlink_to("checkpoints/m")
    indices = []
    for place in (old, old / "tokenizer", tmp_path / "run", tmp_path / "run" / "checkpoints" / "m"):
        reused(tmp_path, place, folder=str(tmp_path / f"out{len(indices)}"))
        indices.append((tmp_path / f"out{len(indices)}" / "index.json").read_bytes())
    assert len(set(indices)) == 1 and str(tmp_path).encode() not in indices[0].replace(
        str(tmp_path / "new").encode(), b""
    )


def test_subwords_that_are_learned_have_no_such_counts(old: Path) -> None:
    stored = (old / "index.json").read_bytes()
    assert not [key for key in (b"reused", b"unknown", b'"tokenizer"') if key in stored]


def refused(tmp_path: Path, kind: type[PhraseloomError], match: str, **more: Any) -> None:
    with pytest.raises(kind, match=match):
        prepare(config(tmp_path / "new", NEW, **more))
    assert not (tmp_path / "new" / "out").exists()


def test_what_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    prepare(config(tmp_path / "old", OLD, subwords=KINDS[0]))
    old = str(tmp_path / "old" / "out")
    refused(tmp_path, FileProblem, r"no/where: data\.tokenizer", tokenizer=str(tmp_path / "no" / "where"))
    refused(
        tmp_path,
        FileProblem,
        r"data\.tokenizer: this folder has no tokenizer/tokenizer\.json; name a dataset",
        tokenizer=str(tmp_path),
    )
    refused(tmp_path, UsageError, "its languages are en → de, the data are de → en", tokenizer=old, source_language="de",
            target_language="en")  # fmt: skip
    refused(tmp_path, UsageError, "its subwords are sentencepiece, data.subwords is words", tokenizer=old,
            subwords={"kind": "words"})  # fmt: skip
    file = tmp_path / "old" / "out" / "tokenizer" / "joint.vocab"
    file.write_bytes(file.read_bytes()[:-3])
    refused(tmp_path, CorruptError, r"joint\.vocab", tokenizer=old)


def test_the_origin_is_never_replaced(tmp_path: Path) -> None:
    prepare(config(tmp_path / "old", OLD, subwords=KINDS[0]))
    own = config(tmp_path / "old", OLD, subwords=KINDS[0], tokenizer=str(tmp_path / "old" / "out"))
    with pytest.raises(UsageError):
        prepare(own, overwrite=True)
    assert (tmp_path / "old" / "out" / "index.json").is_file()


def test_text_of_one_language(tmp_path: Path) -> None:
    for name, lines in (("old", OLD), ("new", NEW)):
        files.atomic_write_text(tmp_path / name, "".join(f"{line}\n" for line in lines))
    given = {"language": "en", "train": [{"text": str(tmp_path / "old")}], "subwords": KINDS[0], "processes": 1}
    prepare(TextDataConfig.model_validate({**given, "folder": str(tmp_path / "a")}))
    more = {"folder": str(tmp_path / "b"), "train": [{"text": str(tmp_path / "new")}], "tokenizer": str(tmp_path / "a")}
    report = prepare(TextDataConfig.model_validate({**given, **more}))
    train = report.index.splits["train"]
    assert train.source_unknown is None and (train.target_unknown or 0) >= 3 and "naïve" in (train.unknown_words or ())


# --- new pieces -------------------------------------------------------------------------------------------------------

DOMAIN = ["the winter winter sleeps", "old winter gardens winter", "a naïve winter", "sleeps sleeps sleeps"] * 2


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind["kind"]))
def test_new_pieces_come_after_the_old_ones(tmp_path: Path, kind: dict[str, Any], joint: bool) -> None:
    few = {**kind, "joint": joint} | ({"size": 35} if kind["kind"] == "sentencepiece" else {"merges": 8})
    prepare(config(tmp_path / "old", OLD, subwords=few))
    old = Dataset.open(tmp_path / "old" / "out").tokenizer
    report = prepare(config(tmp_path / "new", DOMAIN, tokenizer=str(tmp_path / "old" / "out"), new_pieces=6))
    new = Dataset.open(tmp_path / "new" / "out").tokenizer
    assert new.joint == joint
    for theirs, ours in ((old.source, new.source), (old.target, new.target)):
        before, after = list(theirs.vocabulary), list(ours.vocabulary)
        assert after[: len(before)] == before and len(after) == len(before) + 6
        for line in [*OLD, *DOMAIN, *NEW, "zzz  €€ the"]:
            assert ours.subwords.undo(ours.pieces(line)) == line
            assert len(ours.pieces(line)) <= len(theirs.pieces(line))
        assert sum(len(ours.pieces(line)) for line in DOMAIN) < sum(len(theirs.pieces(line)) for line in DOMAIN)
        separator = "@@" if kind["kind"] == "subword_nmt" else ""
        for piece in after[len(before) :]:
            parts = spelling(piece, theirs.vocabulary, separator=separator)
            assert len(parts) >= 2 and all(part in theirs.vocabulary for part in parts)
            assert "".join(p.removesuffix("@@") for p in parts) == piece.removesuffix("@@")
    count = 6 if joint else 12
    assert report.index.subwords.new_pieces == count
    assert f"subwords of data.tokenizer and {count} new pieces learned on 8 pairs" in table(report.index)
    again = prepare(config(tmp_path / "more", DOMAIN, tokenizer=str(tmp_path / "old" / "out"), new_pieces=6))
    assert again.index.tokenizer_sha256 == report.index.tokenizer_sha256


def test_a_word_like_a_special_keeps_its_id() -> None:
    """Texts have `<unk>`; it is a piece of its own beside the special one."""
    old = learn_subwords(["the <unk> sat", "a <unk> ran"] * 5, SubwordNmtConfig(merges=40))
    new = extend(old, ["hospital hospitals"] * 5, 3)
    assert list(new.vocabulary)[: len(old.vocabulary)] == list(old.vocabulary)
    assert new.decode(new.encode("the <unk> sat")) == "the <unk> sat"


def test_new_pieces_need_merges(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"new_pieces are added to the subwords of data\.tokenizer"):
        config(tmp_path, OLD, new_pieces=5)
    unigram = {"kind": "sentencepiece", "model": "unigram", "size": 60, "byte_fallback": False}
    prepare(config(tmp_path / "old", OLD, subwords=unigram))
    refused(tmp_path, UsageError, "only BPE subwords", tokenizer=str(tmp_path / "old" / "out"), new_pieces=5)


def test_the_fewest_pieces() -> None:
    assert spelling("abc", ["a", "b", "c", "bc"]) == ["a", "bc"]
    assert spelling("abc@@", ["a@@", "b@@", "c@@", "ab@@", "c"], separator="@@") == ["ab@@", "c@@"]
    assert spelling("abc", ["a@@", "b@@", "c@@", "ab@@", "c"], separator="@@") == ["ab@@", "c"]
    assert spelling("abd", ["a", "b"]) == []


def test_keys_that_the_tokenizer_contradicts_are_named(old: Path, tmp_path: Path) -> None:
    def ignored(**more: Any) -> list[str]:
        return ignored_keys(config(tmp_path / "new", NEW, tokenizer=str(old), **more))

    kind = Tokenizer.load(old / "tokenizer").source.kind
    other, size = (
        next(k for k in KINDS if k["kind"] != kind),
        {"size": 61} if kind == "sentencepiece" else {"merges": 41},
    )
    same = next(k for k in KINDS if k["kind"] == kind)
    assert not ignored() and not ignored(text={"lowercase": True}, subwords=same)
    assert not ignored_keys(config(tmp_path / "new", NEW, text={"lowercase": True}))
    assert ignored(text={"tokenize": "moses", "lowercase": False}, subwords=other | {"joint": False}) == [
        "data.text.lowercase: false is ignored, because data.tokenizer has true",
        "data.text.tokenize: moses is ignored, because data.tokenizer has none",
        "data.subwords.joint: false is ignored, because data.tokenizer has true",
        f"data.subwords.kind: {other['kind']} is ignored, because data.tokenizer has {kind}",
    ]
    said = ["data.subwords.size: 61 is ignored, because data.tokenizer has 60"] if kind == "sentencepiece" else []
    assert ignored(subwords={"kind": kind, **size}) == said


def test_prepare_warns_of_them(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = config(tmp_path / "new", NEW, tokenizer=str(old), text={"tokenize": "moses"}).model_dump(exclude_unset=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "mine", "data": data}))
    assert run(["prepare", str(recipe), "data.text.lowercase=false"]) == 0
    ignored = [
        line for line in capsys.readouterr().err.splitlines() if " is ignored, because data.tokenizer has " in line
    ]
    assert [line.split(": ")[:3] for line in ignored] == [
        ["phraseloom prepare", "warning", f"data.text.{key}"] for key in ("lowercase", "tokenize")
    ]
