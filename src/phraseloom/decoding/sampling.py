"""Writing on from prompts, token by token: the best token each time, or one drawn at random.

Drawing: of p^(1/temperature) over the `top_k` best tokens, and of these over the fewest that hold `top_p` of the mass
(Holtzman et al. 2020), by inversion: with one uniform number u, the first token, in the order of the ids, at which the
summed probability is above u. The number is a function of (seed, line, sample, step) alone, so what is drawn for a line
depends neither on the batch that the line is in nor on how many threads work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phraseloom.data.batches import mix
from phraseloom.decoding.limits import NEVER, refuse_nan
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK

BANNED = (PAD, UNK, BOS)


class SampledContinuation(NamedTuple):
    """One continuation: tokens without EOS; `log_prob` in nats under the model as it is, with EOS if it `ended` by itself."""

    tokens: list[int]
    log_prob: float
    ended: bool


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: see the head of this file. None in place of a Sampling means the best token each time."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


def uniform(seed: int, line: int, sample: int, step: int) -> float:
    """A number from [0, 1), the same for the same arguments; 53 random bits."""
    return (mix(seed, line, sample, step) >> 10) * 2.0**-53


def filtered(log_probs_RV: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities (R, V) that are drawn from, in float64: after temperature, top-k and top-p, each row summing to 1.

    The best token always stays. Of equal tokens at the border of top-k or top-p those with the lower ids stay.
    """
    p_RV = (log_probs_RV.double() / sampling.temperature).softmax(-1)
    if sampling.top_k is None and sampling.top_p is None:
        return p_RV
    ranked, order = p_RV.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k is not None:
        ranked[:, sampling.top_k :] = 0.0
        ranked /= ranked.sum(-1, keepdim=True)
    if sampling.top_p is not None:
        before = ranked.cumsum(-1) - ranked
        ranked = ranked.masked_fill(before >= sampling.top_p, 0.0)
        ranked /= ranked.sum(-1, keepdim=True)
    return torch.zeros_like(p_RV).scatter(1, order, ranked)


def draw(p_RV: Tensor, u_R: Tensor) -> Tensor:
    """For each row the first column at which the summed probability is above u; never one of probability 0."""
    total = p_RV.cumsum(-1)
    columns = torch.searchsorted(total, (u_R * total[:, -1])[:, None], right=True)[:, 0]
    last = (p_RV > 0).int().cumsum(-1).argmax(-1)  # the sum may round to u itself
    return torch.minimum(columns, last)


def write_on(
    model: Any,
    prompts: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    *,
    max_tokens: int,
    sampling: Sampling | None,
    seed: int,
    device: torch.device | str = "cpu",
) -> list[SampledContinuation]:
    """A continuation of each prompt (ids, maybe none), until EOS or `max_tokens`; `places` are (line, sample) of each prompt.

    Raises ModelError where the model gives NaN.
    """
    sizes = [len(p) for p in prompts]
    state = model.start(len(prompts), beam=1, max_length=max(sizes, default=0) + max_tokens)
    written: list[list[int]] = [[] for _ in prompts]
    log_prob = [0.0] * len(prompts)
    ended = [False] * len(prompts)
    active = list(range(len(prompts)))
    tokens = [BOS] * len(prompts)
    step = 0
    while active:
        hidden_RD, _ = model.step(torch.tensor(tokens, device=device), state)
        log_probs_RV = model.output.log_probs(hidden_RD).double()
        refuse_nan(log_probs_RV)
        free = [r for r, b in enumerate(active) if step >= sizes[b]]
        tokens = [prompts[b][step] if step < sizes[b] else EOS for b in active]
        if free:
            places_here = [(*places[active[r]], len(written[active[r]])) for r in free]
            chosen, values = _choose(log_probs_RV[free], sampling, seed, places_here)
            for r, token, value in zip(free, chosen, values, strict=True):
                b, tokens[r] = active[r], token
                log_prob[b] += value
                ended[b] = token == EOS
                if token != EOS:
                    written[b].append(token)
        step += 1
        stay = [r for r, b in enumerate(active) if not ended[b] and len(written[b]) < max_tokens]
        if len(stay) < len(active):
            active, tokens = [active[r] for r in stay], [tokens[r] for r in stay]
            state.keep(torch.tensor(stay, dtype=torch.long, device=device))
    return [SampledContinuation(*one) for one in zip(written, log_prob, ended, strict=True)]


def _choose(
    log_probs_RV: Tensor, sampling: Sampling | None, seed: int, places: list[tuple[int, int, int]]
) -> tuple[list[int], list[float]]:
    """The next token of each row and its log-probability under the model; `places` are (line, sample, step)."""
    allowed_RV = log_probs_RV.clone()
    allowed_RV[:, list(BANNED)] = NEVER
    if sampling is None:
        tokens_R = allowed_RV.argmax(-1)
    else:
        u_R = torch.tensor([uniform(seed, *place) for place in places], dtype=torch.float64, device=log_probs_RV.device)
        tokens_R = draw(filtered(allowed_RV, sampling), u_R)
    return tokens_R.tolist(), log_probs_RV.gather(1, tokens_R[:, None])[:, 0].tolist()
