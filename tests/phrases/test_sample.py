"""Phrases of outputs: which there are, where else their words are, how they are drawn."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phraseloom.errors import DataError
from phraseloom.options.text import WordsConfig
from phraseloom.phrases.extract import Lines
from phraseloom.phrases.sample import FOUND, Generated, SystemOutput, comparable, draw, find, generated, read_outputs
from phraseloom.phrases.segmenters import index_phrases
from phraseloom.text.words import learn

# The examples of Table 7.
SOURCE = ["und Sie sollten auch an Dinge wie Lebensqualität denken", "wer ein Gehirn hat , ist gefährdet .", "ja"]
REFERENCE = [
    "and you also want to think about things like quality of life",
    "everyone with a brain is at risk .",
    "yes",
]
BASE = ["and you should think of things like life", "who has a brain is risk .", "yes"]
NEW = ["and you should think of things like quality_of_life .", "who has a brain is at_risk . at_risk", "yes"]


def lines(name: str, text: Sequence[str]) -> Lines:
    return Lines(name, iter(text))


def phrases(*systems: Lines, table: list[str] | None = None) -> list[list[Generated]]:
    found = generated(
        lines("src", SOURCE), lines("ref", REFERENCE), systems, None if table is None else index_phrases(table)
    )
    return list(found)


@pytest.mark.parametrize(
    ("phrase", "text", "kind"),
    [
        ("at risk", "a brain is at risk .", "exact"),
        ("at risk", "At Risk, said he", "exact"),
        ("at risk", "risk looks at", "scattered"),
        ("at risk", "at the risk", "scattered"),
        ("at risk", "risk .", "partly"),
        ("at risk", "danger", "absent"),
        ("at risk", "", "absent"),
        ("on and on", "and on", "partly"),
        ("on and on", "on on and", "scattered"),
        ("risk at", "at risk", "scattered"),
        ("I 'm", "I&apos;m full", "exact"),
        ("I &apos;m", "I'm full", "exact"),
        ("at risk", "that risks", "absent"),
        ("quality of life", "quality, of life", "scattered"),
        ("straße", "STRASSE", "exact"),
        (unicodedata.normalize("NFD", "café au lait"), unicodedata.normalize("NFC", "Café au lait!"), "exact"),
        ("जीवन की", "जीवन की गुणवत्ता", "exact"),
        ("की", "कु", "absent"),
    ],
)
def test_where_the_words_are(phrase: str, text: str, kind: str) -> None:
    assert find(comparable(phrase), comparable(text)) == kind


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.lists(st.sampled_from("abcd"), max_size=8))
def test_where_the_words_are_by_the_definition(phrase: list[str], text: list[str]) -> None:
    kind = find(phrase, text)
    assert (kind == "exact") == (f" {' '.join(phrase)} " in f" {' '.join(text)} ")
    there = sum((Counter(phrase) & Counter(text)).values())
    if kind != "exact":
        assert kind == ("scattered" if there == len(phrase) else "partly" if there else "absent")


def test_joined_tokens() -> None:
    found = phrases(lines("new", NEW), lines("base", BASE))
    assert [len(of_line) for of_line in found] == [1, 2, 0]
    assert found[0] == [
        Generated(1, 8, "quality of life", SOURCE[0], REFERENCE[0], (NEW[0], BASE[0]), ("exact", "partly"))
    ]
    assert [(one.line, one.word, one.found) for one in found[1]] == [
        (2, 6, ("exact", "partly")),
        (2, 9, ("exact", "partly")),
    ]


def test_words_before_a_phrase_count_one_by_one() -> None:
    first = ["a_b c_d e f_g", "", "&#95; x_y"]
    found = [(one.line, one.word, one.phrase) for of_line in phrases(lines("new", first)) for one in of_line]
    assert found == [(1, 1, "a b"), (1, 3, "c d"), (1, 6, "f g"), (3, 2, "x y")]


def test_extra_spaces_are_not_words() -> None:
    joined, plain = ["  a  b c_d ", "", "_  x_y"], ["  a  b c d ", "", "_  x y"]
    expected = [(1, 3, "c d"), (3, 2, "x y")]
    for found in (phrases(lines("new", joined)), phrases(lines("new", plain), table=["c d", "x y"])):
        assert [(one.line, one.word, one.phrase) for of_line in found for one in of_line] == expected


def test_phrases_of_a_table() -> None:
    """The words of the first system alone are looked at; its line is shown with the phrases joined."""
    found = phrases(lines("base", BASE), lines("new", NEW), table=["things like", "things like life", "at risk"])
    assert [one for of_line in found for one in of_line] == [
        Generated(
            1, 6, "things like life", SOURCE[0], REFERENCE[0],
            ("and you should think of things_like_life", "and you should think of things like quality of life ."),
            ("scattered", "scattered"),
        )
    ]  # fmt: skip


def as_json(text: str, words: list[str], tokens: list[str]) -> str:
    return json.dumps({"id": 0, "text": text, "score": -1.0, "tokens": tokens, "words": words})


def test_translations_as_json() -> None:
    body = [
        as_json("Things, at risk.", ["Things", ",", "at", "risk", "."], ["Things", ",", "at_risk", "."]),
        as_json("a_b.", ["a_b", "."], ["a&#95;b", "."]),
        as_json("", [], []),
    ]
    assert list(read_outputs(lines("x.jsonl", body)))[2] == SystemOutput("", [], [])
    by_token = phrases(lines("x.jsonl", body), lines("y.jsonl.gz", body))
    assert [[(one.word, one.phrase, one.outputs) for one in of_line] for of_line in by_token] == [
        [(3, "at risk", ("Things , at_risk .", "Things, at risk."))], [], [],
    ]  # fmt: skip
    assert by_token[0][0].found[1] == "exact"
    by_table = phrases(lines("x.jsonl", body), table=["at risk"])
    assert [len(of_line) for of_line in by_table] == [1, 0, 0]


def test_tokens_of_a_vocabulary_of_words_and_phrases() -> None:
    """What a model of `subwords: {kind: words, joined: true}` writes as tokens."""
    line = "a&#95;b of quality_of_life ."
    words = learn([line, line], WordsConfig(joined=True, phrases=1, min_frequency=1))
    tokens = [words.vocabulary.piece(i) for i in words.encode(line)]
    ((one,), *_) = phrases(lines("x.jsonl", [as_json("", [], tokens), *[as_json("", [], [])] * 2]))
    assert (one.word, one.phrase, one.outputs) == (3, "quality of life", (line,))


@pytest.mark.parametrize(
    "line",
    ["", "Things", "[]", "3", "null", "{}", '{"text": "a", "words": ["a"]}', '{"text": "a", "words": "a", "tokens": []}',
     '{"text": 1, "words": [], "tokens": []}', '{"text": "", "words": [], "tokens": [1]}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_translation_as_json(line: str) -> None:
    good = as_json("a", ["a"], ["a"])
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a translation as JSON; translate --output json"):
        list(read_outputs(lines("x.jsonl", [good, line])))


@pytest.mark.parametrize("short", ["src", "ref", "new", "base"])
def test_files_that_are_not_parallel(short: str) -> None:
    texts = {"src": SOURCE, "ref": REFERENCE, "new": NEW, "base": BASE}
    source, reference, *systems = (lines(name, text[: 1 if name == short else 3]) for name, text in texts.items())
    longer = "ref" if short == "src" else "src"
    with pytest.raises(DataError, match=f"{short}: ends after 1 line, but {longer} has more"):
        list(generated(source, reference, systems))


# --- drawing ------------------------------------------------------------------------------------------------------------


def some(number: int) -> Iterator[list[Generated]]:
    """`number` phrases in pairs, with an empty line after each."""
    for i in range(0, number, 2):
        yield [Generated(i, n, f"w {(i + n) % 7}", "", "", (), (FOUND[n],)) for n in range(2)]
        yield []


def test_a_draw_is_repeated_and_goes_on() -> None:
    drawn, counts = draw(some(60), 10, seed=3)
    assert draw(some(60), 10, seed=3)[0] == drawn
    assert draw(some(60), 10, seed=4)[0] != drawn
    assert len(set(drawn)) == 10
    for size in (1, 5, 60, 100):
        longer = draw(some(60), size, seed=3)[0]
        assert (longer[:10] == drawn[:size]) and len(longer) == min(size, 60)
    everything = [one for of_line in some(60) for one in of_line]
    assert sorted(draw(some(60), 100, seed=3)[0], key=everything.index) == everything
    assert (counts.lines, counts.with_phrase, counts.phrases, len(counts.different)) == (60, 30, 60, 7)
    assert counts.in_reference == {"exact": 30, "scattered": 30}


def test_every_phrase_has_the_same_chance() -> None:
    times = Counter(one for seed in range(4000) for one in draw(some(10), 3, seed)[0])
    assert len(times) == 10
    # 4,000 draws of 3 of 10: 1,200 each, standard deviation 29
    assert all(abs(count - 1200) < 4 * 29 for count in times.values())


def test_nothing_to_draw() -> None:
    assert draw(iter([[], []]), 5, 1)[0] == []
