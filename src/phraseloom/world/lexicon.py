"""The lexicon of the built-in language pair: typed entries from the tables of nouns, verbs and idioms."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache

from phraseloom.world import idioms, nouns, verbs
from phraseloom.world.morphology import VerbForms, conjugate, dative_plural, weak_singular

GENDERS = {"der": "m", "die": "f", "das": "n"}
FUNCTION_WORDS = 40  # determiners, pronouns, modals, conjunctions: counted in `Lexicon.num_lemmas`


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun of both languages: words by number on the English side, words by number and case on the German one.

    `gender` is "m", "f", "n", or "" for a name. `label` is "compound" if several English words are one German word.
    """

    english: tuple[tuple[str, ...], tuple[str, ...]]
    german: tuple[dict[str, str], dict[str, str]]
    gender: str
    kinds: frozenset[str]
    label: str = ""
    cues: tuple[tuple[str, str], ...] = ()

    @property
    def lemma(self) -> str:
        """The English singular."""
        return " ".join(self.english[0])


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective: the English word, the German predicate form, and the stem that takes endings."""

    english: str
    german: str
    stem: str
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Adverb:
    """An adverb: one English word, one or several German words; `kind` is time, frequency, manner or place."""

    english: str
    german: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Preposition:
    """A preposition, the German case that it governs, and the kinds or nouns that may follow it."""

    english: tuple[str, ...]
    german: str
    case: str
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb, phrasal verb, light verb or idiom.

    `tail` has one tuple per word after the English verb: opening brackets, tag, word, closing brackets
    (" (PRT", "RP", "up", ")"). The links of a German word name English words: 0 is the verb, 1 … the words of the tail.
    `companion` has the other German words, each with its links. `label` is "", "separable", "expansion" or "idiom".
    """

    english: str
    third: str
    tail: tuple[tuple[str, str, str, str], ...]
    german: VerbForms
    links: tuple[int, ...]
    particle_links: tuple[int, ...]
    companion: tuple[tuple[str, tuple[int, ...]], ...]
    label: str
    frame: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    preposition: str = ""
    literal: Verb | None = None


def _noun_forms(singular: str, plural: str, weak: bool) -> tuple[dict[str, str], dict[str, str]]:
    oblique = weak_singular(singular) if weak else singular
    return (
        {"nom": singular, "acc": oblique, "dat": oblique},
        {"nom": plural, "acc": plural, "dat": dative_plural(plural)},
    )


def _columns(line: str) -> list[str]:
    return [column.strip() for column in line.split("|")]


def _noun(english: tuple[tuple[str, ...], tuple[str, ...]], german: str, plural: str, kinds: str, label: str) -> Noun:
    article, _, singular = german.partition(" ")
    kind_set = set(kinds.split())
    weak = "weak" in kind_set
    return Noun(english, _noun_forms(singular, plural, weak), GENDERS[article], frozenset(kind_set - {"weak"}), label)


def _nouns() -> list[Noun]:
    entries = []
    for line in nouns.NOUNS.strip().split("\n"):
        english, german, plural, kinds = _columns(line)
        one, many = english.split()
        entries.append(_noun(((one,), (many,)), german, plural, kinds, ""))
    return entries


def _compounds() -> list[Noun]:
    entries = []
    for line in nouns.COMPOUNDS.strip().split("\n"):
        english, german, plural, kinds = _columns(line)
        words = tuple(english.split())
        last = words[-1]
        irregular = {"knife": "knives", "officer": "officers", "watchman": "watchmen"}
        many = irregular.get(last) or last + ("es" if last.endswith(("s", "x", "ch")) else "s")
        many = last[:-1] + "ies" if last.endswith("y") else many
        entries.append(_noun((words, (*words[:-1], many)), german, plural, kinds, "compound"))
    return entries


def _ambiguous() -> dict[str, tuple[Noun, ...]]:
    """The senses of each ambiguous English word. Senses are things: one sees, finds or draws them."""
    senses: dict[str, list[Noun]] = defaultdict(list)
    for line in nouns.AMBIGUOUS.strip().split("\n"):
        english, german, plural, cues = _columns(line)
        one, many = english.split()
        weak = " weak" if german == "der Buchstabe" else ""
        noun = _noun(((one,), (many,)), german, plural, "sense" + weak, "")
        pairs = tuple((cue.partition(":")[0], cue.partition(":")[2]) for cue in cues.split())
        senses[one].append(replace(noun, cues=pairs))
    return {word: tuple(entries) for word, entries in senses.items()}


def _verb(line: str) -> Verb:
    english, german, companion, frame, kinds = _columns(line)
    base, third, *particle = english.split()
    subjects, _, objects = kinds.partition(">")
    infinitive, _, changed = german.partition(" ")
    forms = conjugate(infinitive, changed)
    tag = "RP" if particle and particle[0] not in ("to", "by") else "IN"
    tail = ((" (PRT", tag, particle[0], ")"),) if particle else ()
    words = () if companion == "-" else tuple((word, (0,)) for word in companion.split())
    label = "separable" if forms.particle else "expansion" if words else ""
    preposition, _, case = frame.rpartition(":")
    joined = (0, 1) if particle else (0,)
    return Verb(
        base,
        third,
        tail,
        forms,
        (0,) if forms.particle else joined,
        (1,) if particle else (0,),
        words,
        label,
        case,
        tuple(subjects.split()),
        tuple(objects.split()),
        preposition,
    )


