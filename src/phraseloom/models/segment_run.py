"""The rows of a batch, run through the network that writes segments: in portions, each row as far as it has to go (spec §5.2).

Rows share what is equal in them. The state after START is that of a source position (unless the words before are read too), so
it is made once and not at each cut; what the first layer reads of a word is one product for all rows. Dropout masks are a
function of the portion and of one seed, so that a portion can be run again, or some of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from phraseloom.layers.dropout import dropout
from phraseloom.losses.segment_softmax import Pairs
from phraseloom.models.segment_decoder import Drop, Read, ResidualCells
from phraseloom.models.segment_rows import SegmentRows


class Sentences(NamedTuple):
    """How many words both sides have, (B,) each, and the words of the targets one after the other, (N,)."""

    source_lengths_B: Tensor
    target_lengths_B: Tensor
    words_N: Tensor


class Inputs(NamedTuple):
    """What the rows are made of: the source states (K, D), what is read of the words (N) and of START (1), and the history
    (N + B, D) at every cut, where there is one."""

    states_KD: Tensor
    words: Read
    start: Read
    history_HD: Tensor | None

    def part(self, job: Job, positions: slice, rows: slice) -> Inputs:
        """Those of a portion, as leaves of a graph of its own."""
        words = job.words_of(rows)
        read = Read(self.words.gates[words], self.words.residual[words])
        history = None if self.history_HD is None else self.history_HD[job.cuts_of(rows)]
        return _leaves(Inputs(self.states_KD[positions], read, self.start, history))

    def tensors(self) -> list[Tensor]:
        """All that there are."""
        some = [self.states_KD, *self.words, *self.start]
        return some if self.history_HD is None else [*some, self.history_HD]


def _leaves(given: Inputs) -> Inputs:
    history = None if given.history_HD is None else given.history_HD.detach().requires_grad_()
    words, start = (Read(*(t.detach().requires_grad_() for t in read)) for read in (given.words, given.start))
    return Inputs(given.states_KD.detach().requires_grad_(), words, start, history)


@dataclass
class Job:
    """The rows of a batch and the network that runs them.

    `negligible`: words of a row whose probability, given the pair, is not above it have no gradient.
    """

    cells: ResidualCells
    end_token: int
    max_segment: int
    sentences: Sentences
    rows: SegmentRows
    connects: bool
    steps_together: int
    seed: int | None  # None: no dropout
    mixed: torch.dtype | None = None  # of autocast, where it is on
    negligible: float = 0.0

    def words_of(self, rows: slice) -> slice:
        """The words that rows may write, among those of the batch."""
        return self._span(self.rows.word_R[rows], self.rows.words_R[rows])

    def cuts_of(self, rows: slice) -> slice:
        """Their cuts, among those of the batch."""
        return self._span(self.rows.history_R[rows], torch.ones_like(self.rows.history_R[rows]))

    @staticmethod
    def _span(first_R: Tensor, count_R: Tensor) -> slice:
        return slice(int(first_R.min()), int((first_R + count_R).max()))


class Portion:
    """A run of positions with their rows. Units have a state of their own after START: positions, or rows if connected."""

    def __init__(self, job: Job, positions: slice, rows: slice) -> None:
        of = job.rows
        self.job, self.inputs_of = job, (positions, rows)
        self.words_R = of.words_R[rows]
        self.word_R = of.word_R[rows] - job.words_of(rows).start
        self.token_R = job.sentences.words_N[job.words_of(rows)]
        self.position_R = of.position_R[rows] - positions.start
        device = self.words_R.device
        self.unit_R = torch.arange(len(self.words_R), device=device) if job.connects else self.position_R
        self.units = len(self.words_R) if job.connects else positions.stop - positions.start
        self.history_R = of.history_R[rows] - job.cuts_of(rows).start
        self.order_R = self.words_R.argsort(descending=True, stable=True)
        counts = torch.bincount(self.words_R, minlength=job.max_segment + 1).flip(0).cumsum(0).flip(0)
        self.alive = counts.tolist()  # rows of at least so many words
        self.rank_R = self.order_R.argsort()

    def masks(self) -> list[list[Tensor]] | None:
        """The dropout masks of every step and layer, of units (step 0) or of rows in the order `order_R`."""
        job = self.job
        if job.seed is None:
            return None
        device, width = self.words_R.device, job.cells.width
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed((job.seed + self.inputs_of[0].start) % 2**63)
            rows = [self.units, *self.alive[1:]]
            return [
                [
                    dropout(torch.ones(count, width, device=device), job.cells.dropout, True)
                    for _ in range(len(job.cells.cells))
                ]
                for count in rows
            ]

    def begin(self, inputs: Inputs, units_U: Tensor | None = None) -> Tensor:
        """What the first layer begins with in each unit (or in some of them)."""
        if inputs.history_HD is None:
            return inputs.states_KD if units_U is None else inputs.states_KD.index_select(0, units_U)
        start = inputs.states_KD.index_select(0, self.position_R) + inputs.history_HD.index_select(0, self.history_R)
        return start if units_U is None else start.index_select(0, units_U)

    def run(self, inputs: Inputs, order_R: Tensor, alive: list[int], units_U: Tensor | None) -> Iterator[Tensor]:
        """The top states after START in each unit, then after 1, 2, … words in the first `alive[i]` rows of `order_R`.

        `units_U`: only these units are run, and all rows of `order_R` are of them.
        """
        job, cells = self.job, self.job.cells
        masks = self.masks()
        states = cells.start(self.begin(inputs, units_U))
        start = Read(*(part.expand(len(states.layers[0][0]), -1) for part in inputs.start))
        yield cells.step(start, states, _drop(masks, 0, units_U))
        unit_R = self.unit_R
        if units_U is not None:
            places = torch.empty(self.units, dtype=torch.int64, device=unit_R.device)
            places[units_U] = torch.arange(len(units_U), device=unit_R.device)
            unit_R = places[unit_R]
        for step in range(1, job.max_segment + 1):
            rows_R = order_R[: alive[step]]
            if not len(rows_R):
                return
            if step == 1:
                states.reorder(unit_R.index_select(0, rows_R))
            else:
                states.layers = [tuple(part[: len(rows_R)] for part in state) for state in states.layers]
            read = inputs.words.select(self.word_R.index_select(0, rows_R) + (step - 1))
            chosen = None if masks is None else self.rank_R.index_select(0, rows_R)
            yield cells.step(read, states, _drop(masks, step, chosen))

    def asked(self, step: int, rows_R: Tensor, unit_R: Tensor) -> tuple[Pairs, Tensor]:
        """The words that follow `step` words of rows, whose states are at `unit_R`: pairs, and which of the rows have one."""
        more = (self.words_R.index_select(0, rows_R) > step).nonzero()[:, 0]
        token = self.token_R.index_select(0, self.word_R.index_select(0, rows_R.index_select(0, more)) + step)
        return Pairs(unit_R.index_select(0, more), token), more

    def ends(self, count: int) -> Pairs:
        """END of `count` states."""
        units = torch.arange(count, device=self.words_R.device)
        return Pairs(units, torch.full_like(units, self.job.end_token))


def _drop(masks: list[list[Tensor]] | None, step: int, chosen_R: Tensor | None) -> Drop | None:
    if masks is None:
        return lambda x, layer: x
    of_step = masks[step]
    return lambda x, layer: x * (of_step[layer] if chosen_R is None else of_step[layer].index_select(0, chosen_R))
