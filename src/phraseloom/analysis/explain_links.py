"""Links of words and phrases, and segments, of one sentence pair as plain data (schema: `analysis/explain.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from phraseloom.analysis.explain_text import Pair
from phraseloom.data.tensors import Batch
from phraseloom.decoding.alignment import Look, choose, link_phrases, merge_heads
from phraseloom.decoding.limits import Segment, refuse_nan
from phraseloom.decoding.segment_links import link_segments
from phraseloom.decoding.translation import PhraseLink
from phraseloom.decoding.word_links import link_words
from phraseloom.layers.attention.structure import Structure

LEAST = 5e-324  # of which there still is a logarithm


def attention_links(translator: Any, pair: Pair, cross: Sequence[tuple[Tensor, Structure]]) -> dict[str, Any]:
    """The links by the layer, head and method of the translator's options, from the weights of every layer (1, H, J·Q, G·K).

    A word link weighs what the pieces of the target word give to those of the source word, on average. Raises UsageError where
    there is no such layer or head.
    """
    choice = choose(translator.config, translator.model.decoder.cross_structures)
    *merged, structure = merge_heads(*cross[choice.layer], choice.head)
    tokens_TS, slots_MNTS = (weights[0].cpu().numpy() for weights in merged)
    source_word = translator.tokenizer.source.word_of_piece(pair.source)
    target_words = translator.tokenizer.target.words_of_piece(pair.target)

    def weight(source: int, target: int) -> float:
        rows = [i for i, words in enumerate(target_words) if target in words]
        columns = [j for j, word in enumerate(source_word) if word == source]
        return float(tokens_TS[np.ix_(rows, columns)].sum(1).mean())

    words = link_words(tokens_TS, source_word, target_words, choice.method)
    phrases = link_phrases(Look(tokens_TS, slots_MNTS, structure), source_word, target_words)
    return {"word_links": [[s, t, weight(s, t)] for s, t in words], "phrase_links": _plain(phrases)}


def _plain(links: Sequence[PhraseLink]) -> list[Any]:
    return [[list(link.source), list(link.target), link.weight] for link in links]


def segments(translator: Any, pair: Pair, batch: Batch) -> dict[str, Any]:
    """The segments of a segmental model, and the links that they are: of its own translation, or the likeliest of a pair.

    A word link weighs as much as the likeliest segment that makes it. `notes` says what the segments are.
    """
    notes: list[str] = []
    if pair.translation is not None:
        found = [segment for segment in pair.translation.segments or [] if segment.end <= len(pair.target)]
    elif len(pair.target) > len(pair.source) * translator.model.max_segment:
        found = []
        notes.append("the target is longer than all segments of this source together: it has no segmentation")
    else:
        found = _likeliest(translator.model, batch, len(pair.source))
        notes.append("the target was given: its likeliest segments, each with the log of its posterior probability")
    source_word = translator.tokenizer.source.word_of_piece(pair.source)
    words = translator.tokenizer.target.words_of_piece(pair.target)
    links = link_segments(found, source_word, words)
    heaviest: dict[tuple[int, int], float] = {}
    for segment in found:
        for word in {word for span in words[segment.start : segment.end] for word in span}:
            link, weight = (source_word[segment.source], word), min(1.0, math.exp(segment.log_prob))
            heaviest[link] = max(heaviest.get(link, 0.0), weight)
    return {
        "notes": notes,
        "segments": [
            {
                "source": source_word[s.source],
                "target": [words[s.start].start, words[s.end - 1].stop],
                "source_token": s.source,
                "target_tokens": [s.start, s.end],
                "log_prob": s.log_prob,
            }
            for s in found
        ],
        "word_links": [[s, t, heaviest[s, t]] for s, t in links.words],
        "phrase_links": _plain(links.phrases),
    }


def _likeliest(model: Any, batch: Batch, positions: int) -> list[Segment]:
    """The likeliest segmentation of a pair, each segment with the log of its posterior probability."""
    found = model.segments(batch)
    refuse_nan(found.marginal_B)
    result, start = [], 0
    for position, size in enumerate(found.lengths_BS[0, :positions].tolist()):
        if size:
            posterior = float(found.posterior_BSCX[0, position, start, size])
            result.append(Segment(position, start, start + size, math.log(max(posterior, LEAST))))
        start += size
    return result
