"""Accuracy by phenomenon: gold instances, what counts as right, intervals and tests, worlds that cannot be read."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from phraseloom.analysis.gold import (
    OF_SEVERAL_WORDS,
    GoldSplit,
    Instance,
    instances,
    parse_links,
    parse_tree,
    read_world,
    words_of,
)
from phraseloom.analysis.phenomena import compare_systems, occurrences, right
from phraseloom.errors import DataError, FileProblem, UsageError
from phraseloom.metrics.ratio import wilson
from phraseloom.world.contrastive import EDITS
from phraseloom.world.draw import KeyedRandom
from phraseloom.world.generator import Generator
from phraseloom.world.german import German
from phraseloom.world.grammar import Pronoun, Sentence, all_clauses, all_noun_phrases
from phraseloom.world.pair import make_pair, verb_senses
from phraseloom.world.sampling import distinct_pairs, settled, train_pairs
from phraseloom.world.writer import write_world

EXAMPLE = {
    "en": "The man picks up a red hat because it sleeps .",
    "de": "Der Mann hebt einen roten Hut auf , weil er schläft .",
    "align": "0-0 1-1 2-2 3-6 4-3 5-4 6-5 7-8 8-9 9-10 10-11",
    "trees": "(S (NP (DT The) (NN man)) (VP (VBZ picks) (PRT (RP up)) (NP (DT a) (JJ red) (NN hat)) (SBAR (IN because)"
    " (S (NP (PRP it)) (VP (VBZ sleeps))))) (. .))",
    "phrases": "2:4-2:3,6:7=separable",
    "agreement": "1-2/1-2:0 8-9/9-10:0",
}


def instance(kind: str, *pieces: str, first: bool = False) -> Instance:
    return Instance(kind, (0, 1), tuple(tuple(piece.split()) for piece in pieces), first)


def test_the_instances_of_an_example() -> None:
    found = Counter((i.kind, i.source, tuple(" ".join(piece) for piece in i.pieces)) for i in instances(EXAMPLE))
    assert found == Counter(
        [
            ("separable", (2, 4), ("hebt", "auf")),
            ("gender", (0, 2), ("Der Mann",)),
            ("gender", (4, 7), ("einen roten Hut",)),
            ("case", (4, 7), ("einen roten Hut",)),
            ("verb_final", (7, 10), ("weil", "schläft .")),
            ("pronoun", (8, 9), ("er",)),
        ]
    )


@pytest.mark.parametrize("split", ["train", "test", "challenge-long", "challenge-idioms"])
def test_the_kinds_found_are_those_that_the_world_names(split: str) -> None:
    pairs = train_pairs(3, 1500) if split == "train" else distinct_pairs(3, split, 150 if "long" in split else 600)
    for pair in pairs:
        assert sorted({i.kind for i in instances(pair.annotations())}) == pair.phenomena, " ".join(pair.source)


def built(sentence: Sentence) -> Counter[str]:
    """How many instances of the kinds that are read off trees the constituents of a sentence have."""
    counts: Counter[str] = Counter()
    for clause in all_clauses(sentence):
        counts["verb_final"] += clause.at_that >= 0
        counts["case"] += (clause.object is not None) + (clause.receiver is not None)
        counts["ambiguous"] += bool(clause.verb and clause.verb in verb_senses().get(clause.verb.english, ()))
    for phrase in all_noun_phrases(sentence):
        head = phrase.head
        if isinstance(head, Pronoun):
            counts["pronoun"] += head.english[0] == "it"
        else:
            counts["name"] += not head.gender
            counts["ambiguous"] += bool(head.cues)
            counts["gender"] += bool(head.gender and not head.cues and phrase.determiner.style not in ("bare", "plain"))
    return +counts


def test_as_many_instances_as_the_sentence_was_built_with() -> None:
    generator, seen = Generator(KeyedRandom(9, "instances")), 0
    while seen < 800:
        sentence = generator.sentence()
        pair = make_pair(sentence)
        if not settled(sentence, pair.source):  # never written: a doubtful word
            continue
        found = Counter(i.kind for i in instances(pair.annotations()))
        for kind in (*OF_SEVERAL_WORDS, "agreement"):
            found.pop(kind, None)
        assert found == built(sentence), " ".join(pair.source)
        seen += 1


@pytest.mark.parametrize("kind", EDITS)
def test_a_translation_that_is_wrong_in_a_phenomenon_is_wrong_in_an_instance_of_it(kind: str) -> None:
    """The edits of the contrastive items break one phenomenon by construction; gold itself is always right."""
    draw = KeyedRandom(4, "edits", kind)
    generator, seen = Generator(draw), 0
    while seen < 60:
        sentence = generator.with_adverbial() if kind == "pronoun" else generator.sentence()
        pair = make_pair(sentence)
        found = instances(pair.annotations())
        assert all(right(found, pair.target, pair.target))
        if kind == "agreement" and pair.agreements[0].distance == 0:  # not an instance of agreement
            continue
        if kind == "gender" and ("ambiguous" in pair.phenomena or {"who", "that"} & set(pair.source)):
            continue  # the edit may take an ambiguous noun, or show in a relative pronoun alone: no instances of gender
        if not EDITS[kind](sentence, draw):
            continue
        wrong = German()
        wrong.sentence(sentence, len(pair.source) - 1)
        if wrong.words != pair.target:
            marks = right(found, pair.target, wrong.words)
            blamed = [i.kind for i, mark in zip(found, marks, strict=True) if not mark]
            assert kind in blamed, (pair.target, wrong.words)
            seen += 1


@pytest.mark.parametrize(
    ("found", "said", "expected"),
    [
        (instance("idiom", "gibt", "den Löffel ab"), "heute gibt er den Löffel ab .", 1),
        (instance("idiom", "gibt", "den Löffel ab"), "den Löffel ab gibt er .", 0),  # order
        (instance("idiom", "gibt", "den Löffel ab"), "er gibt den alten Löffel ab .", 0),  # a word between
        (instance("idiom", "gibt", "den Löffel ab"), "er gebe den Löffel ab .", 0),  # another form
        (instance("separable", "hebt", "auf"), "er hebt , sie hebt auf auf", 2),
        (instance("separable", "hebt", "auf"), "er hebt auf , sie hebt", 1),
        (instance("gender", "Der Hund", first=True), "heute schläft der Hund", 1),
        (instance("gender", "Der Hund"), "heute schläft der Hund", 0),  # only a sentence's first word may be small
        (instance("gender", "der Hund"), "Der Hund schläft", 1),
        (instance("gender", "der Hund"), "der hund schläft", 0),
        (instance("name", "Anna"), "Annas Hund", 0),
        (instance("verb_final", "weil", "schläft ."), "weil er schläft.", 1),  # a stop without a space
    ],
)
def test_occurrences(found: Instance, said: str, expected: int) -> None:
    assert occurrences(found, words_of(said)) == expected


def test_what_is_missing_is_missing_among_the_instances() -> None:
    gold = words_of("der Hund sieht , dass der Hund schläft .")
    both = [instance("gender", "der Hund")] * 2
    assert right(both, gold, gold) == [True, True]
    assert right(both, gold, words_of("der Hund sieht , dass er schläft .")) == [True, False]
    assert right(both, gold, words_of("er sieht , dass er schläft .")) == [False, False]
    one = both[:1]  # the other one is of no phenomenon: still one too few
    assert right(one, gold, words_of("der Hund sieht , dass er schläft .")) == [False]
    assert right(one, gold, words_of("der Hund , der Hund , der Hund")) == [True]
    mixed = [instance("gender", "Der Hund", first=True), instance("gender", "der Hund")]
    capital = words_of("Der Hund sieht , dass der Hund schläft .")
    assert right(mixed, capital, capital) == [True, True]
    assert right(mixed, capital, words_of("Er sieht , dass der Hund schläft .")) == [True, False]
    nouns = [instance("time", "Heute Abend", first=True), instance("time", "Heute Abend")]
    twice = words_of("Heute Abend , Heute Abend .")
    assert right(nouns, twice, twice) == [True, True]
    assert right(nouns, twice, words_of("Heute Abend , Heute .")) == [True, False]  # one is missing, not two


def made_split(marks: list[int]) -> GoldSplit:
    """Sentences `x y .`, each with as many different idioms as `marks` says."""
    gold = [[*(f"w{i}" for i in range(n)), "."] for n in marks]
    found = [[instance("idiom", f"w{i}") for i in range(n)] for n in marks]
    return GoldSplit(gold, found, [[["idiom"] for _ in some] for some in found])


def test_counts_by_hand() -> None:
    split = made_split([1, 2, 0, 1])
    outputs = {"base": ["w0 .", "w0 x .", ".", "x ."], "other": ["x .", "w0 w1 .", "x", "w0 ."]}
    idiom, sentence = compare_systems(split, outputs, samples=200)
    assert (idiom["phenomenon"], idiom["instances"], idiom["sentences"]) == ("idiom", 4, 3)
    base, other = idiom["systems"]
    assert (base["correct"], base["accuracy"], base["exact_sentences"]) == (2, 0.5, pytest.approx(1 / 3))
    assert (other["correct"], other["won"], other["lost"]) == (3, 2, 1)
    assert other["difference"] == 0.25 and other["p"] == 1.0 and "p" not in base
    assert base["interval"] == list(wilson(2, 4))
    low, high = other["difference_interval"]
    assert -1 <= low < 0.25 < high <= 1
    assert (sentence["phenomenon"], [s["correct"] for s in sentence["systems"]]) == ("sentence", [2, 2])


def test_the_interval_of_a_difference_is_over_sentences() -> None:
    """100 sentences of 4 instances that stand or fall together: twice as wide as instances that are independent."""
    split = made_split([4] * 100)
    right_line, wrong_line = "w0 w1 w2 w3 .", "x ."
    rng = np.random.default_rng(0)
    gets = rng.random(100) < 0.5
    outputs = {"base": [wrong_line] * 100, "other": [right_line if g else wrong_line for g in gets]}
    entry = compare_systems(split, outputs, samples=2000)[0]["systems"][1]
    low, high = entry["difference_interval"]
    assert (high - low) / 2 == pytest.approx(1.96 * 0.5 / 10, rel=0.1)
    assert entry["difference"] == gets.mean()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world") / "out"
    write_world(out, seed=7, train=300, valid=40, test=60, challenge=20, contrastive=11)
    return out


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_a_world_on_disk(world: Path) -> None:
    for name in ("test", "valid", "challenge-idioms", "challenge-long"):
        split = read_world(world, name)
        report = compare_systems(split, {"gold": lines(world / f"{name}.de")}, samples=10)
        assert {g["systems"][0]["accuracy"] for g in report} == {1.0}
        named = Counter(chain.from_iterable(line.split() for line in lines(world / f"{name}.phenomena")))
        assert {g["phenomenon"]: g["sentences"] for g in report if g["phenomenon"] != "sentence"} == named
    assert sum(g["instances"] for g in report if g["phenomenon"] == "sentence") == 20


def test_groups_by_frequency_in_training(world: Path) -> None:
    report = compare_systems(read_world(world, "test", edges=(1, 2, 5)), {"gold": lines(world / "test.de")}, samples=10)
    parts = {g["phenomenon"]: g["instances"] for g in report}
    seen: Counter[str] = Counter()
    for en, phrases in zip(lines(world / "train.en"), lines(world / "train.phrases"), strict=True):
        for item in phrases.split():
            if item.endswith("=compound"):
                start, end = map(int, item.split("-")[0].split(":"))
                seen[" ".join(en.split()[start:end]).lower()] += 1
    expected: Counter[str] = Counter()
    for en, phrases in zip(lines(world / "test.en"), lines(world / "test.phrases"), strict=True):
        for item in phrases.split():
            if item.endswith("=compound"):
                start, end = map(int, item.split("-")[0].split(":"))
                n = seen[" ".join(en.split()[start:end]).lower()]
                label = "0" if n == 0 else "1" if n == 1 else "2–4" if n < 5 else "5+"
                expected[f"compound, {label}× in training"] += 1
    assert {name: n for name, n in parts.items() if name.startswith("compound,")} == expected
    assert len(expected) > 2 and sum(expected.values()) == parts["compound"]
    order = [g["phenomenon"] for g in report]
    assert order.index("idiom") == 0 and order[-1] == "sentence"
    assert [n for n in order if n.startswith("compound")] == ["compound", *sorted(expected)]
    assert not any(name.startswith("gender,") for name in order)


def damaged(world: Path, folder: Path, name: str, text: str | None) -> Path:
    copy = folder / "copy"
    copy.mkdir()
    for path in world.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    if text is None:
        (copy / name).unlink()
    else:
        head, _, rest = (copy / name).read_text(encoding="utf-8").partition("\n")
        assert head != text
        (copy / name).write_text(text + ("\n" + rest if not name.endswith("json") else ""), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("world.json", None, "not a world folder"),
        ("world.json", "[1, 2]", "splits: none"),
        ("test.trees", None, "test.trees"),
        ("test.trees", "(S (NP (DT The)", "test:1: annotation: not a tree"),
        ("test.trees", "(S (DT The))", "test:1: annotation: the tree has 1 word"),
        ("test.align", "0-0 1+1", "test:1: annotation: not a word link: '1+1'"),
        ("test.align", "0-0 1-99", "target word 99"),
        ("test.phrases", "1:2", "test:1: annotation: not a phrase"),
        ("test.phrases", "1:99-0:1=idiom", "source word 98"),
        ("test.agreement", "1-2", "not an agreement"),
        ("test.phrases", "\n", "61 lines"),
    ],
)
def test_worlds_that_cannot_be_read(world: Path, tmp_path: Path, name: str, text: str | None, message: str) -> None:
    folder = damaged(world, tmp_path, name, text)
    with pytest.raises((DataError, FileProblem, UsageError)) as caught:
        read_world(folder, "test")
    assert message in str(caught.value)


def test_requests_that_make_no_sense(world: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no split 'tset'.*challenge-idioms"):
        read_world(world, "tset")
    split = read_world(world, "test")
    with pytest.raises(DataError, match="base has 1 line,"):
        compare_systems(split, {"base": ["x"]})
    with pytest.raises(UsageError, match="at least 1 resample"):
        compare_systems(split, {"base": ["x"] * 60}, samples=0)
    summary = json.loads((world / "world.json").read_text(encoding="utf-8"))
    assert "test" in summary["pairs"]


@pytest.mark.parametrize("line", ["", "(S", "(S (A b)) c)", "(S (A b)) (T (A b))", "S (A b)", "(S (A b) c d)"])
def test_trees_that_are_none(line: str) -> None:
    with pytest.raises(DataError, match="not a tree"):
        parse_tree(line)


def test_trees_and_links() -> None:
    tree = parse_tree("(S (NP (DT The) (NN man)) (VP (VBZ sleeps)) (. .))")
    assert [(n.label, n.start, n.end, n.word) for n in islice(tree.walk(), 4)] == [
        ("S", 0, 4, ""),
        ("NP", 0, 2, ""),
        ("DT", 0, 1, "The"),
        ("NN", 1, 2, "man"),
    ]
    assert parse_links("0-0 1-2") == [(0, 0), (1, 2)] and parse_links("") == []
    for wrong in ("1", "1-", "a-b", "1-2-3", "-1", "1-" + "9" * 5000, "1-٣"):
        with pytest.raises(DataError, match="not a word link"):
            parse_links(wrong)
