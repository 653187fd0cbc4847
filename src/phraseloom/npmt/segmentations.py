"""log p(target | source) where every source position writes one segment of the target (SWAN, Wang et al. 2017; spec §5.2).

    α[0, 0] = 0,  α[t, j] = log Σ_l exp(α[t-1, j-l] + p[t, j-l, l])        log p(y | x) = α[T1, T2]
    β likewise from the end;  posterior w[t, j, l] = exp(α[t-1, j] + p[t, j, l] + β[t, j+l] - log p(y | x))

p[t, j, l] is the log-probability that position t writes the l words behind the first j, END counted. The gradient of
log p(y | x) with respect to p is the posterior: a Function makes it from α and β, without a graph of the recursions.

Letters here: `S` source positions, `C` cuts of the target (before each word and behind the last: T + 1), `X` lengths of a
segment (0 … X-1). Sums run in float64. What is impossible has -1e30 inside, so that no difference of infinities arises.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

IMPOSSIBLE = -1e30


class Segmentations(NamedTuple):
    """The sum over all segmentations of each pair: log p (B,) in float64, -inf where there is none; the posterior probability
    of each segment (B, S, C, X), zero there; and α (B, S+1, C)."""

    log_p_B: Tensor
    posterior_BSCX: Tensor
    forward_BSC: Tensor


def can_segment(source_lengths_B: Tensor, target_lengths_B: Tensor, max_segment: int) -> Tensor:
    """Which pairs have a segmentation at all: at most `max_segment` target words for each source word, (B,)."""
    return target_lengths_B <= source_lengths_B * max_segment


def masked(log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Tensor:
    """The log-probabilities in float64: impossible where a segment leaves its target; padded positions surely write nothing."""
    p = log_probs_BSCX.double().clamp(min=IMPOSSIBLE)
    _, positions, cuts, lengths = p.shape
    device = p.device
    ends_CX = torch.arange(cuts, device=device)[:, None] + torch.arange(lengths, device=device)
    leaves_B1CX = (ends_CX > target_lengths_B[:, None, None])[:, None]
    padded_BS11 = (torch.arange(positions, device=device) >= source_lengths_B[:, None])[:, :, None, None]
    nothing_X = p.new_full((lengths,), IMPOSSIBLE)
    nothing_X[0] = 0.0
    return torch.where(padded_BS11, nothing_X, p.masked_fill(leaves_B1CX, IMPOSSIBLE))


def _by_end(p_BSCX: Tensor) -> Tensor:
    """[b, t, j, i] = p[b, t, j-l, l] with l = X-1-i: the segments that end at j, the longest first."""
    cuts, lengths = p_BSCX.shape[2:]
    parts = [F.pad(p_BSCX[..., : max(0, cuts - x), x], (min(x, cuts), 0), value=IMPOSSIBLE) for x in range(lengths)]
    return torch.stack(parts[::-1], -1)


def forward_scores(p_BSCX: Tensor) -> Tensor:
    """α (B, S+1, C) of `masked` log-probabilities; differentiable."""
    lengths = p_BSCX.shape[3]
    alpha_BC = F.pad(p_BSCX.new_zeros(len(p_BSCX), 1), (0, p_BSCX.shape[2] - 1), value=IMPOSSIBLE)
    found = [alpha_BC]
    for ending_BCX in _by_end(p_BSCX).unbind(1):
        before_BCX = F.pad(found[-1], (lengths - 1, 0), value=IMPOSSIBLE).unfold(1, lengths, 1)
        found.append((before_BCX + ending_BCX).logsumexp(-1))
    return torch.stack(found, 1)


def backward_scores(p_BSCX: Tensor, target_lengths_B: Tensor) -> Tensor:
    """β (B, S+1, C) of `masked` log-probabilities."""
    lengths, cuts = p_BSCX.shape[3], torch.arange(p_BSCX.shape[2], device=p_BSCX.device)
    last_BC = (cuts != target_lengths_B[:, None]) * IMPOSSIBLE
    found = [last_BC.to(p_BSCX.dtype)]
    for starting_BCX in p_BSCX.unbind(1)[::-1]:
        found.append((starting_BCX + _behind(found[-1], lengths)).logsumexp(-1))
    return torch.stack(found[::-1], 1)


def _behind(beta: Tensor, lengths: int) -> Tensor:
    """[…, j, l] = β[…, j+l]."""
    return F.pad(beta, (0, lengths - 1), value=IMPOSSIBLE).unfold(-1, lengths, 1)


def total(alpha_BSC: Tensor, target_lengths_B: Tensor) -> Tensor:
    """log p (B,) from α: -inf where there is no segmentation."""
    log_p_B = alpha_BSC[:, -1].gather(1, target_lengths_B[:, None])[:, 0]
    return log_p_B.masked_fill(log_p_B < IMPOSSIBLE / 2, -torch.inf)


def segmentations(log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Segmentations:
    """All segmentations of each pair, given log p of every segment and the words of both sides; without a gradient."""
    with torch.no_grad():
        p = masked(log_probs_BSCX, source_lengths_B, target_lengths_B)
        alpha, beta = forward_scores(p), backward_scores(p, target_lengths_B)
        log_p_B = total(alpha, target_lengths_B)
        through = alpha[:, :-1, :, None] + p + _behind(beta[:, 1:], p.shape[3])
        sure_B111 = log_p_B.masked_fill(log_p_B == -torch.inf, torch.inf)[:, None, None, None]
        padded_BS = torch.arange(p.shape[1], device=p.device) >= source_lengths_B[:, None]
        return Segmentations(log_p_B, (through - sure_B111).exp().masked_fill(padded_BS[:, :, None, None], 0.0), alpha)


class _LogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Tensor:
        found = segmentations(log_probs_BSCX, source_lengths_B, target_lengths_B)
        ctx.save_for_backward(found.posterior_BSCX.to(log_probs_BSCX.dtype))
        return found.log_p_B

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_B: Tensor) -> tuple[Tensor | None, ...]:
        (posterior,) = ctx.saved_tensors
        return posterior * grad_B.to(posterior.dtype)[:, None, None, None], None, None


def log_likelihood(log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Tensor:
    """log p(y | x) of each pair, (B,) in float64, from log p of every segment; lengths are words, without EOS.

    -inf, with a gradient of zero, where the target has more words than the segments can hold. Source: spec §5.2.
    """
    result: Tensor = _LogLikelihood.apply(log_probs_BSCX, source_lengths_B, target_lengths_B)
    return result


def best_segmentation(
    log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The likeliest segmentation: its log p (B,), and how many words each source position writes, (B, S).

    Of equals the one with longer segments at the end. Lengths are zero, and log p is -inf, where there is none.
    """
    with torch.no_grad():
        p = masked(log_probs_BSCX, source_lengths_B, target_lengths_B)
        lengths, rows = p.shape[3], torch.arange(len(p), device=p.device)
        best_BC = F.pad(p.new_zeros(len(p), 1), (0, p.shape[2] - 1), value=IMPOSSIBLE)
        choices = []
        for ending_BCX in _by_end(p).unbind(1):
            before_BCX = F.pad(best_BC, (lengths - 1, 0), value=IMPOSSIBLE).unfold(1, lengths, 1)
            best_BC, choice_BC = (before_BCX + ending_BCX).max(-1)
            choices.append(lengths - 1 - choice_BC)
        log_p_B = best_BC.gather(1, target_lengths_B[:, None])[:, 0]
        none_B = log_p_B < IMPOSSIBLE / 2
        cut_B, found = target_lengths_B.clone(), []
        for choice_BC in choices[::-1]:
            length_B = choice_BC[rows, cut_B].masked_fill(none_B, 0)
            cut_B = cut_B - length_B
            found.append(length_B)
        return log_p_B.masked_fill(none_B, -torch.inf), torch.stack(found[::-1], 1)


