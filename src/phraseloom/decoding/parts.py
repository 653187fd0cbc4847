"""The translation of a line from what was found for its parts: texts joined, words counted on, unknown words replaced.

Words for the unknown ones of an output, from the source words that were attended to (spec §4.6; Luong et al. 2015, §3.3).

Where the search chose UNK, with α the attention with which it was chosen, S source words and everything counted from 0:

1. Attention to the pieces of a source word is summed; that of the pieces of a target word is averaged (as in `word_links.py`).
   A target word that holds UNK is replaced whole. EOS counts for nothing.
2. The source word s with the largest α is taken, unless it is `,` or `.`, or |s - t| > S / 2 for the t-th target word (a phrase
   counts as one): then that with the second largest, whatever it is, if there is one. Equal α: the lower word.
3. Its translation is that of the lexicon where there is one, else the word as it stands in the source.

The replacement is made when the search is done: UNK is what was fed to the decoder for the words after it.

The rule for lines that are longer than a model takes, the same in every verb (docs/decoding.md, "Long lines").

A source has at most `max_input_tokens` subwords, a given target at most `max_target_tokens` (`DecodingConfig`): the longest
that the model could write itself. A longer line is cropped: it counts as the line that ends there. What was cropped is
counted, and reported with the number of the first line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from phraseloom.decoding.alignment import word_weights
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.limits import Hypothesis, Segment
from phraseloom.decoding.translation import Links, PhraseLink, Translation
from phraseloom.text.tokenizer import Side, Tokenizer
from phraseloom.text.vocabulary import UNK
from phraseloom.text.words import escape


class Aligned(NamedTuple):
    """Word links and phrase links of one hypothesis; source words are those of the line."""

    words: Links
    phrases: list[PhraseLink]

    def moved(self, source: int) -> Aligned:
        """The same with so many source words more before it."""
        return Aligned([(s + source, t) for s, t in self.words], [p.moved(source=source) for p in self.phrases])


class Found(NamedTuple):
    """The n-best list of one piece; of each entry, where asked for, the alignments and the unknown words to be replaced."""

    hypotheses: list[Hypothesis]
    aligned: list[Aligned | None]
    unknown: list[list[UnknownWord]] | None = None


class _Part(NamedTuple):
    """One hypothesis of one piece: its words and text, unknown words replaced."""

    hypothesis: Hypothesis
    words: list[str]
    text: str
    tokens: list[str]
    aligned: Aligned | None
    replaced: list[Replacement]


def join_parts(
    tokenizer: Tokenizer,
    line: str,
    pieces: Sequence[Piece],
    found: Sequence[Found],
    *,
    cropped: bool,
    lexicon: Mapping[str, str] | None = None,
) -> Translation:
    """The translation of `line` from those of its pieces, n-best by rank.

    `lexicon`: replace the unknown words of `found`, by its translations where it has them; None: leave them.
    """
    unknown = any(words for one in found for words in one.unknown or ())
    source_words = tokenizer.source.words(line) if unknown else []
    of_pieces = [
        _parts(tokenizer.target, one, piece, source_words, lexicon or {})
        for piece, one in zip(pieces, found, strict=True)
    ]
    best, *rest = [_joined(parts, cropped, lexicon is not None) for parts in zip(*of_pieces, strict=False)]
    return replace(best, alternatives=rest) if rest else best


def _parts(
    side: Side, found: Found, piece: Piece, source_words: Sequence[str], lexicon: Mapping[str, str]
) -> Iterator[_Part]:
    """The n-best list of a piece; no word that its forced prefix begins is replaced."""
    unknown = found.unknown or [[]] * len(found.hypotheses)
    for hypothesis, aligned, missing in zip(found.hypotheses, found.aligned, unknown, strict=True):
        tokens, before = hypothesis.tokens, piece.first_word
        words = side.words_of(tokens, piece.begun)
        if missing and piece.prefix:
            forced = side.words_of_piece(tokens, piece.begun)[len(piece.prefix) - 1].stop
            missing = [one for one in missing if one.number >= forced]
        replaced = replacements(missing, source_words[before:], lexicon)
        for one in replaced:
            words[one.target] = one.word
        text = _text(side, words) if replaced else side.decode(tokens, piece.begun)
        yield _Part(
            hypothesis,
            words,
            text.replace("\n", " "),
            [side.vocabulary.piece(i) for i in tokens],
            aligned,
            [one.moved(source=before) for one in replaced],
        )


def _text(side: Side, words: Iterable[str]) -> str:
    """The detokenised text of words as `Side.words_of` gives them."""
    return side.normaliser.detokenise(" ".join(map(escape, words) if side.joined else words))


def _joined(parts: Sequence[_Part], cropped: bool, replaced: bool) -> Translation:
    before = list(accumulate((len(p.words) for p in parts), initial=0))
    aligned = [(p.aligned, n) for p, n in zip(parts, before, strict=False) if p.aligned is not None]
    hypotheses, sizes = [p.hypothesis for p in parts], [len(p.tokens) + 1 for p in parts]
    weighted = sum(h.score * n for h, n in zip(hypotheses, sizes, strict=True)) / sum(sizes)
    return Translation(
        text=" ".join(p.text for p in parts),
        score=weighted if len(parts) > 1 else hypotheses[0].score,
        log_prob=sum(h.log_prob for h in hypotheses),
        tokens=[token for p in parts for token in p.tokens],
        words=[word for p in parts for word in p.words],
        alignment=[(s, t + n) for a, n in aligned for s, t in a.words] if aligned else None,
        phrases=[p.moved(target=n) for a, n in aligned for p in a.phrases] if aligned else None,
        segments=_segments(hypotheses),
        replaced=[r.moved(target=n) for p, n in zip(parts, before, strict=False) for r in p.replaced]
        if replaced
        else None,
        cropped=cropped,
        parts=len(parts),
        hit_max_length=any(h.cut for h in hypotheses),
    )


def _segments(hypotheses: Sequence[Hypothesis]) -> list[Segment] | None:
    """The segments of all parts, of a segmental model."""
    before = accumulate((len(h.tokens) for h in hypotheses), initial=0)
    some = [(h.segments, n) for h, n in zip(hypotheses, before, strict=False) if h.segments is not None]
    return [segment.moved(target=n) for segments, n in some for segment in segments] if some else None


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
