"""Search for the best outputs of a model, and their links: one module for models that write tokens, one for segments (NPMT)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import torch

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.limits import Hypothesis, Limits, SearchOptions
from phraseloom.decoding.parts import PieceResult
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Tokenizer

WRITERS = {"tokens": "phraseloom.decoding.tokens", "segments": "phraseloom.npmt.search"}
"""The module that implements `Writer`, by what a model `writes`."""


class Writer(Protocol):
    """The functions that translation needs for a kind of output."""

    def search(self, model: Any, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
        """See `search` below."""
        ...

    def can_align(self, model: Any) -> bool:
        """Whether the model links its words to source tokens."""
        ...

    def check(self, model: Any, config: DecodingConfig, *, aligned: bool) -> None:
        """Raise UsageError for an option that the model lacks, such as an attention; `aligned`: whether one is needed."""
        ...

    def links(
        self, model: Any, tokenizer: Tokenizer, pieces: Sequence[Piece], n_best: Sequence[list[Hypothesis]], memory: Any,
        config: DecodingConfig, *, alignments: bool, replacing: bool,
    ) -> list[PieceResult]:  # fmt: skip
        """The hypotheses of each piece with their links, and with unknown words if they are replaced."""
        ...


def writer_of(model: Any) -> Writer:
    """The `Writer` of a model."""
    return cast(Writer, import_module(WRITERS[model.writes]))


def search(model: Any, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """Up to `n_best` hypotheses for each sentence of `memory`, best first; at least one each.

    `model`: a `SearchModel`, or a `SegmentModel` (`npmt/candidates.py`). Raises ModelError if the model gives NaN.
    """
    with torch.inference_mode():
        return writer_of(model).search(model, memory, limits, options)
