"""The translation of a line from the results of its pieces: join texts, renumber words, replace unknown words.

**Unknown words** are replaced by means of the source words that were attended to (Luong et al. 2015, §3.3). For each
UNK in the output, with α the attention that predicted it, S source words, and all numbers from 0:

1. Sum the attention over the pieces of a source word; average it over the pieces of a target word (as in `alignment.py`). A
   target word with an UNK is replaced as a whole. EOS does not count.
2. Take the source word s with the largest α, unless it is `,` or `.`, or |s - t| > S / 2 for the t-th target word (a phrase
   counts as one word); then take the one with the second largest α, if there is one. Ties: the lower word.
3. Write its translation from the lexicon; if the lexicon has none, copy the source word.

The replacement comes after the search: the decoder read UNK when it predicted the following words.
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
from phraseloom.decoding.sentences import space_of
from phraseloom.decoding.translation import Links, PhraseLink, Translation
from phraseloom.text.tokenizer import Side, Tokenizer
from phraseloom.text.vocabulary import UNK
from phraseloom.text.words import escape


class Aligned(NamedTuple):
    """Word links and phrase links of one hypothesis; source words are those of the line."""

    words: Links
    phrases: list[PhraseLink]

    def shifted(self, source: int) -> Aligned:
        """Shifted right by `source` words."""
        return Aligned([(s + source, t) for s, t in self.words], [p.shifted(source=source) for p in self.phrases])


class PieceResult(NamedTuple):
    """The n-best list of one piece; for each entry the alignments and the unknown words to replace, if requested."""

    hypotheses: list[Hypothesis]
    aligned: list[Aligned | None]
    unknown: list[list[UnknownWord]] | None = None


class _Part(NamedTuple):
    """One hypothesis of one piece: its words and text, with unknown words replaced."""

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
    results: Sequence[PieceResult],
    *,
    cropped: bool,
    lexicon: Mapping[str, str] | None = None,
) -> Translation:
    """The translation of `line` from those of its pieces, n-best by rank.

    `lexicon`: translations for the unknown words of `results`; None leaves unknown words in place.
    """
    has_unknown = any(words for result in results for words in result.unknown or ())
    source_words = tokenizer.source.words(line) if has_unknown else []
    parts_of_pieces = [
        _parts(tokenizer.target, result, piece, source_words, lexicon or {})
        for piece, result in zip(pieces, results, strict=True)
    ]
    space, replaced = space_of(tokenizer.target.language), lexicon is not None
    best, *others = [_joined(parts, space, cropped, replaced) for parts in zip(*parts_of_pieces, strict=False)]
    return replace(best, alternatives=others) if others else best


def _parts(
    side: Side, result: PieceResult, piece: Piece, source_words: Sequence[str], lexicon: Mapping[str, str]
) -> Iterator[_Part]:
    """The n-best list of a piece; words that begin in its forced prefix are not replaced."""
    unknown = result.unknown or [[]] * len(result.hypotheses)
    for hypothesis, aligned, missing in zip(result.hypotheses, result.aligned, unknown, strict=True):
        tokens, before = hypothesis.tokens, piece.first_word
        words = side.words_of(tokens, piece.begun)
        if missing and piece.prefix:
            forced = side.words_of_piece(tokens, piece.begun)[len(piece.prefix) - 1].stop
            missing = [word for word in missing if word.number >= forced]
        replaced = replacements(missing, source_words[before:], lexicon)
        for replacement in replaced:
            words[replacement.target] = replacement.word
        text = _text(side, words) if replaced else side.decode(tokens, piece.begun)
        yield _Part(
            hypothesis,
            words,
            text.replace("\n", " "),
            [side.vocabulary.piece(i) for i in tokens],
            aligned,
            [replacement.shifted(source=before) for replacement in replaced],
        )


def _text(side: Side, words: Iterable[str]) -> str:
    """The detokenised text of words from `Side.words_of`."""
    return side.normaliser.detokenise(" ".join(map(escape, words) if side.joined else words))


def _joined(parts: Sequence[_Part], space: str, cropped: bool, replaced: bool) -> Translation:
    before = list(accumulate((len(p.words) for p in parts), initial=0))
    aligned = [(p.aligned, n) for p, n in zip(parts, before, strict=False) if p.aligned is not None]
    hypotheses, sizes = [p.hypothesis for p in parts], [len(p.tokens) + 1 for p in parts]
    weighted = sum(h.score * n for h, n in zip(hypotheses, sizes, strict=True)) / sum(sizes)
    return Translation(
        text=space.join(p.text for p in parts),
        score=weighted if len(parts) > 1 else hypotheses[0].score,
        log_prob=sum(h.log_prob for h in hypotheses),
        tokens=[token for p in parts for token in p.tokens],
        words=[word for p in parts for word in p.words],
        alignment=[(s, t + n) for a, n in aligned for s, t in a.words] if aligned else None,
        phrases=[p.shifted(target=n) for a, n in aligned for p in a.phrases] if aligned else None,
        segments=_segments(hypotheses),
        replaced=[r.shifted(target=n) for p, n in zip(parts, before, strict=False) for r in p.replaced]
        if replaced
        else None,
        cropped=cropped,
        parts=len(parts),
        hit_max_length=any(h.cut for h in hypotheses),
    )


def _segments(hypotheses: Sequence[Hypothesis]) -> list[Segment] | None:
    """The segments of all parts; None unless the model is segmental."""
    before = accumulate((len(h.tokens) for h in hypotheses), initial=0)
    parts = [(h.segments, n) for h, n in zip(hypotheses, before, strict=False) if h.segments is not None]
    return [segment.shifted(target=n) for segments, n in parts for segment in segments] if parts else None


PUNCTUATION = (",", ".")


class UnknownWord(NamedTuple):
    """An unknown word of an output: its number among the words, its `t` in the rule, and its attention.

    `weights_S`: attention to each of the source words `source`, numbers in ascending order.
    """

    number: int
    place: int
    weights_S: np.ndarray
    source: list[int]


class Replacement(NamedTuple):
    """`word` replaces the unknown target word `target`: the translation of source word `source` in the lexicon
    (`from_lexicon`), or a copy of it. `original`: the source word."""

    target: int
    source: int
    original: str
    word: str
    from_lexicon: bool

    def shifted(self, *, source: int = 0, target: int = 0) -> Replacement:
        """Shifted right by `source` and `target` words."""
        return self._replace(source=self.source + source, target=self.target + target)


def unknown_words(
    weights_TS: np.ndarray, tokens: Sequence[int], source_word: Sequence[int], target_words: Sequence[range]
) -> list[UnknownWord]:
    """The words with UNK among the target pieces `tokens`, in order; none if the source has no word.

    `weights_TS`: attention (target pieces + EOS, source pieces + EOS); row t predicted piece t. `source_word`: the word number
    of each piece; `target_words`: the numbers of the words of each piece. Both in ascending order.
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
    """The index of the source word that replaces the unknown word at `place`; step 2 of the rule above."""
    first, *others = np.argsort(-weights_S, kind="stable")[:2].tolist()
    doubtful = words[first] in PUNCTUATION or 2 * abs(first - place) > len(words)
    return int(others[0]) if doubtful and others else int(first)


def replacements(
    unknown: Iterable[UnknownWord], source_words: Sequence[str], lexicon: Mapping[str, str]
) -> list[Replacement]:
    """The replacement of each unknown word. `source_words`: the words that `UnknownWord.source` numbers."""
    result = []
    for number, place, weights_S, source in unknown:
        chosen = source[choose_source(weights_S, [source_words[s] for s in source], place)]
        original = source_words[chosen]
        result.append(Replacement(number, chosen, original, lexicon.get(original, original), original in lexicon))
    return result
