"""The source phrases of sentences in a model with source phrase representations, with the weight of each token
(paper 001; docs/phrase_representations.md).

The weights of a level are those of the scorer: p_k of the softmax scorer (they sum to 1 in a phrase), c_k of the gated scorer
(the glance has the rest up to 1). A phrase that consists of its glance has no weights. Level 0 is the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phraseloom.analysis.attention import look_in_batches
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.errors import UsageError
from phraseloom.text.vocabulary import EOS

BATCH_SENTENCES, BATCH_TOKENS = 32, 2048


@dataclass(frozen=True)
class PhraseWeights:
    """One phrase: its subwords (including EOS), and their weights for each level (None without a scorer)."""

    pieces: list[str]
    weights: list[list[float] | None]


@dataclass(frozen=True)
class SourcePhrasesFound:
    """The phrases of each sentence (none for a blank line). `shares[i][j]` is the share of level i that decoder layer j reads
    (both from 0); None if every layer reads the last level. `cropped` counts sentences that were cut at the limit."""

    sentences: list[list[PhraseWeights]]
    shares: list[list[float]] | None
    cropped: int


def source_phrases(translator: Any, sources: Sequence[str], trees: Sequence[str] | None = None) -> SourcePhrasesFound:
    """The phrases of raw source lines. Raises UsageError for a model without phrases, missing trees and useless trees, and
    DataError for a tree that does not fit its line."""
    translator = translator.first_model()
    phrases = translator.model.phrases
    if phrases is None:
        raise UsageError("this model has no source phrase representations", hint="train one with model.phrases")
    ids, sizes, cropped = cropped_sources(translator, sources, trees)
    sentences: list[list[PhraseWeights]] = [[] for _ in sources]
    real = [n for n, line_ids in enumerate(ids) if line_ids]
    targets: list[list[int]] = [[] for _ in real]
    inputs = ([ids[n] for n in real], targets, None if sizes is None else [sizes[n] for n in real])
    for batch, _, maps in look_in_batches(translator, *inputs, sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS):
        numbers = [real[i] for i in batch]
        for n, sentence in zip(numbers, _weights(translator, [ids[n] for n in numbers], maps.phrases), strict=True):
            sentences[n] = sentence
    shares = None if phrases.transparent is None else phrases.transparent.shares().tolist()
    return SourcePhrasesFound(sentences, shares, sum(cropped))


def _weights(translator: Any, ids: list[list[int]], levels: Any) -> list[list[PhraseWeights]]:
    for weights in levels.weights:
        if weights is not None:
            refuse_nan(weights)
    piece = translator.tokenizer.source.vocabulary.piece
    result = []
    for row, line_ids in enumerate(ids):
        pieces, start, sentence = [*map(piece, line_ids), piece(EOS)], 0, []
        for p, size in enumerate(n for n in levels.segments.sizes_BP[row].tolist() if n):
            tokens = slice(start, start + size)
            shares = [None if w is None else w[row, p, tokens].tolist() for w in levels.weights]
            sentence.append(PhraseWeights(pieces[tokens], shares))
            start += size
        result.append(sentence)
    return result
