"""Sampling: tokens are drawn from the model's distribution instead of searched for. Translations and language models share it.

    p'(v) ∝ p(v)^(1/temperature)    over the `top_k` best tokens, and among these over the fewest that hold `top_p` of the mass
    y     = the first token, in the order of the ids, at which the cumulative p' exceeds u          (Holtzman et al. 2020)

The number u of each step depends only on (seed, line, sample, step). So a sample depends neither on its batch nor on the other
lines nor on the number of threads. The distribution and its sums are in float64.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from phraseloom.data.batches import mix
from phraseloom.decoding.cancellation import raise_if_cancelled
from phraseloom.decoding.limits import (
    NEVER,
    Hypothesis,
    Limits,
    Sampling,
    SearchModel,
    SearchOptions,
    finish,
    hypotheses_of,
    nothing_allowed,
    refuse_nan,
)
from phraseloom.decoding.repetition import repeated_tokens
from phraseloom.outputs import DecoderOutput
from phraseloom.outputs.topk import best_columns

ROWS = 64  # rows whose distributions are in memory at a time
NUCLEUS = 64  # top-p looks among this many best tokens before it sorts the whole row
PART_STEPS = 2**32  # the parts of a split line draw their numbers this many steps apart


def uniform(seed: int, line: int, sample: int, step: int) -> float:
    """A number in [0, 1) that depends only on the arguments; 53 random bits."""
    return (mix(seed, line, sample, step) >> 10) * 2.0**-53


def filtered(log_probs_RV: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities (R, V) after temperature, top-k and top-p, in float64; each row sums to 1.

    The best token always stays. Among equal tokens at the border of top-k or top-p the lower ids stay.
    """
    scores_RV = log_probs_RV.double()
    scores_RV = scores_RV - scores_RV.amax(-1, keepdim=True)  # so that no temperature makes all of them infinite
    p_RV = (scores_RV / sampling.temperature).softmax(-1)
    if sampling.top_k is None and sampling.top_p is None:
        return p_RV
    ranked, order = best_columns(p_RV, sampling.top_k or NUCLEUS)
    if sampling.top_k is not None:
        ranked /= ranked.sum(-1, keepdim=True)
    elif bool((ranked.sum(-1) < (sampling.top_p or 0.0)).any()):
        ranked, order = best_columns(p_RV, p_RV.shape[1])
    if sampling.top_p is not None:
        before = ranked.cumsum(-1) - ranked
        ranked = ranked.masked_fill(before >= sampling.top_p, 0.0)
        ranked /= ranked.sum(-1, keepdim=True)
    return torch.zeros_like(p_RV).scatter(1, order, ranked)


def draw(p_RV: Tensor, u_R: Tensor) -> Tensor:
    """For each row the first column at which the cumulative probability exceeds u; never a column of probability 0."""
    total = p_RV.cumsum(-1)
    columns = torch.searchsorted(total, (u_R * total[:, -1])[:, None], right=True)[:, 0]
    last = (p_RV > 0).int().cumsum(-1).argmax(-1)  # the sum may round to u
    return torch.minimum(columns, last)


