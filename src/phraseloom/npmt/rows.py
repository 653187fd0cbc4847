"""The network that writes one segment, and the rows of a batch that it runs on (Huang et al. 2018).

**The network** writes one segment of the target from one source position.

    x⁰ = E y,   xˡ = dropout(RNNˡ(xˡ⁻¹) + xˡ⁻¹),   top = x^L            a bias-free map of x⁰ where the widths differ

The initial state of the first layer is the vector of the source position: as hidden state (GRU), or as cell state with a zero
hidden state (LSTM). The layers above start from zero. The first input is START, the last output END.

**Rows.** A row is a source position t (from 0) with a cut j where its segment may begin. Every other position writes at most X
words, so for T1 positions and T2 words

    max(0, T2 - (T1 - t) X) ≤ j ≤ min(T2, t X)

With a band of w words around the diagonal (an approximation) also |j - t T2 / T1| ≤ w, at the beginning and the end of a
segment. Every pair that has a segmentation still has one, because w ≥ ½.

Rows are sorted by sentence, position and cut. A portion is a run of positions with all their rows.

**Portions.** Rows share common computations. The state after START depends on the source position only (unless the model reads
the words before), so it is computed once per position, not per cut; the input of the first layer for a word is one product for
all rows. Dropout masks are a function of the portion and of one seed, so that all or some rows of a portion can be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from phraseloom.layers.feedforward import dropout
from phraseloom.layers.initialisation import initialise, xavier_uniform
from phraseloom.layers.recurrent import Cell, State

Drop = Callable[[Tensor, int], Tensor]
"""Dropout of the output (R, D) of a layer (from 0)."""


class Read(NamedTuple):
    """The input of the first layer for N tokens: its gates (N, gates·D) without the state, and the residual (N, D)."""

    gates: Tensor
    residual: Tensor

    def select(self, tokens_R: Tensor) -> Read:
        """The rows of these tokens."""
        return Read(self.gates.index_select(0, tokens_R), self.residual.index_select(0, tokens_R))


class CellStates:
    """The state of each layer, (R, D) each, and the output of the last step (None before the first)."""

    def __init__(self, layers: list[State], output_RD: Tensor | None = None) -> None:
        self.layers, self.output_RD = layers, output_RD

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        self.layers = [tuple(part.index_select(0, rows_R) for part in state) for state in self.layers]
        if self.output_RD is not None:
            self.output_RD = self.output_RD.index_select(0, rows_R)


class ResidualCells(nn.Module):
    """Stacked cells, each with a residual connection and dropout after it; `embedding_width`: the size of the input."""

    def __init__(self, cells: list[Cell], *, embedding_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.width, self.dropout = cells[0].width, dropout
        self.residual = (
            nn.Identity() if embedding_width == self.width else nn.Linear(embedding_width, self.width, bias=False)
        )
        initialise(self, xavier_uniform)

    def read(self, embedded_NE: Tensor) -> Read:
        """The input of the first layer for embedded tokens; independent of its state."""
        return Read(self.cells[0].from_input(embedded_NE), self.residual(embedded_NE))

    def start(self, start_RD: Tensor) -> CellStates:
        """The states before START, from the initial vector of the first layer."""
        first, zeros = self.cells[0], torch.zeros_like(start_RD)
        states: list[State] = [(*[zeros] * (first.parts - 1), start_RD)]
        states += [(zeros,) * cell.parts for cell in self.cells[1:]]
        return CellStates(states)

    def step(self, read: Read, states: CellStates, drop: Drop | None = None) -> Tensor:
        """Read one token in every row and update the states; returns the top output (R, D).

        `drop`: dropout with the caller's masks; without it training draws new masks.
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
        """Run whole sentences from zero states, one call per layer; returns the top outputs (B, T, D)."""
        x_BTD = embedded_BTE
        for number, cell in enumerate(self.cells):
            output_BTD, _ = cell.run(x_BTD)
            x_BTD = output_BTD + (self.residual(x_BTD) if number == 0 else x_BTD)
            x_BTD = dropout(x_BTD, self.dropout, self.training)
        return x_BTD


