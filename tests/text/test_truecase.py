"""Truecasing: as sacremoses does it, undone, stored, and through `prepare` and a tokenizer folder."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pydantic
import pytest
from sacremoses import MosesTruecaser

from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import prepare
from phraseloom.errors import CorruptError
from phraseloom.options.data import DataConfig
from phraseloom.options.text import SentencepieceConfig, TextConfig
from phraseloom.text.lines import write_lines
from phraseloom.text.normalize import Normaliser
from phraseloom.text.tokenizer import Tokenizer, learn_subwords
from phraseloom.text.truecase import Truecaser, learn_truecaser, undo_truecase

LINES = [
    "The house is old .",
    '" The old man , Peter , sees the house : a House ! Peter is old',
    "( In London ) the man said : The NATO is new . NATO sees Peter ?",
    "a New house . New York is new , and the New York of old",
    "É é É 42 ' the the",
]


def some_lines(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    words = ["The", "the", "House", "house", "NATO", "Nato", ".", ":", "!", "(", '"', "42", "Peter", "peter", "ß", "İ"]
    return [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(count)]


def test_as_sacremoses_does_it(tmp_path: Path) -> None:
    """`use_known` is the rule of Moses' own script."""
    lines = [*LINES * 3, *some_lines(301, 1)]
    theirs, ours = MosesTruecaser(), learn_truecaser(lines)
    theirs.train([line.split() for line in lines])
    assert ours.best == theirs.model["best"]
    ours.save(tmp_path / "t")
    theirs = MosesTruecaser(str(tmp_path / "t"))
    for line in [*LINES, *some_lines(300, 2), "unseen Words . Stay !", "PETER PETER", "THE man"]:
        assert ours(line.split(" ")) == theirs.truecase(line, use_known=True)


def test_what_is_learned_and_undone() -> None:
    truecaser = learn_truecaser(LINES)
    assert " ".join(truecaser(["The", "Man", ",", "Peter", ":", "The", "end", ".", "NATO"])) == (
        "the man , Peter : the end . NATO"
    )
    line = '" The man : See Peter . ( The end ) !'
    assert undo_truecase(truecaser(line.split(" "))) == line.split(" ")
    assert undo_truecase(["ß", "a"]) == ["ß", "a"]  # no letter of its own in upper case
    assert undo_truecase([""]) == [""]


def test_the_file_is_that_of_moses(tmp_path: Path) -> None:
    truecaser = learn_truecaser(LINES)
    truecaser.save(tmp_path / "t")
    text = (tmp_path / "t").read_bytes().decode()
    assert "house (3/4) House (1)\n" in text
    assert Truecaser.load(tmp_path / "t").content == truecaser.content
    theirs = MosesTruecaser(str(tmp_path / "t"))
    assert theirs.truecase("The House", use_known=True) == truecaser(["The", "House"])
    assert learn_truecaser([]).content == b""
    for damaged in (b"house (2/3) House\n", b"house 2\n", b"a (1/1)  b (1)\n", b"\xff (1/1)\n"):
        (tmp_path / "t").write_bytes(damaged)
        with pytest.raises(CorruptError, match="truecaser"):
            Truecaser.load(tmp_path / "t")


def test_options_that_do_not_fit() -> None:
    with pytest.raises(pydantic.ValidationError, match="truecase looks at words"):
        TextConfig(truecase=True)
    with pytest.raises(pydantic.ValidationError, match="one of them"):
        TextConfig(truecase=True, tokenize="moses", lowercase=True)


def test_the_normaliser_truecases_and_undoes_it() -> None:
    config = TextConfig(tokenize="moses", truecase=True)
    normaliser = Normaliser(config, "en", learn_truecaser(LINES))
    assert normaliser("The man sees Peter. The end!") == "the man sees Peter . the end !"
    assert normaliser.detokenise("the man sees Peter . the end !") == "The man sees Peter. The end!"


@pytest.mark.parametrize("language", ["en", "fr", "de"])
@pytest.mark.parametrize("line", ["He said 'we saw the dogs.'", "He left (at last).'", "'a' . ' b.' ", "«a.» 'b.'"])
def test_words_have_one_blank_between_them(line: str, language: str) -> None:
    """sacremoses leaves a blank at the end, and two in the middle, where a quote follows a full stop."""
    found = Normaliser(TextConfig(tokenize="moses"), language)(line)
    assert found == " ".join(found.split())


def test_languages_have_letters_of_their_own() -> None:
    lines = ["bu iyi bir gün .", "çok iyi .", "İyi günler .", "çok ışık ."]
    for code in ("tr", "az-Latn"):
        truecaser = learn_truecaser(lines, code)
        truecaser = pickle.loads(pickle.dumps(truecaser))  # workers of prepare get it
        assert truecaser(["İyi", "günler", ".", "Işık", "var"]) == ["iyi", "günler", ".", "ışık", "var"]
        assert undo_truecase(["iyi", "günler", ".", "ışık"], code) == ["İyi", "günler", ".", "Işık"]
        assert Normaliser(TextConfig(lowercase=True), code)("İstanbul Işık") == "istanbul ışık"
    assert learn_truecaser(["an iron", "the iron"])(["Iron"]) == ["iron"]
    assert Normaliser(TextConfig(lowercase=True), "en")("Iron") == "iron"
    assert undo_truecase(["გამარჯობა", "ßa", "ǆ"], "ka") == [
        "გამარჯობა",
        "ßa",
        "ǆ",
    ]  # Georgian has no capitals in texts
    config = TextConfig(tokenize="moses", truecase=True)
    normaliser = Normaliser(config, "tr", learn_truecaser(lines, "tr"))
    assert normaliser("İyi günler.") == "iyi günler ."
    assert normaliser.detokenise("iyi günler .") == "İyi günler."


