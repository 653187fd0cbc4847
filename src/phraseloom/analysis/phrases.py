"""What a model with source phrase representations makes of a sentence: its phrases, and how much each token counts in them
(paper 001; docs/phrase_representations.md).

The weights of a level are those of the scorer: p_k of the softmax scorer (they sum to 1 in a phrase), c_k of the gated one
(what is left of 1 is the glance's). A phrase that is its glance alone has none. Level 0 is the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import plan_batches
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.errors import UsageError
from phraseloom.text.vocabulary import EOS

BATCH_SENTENCES, BATCH_TOKENS = 32, 2048


@dataclass(frozen=True)
class PhraseWeights:
    """One phrase: its subwords (the end of the sentence is one), and for each level the weights of these (None: no scorer)."""

    pieces: list[str]
    weights: list[list[float] | None]


@dataclass(frozen=True)
class SourcePhrasesFound:
    """The phrases of each sentence (none for a blank line); `shares[i][j]`: how much of level i decoder layer j (both from
    0) reads, in 1; None where every layer reads the last level. `cropped`: sentences whose end was left out."""

    sentences: list[list[PhraseWeights]]
    shares: list[list[float]] | None
    cropped: int


def source_phrases(translator: Any, sources: Sequence[str], trees: Sequence[str] | None = None) -> SourcePhrasesFound:
    """The phrases of raw source lines. Raises UsageError for a model without phrases, and where trees are needed or given in
    vain; DataError where a tree does not fit its line."""
    phrases = translator.model.phrases
    if phrases is None:
        raise UsageError("this model has no source phrase representations", hint="train one with model.phrases")
    ids, sizes, cropped = cropped_sources(translator, sources, trees)
    found: list[list[PhraseWeights]] = [[] for _ in sources]
    real = [n for n, some in enumerate(ids) if some]
    lengths = [len(ids[n]) + 1 for n in real]
    for batch in plan_batches(lengths, sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS):
        numbers = [real[i] for i in batch]
        of_batch = None if sizes is None else [sizes[n] for n in numbers]
        for n, sentence in zip(numbers, _look(translator, [ids[n] for n in numbers], of_batch), strict=True):
            found[n] = sentence
    shares = None if phrases.transparent is None else phrases.transparent.shares().tolist()
    return SourcePhrasesFound(found, shares, sum(cropped))


def _look(translator: Any, ids: list[list[int]], sizes: list[list[int]] | None) -> list[list[PhraseWeights]]:
    with torch.inference_mode():
        batch = make_batch(ids, [[] for _ in ids], sizes).to(translator.device)
        looks = translator.model.attention_maps(
            batch.source_BS, batch.source_lengths_B, batch.target_in_BT, batch.phrase_sizes_BP
        )
    levels = looks.phrases
    for weights in levels.weights:
        if weights is not None:
            refuse_nan(weights)
    piece = translator.tokenizer.source.vocabulary.piece
    result = []
    for row, some in enumerate(ids):
        pieces, start, sentence = [*map(piece, some), piece(EOS)], 0, []
        for p, size in enumerate(n for n in levels.segments.sizes_BP[row].tolist() if n):
            tokens = slice(start, start + size)
            shares = [None if w is None else w[row, p, tokens].tolist() for w in levels.weights]
            sentence.append(PhraseWeights(pieces[tokens], shares))
            start += size
        result.append(sentence)
    return result
