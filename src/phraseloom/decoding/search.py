"""Search for the best output of a model: greedy where the beam is 1, else by beam; for a segmental model, one of its own."""

from __future__ import annotations

from typing import Any

import torch

from phraseloom.decoding.beam import beam_search
from phraseloom.decoding.greedy import greedy_search
from phraseloom.decoding.limits import Hypothesis, Limits, SearchModel, SearchOptions
from phraseloom.errors import UsageError
from phraseloom.npmt.search import is_segmental, segmental_search

__all__ = ["Hypothesis", "Limits", "SearchModel", "SearchOptions", "search"]


def search(model: Any, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """For each sentence of `memory` up to `n_best` hypotheses, best first; never fewer than one.

    `model`: a `SearchModel`, or a `SegmentModel` (`segments.py`). Raises ModelError where the model gives NaN, UsageError for a
    word bonus where there are no segments.
    """
    with torch.inference_mode():
        if is_segmental(model):
            return segmental_search(model, memory, limits, options)
        if options.word_bonus:
            raise UsageError(
                f"word_bonus {options.word_bonus:g} is for segmental models", hint="use length_penalty for this one"
            )
        return (greedy_search if options.beam == 1 else beam_search)(model, memory, limits, options)