def test_a_folder_has_the_letters_of_its_languages(tmp_path: Path) -> None:
    subwords = learn_subwords(LINES * 20, SentencepieceConfig(size=300))
    lines = ["bu iyi bir gün ."]
    case = {"source": learn_truecaser(lines, "tr"), "target": learn_truecaser(LINES)}
    config = TextConfig(tokenize="moses", truecase=True)
    Tokenizer(config, "tr", "en", subwords, subwords, truecasers=case).save(tmp_path)
    assert Tokenizer.load(tmp_path).source.normaliser("İyi gün.") == "iyi gün ."


def test_tokenizers_without_it_are_what_they_were() -> None:
    """A key for everybody would change the hash of every tokenizer, and so the identity of datasets and runs."""
    subwords = learn_subwords(LINES * 20, SentencepieceConfig(size=300))
    plain = Tokenizer(TextConfig(tokenize="moses"), "en", "de", subwords, subwords)
    assert plain._description({})["text"] == {"normalize": "none", "tokenize": "moses", "lowercase": False}
    case = {side: learn_truecaser(LINES) for side in ("source", "target")}
    config = TextConfig(tokenize="moses", truecase=True)
    first = Tokenizer(config, "en", "de", subwords, subwords, truecasers=case)
    other = Tokenizer(config, "en", "de", subwords, subwords, truecasers={**case, "source": learn_truecaser(LINES[:2])})
    assert len({plain.sha256, first.sha256, other.sha256}) == 3
    with pytest.raises(ValueError, match="are needed"):
        Tokenizer(config, "en", "de", subwords, subwords)


def dataset(tmp_path: Path, name: str, **keys: object) -> Dataset:
    source = ["Das alte Haus ist schön.", "Ein Haus, das alte Haus: Das ist es.", "Peter sieht das Haus."] * 40
    target = ["The old house is nice.", "A house, the old house: The one.", "Peter sees the house, and Peter."] * 40
    write_lines(tmp_path / "t.de", source)
    write_lines(tmp_path / "t.en", target)
    files = [{"source": "t.de", "target": "t.en"}]
    given = {
        "folder": str(tmp_path / name), "source_language": "de", "target_language": "en", "train": files, "valid": files,
        "text": {"tokenize": "moses", "truecase": True}, **keys,
    }  # fmt: skip
    return Dataset.open(prepare(DataConfig.model_validate(given), data_root=tmp_path).folder)


def test_prepare_learns_it_and_the_tokenizer_keeps_it(tmp_path: Path) -> None:
    found = dataset(tmp_path, "out", subwords={"kind": "words"}).tokenizer
    assert found.source.words("Das Haus ist alt.")[0] == "das" and found.target.words("The house.")[0] == "the"
    assert "the" in found.target.vocabulary and "The" not in found.target.vocabulary
    ids = found.target.encode("The old house is nice.")
    assert found.target.decode(ids) == "The old house is nice."
    folder = tmp_path / "out" / "tokenizer"
    assert Truecaser.load(folder / "target.truecase").content == found.truecasers["target"].content
    assert Tokenizer.load(folder).sha256 == found.sha256
    (folder / "target.truecase").write_bytes(b"the (1/1)\n")
    with pytest.raises(CorruptError, match="checksum differs"):
        Tokenizer.load(folder)


def test_a_dataset_with_a_tokenizer_of_another_has_its_truecaser(tmp_path: Path) -> None:
    first = dataset(tmp_path, "out", subwords={"kind": "sentencepiece", "size": 300})
    second = dataset(
        tmp_path, "again", subwords={"kind": "sentencepiece", "size": 300}, tokenizer=str(tmp_path / "out"), text={}
    )
    assert second.tokenizer.sha256 == first.tokenizer.sha256
    assert second.tokenizer.source.words("Das Haus")[0] == "das"


def test_joined_text_is_truecased_already_and_only_undone(tmp_path: Path) -> None:
    """The source side is truecased by `prepare`, the target by `tokenize --truecaser`; the output begins in upper case."""
    subwords = {"kind": "words", "joined": True, "vectors": {"random": 8}}
    joined = dataset(tmp_path, "out", subwords=subwords).tokenizer
    assert list(joined.truecasers) == ["source"] and joined.source.words("Das Haus")[0] == "das"
    assert joined.target.words("The house_house .") == ["The", "house", "house", "."]
    assert joined.target.plain("the house . the end") == "The house. The end"
    assert Tokenizer.load(tmp_path / "out" / "tokenizer").sha256 == joined.sha256
