"""log p of every segment of a batch, and log p(target | source) with its gradient, in two passes.

1. Forward, without a graph: run all rows and store only the log-probabilities of the words that follow. The dynamic program
   over them gives log p and the posterior probability of every segment.
2. Backward: ∇ log p(y | x) = Σ posterior · ∇ log p(segment). Run the rows again with a graph, portion by portion, and each row
   only as far as its posterior matters: words whose probability is below the resolution of the numbers (or below
   `Job.negligible`, an approximation) are left out. Segments that a model has learnt to avoid cost no second pass.

So memory holds the graph of one portion, and the logits of a few hundred rows at most.

**The softmax** gives log p of a few tokens of many rows, and its gradient, in portions.

    log p(v | h) = h·W_v + b_v - log Σ_u exp(h·W_u + b_u)

Each row needs only a few tokens, so no tensor of rows × V exists: the normaliser of a portion of rows is computed in the
forward pass and again for the gradient. Autograd does not record any of it.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phraseloom.layers.packed import Packed
from phraseloom.npmt.rows import Inputs, Job, Pairs, Portion, Read
from phraseloom.npmt.segmentations import IMPOSSIBLE, NO_SECOND, Segmentations, segmentations


class Softmax(NamedTuple):
    """The matrix (V, D), the bias (V,) or None, the rows of a portion, and the packed matrix if packing is possible."""

    weight_VD: Tensor
    bias_V: Tensor | None
    portion: int
    packed: Packed | None = None

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Unnormalised scores (N, V)."""
        if self.packed is not None:
            return self.packed(hidden_ND)
        if self.bias_V is None:
            return hidden_ND @ self.weight_VD.t()
        return torch.addmm(self.bias_V, hidden_ND, self.weight_VD.t())

    def log_probs(self, hidden_RD: Tensor, pairs: Pairs) -> Tensor:
        """log p of the pairs, (P,), at least in float32.

        A logit and its normaliser come from one product: of two that are rounded differently, log p could be above 0 in bf16.
        """
        exact = torch.promote_types(hidden_RD.dtype, torch.float32)
        result_P = hidden_RD.new_empty(len(pairs.row_P), dtype=exact)
        for begin in range(0, len(hidden_RD), self.portion):
            hidden_ND = hidden_RD[begin : begin + self.portion]
            log_probs_NV = self.logits(hidden_ND).log_softmax(1, dtype=exact)
            within = (pairs.row_P >= begin) & (pairs.row_P < begin + len(hidden_ND))
            result_P[within] = log_probs_NV[pairs.row_P[within] - begin, pairs.token_P[within]]
        return result_P


class Gradient:
    """The gradient of Σ weight · log p: `add` returns that of the hidden states and accumulates those of W and b."""

    def __init__(self, softmax: Softmax, *, of_weight: bool, of_bias: bool) -> None:
        self.softmax = softmax
        weight, bias = softmax.weight_VD, softmax.bias_V
        self.weight_VD = torch.zeros_like(weight) if of_weight else None
        self.bias_V = torch.zeros_like(bias) if of_bias and bias is not None else None

    def add(self, hidden_RD: Tensor, mass_R: Tensor, pairs: Pairs, weight_P: Tensor) -> Tensor:
        """The gradient (R, D) of the hidden states. `weight_P`: the weight of each pair; `mass_R`: their sum per row."""
        softmax, weight = self.softmax, self.softmax.weight_VD
        grad_RD = torch.empty_like(hidden_RD)
        exact = torch.promote_types(hidden_RD.dtype, torch.float32)
        for begin in range(0, len(hidden_RD), softmax.portion):
            part = slice(begin, begin + softmax.portion)
            hidden_ND = hidden_RD[part]
            p_NV = softmax.logits(hidden_ND).softmax(1, dtype=exact).mul_(mass_R[part, None])
            grad_RD[part] = torch.mm(p_NV, weight).neg_()
            if self.weight_VD is not None:
                self.weight_VD.addmm_(p_NV.t().to(self.weight_VD.dtype), hidden_ND.to(self.weight_VD.dtype), alpha=-1)
            if self.bias_V is not None:
                self.bias_V -= p_NV.sum(0)
        grad_RD.index_add_(
            0, pairs.row_P, (weight.index_select(0, pairs.token_P) * weight_P[:, None]).to(grad_RD.dtype)
        )
        if self.weight_VD is not None:
            gold_PD = hidden_RD.index_select(0, pairs.row_P) * weight_P[:, None]
            self.weight_VD.index_add_(0, pairs.token_P, gold_PD.to(self.weight_VD.dtype))
        if self.bias_V is not None:
            self.bias_V.index_add_(0, pairs.token_P, weight_P.to(self.bias_V.dtype))
        return grad_RD


