"""Fertility: counts by hand, their classes, and files of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from phraseloom.align.links import parse_links
from phraseloom.errors import DataError, UsageError
from phraseloom.options.text import SentencepieceConfig, TextConfig
from phraseloom.phrases.fertility import (
    fertility_class,
    format_fertilities,
    read_fertilities,
    read_labelled,
    spread,
)
from phraseloom.phrases.merge import fertilities, merge_aligned
from phraseloom.phrases.segmenters import index_phrases
from phraseloom.text.subwords import Subwords
from phraseloom.text.tokenizer import Side, Tokenizer, learn_subwords
from phraseloom.text.vocabulary import SPECIALS, Vocabulary
from phraseloom.text.words import Words

CASES = [
    ("he went to town .", "0-0 1-1 1-2 2-3", 4, [1, 2, 1, 0]),  # the last source word has no link
    ("he went to town .", "0-0 1-1 1-2 1-3", 2, [1, 1]),  # a later word of the same source word
    ("he went to town .", "0-1 0-0 1-1 1-2", 2, [1, 2]),  # words of a phrase count for no other source word
    ("he went to town .", "1-1 2-1 1-2 2-2", 3, [0, 2, 0]),  # a phrase stands for one of them, the first
    ("he went to town .", "0-0 0-1 0-2 0-3 0-4", 1, [1]),
    ("he went to town .", "", 2, [0, 0]),
    ("so he said he went to town", "0-4 0-5", 1, [2]),
    ("quality of life went to .", "0-0 0-1 0-2 0-3 0-4", 1, [2]),  # a later, shorter phrase
    ("", "", 3, [0, 0, 0]),
]


@pytest.mark.parametrize(("line", "links", "num_source", "expected"), CASES)
def test_counts(line: str, links: str, num_source: int, expected: list[int]) -> None:
    words, found = line.split(" "), parse_links(links)
    parts = merge_aligned(words, found, index_phrases(["went to", "quality of life"]))
    assert fertilities(parts, words, found, num_source) == expected


def test_classes() -> None:
    assert [fertility_class(count, 4) for count in (0, 1, 2, 3, 4, 9)] == [0, 1, 2, 3, 3, 3]
    assert [fertility_class(count, 2) for count in (0, 1, 2, 3, 4, 9)] == [0, 0, 1, 1, 1, 1]
    with pytest.raises(UsageError, match="3 classes; choose 2 or 4"):
        fertility_class(1, 3)


def test_a_file_and_back(tmp_path: Path) -> None:
    rows = [[1, 0, 12], [], [4]]
    (tmp_path / "f").write_bytes("".join(format_fertilities(row) + "\n" for row in rows).encode())
    assert list(read_fertilities(tmp_path / "f", [3, 0, 1])) == rows


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("1 2\n", 1, "2 numbers, but the source line has 3 words"),
        ("1 2 3\n\n", 2, "has more than the 1 line"),
        ("", None, "ends after 0 lines"),
        ("1 -2 3\n", 1, "other than numbers of words"),
        ("1 100 3\n", 1, "other than numbers of words"),
        ("1 ² 3\n", 1, "other than numbers of words"),
    ],
)
def test_files_that_do_not_fit(text: str, line: int | None, what: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(text.encode())
    with pytest.raises(DataError, match=what) as error:
        list(read_fertilities(tmp_path / "f", [3]))
    assert (error.value.file, error.value.line) == (tmp_path / "f", line)


def test_lines_with_their_labels(tmp_path: Path) -> None:
    text = "\ufeffa  b\r\n\n c \u2028d\n\u3000\nlast"
    (tmp_path / "s").write_bytes(text.encode())
    (tmp_path / "f").write_bytes(b"1 2\n\n0 3\n1\n0\n")
    found = list(read_labelled(tmp_path / "s", tmp_path / "f"))
    assert found == [("a  b", [1, 2]), ("", []), (" c \u2028d", [0, 3]), ("\u3000", [1]), ("last", [0])]


@pytest.mark.parametrize(
    ("labels", "line", "what"),
    [
        ("1\n0 1\n", 2, "2 numbers, but the source line has 1 word"),
        ("1\n", None, "ends after 1 line, but the source has more"),
        ("1\n0\n1\n", 3, "has more than the 2 lines"),
    ],
)
def test_labels_of_another_text(labels: str, line: int | None, what: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"a\nb\n")
    (tmp_path / "f").write_bytes(labels.encode())
    with pytest.raises(DataError, match=what) as error:
        list(read_labelled(tmp_path / "s", tmp_path / "f"))
    assert (error.value.file, error.value.line) == (tmp_path / "f", line)


def sides(text: TextConfig) -> dict[str, Side]:
    words = Words(Vocabulary([*SPECIALS, "der", "Haus", "Büro"]))
    sentencepiece = learn_subwords(
        ["das Büro und der Wintergarten ."], SentencepieceConfig(size=30, byte_fallback=False)
    )
    kinds: dict[str, Subwords] = {"words": words, "sentencepiece": sentencepiece}
    return {name: Tokenizer(text, "de", "en", kind, kind).source for name, kind in kinds.items()}


MOSES = TextConfig(normalize="moses", tokenize="moses")
SPREAD = [
    ("der Büro .", TextConfig(), "012"),
    (" der  Büro .", TextConfig(), "012"),
    ("der Büro . \u3000", TextConfig(), "0123"),  # white space that is a word to both
    ("der neu Büro.", MOSES, "0122"),  # one word of the line, two of the normalised line
    ("„Haus“ (neu) so", MOSES, "0001112"),
    ("der\u00a0Haus neu", MOSES, "001"),
    ("der \u3000 Büro", MOSES, "02"),  # a word of which nothing is left
    ("der \u3000 neu Büro.", MOSES, "0233"),  # as many words as in the normalised line, but others
]


@pytest.mark.parametrize(("line", "text", "expected"), SPREAD)
def test_each_subword_has_the_number_of_its_word(line: str, text: TextConfig, expected: str) -> None:
    num_words = len([word for word in line.split(" ") if word])
    for kind, side in sides(text).items():
        ids = side.encode(line)
        found = spread(side, line, ids, range(num_words))
        of_words = [words.start for words in side.words_of_piece(ids)]
        assert len(found) == len(ids), kind
        assert "".join(str(found[of_words.index(word)]) for word in range(len(expected))) == expected, kind
        assert found == [int(expected[word]) for word in of_words], kind


def test_a_line_of_which_it_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    side = sides(MOSES)["sentencepiece"]
    monkeypatch.setattr(side, "normaliser", lambda line: line[::-1])
    side.normaliser.identity = False  # type: ignore[misc]
    with pytest.raises(DataError):
        spread(side, "der Büro", side.encode("der Büro"), [1, 2])


def test_nothing_of_nothing() -> None:
    assert spread(sides(MOSES)["words"], " \u3000", [], [2]) == []
