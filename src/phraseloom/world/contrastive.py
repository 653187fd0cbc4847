"""Contrastive items: the correct translation of a sentence, and one with an error in a single phenomenon.

Each phenomenon is an edit of the tree that keeps the English and changes one thing in the German, which is then realised
again. So by construction the wrong translation has exactly one error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from phraseloom.world.draw import KeyedRandom
from phraseloom.world.english import English
from phraseloom.world.generator import MAX_DISTANCE, Generator
from phraseloom.world.german import German
from phraseloom.world.grammar import IT, Clause, NounPhrase, Pronoun, Sentence, all_clauses, all_noun_phrases
from phraseloom.world.lexicon import Noun, Verb, lexicon
from phraseloom.world.pair import make_pair, split_of, verb_senses
from phraseloom.world.sampling import LONGEST, settled


@dataclass(frozen=True, slots=True)
class Contrast:
    """A contrastive item. `distance` is the number of words between subject head and verb (agreement only, else None);
    `tree` is that of the source."""

    phenomenon: str
    distance: int | None
    source: str
    correct: str
    wrong: str
    tree: str


def _third_person(clause: Clause) -> bool:
    return not isinstance(clause.subject.head, Pronoun)


def agreement(sentence: Sentence, draw: KeyedRandom) -> bool:
    """The main verb in the other number."""
    main = sentence.main
    if not _third_person(main):
        return False
    main.forced_plural = not main.subject.many
    return True


def _heads(sentence: Sentence) -> Iterator[tuple[NounPhrase, Noun]]:
    for phrase in all_noun_phrases(sentence):
        if isinstance(phrase.head, Noun):
            yield phrase, phrase.head


def gender(sentence: Sentence, draw: KeyedRandom) -> bool:
    """Article and adjective of a noun in another gender."""
    pairs = [
        pair
        for pair in _heads(sentence)
        if pair[1].gender and not pair[0].plural and pair[0].determiner.style in ("definite", "ein", "dies")
    ]
    if not pairs:
        return False
    phrase, noun = draw.pick(pairs)
    phrase.head = replace(noun, gender=draw.pick([g for g in "mfn" if g != noun.gender]))
    return True


def case(sentence: Sentence, draw: KeyedRandom) -> bool:
    """An accusative object in the dative, or a dative object in the accusative."""
    objects = []
    for clause in all_clauses(sentence):
        if clause.object and clause.verb and not clause.verb.preposition and not clause.object.relative:
            objects.append((clause.object, "acc" if clause.verb.frame == "dat" else "dat"))
        if clause.receiver:
            objects.append((clause.receiver, "acc"))
    if not objects:
        return False
    phrase, wrong = draw.pick(objects)
    phrase.forced_case = wrong
    return True


def _edit_verb(
    sentence: Sentence, draw: KeyedRandom, matches: Callable[[Clause], bool], edit: Callable[[Verb], Verb]
) -> bool:
    candidates = [clause for clause in all_clauses(sentence) if clause.verb and matches(clause)]
    if not candidates:
        return False
    clause = draw.pick(candidates)
    assert clause.verb
    clause.verb = edit(clause.verb)
    return True


def idiom(sentence: Sentence, draw: KeyedRandom) -> bool:
    """An idiom translated word for word."""
    return _edit_verb(sentence, draw, lambda c: bool(c.verb and c.verb.literal), lambda verb: verb.literal or verb)


def expansion(sentence: Sentence, draw: KeyedRandom) -> bool:
    """A light verb without its companion words."""
    return _edit_verb(
        sentence, draw, lambda c: bool(c.verb and c.verb.label == "expansion"), lambda verb: replace(verb, companion=())
    )


def separable(sentence: Sentence, draw: KeyedRandom) -> bool:
    """A separable verb of the main clause that is not separated."""
    main = sentence.main
    if not main.verb or main.verb.label != "separable" or main.modal:
        return False
    main.verb = replace(main.verb, german=main.verb.german.joined())
    return True


def verb_final(sentence: Sentence, draw: KeyedRandom) -> bool:
    """A subordinate clause with the word order of a main clause."""
    candidates = [clause for clause in all_clauses(sentence) if clause.at_that >= 0]
    if not candidates:
        return False
    draw.pick(candidates).forced_second = True
    return True


def compound(sentence: Sentence, draw: KeyedRandom) -> bool:
    """Another compound of the same gender instead of the correct one; if possible, one that shares a word."""
    pairs = [pair for pair in _heads(sentence) if pair[1].label == "compound"]
    if not pairs:
        return False
    phrase, noun = draw.pick(pairs)
    words = set(noun.english[0])
    others = [n for n in lexicon().nouns if n.label and n.gender == noun.gender and n is not noun]
    sharing = [n for n in others if not words.isdisjoint(n.english[0])]
    phrase.head = replace(noun, german=draw.pick(sharing or others).german)
    return True


def ambiguous(sentence: Sentence, draw: KeyedRandom) -> bool:
    """The other translation of a word that the sentence disambiguates."""
    nouns = [pair for pair in _heads(sentence) if pair[1].cues]
    senses = verb_senses()
    verbs = [c for c in all_clauses(sentence) if c.verb and c.verb in senses.get(c.verb.english, ())]
    if not nouns and not verbs:
        return False
    if nouns:
        phrase, noun = draw.pick(nouns)
        phrase.head = next(s for s in lexicon().ambiguous[noun.lemma] if s is not noun)
        return True
    clause = draw.pick(verbs)
    assert clause.verb
    clause.verb = draw.pick([v for v in senses[clause.verb.english] if v is not clause.verb])
    return True


def pronoun(sentence: Sentence, draw: KeyedRandom) -> bool:
    """ "it" in a gender that its antecedent does not have."""
    for phrase in all_noun_phrases(sentence):
        head = phrase.head
        if isinstance(head, Pronoun) and head.english[0] == "it":
            phrase.head = draw.pick([other for other in IT.values() if other is not head])
            return True
    return False


def name(sentence: Sentence, draw: KeyedRandom) -> bool:
    """A name with two adjacent letters swapped."""
    pairs = [pair for pair in _heads(sentence) if not pair[1].gender and len(set(pair[1].lemma[1:])) > 1]
    if not pairs:
        return False
    phrase, noun = draw.pick(pairs)
    letters = list(noun.lemma)
    swaps = [i for i in range(1, len(letters) - 1) if letters[i] != letters[i + 1]]
    if not swaps:
        return False
    i = draw.pick(swaps)
    letters[i], letters[i + 1] = letters[i + 1], letters[i]
    forms = dict.fromkeys(("nom", "acc", "dat"), "".join(letters))
    phrase.head = replace(noun, german=(forms, forms))
    return True


EDITS: dict[str, Callable[[Sentence, KeyedRandom], bool]] = {
    "agreement": agreement,
    "ambiguous": ambiguous,
    "case": case,
    "compound": compound,
    "expansion": expansion,
    "gender": gender,
    "idiom": idiom,
    "name": name,
    "pronoun": pronoun,
    "separable": separable,
    "verb_final": verb_final,
}


def contrast(sentence: Sentence, english: English, phenomenon: str, draw: KeyedRandom) -> Contrast | None:
    """The item of a sentence for a phenomenon, or None if the sentence does not show it. Modifies the tree."""
    pair = make_pair(sentence, english)
    distance = pair.agreements[0].distance if phenomenon == "agreement" else None
    if not EDITS[phenomenon](sentence, draw):
        return None
    wrong = German()
    wrong.sentence(sentence, len(english.words) - 1)
    if wrong.words == pair.target:
        return None
    source, correct, wrong_text = (" ".join(words) for words in (pair.source, pair.target, wrong.words))
    return Contrast(phenomenon, distance, source, correct, wrong_text, pair.tree)


def contrasts(seed: int, per_phenomenon: int) -> Iterator[Contrast]:
    """`per_phenomenon` items of each phenomenon in alphabetical order; agreement is spread evenly over distances 0 to 20.

    Sources are sentences that only a test set can have (see `pair.split_of`).
    """
    for phenomenon in EDITS:
        draw = KeyedRandom(seed, "contrastive", phenomenon)
        generator = Generator(draw)
        seen: set[str] = set()
        distances = [None] * per_phenomenon if phenomenon != "agreement" else _spread(per_phenomenon)
        for distance in distances:
            while True:
                sentence = _sentence(generator, phenomenon, distance)
                english = English()
                english.sentence(sentence)
                source = " ".join(english.words)
                if source in seen or split_of(source) != "test" or len(english.words) > LONGEST:
                    continue
                if not settled(sentence, english.words):
                    continue
                item = contrast(sentence, english, phenomenon, draw)
                if item and item.distance == distance:
                    break
            seen.add(source)
            yield item


def _spread(count: int) -> list[int | None]:
    return [i % (MAX_DISTANCE + 1) for i in range(count)]


def _sentence(generator: Generator, phenomenon: str, distance: int | None) -> Sentence:
    if phenomenon == "agreement":
        assert distance is not None
        return generator.agreement_sentence(distance)
    if phenomenon == "idiom":
        return generator.idiom_sentence()
    if phenomenon == "pronoun":
        return generator.with_adverbial()
    return generator.sentence()