class Scores(NamedTuple):
    """log p of the words of each segment, without and with its END, (B, S, C, X) in float64; IMPOSSIBLE without a row."""

    words_BSCX: Tensor
    whole_BSCX: Tensor


def score_rows(job: Job, inputs: Inputs, softmax: Softmax) -> Scores:
    """The first pass."""
    lengths = job.max_segment + 1
    count, device = len(job.rows.words_R), job.sentences.words_N.device
    word_RX = torch.zeros(count, lengths, dtype=torch.float64, device=device)
    end_RX = torch.full((count, lengths), -torch.inf, dtype=torch.float64, device=device)
    with torch.no_grad():
        for positions, rows in job.rows.portions(job.steps_together):
            portion, part = Portion(job, positions, rows), inputs.part(job, positions, rows)
            word, end = word_RX[rows], end_RX[rows]  # views
            for step, top in enumerate(portion.run(part, portion.order_R, portion.alive, None)):
                rows_R = portion.order_R[: portion.alive[step]]
                unit_R = (
                    portion.unit_R.index_select(0, rows_R) if step == 0 else torch.arange(len(rows_R), device=device)
                )
                pairs, more = portion.asked(step, rows_R, unit_R)
                log_probs = softmax.log_probs(top, portion.ends(len(top)).and_then(pairs)).double()
                end[rows_R, step] = log_probs[: len(top)].index_select(0, unit_R)
                if len(more):
                    word[rows_R.index_select(0, more), step + 1] = log_probs[len(top) :]
        words_RX = word_RX.cumsum(1)
        whole_RX = words_RX + end_RX
        return Scores(_spread(job, words_RX.masked_fill(end_RX == -torch.inf, IMPOSSIBLE)), _spread(job, whole_RX))


def _spread(job: Job, values_RX: Tensor) -> Tensor:
    source, target, _ = job.sentences
    shape = (len(source), max(1, int(source.max())), int(target.max()) + 1, values_RX.shape[1])
    result = values_RX.new_full(shape, IMPOSSIBLE)
    result[_places(job)] = values_RX
    return result


def _places(job: Job) -> tuple[Tensor, Tensor, Tensor]:
    rows = job.rows
    return rows.sentence_K[rows.position_R], rows.place_K[rows.position_R], rows.cut_R


