"""Alignment error rate: by hand, by its definition over triples, at its edges, and as alignment-scripts counts it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phraseloom.align.links import Gold, Links, parse_links, read_gold
from phraseloom.errors import DataError
from phraseloom.metrics.aer import score_alignment

WORDS = st.integers(0, 4)
LINKS = st.frozensets(st.tuples(WORDS, WORDS), max_size=9)
SENTENCES = st.lists(st.tuples(LINKS, LINKS, LINKS), max_size=5)


def test_by_hand() -> None:
    gold = [Gold(parse_links("0-0 1-1"), parse_links("1-2 2-2")), Gold(parse_links("0-0"))]
    found = [parse_links("0-0 1-2 3-3"), parse_links("0-1")]
    score = score_alignment(found, gold)
    assert (score.sentences, score.links, score.sure, score.possible) == (2, 4, 3, 5)
    assert (score.in_sure, score.in_possible) == (1, 2)
    assert score.precision == 2 / 4 and score.recall == 1 / 3
    assert score.aer == pytest.approx(1 - (1 + 2) / (4 + 3))
    assert score.f1 == pytest.approx(2 * 0.5 * (1 / 3) / (0.5 + 1 / 3))


@given(sentences=SENTENCES)
def test_by_the_definition(sentences: list[tuple[Links, Links, Links]]) -> None:
    """Over one set of (sentence, source, target) for the whole corpus."""

    def triples(index: int) -> set[tuple[int, int, int]]:
        return {(n, *link) for n, sets in enumerate(sentences) for link in sets[index]}

    a, s = triples(0), triples(1)
    p = triples(2) | s
    score = score_alignment([f for f, _, _ in sentences], [Gold(*sets) for _, *sets in sentences])
    if a or s:
        assert score.aer == pytest.approx(1 - (len(a & s) + len(a & p)) / (len(a) + len(s)))
    if a:
        assert score.precision == len(a & p) / len(a)
    if s:
        assert score.recall == len(a & s) / len(s)
    assert -1e-12 <= score.aer <= 1 and 0 <= score.f1 <= 1
    assert (score.aer < 1e-12) == (s <= a <= p)


def test_the_edges() -> None:
    none: Links = frozenset()
    one, other = parse_links("0-0"), parse_links("1-1")
    table = {  # found, sure, possible: AER, precision, recall, F1
        (none, none, none): (0, 1, 1, 1),
        (none, one, none): (1, 1, 0, 0),
        (one, none, none): (1, 0, 1, 0),
        (one, none, one): (0, 1, 1, 1),
        (none, none, one): (0, 1, 1, 1),
        (one, other, none): (1, 0, 0, 0),
        (one, one, other): (0, 1, 1, 1),
    }
    for (found, sure, possible), wanted in table.items():
        score = score_alignment([found], [Gold(sure, possible)])
        assert (score.aer, score.precision, score.recall, score.f1) == wanted
    empty = score_alignment([], [])
    assert (empty.sentences, empty.aer, empty.precision, empty.recall) == (0, 0, 1, 1)


def test_sums_are_of_the_corpus_not_means_of_sentences() -> None:
    gold = [Gold(parse_links("0-0")), Gold(parse_links("0-0 1-1 2-2 3-3"))]
    score = score_alignment([parse_links("0-1"), parse_links("0-0 1-1 2-2 3-3")], gold)
    assert score.aer == pytest.approx(1 - 8 / 10)


def test_more_links_than_sentences() -> None:
    with pytest.raises(DataError, match="links of 2 sentences cannot be scored with gold links of 1"):
        score_alignment([frozenset(), frozenset()], [Gold()])


def test_as_plain_data() -> None:
    score = score_alignment([parse_links("0-0")], [Gold(parse_links("0-0"))])
    keys = ["aer", "precision", "recall", "f1", "sentences", "links", "sure", "possible", "in_sure", "in_possible"]
    assert list(score.as_dict()) == keys
    assert replace(score, in_sure=0).as_dict()["aer"] == 0.5


# What aer.py of alignment-scripts (lilt, 4da9bbf, --fAlpha 0.5) finds for the links of `perturbed`:
# file: (base, AER, precision, recall, F).
BY_ALIGNMENT_SCRIPTS = {
    "enfr.gold1": (1, 0.1293209004426863, 0.882056096702265, 0.8244274809160306, 0.852268718396694),
    "roen.gold1": (1, 0.1913271384322135, 0.7963397465978413, 0.8213939980638916, 0.8086728615677864),
    "zhen.gold1": (1, 0.19194185211773152, 0.793006993006993, 0.8239306784660767, 0.8081731303611072),
    "jaen.gold1": (1, 0.1925474844135131, 0.7935309204901682, 0.8218713105076741, 0.8074525155864869),
    "encs.gold0": (0, 0.2028260869565217, 0.7801131770412287, 0.8149975552295862, 0.7971739130434784),
    "ensv.gold0": (0, 0.19299270072992702, 0.7942528735632184, 0.8201780415430268, 0.8070072992700731),
    "deen.gold0": (0, 0.20158730158730154, 0.7816627816627817, 0.8158961881589619, 0.7984126984126985),
}


def perturbed(gold: list[Gold]) -> list[Links]:
    """Most of the possible links, and some beside them."""
    rng, found = random.Random(0), []
    for sentence in gold:
        links = set()
        for s, t in sorted(sentence.possible):
            if rng.random() < 0.8:
                links.add((s, t))
            if rng.random() < 0.3:
                links.add((s, max(0, t + rng.randint(-2, 2))))
        found.append(frozenset(links))
    return found


@pytest.mark.parametrize("name", BY_ALIGNMENT_SCRIPTS)
def test_as_alignment_scripts(name: str, shared: Path) -> None:
    base, *wanted = BY_ALIGNMENT_SCRIPTS[name]
    gold = read_gold(shared / "data" / "gold_alignments" / f"{name}.gz", base=int(base))
    score = score_alignment(perturbed(gold), gold)
    assert [score.aer, score.precision, score.recall, score.f1] == pytest.approx(wanted, abs=1e-12)
