"""Splitting lines into sentences: nothing is lost, white space comes back, links count the words of the line."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.decoding.sentences import SentenceSplitter, join_sentences
from phraseloom.decoding.translation import PhraseLink, Translation
from phraseloom.errors import UsageError

pytest.importorskip("pysbd")
SPLIT = SentenceSplitter("en")


@pytest.mark.parametrize(
    ("line", "sentences", "gaps"),
    [
        (
            "Hello Mr. Smith.  How are you?\tFine. ",
            ["Hello Mr. Smith.", "How are you?", "Fine."],
            ["", "  ", "\t", " "],
        ),
        ("  One sentence", ["One sentence"], ["  ", ""]),
        ("", [], [""]),
        (" \u3000", [], [" \u3000"]),
        ("He left (see Fig. 2). OK.", ["He left (see Fig. 2).", "OK."], ["", " ", ""]),
    ],
)
def test_sentences_and_the_white_space_around_them(line: str, sentences: list[str], gaps: list[str]) -> None:
    assert SPLIT(line) == (sentences, gaps)


@given(
    st.lists(
        st.sampled_from(
            ["A dog", ".", "!", "?", " ", "  ", "\t", "Mr.", "“No.”", "\u00a0", "(", ")", "3.5", "é", "..."]
        )
    )
)
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost(parts: list[str]) -> None:
    line = "".join(parts)
    sentences, gaps = SPLIT(line)
    assert len(gaps) == len(sentences) + 1
    assert "".join(g + s for g, s in zip(gaps, [*sentences, ""], strict=True)) == line
    assert all(s.strip() == s != "" for s in sentences) and not any(g.strip() for g in gaps)


def translation(text: str, **more: Any) -> Translation:
    return Translation(text, -1.0, -2.0, ["x"] * 3, text.split(), **more)


class Side:
    """Words are separated by spaces."""

    @staticmethod
    def words(line: str) -> list[str]:
        return line.split()


def test_links_and_scores_are_those_of_the_line() -> None:
    parts = [
        translation("Ein Hund.", alignment=[(0, 0), (1, 1)], phrases=[PhraseLink((0, 2), (0, 2), 0.5)]),
        translation("Er schläft.", alignment=[(0, 0)], phrases=[], cropped=True),
    ]
    joined = join_sentences(Side, ["A dog.", "It sleeps."], [" ", "\t", "  "], parts)
    assert joined.text == " Ein Hund.\tEr schläft.  "
    assert joined.alignment == [(0, 0), (1, 1), (2, 2)] and joined.phrases == [PhraseLink((0, 2), (0, 2), 0.5)]
    assert (joined.score, joined.log_prob, len(joined.tokens), joined.cropped, joined.parts) == (-1.0, -4.0, 6, True, 1)
    blank = join_sentences(Side, [], ["  "], [])
    assert blank.blank and blank.text == "  "


def test_an_unknown_language_or_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="pysbd cannot split xx into sentences"):
        SentenceSplitter("xx")
    assert SentenceSplitter("en_GB")("A. B.")
    monkeypatch.setitem(sys.modules, "pysbd", None)
    with pytest.raises(UsageError, match="needs the package pysbd") as caught:
        SentenceSplitter("en")
    assert caught.value.hint == "pip install 'phraseloom[sentences]'"
