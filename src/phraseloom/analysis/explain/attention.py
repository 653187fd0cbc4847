"""Attention, links and source phrases of one sentence pair as plain data (schema: `sentence.py`).

Attention: the weights of every head on the axes of the whole layer (0 if a head has no slot of an order), and the share of
attention to each order. Rows and columns are those of `analysis/heatmap.py`, which shows the mean over heads. Source phrases:
the weight of each token in its phrase, and how much of each phrase a token reads in the combination network of every layer
(P001 §3.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phraseloom.analysis.attention import pack
from phraseloom.analysis.explain.text import ExplainedPair, words_of_pair
from phraseloom.analysis.heatmap import Tokens
from phraseloom.decoding.alignment import CrossAttention, choose, link_phrases, link_words, merge_heads
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.translation import PhraseLink
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.phrase_representation import GatedPhraseScorer
from phraseloom.models.phrases import PhraseLevels

Place = tuple[int, int]  # number of the order, last token


@dataclass(frozen=True)
class TokenAxis:
    """The tokens along an axis: the first `shown` tokens of one side; the first one is token `first` of the view (-1: BOS)."""

    tokens: Tokens
    side: str
    shown: int
    first: int = 0

    def axis(self, orders: Sequence[int], *, zero_extended: bool = False) -> tuple[dict[str, Any], list[Place]]:
        """The n-grams of each order as an Axis of the schema, and the place of each in the layout of a structure."""
        axis, places = self.tokens.axis(orders, zero_extended=zero_extended)
        shown = [n for n, (_, last) in enumerate(places) if last < self.shown]
        plain = {
            "labels": [axis.labels[n] for n in shown],
            "orders": [axis.orders[n] for n in shown],
            "ends": [places[n][1] + self.first for n in shown],
            "side": self.side,
        }
        return plain, [places[n] for n in shown]


def head_slots(weights_HQK: Tensor, structure: Structure) -> Tensor:
    """(H, J·Q, G·K) → (H, J, N, Q, K): slots by order, 0 if a head has none of an order."""
    split = structure.split(weights_HQK)
    heads, rows, queries, _, keys = split.shape
    result = split.new_zeros(heads, rows, len(structure.orders), queries, keys)
    for g, block in enumerate(structure.blocks):
        for part in block:
            part_heads = slice(part.first, part.last)
            result[part_heads, :, structure.orders.index(part.order)] += split[part_heads, :, :, g]
    return result


def attention(
    looks: Sequence[tuple[Tensor, Structure]], kinds_L: Sequence[str], use: str, rows: TokenAxis, columns: TokenAxis
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """For each layer of one use, its entry of `attention` and its entries of `shares`; weights (1, H, J·Q, G·K).

    Raises ModelError for NaN.
    """
    for layer, ((weights, structure), kind) in enumerate(zip(looks, kinds_L, strict=True), 1):
        refuse_nan(weights)
        slots = head_slots(weights[0].double().cpu(), structure).numpy()
        row_axis, queries = rows.axis(structure.query_orders)
        column_axis, places = columns.axis(structure.orders, zero_extended=structure.zero_extended)
        m, i = np.array(queries, np.int64).reshape(-1, 2).T[:, :, None]
        n, j = np.array(places, np.int64).reshape(-1, 2).T[:, None, :]
        cells_HRC = slots[:, m, n, i, j]
        entry = {
            "use": use,
            "layer": layer,
            "heads": structure.heads,
            "kind": kind,
            "rows": row_axis,
            "columns": column_axis,
            "weights": pack(cells_HRC),
            "tokens": None if structure.is_token else pack(_over_tokens(weights, structure, rows, columns)),
        }
        yield entry, list(_shares(cells_HRC, structure, (row_axis, column_axis), use, layer))


def _over_tokens(weights: Tensor, structure: Structure, rows: TokenAxis, columns: TokenAxis) -> np.ndarray:
    spread: Tensor = structure.token_weights(weights.to(torch.float64))[0]
    return spread[:, : rows.shown, : columns.shown].cpu().numpy()


def _shares(
    cells_HRC: np.ndarray, structure: Structure, axes: tuple[dict[str, Any], dict[str, Any]], use: str, layer: int
) -> Iterator[dict[str, Any]]:
    """For each query order, the share of each slot order in the attention of each head."""
    rows, columns = (np.array(axis["orders"], np.int64) for axis in axes)
    for query in structure.query_orders:
        by_order = {n: cells_HRC[:, rows == query][:, :, columns == n].sum((1, 2)) for n in structure.orders}
        total_H = np.sum(list(by_order.values()), axis=0)
        heads = [
            {str(n): float(mass_H[h] / total) if total > 0 else None for n, mass_H in by_order.items()}
            for h, total in enumerate(total_H)
        ]
        yield {"use": use, "layer": layer, "query": query, "heads": heads}


def attention_links(translator: Any, pair: ExplainedPair, cross: Sequence[tuple[Tensor, Structure]]) -> dict[str, Any]:
    """The links by the layer, head and method in the options of the translator; weights (1, H, J·Q, G·K) of every layer.

    The weight of a word link is the attention of the pieces of the target word to those of the source word, on average. Raises
    UsageError for a layer or head that does not exist.
    """
    choice = choose(translator.config, translator.model.decoder.cross_structures)
    *merged, structure = merge_heads(*cross[choice.layer], choice.head)
    tokens_TS, slots_MNTS = (weights[0].cpu().numpy() for weights in merged)
    aligned = CrossAttention(tokens_TS, slots_MNTS, structure).after(pair.tags)
    source_words, target_words = words_of_pair(translator.tokenizer, pair)
    source_word = [words.start for words in source_words[pair.tags :]]

    def weight(source: int, target: int) -> float:
        rows = [i for i, words in enumerate(target_words) if target in words]
        columns = [j for j, word in enumerate(source_word) if word == source]
        return float(aligned.tokens_TS[np.ix_(rows, columns)].sum(1).mean())

    words = link_words(aligned.tokens_TS, source_word, target_words, choice.method)
    phrases = link_phrases(aligned, source_word, target_words)
    return {"word_links": [[s, t, weight(s, t)] for s, t in words], "phrase_links": plain_links(phrases)}


def plain_links(links: Sequence[PhraseLink]) -> list[Any]:
    """Links of phrases as plain data."""
    return [[list(link.source), list(link.target), link.weight] for link in links]


def phrase_attention(
    weights: Sequence[Tensor],
    kinds_L: Sequence[str],
    use: str,
    rows: TokenAxis,
    source: TokenAxis,
    spans: Sequence[tuple[int, int]],
) -> Iterator[dict[str, Any]]:
    """For each layer of one use, its entry of `attention`; weights (1, H, Q, P), `source` has the source tokens.

    Raises ModelError for NaN.
    """
    row_axis, queries = rows.axis([1])
    columns = {
        "labels": [source.tokens.label(end - begin, end - 1) for begin, end in spans],
        "orders": [end - begin for begin, end in spans],
        "ends": [end - 1 for _, end in spans],
        "side": source.side,
    }
    for layer, (weights_1HQP, kind) in enumerate(zip(weights, kinds_L, strict=True), 1):
        refuse_nan(weights_1HQP)
        cells_HRC = weights_1HQP[0, :, : len(queries), : len(spans)].double().cpu().numpy()
        yield {
            "use": use,
            "layer": layer,
            "heads": len(cells_HRC),
            "kind": kind,
            "rows": row_axis,
            "columns": columns,
            "weights": pack(cells_HRC),
            "tokens": None,
        }


def phrase_vectors(levels: PhraseLevels) -> list[dict[str, Any]]:
    """The phrases of each level of the encoder, with the weight of each token."""
    spans = levels.segments.spans(0)
    result = []
    for level, (weights_BPS, layer) in enumerate(zip(levels.weights, levels.representations, strict=True)):
        if weights_BPS is not None:
            refuse_nan(weights_BPS)
        phrases = []
        for p, (begin, end) in enumerate(spans):
            weights = [] if weights_BPS is None else weights_BPS[0, p, begin:end].tolist()
            share = None if weights_BPS is None else 0.0
            if isinstance(layer.scorer, GatedPhraseScorer):
                share = max(0.0, 1.0 - sum(weights))
            phrases.append({"begin": begin, "end": end, "weights": weights, "share": share})
        stage = "encoder" if level else "embeddings"
        result.append({"stage": stage, "layer": level or None, "phrases": phrases})
    return result
