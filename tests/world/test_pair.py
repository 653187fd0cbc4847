"""Every generated pair carries gold truth that is true, checked by readers that share no code with the generator."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.errors import DataError
from phraseloom.world.generator import MAX_DISTANCE
from phraseloom.world.lexicon import lexicon
from phraseloom.world.pair import Pair, parse_agreements, parse_phrases, split_of
from phraseloom.world.sampling import LONGEST, distinct_pairs, train_pairs

SHARES = {  # the smallest share of sentences that shows a phenomenon, as docs/world.md states it
    "agreement": 0.30,
    "ambiguous": 0.08,
    "case": 0.45,
    "compound": 0.20,
    "expansion": 0.15,
    "gender": 0.60,
    "idiom": 0.06,
    "name": 0.10,
    "pronoun": 0.008,
    "separable": 0.12,
    "verb_final": 0.12,
}


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return list(train_pairs(3, 6000))


def leaves(tree: str) -> list[str]:
    """The leaves of one bracketed tree, which must be well formed."""
    depth = 0
    for bracket in re.findall(r"[()]", tree):
        depth += 1 if bracket == "(" else -1
        assert depth >= 0
    assert depth == 0 and tree.startswith("(S ")
    assert re.fullmatch(r"(?:\([A-Z$.,]+ (?:[^() ]+\))?|\)| )+", tree), tree
    return re.findall(r"\([^() ]+ ([^() ]+)\)", tree)


def check_alignment(pair: Pair) -> None:
    for i, j in pair.alignment:
        assert 0 <= i < len(pair.source) and 0 <= j < len(pair.target)
    assert len(set(pair.alignment)) == len(pair.alignment)
    sources, targets = {i for i, _ in pair.alignment}, {j for _, j in pair.alignment}
    assert sources == set(range(len(pair.source))), pair.source
    assert all(j in targets or word == "," for j, word in enumerate(pair.target)), pair.target


def check_phrases(pair: Pair) -> None:
    for phrase in pair.phrases:
        inside = {j for start, end in phrase.target for j in range(start, end)}
        for i, j in pair.alignment:
            assert (phrase.source[0] <= i < phrase.source[1]) == (j in inside), (phrase, pair.source, pair.target)
        assert parse_phrases(str(phrase)) == [phrase]


def number_tables() -> tuple[dict[str, bool], dict[str, bool], dict[str, bool]]:
    """English heads, English verbs, German finite verbs → whether plural; forms of both numbers are left out."""
    words = lexicon()
    nouns = [*words.nouns, *(sense for senses in words.ambiguous.values() for sense in senses)]
    heads = {noun.english[number][-1]: bool(number) for noun in nouns for number in (0, 1)}
    heads |= dict.fromkeys(("he", "she", "it"), False) | dict.fromkeys(("they", "we"), True)
    verbs = [*words.verbs, *words.idioms]
    english = {v.third: False for v in verbs} | {v.english: True for v in verbs}
    english |= {"does": False, "do": True, "is": False, "are": True, "wants": False, "want": True}
    german: dict[str, bool] = {}
    for verb in verbs:
        particle = verb.german.particle
        for prefix in {"", particle}:
            german |= {prefix + verb.german.third: False, prefix + verb.german.plural: True}
    modals = "kann muss soll will ist", "können müssen sollen wollen sind"
    german |= dict.fromkeys(modals[0].split(), False) | dict.fromkeys(modals[1].split(), True)
    return heads, english, german


def check_agreement(pair: Pair, tables: tuple[dict[str, bool], dict[str, bool], dict[str, bool]]) -> None:
    heads, english, german = tables
    for item in pair.agreements:
        head = pair.source[item.source_head].lower()
        verb, said = pair.source[item.source_verb], pair.target[item.target_verb].lower()
        assert str(item).endswith(f":{item.source_verb - item.source_head - 1}")
        if head in ("i", "you"):
            assert verb not in ("does", "is", "wants") and said not in ("ist", "sind", "will" * (head == "you"))
            continue
        plural = heads.get(head, False)  # what is in no table is a name
        assert english.get(verb, plural) == plural, (pair.source, item)
        assert said in german and german[said] == plural, (pair.target, item)
        assert (item.source_verb, item.target_verb) in pair.alignment or verb in ("do", "does")


def check(pair: Pair) -> None:
    assert leaves(pair.tree) == pair.source
    check_alignment(pair)
    check_phrases(pair)
    assert pair.fertilities == [Counter(i for i, _ in pair.alignment)[i] for i in range(len(pair.source))]
    assert parse_agreements(" ".join(map(str, pair.agreements))) == pair.agreements
    assert all("  " not in line and "\n" not in line for line in pair.annotations().values())


def test_gold_truth_is_true(pairs: list[Pair]) -> None:
    tables = number_tables()
    for pair in pairs:
        check(pair)
        check_agreement(pair, tables)
        assert pair.source[0][0].isupper() and pair.target[0][0].isupper()
        assert (pair.source[-1], pair.target[-1]) == (".", ".") and len(pair.source) <= LONGEST


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**63), st.sampled_from(["train", "valid", "test", "challenge-long", "challenge-idioms"]))
def test_gold_truth_is_true_for_every_seed(seed: int, split: str) -> None:
    tables = number_tables()
    stream = train_pairs(seed, 4) if split == "train" else distinct_pairs(seed, split, 4)
    for pair in stream:
        check(pair)
        check_agreement(pair, tables)


def test_every_phenomenon_has_its_share(pairs: list[Pair]) -> None:
    counts = Counter(name for pair in pairs for name in pair.phenomena)
    assert set(counts) == set(SHARES)
    assert {n: counts[n] / len(pairs) for n in SHARES if counts[n] < SHARES[n] * len(pairs)} == {}


def test_all_distances_occur_and_the_short_ones_most(pairs: list[Pair]) -> None:
    counts = Counter(item.distance for pair in pairs for item in pair.agreements[:1])
    assert {d for d in counts if d >= 0} == set(range(MAX_DISTANCE + 1))
    assert counts[0] > counts[3] > counts[20]


def test_lengths_are_moderate(pairs: list[Pair]) -> None:
    assert 9 <= sum(len(pair.source) for pair in pairs) / len(pairs) <= 12.5


def test_idioms_and_their_words_alone(pairs: list[Pair]) -> None:
    lines = [" ".join(pair.source).lower() for pair in pairs]
    assert any("kick the bucket" in line or "kicks the bucket" in line for line in lines)
    for line, pair in zip(lines, pairs, strict=True):
        if re.search(r"\bkicks? the bucket\b", line):
            assert "Löffel" in pair.target and "idiom" in pair.phenomena
        elif re.search(r"\bbuckets?\b", line):
            assert "Eimer" in " ".join(pair.target)


def test_one_source_has_one_target(pairs: list[Pair]) -> None:
    targets: dict[str, str] = {}
    for pair in pairs:
        source, target = " ".join(pair.source), " ".join(pair.target)
        assert targets.setdefault(source, target) == target


def test_unseen_names_are_rare_but_there(pairs: list[Pair]) -> None:
    def names(pair: Pair) -> set[str]:
        return set(re.findall(r"\(NNP ([^()]+)\)", pair.tree))

    seen = {name for pair in pairs for name in names(pair)}
    test = list(distinct_pairs(3, "test", 500))
    share = sum(not names(pair) <= seen for pair in test) / len(test)
    assert 0.01 <= share <= 0.10
    for pair in test:
        assert names(pair) <= set(pair.target)


def test_splits_share_no_sentence(pairs: list[Pair]) -> None:
    train = {" ".join(pair.source) for pair in pairs}
    for split in ("valid", "test", "challenge-long", "challenge-idioms"):
        sources = [" ".join(pair.source) for pair in distinct_pairs(4, split, 60)]
        assert len(set(sources)) == 60 and not train & set(sources)
        assert {split_of(source) for source in sources} == {split if split in ("valid", "test") else "test"}


def test_long_challenge_is_longer_than_training() -> None:
    assert all(len(pair.source) > LONGEST for pair in distinct_pairs(1, "challenge-long", 40))


@pytest.mark.parametrize("line", ["1:2", "1:2-3:4", "a:b-c:d=idiom", "1:2-3:4=idiom;"])
def test_a_broken_phrase_is_refused(line: str) -> None:
    with pytest.raises(DataError, match="not a phrase"):
        parse_phrases(line)


def test_a_broken_agreement_is_refused() -> None:
    with pytest.raises(DataError, match="not an agreement"):
        parse_agreements("1-2:3")
