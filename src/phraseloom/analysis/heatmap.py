"""Attention heat maps as in the papers (paper 000 Figures 2 and 3; paper 002 Figures 4 to 6).

Rows are queries and columns are slots: the block of tokens first, then the blocks of n-grams. So the quadrants are
token-to-token (upper left), token-to-phrase (upper right), phrase-to-token (lower left), phrase-to-phrase (lower right). Only
existing n-grams are shown. A map shows one head or the mean over heads; a head without slots of an order counts as zero there,
so a row sums to one.

The axes:

    encoder-self   source pieces and EOS, both ways
    decoder-self   the decoder input, both ways: BOS and the target pieces
    cross          rows: target pieces and EOS, the predicted pieces; columns: source pieces and EOS
    encoder-phrases, decoder-phrases     rows: source or target pieces as above; columns: source phrases (P001 §3.4)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from phraseloom.analysis.activation import USES
from phraseloom.analysis.attention import look_in_batches
from phraseloom.decoding.alignment import alignment_layer, one_head, slot_weights
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.long_lines import crop_targets
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.decoding.translation import TranslationReport
from phraseloom.errors import DataError, UsageError
from phraseloom.layers.attention.structure import Structure
from phraseloom.text.vocabulary import BOS, EOS, SPECIALS

PHRASE_USES = ("encoder-phrases", "decoder-phrases")
JOINT = "·"
NOTHING = "∅"
CUT = "…"


@dataclass(frozen=True)
class Axis:
    """The label of each line and its n-gram order, ascending; 0 for source phrases."""

    labels: list[str]
    orders: list[int]

    def blocks(self) -> list[tuple[int, int, int]]:
        """(order, first, last + 1) of each block."""
        result = []
        for order in dict.fromkeys(self.orders):
            first = self.orders.index(order)
            result.append((order, first, first + self.orders.count(order)))
        return result


@dataclass(frozen=True)
class HeatMap:
    """Weights (rows, columns) with their axes; `hidden` marks masked cells (the future of the decoder).

    `use`, `layer` (from 1) and `head` (from 1; None for the mean of `heads` heads) identify the attention.
    """

    weights: np.ndarray
    hidden: np.ndarray
    rows: Axis
    columns: Axis
    use: str
    layer: int
    head: int | None
    heads: int


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side: `text(first, last)` of a range of pieces, and whether a word begins with each piece.

    Labels are readable text with words joined by `·`: `the`, `winter·garden`, `t-shirt`. A label that begins inside a word has
    `…` in front, `…garten·ist`, but not before punctuation and in scripts without spaces.
    """

    text: Callable[[int, int], str]
    starts: Sequence[bool]

    def axis(self, orders: Sequence[int], *, zero_extended: bool = False) -> tuple[Axis, list[tuple[int, int]]]:
        """The existing n-grams of each order, and (number of the order, last token) for each."""
        labels, label_orders, places = [], [], []
        for n, order in enumerate(orders):
            for last in range(0 if zero_extended else order - 1, len(self.starts)):
                labels.append(self.label(order, last))
                label_orders.append(order)
                places.append((n, last))
        return Axis(labels, label_orders), places

    def label(self, order: int, last: int) -> str:
        """The n-gram that ends at token `last`, with `∅` for each token before the sentence."""
        first = last - order + 1
        before = NOTHING * max(0, -first) + (JOINT if first < 0 else "")
        text = self.text(max(first, 0), last + 1).replace(" ", JOINT)
        is_cut = (
            not self.starts[max(first, 0)] and text[:1].isalnum() and unicodedata.east_asian_width(text[0]) not in "WF"
        )
        return before + (CUT if is_cut else "") + text


def make_map(
    weights_BHQK: Tensor, structure: Structure, rows: Tokens, columns: Tokens, *, use: str, layer: int, head: int | None
) -> HeatMap:
    """The map of the first sentence of weights (B, H, J·Q, G·K); `layer` and `head` count from 1.

    Raises UsageError for a head that does not exist.
    """
    heads = structure.heads
    _require_head(head, heads)
    if head is not None:
        weights_BHQK, structure = one_head(weights_BHQK, structure, head - 1)
    slots_MNQK = slot_weights(weights_BHQK[:1], structure)[0].double().cpu().numpy()
    row_axis, queries = rows.axis(structure.query_orders)
    column_axis, slots = columns.axis(structure.orders, zero_extended=structure.zero_extended)
    m, i = np.array(queries, np.int64).reshape(-1, 2).T[:, :, None]
    n, j = np.array(slots, np.int64).reshape(-1, 2).T[:, None, :]
    hidden_QK = (j > i) & (use == "decoder-self")
    return HeatMap(slots_MNQK[m, n, i, j], hidden_QK, row_axis, column_axis, use, layer, head, heads)


