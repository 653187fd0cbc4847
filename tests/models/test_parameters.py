"""Parameter counts of the plain models, to the unit (spec §1.7, §3.8, §6)."""

from __future__ import annotations

import pytest
import torch

from phraseloom.models.build import build_model
from phraseloom.models.config import ModelConfig

P004 = {"width": 768, "heads": 8, "ffn_width": 2048, "output": {"bias": True}}


def count(config: dict, source: int, target: int) -> int:
    with torch.device("meta"):
        model = build_model(ModelConfig.model_validate(config), source, target)
    return sum(p.numel() for p in model.parameters())


def body(d: int, ffn: int, encoder: int, decoder: int) -> int:
    """Layers with layer norms and feed-forward biases, no attention biases, and the two final norms."""
    feed_forward = 2 * d * ffn + ffn + d
    return encoder * (4 * d * d + feed_forward + 4 * d) + decoder * (8 * d * d + feed_forward + 6 * d) + 4 * d


def test_base_model_of_the_phrasal_papers() -> None:
    assert count({"preset": "base"}, 37_000, 37_000) == 37_000 * 512 + body(512, 2048, 6, 6) == 63_047_680


@pytest.mark.parametrize(("preset", "expected", "rows"), [("base", 44.10, 43_000), ("big", 176.28, 43_000)])
def test_bodies_of_the_phrase_representation_paper(preset: str, expected: float, rows: int) -> None:
    config = {"preset": preset, "tied": "two_way", "norm": "post", "output": {"bias": True}}
    width = ModelConfig.model_validate(config).width
    total = count(config, rows, rows)
    assert (total - 2 * rows * width - rows) / 1e6 == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("layers", "expected"), [(6, 104.5), (5, 98.98), (3, 87.97), (1, 76.96)])
def test_transformer_of_the_encoder_free_paper(layers: int, expected: float) -> None:
    total = count({**P004, "encoder": {"layers": layers}}, 31_480, 31_480)
    assert total == 31_480 * 769 + body(768, 2048, layers, 6)
    assert total / 1e6 == pytest.approx(expected, abs=0.05)


def test_relative_positions_add_two_tables_a_layer() -> None:
    relative = {"score": {"kind": "relative", "clip": 16}}
    config = {"preset": "base", "attention": {"encoder_self": relative, "decoder_self": relative}}
    assert count(config, 100, 100) - count({"preset": "base"}, 100, 100) == 12 * 2 * 33 * 64


def test_ties() -> None:
    sizes = {tied: count({"preset": "tiny", "tied": tied}, 50, 50) for tied in ("three_way", "two_way", "none")}
    assert sizes["two_way"] - sizes["three_way"] == sizes["none"] - sizes["two_way"] == 50 * 64


def test_reference_shape_of_the_speed_figures() -> None:
    assert count({"preset": "small"}, 8000, 8000) == 7_569_408
