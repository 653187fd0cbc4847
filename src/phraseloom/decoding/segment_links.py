"""Word and phrase links of a segmental model, which has no attention: every segment comes from one source position.

* **Words.** Each word of a segment is linked to the source word whose piece emitted it. A word whose pieces stand in several
  segments is linked to the source word of each.
* **Phrases.** Each segment is a link of the words that begin in it to that one source word, with p(segment | position) as its
  weight. A segment that only ends a word has no link of its own, so every target word is in one link. Segments of several
  pieces of one source word stay apart.
* **Unknown words** are replaced by the word that emitted them; of several, by the first (`unknown_words.py`, without step 2).

An encoder state knows of its neighbours, and soft reordering moves words by a few positions: which position speaks is what the
model learned, not where the words stand in a dictionary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.config import DecodingConfig
from phraseloom.decoding.limits import Hypothesis, Segment
from phraseloom.decoding.parts import Aligned, Found
from phraseloom.decoding.translation import PhraseLink
from phraseloom.decoding.unknown_words import UnknownWord
from phraseloom.errors import UsageError
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import UNK


def refuse_attention(config: DecodingConfig) -> None:
    """UsageError where an attention is chosen to align, of a model that has none."""
    if config.alignment_layer is not None or config.alignment_head is not None:
        raise UsageError(
            "alignment_layer and alignment_head choose an attention, and a segmental model has none",
            hint="its segments are the alignment; leave both out",
        )


def look_at_segments(
    tokenizer: Tokenizer,
    pieces: Sequence[Piece],
    found: Sequence[list[Hypothesis]],
    *,
    alignments: bool,
    replacing: bool,
) -> list[Found]:
    """What the segments of every hypothesis say, as `Translator` wants it; source positions become those of the line."""
    result = []
    for piece, some in zip(pieces, found, strict=True):
        source_word = tokenizer.source.word_of_piece(piece.ids)
        words = [tokenizer.target.words_of_piece(h.tokens, piece.begun) for h in some]
        looks = [(h, h.segments or [], w) for h, w in zip(some, words, strict=True)]
        links = [link_segments(s, source_word, w).moved(piece.first_word) if alignments else None for _, s, w in looks]
        unknown = [unknown_of_segments(s, h.tokens, source_word, w) if replacing else [] for h, s, w in looks]
        moved = [h._replace(segments=[one.moved(source=piece.first_id) for one in s]) for h, s, _ in looks]
        result.append(Found(moved, links, unknown))
    return result


def link_segments(segments: Sequence[Segment], source_word: Sequence[int], target_words: Sequence[range]) -> Aligned:
    """Links by the rule above. `source_word`: the word of each source piece; `target_words`: the words of each target piece."""
    links, phrases = set(), []
    for segment in segments:
        source = source_word[segment.source]
        own = range(segment.start, segment.end)
        links |= {(source, word) for i in own for word in target_words[i]}
        begun = [target_words[i] for i in own if i == 0 or target_words[i] != target_words[i - 1]]
        if begun:
            weight = min(1.0, math.exp(segment.log_prob))
            phrases.append(PhraseLink((source, source + 1), (begun[0].start, begun[-1].stop), weight))
    return Aligned(sorted(links, key=lambda link: (link[1], link[0])), phrases)


def unknown_of_segments(
    segments: Sequence[Segment], tokens: Sequence[int], source_word: Sequence[int], target_words: Sequence[range]
) -> list[UnknownWord]:
    """The words that begin with or hold UNK, each with the one source word that emitted it."""
    emitted = {i: source_word[segment.source] for segment in segments for i in range(segment.start, segment.end)}
    found: dict[int, int] = {}
    for i, token in enumerate(tokens):
        if token == UNK:
            found.setdefault(target_words[i].start, emitted[i])
    places = {number: place for place, number in enumerate(sorted({words.start for words in target_words}))}
    return [UnknownWord(number, places[number], np.ones(1), [source]) for number, source in found.items()]
