"""The matrix-product FLOP of a segmental model (NPMT), counted as for other models (`models/flops.py`).

A row is a source position with a cut of the target where its segment may begin. Rows count if they are part of a segmentation,
and within the band of `decoder.approximation` if there is one. EOS does not count. Multiply-adds of a forward pass, with W the
words that all rows read, D the width, V types; torch counts encoder and cells:

    encoder        of each sentence
    segments       a step of the cells     a START (one per position; connected: per row), and each of W
                   input of the first      a target word and START, for all rows
    softmax        D·(V + 2)               a START and each of W; with `approximation.negatives`, at most this many types
                                           and one per target word beside START and END
    history        as segments             a target word of a connected decoder

By the usual formula an update costs three forward passes. The implementation runs the rows forward twice, the second time only
as far as their posterior needs, so at most four.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from phraseloom.errors import UsageError
from phraseloom.models.flops import META, Pair, count, shapes_of, tokens
from phraseloom.npmt.model import SegmentalModel
from phraseloom.npmt.rows import SegmentRows
from phraseloom.options.model import ModelConfig
from phraseloom.options.segmental import EXTRA_TOKENS


class SegmentCost:
    """The cost of a model that writes segments. `computed`: count two full forward runs of the rows."""

    remark: str | None = "segments: the rows run forward twice, and sentences have the mean length"

    def __init__(self, model: SegmentalModel, *, computed: bool = False) -> None:
        self.model, self.computed = model, computed
        cells, embedded = model.decoder.segment, model.target_embedding.weight.shape[1]
        with META, torch.no_grad():
            token, start = torch.empty(1, embedded), torch.empty(1, cells.width)
        with torch.no_grad():
            read, states = cells.read(token), cells.start(start)
            self.read = count(lambda: cells.read(token)) // 2
            self.step = count(lambda: cells.step(read, states)) // 2
        self.encoders: dict[int, int] = {}

    def parts(self, pairs: Sequence[Pair]) -> dict[str, int]:
        """Multiply-adds of a forward pass of sentence pairs (lengths with EOS): encoder, segments, softmax."""
        model = self.model
        source, target = (torch.tensor([max(0, pair[side] - 1) for pair in pairs]) for side in (0, 1))
        band = None if model.approximation is None else model.approximation.band
        rows = SegmentRows.of(source, target, model.max_segment, band=band)
        starts = len(rows.words_R) if model.connects else len(rows.sentence_K)
        steps, words = starts + int(rows.words_R.sum()), int(target.sum())
        history = (words + len(pairs)) * (self.read + self.step) if model.connects else 0
        types, width = model.output.weight.shape
        if model.approximation is not None and model.approximation.negatives is not None:
            types = min(types, model.approximation.negatives + words + EXTRA_TOKENS)
        return {
            "encoder": sum(self._encoder(length) for length, _ in pairs),
            "segments": steps * self.step + (words + 1) * self.read + history,
            "softmax": steps * width * types,
        }

    def _encoder(self, length: int) -> int:
        if length not in self.encoders:
            source_BS = torch.tensor([[*tokens(length), 0]])
            with torch.no_grad():
                self.encoders[length] = count(lambda: self.model.encode(source_BS, None)) // 2
        return self.encoders[length]

    def training(self, pairs: Sequence[Pair]) -> int:
        """FLOP of an update of sentence pairs."""
        parts = self.parts(pairs)
        again = parts["segments"] + parts["softmax"] if self.computed else 0
        return 6 * sum(parts.values()) + 2 * again

    def search(self, pairs: Sequence[Pair], *, beam: int) -> int:
        """Raises UsageError: the FLOP of a search depend on its hypotheses."""
        raise UsageError("the FLOP of a search for segments depend on its hypotheses", hint="count those of an update")


cost_of = SegmentCost


def segmental_parts(config: ModelConfig, vocabulary: int, pairs: Iterable[Pair]) -> dict[str, int]:
    """Multiply-adds of a forward pass of sentence pairs (lengths with EOS): encoder, segments, softmax."""
    model = shapes_of(config, vocabulary)
    assert isinstance(model, SegmentalModel)
    return SegmentCost(model).parts(list(pairs))
