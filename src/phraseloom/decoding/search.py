"""Search for the best output of a model, and what the model says of it, by how the model writes: tokens, or segments (NPMT).

Ending a search that nobody waits for any more: its caller gives a question, which is asked between two steps.

What the search needs from a model, and the bounds, forced prefixes and results of a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import torch

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.cancellation import Cancelled, Question, go_on
from phraseloom.decoding.limits import (
    NEVER,
    Hypothesis,
    Limits,
    OutputScorer,
    SearchModel,
    SearchOptions,
    Segment,
    ban,
    refuse_nan,
)
from phraseloom.decoding.parts import Found
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Tokenizer

__all__ = [
    "Cancelled",
    "Hypothesis",
    "Limits",
    "NEVER",
    "OutputScorer",
    "Question",
    "SearchModel",
    "SearchOptions",
    "Segment",
    "Writer",
    "ban",
    "go_on",
    "refuse_nan",
    "search",
    "writer_of",
]


WRITERS = {"tokens": "phraseloom.decoding.tokens", "segments": "phraseloom.npmt.search"}
"""The module with the functions of `Writer`, by what a model `writes`."""


class Writer(Protocol):
    """What translating asks of a way to write."""

    def search(self, model: Any, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
        """As `search` below."""
        ...

    def can_align(self, model: Any) -> bool:
        """Whether the model says from which source tokens its words come."""
        ...

    def check(self, model: Any, config: DecodingConfig, *, aligned: bool) -> None:
        """UsageError where the options choose an attention that the model does not have; `aligned`: whether one is needed."""
        ...

    def links(
        self, model: Any, tokenizer: Tokenizer, pieces: Sequence[Piece], found: Sequence[list[Hypothesis]], memory: Any,
        config: DecodingConfig, *, alignments: bool, replacing: bool,
    ) -> list[Found]:  # fmt: skip
        """The hypotheses of each piece with their links, and with their unknown words where they are to be replaced."""
        ...


def writer_of(model: Any) -> Writer:
    """The functions for what `model` writes."""
    return cast(Writer, import_module(WRITERS[model.writes]))


def search(model: Any, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """For each sentence of `memory` up to `n_best` hypotheses, best first; never fewer than one.

    `model`: a `SearchModel`, or a `SegmentModel` (`npmt/candidates.py`). Raises ModelError where the model gives NaN,
    UsageError for a word bonus where there are no segments.
    """
    with torch.inference_mode():
        return writer_of(model).search(model, memory, limits, options)
