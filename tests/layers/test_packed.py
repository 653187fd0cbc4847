"""Packed products: the same numbers as plain ones, only in inference, and never with a weight that has changed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from phraseloom.data.tensors import make_batch
from phraseloom.layers.feedforward import FeedForward
from phraseloom.layers.packed import pack_for_inference
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig


@pytest.mark.parametrize("rows", [1, 3, 64, 130])
def test_the_same_numbers(rows: int) -> None:
    torch.manual_seed(0)
    layer = FeedForward(width=32, inner=48).eval()
    x = torch.randn(rows, 32)
    plain = layer(x)
    if not pack_for_inference(layer):
        pytest.skip("this torch has no packed products here")
    with torch.inference_mode():
        assert layer._packed[0].fits(x, layer.up.weight)
        torch.testing.assert_close(layer(x), plain, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(layer(x.view(rows, 1, 32))[:, 0], plain, rtol=1e-5, atol=1e-5)


def test_a_changed_weight_is_not_the_packed_one() -> None:
    layer = FeedForward(width=8, inner=8).eval()
    pack_for_inference(layer)
    with torch.no_grad():
        layer.up.weight.mul_(2.0)
    x = torch.randn(4, 8)
    expected = layer(x)
    with torch.inference_mode():
        assert torch.equal(layer(x), expected)


def tiny_model() -> tuple[Any, Any]:
    """A model, and a batch of two pairs."""
    torch.manual_seed(0)
    model = build_model(ModelConfig.model_validate({"preset": "tiny"}), 30, 30).eval()
    return model, make_batch([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]])


def test_a_packed_model_still_trains_and_scores() -> None:
    model, batch = tiny_model()
    before = model.score(batch)
    pack_for_inference(model)
    with torch.inference_mode():
        torch.testing.assert_close(model.score(batch), before, rtol=1e-5, atol=1e-5)
    model.train()
    sums = model.loss(batch)
    sums.objective.backward()
    assert model.decoder.layers[0].feed_forward.up.weight.grad.abs().sum() > 0


def test_other_types_are_left_alone() -> None:
    assert not pack_for_inference(FeedForward(width=8, inner=8).double())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("searched", [False, True])
def test_a_packed_model_can_be_copied(again: Callable[[Any], Any], searched: bool) -> None:
    model, batch = tiny_model()
    expected = model.score(batch)
    pack_for_inference(model)
    with torch.inference_mode(searched):
        model.score(batch)
    copied = again(model)
    with torch.inference_mode():
        torch.testing.assert_close(copied.score(batch), expected, rtol=1e-5, atol=1e-5)


def test_a_packed_model_becomes_float64() -> None:
    model, batch = tiny_model()
    expected = model.score(batch)
    pack_for_inference(model)
    model.double()
    with torch.inference_mode():
        found = model.score(batch)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-4)
