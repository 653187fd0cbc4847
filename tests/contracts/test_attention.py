"""What every score × arrangement must do, in every use: the contract of the attention seam."""

from __future__ import annotations

import itertools

import pytest
import torch

from phraseloom.layers.attention import ARRANGEMENTS, SCORES, MultiHeadAttention
from phraseloom.layers.attention.masks import Visibility, masked_softmax

WIDTH, HEADS = 12, 3
COMBINATIONS = list(itertools.product(SCORES, ARRANGEMENTS))
SELF_ONLY = {"relative"}


def block(score: str, arrangement: str, dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    torch.manual_seed(3)
    options = {"clip": 2} if score == "relative" else {}
    made = MultiHeadAttention(
        score=SCORES[score](width=WIDTH, heads=HEADS, **options), arrangement=ARRANGEMENTS[arrangement](width=WIDTH)
    )
    return made.to(dtype).eval()


def self_visibility(length: int, lengths: torch.Tensor | None = None, *, causal: bool = False) -> Visibility:
    return Visibility(key_length=length, lengths_B=lengths, causal=causal, query_length=length)


@pytest.mark.parametrize(("score", "arrangement"), COMBINATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_padding_never_matters_even_nan(score: str, arrangement: str, causal: bool) -> None:
    attention = block(score, arrangement)
    x = torch.randn(3, 6, WIDTH, dtype=torch.float64)
    lengths = torch.tensor([6, 1, 3])
    for b, length in enumerate(lengths.tolist()):
        x[b, length:] = float("nan")
    x.requires_grad_()
    output, weights = attention(x, None, self_visibility(6, lengths, causal=causal))
    real = torch.arange(6)[None] < lengths[:, None]
    output[real].sum().backward()
    for b, length in enumerate(lengths.tolist()):
        alone, alone_weights = attention(x[b : b + 1, :length], None, self_visibility(length, causal=causal))
        torch.testing.assert_close(output[b, :length], alone[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(weights[b, :, :length, :length], alone_weights[0], rtol=0, atol=1e-12)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in attention.parameters() if p.grad is not None)


@pytest.mark.parametrize(("score", "arrangement"), [c for c in COMBINATIONS if c[0] not in SELF_ONLY])
def test_cross_padding_never_matters(score: str, arrangement: str) -> None:
    attention = block(score, arrangement)
    x, memory = torch.randn(2, 4, WIDTH, dtype=torch.float64), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    memory[1, 2:] = float("nan")
    lengths = torch.tensor([5, 2])
    output, _ = attention(x, memory, Visibility(key_length=5, lengths_B=lengths, query_length=4))
    alone, _ = attention(x[1:], memory[1:, :2], Visibility(key_length=2, query_length=4))
    torch.testing.assert_close(output[1:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("score", "arrangement"), COMBINATIONS)
def test_causal_output_ignores_the_future_bit_for_bit(score: str, arrangement: str) -> None:
    attention = block(score, arrangement, torch.float32)
    x = torch.randn(1, 7, WIDTH)
    before, _ = attention(x, None, self_visibility(7, causal=True))
    for t in range(7):
        changed = x.clone()
        changed[:, t] += 1.0
        after, _ = attention(changed, None, self_visibility(7, causal=True))
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.allclose(after[:, t], before[:, t])


@pytest.mark.parametrize(("score", "arrangement"), COMBINATIONS)
def test_incremental_equals_full_with_reorder(score: str, arrangement: str) -> None:
    attention = block(score, arrangement)
    x = torch.randn(4, 6, WIDTH, dtype=torch.float64)
    order = torch.tensor([2, 0, 0, 3])
    cache = attention.start(4, 2)
    with torch.no_grad():
        for t in range(3):
            attention.step_self(x[:, t], cache)
        cache.reorder(order)
        history = torch.cat([x[order, :3], x[:, 3:]], 1)
        steps = [attention.step_self(history[:, t], cache) for t in range(3, 6)]
        full, _ = attention(history, None, self_visibility(6, causal=True))
    torch.testing.assert_close(torch.stack(steps, 1), full[:, 3:], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("score", "arrangement"), [c for c in COMBINATIONS if c[0] not in SELF_ONLY])
def test_incremental_cross_equals_full(score: str, arrangement: str) -> None:
    attention = block(score, arrangement)
    memory, lengths = torch.randn(2, 5, WIDTH, dtype=torch.float64), torch.tensor([5, 3])
    x = torch.randn(6, WIDTH, dtype=torch.float64)
    visibility = Visibility(key_length=5, lengths_B=lengths, query_length=1)
    cache = attention.remember(memory, visibility)
    output, weights = attention.step_cross(x, cache, visibility)
    full, full_weights = attention(
        x.view(2, 3, WIDTH), memory, Visibility(key_length=5, lengths_B=lengths, query_length=3)
    )
    torch.testing.assert_close(output, full.flatten(0, 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(weights, full_weights.transpose(1, 2).flatten(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("score", "arrangement"), COMBINATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nothing_visible_gives_zero_and_finite_gradients(score: str, arrangement: str, dtype: torch.dtype) -> None:
    attention = block(score, arrangement, dtype)
    x = torch.randn(2, 3, WIDTH, dtype=dtype, requires_grad=True)
    output, weights = attention(x, None, self_visibility(3, torch.tensor([0, 2])))
    assert torch.equal(weights[0], torch.zeros_like(weights[0]))
    assert torch.equal(output[0], torch.zeros_like(output[0]))
    output.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(("score", "arrangement"), COMBINATIONS)
def test_weights_are_a_distribution_over_visible_slots(score: str, arrangement: str) -> None:
    attention = block(score, arrangement)
    lengths = torch.tensor([4, 2])
    _, weights = attention(torch.randn(2, 4, WIDTH, dtype=torch.float64), None, self_visibility(4, lengths))
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    assert torch.equal(weights[1, :, :, 2:], torch.zeros(HEADS, 4, 2, dtype=torch.float64))


@pytest.mark.parametrize(("score", "arrangement"), COMBINATIONS)
def test_gradients_against_finite_differences(score: str, arrangement: str) -> None:
    attention = block(score, arrangement)
    x = torch.randn(1, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: attention(t, None, self_visibility(3, causal=True))[0], (x,))


def test_masked_softmax_of_extreme_scores() -> None:
    scores = torch.tensor([[1e30, -1e30, 0.0]], requires_grad=True)
    hidden = torch.tensor([[True, False, False]])
    weights = masked_softmax(scores, hidden)
    assert weights.tolist() == [[0.0, 0.0, 1.0]]
    weights[0, 2].backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
