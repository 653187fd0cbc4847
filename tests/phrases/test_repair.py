"""What link-grammar prints → a tree with the line's own characters as leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phraseloom.phrases.trees import parse_tree, repair

WORKED = [
    # Case from the line, subscripts and guesses off, unlinked words kept.
    ("A Man Runs.", "(S (NP a man.n) (VP runs.v) .)", "(S (NP A Man) (VP Runs) .)"),
    ("the biek stops", "(S (NP {the} biek{?}.n) (VP stops{!}))", "(S (NP the biek) (VP stops))"),
    # Clitics and punctuation are leaves of their own; a leaf never spans white space.
    ("The river's bank,", "(S (NP (NP the river.n 's.p) bank.n) ,)", "(S (NP (NP The river 's) bank) ,)"),
    ("in front of it", "(S (PP in_front_of) infront (NP it))", "(S in front of (NP it))"),
    # A dot belongs to the word if that ends a word of the line, and is a subscript otherwise.
    ("at 9 a.m today", "(S at 9 a.m today.r)", "(S at 9 a.m today)"),
    ("a man.now", "(S a man.n . now)", "(S a man . now)"),
    ("the U.S.", "(S the U.S{!} .)", "(S the U.S .)"),
    # Brackets are printed as { and } by the program, as in the Penn treebank by us, each a leaf of its own.
    ("five (old) [x]", "(S five { (NP old.a }) {{} x.n {}})", "(S five -LRB- (NP old -RRB-) -LSB- x -RSB-)"),
    ("a {b}", "(S a {{b}})", "(S a -LCB- b -RCB-)"),
    # What a reader of treebanks would change is cut.
    ("x -LRB- y \\/", "(S x LRB-{!} y)", "(S x - LRB- y \\ /)"),
    # Characters that no word took: in the smallest constituent that spans their place.
    ("the big old dog runs", "(S (NP the (ADJP big) dog.n) (VP runs.v))", "(S (NP the (ADJP big) old dog) (VP runs))"),
    ("well the dog runs off", "(S (NP the dog.n) (VP runs.v))", "(S well (NP the dog) (VP runs) off)"),
    ("the dog often runs", "(S (NP the dog.n) (VP runs.v))", "(S (NP the dog) often (VP runs))"),
    # Words that are not in the line go, and constituents that they leave empty.
    ("the dog", "(S (NP the dog.n) (VP (NP cat.n)) bird)", "(S (NP the dog))"),
    # One S over everything.
    ("the dog", "(NP the dog.n)", "(S (NP the dog))"),
    ("the dog runs", "(NP the dog.n) (VP runs.v)", "(S (NP the dog) (VP runs))"),
    ("dog", "dog.n", "(S dog)"),
    # Nonsense gives a flat tree.
    ("the dog", ")))((", "(S the dog)"),
    ("the dog", "", "(S the dog)"),
    ("  ", "(S x)", ""),
]


@pytest.mark.parametrize(("line", "output", "tree"), WORKED)
def test_worked_examples(line: str, output: str, tree: str) -> None:
    assert repair(line, output) == tree


def fits(line: str, tree: str) -> bool:
    return "".join(parse_tree(tree).leaves) == "".join(line.split())


AWKWARD = st.text(st.sampled_from("aAbß.,'\"-LRB{}()[]\\/* \t\x01\x1c\u2028\u00a0\u0130éz"), max_size=30)


@given(AWKWARD, st.text(st.sampled_from("aAbß.,'-LRB{}()\\/* \u0130éSNPn!?"), max_size=40))
def test_whatever_is_printed_the_leaves_are_the_line(line: str, output: str) -> None:
    tree = repair(line, output)
    assert "\n" not in tree
    assert fits(line, tree) if line.strip() else tree == ""


@given(AWKWARD)
def test_a_line_against_itself(line: str) -> None:
    if line.strip():
        assert fits(line, repair(line, "(S (NP " + line.replace("(", "{").replace(")", "}") + "))"))


def test_time_is_linear() -> None:
    line = "( " * 5000
    assert fits(line, repair(line, "(S " + "( " * 3000 + "x " * 3000 + ")"))