def _add_gradients(
    job: Job,
    inputs: Inputs,
    softmax: Softmax,
    posterior_RX: Tensor,
    factor_R: Tensor,
    parameters: list[Tensor],
    gradient: Gradient,
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The second pass: gradients of Σ factor · posterior · log p(segment), of the inputs and of the parameters of the cells."""
    input_grads = [torch.zeros_like(t) for t in inputs.tensors()]
    parameter_grads: list[Tensor | None] = [None] * len(parameters)
    for positions, rows in job.rows.portions(job.steps_together):
        portion, part = Portion(job, positions, rows), inputs.part(job, positions, rows)
        tops, grads = _run_again(portion, part, posterior_RX[rows], factor_R[rows], softmax, gradient)
        if not tops:
            continue
        part_inputs = part.tensors()
        part_grads = torch.autograd.grad(tops, [*part_inputs, *parameters], grads, allow_unused=True)
        spans = [positions, *[job.words_of(rows)] * 2, *[slice(None)] * 2]
        spans += [] if inputs.history_HD is None else [job.cuts_of(rows)]
        for total, span, grad in zip(input_grads, spans, part_grads, strict=False):
            if grad is not None:
                total[span] += grad
        for number, grad in enumerate(part_grads[len(part_inputs) :]):
            if grad is not None:
                total_grad = parameter_grads[number]
                parameter_grads[number] = grad if total_grad is None else total_grad.add_(grad)
    return input_grads, parameter_grads


def _run_again(
    portion: Portion, part: Inputs, posterior_RX: Tensor, factor_R: Tensor, softmax: Softmax, gradient: Gradient
) -> tuple[list[Tensor], list[Tensor]]:
    """The top states of a portion, with a graph, and the gradient of each."""
    job, device = portion.job, posterior_RX.device
    likely_RX = posterior_RX.flip(1).cumsum(1).flip(1)  # p(the segment of the row has at least x words)
    negligible = max(torch.finfo(softmax.weight_VD.dtype).eps / 2, job.negligible)
    words_R = ((likely_RX > negligible).sum(1) - 1).minimum(portion.words_R)  # -1: even START is negligible
    if not bool((words_R >= 0).any()):
        return [], []
    weights_RX, mass_RX = posterior_RX * factor_R[:, None], likely_RX * factor_R[:, None]
    unit_mass = torch.zeros(portion.units, dtype=mass_RX.dtype, device=device)
    unit_mass.index_add_(0, portion.unit_R, mass_RX[:, 0])
    unit_end = torch.zeros_like(unit_mass).index_add_(0, portion.unit_R, weights_RX[:, 0])
    units_U = (words_R >= 0).nonzero()[:, 0] if job.connects else torch.arange(portion.units, device=device)
    order_R = words_R.argsort(descending=True, stable=True)
    counts = torch.bincount(words_R.clamp(min=0), minlength=job.max_segment + 1).flip(0).cumsum(0).flip(0)
    alive = [len(units_U) if job.connects else len(words_R), *counts[1:].tolist()]
    places = torch.empty(portion.units, dtype=torch.int64, device=device)
    places[units_U] = torch.arange(len(units_U), device=device)
    tops, grads = [], []
    with torch.enable_grad():
        for step, top in enumerate(portion.run(part, order_R, alive, units_U)):
            rows_R = order_R[: alive[step]]
            if step == 0:
                unit_R, mass, end = (
                    places[portion.unit_R.index_select(0, rows_R)],
                    unit_mass[units_U],
                    unit_end[units_U],
                )
            else:
                unit_R, mass, end = (
                    torch.arange(len(rows_R), device=device),
                    mass_RX[rows_R, step],
                    weights_RX[rows_R, step],
                )
            asked, more = portion.asked(step, rows_R, unit_R)
            ends = portion.ends(len(top))
            after = mass_RX[rows_R.index_select(0, more), step + 1] if len(more) else mass.new_zeros(0)
            pairs = ends.and_then(asked)
            kind = torch.promote_types(top.dtype, torch.float32)
            with torch.no_grad():
                grads.append(gradient.add(top.detach(), mass.to(kind), pairs, torch.cat([end, after]).to(kind)))
            tops.append(top)
    return tops, grads


class _RowsLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, softmax: Softmax, *tensors: Tensor) -> Tensor:
        inputs, ctx.history = _inputs(tensors, job.connects)
        result = segmentations(score_rows(job, inputs, softmax).whole_BSCX, *job.sentences[:2])
        ctx.job, ctx.softmax = job, softmax
        ctx.save_for_backward(result.posterior_BSCX[_places(job)], *tensors)
        return result.log_p_B

    @staticmethod
    def backward(ctx: Any, grad_B: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND)
        posterior_RX, *tensors = ctx.saved_tensors
        job, softmax = ctx.job, ctx.softmax
        inputs, count = _inputs(tensors, job.connects)
        weight, bias, *parameters = tensors[count:]
        trained = [p for p in parameters if p.requires_grad]
        gradient = Gradient(
            softmax._replace(weight_VD=weight, bias_V=None if softmax.bias_V is None else bias),
            of_weight=weight.requires_grad,
            of_bias=bias.requires_grad,
        )
        factor_R = grad_B[job.rows.sentence_K[job.rows.position_R]]
        with _autocast(job, weight.device):
            input_grads, trained_grads = _add_gradients(
                job, inputs, gradient.softmax, posterior_RX, factor_R, trained, gradient
            )
        remaining = iter(trained_grads)
        parameter_grads = [next(remaining) if p.requires_grad else None for p in parameters]
        return None, None, *input_grads, gradient.weight_VD, gradient.bias_V, *parameter_grads


def _inputs(tensors: Any, connects: bool) -> tuple[Inputs, int]:
    states, gates, residual, start_gates, start_residual, *others = tensors
    history = others[0] if connects else None
    return Inputs(states, Read(gates, residual), Read(start_gates, start_residual), history), 6 if connects else 5


def _autocast(job: Job, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype=job.mixed, enabled=job.mixed is not None)


@torch._disable_dynamo  # torch.compiler.disable would import torch._dynamo here, which takes seconds
def log_likelihood_of_rows(job: Job, inputs: Inputs, softmax: Softmax) -> Tensor:
    """log p(target | source) of each pair, (B,) in float64, differentiable; -inf, without a gradient, if it is impossible."""
    tensors = inputs.tensors()
    bias = softmax.weight_VD.new_zeros(0) if softmax.bias_V is None else softmax.bias_V
    parameters = [p for cell in job.cells.cells for p in cell.parameters()]
    result: Tensor = _RowsLogLikelihood.apply(job, softmax, *tensors, softmax.weight_VD, bias, *parameters)
    return result


def segmentations_of_rows(job: Job, inputs: Inputs, softmax: Softmax) -> tuple[Scores, Segmentations]:
    """log p of every segment, and the sum over all segmentations; without a gradient."""
    scores = score_rows(job, inputs, softmax)
    return scores, segmentations(scores.whole_BSCX, *job.sentences[:2])
