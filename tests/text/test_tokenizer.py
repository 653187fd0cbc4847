from __future__ import annotations

import json
from pathlib import Path

import pytest

from phraseloom.errors import CorruptError, FileProblem
from phraseloom.options.languages import base_language
from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig
from phraseloom.text.marian import MarianSubwords
from phraseloom.text.normalize import Normaliser
from phraseloom.text.tokenizer import Tokenizer, learn_subwords
from phraseloom.text.vocabulary import Vocabulary

LINES = ['He said: "It\'s late", and left (at 10.30).', "The dogs' owner doesn't know.", "&lt; 3 % of x @-@ y"] * 30


@pytest.mark.parametrize("line", LINES[:2])
def test_moses_is_undone(line: str) -> None:
    normaliser = Normaliser(TextConfig(tokenize="moses"), "en")
    assert normaliser(line) != line
    assert normaliser.detokenise(normaliser(line)) == line


def test_moses_escapes_nothing() -> None:
    assert Normaliser(TextConfig(tokenize="moses"), "en")("a & b [c] | d's") == "a & b [ c ] | d 's"


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("a DOTMULTI, b... c..", "a DOTMULTI , b ... c .."),
        ("xDOTDOTMULTIs. DOTXMULTI DOTXXMULTI's", "xDOTDOTMULTIs . DOTXMULTI DOTXXMULTI 's"),
        ("DOT..MULTI (DOTMULTI)...", "DOT .. MULTI ( DOTMULTI ) ..."),
        ("a\0b\x01\x1bc \x02 d\0", "a b c d"),
        ("DOT\0MULTI a\tb", "DOT MULTI a b"),
        ("\0", ""),
    ],
)
def test_what_moses_would_lose(line: str, tokens: str) -> None:
    normaliser = Normaliser(TextConfig(tokenize="moses"), "en")
    assert normaliser(line) == tokens
    assert normaliser.detokenise("a DOTMULTI b ...") == "a DOTMULTI b..."


def test_normalisation_and_case() -> None:
    normaliser = Normaliser(TextConfig(normalize="moses", lowercase=True), "en")
    assert normaliser("„Hello“ — it’s") == normaliser("„Hello“ — it’s").lower()
    assert '"hello"' in normaliser("„Hello“ — it’s")
    assert Normaliser(TextConfig(), "en")("  A  ") == "  A  "


def test_jieba_for_chinese_moses_for_the_rest() -> None:
    pytest.importorskip("jieba")
    chinese = Normaliser(TextConfig(tokenize="jieba"), "zh")
    assert chinese("我来到北京清华大学") == "我 来到 北京 清华大学"
    assert chinese.detokenise("我 来到 北京 清华大学") == "我来到北京清华大学"
    for code in ("ZH_tw", "zho", "chi", "cmn", "zho_Hans"):
        assert Normaliser(TextConfig(tokenize="jieba"), code)("我来到北京清华大学") == "我 来到 北京 清华大学"
    assert Normaliser(TextConfig(tokenize="jieba"), "en")("Yes, sir.") == "Yes , sir ."


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("fr-CA", "fr"),
        ("FR", "fr"),
        ("de_AT", "de"),
        ("CS", "cs"),
        ("fra_Latn", "fr"),
        ("fre", "fr"),
        ("ger", "de"),
        ("deu", "de"),
        ("cze", "cs"),
        ("ces_Latn", "cs"),
    ],
)
def test_the_rules_of_a_language_are_those_of_its_regions(code: str, language: str) -> None:
    config = TextConfig(tokenize="moses", normalize="moses")
    regional, general = Normaliser(config, code), Normaliser(config, language)
    line = "L'homme dit « l'an 2.5 » le 4. Mai Nr. 7, z.B. aujourd'hui ?"
    assert regional(line) == general(line) != Normaliser(config, "en")(line)
    assert regional.detokenise(general(line)) == general.detokenise(general(line))
    assert regional.looks_at_end == general.looks_at_end == (language == "cs")


@pytest.mark.parametrize(
    "character", ["'", '"', ".", "-", "@", "&", ",", "…", "\u3000", "(", "<", "%", "0", "\t", "//"]
)
def test_moses_takes_linear_time(character: str) -> None:
    import time

    normaliser = Normaliser(TextConfig(normalize="moses", tokenize="moses"), "en")
    normaliser("warm up")
    started = time.process_time()
    normaliser(character * 20_000)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("code", ["en", "de", "zh", "yue", "mul", "und", "tdt", "xx", ""])
def test_other_codes_stay(code: str) -> None:
    assert base_language(code) == base_language(f"{code.upper()}_Latn") == code


