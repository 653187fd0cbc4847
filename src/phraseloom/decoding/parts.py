"""The translation of a line from what was found for its parts: texts joined, words counted on, unknown words replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.limits import Hypothesis, Segment
from phraseloom.decoding.translation import Links, PhraseLink, Translation
from phraseloom.decoding.unknown_words import Replacement, UnknownWord, replacements
from phraseloom.text.joined import escape
from phraseloom.text.tokenizer import Side, Tokenizer


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
