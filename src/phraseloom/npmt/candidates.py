"""What one source position of a segmental model may emit: the likeliest segments, or the greedy one.

    log p(w_1 … w_l | context) = Σ_i log p(w_i | w_1 … w_{i-1}, context) + log p(end | w_1 … w_l, context),   0 ≤ l ≤ S

A context is an encoder state, plus the history of the words before if the model `connects`. All contexts share the S + 1 calls
of the segment RNN. A segment of S words must end there, and the log-probability of that end counts.

`best_segments` is a beam search over prefixes. Per context it keeps the `count` likeliest prefixes of each length, the `count`
best finished segments by log p + bonus · words, and always the empty segment ("sleep"). It drops a prefix that is not above the
last finished segment even with the bonus of the longest segment; this is exact, because further words only lower log p. Only
the beam over prefixes can lose a segment: with `count` ≥ the number of prefixes the result equals enumeration.

Where the contexts are hypotheses of one sentence, they share one such beam: prefixes and segments of all of them compete by the
score of the hypothesis plus their own. So the segment RNN reads `count` prefixes a word, not `count` for each hypothesis.

Ties: the shorter segment; at equal length the one whose prefix ranked higher, then the lower id of the last word. Of two
hypotheses, the first.

`History` has the states of a connected model after the words of each hypothesis. Hypotheses with equal words have equal states,
so merging them loses nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from phraseloom.decoding.cancellation import ShouldCancel, raise_if_cancelled
from phraseloom.decoding.limits import NEVER, refuse_nan
from phraseloom.npmt.rows import CellStates
from phraseloom.outputs.topk import best_columns

CHUNK = 2**24  # the most log-probabilities of one call of the segment RNN
FREE = -1  # no word is forced here


class SegmentState(Protocol):
    """States of the segment RNN or of the history, one per row."""

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; the number of rows may change."""
        ...


class SegmentModel(Protocol):
    """The segment RNN of a segmental model. Tokens: the target vocabulary, then `start_token`, then `end_token`.

    `connects`: a segment also depends on the words before it; `history_start` and `history_step` read them.
    """

    max_segment: int
    connects: bool
    start_token: int
    end_token: int

    def segment_start(self, states_RD: Tensor, history_RD: Tensor | None) -> SegmentState:
        """The state before the first word of a segment of each context."""
        ...

    def segment_step(self, tokens_R: Tensor, state: Any) -> Tensor:
        """Feed the last token of each row (`start_token` first): log p of the next one, (R, end_token + 1)."""
        ...

    def history_start(self, rows: int) -> Any:
        """The states before the first word of `rows` outputs; `output_RD` goes to `segment_start`. None if not `connects`."""
        ...

    def history_step(self, tokens_R: Tensor, state: Any) -> None:
        """Read one more word of each output."""
        ...


class Candidate(NamedTuple):
    """A segment that a context may emit, and its log-probability with its end."""

    words: tuple[int, ...]
    log_prob: float


@dataclass(frozen=True)
class Bounds:
    """For each context the fewest and the most words of its segment, and its forced first words (then FREE).

    A segment may end within its forced words.
    """

    fewest_R: Tensor
    most_R: Tensor
    forced_RS: Tensor

    @staticmethod
    def of(
        fewest: Sequence[int], most: Sequence[int], forced: Sequence[Sequence[int]], size: int, device: Any
    ) -> Bounds:
        """Bounds from lists; numbers are clamped to 0 … `size`, forced words after `size` are dropped."""
        padded = [[*words[:size], *[FREE] * (size - len(words))] for words in forced]
        return Bounds(
            torch.tensor(fewest, dtype=torch.long, device=device).clamp(0, size),
            torch.tensor(most, dtype=torch.long, device=device).clamp(0, size),
            torch.tensor(padded, dtype=torch.long, device=device).view(len(fewest), size),
        )

    def rows(self, part: slice) -> Bounds:
        """The bounds of a part of the contexts."""
        return Bounds(self.fewest_R[part], self.most_R[part], self.forced_RS[part])


