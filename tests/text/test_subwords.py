"""Every kind of subwords: undo is exact, the ids are stable, damaged files are typed errors."""

from __future__ import annotations

import io
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phraseloom.errors import CorruptError, DataError, ModelError, PhraseloomError
from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, WordsConfig
from phraseloom.text import sentencepiece
from phraseloom.text.sentencepiece import Sentencepiece
from phraseloom.text.subword_nmt import SubwordNmt
from phraseloom.text.subwords import ESCAPE, UNKNOWN, Flat, Subwords
from phraseloom.text.tokenizer import learn_subwords
from phraseloom.text.vocabulary import UNK
from phraseloom.text.words import Words

LINES = [
    "the old house stands  in the garden", "a dog ran to the house", "small birds sang in all the gardens",
    "</s> <unk> <pad> <0x41>", "a@@ b@@@ @ \u2581 x\u2581y \ue581 \ue5811", "it's 10,000\tgood\u3000things\u2028 .",
    "nul\0here \r \x0b", "in_all the_old_house _ __ a_ a&#95;b",
] * 15  # fmt: skip
CONFIGS: dict[str, Any] = {
    "bpe": SentencepieceConfig(model="bpe", size=350),
    "unigram": SentencepieceConfig(model="unigram", size=350),
    "bpe-no-bytes": SentencepieceConfig(model="bpe", size=120, byte_fallback=False),
    "unigram-no-bytes": SentencepieceConfig(model="unigram", size=100, byte_fallback=False),
    "subword_nmt": SubwordNmtConfig(merges=60),
    "characters": SubwordNmtConfig(merges=0),
    "words": WordsConfig(size=40),
    "joined": WordsConfig(size=40, phrases=1, joined=True),
}
LEARNED: dict[str, Subwords] = {}
TEXT = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40) | st.lists(
    st.sampled_from([" ", "  ", "@@", "@", "\u2581", "\ue581", "0", "1", "a", "the", "</s>", "</w>", "<0x41>", "\t",
                     "\r", "\0", "\u2585", "\ufffd", "\u2047", "\u00a0", "\u2028", "\x02", "<unk>", "|||", "_",
                     "ü", "𝕏", "in_all", "the_old_house", " "]),
    max_size=12,
).map("".join)  # fmt: skip


@pytest.fixture(params=CONFIGS)
def subwords(request: pytest.FixtureRequest) -> Subwords:
    return get(request.param)


def get(name: str) -> Subwords:
    if name not in LEARNED:
        LEARNED[name] = learn_subwords(LINES, CONFIGS[name])
    return LEARNED[name]


def check(subwords: Subwords, text: str) -> None:
    pieces, ids = subwords.pieces(text), subwords.encode(text)
    assert subwords.undo(pieces) == text
    assert subwords.undo(" ".join(pieces).split(" ") if pieces else []) == text
    assert not {0, 2, 3} & set(ids)
    starts = subwords.word_starts(ids)
    assert len(starts) == len(ids)
    if isinstance(subwords, Words):  # blanks too many, and _ in a phrase that is read as its words, are not in the ids
        text = subwords.undo([re.sub(f"{ESCAPE}[12]", "", piece) for piece in pieces])
        assert len(ids) == len(pieces) == sum(starts)
    words = [word for word in text.split(" ") if word]
    if not isinstance(subwords, Words):
        assert sum(subwords.word_starts(ids, pieces)) == len(words)
    if UNK not in ids:
        assert subwords.decode(ids) == text
        assert sum(starts) == len(words)


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=300, deadline=None, database=None)
@given(text=TEXT)
def test_t15_undo_of_apply_is_the_text(name: str, text: str) -> None:
    check(get(name), text)


@pytest.mark.full
@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=10_000, deadline=None, database=None)
@given(text=TEXT)
def test_t15_undo_of_apply_is_the_text_full(name: str, text: str) -> None:
    check(get(name), text)


def assert_flat(found: Flat, expected: list[list[int]]) -> None:
    assert found[0].tolist() == [number for line in expected for number in line]
    assert found[1].tolist() == [len(line) for line in expected]