@dataclass(frozen=True)
class SegmentRows:
    """Rows R at source positions K of sentences B; ids int64. Pairs that cannot be segmented have no rows.

    `sentence_K`, `place_K`: sentence and position. `position_R`: index into K. `cut_R`: words before the segment. `words_R`:
    the most words of the segment. `word_R`: its first word among the words of the batch, sentence by sentence. `history_R`: its
    cut among the cuts of the batch. `steps_K`: tokens that the rows of a position read, with one START each. `first_row_K`:
    the first row of each position, and finally the number of rows.
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
        """The rows of pairs with these lengths in words.

        `unfinished`: include cuts from which the end of the target is out of reach, and pairs without a segmentation.
        `band`: include only cuts within this distance of the diagonal.
        """
        device = source_lengths_B.device
        source, target = source_lengths_B.cpu().numpy(), target_lengths_B.cpu().numpy()
        numbers = np.arange(len(source))
        positions = source * (unfinished | (target <= source * max_segment))
        sentence, place = np.repeat(numbers, positions), _counts(positions)
        source_K, target_K = source[sentence], target[sentence]
        low = np.maximum(0, target_K - (source_K - place) * max_segment) * (not unfinished)
        high, furthest = np.minimum(target_K, place * max_segment), target_K
        if band is not None:
            low = np.maximum(low, np.ceil((place * target_K - band * source_K) / source_K).astype(np.int64))
            high = np.minimum(high, _last_cut(place, band, source_K, target_K))
            furthest = np.minimum(furthest, _last_cut(place + 1, band, source_K, target_K))
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
        """Runs of at least one position and their rows, of about `limit` steps at most."""
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


def _last_cut(place_K: np.ndarray, band: float, source_K: np.ndarray, target_K: np.ndarray) -> np.ndarray:
    """The last cut within the band at a position."""
    return np.floor((place_K * target_K + band * source_K) / source_K).astype(np.int64)


def _counts(sizes: np.ndarray) -> np.ndarray:
    """0 … n-1 for each n of `sizes`, concatenated."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)


class Pairs(NamedTuple):
    """Requested tokens: token `token_P` of row `row_P`."""

    row_P: Tensor
    token_P: Tensor

    def and_then(self, others: Pairs) -> Pairs:
        """These pairs, then others."""
        return Pairs(torch.cat([self.row_P, others.row_P]), torch.cat([self.token_P, others.token_P]))


class Sentences(NamedTuple):
    """The numbers of words of both sides, (B,) each, and the words of all targets, concatenated (N,): rows of the softmax."""

    source_lengths_B: Tensor
    target_lengths_B: Tensor
    words_N: Tensor


class Inputs(NamedTuple):
    """The inputs of the rows: source states (K, D), the first layer's input for the words (N) and START (1), and the history
    (N + B, D) at every cut, if the model has one."""

    states_KD: Tensor
    words: Read
    start: Read
    history_HD: Tensor | None

    def part(self, job: Job, positions: slice, rows: slice) -> Inputs:
        """The inputs of a portion, as leaves of a separate graph."""
        words = job.words_of(rows)
        read = Read(self.words.gates[words], self.words.residual[words])
        history = None if self.history_HD is None else self.history_HD[job.cuts_of(rows)]
        return _leaves(Inputs(self.states_KD[positions], read, self.start, history))

    def tensors(self) -> list[Tensor]:
        """All tensors, as a flat list."""
        tensors = [self.states_KD, *self.words, *self.start]
        return tensors if self.history_HD is None else [*tensors, self.history_HD]


def _leaves(inputs: Inputs) -> Inputs:
    history = None if inputs.history_HD is None else inputs.history_HD.detach().requires_grad_()
    words, start = (Read(*(t.detach().requires_grad_() for t in read)) for read in (inputs.words, inputs.start))
    return Inputs(inputs.states_KD.detach().requires_grad_(), words, start, history)