def best_segments(
    model: SegmentModel,
    states_RD: Tensor,
    history_RD: Tensor | None,
    *,
    count: int,
    banned: Sequence[int],
    bounds: Bounds | None = None,
    bonus: float = 0.0,
    groups: Sequence[Sequence[float]] | None = None,
    should_cancel: ShouldCancel | None = None,
) -> list[list[Candidate]]:
    """For each context the empty segment and others, best first; `banned` words only if forced.

    There are up to `count` others for each context. With `groups` there are as many for each group: consecutive contexts of one
    sentence, whose scores are given; the score of a segment is added to that of its context. Raises ModelError if the model
    gives NaN, Cancelled.
    """
    groups = [[0.0]] * len(states_RD) if groups is None else groups
    result: list[list[Candidate]] = []
    size = max(1, CHUNK // (count * (model.end_token + 1)))
    for begin in range(0, len(groups), size):
        raise_if_cancelled(should_cancel)
        some = groups[begin : begin + size]
        part = slice(len(result), len(result) + sum(map(len, some)))
        search = _Prefixes(model, count, banned, None if bounds is None else bounds.rows(part), bonus)
        result += search.run(states_RD[part], None if history_RD is None else history_RD[part], some)
    return result


def greedy_segments(
    model: SegmentModel,
    states_RD: Tensor,
    history_RD: Tensor | None,
    *,
    banned: Sequence[int],
    bounds: Bounds | None = None,
    bonus: float = 0.0,
    should_cancel: ShouldCancel | None = None,
) -> list[Candidate]:
    """For each context the greedy segment: the best token at each step, with `bonus` added to the log p of words.

    Ties go to the lower id, so to a word. Raises ModelError if the model gives NaN, Cancelled.
    """
    result: list[Candidate] = []
    size = max(1, CHUNK // (model.end_token + 1))
    for begin in range(0, len(states_RD), size):
        raise_if_cancelled(should_cancel)
        part = slice(begin, begin + size)
        history = None if history_RD is None else history_RD[part]
        result += _greedy(model, states_RD[part], history, banned, None if bounds is None else bounds.rows(part), bonus)
    return result


def _greedy(
    model: SegmentModel,
    states_RD: Tensor,
    history_RD: Tensor | None,
    banned: Sequence[int],
    bounds: Bounds | None,
    bonus: float,
) -> list[Candidate]:
    size, end, num, device = model.max_segment, model.end_token, len(states_RD), states_RD.device
    words_RS = torch.full((num, size + 1), end, dtype=torch.long, device=device)
    total_R = torch.zeros(num, dtype=torch.float64, device=device)
    open_N = torch.arange(num, device=device)
    tokens_N = torch.full((num,), model.start_token, dtype=torch.long, device=device)
    state = model.segment_start(states_RD, history_RD)
    for length in range(size + 1):
        log_probs_NV = model.segment_step(tokens_N, state)
        end_N = log_probs_NV[:, end].clone()
        _only_words(log_probs_NV, model, banned, bounds, open_N, length)
        best_N, tokens_N = log_probs_NV.max(1)
        stops_N = end_N > best_N + bonus if length < size else torch.ones_like(end_N, dtype=torch.bool)
        if bounds is not None:
            stops_N = (stops_N | (bounds.most_R[open_N] == length)) & (bounds.fewest_R[open_N] <= length)
        tokens_N = tokens_N.masked_fill(stops_N, end)
        total_R[open_N] += torch.where(stops_N, end_N, best_N).double().clamp_(max=0.0)
        words_RS[open_N, length] = tokens_N
        live = (~stops_N).nonzero()[:, 0]
        if not len(live):
            break
        if len(live) < len(open_N):
            open_N, tokens_N = open_N[live], tokens_N[live]
            state.reorder(live)
    refuse_nan(total_R)
    lengths = (words_RS != end).sum(1).tolist()
    rows = zip(words_RS.tolist(), lengths, total_R.tolist(), strict=True)
    return [Candidate(tuple(row[:n]), log_prob) for row, n, log_prob in rows]


def _only_words(
    log_probs_NV: Tensor,
    model: SegmentModel,
    banned: Sequence[int],
    bounds: Bounds | None,
    owner_N: Tensor,
    length: int,
) -> None:
    """Set everything but the allowed next words to -inf; a forced word keeps its log-probability."""
    forced_N = None if bounds is None or length >= model.max_segment else bounds.forced_RS[owner_N, length]
    rows = None if forced_N is None else (forced_N != FREE).nonzero()[:, 0]
    if forced_N is not None and rows is not None and len(rows):
        forced_log_probs = log_probs_NV[rows, forced_N[rows]]
        log_probs_NV[rows] = NEVER
        _ban(log_probs_NV, model, banned)
        log_probs_NV[rows, forced_N[rows]] = forced_log_probs
    else:
        _ban(log_probs_NV, model, banned)


def _ban(log_probs_NV: Tensor, model: SegmentModel, banned: Sequence[int]) -> None:
    for token in (*banned, model.start_token, model.end_token):
        log_probs_NV[:, token] = NEVER


class _Prefixes:
    """The beam over the prefixes of G groups of R contexts; N rows are live, grouped, best first in each group."""

    def __init__(
        self, model: SegmentModel, count: int, banned: Sequence[int], bounds: Bounds | None, bonus: float
    ) -> None:
        self.model, self.count, self.banned, self.bounds, self.bonus = model, count, banned, bounds, bonus

    def run(
        self, states_RD: Tensor, history_RD: Tensor | None, groups: Sequence[Sequence[float]]
    ) -> list[list[Candidate]]:
        """Extend prefixes word by word until none can become one of the best segments of its group.

        `groups` has the scores of the contexts of each group, to which those of their segments are added.
        """
        model, num, device = self.model, len(groups), states_RD.device
        size = model.max_segment
        sizes_G = torch.tensor([len(scores) for scores in groups], device=device)
        self.group_R = torch.arange(num, device=device).repeat_interleave(sizes_G)
        self.score_R = torch.tensor([s for scores in groups for s in scores], dtype=torch.float64, device=device)
        self.best_GC = torch.full((num, self.count), NEVER, dtype=torch.float64, device=device)
        self.context_GC = torch.zeros((num, self.count), dtype=torch.long, device=device)
        self.words_GCS = torch.full((num, self.count, size), FREE, dtype=torch.long, device=device)
        context_N = torch.arange(len(states_RD), device=device)
        total_N = self.score_R.clone()
        empty_R = torch.full_like(total_N, NEVER)
        prefix_NS = torch.full((len(states_RD), size), FREE, dtype=torch.long, device=device)
        tokens_N = torch.full((len(states_RD),), model.start_token, dtype=torch.long, device=device)
        state = model.segment_start(states_RD, history_RD)
        for length in range(size + 1):
            log_probs_NV = model.segment_step(tokens_N, state)
            end_N = log_probs_NV[:, model.end_token].double().clamp(max=0.0)
            refuse_nan(end_N)
            if self.bounds is not None:
                end_N = end_N.masked_fill(self.bounds.fewest_R[context_N] > length, NEVER)
            slot_N = _places(self.group_R[context_N], num)
            if length == 0:
                empty_R = end_N
            else:
                self._finish(context_N, slot_N, total_N + end_N + self.bonus * length, prefix_NS)
            if length == size:
                break
            _only_words(log_probs_NV, model, self.banned, self.bounds, context_N, length)
            parent_M, word_M, total_N = self._extend(log_probs_NV, context_N, slot_N, total_N, length)
            if not len(parent_M):
                break
            context_N, prefix_NS, tokens_N = context_N[parent_M], prefix_NS[parent_M], word_M
            prefix_NS[:, length] = word_M
            state.reorder(parent_M)
        return self._candidates(empty_R)

    def _finish(self, context_N: Tensor, slot_N: Tensor, ended_N: Tensor, prefix_NS: Tensor) -> None:
        """Merge the segments that end now into the best ones of their groups; at ties the older ones go first."""
        num, width, group_N = len(self.best_GC), int(slot_N.max()) + 1, self.group_R[context_N]
        new_GW = self.best_GC.new_full((num, width), NEVER)
        new_GW[group_N, slot_N] = ended_N
        context_GW = context_N.new_zeros((num, width))
        context_GW[group_N, slot_N] = context_N
        words_GWS = self.words_GCS.new_full((num, width, self.words_GCS.shape[2]), FREE)
        words_GWS[group_N, slot_N] = prefix_NS
        all_scores, all_words = torch.cat([self.best_GC, new_GW], 1), torch.cat([self.words_GCS, words_GWS], 1)
        order_GC = torch.sort(all_scores, dim=1, descending=True, stable=True).indices[:, : self.count]
        self.best_GC = all_scores.gather(1, order_GC)
        self.context_GC = torch.cat([self.context_GC, context_GW], 1).gather(1, order_GC)
        self.words_GCS = all_words.gather(1, order_GC[:, :, None].expand(-1, -1, all_words.shape[2]))

    def _extend(
        self, log_probs_NV: Tensor, context_N: Tensor, slot_N: Tensor, total_N: Tensor, length: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The live prefixes of the next length: the row of the parent, the last word and the score of each."""
        values_NK, ids_NK = best_columns(log_probs_NV, self.count)
        totals_NK = total_N[:, None] + values_NK.double().clamp_(max=0.0)
        if self.bounds is not None:
            totals_NK.masked_fill_((self.bounds.most_R[context_N] <= length)[:, None], NEVER)
        num, width, count = len(self.best_GC), int(slot_N.max()) + 1, totals_NK.shape[1]
        group_N = self.group_R[context_N]
        dense = totals_NK.new_full((num, width, count), NEVER)
        dense[group_N, slot_N] = totals_NK
        row_GW = group_N.new_zeros((num, width))
        row_GW[group_N, slot_N] = torch.arange(len(group_N), device=group_N.device)
        best_GC, order_GC = torch.sort(dense.view(num, -1), dim=1, descending=True, stable=True)
        best_GC, order_GC = best_GC[:, : self.count], order_GC[:, : self.count]
        more = self.bonus * (self.model.max_segment if self.bonus > 0 else length + 1)
        group_M, rank_M = ((best_GC > NEVER) & (best_GC + more > self.best_GC[:, -1:])).nonzero(as_tuple=True)
        place_M = order_GC[group_M, rank_M]
        parent_M = row_GW[group_M, place_M.div(count, rounding_mode="floor")]
        return parent_M, ids_NK[parent_M, place_M % count], best_GC[group_M, rank_M]

    def _candidates(self, empty_R: Tensor) -> list[list[Candidate]]:
        bonus, score_R = self.bonus, self.score_R.tolist()
        result = [[Candidate((), empty)] if empty > NEVER else [] for empty in empty_R.tolist()]
        lengths = (self.words_GCS != FREE).sum(2).flatten().tolist()
        scores, contexts = self.best_GC.flatten().tolist(), self.context_GC.flatten().tolist()
        for score, context, words, n in zip(
            scores, contexts, self.words_GCS.flatten(0, 1).tolist(), lengths, strict=True
        ):
            if score > NEVER:
                result[context].append(Candidate(tuple(words[:n]), score - score_R[context] - bonus * n))
        return [sorted(some, key=lambda c: -(c.log_prob + bonus * len(c.words))) for some in result]


def _places(owner_N: Tensor, num: int) -> Tensor:
    """The place of each row among those of its owner; `owner_N` is sorted."""
    sizes_R = torch.bincount(owner_N, minlength=num)
    first_R = sizes_R.cumsum(0) - sizes_R
    return torch.arange(len(owner_N), device=owner_N.device) - first_R[owner_N]


class History:
    """The history states of hypotheses, initially of empty ones."""

    def __init__(self, model: Any, rows: int) -> None:
        self.model, self.states = model, model.history_start(rows)

    @property
    def output(self) -> Tensor:
        """The history vector for the next segment of each hypothesis, (R, D)."""
        output_RD = self.states.output_RD
        assert output_RD is not None
        return output_RD

    def write(self, rows: Sequence[int], words: Sequence[tuple[int, ...]]) -> None:
        """Hypothesis i becomes old hypothesis `rows[i]` followed by `words[i]`."""
        device = self.output.device
        lengths = [len(segment) for segment in words]
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
    """The rows of all parts, concatenated."""
    layers = [
        tuple(torch.cat(tensors) for tensors in zip(*states, strict=True))
        for states in zip(*(part.layers for part in parts), strict=True)
    ]
    outputs = [part.output_RD for part in parts if part.output_RD is not None]
    return CellStates(layers, torch.cat(outputs) if outputs else None)
