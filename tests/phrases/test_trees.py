"""Penn brackets: clean-up, awkward and hostile input, and that all trees of the samples go there and back."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import treebank_sample

from phraseloom.errors import DataError
from phraseloom.phrases.trees import Tree, parse_tree, scan, skeleton

CLEANED = [
    ("( (S (NP (NN x)) (VP (VB y))) )", "(S (NP (NN x)) (VP (VB y)))"),
    ("(ROOT (S (NN x)))", "(ROOT (S (NN x)))"),  # a name is a node; only an unnamed bracket goes
    ("(X (S (NN x)))", "(X (S (NN x)))"),
    ("( ( (S (NN x) (NN y))))", "(S (NN x) (NN y))"),
    ("( (A a) (B b))", "(X (A a) (B b))"),
    ("( (-NONE- *) (A a) (B b))", "(X (A a) (B b))"),
    ("( (-NONE- *) x)", "(X x)"),
    ("(S (NP-SBJ-1 (PRP he)) (VP=2 (VBZ is)))", "(S (NP (PRP he)) (VP (VBZ is)))"),
    ("(S (NP-SBJ (-NONE- *T*-1)) (VP (VB go)))", "(S (VP (VB go)))"),
    ("(S (SBAR (WHNP (-NONE- 0)) (S (-NONE- *))) (X))", None),
    ("(S (VP (VB go) (NP)))", "(S (VP (VB go)))"),
    ("(S (-LRB- -LRB-) (NN x) (-RRB- -RRB-))", "(S (-LRB- -LRB-) (NN x) (-RRB- -RRB-))"),
    ("(NP the cat)", "(NP the cat)"),
    ("(NP the (NN cat))", "(NP the (NN cat))"),
    ("  (NP(DT the )( NN  cat ) )\t", "(NP (DT the) (NN cat))"),
    ("(PRP$ my)", "(PRP$ my)"),
    ("(: --)", "(: --)"),
    ("(NN a-b)", "(NN a-b)"),
    ("(- -)", "(- -)"),
    ("(=x y)", "(=x y)"),
]


@pytest.mark.parametrize(("line", "clean"), CLEANED, ids=[line for line, _ in CLEANED])
def test_clean_up(line: str, clean: str | None) -> None:
    if clean is None:
        with pytest.raises(DataError, match="without words"):
            parse_tree(line)
    else:
        assert str(parse_tree(line)) == clean


def test_words_are_text() -> None:
    line = r"(S (-LRB- -LRB-) (CD 1\/2) (NN \*) (SYM x-LCB-y-rrb-) (NN a-) (-RRB- -RSB-) (NN \x))"
    assert parse_tree(line).leaves == ["(", "1/2", "*", "x{y)", "a-", "]", r"\x"]


def test_white_space_is_that_of_ascii() -> None:
    tree = parse_tree("(S\t(NN a\u00a0b)\r (NN \u3000) (NN \u2028))")
    assert tree.leaves == ["a\u00a0b", "\u3000", "\u2028"]
    assert parse_tree(str(tree)) == tree


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "no tree here"),
        ("   ", "no tree here"),
        ("()", "without words"),
        ("(())", "without words"),
        ("(S)", "without words"),
        ("( (S (NP (-NONE- *))))", "without words"),
        ("(S (NN x)", "column 1: a bracket is never closed$"),
        ("(S (NP (NN x)", "column 4: a bracket is never closed, nor 1 more"),
        ("(S (NN x)))", "column 11: text follows the tree: '\\)'"),
        (")", "column 1: a closing bracket without an opening one"),
        ("(S (NN x)) (S (NN y))", r"column 12: text follows the tree: '\(S \(NN y\)\)'"),
        ("(S (NN x)) # good", "column 12: text follows the tree: '# good'"),
        ("word", "column 1: 'word' outside of brackets"),
        ("the (NN cat)", "column 1: 'the' outside of brackets"),
        ("(A) (S (NN x))", "column 5: text follows"),
        ("() (S (NN x))", "column 4: text follows"),
    ],
)
def test_what_is_wrong_is_said(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_tree(line)
    assert scan(line) is None


def test_deep_and_wide_trees() -> None:
    depth = 50_000
    line = "(A " * depth + "x" + ")" * depth
    tree = parse_tree(line)
    assert tree.leaves == ["x"]
    assert skeleton(tree) == (["x"], [-1])
    assert str(tree) == line
    assert tree == parse_tree(line)
    assert tree != parse_tree("(A " * (depth - 1) + "x" + ")" * (depth - 1))
    comb = "(A (B b) " * depth + "(C c)" + ")" * depth
    words, joints = scan(comb) or ([], [])
    assert len(words) == depth + 1
    assert joints == list(range(-1, depth))
    assert len(parse_tree("(S" + " (N x)" * depth + ")").children) == depth
    with pytest.raises(DataError, match="never closed, nor 49999 more"):
        parse_tree("(A " * depth)


def test_memory_grows_with_the_line_only() -> None:
    line = "(S" + " (N x)" * 50_000 + ")"
    tracemalloc.start()
    try:
        skeleton(parse_tree(line))
        assert tracemalloc.get_traced_memory()[1] < 100 * len(line)
    finally:
        tracemalloc.stop()


def test_joints_by_hand() -> None:
    # a and b meet in NP (depth 1), b and c in S (depth 0), c and d in VP (depth 1).
    line = "(S (NP (A a) (B b)) (VP (C c) (NP (D d))))"
    assert scan(line) == skeleton(parse_tree(line)) == (["a", "b", "c", "d"], [-1, 1, 0, 1])
    assert scan("(S (A a) (B) (C c))") == (["a", "c"], [-1, 0])


labels = st.text(st.characters(codec="utf-8", exclude_characters="()-=\\ \t\n\r\f\v"), min_size=1, max_size=4)
words = st.text(st.characters(codec="utf-8", exclude_characters="-\\ \t\n\r\f\v"), min_size=1, max_size=4)
trees = st.recursive(
    st.builds(lambda label, word: Tree(label, [Tree(word)]), labels, words),
    lambda inner: st.builds(Tree, labels, st.lists(inner | words.map(Tree), min_size=1, max_size=4)),
    max_leaves=12,
)


@settings(deadline=None)
@given(trees)
def test_there_and_back(tree: Tree) -> None:
    assert parse_tree(str(tree)) == tree


@settings(deadline=None)
@given(trees)
def test_the_fast_scan_agrees(tree: Tree) -> None:
    fast = scan(str(tree))
    assert fast is None or fast == skeleton(tree)


@settings(deadline=None)
@given(st.text(st.sampled_from("() aA-\\"), max_size=14))
def test_any_text_is_a_tree_or_a_data_error(line: str) -> None:
    fast = scan(line)
    try:
        slow = skeleton(parse_tree(line))
    except DataError:
        assert fast is None
    else:
        assert fast is None or fast == slow


def test_equality() -> None:
    assert Tree("a", [Tree("b")]) != Tree("a", [Tree("c")])
    assert Tree("a", [Tree("b")]) != Tree("a", [Tree("b"), Tree("b")])
    assert Tree("a") != "a"


def test_the_treebank_sample(shared: Path) -> None:
    found = treebank_sample(shared)
    assert len(found) == 3914
    assert str(found[1]).startswith("(S (NP (NNP Mr.) (NNP Vinken)) (VP (VBZ is) (NP (NP (NN chairman)) (PP (IN of)")
    assert sum(len(tree.leaves) for tree in found) == 94_084
    for tree in found:
        line = str(tree)
        assert parse_tree(line) == tree
        assert scan(line) == skeleton(tree)
        assert "-NONE-" not in line
