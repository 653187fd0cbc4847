"""Greedy search: the best token at each step until EOS (a beam of 1 that stops at its first EOS)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phraseloom.decoding.cancellation import go_on
from phraseloom.decoding.limits import NEVER, Hypothesis, Limits, SearchModel, SearchOptions, ban, refuse_nan


def greedy_search(model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """One hypothesis per sentence of `memory`. Ties go to the lower token id.

    A sentence that reaches its longest length is closed with EOS, whose log-probability counts (an impossible EOS adds
    nothing), and flagged `cut` unless EOS was the best token anyway.
    """
    longest = limits.longest
    num, device = len(longest), longest.device
    if num == 0:
        return []
    last_step, fewest_longest = int(longest.max()), int(longest.min())
    most_shortest = int(limits.shortest.max())
    state = model.start(memory, beam=1, max_length=limits.capacity)
    history = torch.full((last_step + 1, num), options.end, dtype=torch.long, device=device)
    total_B = torch.zeros(num, dtype=torch.float64, device=device)
    cut_B = torch.zeros(num, dtype=torch.bool, device=device)
    active = torch.arange(num, device=device)
    tokens = torch.full((num,), options.begin, dtype=torch.long, device=device)
    for step in range(last_step + 1):
        go_on(options.cancelled)
        hidden, _ = model.step(tokens, state)
        count = 1 + len(options.banned) + int(step < most_shortest)
        log_probs, ids = model.output.candidates(hidden, count)
        log_probs = ban(log_probs, ids, options.banned)
        if step < most_shortest:
            log_probs.masked_fill_((ids == options.end) & (limits.shortest[active] > step)[:, None], NEVER)
        best, place = log_probs.max(1)
        tokens = ids.gather(1, place[:, None])[:, 0]
        if (forced := limits.forced(step, active)) is not None:
            rows, wanted = forced
            best[rows] = model.output.gold_log_probs(hidden[rows], wanted).double()
            tokens[rows] = wanted
        if step >= fewest_longest:
            rows = ((longest[active] == step) & (tokens != options.end)).nonzero()[:, 0]
            if len(rows):
                tokens[rows] = options.end
                of_end = model.output.gold_log_probs(hidden[rows], tokens[rows]).double()
                best[rows] = of_end.masked_fill(of_end == NEVER, 0.0)
                cut_B[active[rows]] = True
        total_B[active] += best
        history[step, active] = tokens
        done = tokens == options.end
        if bool(done.any()):
            keep = (~done).nonzero()[:, 0]
            active, tokens = active[keep], tokens[keep]
            if len(active) == 0:
                break
            state.keep(keep)
    refuse_nan(total_B)
    return _hypotheses(history, total_B, cut_B, options)


def _hypotheses(history: Tensor, total_B: Tensor, cut_B: Tensor, options: SearchOptions) -> list[list[Hypothesis]]:
    length_B = (history != options.end).sum(0)
    score_B = total_B / options.penalty.divisor(length_B.double() + 1.0)
    rows = zip(history.T.tolist(), length_B.tolist(), total_B.tolist(), score_B.tolist(), cut_B.tolist(), strict=True)
    return [[Hypothesis(row[:length], total, score, cut)] for row, length, total, score, cut in rows]
