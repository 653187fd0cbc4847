"""What a segmental model may leave out in training: rare words in the gradient, segments far from the diagonal, tokens of the
softmax."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from tests.npmt.test_model import (
    POSSIBLE,
    SOURCES,
    TARGET_SIZE,
    TARGETS,
    batch,
    built,
    by_loops,
    each,
    tokens_by_loops,
    total,
)
from tests.reference.segmental import cuts

from phraseloom.npmt.model import SegmentalModel
from phraseloom.npmt.rows import SegmentRows
from phraseloom.npmt.sampled import sample
from phraseloom.options.segmental import ApproximationConfig


def approximate(model: SegmentalModel, **options: Any) -> SegmentalModel:
    """The model in training, with its approximation."""
    model.approximation = ApproximationConfig(**options)
    return model.train()


@each
@pytest.mark.parametrize("negligible", [0.0, 0.05, 0.2])
def test_words_that_are_hardly_there_have_no_gradient(kind: str, negligible: float) -> None:
    """Against loops: word i of a row counts if the segments of the row hold i words with more than so much probability."""
    model = approximate(built(kind), posterior=negligible)
    objective = torch.zeros((), dtype=torch.float64)
    left_out = 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        tokens = tokens_by_loops(model, source, target)
        segments = {at: (words.sum() + end).detach().requires_grad_() for at, (words, end) in tokens.items()}
        log_p = total(segments, len(source), len(target))
        if not segments or log_p == -math.inf:
            continue
        found = torch.autograd.grad(log_p, list(segments.values()), allow_unused=True)
        posterior = {at: 0.0 if p is None else p.item() for at, p in zip(segments, found, strict=True)}
        for t, j in dict.fromkeys((t, j) for t, j, _ in tokens):
            longest = max(x for at, cut, x in tokens if (at, cut) == (t, j))
            holds = [sum(posterior[t, j, x] for x in range(i, longest + 1)) for i in range(longest + 2)]
            for i in range(longest + 1):
                if holds[i] <= negligible and (i or model.connects):
                    left_out += holds[i] > 0
                    continue
                end = tokens[t, j, i][1]
                objective = objective - posterior[t, j, i] * end
                if i < longest:
                    objective = objective - holds[i + 1] * tokens[t, j, i + 1][0][i]
    assert bool(left_out) == bool(negligible)
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(objective, parameters)
    exact = built(kind).loss(batch())
    sums = model.loss(batch())
    torch.testing.assert_close(sums.nll, exact.nll, rtol=0, atol=1e-12)
    for got, gradient in zip(torch.autograd.grad(sums.objective, parameters), wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-9)


@each
@pytest.mark.parametrize("band", [0.5, 1.0, 1.5])
def test_a_band_is_the_sum_over_what_stays_near_the_diagonal(kind: str, band: float) -> None:
    model = approximate(built(kind), band=band)
    wanted, whole = [], []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        slope = len(target) / max(1, len(source))
        near = {
            (t, j, x): p
            for (t, j, x), p in by_loops(model, source, target).items()
            if abs(j - t * slope) <= band and abs(j + x - (t + 1) * slope) <= band
        }
        segments = {
            at: near.get(at, torch.tensor(-1e9, dtype=p.dtype)) for at, p in by_loops(model, source, target).items()
        }
        of_all = total(by_loops(model, source, target), len(source), len(target))
        if of_all > -math.inf:
            wanted.append(total(segments, len(source), len(target)))
            whole.append(of_all)
    assert all(-math.inf < w <= all_of <= 1e-12 for w, all_of in zip(wanted, whole, strict=True))
    assert band > 1 or sum(wanted) < sum(whole) - 0.01
    sums = model.loss(batch())
    torch.testing.assert_close(sums.objective, -sum(wanted), rtol=0, atol=1e-10)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(-sum(wanted), parameters)
    for got, gradient in zip(torch.autograd.grad(sums.objective, parameters), gradients, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-9)


def test_all_but_training_is_exact() -> None:
    exact, model = built(), approximate(built(), posterior=0.3, band=0.5, negatives=1)
    assert approximate(built(), posterior=0.3, band=0.5).loss(batch()).nll > exact.loss(batch()).nll
    assert model.loss(batch()).nll != exact.loss(batch()).nll
    model.eval()
    assert torch.equal(model.loss(batch()).nll, exact.loss(batch()).nll)
    assert torch.equal(model.score(batch()), exact.score(batch()))
    assert torch.equal(model.segments(batch()).posterior_BSCX, exact.segments(batch()).posterior_BSCX)


def test_a_band_leaves_every_pair_a_segmentation() -> None:
    """The narrowest one, and no row with more words than can end within it."""
    for n, m, longest in itertools.product(range(1, 6), range(9), (1, 2, 3)):
        rows = SegmentRows.of(torch.tensor([n]), torch.tensor([m]), longest, band=0.5)
        if m > n * longest:
            assert len(rows.cut_R) == 0
            continue
        at = zip(rows.place_K[rows.position_R].tolist(), rows.cut_R.tolist(), strict=True)
        held = dict(zip(at, rows.words_R.tolist(), strict=True))
        assert all(0 <= words <= min(longest, m - j) for (_, j), words in held.items())
        assert all(j + words <= (t + 1) * m / n + 0.5 for (t, j), words in held.items())
        ways = (list(itertools.accumulate(lengths, initial=0)) for lengths in cuts(n, m, longest))
        assert any(
            all(held.get((t, way[t]), -1) >= way[t + 1] - way[t] for t in range(n))
            and all(abs(way[t] - t * m / n) <= 0.5 for t in range(n + 1))
            for way in ways
        )


WORDS = sorted({word for target in TARGETS for word in target})
OTHERS = [v for v in range(TARGET_SIZE) if v not in WORDS]


def shares(model: SegmentalModel, drawn: list[int]) -> SegmentalModel:
    """The exact model, its bias such that the drawn tokens stand for all tokens that are not in the batch."""
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[[v for v in OTHERS if v not in drawn]] = -torch.inf
        model.output.bias[drawn] += math.log(len(OTHERS) / len(drawn))
    return model


@each
@pytest.mark.parametrize("negatives", [1, 3])
def test_a_sampled_softmax_is_the_softmax_over_the_words_and_the_sample(kind: str, negatives: int) -> None:
    """Against loops over the whole vocabulary: tokens that were not drawn are impossible, drawn ones count for all others."""
    torch.manual_seed(3)
    drawn = [OTHERS[i] for i in torch.randperm(len(OTHERS))[:negatives].tolist()]
    slow = shares(built(kind), drawn)
    wanted = [
        total(by_loops(slow, source, target), len(source), len(target))
        for source, target, possible in zip(SOURCES, TARGETS, POSSIBLE, strict=True)
        if possible
    ]
    model = approximate(built(kind), negatives=negatives)
    torch.manual_seed(3)
    sums = model.loss(batch())
    torch.testing.assert_close(sums.objective, -torch.stack(wanted).sum(), rtol=0, atol=1e-10)
    assert abs(sums.nll - built(kind).loss(batch()).nll) > 0.01
    gradients = torch.autograd.grad(-torch.stack(wanted).sum(), list(slow.parameters()))
    found = torch.autograd.grad(sums.objective, list(model.parameters()))
    for (name, _), got, gradient in zip(model.named_parameters(), found, gradients, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def test_a_sample_of_the_whole_vocabulary_is_exact_and_draws_nothing() -> None:
    exact, model = built(), approximate(built(), negatives=len(OTHERS))
    before = torch.get_rng_state()
    assert torch.equal(model.loss(batch()).nll, exact.loss(batch()).nll)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bias", [False, True])
def test_the_sampled_normaliser_is_right_on_average(bias: bool) -> None:
    """Over all samples, each as likely: the mean of Z is exact, that of log Z is too low."""
    torch.manual_seed(0)
    weight_VD, hidden_D = torch.randn(9, 4).double(), torch.randn(4).double()
    bias_V = torch.randn(9).double() if bias else None
    logits = weight_VD @ hidden_D + (0 if bias_V is None else bias_V)
    found: dict[frozenset[int], float] = {}
    while len(found) < math.comb(6, 2):
        some = sample(torch.tensor([1, 4, 4, 8]), 9, 2, like=weight_VD)
        assert some is not None and some.token_U[some.place_N].tolist() == [1, 4, 4, 8]
        logits_U = some.weight(weight_VD) @ hidden_D + some.bias(bias_V)
        assert torch.allclose(logits_U[:3], logits[[1, 4, 8]], rtol=0, atol=1e-12)
        found[frozenset(some.token_U[3:].tolist())] = float(logits_U.logsumexp(0))
    z = torch.tensor(list(found.values()), dtype=torch.float64)
    torch.testing.assert_close(z.exp().mean(), logits.exp().sum(), rtol=1e-12, atol=0)
    assert z.mean() < logits.logsumexp(0) - 1e-3


def test_a_model_without_bias_can_be_sampled() -> None:
    model = approximate(built(output={"bias": False}), negatives=2)
    model.loss(batch()).objective.backward()
    assert model.output.weight.grad is not None
    empty = model.output.weight.grad.eq(0).all(1)
    assert int((~empty).sum()) == len(WORDS) + 2 + 2  # START and END, and the sample
