"""Constituents: the tree of a sentence, which is realised in both languages.

A sentence is a tree of the feature structures below. `english.py` realises it in English order and records the source
positions of the words in each constituent. `german.py` realises it in German order and links every word to those positions. So
the gold alignment, phrases and agreement are exact by construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from phraseloom.world.lexicon import Adjective, Adverb, Noun, Preposition, Verb
from phraseloom.world.morphology import VerbForms, conjugate


@dataclass(frozen=True, slots=True, eq=False)
class Pronoun:
    """A personal pronoun: subject and object form in English, three cases in German."""

    english: tuple[str, str]
    german: dict[str, str]
    person: int
    plural: bool


def _pronoun(subject: str, english_object: str, german: str, person: int, plural: bool) -> Pronoun:
    return Pronoun(
        (subject, english_object), dict(zip(("nom", "acc", "dat"), german.split(), strict=True)), person, plural
    )


PRONOUNS = (
    _pronoun("I", "me", "ich mich mir", 1, False),
    _pronoun("you", "you", "du dich dir", 2, False),
    _pronoun("he", "him", "er ihn ihm", 3, False),
    _pronoun("she", "her", "sie sie ihr", 3, False),
    _pronoun("we", "us", "wir uns uns", 1, True),
    _pronoun("they", "them", "sie sie ihnen", 3, True),
)
IT = {
    "m": _pronoun("it", "it", "er ihn ihm", 3, False),
    "f": _pronoun("it", "it", "sie sie ihr", 3, False),
    "n": _pronoun("it", "it", "es es ihm", 3, False),
}


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """A determiner: English word ("" if there is none), Penn tag, German stem, and the style of its endings.

    `style` is "definite", "ein" (mixed adjective), "dies" (weak adjective), "plain" (strong adjective) or "bare".
    """

    english: str
    tag: str
    german: str
    style: str


THE = Determiner("the", "DT", "", "definite")
A = Determiner("a", "DT", "ein", "ein")
BARE = Determiner("", "", "", "bare")
SINGULAR_DETERMINERS = (
    *(THE,) * 8,
    *(A,) * 5,
    Determiner("this", "DT", "dies", "dies"),
    Determiner("every", "DT", "jed", "dies"),
    Determiner("my", "PRP$", "mein", "ein"),
    Determiner("your", "PRP$", "dein", "ein"),
    Determiner("our", "PRP$", "unser", "ein"),
)
PLURAL_DETERMINERS = (
    *(THE,) * 7,
    *(BARE,) * 2,
    Determiner("these", "DT", "dies", "dies"),
    Determiner("my", "PRP$", "mein", "ein"),
    Determiner("your", "PRP$", "dein", "ein"),
    Determiner("two", "CD", "zwei", "plain"),
    Determiner("three", "CD", "drei", "plain"),
    Determiner("many", "JJ", "viele", "plain"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """A modal verb; `to` is true for "want to"."""

    english: str
    third: str
    german: VerbForms
    to: bool = False


MODALS = (
    Modal("can", "can", conjugate("können")),
    Modal("must", "must", conjugate("müssen")),
    Modal("should", "should", conjugate("sollen")),
    Modal("want", "wants", conjugate("wollen"), to=True),
)


@dataclass(frozen=True, slots=True, eq=False)
class Conjunction:
    """A conjunction; `kind` is "that", "adverbial" (verb-final in German) or "and" (verb second)."""

    english: str
    german: str
    kind: str


THAT = Conjunction("that", "dass", "that")
ADVERBIAL = (
    Conjunction("because", "weil", "adverbial"),
    Conjunction("when", "wenn", "adverbial"),
    Conjunction("although", "obwohl", "adverbial"),
)
BECAUSE = ADVERBIAL[0]
COORDINATING = (Conjunction("and", "und", "and"), Conjunction("but", "aber", "and"))


@dataclass(slots=True, eq=False)
class NounPhrase:
    """Determiner, adjective, head and its modifiers. `at_*` are source positions, `target_head` is a target position.

    `forced_case` overrides the case that the context requires (a contrastive edit).
    """

    head: Noun | Pronoun
    determiner: Determiner = BARE
    plural: bool = False
    adjective: Adjective | None = None
    place: Adverb | None = None
    phrases: list[PrepositionalPhrase] = field(default_factory=list)
    relative: Relative | None = None
    forced_case: str = ""
    at_determiner: int = -1
    at_adjective: int = -1
    at_head: tuple[int, ...] = ()
    at_place: int = -1
    target_head: int = -1

    @property
    def person(self) -> int:
        """1, 2 or 3."""
        return self.head.person if isinstance(self.head, Pronoun) else 3

    @property
    def many(self) -> bool:
        """Whether the verb must be plural."""
        return self.head.plural if isinstance(self.head, Pronoun) else self.plural


@dataclass(slots=True, eq=False)
class PrepositionalPhrase:
    """A preposition and its noun phrase."""

    preposition: Preposition
    phrase: NounPhrase
    at: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Clause:
    """A clause. `predicate` is the adjective after "be"; if `verb` is None the verb is "be".

    `forced_plural` and `forced_second` (verb second instead of final) are contrastive edits. `at_verb` has the positions of
    the English verb and its tail, `at_finite` that of the finite English word (modal, do, be, verb).
    """

    subject: NounPhrase
    verb: Verb | None = None
    predicate: Adjective | None = None
    modal: Modal | None = None
    negated: bool = False
    adverb: Adverb | None = None
    fronted: bool = False
    receiver: NounPhrase | None = None
    object: NounPhrase | None = None
    phrases: list[PrepositionalPhrase] = field(default_factory=list)
    complement: Clause | None = None
    forced_plural: bool | None = None
    forced_second: bool = False
    at_verb: tuple[int, ...] = ()
    at_finite: int = -1
    at_modal: tuple[int, ...] = ()
    at_not: tuple[int, ...] = ()
    at_adverb: int = -1
    at_that: int = -1
    target_finite: int = -1


@dataclass(slots=True, eq=False)
class Relative:
    """A relative clause; its antecedent is the subject or the object of the clause (`gap`)."""

    clause: Clause
    antecedent: NounPhrase
    gap: str
    pronoun: str
    at: int = -1


@dataclass(slots=True, eq=False)
class Sentence:
    """A main clause, optionally with an adverbial clause before or after it and coordinated sentences after it."""

    main: Clause
    conjunction: Conjunction | None = None
    adverbial: Clause | None = None
    adverbial_first: bool = False
    more: list[tuple[Conjunction, Sentence]] = field(default_factory=list)
    at_conjunction: int = -1
    at_comma: int = -1


def noun_phrases(phrase: NounPhrase) -> Iterator[NounPhrase]:
    """This noun phrase and all noun phrases inside it, including relative clauses."""
    yield phrase
    for inner in phrase.phrases:
        yield from noun_phrases(inner.phrase)
    if phrase.relative:
        for clause in clauses(phrase.relative.clause):
            yield from noun_phrases_of(clause, skip=phrase)


def noun_phrases_of(clause: Clause, skip: NounPhrase | None = None) -> Iterator[NounPhrase]:
    """The noun phrases of a clause (not of its complement); `skip` is the antecedent outside the clause."""
    outer = [clause.subject, clause.receiver, clause.object, *(p.phrase for p in clause.phrases)]
    for phrase in outer:
        if phrase is not None and phrase is not skip:
            yield from noun_phrases(phrase)


def clauses(clause: Clause) -> Iterator[Clause]:
    """A clause and its complement clauses, outermost first, without relative clauses, which belong to noun phrases."""
    yield clause
    if clause.complement:
        yield from clauses(clause.complement)


def all_clauses(sentence: Sentence) -> Iterator[Clause]:
    """Every clause of a sentence, including relative clauses, main clause first."""
    tops = [sentence.main] + ([sentence.adverbial] if sentence.adverbial else [])
    for top in tops:
        for clause in clauses(top):
            yield clause
            for phrase in noun_phrases_of(clause):
                if phrase.relative:
                    yield phrase.relative.clause
    for _, other in sentence.more:
        yield from all_clauses(other)


def all_noun_phrases(sentence: Sentence) -> Iterator[NounPhrase]:
    """Every noun phrase of a sentence, each once."""
    tops = [sentence.main] + ([sentence.adverbial] if sentence.adverbial else [])
    for top in tops:
        for clause in clauses(top):
            yield from noun_phrases_of(clause)
    for _, other in sentence.more:
        yield from all_noun_phrases(other)
