"""Generate random sentences as trees of constituents. docs/world.md states the proportions, and tests/world checks them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from phraseloom.world.draw import KeyedRandom, after_preposition, draw_name, goal_pools, verb_pools
from phraseloom.world.grammar import (
    ADVERBIAL,
    BARE,
    BECAUSE,
    COORDINATING,
    IT,
    MODALS,
    PLURAL_DETERMINERS,
    PRONOUNS,
    SINGULAR_DETERMINERS,
    THE,
    A,
    Clause,
    NounPhrase,
    PrepositionalPhrase,
    Pronoun,
    Relative,
    Sentence,
)
from phraseloom.world.lexicon import Lexicon, Noun, Verb, lexicon

MAX_DISTANCE = 20
CONTEXTS = ("plain", "modal", "inverted", "that", "because", "when")
DISTANCE_WEIGHTS = (2.6, *(0.38 * 0.87**d for d in range(MAX_DISTANCE)))
FRAMES = (
    *("idiom",) * 11,
    *("ambiguous",) * 10,
    *("separable",) * 14,
    *("expansion",) * 6,
    *("prepositional",) * 4,
    *("copula",) * 8,
    *("none",) * 7,
    *("acc",) * 22,
    *("dat",) * 6,
    *("both",) * 6,
    *("goal",) * 6,
)
SIMPLE_FRAMES = (*("none",) * 3, *("acc",) * 4, *("separable",) * 2, *("copula",) * 2, "dat", "goal", "idiom")


def held_out_context(idiom_index: int) -> str:
    """The context of this idiom that only the challenge set shows, never training, validation and test."""
    return CONTEXTS[1 + idiom_index % (len(CONTEXTS) - 1)]


@cache
def _idioms_by_context(held_out: bool) -> dict[str, tuple[Verb, ...]]:
    idioms = lexicon().idioms
    return {
        context: tuple(idiom for i, idiom in enumerate(idioms) if (held_out_context(i) == context) == held_out)
        for context in CONTEXTS
    }


class Generator:
    """Generates sentences from a stream of choices. With `challenge_idioms`, idioms are in their held-out context."""

    def __init__(self, draw: KeyedRandom, *, challenge_idioms: bool = False) -> None:
        self.draw = draw
        self.words: Lexicon = lexicon()
        self.challenge_idioms = challenge_idioms
        self.pools = verb_pools()

    # Noun phrases

    def noun_phrase(self, noun: Noun, *, adjective: float = 0.2, plural: float = 0.35) -> NounPhrase:
        """A noun with a determiner and optionally an adjective."""
        draw = self.draw
        many = draw.chance(plural)
        determiner = draw.pick(PLURAL_DETERMINERS if many else SINGULAR_DETERMINERS)
        phrase = NounPhrase(noun, determiner, many)
        if adjective and draw.random() < adjective:
            phrase.adjective = draw.pick(self.words.adjectives_of[noun])
        return phrase

    def located(self, length: int, *, human: bool, plural: float = 0.4) -> PrepositionalPhrase:
        """A prepositional phrase of exactly `length` words (2: a name; 3 and more: preposition, article, noun)."""
        draw = self.draw
        while True:
            preposition, pool = draw.pick(after_preposition())
            remaining = length - len(preposition.english)
            if remaining == 1:
                if human and "human" in preposition.kinds:
                    return PrepositionalPhrase(preposition, NounPhrase(draw_name(draw)))
                continue
            noun = draw.pick(pool)
            needed = 1 + len(noun.english[0])
            if remaining - needed not in (0, 1) or (not human and "human" in noun.kinds):
                continue
            phrase = NounPhrase(noun, THE, draw.chance(plural))
            if remaining - needed == 1:
                phrase.adjective = draw.pick(self.words.adjectives_of[noun])
            return PrepositionalPhrase(preposition, phrase)

    def lengthen(self, phrase: NounPhrase, length: int) -> None:
        """Add exactly `length` words after the head: an adverb, prepositional phrases, a relative clause."""
        draw = self.draw
        head = phrase.head
        assert not isinstance(head, Pronoun)
        if length == 1:
            phrase.place = draw.pick(self.words.adverbs_of["place"])
            return
        human = "human" in head.kinds
        living = human or "animal" in head.kinds
        opposite = 0.25 if phrase.plural else 0.65
        while length and not (living and length <= 12 and draw.chance(0.55) and (human or not phrase.phrases)):
            if length == 2 and phrase.phrases and not draw.chance(0.5) and human:
                break
            size = length if length in (2, 3, 4) else draw.pick([s for s in (3, 4, 5) if length - s not in (1,)])
            phrase.phrases.append(self.located(min(size, length), human=size == length, plural=opposite))
            length -= min(size, length)
        if length:
            phrase.relative = self.relative(phrase, length)

    def relative(self, phrase: NounPhrase, length: int) -> Relative:
        """A relative clause of exactly `length` words, including its pronoun."""
        draw = self.draw
        head = phrase.head
        assert not isinstance(head, Pronoun)
        human = "human" in head.kinds
        kind = "human" if human else "animal"
        pronoun = "who" if human else "that"
        if length >= 4 and not phrase.phrases and draw.chance(0.3):
            clause = Clause(NounPhrase(draw.pick(self.words.by_kind["human"]), THE, draw.chance(0.5)), object=phrase)
            spare = length - 2 - 1 - len(_noun(clause.subject).english[0])
            if spare >= 0:
                clause.verb = self.verb("acc", "human", kind)
                if spare and spare != 1:
                    self.prepositional_chain(clause.subject, spare)
                elif spare:
                    clause.subject.adjective = draw.pick(self.words.adjectives_of[_noun(clause.subject)])
                return Relative(clause, phrase, "object", "that")
        clause = Clause(phrase)
        if length <= 3:
            clause.verb = self.verb("none", kind, "")
            if length == 3:
                clause.adverb = draw.pick(self.words.adverbs_of["frequency"])
            return Relative(clause, phrase, "subject", pronoun)
        clause.verb = self.verb("acc", kind, "")
        while True:
            noun = draw.pick(self.pools[clause.verb][1])
            spare = length - 3 - len(noun.english[0])
            if spare >= 0:
                break
        many = draw.chance(0.5)
        clause.object = NounPhrase(noun, THE, many)
        if spare == 1 or self.clashes(clause.verb, noun):
            if spare == 0:
                return self.relative(phrase, length)
            clause.object.adjective = draw.pick(self.words.adjectives_of[noun])
            spare -= 1
        if spare == 1:
            clause.adverb = draw.pick(self.words.adverbs_of["frequency"])
        elif spare:
            self.prepositional_chain(clause.object, spare)
        return Relative(clause, phrase, "subject", pronoun)

    def prepositional_chain(self, phrase: NounPhrase, length: int) -> None:
        """Add prepositional phrases of `length` words (2 or more) after a head."""
        while length:
            size = length if length in (2, 3, 4) else self.draw.pick([s for s in (3, 4, 5) if length - s != 1])
            phrase.phrases.append(self.located(size, human=True))
            length -= size

    def verb(self, frame: str, subject: str, target: str) -> Verb:
        """A one-word English verb of a frame with this kind of subject (and of object, if given)."""
        while True:
            verb = self.draw.pick(self.words.verbs_of_frame[frame])
            if verb.tail or subject not in verb.subjects or verb.label == "expansion":
                continue
            if not target or target in verb.objects:
                return verb

    def clashes(self, verb: Verb, noun: Noun) -> bool:
        """Whether verb and noun are words of an idiom, so that a literal use needs an adjective to differ from it."""
        return (verb.english, noun.english[0][-1]) in self.words.idiom_pairs or (
            verb.english,
            noun.english[1][-1],
        ) in self.words.idiom_pairs

    def subject(self, pool: Sequence[Noun], distance: int) -> NounPhrase:
        """A subject with `distance` words after its head; with distance 0 it may be a pronoun or a name."""
        draw = self.draw
        noun = draw.pick(pool)
        if distance == 0 and "human" in noun.kinds:
            point = draw.random()
            if point < 0.18:
                return NounPhrase(draw.pick(PRONOUNS))
            if point < 0.32:
                return NounPhrase(draw_name(draw))
        phrase = self.noun_phrase(noun, adjective=0.2 if distance < 6 else 0.0)
        if distance:
            self.lengthen(phrase, distance)
        return phrase

    def target(self, verb: Verb, *, heavy: bool) -> NounPhrase:
        """The object of a verb; with `heavy` it may have a prepositional phrase."""
        draw = self.draw
        noun = draw.pick(self.pools[verb][1])
        if "human" in noun.kinds and not verb.tail:
            point = draw.random()
            if point < 0.12:
                return NounPhrase(draw.pick(PRONOUNS[2:4] + PRONOUNS[5:]))
            if point < 0.3:
                return NounPhrase(draw_name(draw))
        phrase = self.noun_phrase(noun)
        if self.clashes(verb, noun):
            phrase.adjective = phrase.adjective or draw.pick(self.words.adjectives_of[noun])
        if heavy and draw.chance(0.1):
            phrase.phrases.append(self.located(draw.pick((3, 4)), human=False))
        return phrase

    # Clauses

    def clause(self, context: str, distance: int, *, frames: Sequence[str] = FRAMES) -> Clause:
        """A clause in a context (one of CONTEXTS), with `distance` words between its subject and its verb."""
        draw = self.draw
        frame = draw.pick(frames)
        if frame == "idiom":
            clause = self.idiom(context, distance)
        elif frame == "ambiguous":
            clause = self.ambiguous(distance)
        elif frame == "copula":
            subject = self.subject(self.words.nouns, distance)
            fitting = self.words.adjectives_of[self.words.by_kind["human"][0]]
            if isinstance(subject.head, Noun) and subject.head.gender:
                fitting = self.words.adjectives_of[subject.head]
            clause = Clause(subject, predicate=draw.pick(fitting))
        else:
            clause = self.verbal(draw.pick(self.words.verbs_of_frame[frame]), distance)
        if context == "modal":
            living = isinstance(clause.subject.head, Pronoun) or clause.subject.head.kinds & {"human", "animal"}
            clause.modal = draw.pick(MODALS if living else MODALS[:3])
        self.adverbs(clause, context, distance)
        return clause

    def adverbs(self, clause: Clause, context: str, distance: int) -> None:
        """Add an optional adverb and negation; "inverted" always has a fronted adverb of time."""
        draw = self.draw
        words = self.words.adverbs_of
        times = words["time"] if clause.verb else words["time"][:5]  # nothing is small immediately
        if context == "inverted":
            clause.adverb, clause.fronted = draw.pick(times), True
        elif draw.chance(0.22):
            kinds = ["time"] + (["frequency"] if distance < MAX_DISTANCE else [])
            if clause.verb and clause.verb.frame in ("acc", "goal") and clause.verb.label in ("", "separable"):
                kinds.append("manner")
            kind = draw.pick(kinds)
            clause.adverb = draw.pick(times if kind == "time" else words[kind])
        plain = clause.verb is None or clause.verb.label in ("", "separable")
        definite = clause.object is None or clause.object.determiner.style in ("definite", "bare")
        definite = definite and (clause.object is None or not clause.object.plural or clause.object.determiner is THE)
        if plain and definite and not clause.receiver and not clause.modal and draw.chance(0.1):
            never = clause.adverb is not None and clause.adverb.kind == "frequency"
            clause.negated = not never and distance + 2 <= MAX_DISTANCE

    def verbal(self, verb: Verb, distance: int) -> Clause:
        """A clause of an ordinary verb with its objects."""
        draw = self.draw
        clause = Clause(self.subject(self.pools[verb][0], distance), verb)
        heavy = distance < 6
        if verb.frame == "both":
            people = self.words.by_kind["human"]
            receiver = NounPhrase(draw.pick(PRONOUNS[2:4])) if draw.chance(0.25) else None
            receiver = receiver or self.noun_phrase(draw.pick(people), adjective=0.15)
            clause.receiver = receiver if draw.chance(0.85) else NounPhrase(draw_name(draw))
        if verb.objects:
            clause.object = self.target(verb, heavy=heavy and verb.frame != "both")
        elif verb.frame == "goal" or (verb.frame == "none" and not verb.label and heavy and draw.chance(0.35)):
            preposition, pool = draw.pick(goal_pools()) if verb.frame == "goal" else draw.pick(after_preposition()[:7])
            goal = self.noun_phrase(draw.pick(pool))
            clause.phrases.append(PrepositionalPhrase(preposition, goal))
        return clause

    def idiom(self, context: str, distance: int) -> Clause:
        """A clause with an idiom that is allowed in this context; its subject is a person (or barks)."""
        choices = _idioms_by_context(self.challenge_idioms)[context]
        if not choices:
            raise ValueError(f"no idiom is held out in the context {context!r}")
        idiom = self.draw.pick(choices)
        return Clause(self.subject(self.words.by_kind["human"], distance), idiom)

    def ambiguous(self, distance: int) -> Clause:
        """A clause with an ambiguous noun and a cue that disambiguates it: an adjective or a prepositional phrase."""
        draw = self.draw
        sense = draw.pick(draw.pick(tuple(self.words.ambiguous.values())))
        cue, place = draw.pick(sense.cues)
        phrase = NounPhrase(sense, draw.pick((THE, THE, A)), draw.chance(0.3))
        if phrase.plural and phrase.determiner is A:
            phrase.determiner = BARE
        at_place = self.cue(phrase, cue, place)
        if distance == 0 and at_place and cue != "for" and draw.chance(0.4):
            return Clause(phrase, phrases=[at_place])
        if at_place:
            phrase.phrases.append(at_place)
        verb = draw.pick(tuple(v for v in self.words.verbs_of_frame["acc"] if v.english in ("see", "find", "seek")))
        return Clause(self.subject(self.words.by_kind["human"], distance), verb, object=phrase)

    def cue(self, phrase: NounPhrase, cue: str, place: str) -> PrepositionalPhrase | None:
        """Add the cue to the phrase if it is an adjective; return it if it is a prepositional phrase, else None."""
        if not place:
            phrase.adjective = next(a for a in self.words.adjectives if a.english == cue)
            return None
        preposition = next(p for p in self.words.prepositions if p.english == (cue,))
        noun = next(n for n in self.words.nouns if n.english[0] == (place,))
        return PrepositionalPhrase(preposition, NounPhrase(noun, THE))

    # Sentences

    def distance(self) -> int:
        """A random number of words after the head of a subject: 0 to 20, small numbers more often."""
        return self.draw.weighted(DISTANCE_WEIGHTS)

    def sentence(self) -> Sentence:
        """A sentence of the corpus: one clause, two clauses, or two coordinated sentences."""
        draw = self.draw
        point = draw.random()
        if point < 0.74:
            context = CONTEXTS[int(draw.random() * 2.6) % 3]
            distance = self.distance()
            return Sentence(self.clause(context, distance, frames=FRAMES if distance < 9 else SIMPLE_FRAMES))
        if point < 0.82:
            return Sentence(self.reporting(self.clause("that", min(self.distance(), 6))))
        if point < 0.95:
            return self.with_adverbial()
        sentence = Sentence(self.clause("plain", 0, frames=SIMPLE_FRAMES))
        sentence.more.append((draw.pick(COORDINATING), Sentence(self.clause("plain", 0, frames=SIMPLE_FRAMES))))
        return sentence

    def reporting(self, complement: Clause) -> Clause:
        """A clause of saying or thinking with its complement."""
        verb = self.draw.pick(self.words.verbs_of_frame["that"])
        return Clause(self.subject(self.pools[verb][0], 0), verb, complement=complement)

    def with_adverbial(self) -> Sentence:
        """A main clause with "because", "when" or "although"; "it" refers to the subject of the main clause."""
        draw = self.draw
        conjunction = draw.pick(ADVERBIAL)
        context = "when" if conjunction.english == "when" else "because"
        first = draw.chance(0.4)
        main = self.clause("plain", min(self.distance(), 4), frames=SIMPLE_FRAMES[:-1] if first else SIMPLE_FRAMES)
        head = main.subject.head
        if isinstance(head, Noun) and not main.subject.plural and "human" not in head.kinds and not first:
            reason = draw.pick(self.words.adjectives_of[head])
            adverbial = Clause(NounPhrase(IT[head.gender]), predicate=reason)
            return Sentence(main, BECAUSE, adverbial)
        adverbial = self.clause(context, 0 if draw.chance(0.7) else 3, frames=(*SIMPLE_FRAMES, "idiom", "separable"))
        return Sentence(main, conjunction, adverbial, adverbial_first=first)

    def long_sentence(self) -> Sentence:
        """A sentence longer than any in training: several coordinated sentences."""
        sentence = self.sentence()
        while sentence.more:
            sentence = self.sentence()
        for _ in range(self.draw.pick((2, 3, 3, 4))):
            other = self.sentence()
            while other.more:
                other = self.sentence()
            sentence.more.append((self.draw.pick(COORDINATING), other))
        return sentence

    def agreement_sentence(self, distance: int) -> Sentence:
        """A single main clause with `distance` words after the head of its subject."""
        context = self.draw.pick(("plain", "plain", "inverted", "modal"))
        return Sentence(self.clause(context, distance, frames=SIMPLE_FRAMES))

    def idiom_sentence(self) -> Sentence:
        """A sentence with an idiom (with `challenge_idioms`, in the context that training never shows)."""
        draw = self.draw
        context = draw.pick(CONTEXTS[1:] if self.challenge_idioms else CONTEXTS)
        clause = self.clause(context, draw.pick((0, 0, 0, 3, 4)), frames=("idiom",))
        if context == "that":
            return Sentence(self.reporting(clause))
        if context in ("because", "when"):
            main = self.clause("plain", 0, frames=("none", "acc", "copula", "dat"))
            conjunction = ADVERBIAL[1] if context == "when" else draw.pick((ADVERBIAL[0], ADVERBIAL[2]))
            return Sentence(main, conjunction, clause, adverbial_first=draw.chance(0.4))
        return Sentence(clause)


def _noun(phrase: NounPhrase) -> Noun:
    assert not isinstance(phrase.head, Pronoun)
    return phrase.head
