"""log p(target | source) if every source position writes one segment of the target (SWAN, Wang et al. 2017).

    α[0, 0] = 0,  α[t, j] = log Σ_l exp(α[t-1, j-l] + p[t, j-l, l])        log p(y | x) = α[T1, T2]
    β from the end in the same way;  posterior w[t, j, l] = exp(α[t-1, j] + p[t, j, l] + β[t, j+l] - log p(y | x))

p[t, j, l] is the log-probability that position t writes the l words after the first j, with END. The gradient of log p(y | x)
with respect to p is the posterior; a Function computes it from α and β, without a graph of the recursions.

Letters here: `S` source positions, `C` cuts of the target (before each word and after the last: T + 1), `X` lengths of a
segment (0 … X-1). Sums are in float64. Impossible values are -1e30 internally, to avoid differences of infinities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

IMPOSSIBLE = -1e30
NO_SECOND = "the likelihood of segmentations has no second derivatives: leave create_graph out"


class Segmentations(NamedTuple):
    """The sum over all segmentations of each pair: log p (B,) in float64; the posterior probability of each segment
    (B, S, C, X); α (B, S+1, C). A pair without a segmentation has log p -inf and posteriors 0."""

    log_p_B: Tensor
    posterior_BSCX: Tensor
    forward_BSC: Tensor


def masked(log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Tensor:
    """The log-probabilities in float64: IMPOSSIBLE if a segment leaves its target; padded positions write the empty segment."""
    p = log_probs_BSCX.double().clamp(min=IMPOSSIBLE)
    _, positions, cuts, lengths = p.shape
    device = p.device
    ends_CX = torch.arange(cuts, device=device)[:, None] + torch.arange(lengths, device=device)
    leaves_B1CX = (ends_CX > target_lengths_B[:, None, None])[:, None]
    padded_BS11 = (torch.arange(positions, device=device) >= source_lengths_B[:, None])[:, :, None, None]
    empty_X = p.new_full((lengths,), IMPOSSIBLE)
    empty_X[0] = 0.0
    return torch.where(padded_BS11, empty_X, p.masked_fill(leaves_B1CX, IMPOSSIBLE))


def _by_end(p_BSCX: Tensor) -> Tensor:
    """[b, t, j, i] = p[b, t, j-l, l] with l = X-1-i: the segments that end at j, the longest first."""
    cuts, lengths = p_BSCX.shape[2:]
    parts = [F.pad(p_BSCX[..., : max(0, cuts - x), x], (min(x, cuts), 0), value=IMPOSSIBLE) for x in range(lengths)]
    return torch.stack(parts[::-1], -1)


def forward_scores(p_BSCX: Tensor) -> Tensor:
    """α (B, S+1, C) of `masked` log-probabilities; differentiable."""
    lengths = p_BSCX.shape[3]
    alpha_BC = F.pad(p_BSCX.new_zeros(len(p_BSCX), 1), (0, p_BSCX.shape[2] - 1), value=IMPOSSIBLE)
    alphas = [alpha_BC]
    for ending_BCX in _by_end(p_BSCX).unbind(1):
        before_BCX = F.pad(alphas[-1], (lengths - 1, 0), value=IMPOSSIBLE).unfold(1, lengths, 1)
        alphas.append((before_BCX + ending_BCX).logsumexp(-1))
    return torch.stack(alphas, 1)


def backward_scores(p_BSCX: Tensor, target_lengths_B: Tensor) -> Tensor:
    """β (B, S+1, C) of `masked` log-probabilities."""
    lengths, cuts = p_BSCX.shape[3], torch.arange(p_BSCX.shape[2], device=p_BSCX.device)
    last_BC = (cuts != target_lengths_B[:, None]) * IMPOSSIBLE
    betas = [last_BC.to(p_BSCX.dtype)]
    for starting_BCX in p_BSCX.unbind(1)[::-1]:
        betas.append((starting_BCX + _by_start(betas[-1], lengths)).logsumexp(-1))
    return torch.stack(betas[::-1], 1)


def _by_start(beta: Tensor, lengths: int) -> Tensor:
    """[…, j, l] = β[…, j+l]."""
    return F.pad(beta, (0, lengths - 1), value=IMPOSSIBLE).unfold(-1, lengths, 1)


def total(alpha_BSC: Tensor, target_lengths_B: Tensor) -> Tensor:
    """log p (B,) from α; -inf without a segmentation."""
    log_p_B = alpha_BSC[:, -1].gather(1, target_lengths_B[:, None])[:, 0]
    return log_p_B.masked_fill(log_p_B < IMPOSSIBLE / 2, -torch.inf)


def segmentations(log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Segmentations:
    """All segmentations of each pair, given log p of every segment and the words of both sides; without a gradient."""
    with torch.no_grad():
        p = masked(log_probs_BSCX, source_lengths_B, target_lengths_B)
        alpha, beta = forward_scores(p), backward_scores(p, target_lengths_B)
        log_p_B = total(alpha, target_lengths_B)
        through = alpha[:, :-1, :, None] + p + _by_start(beta[:, 1:], p.shape[3])
        total_B111 = log_p_B.masked_fill(log_p_B == -torch.inf, torch.inf)[:, None, None, None]
        padded_BS = torch.arange(p.shape[1], device=p.device) >= source_lengths_B[:, None]
        return Segmentations(log_p_B, (through - total_B111).exp().masked_fill(padded_BS[:, :, None, None], 0.0), alpha)


class _LogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Tensor:
        result = segmentations(log_probs_BSCX, source_lengths_B, target_lengths_B)
        ctx.save_for_backward(result.posterior_BSCX.to(log_probs_BSCX.dtype))
        return result.log_p_B

    @staticmethod
    def backward(ctx: Any, grad_B: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND)
        (posterior,) = ctx.saved_tensors
        return posterior * grad_B.to(posterior.dtype)[:, None, None, None], None, None


def log_likelihood(log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor) -> Tensor:
    """log p(y | x) of each pair, (B,) in float64, from log p of every segment; lengths are words, without EOS.

    -inf, with a gradient of zero, if the target has more words than the segments can hold. Source: Wang et al. 2017 (SWAN).
    """
    result: Tensor = _LogLikelihood.apply(log_probs_BSCX, source_lengths_B, target_lengths_B)
    return result


def best_segmentation(
    log_probs_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The likeliest segmentation: its log p (B,), and the number of words that each source position writes, (B, S).

    Ties: longer segments at the end. Without a segmentation lengths are zero and log p is -inf.
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
        cut_B, chosen_lengths = target_lengths_B.clone(), []
        for choice_BC in choices[::-1]:
            length_B = choice_BC[rows, cut_B].masked_fill(none_B, 0)
            cut_B = cut_B - length_B
            chosen_lengths.append(length_B)
        return log_p_B.masked_fill(none_B, -torch.inf), torch.stack(chosen_lengths[::-1], 1)


def token_log_probs(
    result: Segmentations, words_BSCX: Tensor, source_lengths_B: Tensor, target_lengths_B: Tensor
) -> Tensor:
    """log p of each target word given those before it, and then of the end, (B, C); zero after it. They sum to log p(y | x).

    The output begins with y_1 … y_j if some position t writes the j-th word, in a segment that begins at some cut k:
    P_j = Σ_{t, k} exp(α[t-1, k]) p(y_{k+1} … y_j | t). `words_BSCX`: log p of the words of each segment without END, at every
    cut that can be reached from the left. The first impossible word has -inf, and the words after it zero.
    """
    with torch.no_grad():
        p = masked(words_BSCX, source_lengths_B, target_lengths_B)
        padded_BS = torch.arange(p.shape[1], device=p.device) >= source_lengths_B[:, None]
        p = p.masked_fill(padded_BS[:, :, None, None], IMPOSSIBLE)
        p[..., 0] = IMPOSSIBLE
        lengths, cuts = p.shape[3], p.shape[2]
        before = F.pad(result.forward_BSC[:, :-1], (lengths - 1, 0), value=IMPOSSIBLE).unfold(-1, lengths, 1)
        prefix_BC = (before + _by_end(p)).logsumexp((1, 3))
        prefix_BC[:, 0] = 0.0
        positions = torch.arange(cuts, device=p.device)
        end_B1 = target_lengths_B[:, None]
        chain = torch.cat([prefix_BC, result.log_p_B[:, None].clamp(min=IMPOSSIBLE)], 1)
        after = chain.gather(1, torch.where(positions < end_B1, positions + 1, cuts))
        steps = torch.where(after < IMPOSSIBLE / 2, -torch.inf, (after - chain[:, :-1]).clamp(max=0.0))
        gone = (positions > end_B1) | (chain[:, :-1] < IMPOSSIBLE / 2)
        return steps.masked_fill(gone, 0.0)
