"""Lines, ids and trees to phrases: the words of a tree beside awkward text, tables, folders, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phraseloom.config import validate
from phraseloom.errors import ConfigError, CorruptError, DataError, FileProblem
from phraseloom.options.data import TableSegmenterConfig, TreeSegmenterConfig
from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig, WordsConfig
from phraseloom.phrases.segmenters import FixedSegmenter, TableSegmenter, TreeSegmenter, read_phrases
from phraseloom.phrases.source import (
    build_segmenter,
    comparable,
    count_flat,
    load_segmenter,
    piece_starts,
    segment_lines,
    sentence_of,
    tree_counts,
    word_of_piece,
)
from phraseloom.phrases.trees import Tree
from phraseloom.text.marian import MarianSubwords
from phraseloom.text.normalize import Normaliser
from phraseloom.text.subwords import ESCAPE
from phraseloom.text.tokenizer import Side, learn_subwords
from phraseloom.text.truecase import learn_truecaser
from phraseloom.text.vocabulary import SPECIALS, Vocabulary

LINES = [
    "the old man sleeps .",
    "a cow is small , but a winter garden is dark .",
    'he said : " we do n\'t invite them tonight . "',
    "( well @-@ known )",
]
CONFIGS = {
    "bytes": SentencepieceConfig(size=330),
    "unknown": SentencepieceConfig(size=70, byte_fallback=False),
    "unigram": SentencepieceConfig(model="unigram", size=60, byte_fallback=False),
    "nmt": SubwordNmtConfig(merges=60),
}
SUBWORDS = {name: learn_subwords(LINES, config) for name, config in CONFIGS.items()}


def side_of(name: str, **text: str | bool) -> Side:
    return Side(Normaliser(TextConfig(**text), "en"), SUBWORDS[name])  # type: ignore[arg-type]


SIDES = {name: side_of(name) for name in CONFIGS}
every_side = pytest.mark.parametrize("name", CONFIGS)


def flat(*words: str) -> str:
    return str(Tree("S", [Tree("W", [Tree(word)]) for word in words]))


def counts_of(side: Side, line: str, *words: str) -> list[int]:
    """The pieces of each word of a tree."""
    sentence = sentence_of(side, line, side.encode(line), flat(*words))
    assert sentence.parse is not None
    return list(sentence.parse.counts)


@every_side
def test_the_words_of_the_line(name: str) -> None:
    side = SIDES[name]
    for line in LINES:
        words = line.split(" ")
        assert counts_of(side, line, *words) == [len(side.pieces(word)) for word in words]


@every_side
def test_words_that_the_tree_cuts_or_joins(name: str) -> None:
    side = SIDES[name]
    pieces = side.pieces("dark.")
    assert pieces[-1] == ".", "the example needs the full stop as a piece"
    assert counts_of(side, "dark.", "dark", ".") == [len(pieces) - 1, 1]
    assert counts_of(side, "dark .", "dark.") == [len(side.pieces("dark ."))]


def test_a_piece_is_where_its_first_character_is() -> None:
    side = SIDES["bytes"]
    assert side.pieces("the cow") == ["▁the", "▁c", "ow"], "the example needs these pieces"
    # "▁the" begins in t, so he has no piece; "▁c" begins in c, the space in front is of the same word.
    assert counts_of(side, "the cow", "t", "he", "co", "w") == [1, 0, 2, 0]
    assert counts_of(side, "the cow", "thec", "ow") == [2, 1]
    assert counts_of(side, "the cow", "thecow") == [3]
    assert counts_of(SIDES["nmt"], "the cow", "t", "he", "co", "w") == [1, 1, 2, 1]  # th@@ e c@@ o@@ w


def test_bytes_of_one_character_stay_together() -> None:
    side = SIDES["bytes"]
    # € is three bytes: pieces <0xE2> <0x82> <0xAC>; 😀 four; a space in front belongs to the word.
    assert side.pieces("€😀") == ["▁", *(f"<0x{b:02X}>" for b in "€😀".encode())]
    assert counts_of(side, "€😀", "€", "😀") == [4, 4]
    assert counts_of(side, "a €", "a", "€") == [1, 4]
    assert counts_of(side, "a€ 😀b", "a", "€", "😀", "b") == [1, 3, 5, 1]


def test_white_space_inside_a_word() -> None:
    side = SIDES["bytes"]
    # A no-break space is two bytes, which belong to what follows it.
    assert counts_of(side, "a\u00a0a", "a", "a") == [1, 3]
    assert counts_of(side, "a\u00a0a", "a\u00a0a") == [4]
    assert counts_of(side, "a \t a", "a", "a")[0] == 1


def test_text_that_looks_like_a_byte() -> None:
    side = SIDES["bytes"]
    line = "<0x41>€"
    ids = side.encode(line)
    assert sum(counts_of(side, line, "<0x41>", "€")) == len(ids)
    assert counts_of(side, line, "<0x41>", "€")[1] == 3


def test_the_words_of_subword_nmt() -> None:
    side = SIDES["nmt"]
    assert side.pieces("a@@b") == ["a@@", "@@@", f"{ESCAPE}@@", "1@@", "@@@", "b"]
    assert counts_of(side, "a@@b", "a", "@@", "b") == [1, 4, 1]
    assert counts_of(side, "a  a", "a", "a") == [1, 2]


def test_whole_words() -> None:
    side = Side(Normaliser(TextConfig(), "en"), learn_subwords(LINES, WordsConfig()))
    for line in LINES:
        assert counts_of(side, line, *line.split(" ")) == [1] * len(line.split(" "))
    assert counts_of(side, "dark .", "dark.") == [2] and counts_of(side, "dark.", "dark", ".") == [1, 0]
    assert counts_of(side, "  the  zoo is", "the", "zoo", "i", "s") == [1, 1, 1, 0]
    assert counts_of(side, f"{ESCAPE} {ESCAPE}1a  b", ESCAPE, f"{ESCAPE}1a", "b") == [1, 1, 1]


def test_a_truecaser_takes_a_word_alone_for_the_first_of_its_sentence() -> None:
    """Word links and trees fit a line in which a known form is in the middle of the sentence."""
    truecaser = learn_truecaser(["we green the green green wall .", "the Green party won ."])
    line, tree = "Green men joined the Green party.", "(S (NP Green men) (VP joined (NP the Green party)) .)"
    config = TextConfig(tokenize="moses", truecase=True)
    normaliser = Normaliser(config, "en", truecaser)
    text = normaliser(line)
    assert text == "green men joined the Green party ."
    side = Side(normaliser, learn_subwords([text, *LINES], SubwordNmtConfig(kind="subword_nmt", merges=40)))
    ids = side.encode(line)
    assert word_of_piece(side, line, ids)[-1] == 5 and set(word_of_piece(side, line, ids)) == set(range(6))
    sentence = sentence_of(side, line, ids, tree)
    assert sentence.parse is not None and sum(sentence.parse.counts) == len(ids)
    with pytest.raises(DataError, match="does not fit its line"):
        sentence_of(side, line, ids, tree.replace("party", "partly"))


@every_side
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('" hi "', ["``", "hi", "''"]),
        ("“ hi ”", ["``", "hi", "''"]),
        ("`` hi ''", ['"', "hi", '"']),
        ('"hi"', ["``", "hi", "''"]),
        ("( a )", ["-LRB-", "a", "-RRB-"]),
        ("-LRB- a -RRB-", ["(", "a", ")"]),
        ("-lrb- a -RRB-", ["(", "a", ")"]),
        ("1/2 *", [r"1\/2", r"\*"]),
        (r"1\/2 \*", ["1/2", "*"]),
        ("don’t", ["do", "n't"]),
        ("a — b…", ["a", "--", "b", "..."]),
        (f"a{ESCAPE}b ▁", [f"a{ESCAPE}b", "▁"]),
        (f"a{ESCAPE}b▁", ["a", ESCAPE, "b", "▁"]),
        ("'\"x", ["'", "``", "x"]),
    ],
)
def test_treebank_spelling(name: str, line: str, words: list[str]) -> None:
    side = SIDES[name]
    counts = counts_of(side, line, *words)
    assert sum(counts) == len(side.encode(line))
    assert len(counts) == len(words)


TEXT = st.text(st.sampled_from(f"aot .€😀\u00a0@{ESCAPE}01▁\"'-()\\/<x\ufffd日本"), max_size=12)


@every_side
@settings(max_examples=200, deadline=None)
@given(line=TEXT)
def test_places_of_pieces_are_those_of_undo(name: str, line: str) -> None:
    """Where the pieces before one are whole characters, they undo to the text before its place; places never fall."""
    side = SIDES[name]
    if not line.strip():
        return
    pieces = side.subwords.pieces(line)
    starts = piece_starts(side.subwords, pieces, line)
    assert starts == sorted(starts)
    assert len(starts) == len(pieces)
    for i, start in enumerate(starts):
        before = side.subwords.undo(pieces[:i])
        if before + side.subwords.undo(pieces[i:]) == line and not line[start : start + 1].isspace():
            assert len(before) == start
    # And where they are not, a character is divided: its place is that of the piece before, or it is an escape.
    assert all(
        line.startswith(side.subwords.undo(pieces[:i])[:start]) or ESCAPE in line for i, start in enumerate(starts)
    )


@every_side
@settings(max_examples=200, deadline=None)
@given(line=TEXT, data=st.data())
def test_any_cut_of_any_text(name: str, line: str, data: st.DataObject) -> None:
    """A tree that cuts the characters of a line anywhere gets all pieces, each where its first character stands."""
    side = SIDES[name]
    characters = "".join(line.split())
    assume(characters)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(characters)), max_size=5)) | {0, len(characters)})
    words = [characters[a:b] for a, b in pairwise(cuts)]
    ids = side.encode(line)
    counts = tree_counts(side, line, ids, words)
    assert sum(counts) == len(ids)
    whole = tree_counts(side, line, ids, list(characters))
    expected = [sum(whole[a:b]) for a, b in pairwise(cuts)]
    assert counts == expected


def test_places() -> None:
    assert comparable('a "b"') == ("a''b''", [0, 1, 1, 3, 4, 6])
    assert comparable("(-LRB-") == ("((", [0, 1, 1, 1, 1, 1, 2])
    assert comparable(r"1\/2") == ("1/2", [0, 1, 1, 2, 3])
    assert comparable("") == ("", [0])


def test_normalised_lines() -> None:
    side = side_of("bytes", lowercase=True, tokenize="moses")
    line, tree = "The MAN sleeps.", "(S (NP (DT The) (NN MAN)) (VP (VBZ sleeps)) (. .))"
    ids = side.encode(line)
    sentence = sentence_of(side, line, ids, tree)
    assert sentence.words == ["the", "man", "sleeps", "."]
    assert sentence.parse is not None
    assert list(sentence.parse.counts) == list(sentence.counts)
    with pytest.raises(DataError, match="does not fit"):
        sentence_of(SIDES["bytes"], line, SIDES["bytes"].encode(line), tree.lower())


def test_a_tree_of_another_line() -> None:
    side, segmenter = SIDES["bytes"], TreeSegmenter()
    lines = ["the man", "the man sleeps"]
    ids = side.encode_batch(lines)

    def refused(*trees: str) -> str:
        with pytest.raises(DataError) as caught:
            segment_lines(segmenter, side, lines, ids, trees, file="x.trees", first_line=11)
        return str(caught.value)

    good = flat("the", "man")
    message = refused(good, flat("the", "cow", "sleeps"))
    assert message.startswith("x.trees:12: the tree does not fit its line: at word 2 of the tree, after 'the', ")
    assert "the line has 'mansleeps', the tree 'cowsleeps'; a tree must have all characters of its line" in message
    assert "the line has 'sleeps', the tree no more text" in refused(good, good)
    assert "x.trees:11: " in refused(flat("the", "man", "x"), good)
    assert "the line has no more text, the tree 'x'" in refused(flat("the", "man", "x"), good)
    assert refused(good, "(S (NN the)").startswith("x.trees:12: column 1: a bracket is never closed")
    assert "2 lines, but 1 tree" in refused(good)
    with pytest.raises(DataError, match="need one tree per line"):
        segment_lines(segmenter, side, lines, ids)
    with pytest.raises(DataError, match="does not fit"):
        segment_lines(segmenter, side, [""], [[]], [good])


def test_lines_without_trees() -> None:
    side, segmenter = SIDES["bytes"], TreeSegmenter()
    line = "the old man sleeps . the old man sleeps ."
    lines = [line, line, line, line, "", " "]
    trees = ["", flat(*line.split()), "(())", " \t", "", "()"]
    sizes = segment_lines(segmenter, side, lines, side.encode_batch(lines), trees)
    assert sizes[0] == sizes[1] == sizes[2] == sizes[3]
    assert len(sizes[0]) > 1
    assert sizes[4:] == [[1], [1]]
    assert count_flat(lines, trees) == 3


def test_fixed_phrases_are_filled_from_the_left() -> None:
    side = SIDES["bytes"]
    lines = ["the old man sleeps", ""]
    ids = side.encode_batch(lines)
    sizes = segment_lines(FixedSegmenter(max_tokens=3, floor=3), side, lines, ids)
    tokens = len(ids[0]) + 1
    assert sizes == [[3] * (tokens // 3) + [tokens % 3] * (tokens % 3 > 0), [1]]


def test_longest_match() -> None:
    side = SIDES["bytes"]
    line = "the old man is a man is old the old"
    words = line.split()
    pieces = [len(side.pieces(word)) for word in words]
    table = TableSegmenter(["the old man", "the old", "old man is a man", "man is", "is old the old dog", "a"])
    # From the left: "the old man" (longest), is, a, "man is", old, "the old", end.
    groups = [3, 1, 1, 2, 1, 2]
    expected, start = [], 0
    for group in groups:
        expected.append(sum(pieces[start : start + group]))
        start += group
    assert segment_lines(table, side, [line], [side.encode(line)]) == [[*expected, 1]]


def table_file(path: Path, content: bytes) -> TableSegmenterConfig:
    path.write_bytes(content)
    return TableSegmenterConfig(file=path.name)


def phrases_of(config: TableSegmenterConfig, root: Path) -> list[str]:
    segmenter = build_segmenter(config, root)
    assert isinstance(segmenter, TableSegmenter)
    return segmenter.phrases


def test_forms_of_tables(tmp_path: Path) -> None:
    plain = b"the old man\na cow\n"
    for name, content in (
        ("plain", plain),
        ("t.gz", gzip.compress(plain)),
        ("t.xz", lzma.compress(plain)),
        ("crlf", plain.replace(b"\n", b"\r\n")),
        ("moses", b"a cow ||| eine Kuh ||| 0.5\na cow ||| die Kuh ||| 0.1\nthe old man ||| x ||| 1"),
        ("tabs", b"a cow\t3\n the  old man \t1\n"),
    ):
        assert phrases_of(table_file(tmp_path / name, content), tmp_path) == ["a cow", "the old man"]
    assert phrases_of(table_file(tmp_path / "bars", b"a ||||\n|||| b\n"), tmp_path) == ["a ||||", "|||| b"]


def test_words_of_other_blanks_are_words(tmp_path: Path) -> None:
    """Only U+0020 separates words, so a no-break space is one, and `phrases filter` may write it."""
    (tmp_path / "t").write_text("\u00a0 \u2003\t2\n", encoding="utf-8")
    assert read_phrases(tmp_path / "t") == {"\u00a0 \u2003"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "t: the phrase table has no phrases"),
        (b"a\n\nb\n", "t:2: the line has no phrase; write one phrase per line"),
        (b"\n", "t:1: the line has no phrase"),
        (b"a\n ||| x ||| 1\n", "t:2: "),
        (b"a\n||| x ||| 1\n", "t:2: "),
        (b"a\n|||\n", "t:2: "),
        (b"a\n\tx\n", "t:2: "),
        (b"a\n\xff\n", "t:2: "),
    ],
)
def test_bad_tables(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message.replace("|", r"\|")):
        build_segmenter(table_file(tmp_path / "t", content), tmp_path)


def test_the_file_of_a_table(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="phrase table not found"):
        build_segmenter(TableSegmenterConfig(file="none"), tmp_path)
    table_file(tmp_path / "t", b"a b\n")
    right = hashlib.sha256(b"a b\n").hexdigest()
    build_segmenter(TableSegmenterConfig(file="t", sha256=right), tmp_path)
    with pytest.raises(CorruptError, match=f"SHA-256 is {right}, but the recipe has 000"):
        build_segmenter(TableSegmenterConfig(file="t", sha256="0" * 64), tmp_path)


def test_options() -> None:
    assert build_segmenter(TreeSegmenterConfig(max_tokens=5, floor=2), Path()) == TreeSegmenter(max_tokens=5, floor=2)
    with pytest.raises(ConfigError, match=r"floor is at most max_tokens \(2\), not 3"):
        validate(TreeSegmenterConfig, {"max_tokens": 2})
    for value in ({"max_tokens": 0}, {"kind": "table"}, {"min_chunks": 0}, {"floor": 0}):
        with pytest.raises(ConfigError):
            validate(TreeSegmenterConfig, value)
    with pytest.raises(ConfigError):
        validate(TableSegmenterConfig, {"file": ""})


def test_hashes_say_what_decides() -> None:
    tables = [["b", "a c"], ["a c", "b", "b"]]
    assert len({TableSegmenter(table).sha256 for table in tables}) == 1
    others = [
        TreeSegmenter(),
        TreeSegmenter(floor=2),
        FixedSegmenter(),
        TableSegmenter(["b"]),
        TableSegmenter(["b", "a c"]),
    ]
    assert len({other.sha256 for other in others}) == len(others)
    # Stored in dataset and model folders: it stays what it is.
    assert TreeSegmenter().sha256 == "92149443407de64c149f88f0289f159a7cc2ccbbcecd0bfd0c2769d3690dfed3"
    assert TableSegmenter(["b", "a c"]).sha256 == "9f65e76af6917e07a8e8709be6c5fd8ed1aea598e8d7e3ff2b27e94673046e83"


def break_json(folder: Path, **change: object) -> None:
    path = folder / "segmenter.json"
    value = json.loads(path.read_bytes()) | change
    path.write_bytes(json.dumps({k: v for k, v in value.items() if v is not None}).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, not 1; a later version"),
        ({"format": None}, "format None"),
        ({"kind": "other"}, "unknown kind of segmenter 'other'"),
        ({"kind": ["tree"]}, "unknown kind"),
        ({"kind": "table"}, "phrase table not found"),
        ({"max_tokens": 0}, "each at least 1"),
        ({"max_tokens": True}, "each at least 1"),
        ({"max_tokens": "8"}, "each at least 1"),
        ({"max_tokens": None}, "options of a segmenter must be max_tokens"),
        ({"more": 1}, "options of a segmenter"),
    ],
)
def test_bad_folders(tmp_path: Path, change: dict[str, object], message: str) -> None:
    TreeSegmenter().save(tmp_path)
    break_json(tmp_path, **change)
    with pytest.raises(FileProblem, match=message):
        load_segmenter(tmp_path)


def test_bad_folders_of_tables(tmp_path: Path) -> None:
    TableSegmenter(["b", "a c"]).save(tmp_path / "good")
    assert (tmp_path / "good" / "phrase_table.txt").read_bytes() == b"a c\nb\n"
    cases = [
        (
            lambda folder: (folder / "phrase_table.txt").write_bytes(b"a c\nd\n"),
            "the table does not belong to segmenter.json",
        ),
        (lambda folder: (folder / "phrase_table.txt").unlink(), "not found"),
        (lambda folder: (folder / "segmenter.json").unlink(), "not found"),
        (lambda folder: (folder / "segmenter.json").write_bytes(b"[1]"), "object"),
        (lambda folder: (folder / "segmenter.json").write_bytes(b"{"), "JSON"),
        (lambda folder: break_json(folder, phrases=3), "differ"),
        (lambda folder: break_json(folder, table_sha256=None), "the table does not belong"),
    ]
    for number, (damage, message) in enumerate(cases):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", folder)
        damage(folder)
        with pytest.raises(FileProblem, match=message):
            load_segmenter(folder)


def test_words_of_pieces_that_sentencepiece_has_normalised() -> None:
    """A model of Marian normalises by itself: places are those of its characters, which are more or fewer than the line's."""
    learned = io.BytesIO()
    text = ["the house is 10 % small ... and the fine cat sleeps", "a big garden of the 5 % house ... fine"] * 30
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=learned, vocab_size=60, hard_vocab_limit=False, minloglevel=4,
        normalization_rule_name="nmt_nfkc", pad_id=-1,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_proto=learned.getvalue())
    names = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    vocabulary = Vocabulary([*SPECIALS, *(name for name in names if name not in SPECIALS)])
    side = Side(Normaliser(TextConfig(), "en"), MarianSubwords(learned.getvalue(), vocabulary))
    for line in (
        "the house is 10 % small",
        "… … the house of 10\u00a0% is small",
        "the\u00a0house of the cat",
        "\u200bthe house … is 10\u00a0% small",
        ">>fr<< the house of 10\u00a0% is … small",
    ):
        words = [word for word in line.split(" ") if word]
        spelled: list[str] = [""] * len(words)
        for piece, word in zip(side.pieces(line), word_of_piece(side, line, side.encode(line)), strict=True):
            spelled[word] += piece.replace("\u2581", "")
        plain = [word.replace("…", "...").replace("\u00a0", "").replace("\u200b", "") for word in words]
        assert spelled == plain, line
