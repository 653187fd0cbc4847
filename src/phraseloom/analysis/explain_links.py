"""Links of words and phrases of one sentence pair as plain data (schema: `analysis/explain.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from phraseloom.analysis.explain_text import ExplainedPair
from phraseloom.decoding.alignment import Look, choose, link_phrases, merge_heads
from phraseloom.decoding.translation import PhraseLink
from phraseloom.decoding.word_links import link_words
from phraseloom.layers.attention.structure import Structure


def attention_links(translator: Any, pair: ExplainedPair, cross: Sequence[tuple[Tensor, Structure]]) -> dict[str, Any]:
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
    return {"word_links": [[s, t, weight(s, t)] for s, t in words], "phrase_links": plain_links(phrases)}


def plain_links(links: Sequence[PhraseLink]) -> list[Any]:
    """Links of phrases as plain data."""
    return [[list(link.source), list(link.target), link.weight] for link in links]
