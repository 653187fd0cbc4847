"""The progress of one hypothesis towards the constraints of its line: tokens in a trie, truth in the decoded text.

A required phrase has one or more spellings in subwords (`spellings`), all of them in one trie. A hypothesis is at every node
of the trie that its last tokens lead to, as in the automaton of Aho and Corasick, so that phrases may share prefixes and
overlap. What it *contains* is read from its detokenised text, so it does not matter how the model cut the words.

    progress = Σ subwords of the phrases in the text + the most subwords of another one that is under way

The subwords of a phrase are those of its longest spelling; a shorter one that is under way counts by what it still lacks.

A forbidden phrase ends a hypothesis as soon as no further token can undo it (the next word has begun). Until then the
hypothesis is `doubtful`: `Haus` may still become `Hausboot`. It cannot end there.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from phraseloom.decoding.constraints import BROKEN, Constraints, canonical, contains, goes_on
from phraseloom.text.subword_nmt import SubwordNmt
from phraseloom.text.tokenizer import Side
from phraseloom.text.vocabulary import UNK
from phraseloom.text.words import Words, escape, join

MAX_WIDTH = 64  # the widest beam that constraints ask for by themselves
MAX_SPELLINGS = 16
_BEFORE = ", "  # text before a phrase that begins no sentence


def beam_width(beam: int, num_tokens: int, constraints: Constraints) -> int:
    """The beam of a line whose required phrases have `num_tokens` subwords: at least one hypothesis for each progress, and one
    that is doubtful, within MAX_WIDTH."""
    return max(beam, min(MAX_WIDTH, 1 + num_tokens + bool(constraints.exclude)))


@dataclass
class _Node:
    """A node of the trie. `text`: its tokens decoded, in lower case; `missing`: by phrase, the fewest tokens to its end."""

    text: str
    depth: int
    children: dict[int, int] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ConstraintState:
    """What a hypothesis has reached.

    `next_tokens`: the progress after each token that continues or begins a required phrase. `violations`: how many
    constraints the text would break if it ended here. `is_dead`: a forbidden phrase is in the text for good.
    """

    tokens: tuple[int, ...]
    progress: int
    next_tokens: dict[int, int]
    violations: int
    is_doubtful: bool = False
    is_dead: bool = False
    nodes: tuple[int, ...] = ()


class ConstraintTracker:
    """The constraints of one line for one tokenizer. Read-only, so that threads may share it.

    `required`: spellings of each phrase of `constraints.include`, in its order. `begun`: pieces of the forced prefix (see
    `Side.decode`).
    """

    def __init__(
        self,
        side: Side,
        constraints: Constraints,
        required: Sequence[Sequence[tuple[int, ...]]],
        begun: Sequence[str] = (),
    ) -> None:
        self._side, self._constraints, self._begun = side, constraints, begun
        self._appends = side.normaliser.identity and not side.joined
        self._has_space = isinstance(side.subwords, SubwordNmt | Words)  # a word ends before the next token
        self.sizes = [max(map(len, spellings)) for spellings in required]  # else the longest began with no progress
        self._nodes = [_Node("", 0)]
        for phrase, spellings in enumerate(required):
            for spelling in spellings:
                self._add(phrase, spelling)
        self.start = self._state((), ())

    @property
    def num_tokens(self) -> int:
        """The largest progress: the subwords of all required phrases."""
        return sum(self.sizes)

    def width(self, beam: int) -> int:
        """The beam of this line."""
        return beam_width(beam, self.num_tokens, self._constraints)

    def _add(self, phrase: int, spelling: tuple[int, ...]) -> None:
        at = 0
        for depth in range(len(spelling) + 1):
            missing = self._nodes[at].missing
            missing[phrase] = min(missing.get(phrase, len(spelling)), len(spelling) - depth)
            if depth < len(spelling):
                children = self._nodes[at].children
                if spelling[depth] not in children:
                    children[spelling[depth]] = len(self._nodes)
                    text = canonical(self._side.decode(spelling[: depth + 1])).lower()
                    self._nodes.append(_Node(text, depth + 1))
                at = children[spelling[depth]]

    def extend(self, state: ConstraintState, token: int) -> ConstraintState:
        """The state after one more token."""
        following = (self._nodes[node].children.get(token) for node in (0, *state.nodes))
        return self._state((*state.tokens, token), tuple(node for node in following if node is not None))

    def extend_all(self, tokens: Sequence[int]) -> ConstraintState:
        """The state after these tokens."""
        state = self.start
        for token in tokens:
            state = self.extend(state, token)
        return state

    def _state(self, tokens: tuple[int, ...], nodes: tuple[int, ...]) -> ConstraintState:
        include, exclude, inside = (
            self._constraints.include,
            self._constraints.exclude,
            self._constraints.inside_words,
        )
        raw = self._side.decode(tokens, self._begun[: len(tokens)])
        text = canonical(raw)
        unmet = [
            i for i, phrase in enumerate(include) if not contains(text, phrase, inside_words=inside, required=True)
        ]
        broken = sum(contains(text, phrase, inside_words=inside) for phrase in exclude)
        is_dead = False
        if exclude:
            settled = self._settled(tokens, raw)
            is_dead = any(contains(settled, phrase, inside_words=inside, open_end=True) for phrase in exclude)
        nodes = tuple(node for node in nodes if self._ends_with(text, self._nodes[node].text))
        done = self.num_tokens - sum(self.sizes[i] for i in unmet)

        def reached(node: int) -> int:
            missing = self._nodes[node].missing
            return max((self.sizes[i] - missing[i] for i in unmet if i in missing), default=0)

        next_tokens: dict[int, int] = {}
        for node in (0, *nodes):
            for token, child in self._nodes[node].children.items():
                if not any(i in self._nodes[child].missing for i in unmet):
                    continue
                next_tokens[token] = max(next_tokens.get(token, 0), done + reached(child))
        progress = done + max(map(reached, nodes), default=0)
        return ConstraintState(
            tokens, progress, next_tokens, len(unmet) + broken, bool(broken) and not is_dead, is_dead, nodes
        )

    @staticmethod
    def _ends_with(text: str, phrase: str) -> bool:
        """Whether a text ends with (the beginning of) a phrase that begins a word."""
        if not text.lower().endswith(phrase):
            return False
        before = len(text) - len(phrase)
        return not phrase or before <= 0 or not goes_on(text[before - 1], phrase[0])

    def _settled(self, tokens: tuple[int, ...], raw: str) -> str:
        """The beginning of the text that no further token changes, canonical.

        Detokenisation may attach the next word to the last one, so its end is settled only with the word after it.
        """
        closed = bool(tokens) and self._has_space and self._side.word_starts([tokens[-1], tokens[-1]])[1]
        if self._appends:
            closed = closed or raw[-1:].isspace()
            return canonical(raw.rstrip(BROKEN)) + " " * closed
        if not closed:
            starts = self._side.word_starts(tokens)
            tokens = tokens[: max((place for place, begins in enumerate(starts) if begins), default=0)]
        return canonical(self._side.decode(tokens, self._begun[: len(tokens)]))


def spellings(side: Side, phrase: str) -> list[tuple[int, ...]]:
    """The ways to write a phrase with the tokenizer of a side, shortest first; none if its vocabulary cannot.

    As a line of its own, inside a line (truecasing differs there), without the space before it, and with phrases that the
    vocabulary joins to one token. In decomposed characters (NFD) only if the vocabulary lacks the composed ones.
    """
    for form in dict.fromkeys((phrase, unicodedata.normalize("NFD", phrase))):
        unique: dict[tuple[int, ...], None] = {}
        for head, ids in _candidates(side, form):
            if ids and UNK not in ids and contains(canonical(side.decode([*head, *ids])), phrase):
                unique[tuple(ids)] = None
        if unique:
            return sorted(unique, key=len)[:MAX_SPELLINGS]
    return []


def _candidates(side: Side, phrase: str) -> list[tuple[list[int], list[int]]]:
    """Ids that may spell a phrase, each after the ids of the text before them."""
    if side.joined:
        words = side.normaliser.plain(phrase).split(" ")  # type: ignore[union-attr]
        return [([], ids) for ids in _joined(side, words)]
    before, whole = side.encode(_BEFORE.strip()), side.encode(_BEFORE + phrase)
    candidates: list[tuple[list[int], list[int]]] = [([], side.encode(phrase))]
    if whole[: len(before)] == before:
        candidates.append((before, whole[len(before) :]))
    return candidates + [
        (head, ids[1:]) for head, ids in candidates if len(ids) > 1 and not side.decode(ids[:1]).strip()
    ]


def _joined(side: Side, words: list[str]) -> list[list[int]]:
    """The words one by one, and with runs of them as tokens of the vocabulary; at most MAX_SPELLINGS of each beginning."""
    ways: list[list[list[int]]] = [[[]], *([] for _ in words)]
    for end in range(1, len(words) + 1):
        for start in range(end):
            token = escape(words[start]) if end - start == 1 else join(words[start:end])
            if token in side.vocabulary:
                ways[end] += [[*way, side.vocabulary.id(token)] for way in ways[start]]
        ways[end] = sorted(ways[end], key=len)[:MAX_SPELLINGS]
    return ways[-1]