@dataclass
class Job:
    """The rows of a batch and the network that runs them.

    `end_token`: the row of END in the softmax. `seed` is None without dropout, `mixed` without autocast. Words of a row with a
    posterior of at most `negligible` get no gradient.
    """

    cells: ResidualCells
    end_token: int
    max_segment: int
    sentences: Sentences
    rows: SegmentRows
    connects: bool
    steps_together: int
    seed: int | None
    mixed: torch.dtype | None = None
    negligible: float = 0.0

    def words_of(self, rows: slice) -> slice:
        """The words that rows may write, as a slice of the words of the batch."""
        return self._span(self.rows.word_R[rows], self.rows.words_R[rows])

    def cuts_of(self, rows: slice) -> slice:
        """The cuts of rows, as a slice of the cuts of the batch."""
        return self._span(self.rows.history_R[rows], torch.ones_like(self.rows.history_R[rows]))

    @staticmethod
    def _span(first_R: Tensor, count_R: Tensor) -> slice:
        return slice(int(first_R.min()), int((first_R + count_R).max()))


class Portion:
    """A run of positions with their rows. A unit has its own state after START: a position, or a row if connected."""

    def __init__(self, job: Job, positions: slice, rows: slice) -> None:
        batch_rows = job.rows
        self.job, self.first_position = job, positions.start
        self.words_R = batch_rows.words_R[rows]
        self.word_R = batch_rows.word_R[rows] - job.words_of(rows).start
        self.token_R = job.sentences.words_N[job.words_of(rows)]
        self.position_R = batch_rows.position_R[rows] - positions.start
        device = self.words_R.device
        self.unit_R = torch.arange(len(self.words_R), device=device) if job.connects else self.position_R
        self.units = len(self.words_R) if job.connects else positions.stop - positions.start
        self.history_R = batch_rows.history_R[rows] - job.cuts_of(rows).start
        self.order_R = self.words_R.argsort(descending=True, stable=True)
        counts = torch.bincount(self.words_R, minlength=job.max_segment + 1).flip(0).cumsum(0).flip(0)
        self.alive = counts.tolist()  # [n]: rows of at least n words
        self.rank_R = self.order_R.argsort()

    def masks(self) -> list[list[Tensor]] | None:
        """The dropout masks of every step and layer: of units at step 0, then of rows in the order `order_R`."""
        job = self.job
        if job.seed is None:
            return None
        device, width = self.words_R.device, job.cells.width
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed((job.seed + self.first_position) % 2**63)
            rows = [self.units, *self.alive[1:]]
            return [
                [
                    dropout(torch.ones(count, width, device=device), job.cells.dropout, True)
                    for _ in range(len(job.cells.cells))
                ]
                for count in rows
            ]

    def begin(self, inputs: Inputs, units_U: Tensor | None = None) -> Tensor:
        """The initial vector of the first layer in each unit, or in `units_U` only."""
        if inputs.history_HD is None:
            return inputs.states_KD if units_U is None else inputs.states_KD.index_select(0, units_U)
        start = inputs.states_KD.index_select(0, self.position_R) + inputs.history_HD.index_select(0, self.history_R)
        return start if units_U is None else start.index_select(0, units_U)

    def run(self, inputs: Inputs, order_R: Tensor, alive: list[int], units_U: Tensor | None) -> Iterator[Tensor]:
        """The top states after START in each unit, then after 1, 2, … words in the first `alive[i]` rows of `order_R`.

        `units_U`: run these units only; all rows of `order_R` must belong to them.
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
        """The word after `step` words of each row, whose states are at `unit_R`: pairs, and the rows that have such a word."""
        more = (self.words_R.index_select(0, rows_R) > step).nonzero()[:, 0]
        token = self.token_R.index_select(0, self.word_R.index_select(0, rows_R.index_select(0, more)) + step)
        return Pairs(unit_R.index_select(0, more), token), more

    def ends(self, count: int) -> Pairs:
        """END after each of `count` states."""
        units = torch.arange(count, device=self.words_R.device)
        return Pairs(units, torch.full_like(units, self.job.end_token))


def _drop(masks: list[list[Tensor]] | None, step: int, chosen_R: Tensor | None) -> Drop | None:
    if masks is None:
        return lambda x, layer: x
    step_masks = masks[step]
    return lambda x, layer: x * (step_masks[layer] if chosen_R is None else step_masks[layer].index_select(0, chosen_R))