def token_log_probs(
    found: Segmentations, words_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor
) -> Tensor:
    """log p of each target word given those before it, and then of the end, (B, C); zero behind it. They sum to log p(y | x).

    The words y_1 … y_j come first in the output if some position t writes the j-th of them, in a segment begun at any cut k:
    P_j = Σ_{t, k} exp(α[t-1, k]) p(y_{k+1} … y_j | t). `words_BSCX`: log p of the words of each segment, END not counted, at
    every cut that can be reached from the left. The first word that cannot be there has -inf, and those behind it zero.
    """
    with torch.no_grad():
        p = masked(words_BSCX, source_lengths_B, target_lengths_B)
        padded_BS = torch.arange(p.shape[1], device=p.device) >= source_lengths_B[:, None]
        p = p.masked_fill(padded_BS[:, :, None, None], IMPOSSIBLE)
        p[..., 0] = IMPOSSIBLE
        lengths, cuts = p.shape[3], p.shape[2]
        before = F.pad(found.forward_BSC[:, :-1], (lengths - 1, 0), value=IMPOSSIBLE).unfold(-1, lengths, 1)
        prefix_BC = (before + _by_end(p)).logsumexp((1, 3))
        prefix_BC[:, 0] = 0.0
        positions = torch.arange(cuts, device=p.device)
        end_B1 = target_lengths_B[:, None]
        chain = torch.cat([prefix_BC, found.log_p_B[:, None].clamp(min=IMPOSSIBLE)], 1)
        after = chain.gather(1, torch.where(positions < end_B1, positions + 1, cuts))
        steps = torch.where(after < IMPOSSIBLE / 2, -torch.inf, (after - chain[:, :-1]).clamp(max=0.0))
        gone = (positions > end_B1) | (chain[:, :-1] < IMPOSSIBLE / 2)
        return steps.masked_fill(gone, 0.0)
