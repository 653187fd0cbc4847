"""Algorithm 1 against hand-worked examples, its pseudo-code and its properties; phrase lengths, fixed phrases, cuts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import treebank_sample
from tests.reference.algorithm1 import algorithm1

from phraseloom.phrases.segmenters import cut_sizes, fixed_sizes, phrase_length, tree_sizes, with_end
from phraseloom.phrases.trees import Tree, parse_tree, skeleton
from phraseloom.world.sampling import train_pairs


def sizes_of(tree: Tree, counts: list[int], limit: int) -> list[int]:
    return tree_sizes(*with_end(skeleton(tree)[1], counts), limit)


# Words stand for themselves, with `:k` a word of k tokens. The phrases are written as they are found, from the right: `e` is
# the end of the sentence.
WORKED = [
    # The sentence fits: the whole tree is one sub-tree.
    ("(S (NP the cat) (VP sleeps))", 4, "the cat sleeps e"),
    # Edge: e (1); left of it at the same depth "." (1), then VP (1): full. NP and the whole rest are the same two words.
    ("(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)) (. .))", 3, "the cat | sleeps . e"),
    # ROOT and S branch only below S, so e is a sister of NP and VP, and VP joins it: with e under ROOT it could not.
    ("(ROOT (S (NP (DT the) (NN cat)) (VP (VBZ sleeps))))", 2, "the cat | sleeps e"),
    # A larger neighbour blocks: e (1) has VP (3) on its left, and 2 is all the room there is, though "house" alone would fit.
    # VP (3) then fits as a whole; NP (2) and what is left of S are the same.
    ("(S (NP (DT the) (NN dog)) (VP (VBZ sees) (DT a) (NN house)))", 3, "the dog | sees a house | e"),
    # VP (5) is too large; its last child NP (3) fills the phrase. Of VP remain 2 words: VP counts with what remains and is
    # the largest at the edge. On its left NP "he" (1) has the same depth and fits.
    (
        "(S (NP (PRP he)) (VP (VBZ sees) (RB now) (NP (DT a) (JJ big) (NN cat))) (. .))",
        3,
        "he sees now | a big cat | . e",
    ),
    # Neighbours of one depth, under one node: a phrase of three sisters out of five, then the two that remain.
    ("(S (NP a b c d e2) (VP (V f) (N g)))", 3, "a b | c d e2 | f g e"),
    # Labels do not matter: VP (5) is too large for a phrase of 4, so it begins with PP (2), its last child, and PP's sisters
    # NP (1) and VB (1) join; RB finds no room and stays behind, as all that remains of VP, and NP "we" joins it.
    ("(S (NP we) (VP (RB now) (VB put) (NP it) (PP (P in) (N boxes))))", 4, "we now | put it in boxes | e"),
    # Cousins: VP (4) is too large. Its last child C (2) is taken; B (1), its sister, fits; A (1) does not. Of VP remains A,
    # and VP is as large as A and higher; with NP (2) it is all of S. The words of NP, cousins of A, come in with NP as a whole.
    ("(S (NP (D x) (N y)) (VP (A a) (B b) (C c d)))", 3, "x y a | b c d | e"),
    # And where NP (3) is too large for the room left of A, none of its words joins A, though N (1) has the depth of A.
    ("(S (NP (D x) (J z) (N y)) (VP (A a) (B b) (C c d)))", 3, "x z y | a | b c d | e"),
    # A word of 5 tokens is longer than 3: a phrase of its own, nothing joins it. It also blocks e.
    ("(S (NP (DT the) (NN long:5)) (VP (VBZ word)))", 3, "the | long:5 | word e"),
    ("(S (NN long:4))", 3, "long:4 | e"),
    ("(S (NN a) (NN long:7) (NN b) (NN c))", 3, "a | long:7 | b c e"),
    # A word of exactly 3 tokens is no exception; its neighbour finds no room.
    ("(S (NN a) (NN three:3) (NN b))", 3, "a | three:3 | b e"),
    # Words without tokens vanish, and nodes that nothing is left of; S is then unary over VP, and e goes into VP.
    ("(S (NP (DT the:0)) (VP (VBZ sees) (NP (DT a) (NN cat)) ))", 2, "sees | a cat | e"),
    ("(S (NN x:0))", 3, "e"),
    # One word, as a tree of nothing else, and under many nodes.
    ("(NN hi)", 1, "hi | e"),
    ("(NN hi)", 2, "hi e"),
    ("(ROOT (S (VP (VB go))))", 1, "go | e"),
    # One token a phrase.
    ("(S (NP (DT the) (NN cat)) (VP (VBZ sits)))", 1, "the | cat | sits | e"),
]


@pytest.mark.parametrize(("line", "limit", "phrases"), WORKED, ids=[f"{limit} {line}" for line, limit, _ in WORKED])
def test_worked_by_hand(line: str, limit: int, phrases: str) -> None:
    def count(word: str) -> int:
        return int(word.partition(":")[2] or 1)

    tree = parse_tree(line)
    counts = [count(word) for word in tree.leaves]
    expected = [sum(count(word) for word in phrase.split()) for phrase in phrases.split("|")]
    assert [w for w in tree.leaves if count(w)] == phrases.replace("|", "").split()[:-1], "the example itself"
    assert sizes_of(tree, counts, limit) == expected
    assert algorithm1(tree, counts, limit) == expected


trees = st.recursive(
    st.builds(lambda word: Tree("T", [Tree(word)]), st.just("w")) | st.just(Tree("w")),
    lambda inner: st.builds(Tree, st.just("N"), st.lists(inner, min_size=1, max_size=5)),
    max_leaves=25,
)


@st.composite
def counted_trees(draw: st.DrawFn) -> tuple[Tree, list[int]]:
    tree = draw(trees)
    number = len(tree.leaves)
    return tree, draw(st.lists(st.sampled_from([0, 1, 1, 1, 1, 2, 3, 6]), min_size=number, max_size=number))


def spans(tree: Tree, counts: list[int]) -> Iterator[tuple[int, int]]:
    """First token and end of every sub-tree, words included."""

    def walk(node: Tree, start: int) -> Iterator[tuple[int, int]]:
        end = start
        if node.children:
            for child in node.children:
                inner = list(walk(child, end))
                yield from inner
                end = inner[-1][1]
        else:
            end += next(left)
        yield start, end

    left = iter(counts)
    yield from walk(tree, 0)


def check(tree: Tree, counts: list[int], limit: int) -> None:
    sizes = sizes_of(tree, counts, limit)
    assert sizes == algorithm1(tree, counts, limit)
    # Order and cover.
    assert sum(sizes) == sum(counts) + 1
    assert all(size > 0 for size in sizes)
    constituents = {(a, b) for a, b in spans(tree, counts) if a < b}
    words = {(a, b) for (a, b), count in zip(zip_spans(counts), counts, strict=True) if count}
    end = 0
    for size in sizes:
        start, end = end, end + size
        # At most `limit` tokens, or a single word.
        assert size <= limit or (start, end) in words
        for a, b in constituents | words:
            # What is left of a constituent when the phrases on the right are gone is inside, around or beside the phrase.
            b = min(b, end)
            assert b <= start or (start <= a and b <= end) or a <= start
            # A whole constituent that fits is never entered where it could have been taken: one at the right edge of what
            # is left lies inside the phrase.
            assert not (b == end and b - a <= limit and a < start)


def zip_spans(counts: list[int]) -> list[tuple[int, int]]:
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [(end - count, end) for end, count in zip(ends, counts, strict=True)]


@settings(max_examples=300, deadline=None)
@given(counted_trees(), st.integers(1, 9))
def test_random_trees(counted: tuple[Tree, list[int]], limit: int) -> None:
    check(*counted, limit)


def random_counts(number: int, draw: random.Random) -> list[int]:
    return draw.choices([0, 1, 2, 3, 5, 12], [1, 60, 20, 10, 5, 1], k=number)


def test_the_trees_of_the_world() -> None:
    draw = random.Random(5)
    for pair in train_pairs(3, 1000):
        tree = parse_tree(pair.tree)
        number = len(tree.leaves)
        limit = draw.randint(1, 9)
        check(tree, [1] * number, phrase_length(number + 1))
        check(tree, random_counts(number, draw), limit)


def test_the_trees_of_the_treebank(shared: Path) -> None:
    draw = random.Random(7)
    for i, tree in enumerate(treebank_sample(shared)):
        number = len(tree.leaves)
        counts, limit = [1] * number, phrase_length(number + 1)
        if i % 2:
            counts, limit = random_counts(number, draw), draw.randint(1, 9)
        assert sizes_of(tree, counts, limit) == algorithm1(tree, counts, limit)


def test_a_long_sentence_takes_no_long_time() -> None:
    """A comb and a flat tree of 100,000 words; anything quadratic would not end."""
    number = 100_000
    for joints in ([-1, *range(number - 1)], [-1, *[0] * (number - 1)]):
        sizes = tree_sizes(*with_end(joints, [1] * number), 8)
        assert sum(sizes) == number + 1
        assert max(sizes) == 8


@pytest.mark.parametrize(
    ("tokens", "length"),
    # ceil(tokens / 6), between 3 and 8.
    [(1, 3), (2, 3), (18, 3), (19, 4), (24, 4), (25, 5), (42, 7), (43, 8), (48, 8), (49, 8), (1000, 8)],
)
def test_phrase_length(tokens: int, length: int) -> None:
    assert phrase_length(tokens) == length


def test_phrase_length_of_other_options() -> None:
    assert [phrase_length(tokens, 8, 4, 2) for tokens in (1, 8, 9, 32, 33, 100)] == [2, 2, 3, 8, 8, 8]
    assert phrase_length(100, 4, 1, 6) == 6


def test_fixed_sizes() -> None:
    assert fixed_sizes(7, 3) == [3, 3, 1]
    assert fixed_sizes(6, 3) == [3, 3]
    assert fixed_sizes(1, 3) == [1]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 9, [3, 1, 5, 1]), (0, 3, [3, 1]), (0, 4, [3, 1, 1]), (2, 6, [1, 1, 2, 1]), (5, 7, [2, 1]), (4, 4, [1])],
)
def test_cut_sizes(start: int, end: int, expected: list[int]) -> None:
    # Nine subwords and the end in one phrase with the last five: | 0 1 2 | 3 | 4 5 6 7 8 e |
    assert cut_sizes([3, 1, 6], start, end) == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1), st.data())
def test_cuts_keep_the_edges(sizes: list[int], data: st.DataObject) -> None:
    tokens = sum(sizes) - 1
    start = data.draw(st.integers(0, tokens))
    end = data.draw(st.integers(start, tokens))
    cut = cut_sizes(sizes, start, end)
    edges = {sum(sizes[:i]) for i in range(len(sizes) + 1)}
    found = {start + sum(cut[:i]) for i in range(len(cut))}
    assert found == {start, end} | {edge for edge in edges if start < edge < end}
    assert all(size > 0 for size in cut)