def make(joint: bool = True, kind: str = "sentencepiece", text: TextConfig | None = None) -> Tokenizer:
    config = SentencepieceConfig(size=330) if kind == "sentencepiece" else SubwordNmtConfig(merges=30)
    source = learn_subwords(LINES, config)
    target = source if joint else learn_subwords(LINES[1:], config)
    return Tokenizer(text or TextConfig(), "en", "de", source, target)


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt"])
@pytest.mark.parametrize("joint", [True, False])
def test_saved_and_loaded(tmp_path: Path, kind: str, joint: bool) -> None:
    tokenizer = make(joint, kind, TextConfig(tokenize="moses"))
    assert set(tokenizer.save(tmp_path)) == {p.name for p in tmp_path.iterdir()}
    again = Tokenizer.load(tmp_path)
    assert again.sha256 == tokenizer.sha256 and again.joint is joint and again.text == tokenizer.text
    assert (again.source.language, again.target.language, again.source.kind) == ("en", "de", kind)
    for line in LINES[:3]:
        assert again.source.encode(line) == tokenizer.source.encode(line) == again.source.encode_batch([line])[0]
        assert again.target.decode(again.target.encode(line)) == tokenizer.target.decode(tokenizer.target.encode(line))


def test_hash_depends_on_everything() -> None:
    hashes = {
        make(j, k, t).sha256
        for j in (True, False)
        for k in ("sentencepiece", "x")
        for t in (None, TextConfig(lowercase=True))
    }
    assert len(hashes) == 8


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt"])
def test_words_and_pieces(kind: str) -> None:
    side = make(kind=kind, text=TextConfig(tokenize="moses")).source
    ids = side.encode(LINES[1])
    numbers = side.word_of_piece(ids)
    assert side.words(LINES[1]) == ["The", "dogs", "'", "owner", "doesn", "'t", "know", "."] == side.words_of(ids)
    assert numbers[0] == 0 and numbers[-1] == 7 and sorted(set(numbers)) == list(range(8))
    assert side.decode(ids) == LINES[1]
    assert side.words(" \u3000") == [] == side.encode(" \u3000") == side.pieces("") == side.word_of_piece([])


def marian_without(*missing: str) -> Tokenizer:
    """A tokenizer of Marian whose vocabulary lacks some pieces of its sentencepiece model."""
    learned = learn_subwords(LINES, SentencepieceConfig(model="bpe", size=100, byte_fallback=False))
    assert set(missing) <= set(learned.vocabulary)
    pieces = [piece for piece in learned.vocabulary if piece not in missing]
    subwords = MarianSubwords(learned.content, Vocabulary(pieces))
    return Tokenizer(TextConfig(), "en", "de", subwords, subwords)


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt", "marian"])
@pytest.mark.parametrize("line", [
    "the ★owner", "the ow★ner", "the owner★ kn★w★s", " the owner", "the owner ", "the  owner  knows", "★ ★★ the",
])  # fmt: skip
def test_unknown_pieces_stay_in_their_words(kind: str, line: str) -> None:
    side = (marian_without("\u2581", "\u2581owner") if kind == "marian" else make(kind=kind)).source
    ids, words = side.encode(line), side.words(line)
    numbers = side.word_of_piece(ids, side.pieces_of(line, ids))
    groups: list[list[str]] = [[] for _ in words]
    for piece, number in zip(side.pieces(line), numbers, strict=True):
        groups[number].append(piece)
    assert [side.subwords.undo(group).strip(" ") for group in groups] == words
    assert side.word_of_piece(ids[:-1], side.pieces_of(line, ids[:-1])) == numbers[:-1]


def test_of_a_far_too_long_line_only_the_beginning_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    side, cut = make(kind="subword_nmt").source, []
    pieces = side.subwords.pieces
    monkeypatch.setattr(side.subwords, "pieces", lambda text: cut.append(len(text)) or pieces(text))
    line = "ow★ner " * 10_000
    assert side.pieces_of(line, side.encode("ow★ner")) == pieces("ow★ner")
    assert max(cut) < 1000


def test_damage_is_refused(tmp_path: Path) -> None:
    make(joint=False).save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    for key, value in [
        ("format", 2), ("subwords", "os.system"), ("joint", "yes"), ("files", {"../x": "0"}),
        ("text", {"lowercase": 3}),        ("source_language", None), ("joint", True),
    ]:  # fmt: skip
        (tmp_path / "tokenizer.json").write_text(json.dumps({**description, key: value}))
        with pytest.raises(CorruptError):
            Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    Tokenizer.load(tmp_path)
    content = (tmp_path / "source.model").read_bytes()
    (tmp_path / "source.model").write_bytes(content[:-1])
    with pytest.raises(CorruptError, match="checksum differs"):
        Tokenizer.load(tmp_path)
    (tmp_path / "source.model").unlink()
    with pytest.raises(FileProblem, match="not found"):
        Tokenizer.load(tmp_path)
