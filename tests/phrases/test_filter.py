"""Filters of candidates, each alone and off; PMI by its definition; tags; tables written."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.errors import DataError, UsageError
from phraseloom.phrases.extract import PhraseCandidate, Source
from phraseloom.phrases.filter import (
    PRESETS,
    Filters,
    Tags,
    count_phrases,
    filter_candidates,
    format_moses,
    format_phrases,
    is_noun_phrase,
    pmi,
)
from phraseloom.phrases.segmenters import read_phrases
from phraseloom.phrases.stop_words import STOP_WORDS, read_stop_words

EXAMPLES = settings(max_examples=100, deadline=None)


def candidate(phrase: str, count: int = 2) -> PhraseCandidate:
    return PhraseCandidate(phrase, (Source("x", count, 2 * count),))


OFF = Filters(max_words=0, min_count=1, characters="any", repetition=True, stop_words=frozenset(), min_pmi=None)

# What each filter alone drops, and what it keeps.
CASES: list[tuple[str, dict[str, Any], list[PhraseCandidate], list[PhraseCandidate]]] = [
    ("length", {"max_words": 3}, [candidate("a b c d")], [candidate("a b c")]),
    ("count", {"min_count": 3}, [candidate("a b", 2)], [candidate("a b", 3)]),
    (
        "characters",
        {"characters": "no-punctuation"},
        [candidate(p) for p in ("a ,", "Bob 's", "well-known fact", "&apos;s x", "5 $", "a。 b", "x = y", "„ a")],
        [candidate(p) for p in ("a b", "20 years", "हिन्दी में", "naïve e\u0301 漢字", "½ inch")],
    ),
    (
        "characters",
        {"characters": "letters"},
        [candidate(p) for p in ("20 years", "a ,", "x2 y", "a \u0301")],
        [candidate(p) for p in ("a b", "naïve 漢字")],
    ),
    (
        "repetition",
        {"repetition": False},
        [candidate("a a"), candidate("a b b"), candidate("bye bye baby")],
        [candidate("a b a"), candidate("a A")],
    ),
    (
        "stop-words",
        {"stop_words": frozenset(["the", "of"])},
        [candidate("of the"), candidate("The OF the")],
        [candidate("full of"), candidate("of it the")],
    ),
    (
        "stop-words",
        {"stop_words": frozenset(["the"]), "stop_rule": "any"},
        [candidate("in the house"), candidate("The house")],
        [candidate("in a house"), candidate("them all")],
    ),
]


@pytest.mark.parametrize(("reason", "options", "dropped", "kept"), CASES)
def test_each_filter_alone(
    reason: str, options: dict[str, Any], dropped: list[PhraseCandidate], kept: list[PhraseCandidate]
) -> None:
    filters = replace(OFF, **options)
    for one in dropped:
        assert filters.reason(one) == reason, one
        assert OFF.reason(one) is None
    for one in kept:
        assert filters.reason(one) is None, one
    found = filter_candidates([*dropped, *kept], filters)
    assert [p.phrase for p in found.phrases] == [c.phrase for c in kept]
    assert (found.dropped[reason], found.candidates) == (len(dropped), len(dropped) + len(kept))


def test_the_paper_keeps_its_own_examples() -> None:
    """Tables 6, 7 and §2.2 of the paper; the released filters drop most of them."""
    phrases = [
        "went to",
        "full of",
        "at risk",
        "quality of life",
        "graduate school",
        "thought experiment",
        "grow apart",
    ]
    assert [PRESETS["paper"].reason(candidate(p)) for p in phrases] == [None] * len(phrases)
    for phrase in ("of the", "it is", "to be", "in a", "Of The", "do n't", "one one"):
        assert PRESETS["paper"].reason(candidate(phrase)) is not None, phrase
    assert PRESETS["released"].reason(candidate("the school")) == "stop-words"
    assert PRESETS["released"].reason(candidate("went to")) is None  # it fails by its tags


def test_a_word_that_no_table_can_hold() -> None:
    assert OFF.reason(candidate("a ||| b")) == "form"
    assert OFF.reason(candidate("a||| b")) is None


@pytest.mark.parametrize("options", [{"characters": "alpha"}, {"stop_rule": "all"}])
def test_unknown_choices(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="choose from"):
        Filters(**options)


# --- PMI --------------------------------------------------------------------------------------------------------------


def test_pmi_by_hand() -> None:
    """8 words; c(a b) = 2, c(a) = 4, c(b) = 2: log2(2 · 8 / (4 · 2)) = 1."""
    counts = count_phrases(["a b c a", "a b a d"], ["a b", "a a", "a b c", "a b z"])
    assert (counts.total, counts.words, counts.phrases) == (
        8,
        {"a": 4, "b": 2, "c": 1},
        {"a b": 2, "a a": 1, "a b c": 1},
    )
    assert counts.pmi("a b") == 1.0
    assert counts.pmi("a a") == -1.0
    assert counts.pmi("a b c") == 3.0
    assert pmi(10**9, [10**9] * 4, 10**12) == pytest.approx(math.log2(1e9) + 3 * math.log2(1e12) - 4 * math.log2(1e9))


texts = st.lists(st.lists(st.sampled_from(["a", "b", "c", "_"]), max_size=5), max_size=7)


@EXAMPLES
@given(texts, st.booleans())
def test_pmi_against_its_definition(text: list[list[str]], across: bool) -> None:
    streams = [[word for line in text for word in line]] if across else text
    windows = [tuple(s[i : i + n]) for s in streams for n in (2, 3, 4) for i in range(len(s) - n + 1)]
    words = [word for line in text for word in line]
    counts = count_phrases([" ".join(line) for line in text], {" ".join(w) for w in windows}, across_lines=across)
    assert counts.phrases == {" ".join(w): windows.count(w) for w in windows}
    for window in set(windows):
        independent = math.prod(words.count(word) / len(words) for word in window)
        expected = math.log2(windows.count(window) / len(words) / independent)
        assert counts.pmi(" ".join(window)) == pytest.approx(expected, abs=1e-12)


def test_phrases_over_the_ends_of_lines() -> None:
    text = ["a", "", "b", "c d a b"]
    assert count_phrases(text, ["a b", "a b c d", "d a b"]).phrases == {"a b": 2, "a b c d": 1, "d a b": 1}
    assert count_phrases(text, ["a b", "a b c d", "d a b"], across_lines=False).phrases == {"a b": 1, "d a b": 1}
    assert count_phrases(text, ["x y"]).phrases == {}
    assert count_phrases([], ["a b"]).total == 0


def test_the_filter_by_pmi() -> None:
    text = ["went to x", "went to y", "y x"] * 3
    some = [candidate("went to", 5), candidate("x went", 4), candidate("y went", 4), candidate("to went", 3)]
    found = filter_candidates(some, Filters(), text=text)
    assert [(p.phrase, p.adjacent, p.count) for p in found.phrases] == [("went to", 6, 5), ("x went", 5, 4)]
    assert found.phrases[0].pmi == pytest.approx(math.log2(6 * 24 / 36))
    assert found.dropped == {"pmi": 2}
    within = filter_candidates(some, Filters(), text=text, across_lines=False)
    assert [p.phrase for p in within.phrases] == ["went to"]
    high = filter_candidates(some, Filters(min_pmi=found.phrases[0].pmi), text=text)
    assert not high.phrases  # above, not at least
    rare = filter_candidates([candidate("went to", 9), candidate("x went", 9)], Filters(min_count=6), text=text)
    assert [p.phrase for p in rare.phrases] == ["went to"]  # five times adjacent is too rare for a PMI


# --- stop-words and tags ------------------------------------------------------------------------------------------------


def test_stop_word_lists(tmp_path: Path) -> None:
    english = STOP_WORDS["en"]
    assert {"the", "of", "is", "to", "'s", "&apos;s"} <= english
    assert not {"went", "full", "risk", "quality", "life", "home", "good", "right", "thank"} & english
    assert all(word == word.lower() for words in STOP_WORDS.values() for word in words)
    assert len(STOP_WORDS["released"]) == 11 and STOP_WORDS["none"] == frozenset()
    assert {"der", "ist", "und", "nicht", "mit", "s", "dessen", "deren", "denen"} <= STOP_WORDS["de"]
    assert {"l'", "est", "et", "pas", "avec", "qu'", "celui"} <= STOP_WORDS["fr"]
    assert not {"haus", "zeit", "gut", "machen", "point", "personne", "temps", "bon", "or", "été", "avions"} & (
        STOP_WORDS["de"] | STOP_WORDS["fr"]
    )
    (tmp_path / "stop").write_bytes("Der\n\n  die\t\nÜber\n".encode())
    assert read_stop_words(tmp_path / "stop") == {"der", "die", "über"}
    (tmp_path / "bad").write_bytes(b"der\nder die\n")
    with pytest.raises(DataError, match="'der die' is more than one word") as error:
        read_stop_words(tmp_path / "bad")
    assert error.value.line == 2


@pytest.mark.parametrize(
    ("tags", "accepted"),
    [
        ("NN NNS", True),
        ("JJ NN", True),
        ("JJR NNP", True),
        ("NN JJ", False),
        ("VBD TO", False),
        ("JJ IN", False),
        ("NN IN NN", True),
        ("JJ CC JJ", True),
        ("NN NN IN", False),
        ("VB DT NN", False),
        ("VB DT NN IN", True),
        ("DT", True),
    ],
)
def test_patterns_of_tags(tags: str, accepted: bool) -> None:
    assert is_noun_phrase(tags.split()) is accepted


def test_tags_of_phrases(tmp_path: Path) -> None:
    text, tags = tmp_path / "text", tmp_path / "tags"
    text.write_bytes(b"park a car\nthe park a car\npark a\ncar park\n\npark\na car\n")
    tags.write_bytes(b"NN DT NN\nDT VB DT NN\nVB DT\nNN NN\n\nNN\nDT NN\n")
    found = Tags(text, tags).of(["park a car", "park a", "car park", "a park"])
    assert found == {"park a car": ("NN", "DT", "NN"), "park a": ("VB", "DT"), "car park": ("NN", "NN")}
    some = [candidate(p, n) for p, n in (("park a car", 3), ("car park", 2), ("park a", 2), ("a park", 2))]
    kept = filter_candidates(some, replace(OFF, parts_of_speech=True), tags=Tags(text, tags))
    assert [p.phrase for p in kept.phrases] == ["park a car", "car park"]
    assert kept.dropped["part of speech"] == 2
    with pytest.raises(UsageError, match="needs the tags"):
        filter_candidates(some, PRESETS["released"])


@pytest.mark.parametrize(
    ("tags", "line", "what"),
    [
        ("NN\nNN NN\n", 2, "2 tags, but the line"),
        ("NN\n", None, "ends after 1 line"),
        ("NN\n\nNN\n", 2, "0 tags, but"),
    ],
)
def test_tags_that_do_not_fit(tags: str, line: int | None, what: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\nb\n")
    (tmp_path / "tags").write_bytes(tags.encode())
    with pytest.raises(DataError, match=what) as error:
        Tags(tmp_path / "text", tmp_path / "tags").of(["a b"])
    assert (error.value.file, error.value.line) == (tmp_path / "tags", line)


# --- tables -------------------------------------------------------------------------------------------------------------


def test_tables(tmp_path: Path) -> None:
    some = [
        PhraseCandidate("went to", (Source("ging", 3, 12), Source("fuhr", 1, 4))),
        PhraseCandidate("a b c", (Source("fuhr", 2, 4),)),
    ]
    found = filter_candidates(some, replace(OFF, min_pmi=0.0), text=["went to a b c"] * 2)
    rows = list(format_phrases(found.phrases))
    assert rows == ["went to\t4\t2.321928\t2\tging", "a b c\t2\t4.643856\t2\tfuhr"]
    assert next(iter(format_phrases(filter_candidates(some, OFF).phrases))) == "went to\t4\t\t\tging"
    bars = Source("|||", 1, 1)
    assert not list(format_moses([replace(found.phrases[0], sources=(bars,))]))
    assert list(format_moses(found.phrases)) == [
        "fuhr ||| a b c ||| 1 0.5 ||| 0-0 0-1 0-2 ||| 2 4 2",
        "fuhr ||| went to ||| 0.25 0.25 ||| 0-0 0-1 ||| 4 4 1",
        "ging ||| went to ||| 0.75 0.25 ||| 0-0 0-1 ||| 4 12 3",
    ]
    (tmp_path / "table").write_bytes("".join(row + "\n" for row in rows).encode())
    assert read_phrases(tmp_path / "table") == {"went to", "a b c"}


def test_the_order_of_the_candidates_stays() -> None:
    some = [candidate(p, n) for p, n in (("b a", 9), ("c a", 9), ("a b", 7), ("z z", 5), ("d a", 2))]
    assert [p.phrase for p in filter_candidates(some, Filters(min_pmi=None, stop_words=frozenset())).phrases] == [
        "b a",
        "c a",
        "a b",
        "d a",
    ]
