"""Contrastive items: the wrong translation differs from the right one, in the phenomenon it is named for."""

from __future__ import annotations

from collections import Counter

import pytest

from phraseloom.world.contrastive import EDITS, Contrast, contrasts
from phraseloom.world.lexicon import lexicon
from phraseloom.world.pair import split_of


@pytest.fixture(scope="module")
def items() -> list[Contrast]:
    return list(contrasts(5, 42))


def changed(item: Contrast) -> list[tuple[str, str]]:
    correct, wrong = item.correct.split(), item.wrong.split()
    return [pair for pair in zip(correct, wrong, strict=True) if pair[0] != pair[1]]


def of(items: list[Contrast], phenomenon: str) -> list[Contrast]:
    return [item for item in items if item.phenomenon == phenomenon]


def test_all_phenomena_and_distances(items: list[Contrast]) -> None:
    assert Counter(item.phenomenon for item in items) == dict.fromkeys(EDITS, 42)
    assert Counter(item.distance for item in of(items, "agreement")) == dict.fromkeys(range(21), 2)
    assert all(item.correct != item.wrong and split_of(item.source) == "test" for item in items)


def test_agreement_changes_one_verb_form_to_the_other_number(items: list[Contrast]) -> None:
    verbs = [*(v.german for v in (*lexicon().verbs, *lexicon().idioms))]
    numbers = {(v.third, v.plural) for v in verbs} | {("ist", "sind"), ("kann", "können"), ("muss", "müssen")}
    numbers |= {("soll", "sollen"), ("will", "wollen")}
    for item in of(items, "agreement"):
        [(right, wrong)] = changed(item)
        assert (right.lower(), wrong.lower()) in numbers or (wrong.lower(), right.lower()) in numbers


def test_gender_and_case_change_articles_and_adjectives_only(items: list[Contrast]) -> None:
    for item in of(items, "gender") + of(items, "case"):
        if item.wrong.count(" ") == item.correct.count(" "):
            for right, wrong in changed(item):
                assert right[0].lower() == wrong[0].lower()


def letters(text: str) -> list[str]:
    """The letters of a text in order of the alphabet: equal for texts that differ in word order and commas only."""
    return sorted(text.lower().replace(" ", "").replace(",", ""))


def test_word_order_items_keep_the_letters(items: list[Contrast]) -> None:
    for item in of(items, "separable") + of(items, "verb_final"):
        assert letters(item.wrong) == letters(item.correct)
    for item in of(items, "separable"):
        assert len(item.wrong.replace(" ,", "").split()) == len(item.correct.replace(" ,", "").split()) - 1


def test_words_are_exchanged_for_others(items: list[Contrast]) -> None:
    for item in of(items, "name"):
        [(right, wrong)] = changed(item)
        assert right != wrong and sorted(right.lower()) == sorted(wrong.lower()) and right in item.source.split()
    for item in of(items, "pronoun"):
        [(right, wrong)] = changed(item)
        assert {right, wrong} <= {"er", "sie", "es"}
    for item in of(items, "expansion"):
        assert len(item.wrong) < len(item.correct)
