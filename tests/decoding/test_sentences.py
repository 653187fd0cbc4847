"""Splitting lines into sentences: nothing is lost, white space comes back, links count the words of the line."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.decoding.limits import Segment
from phraseloom.decoding.parts import Replacement
from phraseloom.decoding.sentences import SentenceSplitter, join_sentences
from phraseloom.decoding.translation import PhraseLink, Translation
from phraseloom.decoding.translator import Translator
from phraseloom.errors import UsageError
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer

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


@pytest.mark.parametrize(
    "line",
    [
        "The geese come back again. " * 400,
        "The geese come back and " * 600,
        "x" * 12_000 + ". And so on.",
        "A dog. " + " " * 12_000 + "A cat.",
    ],
)
def test_a_long_line_is_split_in_blocks(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes time in the square of its text."""
    seen: list[int] = []
    segment = SPLIT._segmenter.segment
    monkeypatch.setattr(SPLIT._segmenter, "segment", lambda text: (seen.append(len(text)), segment(text))[1])
    called: list[int] = []
    sentences, gaps = SPLIT(line, lambda: called.append(1))
    assert max(seen) <= 5000 and len(called) >= len(line) // 5000
    assert "".join(g + s for g, s in zip(gaps, [*sentences, ""], strict=True)) == line
    assert all(s.strip() == s != "" for s in sentences) and not any(g.strip() for g in gaps)
    if line.startswith("The geese come back again"):
        assert sentences == ["The geese come back again."] * 400


def translation(text: str, **more: Any) -> Translation:
    return Translation(text, -1.0, -2.0, ["x"] * 3, text.split(), **more)


class Side:
    """Words are separated by spaces."""

    @staticmethod
    def words(line: str) -> list[str]:
        return line.split()

    @staticmethod
    def encode(line: str) -> list[int]:
        """A subword for every character."""
        return [ord(character) for character in line]


def test_segments_and_replaced_words_are_those_of_the_line() -> None:
    parts = [
        translation("Ein Hund.", segments=[Segment(1, 0, 3, -1.0)], replaced=[Replacement(1, 0, "A", "Hund", True)]),
        translation("Er schläft."),
        translation("Ja!", segments=[Segment(2, 1, 2, -1.0)], replaced=[Replacement(0, 0, "Yes", "Ja", False)]),
    ]
    joined = join_sentences(Side, ["A dog.", "It sleeps.", "Yes!"], ["", " ", " ", ""], parts, language="de")
    assert joined.segments == [Segment(1, 0, 3, -1.0), Segment(2 + 6 + 10, 1 + 6, 2 + 6, -1.0)]
    assert joined.replaced is not None and joined.replaced[1] == Replacement(4, 4, "Yes", "Ja", False)
    plain = join_sentences(
        Side, ["A dog.", "It."], ["", " ", ""], [translation("Ein Hund."), translation("Es.")], language="de"
    )
    assert plain.segments is plain.replaced is None


def test_a_blank_line_has_the_fields_of_the_others(translator: Translator) -> None:
    for split_sentences in (False, True):
        found = translator.translate(
            ["", "we sleep."], alignments=True, unknown="replace", split_sentences=split_sentences, beam=1
        )
        assert found[0].alignment == found[0].phrases == found[0].replaced == []
        assert all(t.replaced is not None and t.alignment is not None for t in found)


def test_a_rejected_translation_has_the_fields_of_the_others() -> None:
    parts: dict[str, Any] = {"alignment": [(0, 0)], "replaced": [], "segments": [Segment(0, 0, 1, -1.0)]}
    whole = translation("Ein Hund.", cropped=True, alternatives=[translation("Ein Hund!")], **parts)
    empty = whole.emptied()
    assert (empty.text, empty.alignment, empty.replaced, empty.segments) == ("", [], [], [])
    assert empty.phrases is None and empty.as_dict().keys() == {*translation("Ja", **parts).as_dict(), "rejected"}
    result = empty.as_dict()  # the line was not blank: the model translated it, and its score was too low
    assert (result["blank"], result["rejected"], result["score"], result["cropped"]) == (False, True, whole.score, True)
    assert "alignment" not in translation("Ja").emptied().as_dict()


