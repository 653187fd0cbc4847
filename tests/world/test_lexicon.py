"""The lexicon is large enough and consistent; the morphology is regular German."""

from __future__ import annotations

import pytest

from phraseloom.world.lexicon import lexicon
from phraseloom.world.morphology import conjugate, dative_plural, weak_singular


def test_at_least_400_lemmas() -> None:
    assert lexicon().num_lemmas >= 400
    assert len(lexicon().idioms) >= 35
    assert len(lexicon().ambiguous) >= 20


@pytest.mark.parametrize(
    ("infinitive", "changed", "forms"),
    [
        ("sehen", "sieh", "sehe siehst sieht sehen"),
        ("arbeiten", "", "arbeite arbeitest arbeitet arbeiten"),
        ("zeichnen", "", "zeichne zeichnest zeichnet zeichnen"),
        ("öffnen", "", "öffne öffnest öffnet öffnen"),
        ("lernen", "", "lerne lernst lernt lernen"),
        ("wohnen", "", "wohne wohnst wohnt wohnen"),
        ("wechseln", "", "wechsle wechselst wechselt wechseln"),
        ("ändern", "", "ändere änderst ändert ändern"),
        ("halten", "hält", "halte hältst hält halten"),
        ("beißen", "", "beiße beißt beißt beißen"),
        ("sein", "", "bin bist ist sind"),
        ("ein+laden", "läd", "lade lädst lädt laden"),
    ],
)
def test_conjugation(infinitive: str, changed: str, forms: str) -> None:
    verb = conjugate(infinitive, changed)
    assert [verb.finite(1, False), verb.finite(2, False), verb.finite(3, False), verb.finite(3, True)] == forms.split()


def test_particle_and_nouns() -> None:
    verb = conjugate("auf+heben")
    assert (verb.particle, verb.third, verb.joined().third, verb.joined().particle) == ("auf", "hebt", "aufhebt", "")
    assert [dative_plural(p) for p in ("Männer", "Frauen", "Autos")] == ["Männern", "Frauen", "Autos"]
    assert [weak_singular(n) for n in ("Junge", "Soldat")] == ["Jungen", "Soldaten"]


def test_every_entry_can_be_used() -> None:
    words = lexicon()
    for verb in words.verbs:
        for kind in (*verb.subjects, *verb.objects):
            assert words.pool((kind,)), (verb.english, kind)
    assert all(words.adjectives_of[noun] for noun in words.nouns)


def test_each_idiom_is_made_of_words_that_also_stand_alone() -> None:
    words = lexicon()
    alone = {form for noun in words.nouns for number in noun.english for form in number}
    alone |= {adjective.english for adjective in words.adjectives} | {verb.english for verb in words.verbs}
    for idiom in words.idioms:
        assert idiom.english in alone
        assert all(word in alone for _, tag, word, _ in idiom.tail if tag in ("NN", "NNS", "JJ")), idiom.tail
        assert (idiom.literal and idiom.literal.companion != idiom.companion) or idiom.literal.german.infinitive


def test_senses_are_settled_by_known_words_that_belong_to_one_sense() -> None:
    words = lexicon()
    known = {noun.lemma for noun in words.nouns} | {adjective.english for adjective in words.adjectives}
    for senses in words.ambiguous.values():
        assert len(senses) == 2 and senses[0].german[0]["nom"] != senses[1].german[0]["nom"]
        first, second = ({place or cue for cue, place in sense.cues} for sense in senses)
        assert first and second and not first & second and first | second <= known
