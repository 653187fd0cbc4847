"""Assign generated sentences to splits; streams of pairs that depend on (seed, split) only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice

from phraseloom.text.lines import groups
from phraseloom.world.draw import KeyedRandom
from phraseloom.world.english import English
from phraseloom.world.generator import Generator
from phraseloom.world.grammar import Sentence, all_noun_phrases
from phraseloom.world.lexicon import Noun, lexicon
from phraseloom.world.pair import Pair, join_pairs, make_pair, split_of

LONGEST = 28  # source words of a sentence in train, valid and test, including the full stop
CHALLENGE_SHORTEST = LONGEST + 4
CHALLENGE_LONGEST = 70
BLOCK = 2000  # training pairs per random stream, so that blocks can be generated in parallel


@cache
def foreign_cues(sense: Noun) -> frozenset[str]:
    """The English words, in both numbers, that disambiguate a noun to another sense than this one."""
    own = {place or cue for cue, place in sense.cues}
    cues: set[str] = set()
    for other in lexicon().ambiguous[sense.lemma]:
        cues |= {place or cue for cue, place in other.cues} - own
    return frozenset(cues | {noun.english[1][0] for noun in lexicon().nouns if noun.lemma in cues})


def settled(sentence: Sentence, words: list[str]) -> bool:
    """Whether no ambiguous noun occurs with a cue of its other sense."""
    for phrase in all_noun_phrases(sentence):
        head = phrase.head
        if isinstance(head, Noun) and head.cues and not foreign_cues(head).isdisjoint(words):
            return False
    return True


def accepted(sentence: Sentence, split: str, shortest: int = 0, longest: int = LONGEST) -> Pair | None:
    """The pair of a sentence, or None if its length, its split or an ambiguous word excludes it."""
    english = English()
    english.sentence(sentence)
    words = english.words
    if not shortest <= len(words) <= longest or split_of(" ".join(words)) != split or not settled(sentence, words):
        return None
    return make_pair(sentence, english)


def joined(pairs: Iterator[Pair], count: int, join: tuple[int, int]) -> Iterator[Pair]:
    """The first `count` groups of `join[0]` to `join[1]` pairs in turn, each joined to one pair."""
    return map(join_pairs, islice(groups(pairs, *join), count))


def singles(count: int, join: tuple[int, int]) -> int:
    """The number of sentences in `count` groups."""
    return sum(islice(cycle(range(join[0], join[1] + 1)), count))


def train_block(seed: int, block: int, count: int) -> Iterator[Pair]:
    """The first `count` pairs of a block of training data; without joined sentences a block has at most BLOCK pairs."""
    generator = Generator(KeyedRandom(seed, "train", block))
    while count:
        pair = accepted(generator.sentence(), "train")
        if pair:
            count -= 1
            yield pair


def train_pairs(seed: int, count: int) -> Iterator[Pair]:
    """`count` training pairs. Memory does not grow with their number, so a sentence may repeat."""
    for block in range((count + BLOCK - 1) // BLOCK):
        yield from train_block(seed, block, min(BLOCK, count - block * BLOCK))


def distinct_pairs(seed: int, split: str, count: int) -> Iterator[Pair]:
    """`count` pairs of "valid", "test", "challenge-long" or "challenge-idioms", with distinct source sentences."""
    generator = Generator(KeyedRandom(seed, split), challenge_idioms=split == "challenge-idioms")
    seen: set[str] = set()
    while len(seen) < count:
        if split == "challenge-long":
            pair = accepted(generator.long_sentence(), "test", CHALLENGE_SHORTEST, CHALLENGE_LONGEST)
        elif split == "challenge-idioms":
            pair = accepted(generator.idiom_sentence(), "test")
        else:
            pair = accepted(generator.sentence(), split)
        if pair:
            source = " ".join(pair.source)
            if source not in seen:
                seen.add(source)
                yield pair
