"""The lexicon of aligned text, against counting by hand."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from phraseloom.align.lexicon import LexiconEntry, LinkCounts, format_entries, read_lexicon
from phraseloom.errors import DataError, FileProblem


def counted(*pairs: tuple[str, str, str]) -> LinkCounts:
    counts = LinkCounts()
    for source, target, links in pairs:
        found = frozenset((int(s), int(t)) for s, t in (link.split("-") for link in links.split()))
        counts.add(source.split(" "), target.split(" "), found)
    return counts


def test_the_most_frequent_translation_wins() -> None:
    counts = counted(
        ("das Haus", "the house", "0-0 1-1"),
        ("das Haus", "this house", "0-0 1-1"),
        ("das", "the", "0-0"),
        ("Haus das", "the building", "1-0"),
    )
    assert counts.entries() == [LexiconEntry("das", "the", 3, 4), LexiconEntry("Haus", "house", 2, 2)]
    assert (counts.lines, counts.links, counts.with_tab) == (4, 6, 0)


@pytest.mark.parametrize("order", [["z", "b", "Ä"], ["Ä", "b", "z"], ["b", "z", "Ä"]])
def test_equal_counts_go_by_code_points(order: list[str]) -> None:
    counts = counted(*((source, target, "0-0") for target in order for source in ("x", "a")))
    assert counts.entries() == [LexiconEntry("a", "b", 1, 3), LexiconEntry("x", "b", 1, 3)]


def test_a_least_count_is_that_of_the_translation() -> None:
    counts = counted(("a", "x", "0-0"), ("a", "y", "0-0"), ("b", "z", "0-0"), ("b", "z", "0-0"))
    assert counts.entries(2) == [LexiconEntry("b", "z", 2, 2)]
    assert counts.entries(3) == []


def test_random_text_against_counting_by_hand(tmp_path: Path) -> None:
    rng = random.Random(1)
    counts, pairs = LinkCounts(), Counter[tuple[str, str]]()
    for _ in range(200):
        source, target = ([rng.choice("abcdefg") for _ in range(rng.randint(1, 6))] for _ in range(2))
        links = {(rng.randrange(len(source)), rng.randrange(len(target))) for _ in range(rng.randint(0, 5))}
        pairs.update((source[s], target[t]) for s, t in links)
        counts.add(source, target, frozenset(links))
    expected = []
    for word in sorted({s for s, _ in pairs}):
        of_word = {t: n for (s, t), n in pairs.items() if s == word}
        best = sorted(of_word, key=lambda t, n=of_word: (-n[t], t))[0]
        expected.append(LexiconEntry(word, best, of_word[best], sum(of_word.values())))
    expected.sort(key=lambda e: -e.total)
    assert counts.entries() == expected
    rows = list(format_entries(counts.entries()))
    (tmp_path / "lexicon").write_bytes("".join(row + "\n" for row in rows).encode())
    assert read_lexicon(tmp_path / "lexicon") == {e.source: e.target for e in expected}


def test_words_with_a_tab_are_left_out() -> None:
    counts = counted(("a\tb c", "x y\tz", "0-0 1-1 1-0"))
    assert counts.entries() == [LexiconEntry("c", "x", 1, 1)]
    assert (counts.links, counts.with_tab) == (1, 2)


def test_odd_words_come_back(tmp_path: Path) -> None:
    words = ["\u00a0", "\u2028", "a\r", "\x85x", '"', "&#95;", "_", "\u3000"]
    counts = counted((" ".join(words), " ".join(reversed(words)), " ".join(f"{i}-{i}" for i in range(len(words)))))
    (tmp_path / "l").write_bytes("".join(row + "\n" for row in format_entries(counts.entries())).encode())
    assert read_lexicon(tmp_path / "l") == dict(zip(words, reversed(words), strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tx\nb\n", ":2: the row has one column; write SOURCE<tab>TARGET"),
        ("a\tx\n\n", ":2: the row has one column"),
        ("a\tx y\n", ":1: the target 'x y' is not one word"),
        ("a b\tx\n", ":1: the source 'a b' is not one word"),
        ("a\t\t3\n", ":1: the target '' is not one word"),
        ("\tx\n", ":1: the source '' is not one word"),
        ("a\tx\nb\ty\na\tz\n", ":3: the source word 'a' has a row already"),
    ],
)
def test_what_is_no_lexicon_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "lexicon").write_bytes(text.encode())
    with pytest.raises(DataError) as caught:
        read_lexicon(tmp_path / "lexicon")
    assert f"lexicon{message}" in str(caught.value)


def test_a_lexicon_of_two_columns_and_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"a\tx\nb\ty\textra\n")
    assert read_lexicon(tmp_path / "own") == {"a": "x", "b": "y"}
    with pytest.raises(FileProblem):
        read_lexicon(tmp_path / "none")
