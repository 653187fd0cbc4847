"""Guided alignment: the loss against slow loops in float64, its gradient, padding, phrase slots, a model that learns."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from phraseloom.data.tensors import Batch, from_padded
from phraseloom.errors import UsageError
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.losses.guided import LEAST, Guide, guided_loss, link_targets
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig

TOKENS = Structure.of_orders(2, (1,))
BIGRAMS = Structure(4, ((HeadGroup(1, 0, 2), HeadGroup(2, 2, 4)),))  # heads 1 and 2 see tokens, 3 and 4 bigrams
BOTH = Structure.of_orders(2, (1, 2))


def slow_loss(weights: Tensor, structure: Structure, links: list[set[tuple[int, int]]], heads: list[int]) -> float:
    """The loss of the module's docstring, link by link; `links` are (target, source) of each sentence."""
    total, length = 0.0, weights.shape[-1] // len(structure.blocks)
    for b, own in enumerate(links):
        for h in heads:
            for t in {t for t, _ in own}:
                sources = {s for u, s in own if u == t}
                for s in sources:
                    attention = 0.0
                    for g, block in enumerate(structure.blocks):
                        [order] = [part.order for part in block if part.first <= h < part.last]
                        for j in range(s, min(length, s + order)):
                            window = range(max(0, j - order + 1), j + 1)
                            attention += float(weights[b, h, t, g * length + j]) / len(window)
                    total -= math.log(max(attention, LEAST)) / len(sources) / len(heads)
    return total


def random_weights(structure: Structure, *, sentences: int = 2, rows: int = 4, length: int = 5) -> Tensor:
    torch.manual_seed(3)
    scores = torch.randn(sentences, structure.heads, rows, len(structure.blocks) * length, dtype=torch.float64)
    return scores.softmax(-1)


LINKS = [{(0, 0), (0, 1), (2, 4), (3, 1)}, {(1, 2)}]


def matrix(links: list[set[tuple[int, int]]], rows: int = 4, length: int = 5) -> Tensor:
    result = torch.zeros(len(links), rows, length, dtype=torch.float64)
    for b, own in enumerate(links):
        for t, s in own:
            result[b, t, s] = 1.0
    return result


@pytest.mark.parametrize("structure", [TOKENS, BIGRAMS, BOTH])
@pytest.mark.parametrize("heads", [[], [1]])
def test_the_loss_is_that_of_slow_loops(structure: Structure, heads: list[int]) -> None:
    weights = random_weights(structure)
    guide = Guide([structure], weight=1.0, heads=heads)
    expected = slow_loss(weights, structure, LINKS, heads or list(range(structure.heads)))
    assert guide.loss([weights], matrix(LINKS)).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("structure", [TOKENS, BIGRAMS, BOTH])
def test_the_gradient_is_that_of_finite_differences(structure: Structure) -> None:
    guide, links = Guide([structure], weight=1.0), matrix(LINKS)
    scores = random_weights(structure).log().requires_grad_()
    torch.autograd.gradcheck(lambda x: guide.loss([x.softmax(-1)], links), scores)


def test_the_least_loss_is_the_entropy_of_the_links() -> None:
    targets = link_targets(matrix(LINKS))
    assert targets.sum(-1).tolist() == [[1, 0, 1, 1], [0, 1, 0, 0]]
    exact = guided_loss(targets[:, None], targets)
    assert exact.item() == pytest.approx(math.log(2))  # two links of one word
    assert guided_loss(random_weights(TOKENS), targets).item() > exact.item()


def test_a_bigram_slot_fits_a_target_word_with_two_links_only() -> None:
    weights = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    weights[0, 0, :, 2] = 1.0  # both target words attend to the bigram of tokens 1 and 2
    guide = Guide([Structure.of_orders(1, (2,))], weight=1.0)
    phrase, word = (
        guide.loss([weights], matrix([own], rows=2, length=4)).item() for own in ({(0, 1), (0, 2)}, {(1, 2)})
    )
    assert phrase == pytest.approx(math.log(2)) and word == pytest.approx(math.log(2))
    entropy_of_phrase, entropy_of_word = math.log(2), 0.0
    assert phrase - entropy_of_phrase == pytest.approx(0.0) and word - entropy_of_word > 0.69


