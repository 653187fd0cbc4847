"""Realise a sentence in German: words in German order, each linked to the source positions that it translates.

Field model: forefield, finite verb, [subject], pronouns, adverb of time, dative, accusative, negation, adverb of manner,
prepositional phrases, companion of the verb, particle or infinitive; in subordinate clauses the finite verb is last. Use it
after `english.py`, which records the source positions.
"""

from __future__ import annotations

from phraseloom.world import morphology
from phraseloom.world.grammar import Clause, NounPhrase, PrepositionalPhrase, Pronoun, Relative, Sentence
from phraseloom.world.morphology import CONTRACTIONS, conjugate

SEIN = conjugate("sein")
Links = tuple[int, ...]
Phrase = tuple[str, Links, tuple[int, ...]]
ADJECTIVE_ENDINGS = {
    "definite": morphology.WEAK_ADJECTIVE,
    "dies": morphology.WEAK_ADJECTIVE,
    "ein": morphology.MIXED_ADJECTIVE,
    "plain": morphology.STRONG_ADJECTIVE,
    "bare": morphology.STRONG_ADJECTIVE,
}


class German:
    """Builds one German sentence: `words`, the `links` of each word, and `phrases` with (label, source positions, target
    positions) of every idiom, compound, separable verb and expansion."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.links: list[Links] = []
        self.phrases: list[Phrase] = []
        self._comma: Links | None = None

    def word(self, text: str, links: Links) -> int:
        """Add a word, after a pending comma; return its position."""
        if self._comma is not None:
            comma, self._comma = self._comma, None
            if text != "." and self.words:
                self.words.append(",")
                self.links.append(comma)
        position = len(self.words)
        if not position:
            text = text[0].upper() + text[1:]
        self.words.append(text)
        self.links.append(links)
        return position

    def comma(self, links: Links = ()) -> None:
        """Add a comma before the next word, unless the sentence ends."""
        self._comma = links or self._comma or ()

    def sentence(self, sentence: Sentence, stop: int) -> None:
        """Add a whole sentence; `stop` is the source position of the full stop."""
        self.body(sentence)
        for conjunction, other in sentence.more:
            if conjunction.german == "aber":
                self.comma((other.at_conjunction - 1,))
            self.word(conjunction.german, (other.at_conjunction,))
            self.body(other)
        self.word(".", (stop,))

    def body(self, sentence: Sentence) -> None:
        """The main clause with its adverbial clause; after an adverbial clause the verb comes before the subject."""
        adverbial = sentence.adverbial
        if adverbial and sentence.adverbial_first:
            self.subordinate(sentence)
            self.comma((sentence.at_comma,))
        self.clause(sentence.main, "inverted" if adverbial and sentence.adverbial_first else "second")
        if adverbial and not sentence.adverbial_first:
            self.subordinate(sentence)

    def subordinate(self, sentence: Sentence) -> None:
        """An adverbial clause with its conjunction."""
        assert sentence.conjunction and sentence.adverbial
        self.final_clause(sentence.conjunction.german, sentence.adverbial)

    def final_clause(self, conjunction: str, clause: Clause) -> None:
        """A subordinate clause between commas, with the verb at its end."""
        self.comma()
        self.word(conjunction, (clause.at_that,))
        self.clause(clause, "second" if clause.forced_second else "final")
        self.comma()

    def clause(self, clause: Clause, order: str, relative: Relative | None = None) -> None:
        """A clause with the verb "second", "inverted" (the forefield is occupied) or "final"."""
        if clause.fronted and order == "second":
            self.adverb(clause)
            order = "inverted"
        if order == "inverted":
            self.finite(clause)
            self.subject(clause, relative)
        else:
            self.subject(clause, relative)
            if order == "second":
                self.finite(clause)
        self.middle(clause, relative)
        self.right_bracket(clause, order == "final")
        if clause.complement:
            self.final_clause("dass", clause.complement)

    def subject(self, clause: Clause, relative: Relative | None) -> None:
        """The subject, or the relative pronoun that replaces it or the object."""
        if relative:
            antecedent = relative.antecedent
            column = "p" if antecedent.plural else getattr(antecedent.head, "gender", "m")
            self.word(morphology.RELATIVE["nom" if relative.gap == "subject" else "acc"][column], (relative.at,))
        if not relative or relative.gap != "subject":
            self.noun_phrase(clause.subject, "nom")

    def _number(self, clause: Clause) -> tuple[int, bool]:
        subject = clause.subject
        return subject.person, subject.many if clause.forced_plural is None else clause.forced_plural

    def finite(self, clause: Clause) -> None:
        """The finite verb before the middle field; its particle follows in the right bracket."""
        person, plural = self._number(clause)
        if clause.modal:
            clause.target_finite = self.word(clause.modal.german.finite(person, plural), clause.at_modal)
        elif clause.verb is None:
            clause.target_finite = self.word(SEIN.finite(person, plural), clause.at_verb[:1])
        else:
            clause.target_finite = self.word(clause.verb.german.finite(person, plural), self._links(clause, "stem"))

    def _links(self, clause: Clause, part: str) -> Links:
        assert clause.verb
        verb = clause.verb
        chosen = {"stem": verb.links, "particle": verb.particle_links}.get(part)
        if chosen is None:  # stem and particle in one word
            chosen = tuple(sorted({*verb.links, *verb.particle_links})) if verb.german.particle else verb.links
        return tuple(clause.at_verb[i] for i in chosen)

    def middle(self, clause: Clause, relative: Relative | None) -> None:
        """The middle field and the companion of the verb."""
        gone = relative is not None and relative.gap == "object"
        target = None if gone else clause.object
        case = clause.verb.frame if clause.verb and clause.verb.frame in ("acc", "dat") else "acc"
        prepositional = clause.verb is not None and bool(clause.verb.preposition)
        if target and isinstance(target.head, Pronoun) and not prepositional:
            self.noun_phrase(target, case)
            target = None
        if clause.receiver and isinstance(clause.receiver.head, Pronoun):
            self.noun_phrase(clause.receiver, "dat")
        if clause.adverb and clause.adverb.kind != "manner" and not clause.fronted:
            self.adverb(clause)
        if clause.receiver and not isinstance(clause.receiver.head, Pronoun):
            self.noun_phrase(clause.receiver, "dat")
        if target and not prepositional:
            self.noun_phrase(target, case)
        if clause.negated:
            self.word("nicht", clause.at_not)
        if clause.adverb and clause.adverb.kind == "manner" and not clause.fronted:
            self.adverb(clause)
        for phrase in clause.phrases:
            self.prepositional_phrase(phrase)
        if clause.predicate:
            self.word(clause.predicate.german, (clause.at_verb[1],))
        self.companion(clause)
        if target and prepositional:
            assert clause.verb
            self.word(clause.verb.preposition, clause.at_verb[:1])
            self.noun_phrase(target, clause.verb.frame)

    def companion(self, clause: Clause) -> None:
        """The German words that belong to a light verb or an idiom."""
        if clause.verb:
            for text, links in clause.verb.companion:
                self.word(text, tuple(clause.at_verb[i] for i in links))

    def right_bracket(self, clause: Clause, final: bool) -> None:
        """Particle, infinitive and, in a subordinate clause, the finite verb, which complete the phrase of the verb."""
        person, plural = self._number(clause)
        verb = clause.verb
        if clause.modal:
            forms = verb.german if verb else SEIN
            self.word(forms.particle + forms.infinitive, self._links(clause, "joined") if verb else clause.at_verb[:1])
            if final:
                clause.target_finite = self.word(clause.modal.german.finite(person, plural), clause.at_modal)
        elif final:
            forms = verb.german if verb else SEIN
            links = self._links(clause, "joined") if verb else clause.at_verb[:1]
            clause.target_finite = self.word(forms.particle + forms.finite(person, plural), links)
        elif verb and verb.german.particle:
            self.word(verb.german.particle, self._links(clause, "particle"))
        if verb and verb.label:
            source = set(clause.at_verb)
            target = tuple(j for j, links in enumerate(self.links) if not source.isdisjoint(links))
            self.phrases.append((verb.label, clause.at_verb, target))

    def adverb(self, clause: Clause) -> None:
        """The adverb of a clause; several German words are an expansion."""
        assert clause.adverb
        target = tuple(self.word(text, (clause.at_adverb,)) for text in clause.adverb.german)
        if len(target) > 1:
            self.phrases.append(("expansion", (clause.at_adverb,), target))

    def noun_phrase(self, phrase: NounPhrase, case: str, contracted: bool = False) -> None:
        """A noun phrase in a case; if `contracted`, the preposition already has its article."""
        case = phrase.forced_case or case
        head = phrase.head
        if isinstance(head, Pronoun):
            phrase.target_head = self.word(head.german[case], phrase.at_head)
            return
        column = "p" if phrase.plural else head.gender
        determiner = phrase.determiner
        if determiner.english and not contracted:
            self.word(self.determiner(phrase, case), (phrase.at_determiner,))
        if phrase.adjective:
            ending = ADJECTIVE_ENDINGS[determiner.style][case][column]
            self.word(phrase.adjective.stem + ending, (phrase.at_adjective,))
        phrase.target_head = self.word(head.german[phrase.plural][case], phrase.at_head)
        if head.label:
            self.phrases.append((head.label, phrase.at_head, (phrase.target_head,)))
        if phrase.place:
            self.word(phrase.place.german[0], (phrase.at_place,))
        for inner in phrase.phrases:
            self.prepositional_phrase(inner)
        if phrase.relative:
            self.comma()
            self.clause(phrase.relative.clause, "final", phrase.relative)
            self.comma()

    def determiner(self, phrase: NounPhrase, case: str) -> str:
        """The German determiner of a noun phrase."""
        determiner, head = phrase.determiner, phrase.head
        assert not isinstance(head, Pronoun)
        column = "p" if phrase.plural else head.gender
        if determiner.style == "definite":
            return morphology.DEFINITE[case][column]
        if determiner.style == "plain":
            return determiner.german + ("n" if determiner.german == "viele" and case == "dat" else "")
        endings = morphology.EIN_ENDINGS if determiner.style == "ein" else morphology.DIES_ENDINGS
        return determiner.german + endings[case][column]

    def prepositional_phrase(self, phrase: PrepositionalPhrase) -> None:
        """A preposition with its noun phrase; in + dem becomes im."""
        preposition, inner = phrase.preposition, phrase.phrase
        if inner.determiner.style == "definite" and not inner.plural:
            contraction = CONTRACTIONS.get((preposition.german, self.determiner(inner, preposition.case)))
            if contraction:
                self.word(contraction, (*phrase.at, inner.at_determiner))
                self.noun_phrase(inner, preposition.case, contracted=True)
                return
        self.word(preposition.german, phrase.at)
        self.noun_phrase(inner, preposition.case)