def test_links_and_scores_are_those_of_the_line() -> None:
    parts = [
        translation("Ein Hund.", alignment=[(0, 0), (1, 1)], phrases=[PhraseLink((0, 2), (0, 2), 0.5)]),
        translation("Er schläft.", alignment=[(0, 0)], phrases=[], cropped=True),
    ]
    joined = join_sentences(Side, ["A dog.", "It sleeps."], [" ", "\t", "  "], parts, language="de")
    assert joined.text == " Ein Hund.\tEr schläft.  "
    assert joined.alignment == [(0, 0), (1, 1), (2, 2)] and joined.phrases == [PhraseLink((0, 2), (0, 2), 0.5)]
    assert (joined.score, joined.log_prob, len(joined.tokens), joined.cropped, joined.parts) == (-1.0, -4.0, 6, True, 1)
    blank = join_sentences(Side, [], ["  "], [], language="de")
    assert blank.blank and blank.text == "  "


def test_sentences_without_a_space_between_them_get_one_if_the_target_language_writes_it() -> None:
    sentences, gaps = SentenceSplitter("zh")("\u3000你好。再见。 很好！")
    assert (sentences, gaps) == (["你好。", "再见。", "很好！"], ["\u3000", "", " ", ""])
    for language, text in (
        ("en", "\u3000Hello. Bye. Good!"),
        ("de_AT", "\u3000Hello. Bye. Good!"),
        ("zh-TW", "\u3000Hello.Bye. Good!"),
        ("ja", "\u3000Hello.Bye. Good!"),
        ("th", "\u3000Hello.Bye. Good!"),
    ):
        parts = [translation(own) for own in ("Hello.", "Bye.", "Good!")]
        assert join_sentences(Side, sentences, gaps, parts, language=language).text == text


def test_translations_of_chinese_sentences_are_apart(translator: Translator) -> None:
    subwords = translator.tokenizer.source.subwords
    chinese = Translator(translator.model, Tokenizer(TextConfig(), "zh", "en", subwords, subwords), translator.config)
    whole, first, second = (
        chinese.translate([line], split_sentences=True, beam=1)[0].text for line in ("你好。再见。", "你好。", "再见。")
    )
    assert whole == f"{first} {second}"


@pytest.mark.parametrize(("language", "space"), [("en", " "), ("zho_Hans", ""), ("zh", ""), ("ja", ""), ("jpn", "")])
def test_parts_of_a_long_line_are_joined_as_sentences_are(language: str, space: str, translator: Translator) -> None:
    """Also in a stream. The words, and so their links, are those of the parts."""
    subwords = translator.tokenizer.source.subwords
    model = Translator(translator.model, Tokenizer(TextConfig(), "en", language, subwords, subwords), translator.config)
    line, options = "the old man sees a cow " * 4, {"beam": 1, "max_input_tokens": 9, "long_lines": "split"}
    (whole,) = model.translate([line], alignments=True, **options)
    (spaced,) = translator.translate([line], alignments=True, **options)
    assert whole.parts > 1 and (whole.text == spaced.text) == (space == " ")
    assert whole.text.replace(" ", "") == spaced.text.replace(" ", "")
    assert (whole.words, whole.alignment) == (spaced.words, spaced.alignment)
    assert spaced.text.count(" ") - whole.text.count(" ") == (0 if space else whole.parts - 1)
    parts = list(model.stream(line, long_lines="split", max_input_tokens=9))
    assert "".join(parts) == whole.text and "" not in parts


def test_an_unknown_language_or_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="pysbd cannot split xx into sentences"):
        SentenceSplitter("xx")
    assert SentenceSplitter("en_GB")("A. B.")
    monkeypatch.setitem(sys.modules, "pysbd", None)
    with pytest.raises(UsageError, match="needs the package pysbd") as caught:
        SentenceSplitter("en")
    assert caught.value.hint == "pip install 'phraseloom[sentences]'"