def test_padding_and_unlinked_words_add_nothing() -> None:
    weights, links = random_weights(BOTH), matrix(LINKS)
    guide = Guide([BOTH], weight=1.0)
    alone = sum(guide.loss([weights[b : b + 1]], links[b : b + 1]).item() for b in (0, 1))
    assert guide.loss([weights], links).item() == pytest.approx(alone, rel=1e-12)
    wider = torch.zeros(2, 2, 6, 2, 7, dtype=torch.float64)
    wider[:, :, :4, :, :5] = weights.unflatten(-1, (2, 5))
    padded = torch.zeros(2, 6, 7, dtype=torch.float64)
    padded[:, :4, :5] = links
    assert guide.loss([wider.flatten(-2)], padded).item() == pytest.approx(alone, rel=1e-12)
    assert guide.loss([weights], torch.zeros_like(links)).item() == 0.0


def test_weight_and_decay_are_factors() -> None:
    guide = Guide([TOKENS], weight=0.5, decay=0.8)
    assert guide.scale == 0.5
    guide.epoch = 3
    assert guide.scale == pytest.approx(0.5 * 0.8**3)


def test_a_layer_or_head_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="no layer 3: the decoder attends in 2 layers"):
        Guide([TOKENS, TOKENS], weight=1.0, layers=[2])
    with pytest.raises(UsageError, match="no head 5: layer 1 has 2 heads"):
        Guide([TOKENS, TOKENS], weight=1.0, heads=[4])
    with pytest.raises(UsageError, match="attends to no source tokens"):
        Guide([], weight=1.0)


def batch(extra: int = 0) -> Batch:
    """Three pairs of words in reverse order, with their links; `extra` columns of padding."""
    lengths = np.array([4, 3, 2])
    source = np.zeros((3, 4 + extra), np.int64)
    target, links = source.copy(), np.zeros((3, 4 + extra, 4 + extra), np.float32)
    for row, length in enumerate(lengths):
        source[row, :length] = 4 + np.arange(length) + row
        target[row, :length] = source[row, :length][::-1]
        links[row, np.arange(length), np.arange(length)[::-1]] = 1
    return from_padded(source, lengths, target, lengths, links=links)


def model_of(attention: str | None = None) -> Any:
    torch.manual_seed(1)
    stack = {"layers": 2}
    values = {"width": 16, "heads": 4, "ffn_width": 16, "dropout": 0.0, "encoder": stack, "decoder": stack}
    config = ModelConfig.model_validate(values | ({} if attention is None else {"attention": attention}))
    return build_model(config, 16, 16).double().eval()  # without dropout of attention


@pytest.mark.parametrize("attention", [None, "queryk heterogeneous 1-2", "convkv interleaved 1-2"])
def test_a_model_adds_the_loss_and_padding_does_not_change_it(attention: str | None) -> None:
    model = model_of(attention)
    plain = model.loss(batch())
    model.guide = Guide(model.decoder.cross_structures, weight=0.5)
    sums = [model.loss(batch(extra)) for extra in (0, 3)]
    assert sums[0].nll.item() == pytest.approx(plain.nll.item(), rel=1e-9)
    assert sums[0].objective.item() == pytest.approx(plain.objective.item() + 0.5 * sums[0].guided.item(), rel=1e-9)
    assert sums[1].guided.item() == pytest.approx(sums[0].guided.item(), rel=1e-6)
    unlinked = dataclasses.replace(batch(), links_BTS=None)
    assert model.loss(unlinked).guided is None


def test_a_model_learns_the_links() -> None:
    model = model_of("queryk heterogeneous 1-2")
    model.guide = Guide(model.decoder.cross_structures, weight=1.0, layers=[0])
    optimizer, data = torch.optim.Adam(model.parameters(), lr=0.01), batch()
    first = model.loss(data).guided.item()
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(data).objective.backward()
        optimizer.step()
    assert model.loss(data).guided.item() < 0.2 * first
