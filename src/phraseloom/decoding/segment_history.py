"""What a connected segmental model has read of the outputs so far: one row a hypothesis (spec §5.1).

Hypotheses of equal words have equal states, so merging them loses nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phraseloom.models.segment_decoder import CellStates


class History:
    """The states of some hypotheses; at first of empty ones."""

    def __init__(self, model: Any, rows: int) -> None:
        self.model, self.states = model, model.history_start(rows)

    @property
    def output(self) -> Tensor:
        """What a segment behind each hypothesis is given, (R, D)."""
        output_RD = self.states.output_RD
        assert output_RD is not None
        return output_RD

    def write(self, rows: Sequence[int], words: Sequence[tuple[int, ...]]) -> None:
        """Hypothesis i becomes what `rows[i]` was with `words[i]` behind it."""
        device = self.output.device
        lengths = [len(some) for some in words]
        order = sorted(range(len(rows)), key=lambda i: lengths[i])
        live = copy.copy(self.states)
        live.reorder(torch.tensor([rows[i] for i in order], dtype=torch.long, device=device))
        done: list[CellStates] = []
        begin = 0
        for length in range(max(lengths, default=0) + 1):
            count = sum(lengths[i] == length for i in order[begin:])
            ready = copy.copy(live)
            ready.reorder(torch.arange(count, device=device))
            done.append(ready)
            begin += count
            if begin == len(order):
                break
            live.reorder(torch.arange(count, len(live.layers[0][0]), device=device))
            tokens = torch.tensor([words[i][length] for i in order[begin:]], dtype=torch.long, device=device)
            self.model.history_step(tokens, live)
        self.states = _joined(done)
        places = torch.empty(len(order), dtype=torch.long, device=device)
        places[torch.tensor(order, dtype=torch.long, device=device)] = torch.arange(len(order), device=device)
        self.states.reorder(places)


def _joined(parts: Sequence[CellStates]) -> CellStates:
    """The rows of all parts, one part behind the other."""
    layers = [
        tuple(torch.cat(tensors) for tensors in zip(*states, strict=True))
        for states in zip(*(part.layers for part in parts), strict=True)
    ]
    outputs = [part.output_RD for part in parts if part.output_RD is not None]
    return CellStates(layers, torch.cat(outputs) if outputs else None)