def sample_search(model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """`n_best` samples for each sentence of `memory`, in the order of their numbers. Equal ones are not merged.

    `log_prob` is that of the model, without temperature, top-k and top-p. A sample that reaches its longest length is closed
    with EOS, as in greedy search. Raises ModelError if the model gives NaN, or no allowed token a probability.
    """
    return finish(sample_steps(model, memory, limits, options))


def sample_steps(
    model: SearchModel, memory: Any, limits: Limits, options: SearchOptions
) -> Generator[Tensor, None, list[list[Hypothesis]]]:
    """`sample_search`, which yields the tokens of the rows that are not finished at each step."""
    count, device = options.n_best, limits.longest.device
    sentence_R = torch.arange(len(limits.longest), device=device).repeat_interleave(count)
    num = len(sentence_R)
    if num == 0:
        return []
    longest_R, shortest_R = limits.longest[sentence_R], limits.shortest[sentence_R]
    last_step = int(longest_R.max())
    places = [(seed, line, sample, part * PART_STEPS) for seed, line, part in options.seeds for sample in range(count)]
    state = model.start(memory if count == 1 else memory.select(sentence_R), beam=1, max_length=limits.capacity)
    history = torch.full((last_step + 1, num), options.end, dtype=torch.long, device=device)
    total_R = torch.zeros(num, dtype=torch.float64, device=device)
    cut_R = torch.zeros(num, dtype=torch.bool, device=device)
    active = torch.arange(num, device=device)
    tokens = torch.full((num,), options.begin, dtype=torch.long, device=device)
    for step in range(last_step + 1):
        raise_if_cancelled(options.should_cancel)
        decoded = model.step(tokens, state)
        here = [places[row] for row in active.tolist()]
        numbers = [uniform(seed, line, sample, first + step) for seed, line, sample, first in here]
        u_R = torch.tensor(numbers, dtype=torch.float64, device=device)
        forced = limits.forced(step, sentence_R[active])
        forced_R = torch.full_like(active, -1)
        if forced is not None:
            forced_R[forced[0]] = forced[1]
        repeats = repeated_tokens(history[:step, active].T, options.no_repeat_ngram_size)
        parts = [
            _next_tokens(
                model.output,
                decoded.rows(rows),
                u_R[rows],
                forced_R=forced_R[rows],
                closing_R=longest_R[active[rows]] == step,
                early_R=shortest_R[active[rows]] > step,
                repeats_RJ=repeats[rows],
                options=options,
            )
            for rows in torch.arange(len(active), device=device).split(ROWS)
        ]
        tokens, log_probs, cut_R[active] = map(torch.cat, zip(*parts, strict=True))
        total_R[active] += log_probs
        history[step, active] = tokens
        yield tokens
        live = (tokens != options.end).nonzero()[:, 0]
        if len(live) < len(active):
            active, tokens = active[live], tokens[live]
            if len(active) == 0:
                break
            state.keep(live)
    samples = hypotheses_of(history, total_R, cut_R, options)
    return [samples[start : start + count] for start in range(0, num, count)]


def _next_tokens(
    output: Any,
    decoded: DecoderOutput,
    u_R: Tensor,
    *,
    forced_R: Tensor,
    closing_R: Tensor,
    early_R: Tensor,
    repeats_RJ: Tensor,
    options: SearchOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """The next token of each row, its log p under the model, and whether EOS cuts the output there.

    `forced_R`: a token of a forced prefix, or -1. `closing_R`, `early_R`: whether EOS must or must not come. `repeats_RJ`:
    tokens that would repeat an n-gram, -1 for none.
    """
    log_probs_RV: Tensor = output.log_probs(decoded.hidden, decoded.gate).double().clamp_(max=0.0)
    refuse_nan(log_probs_RV)
    allowed_RV = log_probs_RV.clone()
    allowed_RV[:, list(options.banned)] = NEVER
    allowed_RV[early_R, options.end] = NEVER
    if repeats_RJ.shape[1]:
        rows, places = ((repeats_RJ >= 0) & (repeats_RJ != options.end)).nonzero(as_tuple=True)
        allowed_RV[rows, repeats_RJ[rows, places]] = NEVER
    free_R = (forced_R < 0) & ~closing_R
    if bool((allowed_RV[free_R].amax(-1) == NEVER).any()):
        raise nothing_allowed()
    assert options.sampling is not None
    tokens_R = draw(filtered(allowed_RV, options.sampling), u_R)
    tokens_R = torch.where(forced_R >= 0, forced_R, tokens_R)
    cut_R = closing_R & (tokens_R != options.end)
    tokens_R = tokens_R.masked_fill(cut_R, options.end)
    log_probs_R = log_probs_RV.gather(1, tokens_R[:, None])[:, 0]
    return tokens_R, log_probs_R.masked_fill(cut_R & (log_probs_R == NEVER), 0.0), cut_R
