"""Symmetrisation: Koehn's pseudo-code as slow loops, what Moses' own program prints, and what must hold for any links."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.align.links import METHODS, Links, format_links, parse_links, symmetrize
from phraseloom.errors import UsageError

SIZE = 6
WORDS = st.integers(0, SIZE - 1)
ANY = st.frozensets(st.tuples(WORDS, WORDS), max_size=14)
# As aligners give them: one source word for each target word, and the other way round.
FORWARD = st.dictionaries(WORDS, WORDS).map(lambda chosen: frozenset((s, t) for t, s in chosen.items()))
BACKWARD = st.dictionaries(WORDS, WORDS).map(lambda chosen: frozenset(chosen.items()))
EXAMPLES = settings(max_examples=150, deadline=None)


def by_pseudo_code(forward: Links, backward: Links, method: str) -> Links:
    """The pseudo-code of the Moses manual ("Align Words"), with e the target and f the source language."""
    e2f, f2e = ({(t, s) for s, t in links} for links in (forward, backward))
    neighboring = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
    alignment = e2f & f2e

    def e_aligned(e: int) -> bool:
        return any((e, f) in alignment for f in range(SIZE))

    def f_aligned(f: int) -> bool:
        return any((e, f) in alignment for e in range(SIZE))

    def words() -> Iterator[tuple[int, int]]:
        return itertools.product(range(SIZE), range(SIZE))

    before = -1
    while before != len(alignment):
        before = len(alignment)
        for e, f in words():
            if (e, f) in alignment:
                for e_step, f_step in neighboring:
                    e_new, f_new = e + e_step, f + f_step
                    if (not e_aligned(e_new) or not f_aligned(f_new)) and (e_new, f_new) in e2f | f2e:
                        alignment.add((e_new, f_new))
    for a in (e2f, f2e) if "final" in method else ():
        for e_new, f_new in words():
            if method.endswith("and"):
                free = not e_aligned(e_new) and not f_aligned(f_new)
            else:
                free = not e_aligned(e_new) or not f_aligned(f_new)
            if free and (e_new, f_new) in a:
                alignment.add((e_new, f_new))
    return frozenset((f, e) for e, f in alignment)


@pytest.mark.parametrize("method", [m for m in METHODS if m.startswith("grow")])
@EXAMPLES
@given(links=st.tuples(FORWARD, BACKWARD) | st.tuples(ANY, ANY))
def test_as_in_the_pseudo_code(method: str, links: tuple[Links, Links]) -> None:
    assert symmetrize(*links, method) == by_pseudo_code(*links, method)


# Links for which the order matters: forward, backward, and what `symal` of Moses (34452895) prints for
# -alignment=grow -diagonal=yes and -final=no, -final=yes, -final=yes -both=yes. Scanning source words first, neighbours in
# another order, the last step with `backward` first, or as fast_align's atools: each gives something else for one of them.
BY_SYMAL = [
    ("0-2 2-4 3-5", "0-1 2-5 3-5", "2-4 2-5 3-5", "0-1 0-2 2-4 2-5 3-5", "0-2 2-4 2-5 3-5"),
    ("0-0 1-1 1-5 2-4", "0-3 1-5 2-5", "1-5 2-4 2-5", "0-0 0-3 1-1 1-5 2-4 2-5", "0-0 1-5 2-4 2-5"),
    (
        "0-0 0-1 1-4 1-5 2-3",
        "0-3 1-5 2-4 3-1",
        "0-3 1-4 1-5 2-4",
        "0-0 0-1 0-3 1-4 1-5 2-4 3-1",
        "0-3 1-4 1-5 2-4 3-1",
    ),
]


@pytest.mark.parametrize(("forward", "backward", "grown", "final", "final_and"), BY_SYMAL)
def test_as_moses_prints(forward: str, backward: str, grown: str, final: str, final_and: str) -> None:
    links = parse_links(forward), parse_links(backward)
    wanted = {"grow-diag": grown, "grow-diag-final": final, "grow-diag-final-and": final_and}
    assert {method: format_links(symmetrize(*links, method)) for method in wanted} == wanted


def test_by_hand() -> None:
    """das Haus | the house: 0-0 in both; 1-1 only forward, a diagonal neighbour; 3-4 far away; 0-5 free on one side."""
    forward, backward = parse_links("0-0 1-1 3-4 0-5"), parse_links("0-0 4-0")
    found = {method: format_links(symmetrize(forward, backward, method)) for method in METHODS}
    assert found == {
        "intersection": "0-0",
        "union": "0-0 0-5 1-1 3-4 4-0",
        "grow-diag": "0-0 1-1",
        "grow-diag-final": "0-0 0-5 1-1 3-4 4-0",
        "grow-diag-final-and": "0-0 1-1 3-4",
    }


@EXAMPLES
@given(forward=ANY, backward=ANY)
def test_what_must_hold(forward: Links, backward: Links) -> None:
    made = {method: symmetrize(forward, backward, method) for method in METHODS}
    assert made["intersection"] == forward & backward and made["union"] == forward | backward
    assert made["intersection"] <= made["grow-diag"] <= made["grow-diag-final-and"]
    assert made["grow-diag"] <= made["grow-diag-final"] <= made["union"] >= made["grow-diag-final-and"]
    for method in METHODS:
        assert symmetrize(forward, forward, method) == forward
    for side in (0, 1):  # after -final, every word that has a link has one
        assert {link[side] for link in made["grow-diag-final"]} == {link[side] for link in made["union"]}


def test_nothing() -> None:
    none: Links = frozenset()
    for method in METHODS:
        assert symmetrize(none, none, method) == none
    only = parse_links("1-2")
    assert symmetrize(only, none, "grow-diag") == none
    assert symmetrize(only, none, "grow-diag-final-and") == symmetrize(none, only, "grow-diag-final-and") == only


def test_an_unknown_method() -> None:
    with pytest.raises(UsageError, match="no symmetrisation 'grow'; choose from intersection, union, grow-diag"):
        symmetrize(frozenset(), frozenset(), "grow")
