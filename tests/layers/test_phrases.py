"""Segments, phrase vectors, combination network and transparent attention against loops over single sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.reference import phrases as reference
from torch import Tensor

from phraseloom.layers.feedforward import Residual
from phraseloom.layers.phrase_representation import (
    SCORERS,
    AttentiveCombination,
    GatedPhraseScorer,
    PhraseRepresentation,
    PhraseScorer,
    TransparentAttention,
)
from phraseloom.layers.segments import PhraseSegments, TensorSegmenter

WIDTH, HEADS, INNER, LENGTH = 8, 2, 12, 11
SIZES = [[3, 1, 4, 3], [2, 5], [1], [11], [1] * 11]


def segments(order: list[int] | None = None, length: int = LENGTH) -> PhraseSegments:
    chosen = SIZES if order is None else [SIZES[i] for i in order]
    most = max(map(len, chosen))
    return PhraseSegments(torch.tensor([s + [0] * (most - len(s)) for s in chosen]), length)


def states(seed: int = 0) -> Tensor:
    return torch.randn(len(SIZES), LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("options", [(8, 6, 3), (8, 4, 2), (1, 1, 1), (100, 1, 1), (4, 9, 7)])
def test_fixed_phrases_depend_on_their_sentence_alone(options: tuple[int, int, int]) -> None:
    names: dict[str, Any] = dict(zip(("max_tokens", "min_chunks", "floor"), options, strict=True))
    segmenter = TensorSegmenter(**names)
    together = segmenter(torch.arange(1, 71), 70)
    for tokens in range(1, 71):
        n = reference.phrase_length(tokens, **names)
        expected = [len(r) for r in reference.cut(tokens, n)]
        row = together.sizes_BP[tokens - 1].tolist()
        assert row[: len(expected)] == expected
        assert not any(row[len(expected) :])
        alone = segmenter(torch.tensor([tokens]), tokens)
        assert alone.sizes_BP.tolist() == [expected]


def test_the_paper_s_lengths() -> None:
    """Spec §3.1: 8, 6, 3. A sentence of 18 tokens still has phrases of 3, one of 43 already of 8."""
    lengths = torch.tensor([1, 3, 18, 19, 24, 42, 43, 100])
    sizes = TensorSegmenter()(lengths, 100).sizes_BP
    assert sizes[:, 0].tolist() == [1, 3, 3, 4, 4, 7, 8, 8]
    assert (sizes > 0).sum(1).tolist() == [1, 1, 6, 5, 6, 6, 6, 13]


def test_basis_batch_is_that_of_the_padded_length() -> None:
    sizes = TensorSegmenter(basis="batch")(torch.tensor([5, 24]), 24).sizes_BP
    assert sizes.tolist() == [[4, 1, 0, 0, 0, 0], [4] * 6]


def test_no_sentences_have_no_phrases() -> None:
    assert TensorSegmenter()(torch.zeros(0, dtype=torch.long), 4).sizes_BP.shape == (0, 0)


def test_segments_say_which_tokens_are_in_which_phrase() -> None:
    found = segments()
    for row, sizes in enumerate(SIZES):
        outside = np.ones((found.sizes_BP.shape[1], LENGTH), bool)
        for p, tokens in enumerate(reference.spans(sizes)):
            outside[p, list(tokens)] = False
        assert np.array_equal(found.outside[row].numpy(), outside)
        assert found.padding is not None
        assert found.padding[row].tolist() == [t >= sum(sizes) for t in range(LENGTH)]
    assert found.visibility.lengths_B is not None
    assert found.visibility.lengths_B.tolist() == [4, 2, 1, 1, 11]
    assert PhraseSegments(torch.tensor([[2, 3], [1, 4]]), 5).visibility.lengths_B is None


def scorer(attention: str) -> PhraseScorer | None:
    if attention == "none":
        return None
    torch.manual_seed(1)
    made = SCORERS[attention](width=WIDTH, inner=INNER).double()
    torch.nn.init.normal_(made.hidden.bias)
    torch.nn.init.normal_(made.score)
    if isinstance(made, GatedPhraseScorer):
        torch.nn.init.normal_(made.score_bias)
    return made


def matrices(made: PhraseScorer | None) -> dict[str, Any]:
    if made is None:
        return {}
    found: dict[str, Tensor] = {"hidden": made.hidden.weight, "bias": made.hidden.bias, "score": made.score}
    if isinstance(made, GatedPhraseScorer):
        found["score_bias"] = made.score_bias
    return {name: value.detach().numpy() for name, value in found.items()}


ATTENTIONS = ["none", "softmax", "gated"]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("glance", ["max", "mean"])
def test_phrase_vectors_are_those_of_the_loops(glance: Any, attention: str) -> None:
    made = scorer(attention)
    x, of = states(), PhraseRepresentation(glance=glance, scorer=made)
    vectors, weights = of(x, segments())
    for row, sizes in enumerate(SIZES):
        for p, tokens in enumerate(reference.spans(sizes)):
            expected, shares = reference.phrase_vector(
                [x[row, t].numpy() for t in tokens], glance, attention, matrices(made)
            )
            np.testing.assert_allclose(vectors[row, p].detach().numpy(), expected, rtol=0, atol=1e-12)
            if weights is not None:
                np.testing.assert_allclose(weights[row, p, list(tokens)].detach().numpy(), shares, rtol=0, atol=1e-12)
        assert not vectors[row, len(sizes) :].any()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("glance", ["max", "mean"])
def test_what_stands_at_padding_does_not_matter(glance: Any, attention: str) -> None:
    of, parts = PhraseRepresentation(glance=glance, scorer=scorer(attention)), segments()
    x = states().requires_grad_()
    assert parts.padding is not None
    broken = x.masked_fill(parts.padding[..., None], float("nan"))
    clean, dirty = of(x, parts)[0], of(broken, parts)[0]
    assert torch.equal(clean, dirty)
    (gradient,) = torch.autograd.grad(dirty.sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[parts.padding].any()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_of_phrase_vectors(attention: str) -> None:
    of = PhraseRepresentation(glance="max", scorer=scorer(attention))
    assert torch.autograd.gradcheck(lambda x: of(x, segments())[0], states().requires_grad_())


def combination(norm: Any, **options: Any) -> AttentiveCombination:
    torch.manual_seed(2)
    made = AttentiveCombination(
        width=WIDTH, heads=HEADS, inner=INNER, residual=Residual(width=WIDTH, norm=norm), **options
    ).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def weights_of(made: AttentiveCombination) -> dict[str, Any]:
    key, value = made.keys_values.weight.chunk(2)
    norm = made.residual.norm
    found = {"query": made.query.weight, "key": key, "value": value, "output": made.output.weight}
    found |= {"hidden": made.hidden.weight, "bias": made.hidden.bias, "down": made.down.weight}
    found |= {"gain": norm.weight, "offset": norm.bias}
    return {name: w.detach().numpy() for name, w in found.items()}


@pytest.mark.parametrize("residual", ["both", "token"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_combination_is_that_of_the_loops(norm: str, residual: str) -> None:
    made, x, parts = combination(norm, add_attended=residual == "both"), states(1), segments()
    phrases = torch.randn(len(SIZES), 11, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found, weights = made(x, made.project_phrases(phrases, parts.visibility))
    for row, sizes in enumerate(SIZES):
        real = [phrases[row, p].numpy() for p in range(len(sizes))]
        assert not weights[row, :, :, len(sizes) :].any()
        for t in range(LENGTH):
            expected = reference.combination(
                x[row, t].numpy(), real, weights_of(made), HEADS, pre=norm == "pre", residual=residual
            )
            np.testing.assert_allclose(found[row, t].detach().numpy(), expected, rtol=0, atol=1e-11)


def test_phrases_that_do_not_exist_are_never_seen() -> None:
    made, parts = combination("post"), segments()
    phrases = torch.randn(len(SIZES), 11, WIDTH, dtype=torch.float64)
    missing = (parts.sizes_BP == 0)[..., None]
    clean = made(states(), made.project_phrases(phrases, parts.visibility))[0]
    dirty = made(states(), made.project_phrases(phrases.masked_fill(missing, float("nan")), parts.visibility))[0]
    assert torch.equal(clean, dirty)


def test_phrase_keys_of_chosen_sentences() -> None:
    made, parts = combination("post"), segments()
    phrases = torch.randn(len(SIZES), 11, WIDTH, dtype=torch.float64)
    keys, order = made.project_phrases(phrases, parts.visibility), torch.tensor([3, 0])
    torch.testing.assert_close(made(states()[order], keys.select(order))[0], made(states(), keys)[0][order])


def test_transparent_attention_is_that_of_the_loops() -> None:
    mixture = TransparentAttention(levels=3, layers=2).double()
    torch.nn.init.normal_(mixture.weight)
    levels = [states(seed) for seed in range(3)]
    expected = reference.mixtures([level.numpy() for level in levels], mixture.weight.detach().numpy())
    for found, wanted in zip(mixture(levels), expected, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(mixture.shares().sum(0), torch.ones(2, dtype=torch.float64))


def test_a_random_start_moves_the_phrases_in_training_alone() -> None:
    """The first phrase has 1 to n tokens, each about as often; all others but the last have n."""
    segmenter, lengths = TensorSegmenter(random_start=True), torch.full((3000,), 24)
    assert torch.equal(segmenter(lengths, 24).sizes_BP, TensorSegmenter()(lengths, 24).sizes_BP)
    assert torch.equal(TensorSegmenter()(lengths, 24, training=True).sizes_BP, segmenter(lengths, 24).sizes_BP)
    torch.manual_seed(1)
    drawn = segmenter(lengths, 24, training=True).sizes_BP
    counts = torch.bincount(drawn[:, 0], minlength=5).tolist()
    assert counts[0] == 0 and len(counts) == 5 and min(counts[1:]) > 650
    assert (drawn[:, 1:6] == 4).all() and torch.equal(drawn[:, 0] + drawn[:, 6], torch.full((3000,), 4))


@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize("basis", ["sentence", "batch"])
@pytest.mark.parametrize("lengths", [[1], [7, 7], [3, 20, 1], [60, 59, 9], [9, 0, 4], [2] * 9])
def test_the_host_counts_what_the_sizes_say(basis: Any, lengths: list[int], random_start: bool) -> None:
    """The segmenter knows the counts from the lengths; phrases of trees read them from their sizes."""
    torch.manual_seed(3)
    segmenter = TensorSegmenter(basis=basis, random_start=random_start)
    segments = segmenter(torch.tensor(lengths), max(lengths), training=True)
    assert segments.counts == PhraseSegments(segments.sizes_BP, max(lengths)).counts
    assert segments.sizes_BP.sum(1).tolist() == lengths
    assert (segments.padding is None) == (len(set(lengths)) == 1)
