"""`attention.backend` in a whole model: the same losses and gradients, weights on request, and the form that is stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.layers.attention import MultiHeadAttention
from phraseloom.models.build import build_language_model, build_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig

SIZE = 12
SHAPE: dict[str, Any] = {"width": 16, "heads": 4, "ffn_width": 16, "attention_dropout": 0.0, "dropout": 0.0}
LAYERS = {"encoder": {"layers": 2}, "decoder": {"layers": 2}}


def model(backend: str, line: str = "queryk heterogeneous 1-2") -> Any:
    torch.manual_seed(0)
    attention = dict.fromkeys(("encoder_self", "decoder_self", "cross"), line) | {"backend": backend}
    return build_model(ModelConfig.model_validate({**SHAPE, **LAYERS, "attention": attention}), SIZE, SIZE).double()


def batch() -> Batch:
    return make_batch([[5, 6, 7], [8, 4], [], [4, 7, 8, 5]], [[5, 6], [7, 8, 4, 5], [], [5, 5, 5]])


@pytest.mark.parametrize(
    "line", ["token", "queryk heterogeneous 1-2", "convkv homogeneous 22", "queryk interleaved 1-2"]
)
def test_the_loss_and_its_gradients_are_equal(line: str) -> None:
    results = []
    for backend in ("explicit", "fused"):
        built = model(backend, line)
        sums = built.loss(batch())
        results.append([sums.objective, *torch.autograd.grad(sums.objective, list(built.parameters()))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_weights_on_request_are_those_of_explicit_attention() -> None:
    given = batch()
    arguments = (given.source_BS, given.source_lengths_B, given.target_in_BT)
    looks = [model(backend).attention_maps(*arguments) for backend in ("explicit", "fused")]
    for part in ("encoder_self", "decoder_self", "cross"):
        weights = [[w for w, _ in getattr(look, part)] for look in looks]
        assert len(weights[0]) == 2
        for one, other in zip(*weights, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_language_model_has_it_too() -> None:
    scores = []
    for backend in ("explicit", "fused"):
        attention = {"decoder_self": "queryk heterogeneous 1-2-3", "backend": backend}
        config = LanguageModelConfig.model_validate({**SHAPE, "decoder": {"layers": 2}, "attention": attention})
        torch.manual_seed(0)
        built = build_language_model(config, SIZE).double()
        assert {m.backend for m in built.modules() if isinstance(m, MultiHeadAttention)} == {backend}
        scores.append(built.score(batch()))
    torch.testing.assert_close(*scores, rtol=0, atol=1e-11)


def test_auto_is_not_stored_and_other_names_are_refused() -> None:
    for config in (ModelConfig, LanguageModelConfig):
        assert "backend" not in config.model_validate({}).attention.model_dump()
        assert "backend" not in config.model_validate({"attention": {"backend": "auto"}}).attention.model_dump()
        stored = config.model_validate({"attention": {"backend": "fused"}}).attention.model_dump()
        assert stored["backend"] == "fused"
        assert config.model_validate({"attention": stored}).attention.backend == "fused"
        with pytest.raises(ValidationError, match="'auto', 'explicit' or 'fused'"):
            config.model_validate({"attention": {"backend": "flash"}})
