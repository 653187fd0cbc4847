"""Which words become one token: each rule against a loop written from its description, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.align.links import Links, parse_links
from phraseloom.errors import UsageError
from phraseloom.phrases.merge import RULES, MergedPart, fertilities, merge_aligned
from phraseloom.phrases.segmenters import index_phrases
from phraseloom.text.words import join_line

EXAMPLES = settings(max_examples=300, deadline=None)


def merged(line: str, links: str, *phrases: str, rule: str = "released") -> str:
    words = line.split(" ")
    parts = merge_aligned(words, parse_links(links), index_phrases(phrases), rule)
    return join_line(words, [part.size for part in parts])


BOTH = [
    ("he went to town .", "1-1 1-2 2-3", ("went to",), "he went_to town ."),
    ("he went to town .", "1-1 2-2 2-3", ("went to",), "he went to town ."),  # no shared word
    ("he went to town .", "1-1 2-1 2-2 3-2", ("went to",), "he went_to town ."),  # one of two is shared
    ("he went to town .", "", ("went to",), "he went to town ."),
    ("a lot of it is .", "0-0 0-1 0-2", ("a lot", "a lot of"), "a_lot_of it is ."),
    ("a b a b a b .", "0-0 0-1 1-2 1-3 2-4 2-5", ("a b",), "a_b a_b a_b ."),
    ("a b c d e .", "0-0 0-1 0-2 0-3 0-4", ("b c", "c d e"), "a b_c d e ."),
    ("x_y a b &#95; .", "0-1 0-2", ("a b",), "x&#95;y a_b &#38;#95; ."),
    ("a  b c d e .", "0-0 0-1 0-2", ("a b", "b c"), "a  b_c d e ."),
    ("w x y z", "0-0 0-1 0-2 0-3", ("w x y z",), "w_x_y_z"),  # four words may end the line
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("line", "links", "phrases", "expected"), BOTH)
def test_where_the_rules_agree(rule: str, line: str, links: str, phrases: tuple[str, ...], expected: str) -> None:
    assert merged(line, links, *phrases, rule=rule) == expected


DIFFERENT = [
    # a phrase that is found and not shared stops the search
    ("a lot of it is .", "0-0 0-1 1-2", ("a lot", "a lot of"), "a lot of it is .", "a_lot of it is ."),
    # the end of the line
    ("I went to", "0-0 1-1 1-2", ("went to",), "I went to", "I went_to"),
    ("quality of life", "0-0 0-1 0-2", ("quality of life",), "quality of life", "quality_of_life"),
    ("a b c", "0-0 0-1", ("a b", "a b c"), "a b c", "a_b c"),
    ("I went to ", "0-0 1-1 1-2", ("went to",), "I went to ", "I went_to "),  # also before a last blank
    # more than four words
    ("a b c d e .", "0-0 0-1 0-2 0-3 0-4", ("a b c d e", "a b"), "a_b c d e .", "a_b_c_d_e ."),
]


@pytest.mark.parametrize(("line", "links", "phrases", "released", "aligned"), DIFFERENT)
def test_where_they_differ(line: str, links: str, phrases: tuple[str, ...], released: str, aligned: str) -> None:
    assert merged(line, links, *phrases) == released
    assert merged(line, links, *phrases, rule="aligned") == aligned


def test_one_word_before_the_end_is_not_the_end() -> None:
    assert merged("I went to .", "0-0 1-1 1-2", "went to") == "I went_to ."
    assert merged("a quality of life .", "1-1 1-2 1-3", "quality of life") == "a quality_of_life ."


def slow(words: list[str], links: Links, phrases: set[str], rule: str) -> list[MergedPart]:
    """The rules by their descriptions, word by word."""

    def shared(places: range) -> list[int]:
        return sorted(i for i in range(10) if all((i, j) in links for j in places))

    parts, start = [], 0
    while start < len(words):
        size, source = 1, None
        if rule == "aligned":
            for n in range(len(words) - start, 1, -1):
                if " ".join(words[start : start + n]) in phrases and shared(range(start, start + n)):
                    size, source = n, shared(range(start, start + n))[0]
                    break
        elif shared(range(start, start + 2)):
            for n in (4, 3, 2):
                if " ".join(words[start : start + n]) in phrases:
                    if shared(range(start, start + n)):
                        size, source = n, shared(range(start, start + n))[0]
                    break
        parts.append(MergedPart(size, source))
        start += size
    return parts


sentences = st.lists(st.sampled_from("abc"), max_size=9)
link_sets = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 8)), max_size=30)
tables = st.sets(st.lists(st.sampled_from("abc"), min_size=2, max_size=5).map(" ".join), max_size=12)


@pytest.mark.parametrize("rule", RULES)
@EXAMPLES
@given(sentences, link_sets, tables)
def test_against_the_slow_loop(rule: str, words: list[str], links: set[tuple[int, int]], phrases: set[str]) -> None:
    inside = frozenset(link for link in links if link[1] < len(words))
    parts = merge_aligned(words, inside, index_phrases(phrases), rule)
    assert parts == slow(words, inside, phrases, rule)
    assert sum(part.size for part in parts) == len(words)
    expected = [0] * 4
    start = 0
    for part in parts:
        for source in range(4):
            if part.size > 1 and source == part.source:
                expected[source] = part.size
            elif part.size == 1 and (source, start) in inside:
                expected[source] = 1
        start += part.size
    assert fertilities(parts, words, inside, 4) == expected


@EXAMPLES
@given(sentences, link_sets, tables, st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_blanks_too_many_change_no_words(
    words: list[str], links: set[tuple[int, int]], phrases: set[str], blanks: list[int]
) -> None:
    """With blanks between all words there is no phrase; words and links keep their numbers."""
    inside = frozenset(link for link in links if link[1] < len(words))
    fields = "  ".join(words).split(" ") if words else [""]
    parts = merge_aligned(fields, inside, index_phrases(phrases), "aligned")
    assert parts == [MergedPart(1)] * len(fields)
    linked = {source for source, _ in inside}
    assert fertilities(parts, fields, inside, 4) == [int(source in linked) for source in range(4)]


def test_the_lowest_source_word_is_the_one() -> None:
    parts = merge_aligned(["a", "b", "."], parse_links("2-0 2-1 1-0 1-1 0-1"), index_phrases(["a b"]))
    assert parts == [MergedPart(2, 1), MergedPart(1)]


def test_unknown_rule() -> None:
    with pytest.raises(UsageError, match="no rule 'longest'; choose from released, aligned"):
        merge_aligned([], frozenset(), {}, "longest")
