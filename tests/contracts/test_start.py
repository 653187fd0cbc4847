"""Every mechanism must start where tokens can be told apart (`training/start.py`): nothing built in starts collapsed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts.test_encoders_decoders import CASES

from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_language_model, build_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.training.start import StartReport, measure_start

SIZE = 60
ATTENTIONS = ["token", "relative", *(f"{s} {a}" for s in ("convkv", "queryk")
              for a in ("homogeneous 22", "heterogeneous 1-2", "heterogeneous 1-2-3", "interleaved 1-2"))]  # fmt: skip
PHRASES: dict[str, Any] = {
    "none": None,
    "max": {"attention": "none", "transparent": False},
    "mean": {"glance": "mean", "attention": "none", "transparent": False},
    "max-attn": {"transparent": False},
    "max-attn-ta": {},
    "gated": {"attention": "gated", "transparent_tokens": True},
    "token-residual": {"residual": "token"},
}


def table() -> TargetTable:
    rows = torch.nn.functional.normalize(torch.randn(SIZE, 10, generator=torch.Generator().manual_seed(8)), dim=-1)
    rows[[0, 2]] = 0
    return TargetTable(rows, SIZE - 20)


def start(model: dict[str, Any]) -> StartReport:
    torch.manual_seed(0)
    built = build_model(ModelConfig.model_validate(model), SIZE, SIZE, table())
    return measure_start(built, source_size=SIZE, target_size=SIZE)


@pytest.mark.parametrize("name", CASES)
def test_no_encoder_and_decoder_start_collapsed(name: str) -> None:
    case = CASES[name]
    tied = "two_way" if "output" in case else "none"
    report = start({"width": 32, "heads": 4, "ffn_width": 64, "tied": tied, **case})
    assert not report.collapsed, report


@pytest.mark.parametrize("phrases", PHRASES)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_transformers_start_far_from_collapse(attention: str, norm: str, phrases: str) -> None:
    layers = {"encoder": {"layers": 3}, "decoder": {"layers": 3}}
    line = attention if attention != "relative" else {"encoder_self": "relative", "decoder_self": "relative"}
    report = start(
        {
            "width": 32,
            "heads": 4,
            "ffn_width": 128,
            "norm": norm,
            "attention": line,
            "phrases": PHRASES[phrases],
            **layers,
        }
    )
    for part in report.parts.values():
        assert part.separation > 0.25, report
        assert part.signal > 0.7, report
        assert part.spread > 0.3, report
    assert report.gradient > 0.1, report


@pytest.mark.parametrize("encoder", ["columns", "lstm", "transformer"])
def test_segmental_models_do_not_start_collapsed(encoder: str) -> None:
    report = start({"width": 32, "heads": 4, "ffn_width": 64, "tied": "none", "encoder": CASES[f"{encoder}+mlp"]["encoder"],
                    "decoder": {"kind": "segmental", "layers": 1, "max_segment": 2}})  # fmt: skip
    assert not report.collapsed, report


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_language_models_do_not_start_collapsed(attention: str) -> None:
    torch.manual_seed(0)
    config = {"width": 32, "heads": 4, "ffn_width": 64, "decoder": {"layers": 3}, "attention": attention}
    model = build_language_model(LanguageModelConfig.model_validate(config), SIZE)
    assert not measure_start(model, source_size=SIZE, target_size=SIZE).collapsed


def test_a_deep_plain_lstm_keeps_its_signal() -> None:
    """Six layers under U(±1/√D) shrink their input to a spread of 0.002; gate by gate under Glorot's they do not."""
    stack = {"kind": "recurrent", "layers": 6}
    model = {"width": 64, "heads": 4, "encoder": stack, "decoder": {"layers": 1}}
    assert not start(model).collapsed
    assert start({**model, "init": {"recurrent": "fan_in_uniform"}}).collapsed == ["encoder"]


def test_a_collapsed_start_is_seen() -> None:
    """Source phrases under Glorot's distribution, post-norm as in paper 001: every token gets one vector."""
    model = {"width": 128, "heads": 4, "ffn_width": 512, "norm": "post", "embedding_norm": True, "phrases": {}}
    collapsed = start({**model, "init": "xavier_uniform"})
    assert collapsed.collapsed == ["encoder", "decoder"]
    assert collapsed.parts["encoder"].separation < 0.002
    assert collapsed.parts["encoder"].signal < 0.1
    assert not start(model).collapsed


def test_measuring_changes_nothing() -> None:
    torch.manual_seed(3)
    model = build_model(ModelConfig.model_validate({"width": 16, "heads": 2, "ffn_width": 16}), SIZE, SIZE)
    model.train()
    before = torch.random.get_rng_state()
    first = measure_start(model, source_size=SIZE, target_size=SIZE)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert measure_start(model, source_size=SIZE, target_size=SIZE) == first
