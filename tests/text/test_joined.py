"""Joined tokens: words and back, literal _ and entities kept apart from joined ones, any text byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phraseloom.phrases.segmenters import index_phrases, word_phrases
from phraseloom.text.words import escape, is_phrase, join, join_line, split, split_line, unescape

EXAMPLES = settings(max_examples=200, deadline=None)

PARTS = [
    "_",
    "&",
    "#",
    "95",
    "38",
    ";",
    "&#95;",
    "&#38;",
    "a",
    "b",
    "\t",
    "\r",
    "\0",
    "\u00a0",
    "\u2028",
    "é",
    "e\u0301",
    "漢",
    "😀",
]
words = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join)
lines = st.lists(st.one_of(words, st.just(""), st.just("a"), st.just("b"), st.just("a_b")), max_size=12).map(" ".join)

SHOWN = [
    (["quality", "of", "life"], "quality_of_life"),
    (["quality_of_life"], "quality&#95;of&#95;life"),
    (["_", "_"], "&#95;_&#95;"),
    (["_"], "&#95;"),
    (["&#95;"], "&#38;#95;"),
    (["&#38;", "&#38;#95;"], "&#38;#38;_&#38;#38;#95;"),
    (["&", "&amp;", "&#39;", "&apos;s", "#95;", "&#955;"], "&_&amp;_&#39;_&apos;s_#95;_&#955;"),
]


@pytest.mark.parametrize(("some", "token"), SHOWN)
def test_examples(some: list[str], token: str) -> None:
    assert join(some) == token
    assert split(token) == some
    assert is_phrase(token) == (len(some) > 1)


@EXAMPLES
@given(st.lists(words, min_size=1, max_size=5))
def test_words_and_back(some: list[str]) -> None:
    token = join(some)
    assert split(token) == some
    assert is_phrase(token) == (len(some) > 1)
    assert token.count("_") == len(some) - 1
    assert " " not in token


@EXAMPLES
@given(st.lists(words, min_size=1, max_size=3), st.lists(words, min_size=1, max_size=3))
def test_other_words_are_another_token(one: list[str], other: list[str]) -> None:
    assert (join(one) == join(other)) == (one == other)


@EXAMPLES
@given(words)
def test_a_word_and_back(word: str) -> None:
    assert unescape(escape(word)) == word
    assert "_" not in escape(word)
    if "_" not in word and "&#" not in word:
        assert escape(word) == word


@pytest.mark.parametrize("token", ["_", "__", "a_", "_a", "a__b", "__init__", ""])
def test_what_join_never_makes_is_one_word(token: str) -> None:
    assert split(token) == [token]
    assert not is_phrase(token)


@pytest.mark.parametrize("some", [[], [""], ["a", ""], ["a b"], ["a", " "]])
def test_what_cannot_be_joined(some: list[str]) -> None:
    with pytest.raises(ValueError, match="cannot join words"):
        join(some)


@EXAMPLES
@given(lines, st.lists(st.lists(words, min_size=1, max_size=4).map(" ".join), max_size=4))
@example("a b", ["a b"])
@example("  a  b a b  ", ["a b", "b a b"])
@example("a_b a b", ["a b"])
@example("", ["a b"])
def test_any_line_comes_back(line: str, phrases: list[str]) -> None:
    """Whatever the table, and with phrases of the line itself in it."""
    fields = line.split(" ")
    own = [" ".join(fields[i : i + 2]) for i in range(0, len(fields) - 1, 2) if all(fields[i : i + 2])]
    sizes = word_phrases(fields, index_phrases([*phrases, *own, "a b"]))
    joined = join_line(fields, sizes)
    assert split_line(joined) == line
    assert joined.count(" ") == line.count(" ") - sum(size - 1 for size in sizes)


def test_a_phrase_and_a_literal_token_stay_distinct() -> None:
    line = "the quality of life or quality_of_life"
    fields = line.split(" ")
    joined = join_line(fields, word_phrases(fields, index_phrases(["quality of life"])))
    assert joined == "the quality_of_life or quality&#95;of&#95;life"
    assert [token for token in joined.split(" ") if is_phrase(token)] == ["quality_of_life"]
    assert split_line(joined) == line


def test_no_phrase_runs_over_two_blanks() -> None:
    fields = ["a", "", "b", "a", "b"]
    assert join_line(fields, word_phrases(fields, index_phrases(["a b"]))) == "a  b a_b"
