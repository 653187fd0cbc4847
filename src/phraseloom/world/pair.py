"""A sentence pair with its gold annotation, from a tree of constituents, and the file formats of the annotation."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from phraseloom.errors import DataError
from phraseloom.world.english import English
from phraseloom.world.german import German
from phraseloom.world.grammar import Clause, Pronoun, Sentence, all_clauses, all_noun_phrases
from phraseloom.world.lexicon import Verb, lexicon

PHRASE = re.compile(r"(\d+):(\d+)-(\d+:\d+(?:,\d+:\d+)*)=([a-z]+)")
AGREEMENT = re.compile(r"(\d+)-(\d+)/(\d+)-(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class GoldPhrase:
    """A unit of several words: a half-open source span, one or more half-open target spans, and its kind."""

    source: tuple[int, int]
    target: tuple[tuple[int, int], ...]
    label: str

    def __str__(self) -> str:
        spans = ",".join(f"{start}:{end}" for start, end in self.target)
        return f"{self.source[0]}:{self.source[1]}-{spans}={self.label}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """A subject and its finite verb: the positions of head and verb on both sides."""

    source_head: int
    source_verb: int
    target_head: int
    target_verb: int

    @property
    def distance(self) -> int:
        """The number of source words between head and verb."""
        return self.source_verb - self.source_head - 1

    def __str__(self) -> str:
        return f"{self.source_head}-{self.source_verb}/{self.target_head}-{self.target_verb}:{self.distance}"


@dataclass(slots=True, eq=False)
class Pair:
    """Source and target words with alignment (source, target), source tree, phrases, agreements and phenomena."""

    source: list[str]
    target: list[str]
    alignment: list[tuple[int, int]]
    tree: str
    phrases: list[GoldPhrase]
    agreements: list[Agreement]
    phenomena: list[str]

    @property
    def fertilities(self) -> list[int]:
        """The number of target words linked to each source word."""
        counts = [0] * len(self.source)
        for i, _ in self.alignment:
            counts[i] += 1
        return counts

    def annotations(self) -> dict[str, str]:
        """The line for each file of a split, by its extension."""
        return {
            "en": " ".join(self.source),
            "de": " ".join(self.target),
            "align": " ".join([f"{i}-{j}" for i, j in self.alignment]),
            "trees": self.tree,
            "phrases": " ".join([str(phrase) for phrase in self.phrases]),
            "fertility": " ".join([str(count) for count in self.fertilities]),
            "agreement": " ".join([str(agreement) for agreement in self.agreements]),
            "phenomena": " ".join(self.phenomena),
        }


def join_pairs(pairs: Sequence[Pair]) -> Pair:
    """Concatenate pairs: words in order, all positions of annotation shifted, trees under one root."""
    joined = Pair([], [], [], "", [], [], [])
    for pair in pairs:
        s, t = len(joined.source), len(joined.target)
        joined.alignment += [(i + s, j + t) for i, j in pair.alignment]
        joined.phrases += [
            GoldPhrase((p.source[0] + s, p.source[1] + s), tuple((a + t, b + t) for a, b in p.target), p.label)
            for p in pair.phrases
        ]
        joined.agreements += [
            Agreement(a.source_head + s, a.source_verb + s, a.target_head + t, a.target_verb + t)
            for a in pair.agreements
        ]
        joined.source += pair.source
        joined.target += pair.target
    joined.tree = pairs[0].tree if len(pairs) == 1 else f"(TOP {' '.join(pair.tree for pair in pairs)})"
    joined.phenomena = sorted({name for pair in pairs for name in pair.phenomena})
    return joined


def split_of(source: str) -> str:
    """The split of a source sentence, from its checksum, so that no sentence is in two splits for any seed."""
    bucket = zlib.crc32(source.encode("utf-8")) & 7
    return "test" if bucket == 0 else "valid" if bucket == 1 else "train"


def _spans(positions: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for position in sorted(positions):
        if spans and spans[-1][1] == position:
            spans[-1] = (spans[-1][0], position + 1)
        else:
            spans.append((position, position + 1))
    return tuple(spans)


def make_pair(sentence: Sentence, english: English | None = None) -> Pair:
    """Realise a sentence in both languages. `english` may hold its finished English."""
    if english is None:
        english = English()
        english.sentence(sentence)
    german = German()
    german.sentence(sentence, len(english.words) - 1)
    alignment = sorted({(i, j) for j, links in enumerate(german.links) for i in links})
    phrases = sorted(
        (
            GoldPhrase((min(source), max(source) + 1), _spans(target), label)
            for label, source, target in german.phrases
            if len(source) > 1 or len(target) > 1
        ),
        key=lambda phrase: phrase.source,
    )
    clauses = list(all_clauses(sentence))
    agreements = [
        Agreement(clause.subject.at_head[-1], clause.at_finite, clause.subject.target_head, clause.target_finite)
        for clause in clauses
    ]
    return Pair(
        english.words,
        german.words,
        alignment,
        english.tree,
        phrases,
        agreements,
        _phenomena(sentence, clauses, phrases, agreements),
    )


def _phenomena(
    sentence: Sentence, clauses: list[Clause], phrases: list[GoldPhrase], agreements: list[Agreement]
) -> list[str]:
    """The names of the phenomena that a sentence shows, in alphabetical order."""
    names = {phrase.label for phrase in phrases}
    if any(agreement.distance > 0 for agreement in agreements):
        names.add("agreement")
    senses = verb_senses()
    for clause in clauses:
        if clause.at_that >= 0:
            names.add("verb_final")
        if clause.object or clause.receiver:
            names.add("case")
        if clause.verb and clause.verb in senses.get(clause.verb.english, ()):
            names.add("ambiguous")
    for phrase in all_noun_phrases(sentence):
        head = phrase.head
        if isinstance(head, Pronoun):
            if head.english[0] == "it":
                names.add("pronoun")
        elif not head.gender:
            names.add("name")
        elif head.cues:
            names.add("ambiguous")
        elif phrase.determiner.style not in ("bare", "plain"):
            names.add("gender")
    return sorted(names)


@cache
def verb_senses() -> dict[str, tuple[Verb, ...]]:
    """The German translations of each English verb whose object decides between several."""
    senses: dict[str, list[Verb]] = {}
    for verb in lexicon().verbs:
        if verb.frame == "acc" and not verb.tail and not verb.label:
            senses.setdefault(verb.english, []).append(verb)
    return {english: tuple(verbs) for english, verbs in senses.items() if len(verbs) > 1}


def parse_phrases(line: str) -> list[GoldPhrase]:
    """Read one line of a `.phrases` file. Raises DataError."""
    names = []
    for item in line.split():
        match = PHRASE.fullmatch(item)
        if not match:
            raise DataError(f"not a phrase: {item!r}", hint="a phrase is s1:s2-t1:t2=kind")
        spans = tuple(tuple(int(n) for n in span.split(":")) for span in match[3].split(","))
        names.append(GoldPhrase((int(match[1]), int(match[2])), tuple((s[0], s[1]) for s in spans), match[4]))
    return names


def parse_agreements(line: str) -> list[Agreement]:
    """Read one line of an `.agreement` file. Raises DataError."""
    names = []
    for item in line.split():
        match = AGREEMENT.fullmatch(item)
        if not match:
            raise DataError(f"not an agreement: {item!r}", hint="an agreement is s-v/s'-v':distance")
        names.append(Agreement(*(int(match[k]) for k in range(1, 5))))
    return names