def _idiom_words(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    pairs = (item.rpartition(":") for item in text.split())
    return tuple((word, tuple(int(i) for i in links.split("+"))) for word, _, links in pairs)


def _idioms(third: dict[str, str]) -> list[Verb]:
    lines = idioms.IDIOMS.strip().split("\n")
    entries = []
    for english, idiomatic, literal in zip(lines[0::3], lines[1::3], lines[2::3], strict=True):
        base, tree = _columns(english)
        tail = tuple(
            ("".join(f" {label}" for label in opening.split()), tag, word, closing)
            for opening, tag, word, closing in re.findall(r"((?:\(\w+ )*)\((\w+) (\w+)\)(\)*)", tree)
        )
        variants: list[Verb] = []
        for line in (literal, idiomatic):
            german, companion = _columns(line)
            infinitive, _, changed = german.partition(" ")
            forms = conjugate(infinitive, changed)
            entry = Verb(
                base, third[base], tail, forms, (0,), (0,), _idiom_words(companion), "idiom", "none", ("human",), ()
            )
            variants.append(replace(entry, literal=variants[0]) if variants else entry)
        if max(link for _, links in variants[1].companion for link in links) != len(tail):
            raise ValueError(f"idiom {english!r}: its links do not reach its last word")
        entries.append(variants[1])
    return entries


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """All entries, with the pools that the generator draws from."""

    nouns: tuple[Noun, ...]
    ambiguous: dict[str, tuple[Noun, ...]]
    verbs: tuple[Verb, ...]
    idioms: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    adverbs: tuple[Adverb, ...]
    prepositions: tuple[Preposition, ...]
    first_names: tuple[str, ...]
    by_kind: dict[str, tuple[Noun, ...]]
    verbs_of_frame: dict[str, tuple[Verb, ...]]
    adjectives_of: dict[Noun, tuple[Adjective, ...]]
    adverbs_of: dict[str, tuple[Adverb, ...]]
    idiom_pairs: frozenset[tuple[str, str]]

    @property
    def num_lemmas(self) -> int:
        """The number of English lemmas: an ambiguous word counts once; idioms and names do not count."""
        words = {noun.lemma for noun in self.nouns if not noun.label} | set(self.ambiguous)
        words |= {word for noun in self.nouns if noun.label for word in noun.english[0]}
        words |= {verb.english for verb in self.verbs} | {a.english for a in self.adjectives}
        words |= {a.english for a in self.adverbs}
        return len(words) + FUNCTION_WORDS

    def pool(self, kinds: tuple[str, ...]) -> tuple[Noun, ...]:
        """The nouns of any of these kinds ("=word" is one noun), each once, in the order of the tables."""
        names = {kind[1:] for kind in kinds if kind.startswith("=")}
        return tuple(n for n in self.nouns if n.lemma in names or not n.kinds.isdisjoint(kinds))


def _words(table: str) -> list[list[str]]:
    return [_columns(line) for line in table.strip().split("\n")]


@cache
def lexicon() -> Lexicon:
    """The lexicon, built at the first call (about 10 ms)."""
    all_nouns = tuple(_nouns() + _compounds())
    senses = _ambiguous()
    all_verbs = tuple(_verb(line) for line in verbs.VERBS.strip().split("\n"))
    all_idioms = tuple(_idioms({verb.english: verb.third for verb in all_verbs} | {"drop": "drops"}))
    adjectives = []
    for english, german, kinds in _words(verbs.ADJECTIVES):
        base, _, stem = german.partition(" ")
        adjectives.append(Adjective(english, base, stem or base.removesuffix("e"), frozenset(kinds.split())))
    adverbs = [Adverb(english, tuple(german.split()), kind) for english, german, kind in _words(verbs.ADVERBS)]
    prepositions = [
        Preposition(tuple(english.split()), german, case, frozenset(kinds.split()))
        for english, german, case, kinds in _words(verbs.PREPOSITIONS)
    ]
    by_kind: dict[str, list[Noun]] = defaultdict(list)
    for noun in all_nouns:
        for kind in sorted(noun.kinds):
            by_kind[kind].append(noun)
    frames: dict[str, list[Verb]] = defaultdict(list)
    for verb in all_verbs:
        frames["prepositional" if verb.preposition else verb.frame].append(verb)
        if verb.label:
            frames[verb.label].append(verb)
    everyone = (*all_nouns, *(sense for entries in senses.values() for sense in entries))
    pairs = {(idiom.english, word) for idiom in all_idioms for _, _, word, _ in idiom.tail}
    return Lexicon(
        all_nouns,
        senses,
        all_verbs,
        all_idioms,
        tuple(adjectives),
        tuple(adverbs),
        tuple(prepositions),
        tuple(verbs.FIRST_NAMES.split()),
        {kind: tuple(entries) for kind, entries in by_kind.items()},
        {frame: tuple(entries) for frame, entries in frames.items()},
        {n: tuple(a for a in adjectives if "any" in a.kinds or not a.kinds.isdisjoint(n.kinds)) for n in everyone},
        {kind: tuple(a for a in adverbs if a.kind == kind) for kind in ("time", "frequency", "manner", "place")},
        frozenset(pairs),
    )


def name_noun(name: str) -> Noun:
    """A personal name as a noun: the same word in both languages, in every case."""
    forms = dict.fromkeys(("nom", "acc", "dat"), name)
    return Noun(((name,), (name,)), (forms, forms), "", frozenset({"human", "name"}))
