"""Reproducible random choices from a key, and the pools of words to choose from.

`KeyedRandom` hashes its key (seed, split, …) and uses only `random.Random.random`, whose sequence Python guarantees.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from phraseloom.world.lexicon import Noun, Preposition, Verb, lexicon, name_noun

T = TypeVar("T")
SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstv" for vowel in "aeio")
NAME_ENDS = ("l", "n", "r", "s", "k", "rd", "lin", "ran", "tus", "mir", "x")


class KeyedRandom:
    """A stream of random choices that depends on its key only."""

    def __init__(self, *key: object) -> None:
        digest = hashlib.sha256("|".join(str(part) for part in key).encode()).digest()
        self.random = random.Random(int.from_bytes(digest[:16], "big")).random

    def pick(self, items: Sequence[T]) -> T:
        """A random item, uniformly distributed."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random() < probability

    def weighted(self, weights: Sequence[float]) -> int:
        """A random index, with probability proportional to its weight."""
        point = self.random() * sum(weights)
        for index, weight in enumerate(weights):
            point -= weight
            if point < 0:
                return index
        return len(weights) - 1


@cache
def verb_pools() -> dict[Verb, tuple[tuple[Noun, ...], tuple[Noun, ...]]]:
    """The possible subjects and objects of every verb."""
    words = lexicon()
    return {verb: (words.pool(verb.subjects), words.pool(verb.objects)) for verb in (*words.verbs, *words.idioms)}


@cache
def after_preposition() -> tuple[tuple[Preposition, tuple[Noun, ...]], ...]:
    """Every preposition of place (the first seven) or company with the nouns that may follow it."""
    words = lexicon()
    located = [p for p in words.prepositions if not any(k == "cue" or k.startswith("goal:") for k in p.kinds)]
    names = {"table", "tree"}
    return tuple((p, words.pool(tuple(f"={k}" if k in names else k for k in sorted(p.kinds)))) for p in located)


@cache
def goal_pools() -> tuple[tuple[Preposition, tuple[Noun, ...]], ...]:
    """Every preposition of direction with the places that may follow it."""
    words = lexicon()
    goals = [p for p in words.prepositions if any(kind.startswith("goal:") for kind in p.kinds)]
    places = words.by_kind["place"]
    return tuple(
        (p, tuple(n for n in places if all(k.removeprefix("goal:") in n.kinds for k in p.kinds))) for p in goals
    )


def draw_name(draw: KeyedRandom) -> Noun:
    """A personal name: usually a common one, else random syllables, so that new names keep appearing."""
    if draw.chance(0.7):
        return name_noun(draw.pick(lexicon().first_names))
    name = draw.pick(SYLLABLES) + draw.pick(SYLLABLES)
    if draw.chance(0.4):
        name += draw.pick(SYLLABLES)
    return name_noun((name + draw.pick(NAME_ENDS)).capitalize())
