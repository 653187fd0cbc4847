"""The network that writes one segment, and the rows of a batch that it runs on (Huang et al. 2018; spec §5.1-5.2).

**The network** writes one segment of the target from one source position.

    x⁰ = E y,   xˡ = dropout(RNNˡ(xˡ⁻¹) + xˡ⁻¹),   top = x^L            a bias-free map of x⁰ where the widths differ

The first layer begins with the vector of the source position as its hidden state (GRU) or as its cell state, the hidden one
being zero (LSTM); the layers above it begin at zero. What it reads first is START, and it writes until END.

**Rows.** A row is a source position t (from 0) with a cut j where its segment may begin. Every position before it writes at
most X words, and so does every position behind it, hence of T1 positions and T2 words

    max(0, T2 - (T1 - t) X) ≤ j ≤ min(T2, t X)

With a band of w words around the diagonal (an approximation) also |j - t T2 / T1| ≤ w, both where a segment begins and where
it ends. That leaves a segmentation to every pair that has one, since w is one half at least.

Rows stand by sentence, position and cut. A portion is a run of positions with all their rows.

**Portions.** Rows share what is equal in them. The state after START is that of a source position (unless the words before
are read too), so it is made once and not at each cut; what the first layer reads of a word is one product for all rows.
Dropout masks are a function of the portion and of one seed, so that a portion can be run again, or some of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from phraseloom.layers.feedforward import dropout
from phraseloom.layers.recurrent import Cell, State

Drop = Callable[[Tensor, int], Tensor]
"""Dropout of the output (R, D) of a layer (from 0)."""


class Read(NamedTuple):
    """What the first layer reads of N tokens: its gates (N, gates·D) without the state, and the residual (N, D)."""

    gates: Tensor
    residual: Tensor

    def select(self, tokens_R: Tensor) -> Read:
        """Those of some tokens, by their rows."""
        return Read(self.gates.index_select(0, tokens_R), self.residual.index_select(0, tokens_R))


class CellStates:
    """The state of each layer, (R, D) each; and the output of the last step, once there was one."""

    def __init__(self, layers: list[State], output_RD: Tensor | None = None) -> None:
        self.layers, self.output_RD = layers, output_RD

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        self.layers = [tuple(part.index_select(0, rows_R) for part in state) for state in self.layers]
        if self.output_RD is not None:
            self.output_RD = self.output_RD.index_select(0, rows_R)


class ResidualCells(nn.Module):
    """Stacked cells with a residual around each and dropout behind it; `embedding_width` of what the first one reads."""

    def __init__(self, cells: list[Cell], *, embedding_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.width, self.dropout = cells[0].width, dropout
        self.residual = (
            nn.Identity() if embedding_width == self.width else nn.Linear(embedding_width, self.width, bias=False)
        )

    def read(self, embedded_NE: Tensor) -> Read:
        """What the first layer makes of embedded tokens, whatever its state."""
        return Read(self.cells[0].from_input(embedded_NE), self.residual(embedded_NE))

    def start(self, start_RD: Tensor) -> CellStates:
        """The states before START, from the vector that the first layer begins with."""
        first, zeros = self.cells[0], torch.zeros_like(start_RD)
        states: list[State] = [(*[zeros] * (first.parts - 1), start_RD)]
        states += [(zeros,) * cell.parts for cell in self.cells[1:]]
        return CellStates(states)

    def step(self, read: Read, states: CellStates, drop: Drop | None = None) -> Tensor:
        """Read one token in every row: the top output (R, D); the states go on.

        `drop`: dropout with masks of the caller's; else each is drawn in training.
        """
        x_RD, layers = read.residual, []
        for number, (cell, before) in enumerate(zip(self.cells, states.layers, strict=True)):
            gates = read.gates if number == 0 else cell.from_input(x_RD)
            layers.append(cell.step(gates, before))
            x_RD = layers[-1][0] + x_RD
            x_RD = dropout(x_RD, self.dropout, self.training) if drop is None else drop(x_RD, number)
        states.layers, states.output_RD = layers, x_RD
        return x_RD

    def run(self, embedded_BTE: Tensor) -> Tensor:
        """Whole sentences from zero states, each layer in one call: the top outputs (B, T, D)."""
        x_BTD = embedded_BTE
        for number, cell in enumerate(self.cells):
            output_BTD, _ = cell.run(x_BTD)
            x_BTD = output_BTD + (self.residual(x_BTD) if number == 0 else x_BTD)
            x_BTD = dropout(x_BTD, self.dropout, self.training)
        return x_BTD


@dataclass(frozen=True)
class SegmentRows:
    """Rows R at source positions K of sentences B; ids int64. Of pairs that cannot be segmented there are none.

    `sentence_K`, `place_K`: sentence and position. `position_R` counts in K; `cut_R`: words before the segment; `words_R`:
    words that it may have; `word_R`: its first word among the words of the batch, sentence by sentence; `history_R`: its cut
    among the cuts of the batch. `steps_K`: tokens that the rows of a position read, START of each and words.
    `first_row_K`: where the rows of a position begin, and at last where all of them end.
    """

    sentence_K: Tensor
    place_K: Tensor
    position_R: Tensor
    cut_R: Tensor
    words_R: Tensor
    word_R: Tensor
    history_R: Tensor
    steps_K: np.ndarray
    first_row_K: np.ndarray

    @classmethod
    def of(
        cls,
        source_lengths_B: Tensor,
        target_lengths_B: Tensor,
        max_segment: int,
        *,
        unfinished: bool = False,
        band: float | None = None,
    ) -> SegmentRows:
        """Of pairs with so many words.

        `unfinished`: also the cuts from which the end of the target cannot be reached, and pairs where it never can be.
        `band`: only cuts so near to the diagonal.
        """
        device = source_lengths_B.device
        source, target = source_lengths_B.cpu().numpy(), target_lengths_B.cpu().numpy()
        numbers = np.arange(len(source))
        positions = source * (unfinished | (target <= source * max_segment))
        sentence, place = np.repeat(numbers, positions), _counts(positions)
        of = source[sentence], target[sentence]
        low = np.maximum(0, of[1] - (of[0] - place) * max_segment) * (not unfinished)
        high, furthest = np.minimum(of[1], place * max_segment), of[1]
        if band is not None:
            low = np.maximum(low, np.ceil((place * of[1] - band * of[0]) / of[0]).astype(np.int64))
            high = np.minimum(high, _below(place, band, *of))
            furthest = np.minimum(furthest, _below(place + 1, band, *of))
        size = high - low + 1
        position = np.repeat(np.arange(len(size)), size)
        cut = _counts(size) + np.repeat(low, size)
        words = np.minimum(max_segment, furthest[position] - cut)
        before = np.cumsum(target) - target
        word = before[sentence[position]] + cut
        history = word + sentence[position]
        steps = np.bincount(position, words + 1, len(size)).astype(np.int64)
        first = np.concatenate([[0], np.cumsum(size)])
        arrays = (sentence, place, position, cut, words, word, history)
        k, place_k, r, cut_r, words_r, word_r, history_r = (
            torch.from_numpy(a.astype(np.int64)).to(device) for a in arrays
        )
        return cls(k, place_k, r, cut_r, words_r, word_r, history_r, steps, first)

    def portions(self, limit: int) -> Iterator[tuple[slice, slice]]:
        """Runs of positions and their rows, of at most about `limit` steps, one position at least."""
        begin = total = 0
        for number, steps in enumerate(self.steps_K.tolist()):
            if total and total + steps > limit:
                yield self._portion(begin, number)
                begin, total = number, 0
            total += steps
        if begin < len(self.steps_K):
            yield self._portion(begin, len(self.steps_K))

    def _portion(self, begin: int, end: int) -> tuple[slice, slice]:
        return slice(begin, end), slice(int(self.first_row_K[begin]), int(self.first_row_K[end]))


def _below(place_K: np.ndarray, band: float, source_K: np.ndarray, target_K: np.ndarray) -> np.ndarray:
    """The last cut within the band before a position."""
    return np.floor((place_K * target_K + band * source_K) / source_K).astype(np.int64)


def _counts(sizes: np.ndarray) -> np.ndarray:
    """0 … n-1 for each n of `sizes`, one after the other."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)


class Pairs(NamedTuple):
    """Tokens that are asked for: of `row_P` the token `token_P`."""

    row_P: Tensor
    token_P: Tensor


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
