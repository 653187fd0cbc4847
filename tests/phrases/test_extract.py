"""Candidates: what is linked to one word, in which order it is written, and files that are not of this form."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.errors import DataError
from phraseloom.phrases.extract import (
    AlignedLine,
    PhraseCandidate,
    Source,
    extract,
    format_candidates,
    lines_of,
    one_to_many,
    read_aligned,
    read_candidates,
)

EXAMPLES = settings(max_examples=100, deadline=None)


def aligned(source: str, target: str, *links: tuple[int, int]) -> AlignedLine:
    return AlignedLine(source.split(), target.split(), frozenset(links), target)


LINES = [
    aligned("ich ging heim", "I went to my home", (0, 0), (1, 1), (1, 2), (2, 4), (2, 3)),
    aligned("sie ging", "she went to", (0, 0), (1, 2), (1, 1)),
    aligned("reiste los", "to he went", (0, 2), (0, 0), (1, 1)),  # not adjacent, and in the order of the sentence
    aligned("fuhr ging", "went to went to", (0, 0), (0, 1), (1, 2), (1, 3)),
    aligned("", "x y"),
    aligned("ging", "y"),
]


def test_what_one_word_is_linked_to() -> None:
    found = extract(LINES)
    assert list(found) == [
        PhraseCandidate("went to", (Source("ging", 3, 3), Source("fuhr", 1, 1))),
        PhraseCandidate("my home", (Source("heim", 1, 1),)),
        PhraseCandidate("to went", (Source("reiste", 1, 1),)),
    ]
    assert (found.pairs, found.blank, found.unlinked, found.occurrences) == (6, 1, 1, 6)
    assert [c.count for c in found] == [4, 1, 1]
    assert found.linked == Counter({"ging": 3, "ich": 1, "heim": 1, "sie": 1, "reiste": 1, "los": 1, "fuhr": 1})


def test_ties_do_not_depend_on_the_order_of_the_text() -> None:
    lines = [
        aligned(source, target, (0, 0), (0, 1))
        for target in ("b a", "a b", "a b\x01", "a ba", "\x01 a")
        for source in ("z", "y", "é", "y\x01", "x")
    ]
    found = list(extract(lines))
    assert [s.word for s in found[0].sources] == ["x", "y", "y\x01", "z", "é"]
    assert [c.phrase for c in found] == ["\x01 a", "a b\x01", "a b", "a ba", "b a"]  # as with a tab at the end
    for other in (lines[::-1], lines[7:] + lines[:7]):
        assert list(extract(other)) == found


def test_order_of_links() -> None:
    assert list(one_to_many([(2, 1), (0, 3), (2, 0), (0, 2), (1, 9)])) == [(0, [2, 3]), (2, [0, 1])]
    assert not list(one_to_many([(0, 0), (1, 0), (2, 0)]))


pairs = st.tuples(
    st.lists(st.sampled_from("abc"), max_size=4),
    st.lists(st.sampled_from("xyz"), max_size=5),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4))),
)


@EXAMPLES
@given(st.lists(pairs, max_size=8), st.randoms(use_true_random=False))
def test_against_counting_by_hand_and_in_any_order(
    some: list[tuple[list[str], list[str], set[tuple[int, int]]]], rng: random.Random
) -> None:
    lines = [
        AlignedLine(s, t, frozenset((i, j) for i, j in links if i < len(s) and j < len(t)), "") for s, t, links in some
    ]
    by_hand: Counter[tuple[str, str]] = Counter()
    for line in lines:
        for i, word in enumerate(line.source):
            linked = [y for j, y in enumerate(line.target) if (i, j) in line.links]
            if len(linked) >= 2:
                by_hand[" ".join(linked), word] += 1
    rows = list(format_candidates(extract(lines)))
    assert {(r.split("\t")[0], r.split("\t")[1]): int(r.split("\t")[2]) for r in rows} == by_hand
    rng.shuffle(lines)
    assert list(format_candidates(extract(lines))) == rows


def test_a_tab_is_counted_and_left_out() -> None:
    lines = [
        AlignedLine(["a\tb", "c"], ["x", "y", "z\t"], frozenset([(0, 0), (0, 1)]), ""),
        AlignedLine(["c"], ["x", "z\t"], frozenset([(0, 0), (0, 1)]), ""),
        AlignedLine(["c"], ["x", "y"], frozenset([(0, 0), (0, 1)]), ""),
    ]
    found = extract(lines)
    assert (found.with_tab, [c.phrase for c in found]) == (2, ["x y"])


def test_a_file_and_back(tmp_path: Path) -> None:
    found = extract(LINES)
    rows = list(format_candidates(found))
    assert rows[:2] == ["went to\tging\t3\t3", "went to\tfuhr\t1\t1"]
    path = tmp_path / "c.tsv"
    path.write_bytes("".join(row + "\n" for row in rows).encode())
    assert list(read_candidates(path)) == list(found)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a b\tx\t1\n", 1, "not a row"),
        ("a b\tx\t1\t1\t1\n", 1, "not a row"),
        ("a b\tx\t2\t2\na\tx\t1\t1\n", 2, "not a row"),
        ("a  b\tx\t1\t1\n", 1, "not a row"),
        ("a b\t\t1\t1\n", 1, "not a row"),
        ("a b\tx\t0\t1\n", 1, "not a row"),
        ("a b\tx\t2\t1\n", 1, "not a row"),
        ("a b\tx\t1.5\t2\n", 1, "not a row"),
        ("a b\tx\t-1\t2\n", 1, "not a row"),
        ("a b\tx\t١\t2\n", 1, "not a row"),
        (f"a b\tx\t1\t{'9' * 5000}\n", 1, "not a row"),
        ("\n", 1, "not a row"),
        ("a b\tx\t1\t1\nc d\tx\t2\t2\n", 2, "'c d' is not in the order"),
        ("c d\tx\t1\t1\na b\tx\t1\t1\n", 2, "'a b' is not in the order"),
        ("a b\tx\t3\t3\nc d\tx\t2\t2\nc d\ty\t1\t2\na b\tx\t1\t1\na b\ty\t2\t2\n", 4, "'a b' is not in the order"),
    ],
)
def test_other_files_are_refused(text: str, line: int, what: str, tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_bytes(text.encode())
    with pytest.raises(DataError, match=what) as error:
        list(read_candidates(path))
    assert (error.value.file, error.value.line) == (path, line)


@pytest.mark.parametrize(
    ("source", "target", "links", "message"),
    [
        ("a\n", "b\nc\n", "\n\n", "source: ends after 1 line, but target has more"),
        ("a\nb\n", "c\n", "\n\n", "target: ends after 1 line, but source has more"),
        ("a\n", "b\n", "", "links: ends after 0 lines, but source has more"),
        ("a\n", "b\n", "0-0\n\n", "source: ends after 1 line, but links has more"),
        ("a\n", "b\n", "0-1\n", "links:1: 0-1: the target has 1 word"),
        ("a\n", "b\n", "0:0\n", "links:1: field 1, '0:0', is not a link"),
        ("\n", "b\n", "0-0\n", "links:1: 0-0: the source has 0 words"),
    ],
)
def test_files_that_are_not_parallel(
    source: str, target: str, links: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"source": source, "target": target, "links": links}.items():
        Path(name).write_bytes(text.encode())
    with pytest.raises(DataError) as error:
        extract(read_aligned(lines_of("source"), lines_of("target"), lines_of("links")))
    assert message in str(error.value)


def test_words_stand_between_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the links count them: no other white space, and no empty words."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"s": "  a\u00a0b \u3000\n", "t": "x  y\u2028z w \n", "a": "0-0 0-2 1-1\n"}.items():
        Path(name).write_bytes(text.encode())
    (line,) = read_aligned(lines_of("s"), lines_of("t"), lines_of("a"))
    assert line == (["a\u00a0b", "\u3000"], ["x", "y\u2028z", "w"], {(0, 0), (0, 2), (1, 1)}, "x  y\u2028z w ")


def test_memory_is_that_of_the_candidates() -> None:
    def lines(number: int) -> int:
        tracemalloc.start()
        extract(aligned("w x", "a b c", (0, 0), (0, 1), (1, 2)) for _ in range(number))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    lines(10)
    assert lines(4000) < lines(400) + 20_000
