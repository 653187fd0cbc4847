"""German sentences built by hand come out as a German would write them."""

from __future__ import annotations

import pytest

from phraseloom.world.grammar import (
    ADVERBIAL,
    MODALS,
    PRONOUNS,
    THE,
    A,
    Clause,
    NounPhrase,
    PrepositionalPhrase,
    Relative,
    Sentence,
)
from phraseloom.world.lexicon import Adjective, Noun, Verb, lexicon
from phraseloom.world.pair import make_pair


def noun(word: str) -> Noun:
    return next(n for n in lexicon().nouns if n.lemma == word)


def verb(word: str, german: str) -> Verb:
    found = (*lexicon().verbs, *lexicon().idioms)
    return next(v for v in found if v.english == word and v.german.particle + v.german.infinitive == german)


def adjective(word: str) -> Adjective:
    return next(a for a in lexicon().adjectives if a.english == word)


def the(word: str, plural: bool = False, adj: str = "") -> NounPhrase:
    return NounPhrase(noun(word), THE, plural, adjective(adj) if adj else None)


def a(word: str, adj: str = "") -> NounPhrase:
    return NounPhrase(noun(word), A, adjective=adjective(adj) if adj else None)


def preposition(english: str, german: str, phrase: NounPhrase) -> PrepositionalPhrase:
    found = lexicon().prepositions
    return PrepositionalPhrase(next(p for p in found if " ".join(p.english) == english and p.german == german), phrase)


def test_separable_verb_in_three_orders() -> None:
    def clause() -> Clause:
        return Clause(the("man"), verb("pick", "aufheben"), object=a("hat", "red"))

    pair = make_pair(Sentence(clause()))
    assert " ".join(pair.source) == "The man picks up a red hat ."
    assert " ".join(pair.target) == "Der Mann hebt einen roten Hut auf ."
    assert pair.alignment == [(0, 0), (1, 1), (2, 2), (3, 6), (4, 3), (5, 4), (6, 5), (7, 7)]
    assert [str(phrase) for phrase in pair.phrases] == ["2:4-2:3,6:7=separable"]
    modal = clause()
    modal.modal = MODALS[3]
    assert " ".join(make_pair(Sentence(modal)).target) == "Der Mann will einen roten Hut aufheben ."
    late = Sentence(Clause(the("woman"), verb("sleep", "schlafen")), ADVERBIAL[0], clause())
    assert " ".join(make_pair(late).target) == "Die Frau schläft , weil der Mann einen roten Hut aufhebt ."
    early = Sentence(Clause(the("woman"), verb("sleep", "schlafen")), ADVERBIAL[1], clause(), adverbial_first=True)
    assert " ".join(make_pair(early).source) == "When the man picks up a red hat , the woman sleeps ."
    assert " ".join(make_pair(early).target) == "Wenn der Mann einen roten Hut aufhebt , schläft die Frau ."


def test_relative_clause_and_contraction() -> None:
    subject = the("dog", plural=True)
    inner = Clause(subject, verb("see", "sehen"), object=the("prince"))
    subject.relative = Relative(inner, subject, "subject", "that")
    pair = make_pair(
        Sentence(Clause(subject, verb("sleep", "schlafen"), phrases=[preposition("in", "in", the("house"))]))
    )
    assert " ".join(pair.source) == "The dogs that see the prince sleep in the house ."
    assert " ".join(pair.target) == "Die Hunde , die den Prinzen sehen , schlafen im Haus ."
    assert [str(item) for item in pair.agreements] == ["1-6/1-8:4", "1-3/1-6:1"]
    assert pair.tree == (
        "(S (NP (NP (DT The) (NNS dogs)) (SBAR (WHNP (WDT that)) (S (VP (VBP see) (NP (DT the) (NN prince))))))"
        " (VP (VBP sleep) (PP (IN in) (NP (DT the) (NN house)))) (. .))"
    )


@pytest.mark.parametrize(
    ("clause", "target"),
    [
        (Clause(the("man"), verb("kick", "abgeben")), "Der Mann gibt den Löffel ab ."),
        (Clause(the("boy"), verb("kick", "treten"), object=a("bucket", "big")), "Der Junge tritt einen großen Eimer ."),
        (Clause(NounPhrase(PRONOUNS[0]), verb("decide", "treffen")), "Ich treffe eine Entscheidung ."),
        (Clause(NounPhrase(PRONOUNS[1]), verb("fear", "haben"), object=the("wolf")), "Du hast Angst vor dem Wolf ."),
        (Clause(the("boy"), verb("help", "helfen"), object=the("horse", True)), "Der Junge hilft den Pferden ."),
        (
            Clause(the("king"), verb("give", "geben"), receiver=the("woman"), object=a("apple")),
            "Der König gibt der Frau einen Apfel .",
        ),
        (
            Clause(the("king"), verb("give", "geben"), receiver=NounPhrase(PRONOUNS[2]), object=a("egg", "fresh")),
            "Der König gibt ihm ein frisches Ei .",
        ),
        (Clause(the("cat"), predicate=adjective("tired"), negated=True), "Die Katze ist nicht müde ."),
        (Clause(the("cat"), verb("see", "sehen"), object=the("dog"), negated=True), "Die Katze sieht den Hund nicht ."),
        (Clause(the("taxi driver"), verb("go", "gehen"), phrases=[preposition("into", "in", the("post office"))]),
         "Der Taxifahrer geht ins Postamt ."),
        (Clause(the("taxi driver"), verb("go", "gehen"), phrases=[preposition("to", "zu", a("school", "old"))]),
         "Der Taxifahrer geht zu einer alten Schule ."),
    ],
)  # fmt: skip
def test_clauses(clause: Clause, target: str) -> None:
    assert " ".join(make_pair(Sentence(clause)).target) == target