def test_batches_are_single_lines(subwords: Subwords) -> None:
    lines = [*LINES[:7], "", " ", "  x"]
    expected = [subwords.encode(line) for line in lines]
    assert subwords.encode_batch(lines) == expected
    assert_flat(subwords.encode_flat(lines), expected)
    assert subwords.encode("") == [] == subwords.pieces("")


@settings(max_examples=60, deadline=None, database=None)
@given(lines=st.lists(TEXT, max_size=12), name=st.sampled_from([name for name in CONFIGS if "bpe" in name]))
def test_words_that_were_cut_before_change_no_id(lines: list[str], name: str) -> None:
    """With room for few words, so that they are forgotten; every line comes twice, and cut at other places."""
    subwords = get(name)
    assert subwords._cuts_words  # type: ignore[attr-defined]
    lines = [part for line in lines for part in (line, line[1:], line[::-1], f"{line} x", f"é {line}")] * 2
    expected = [subwords.encode(line) for line in lines]
    with pytest.MonkeyPatch.context() as patch:
        for key, value in (("LARGE_BATCH", 4), ("MAX_WORDS", 9), ("LONGEST_WORD", 5)):
            patch.setattr(sentencepiece, key, value)
        assert subwords.encode_batch(lines) == expected
        assert_flat(subwords.encode_flat(lines), expected)
        assert len(subwords._words) == len(subwords._ids[1]) <= 80  # type: ignore[attr-defined]


def test_a_model_that_changes_text_is_not_cut_by_words() -> None:
    """Pieces over a space, and a normalisation, by which a line is more than its words."""

    library = pytest.importorskip("sentencepiece")
    lines = ["the old house", "the new house", "a house", "ﬁve old houses"] * 20
    for options in ({"split_by_whitespace": False}, {"normalization_rule_name": "nmt_nfkc"}):
        model = io.BytesIO()
        given_options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, **options}
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=50, pad_id=0, unk_id=1,
            bos_id=2, eos_id=3, pad_piece="<pad>", unk_piece="<unk>", bos_piece="<s>", eos_piece="</s>",
            character_coverage=1.0, minloglevel=4, **given_options,
        )  # fmt: skip
        assert not sentencepiece.Sentencepiece(model.getvalue())._cuts_words, options
    assert not get("unigram")._cuts_words  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CONFIGS)
def test_learning_twice_gives_the_same_bytes(name: str) -> None:
    again = learn_subwords(LINES, CONFIGS[name])
    assert again.content == get(name).content and again.vocabulary.sha256 == get(name).vocabulary.sha256


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(TEXT, min_size=2, max_size=20), st.sampled_from([30, 60, 300, 340]))
@example(["the  old  man", " the old  man "] * 10, 60)  # extra spaces are pieces
def test_bpe_of_counted_words_is_bpe_of_lines(lines: list[str], size: int) -> None:
    """The trainer of the library gets words with counts; its model is that of the lines, bit for bit."""
    config = SentencepieceConfig(size=size, byte_fallback=size >= 300)
    texts = [LINES[0], *lines, LINES[1], *lines]

    def model(learn: Any) -> bytes | str:
        try:
            return bytes(learn())
        except DataError as error:
            return str(error)

    escaped = [sentencepiece._escape(text.replace("\0", "")) for text in texts]
    plain = model(lambda: sentencepiece._train([text for text in escaped if text], config))
    assert model(lambda: sentencepiece.learn(texts, config).content) == plain
    parts = [sentencepiece.count_words(texts[:3]), sentencepiece.count_words(texts[3:])]
    assert model(lambda: sentencepiece.learn_from_words(parts[1] + parts[0], config).content) == plain


def test_nul_never_enters_a_vocabulary(subwords: Subwords) -> None:
    assert not any("\0" in piece for piece in subwords.vocabulary)


