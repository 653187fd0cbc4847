"""The options that models of Marian need: biases in attention, activations, ε of normalisations, tokens that are no classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from phraseloom.config import validate
from phraseloom.data.tensors import make_batch
from phraseloom.errors import ConfigError
from phraseloom.layers.feedforward import ACTIVATIONS, FeedForward
from phraseloom.layers.packed import pack_for_inference
from phraseloom.models.build import build_language_model, build_model
from phraseloom.models.translation import TranslationModel
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.text.vocabulary import BOS, PAD

LINES = ["token", "queryk heterogeneous 1-2", "convkv interleaved 1-2", "queryk homogeneous 2-2"]
SOURCES, TARGETS = [[5, 6, 7, 8], [9]], [[9, 10, 4], [11, 12, 13, 14, 6]]


def biased(line: str = "token", **options: object) -> TranslationModel:
    """A model with biases that are not zero, in evaluation mode."""
    torch.manual_seed(3)
    given = {"preset": "tiny", "attention": line, "attention_bias": True, "norm": "post", **options}
    model = build_model(validate(ModelConfig, given), 30, 30)
    assert isinstance(model, TranslationModel)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("line", LINES)
def test_step_by_step_and_at_once_are_the_same(line: str) -> None:
    model = biased(line).double()
    batch = make_batch(SOURCES, TARGETS)
    memory = model.encode(batch.source_BS, batch.source_lengths_B)
    at_once, *_ = model.decode(batch.target_in_BT, memory)
    state = model.start(memory)
    for step in range(4):
        hidden, *_ = model.step(batch.target_in_BT[:, step], state)
        torch.testing.assert_close(hidden, at_once[:, step], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("line", LINES)
def test_padding_never_matters(line: str) -> None:
    model = biased(line).double()
    together = model.score(make_batch(SOURCES, TARGETS))
    alone = model.score(make_batch(SOURCES[1:], TARGETS[1:]))
    torch.testing.assert_close(together[1:], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("line", LINES)
def test_biases_are_packed(line: str) -> None:
    model = biased(line, activation="swish", output={"bias": True, "excluded": ["bos"], "smoothing": "kl"})
    batch = make_batch(SOURCES, TARGETS)
    expected = model.score(batch)
    if not pack_for_inference(model):
        pytest.skip("this torch has no packed products here")
    with torch.inference_mode():
        torch.testing.assert_close(model.score(batch), expected, rtol=1e-5, atol=1e-5)
    assert all(m._packed for m in model.modules() if hasattr(m, "pack")), "everything with weights was used packed"


def test_a_bias_is_that_of_the_projection() -> None:
    """softmax((q + b)·k): one head, width 2, by hand."""
    from phraseloom.layers.attention import build_attention
    from phraseloom.layers.attention.masks import Visibility

    block = build_attention(width=2, heads=1, bias=True)
    with torch.no_grad():
        block.score.weight.copy_(torch.eye(2).repeat(3, 1))
        block.bias.copy_(torch.tensor([1.0, 0, 0, 0, 0, 2]))
        block.arrangement.weight.copy_(torch.eye(2))
        block.arrangement.bias.copy_(torch.tensor([5.0, 7]))
    x = torch.tensor([[[1.0, 0], [0, 1]]])
    weights = ((x + torch.tensor([1.0, 0])) @ x.transpose(1, 2) / 2**0.5).softmax(-1)
    expected = weights @ (x + torch.tensor([0.0, 2])) + torch.tensor([5.0, 7])
    output, _ = block(x, None, Visibility(key_length=2, query_length=2))
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    function = {"relu": nn.ReLU(), "swish": nn.SiLU(), "gelu": nn.GELU()}[activation]
    torch.manual_seed(0)
    layer, x = FeedForward(width=8, inner=12, activation=activation).eval(), torch.randn(5, 8)
    expected = layer.down(function(layer.up(x)))
    torch.testing.assert_close(layer(x), expected)
    if pack_for_inference(layer):
        with torch.inference_mode():
            torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_normalisation_has_the_epsilon(norm: str) -> None:
    given = {"preset": "tiny", "norm": norm, "norm_epsilon": 1e-5, "embedding_norm": True}
    language = build_language_model(
        validate(LanguageModelConfig, {"preset": "tiny", "norm": norm, "norm_epsilon": 1e-5}), 9
    )
    for model in (build_model(validate(ModelConfig, given), 9, 9), language):
        assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-5}


def test_excluded_tokens_have_no_probability_and_cost_no_loss() -> None:
    model = biased(output={"bias": True, "excluded": ["pad", "bos"], "smoothing": "kl", "label_smoothing": 0.1})
    hidden = torch.randn(3, 64)
    log_probs = model.output.log_probs(hidden.clone())
    assert bool((log_probs[:, [PAD, BOS]] == float("-inf")).all())
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(3))
    model.train()
    sums = model.loss(make_batch(SOURCES, TARGETS))
    sums.objective.backward()
    assert bool(sums.objective.isfinite()) and bool(sums.nll.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    assert model.output.bias.grad[[PAD, BOS]].tolist() == [0.0, 0.0]


def test_excluded_needs_a_bias_and_kl() -> None:
    for output in (
        {"excluded": ["bos"]},
        {"excluded": ["bos"], "bias": True},
        {"excluded": ["bos"], "smoothing": "kl"},
    ):
        with pytest.raises(ConfigError, match="excluded needs bias: true and smoothing: kl"):
            validate(ModelConfig, {"preset": "tiny", "output": output})
