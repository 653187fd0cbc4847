"""The matrix-product FLOP of a segmental model (NPMT; spec §5), counted like those of other models (`models/flops.py`).

A row is a source position with a cut of the target where its segment may begin; those count that lie on some segmentation,
within the band of `decoder.approximation` if there is one. EOS is not counted. Multiply-adds of a forward pass, with W the
words that all rows read, D the width, E that of the embeddings, L layers of G gates (GRU 3, LSTM 4), V types:

    reordering     window · window · E                      a source word and layer
    columns        2 · Σ_l G·c·(I_l + c) + 2·c·D             a source word; c the width of a column; residual maps E·c each
    segments       G·D·D + (L-1)·G·D·2D                     a START (one a position; connected: one a row), and each of W
                   G·D·E + E·D                              a target word and START: what the first layer reads, for all rows
    softmax        D·(V + 2)                                a START and each of W
    history        as segments, without softmax             a target word, of a connected decoder

An update is three of these, as formulas go. As it is computed the rows are run twice forward, the second time only as far as
their posterior says, so at most four.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from phraseloom.models.flops_parts import GATES, RecurrentEncoderCost, TransformerEncoderCost, cell_cost
from phraseloom.npmt.rows import SegmentRows

EXTRA_TYPES = 2  # START and END


def segmental_parts(model: Any, vocabulary: int, pairs: Iterable[tuple[int, int]]) -> dict[str, int]:
    """Multiply-adds of a forward pass of sentence pairs (lengths with EOS), from a ModelConfig: encoder, segments, softmax."""
    counted = list(pairs)
    source, target = (torch.tensor([max(0, pair[side] - 1) for pair in counted]) for side in (0, 1))
    options, width, embedded = model.decoder, model.width, model.embedding_width or model.width
    band = None if options.approximation is None else options.approximation.band
    rows = SegmentRows.of(source, target, options.max_segment, band=band)
    starts = len(rows.words_R) if options.connect else len(rows.sentence_K)
    steps, words = starts + int(rows.words_R.sum()), int(target.sum())
    residual = 0 if embedded == width else embedded * width
    read = GATES[options.cell] * width * embedded + residual
    step = GATES[options.cell] * width * width + (options.layers - 1) * cell_cost(options.cell, width, width)
    history = (words + len(counted)) * (read + step) if options.connect else 0
    return {
        "encoder": sum(_encoder(model, n, embedded) for n in source.tolist()),
        "segments": steps * step + (words + 1) * read + history,
        "softmax": steps * width * (vocabulary + EXTRA_TYPES),
    }


def segmental_flop(model: Any, vocabulary: int, pairs: Iterable[tuple[int, int]], *, computed: bool = False) -> int:
    """FLOP of an update of sentence pairs. `computed`: with the rows run twice forward, nothing left out of the second run."""
    parts = segmental_parts(model, vocabulary, pairs)
    again = parts["segments"] + parts["softmax"] if computed else 0
    return 6 * sum(parts.values()) + 2 * again


def _encoder(model: Any, words: int, embedded: int) -> int:
    options, total = model.encoder, 0
    if model.reordering is not None:
        window = model.reordering.window
        total += model.reordering.layers * words * window * window * embedded
    if options.kind == "transformer":
        return total + TransformerEncoderCost.of(model, None).full(words)
    if options.kind == "recurrent":
        return total + RecurrentEncoderCost.of(model, None).full(words)
    column = options.width or model.width // 2
    cells = sum(cell_cost(options.cell, column if layer else embedded, column) for layer in range(options.layers))
    residual = 0 if embedded == column else embedded * column
    return total + words * 2 * (cells + residual + column * model.width)