def heat_map(
    translator: Any,
    source: str,
    target: str | None = None,
    *,
    use: str = "cross",
    layer: int | None = None,
    head: int | None = None,
    tree: str | None = None,
    number: int = 0,
) -> HeatMap:
    """The map of a source line with a forced `target`, or with the model's own translation.

    `layer` counts from 1; the default is the alignment layer (the last but one). `head` counts from 1; the default is the mean
    of all. A side that is too long is cropped. `tree` of the source is for models with phrases from parse trees. `number` of
    the line in its text, from 0, is for models that draw their translation.
    Raises UsageError (use, layer, head, tree), DataError (blank lines, a tree that does not fit).
    """
    if use not in (*USES, *PHRASE_USES):
        raise UsageError(f"no use {use!r}", hint=f"one of {', '.join((*USES, *PHRASE_USES))}")
    translator = translator.first_model()
    side, other = translator.tokenizer.source, translator.tokenizer.target
    trees = None if tree is None else [tree]
    (source_ids,), phrases, _ = cropped_sources(translator, [source], trees)
    if not source_ids:
        raise DataError("the source is blank: it has no attention")
    in_encoder = use.startswith("encoder")
    target_ids: list[int] = []
    if not in_encoder:
        target_ids = (
            _own_translation(translator, source, trees, number)
            if target is None
            else crop_targets(translator, [target])[0][0]
        )
    _, _, maps = next(look_in_batches(translator, [source_ids], [target_ids], phrases, sentences=1, tokens=1))
    layers = getattr(maps, use.replace("-", "_"))
    if not layers:
        raise UsageError(f"this model has no {use} attention")
    index = _layer_index(layer, len(layers), "encoder" if in_encoder else "decoder")
    keys = tokens_of(side, [*source_ids, EOS])
    if use in PHRASE_USES:
        queries = keys if in_encoder else tokens_of(other, [*target_ids, EOS])
        spans = maps.phrases.segments.spans(0)
        return _phrase_map(layers[index][0], spans, queries, keys, use=use, layer=index + 1, head=head)
    weights, structure = layers[index]
    refuse_nan(weights)
    if use == "cross":
        rows, columns = tokens_of(other, [*target_ids, EOS]), keys
    else:
        rows = columns = keys if use == "encoder-self" else tokens_of(other, [BOS, *target_ids])
    return make_map(weights, structure, rows, columns, use=use, layer=index + 1, head=head)


def _phrase_map(
    weights_HQP: Tensor,
    spans: Sequence[tuple[int, int]],
    rows: Tokens,
    source: Tokens,
    *,
    use: str,
    layer: int,
    head: int | None,
) -> HeatMap:
    """The attention of the tokens of a layer to each source phrase. Raises UsageError for a head that does not exist."""
    refuse_nan(weights_HQP)
    heads = len(weights_HQP)
    _require_head(head, heads)
    shown_QP = (weights_HQP.double().mean(0) if head is None else weights_HQP[head - 1].double()).cpu().numpy()
    labels = [source.label(end - begin, end - 1) for begin, end in spans]
    columns = Axis(labels, [0] * len(labels))
    return HeatMap(shown_QP, np.zeros(shown_QP.shape, bool), rows.axis([1])[0], columns, use, layer, head, heads)


def _require_head(head: int | None, heads: int) -> None:
    if head is not None and not 1 <= head <= heads:
        raise UsageError(f"head {head}: this attention has heads 1 to {heads}")


def tokens_of(side: Any, ids: list[int]) -> Tokens:
    """The tokens of ids with BOS or EOS at the ends; a piece without readable text (a byte, a space) is shown by its name."""

    def text(first: int, last: int) -> str:
        window = ids[first:last]
        parts = [SPECIALS[i] for i in window[:1] if i == BOS]
        parts += [word for word in [side.subwords.decode(window).strip(" ")] if word]
        parts += [SPECIALS[i] for i in window[-1:] if i == EOS]
        read = " ".join(parts)
        is_text = read and "\ufffd" not in read
        return read if is_text else "".join(side.vocabulary.piece(i) for i in window)

    starts = side.word_starts(ids)
    ends = [i in (BOS, EOS) for i in ids]
    return Tokens(
        text, [s or end or i == 0 or ends[i - 1] for i, (s, end) in enumerate(zip(starts, ends, strict=True))]
    )


def _own_translation(translator: Any, source: str, trees: list[str] | None, number: int) -> list[int]:
    id_of = translator.tokenizer.target.vocabulary.id
    options: dict[str, Any] = {"long_lines": "crop", "split_sentences": False, "n_best": 1, "numbers": [number]}
    result = translator.translate([source], trees=trees, report=TranslationReport(), **options)
    return [id_of(token) for token in result[0].tokens]


def _layer_index(layer: int | None, layers: int, stack: str) -> int:
    if layer is None:
        return alignment_layer(None, layers)
    if not 1 <= layer <= layers:
        raise UsageError(f"layer {layer}: the {stack} has layers 1 to {layers}")
    return layer - 1
