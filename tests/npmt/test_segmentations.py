"""The sum over all segmentations against enumeration, its gradient in two ways, and what must not matter."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.segmental import enumerate_all
from torch import Tensor

from phraseloom.npmt.segmentations import (
    best_segmentation,
    forward_scores,
    log_likelihood,
    masked,
    segmentations,
    token_log_probs,
    total,
)

PAIRS = [(3, 4), (1, 0), (4, 1), (2, 6), (0, 0), (1, 3), (5, 5)]
SOURCE, TARGET = torch.tensor([s for s, _ in PAIRS]), torch.tensor([t for _, t in PAIRS])


def random_log_probs(longest: int = 3, *, scale: float = 2.0, seed: int = 0) -> Tensor:
    """For all pairs, also where nothing is real."""
    shape = (len(PAIRS), int(SOURCE.max()), int(TARGET.max()) + 1, longest + 1)
    return -torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale - 0.1


def by_autograd(p: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return total(forward_scores(masked(p, source, target)), target)


@pytest.mark.parametrize("longest", [1, 2, 3, 6])
def test_enumeration(longest: int) -> None:
    p = random_log_probs(longest)
    found = segmentations(p, SOURCE, TARGET)
    best, words = best_segmentation(p, SOURCE, TARGET)
    assert found.log_p_B.isfinite().tolist() == [t <= s * longest for s, t in PAIRS]
    for b, (s, t) in enumerate(PAIRS):
        expected = enumerate_all(lambda *at, b=b: p[b, *at].item(), s, t, longest)
        assert found.log_p_B[b].item() == pytest.approx(expected.log_p, abs=1e-12)
        posterior = torch.zeros_like(p[b])
        for at, weight in expected.posterior.items():
            posterior[at] = weight
        torch.testing.assert_close(found.posterior_BSCX[b], posterior, rtol=0, atol=1e-12)
        assert best[b].item() == pytest.approx(expected.best_log_p, abs=1e-12)
        assert words[b].tolist() == [*expected.best, *[0] * (words.shape[1] - len(expected.best))]


def test_two_gradients_are_one() -> None:
    """The Function's, from posteriors; autograd's, through the recursion; and finite differences."""
    p = random_log_probs().requires_grad_(True)
    possible = TARGET <= SOURCE * 3
    weight = torch.linspace(0.5, 2.0, len(PAIRS), dtype=torch.float64)
    (own,) = torch.autograd.grad((log_likelihood(p, SOURCE, TARGET) * weight)[possible].sum(), p)
    (plain,) = torch.autograd.grad((by_autograd(p, SOURCE, TARGET) * weight)[possible].sum(), p)
    torch.testing.assert_close(own, plain, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda p: log_likelihood(p, SOURCE, TARGET)[possible], [p])


def test_impossible_pairs_have_no_gradient_and_harm_nobody() -> None:
    p = random_log_probs(1).requires_grad_(True)
    log_p = log_likelihood(p, SOURCE, TARGET)
    impossible = TARGET > SOURCE
    assert impossible.tolist() == [True, False, False, True, False, True, False]
    assert (log_p[impossible] == -math.inf).all()
    (gradient,) = torch.autograd.grad(log_p[~impossible].sum(), p)
    assert gradient.isfinite().all() and not gradient[impossible].any()
    torch.testing.assert_close(gradient[~impossible].sum((2, 3)).sum(1), SOURCE[~impossible].double())
    (gradient,) = torch.autograd.grad(log_likelihood(p, SOURCE, TARGET).sum(), p)
    assert gradient.isfinite().all() and not gradient[impossible].any()


def test_padding_and_neighbours_do_not_matter() -> None:
    p = random_log_probs()
    together = segmentations(p, SOURCE, TARGET)
    for b, (s, t) in enumerate(PAIRS):
        alone = segmentations(p[b : b + 1, : max(s, 1), : t + 1], SOURCE[b : b + 1], TARGET[b : b + 1])
        torch.testing.assert_close(alone.log_p_B[0], together.log_p_B[b], rtol=1e-14, atol=0)
        apart = together.posterior_BSCX[b, : max(s, 1), : t + 1]
        torch.testing.assert_close(alone.posterior_BSCX[0], apart, rtol=0, atol=1e-14)
    spoilt = p.clone()
    for b, (s, t) in enumerate(PAIRS):
        spoilt[b, s:] = math.nan
        spoilt[b, :, t + 1 :] = math.nan
        for start in range(t + 1):
            spoilt[b, :, start, t + 1 - start :] = -math.inf
    again = segmentations(spoilt, SOURCE, TARGET)
    torch.testing.assert_close(again.log_p_B, together.log_p_B, rtol=0, atol=0)
    torch.testing.assert_close(again.posterior_BSCX, together.posterior_BSCX, rtol=0, atol=0)


def test_nan_of_a_real_segment_is_not_hidden() -> None:
    p = random_log_probs()
    p[0, 1, 1, 1] = math.nan
    assert segmentations(p, SOURCE, TARGET).log_p_B[0].isnan()


@pytest.mark.parametrize("scale", [1e-6, 30.0, 3000.0])
def test_float32_of_long_sentences(scale: float) -> None:
    """60 positions, 90 words: the float32 gradient is that of float64, and every position writes exactly one segment."""
    source, target = torch.tensor([60]), torch.tensor([90])
    p = -torch.rand(1, 60, 91, 7, generator=torch.Generator().manual_seed(1)) * scale
    exact = p.double().requires_grad_(True)
    rounded = p.clone().requires_grad_(True)
    wanted, found = log_likelihood(exact, source, target), log_likelihood(rounded, source, target)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    (a,), (b,) = torch.autograd.grad(wanted.sum(), exact), torch.autograd.grad(found.sum(), rounded)
    assert b.dtype == torch.float32
    torch.testing.assert_close(b.double(), a, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(a.sum((2, 3)), torch.ones(1, 60, dtype=torch.float64))
    words = (a.sum((1, 2)) * torch.arange(7)).sum()
    assert words.item() == pytest.approx(90)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 3), st.integers(0, 10**6))
def test_any_size(source: int, target: int, longest: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(1, source, target + 1, longest + 1, generator=generator, dtype=torch.float64) * 3
    expected = enumerate_all(lambda *at: p[0, *at].item(), source, target, longest)
    found = log_likelihood(p, torch.tensor([source]), torch.tensor([target]))
    assert found.item() == pytest.approx(expected.log_p, abs=1e-10)


def proper(longest: int, letters: int, positions: int, seed: int) -> dict[tuple[int, tuple[int, ...]], Tensor]:
    """A distribution over `letters` and END for each position and each segment so far; END is sure at the greatest length."""
    generator, found = torch.Generator().manual_seed(seed), {}
    for t in range(positions):
        segments: list[tuple[int, ...]] = [()]
        for _ in range(longest + 1):
            for segment in segments:
                p = torch.randn(letters + 1, generator=generator, dtype=torch.float64).log_softmax(0)
                if len(segment) == longest:
                    p = torch.full_like(p, -math.inf).index_fill(0, torch.tensor(letters), 0.0)
                found[t, segment] = p
            segments = [(*s, letter) for s in segments for letter in range(letters)]
    return found


def test_each_token_given_those_before_it() -> None:
    """Two letters, three positions, at most two each: the probabilities of all strings sum to one, and those of the tokens are
    the ratios of what begins with them."""
    letters, positions, longest = 2, 3, 2
    p = proper(longest, letters, positions, 5)

    def words(t: int, segment: tuple[int, ...]) -> float:
        return math.fsum(p[t, segment[:i]][letter].item() for i, letter in enumerate(segment))

    def tensors(string: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        only = torch.full((1, positions, len(string) + 1, longest + 1), -math.inf, dtype=torch.float64)
        whole = only.clone()
        for t in range(positions):
            for j in range(len(string) + 1):
                for x in range(min(longest, len(string) - j) + 1):
                    segment = string[j : j + x]
                    only[0, t, j, x] = words(t, segment)
                    whole[0, t, j, x] = words(t, segment) + p[t, segment][letters].item()
        return only, whole

    all_strings = [s for n in range(positions * longest + 1) for s in itertools.product(range(letters), repeat=n)]
    source, probability, tokens = torch.tensor([positions]), {}, {}
    for string in all_strings:
        only, whole = tensors(string)
        target = torch.tensor([len(string)])
        found = segmentations(whole, source, target)
        probability[string] = found.log_p_B.exp().item()
        tokens[string] = token_log_probs(found, only, source, target)[0].tolist()
    assert math.fsum(probability.values()) == pytest.approx(1.0, abs=1e-12)
    for string in all_strings:
        begins = [
            math.fsum(q for s, q in probability.items() if s[:n] == string[:n]) for n in range(len(string) + 1)
        ] + [probability[string]]
        expected = [math.log(b / a) for a, b in itertools.pairwise(begins)]
        assert tokens[string] == pytest.approx(expected, abs=1e-10)
        assert math.fsum(tokens[string]) == pytest.approx(math.log(probability[string]), abs=1e-10)


def test_tokens_of_impossible_pairs() -> None:
    p = random_log_probs(1)
    tokens = token_log_probs(segmentations(p, SOURCE, TARGET), p, SOURCE, TARGET)
    assert not tokens.isnan().any()
    sums = tokens.sum(1)
    torch.testing.assert_close(sums, segmentations(p, SOURCE, TARGET).log_p_B)
    assert tokens[5].tolist()[1:] == [
        -math.inf,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]  # one position, three words: the second is too many


def test_second_derivatives_are_refused() -> None:
    p = torch.randn(1, 2, 3, 3).requires_grad_()
    total = log_likelihood(p, torch.tensor([2]), torch.tensor([2])).sum()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(total, p, create_graph=True)