def test_ids_of_no_piece(subwords: Subwords) -> None:
    for number in (-1, len(subwords.vocabulary)):
        with pytest.raises(ModelError, match="not in this vocabulary"):
            subwords.decode([number])
    assert subwords.decode([0, 2, 3]) == ""
    assert UNKNOWN in subwords.decode([UNK])


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    subwords = get(name)
    assert set(subwords.save(tmp_path, "joint")) == {p.name for p in tmp_path.iterdir()}
    again = type(subwords).load(tmp_path, "joint")  # type: ignore[attr-defined]
    assert again.vocabulary == subwords.vocabulary
    assert again.encode_batch(LINES[:7]) == subwords.encode_batch(LINES[:7])


def test_subword_nmt_is_what_the_library_gives() -> None:
    import io

    from subword_nmt.apply_bpe import BPE

    ours = get("subword_nmt")
    theirs = BPE(io.StringIO(ours.content.decode()))
    for line in LINES[:3]:
        assert " ".join(ours.pieces(line.replace("  ", " "))) == theirs.process_line(line)


def test_letters_like_the_mark_of_a_word_end_leave_the_vocabulary_closed() -> None:
    """`</w>` in the text: a merge of these four characters looked like a last piece, so the piece inside a word was unknown."""
    lines = [f"{a}{b}</w>{b}{a}" for a in "abcdefgh" for b in "abcdefgh"]
    learned = learn_subwords(lines, SubwordNmtConfig(merges=5))
    for line in (*lines, "a</w>", "</w></w>", "</w>a"):
        assert UNK not in learned.encode(line)
        assert learned.decode(learned.encode(line)) == line


def test_word_starts() -> None:
    for name in CONFIGS:
        subwords = get(name)
        ids = subwords.encode("the  garden ")
        groups: list[list[int]] = []
        for number, begins in zip(ids, subwords.word_starts(ids), strict=True):
            if begins:
                groups.append([])
            groups[-1].append(number)
        assert [subwords.decode(group).strip() for group in groups] == ["the", "garden"], name


@pytest.mark.parametrize("name", ["bpe", "subword_nmt"])
def test_too_little_text(name: str) -> None:
    for lines in ([], ["", "\0"]):
        with pytest.raises(DataError):
            learn_subwords(lines, CONFIGS[name])
    with pytest.raises(DataError, match="size to at most"):
        learn_subwords(["ab"] * 5, SentencepieceConfig(size=8000))
    with pytest.raises(DataError, match="size to at least"):
        learn_subwords(["abcdefghijklmnop"] * 5, SentencepieceConfig(size=10, byte_fallback=False))


def test_learning_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    for name in CONFIGS:
        learn_subwords([*LINES, "x" * 20_000], CONFIGS[name])
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


@pytest.mark.parametrize("name", ["bpe", "unigram", "subword_nmt"])
def test_mutated_models_are_typed_errors_or_usable(name: str) -> None:
    original, dice = get(name), random.Random(7)
    for _ in range(300):
        data = bytearray(original.content)
        for _ in range(dice.choice([1, 2, 8])):
            place = dice.randrange(len(data))
            data[place : place + dice.choice([0, 1, 9])] = bytes(
                dice.randrange(256) for _ in range(dice.choice([0, 1, 3]))
            )
        try:
            if isinstance(original, SubwordNmt):
                text = data.decode("utf-8", "replace")
                model: Subwords = SubwordNmt(text, original.vocabulary)
            else:
                model = Sentencepiece(bytes(data))
            model.decode(model.encode("the old \u2581 zü"))
            model.undo(model.pieces("the old zü"))
        except PhraseloomError:
            continue


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"garbage\n" * 50, b"\x80\x04cos\nsystem\n."])
def test_files_that_are_no_model(tmp_path: Path, content: bytes) -> None:
    for name in ("j.model", "j.codes"):
        (tmp_path / name).write_bytes(content)
    get("subword_nmt").vocabulary.save(tmp_path / "j.vocab")
    with pytest.raises(CorruptError):
        Sentencepiece.load(tmp_path, "j")
    with pytest.raises(CorruptError):
        SubwordNmt.load(tmp_path, "j")
