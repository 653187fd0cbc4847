"""Search for the best output of a model: greedy where the beam is 1, beam search otherwise."""

from __future__ import annotations

from typing import Any

import torch

from phraseloom.decoding.beam import beam_search
from phraseloom.decoding.greedy import greedy_search
from phraseloom.decoding.limits import Hypothesis, Limits, SearchModel, SearchOptions

__all__ = ["Hypothesis", "Limits", "SearchModel", "SearchOptions", "search"]


def search(model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """For each sentence of `memory` up to `n_best` hypotheses, best first; never fewer than one.

    Raises ModelError where the model gives NaN.
    """
    with torch.inference_mode():
        return (greedy_search if options.beam == 1 else beam_search)(model, memory, limits, options)
