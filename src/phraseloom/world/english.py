"""Realise a sentence in English: words, Penn-style brackets, and the source position of every word in its constituent."""

from __future__ import annotations

from phraseloom.world.grammar import THAT, Clause, NounPhrase, PrepositionalPhrase, Pronoun, Relative, Sentence


class English:
    """Builds one English sentence; `words` and the pieces of `tree` grow as constituents are added."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.pieces: list[str] = []

    @property
    def tree(self) -> str:
        """The bracketed tree, in one line."""
        return "".join(self.pieces)

    def word(self, tag: str, text: str) -> int:
        """Add a word with its tag; return its position."""
        position = len(self.words)
        if not position:
            text = text[0].upper() + text[1:]
        self.words.append(text)
        self.pieces.append(f" ({tag} {text})")
        return position

    def sentence(self, sentence: Sentence) -> None:
        """Add a whole sentence with its full stop."""
        self.pieces.append("(S")
        if sentence.more:
            self.pieces.append(" (S")
        self.body(sentence)
        if sentence.more:
            self.pieces.append(")")
        for conjunction, other in sentence.more:
            if conjunction.english == "but":
                self.word(",", ",")
            other.at_conjunction = self.word("CC", conjunction.english)
            self.pieces.append(" (S")
            self.body(other)
            self.pieces.append(")")
        self.word(".", ".")
        self.pieces.append(")")

    def body(self, sentence: Sentence) -> None:
        """The main clause with its adverbial clause."""
        if sentence.adverbial and sentence.adverbial_first:
            self.adverbial(sentence)
            sentence.at_comma = self.word(",", ",")
        trailing = sentence if sentence.adverbial and not sentence.adverbial_first else None
        self.clause(sentence.main, trailing)

    def adverbial(self, sentence: Sentence) -> None:
        """An adverbial clause with its conjunction."""
        assert sentence.conjunction and sentence.adverbial
        tag = "WRB" if sentence.conjunction.english == "when" else "IN"
        self.pieces.append(" (SBAR")
        sentence.adverbial.at_that = self.word(tag, sentence.conjunction.english)
        self.pieces.append(" (S")
        self.clause(sentence.adverbial)
        self.pieces.append("))")

    def clause(self, clause: Clause, trailing: Sentence | None = None, gap: str = "") -> None:
        """A clause in English order, inside the open bracket; the constituent `gap` is left out."""
        if clause.adverb and clause.fronted:
            clause.at_adverb = self.adverb(clause)
        if gap != "subject":
            self.noun_phrase(clause.subject, 0)
        preverbal = clause.adverb is not None and clause.adverb.kind == "frequency" and not clause.fronted
        auxiliary = clause.modal is not None or clause.negated
        if preverbal and ((not auxiliary and clause.verb) or (clause.modal and clause.modal.to)):
            clause.at_adverb = self.adverb(clause)
            preverbal = False
        self.pieces.append(" (VP")
        closing = self.auxiliaries(clause, preverbal)
        self.verb(clause, auxiliary)
        if preverbal and not auxiliary and not clause.verb:
            clause.at_adverb = self.adverb(clause)
        if clause.receiver:
            self.noun_phrase(clause.receiver, 1)
        if clause.object and gap != "object":
            self.noun_phrase(clause.object, 1)
        if clause.predicate:
            position = self.adjective_phrase(clause.predicate.english)
            clause.at_verb = (clause.at_verb[0], position)
        for phrase in clause.phrases:
            self.prepositional_phrase(phrase)
        if clause.adverb and clause.at_adverb < 0:
            clause.at_adverb = self.adverb(clause)
        if clause.complement:
            self.pieces.append(" (SBAR")
            clause.complement.at_that = self.word("IN", THAT.english)
            self.pieces.append(" (S")
            self.clause(clause.complement)
            self.pieces.append("))")
        if trailing:
            self.adverbial(trailing)
        self.pieces.append(")" * (closing + 1))

    def adverb(self, clause: Clause) -> int:
        """The adverb of a clause."""
        assert clause.adverb
        self.pieces.append(" (ADVP")
        position = self.word("RB", clause.adverb.english)
        self.pieces.append(")")
        return position

    def adjective_phrase(self, text: str) -> int:
        """A predicate adjective."""
        self.pieces.append(" (ADJP")
        position = self.word("JJ", text)
        self.pieces.append(")")
        return position

    def auxiliaries(self, clause: Clause, preverbal: bool) -> int:
        """Add modal, "do" and "not" before the verb; return the number of opened verb phrases."""
        third = clause.subject.person == 3 and not clause.subject.many
        opened = 0
        if clause.modal:
            text = clause.modal.third if third else clause.modal.english
            tag = ("VBZ" if third else "VBP") if clause.modal.to else "MD"
            clause.at_finite = self.word(tag, text)
            clause.at_modal = (clause.at_finite,)
        elif clause.negated and clause.verb:
            clause.at_finite = self.word("VBZ" if third else "VBP", "does" if third else "do")
            clause.at_not = (clause.at_finite,)
        elif clause.negated:
            self.verb(clause, False)
        if clause.negated:
            clause.at_not = (*clause.at_not, self.word("RB", "not"))
        if preverbal and (clause.modal or clause.negated):
            clause.at_adverb = self.adverb(clause)
        if clause.modal and clause.modal.to:
            self.pieces.append(" (S (VP")
            clause.at_modal = (*clause.at_modal, self.word("TO", "to"))
            opened += 2
        if clause.modal or (clause.negated and clause.verb):
            self.pieces.append(" (VP")
            opened += 1
        return opened

    def verb(self, clause: Clause, auxiliary: bool) -> None:
        """The verb and its tail (particle, or the rest of an idiom); "be" if the clause has no verb."""
        subject = clause.subject
        third = subject.person == 3 and not subject.many
        if clause.verb is None:
            if clause.at_verb:
                return
            if auxiliary and clause.modal:
                clause.at_verb = (self.word("VB", "be"),)
                return
            text = "are" if subject.many or subject.person == 2 else "is" if third else "am"
            clause.at_finite = self.word("VBZ" if third else "VBP", text)
            clause.at_verb = (clause.at_finite,)
            return
        if auxiliary:
            positions = [self.word("VB", clause.verb.english)]
        else:
            positions = [self.word("VBZ" if third else "VBP", clause.verb.third if third else clause.verb.english)]
            clause.at_finite = positions[0]
        for opening, tag, text, closing in clause.verb.tail:
            self.pieces.append(opening)
            positions.append(self.word(tag, text))
            self.pieces.append(closing)
        clause.at_verb = tuple(positions)

    def noun_phrase(self, phrase: NounPhrase, form: int) -> None:
        """A noun phrase; `form` 0 is the subject form of a pronoun, 1 the object form."""
        head = phrase.head
        if isinstance(head, Pronoun):
            self.pieces.append(" (NP")
            phrase.at_head = (self.word("PRP", head.english[form]),)
            self.pieces.append(")")
            return
        nested = bool(phrase.phrases or phrase.relative or phrase.place)
        self.pieces.append(" (NP (NP" if nested else " (NP")
        determiner = phrase.determiner
        words = head.english[phrase.plural]
        if determiner.english:
            text = determiner.english
            following = phrase.adjective.english if phrase.adjective else words[0]
            if text == "a" and following[0] in "aeiou":
                text = "an"
            phrase.at_determiner = self.word(determiner.tag, text)
        if phrase.adjective:
            phrase.at_adjective = self.word("JJ", phrase.adjective.english)
        tag = "NNP" if not head.gender else "NNS" if phrase.plural else "NN"
        first = tuple(self.word("NN", word) for word in words[:-1])
        phrase.at_head = (*first, self.word(tag, words[-1]))
        if nested:
            self.pieces.append(")")
        if phrase.place:
            self.pieces.append(" (ADVP")
            phrase.at_place = self.word("RB", phrase.place.english)
            self.pieces.append(")")
        for inner in phrase.phrases:
            self.prepositional_phrase(inner)
        if phrase.relative:
            self.relative(phrase.relative)
        self.pieces.append(")")

    def prepositional_phrase(self, phrase: PrepositionalPhrase) -> None:
        """A prepositional phrase; prepositions of several words are adverb and preposition, or nested phrases."""
        words = phrase.preposition.english
        self.pieces.append(" (PP")
        if len(words) == 3:  # in front of
            first = self.word("IN", words[0])
            self.pieces.append(" (NP (NP")
            second = self.word("NN", words[1])
            self.pieces.append(") (PP")
            phrase.at = (first, second, self.word("IN", words[2]))
            self.noun_phrase(phrase.phrase, 1)
            self.pieces.append(")))")
            return
        if len(words) == 2:  # next to
            self.pieces.append(" (ADVP")
            first = self.word("RB", words[0])
            self.pieces.append(")")
            phrase.at = (first, self.word("TO" if words[1] == "to" else "IN", words[1]))
        else:
            phrase.at = (self.word("TO" if words[0] == "to" else "IN", words[0]),)
        self.noun_phrase(phrase.phrase, 1)
        self.pieces.append(")")

    def relative(self, relative: Relative) -> None:
        """A relative clause with its pronoun."""
        self.pieces.append(" (SBAR (WHNP")
        relative.at = self.word("WP" if relative.pronoun == "who" else "WDT", relative.pronoun)
        self.pieces.append(") (S")
        self.clause(relative.clause, gap=relative.gap)
        self.pieces.append("))")
