"""Words for the unknown ones of an output, from the source words that were attended to (spec §4.6; Luong et al. 2015, §3.3).

Where the search chose UNK, with α the attention with which it was chosen, S source words and everything counted from 0:

1. Attention to the pieces of a source word is summed; that of the pieces of a target word is averaged (as in `word_links.py`).
   A target word that holds UNK is replaced whole. EOS counts for nothing.
2. The source word s with the largest α is taken, unless it is `,` or `.`, or |s - t| > S / 2 for the t-th target word (a phrase
   counts as one): then that with the second largest, whatever it is, if there is one. Equal α: the lower word.
3. Its translation is that of the lexicon where there is one, else the word as it stands in the source.

The replacement is made when the search is done: UNK is what was fed to the decoder for the words after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phraseloom.decoding.word_links import word_weights
from phraseloom.text.vocabulary import UNK

PASSED_OVER = (",", ".")


class UnknownWord(NamedTuple):
    """An unknown word of an output: its number among the words, the place `t` of the rule, and the attention at it.

    `weights_S`: attention to each of the source words `source`, numbers in ascending order.
    """

    number: int
    place: int
    weights_S: np.ndarray
    source: list[int]


class Replacement(NamedTuple):
    """Target word `target` was unknown: `word` stands for it, from source word `source`, `original`, whose translation it is
    by the lexicon (`from_lexicon`) or which it repeats."""

    target: int
    source: int
    original: str
    word: str
    from_lexicon: bool

    def moved(self, *, source: int = 0, target: int = 0) -> Replacement:
        """The same with so many words more before it on each side."""
        return self._replace(source=self.source + source, target=self.target + target)


def unknown_words(
    weights_TS: np.ndarray, tokens: Sequence[int], source_word: Sequence[int], target_words: Sequence[range]
) -> list[UnknownWord]:
    """The words with UNK among the target pieces `tokens`, in order; none where the source has no word.

    `weights_TS`: attention (target pieces + EOS, source pieces + EOS), row t that with which piece t was chosen.
    `source_word`: the word number of each piece; `target_words`: the numbers of its words. Both in ascending order.
    """
    first = [words.start for words in target_words]
    numbers = {word for token, word in zip(tokens, first, strict=True) if token == UNK}
    if not numbers or not source_word:
        return []
    words = word_weights(weights_TS, source_word, first)
    return [
        UnknownWord(number, place, words.weights[place], words.source)
        for place, number in enumerate(words.target)
        if number in numbers
    ]


def choose_source(weights_S: np.ndarray, words: Sequence[str], place: int) -> int:
    """Which of the source words (an index) the unknown word at `place` is replaced by; the rule above, step 2."""
    first, *others = np.argsort(-weights_S, kind="stable")[:2].tolist()
    doubtful = words[first] in PASSED_OVER or 2 * abs(first - place) > len(words)
    return int(others[0]) if doubtful and others else int(first)


def replacements(
    unknown: Iterable[UnknownWord], source_words: Sequence[str], lexicon: Mapping[str, str]
) -> list[Replacement]:
    """What stands for each unknown word. `source_words`: those that the numbers of `unknown` count."""
    result = []
    for number, place, weights_S, source in unknown:
        chosen = source[choose_source(weights_S, [source_words[s] for s in source], place)]
        original = source_words[chosen]
        result.append(Replacement(number, chosen, original, lexicon.get(original, original), original in lexicon))
    return result
