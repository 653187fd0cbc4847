"""Parameter counts of the plain models, to the unit."""

from __future__ import annotations

import pytest
import torch

from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig

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


def lstm(inputs: int, d: int) -> int:
    """Four gates over input and state, with one bias."""
    return 4 * d * (inputs + d) + 4 * d


@pytest.mark.parametrize(("source", "expected"), [({}, 71.4), ({"positions": {"source": {"kind": "none"}}}, 71.4)])
def test_transformer_without_encoder(source: dict, expected: float) -> None:
    """Trans-noEnc and Trans-noEnc-noPos (P004, Table 1): the layers of the decoder and its closing norm, nothing else."""
    total = count({**P004, "encoder": {"kind": "none"}, **source}, 31_480, 31_480)
    assert total == 31_480 * 769 + body(768, 2048, 0, 6) - 2 * 768
    assert total / 1e6 == pytest.approx(expected, abs=0.05)


RECURRENT = {"kind": "recurrent"}
# P004, Table 1; the paper cuts its figures off after one place.
RNN_SYSTEMS = [
    ("RNNS2S", {"encoder": RECURRENT, "decoder": RECURRENT}, 91.5),
    ("RNNS2S-noEnc", {"encoder": {"kind": "none"}, "decoder": RECURRENT}, 64.3),
    ("RNNS2S-noAtt", {"encoder": RECURRENT, "decoder": {**RECURRENT, "attention": "fixed"}}, 90.3),
    ("RNNS2S-noAtt-noEnc", {"encoder": {"kind": "none"}, "decoder": {**RECURRENT, "attention": "fixed"}}, 63.1),
]


@pytest.mark.parametrize(("name", "keys", "expected"), RNN_SYSTEMS, ids=[row[0] for row in RNN_SYSTEMS])
def test_recurrent_systems_of_the_encoder_free_paper(name: str, keys: dict, expected: float) -> None:
    """Spec §6.1: 1 bidirectional and 5 more layers; 6 in the decoder, the first reads the output fed back; MLP attention
    2d² + d; first states 12 (d² + d); the joining layer 2d² + d; embeddings and the bias of the output."""
    d, rows = 768, 31_480
    total = count({**P004, **keys}, rows, rows)
    encoder = 2 * lstm(d, d // 2) + 5 * lstm(d, d)
    decoder = lstm(2 * d, d) + 5 * lstm(d, d) + 12 * (d * d + d) + 2 * d * d + d
    attention = 2 * d * d + d
    parts = decoder + (0 if "noEnc" in name else encoder) + (0 if "noAtt" in name else attention)
    assert total == rows * (d + 1) + parts
    assert total / 1e6 == pytest.approx(expected, abs=0.07)


def test_differences_that_tell_the_systems_apart() -> None:
    """Spec §6.1: 1.2M for the attention, 27.2M for the encoder; the sweep over encoder layers costs 5.5M a layer."""
    sizes = {name: count({**P004, **keys}, 31_480, 31_480) / 1e6 for name, keys, _ in RNN_SYSTEMS}
    assert sizes["RNNS2S"] - sizes["RNNS2S-noAtt"] == pytest.approx(1.18, abs=0.005)
    assert sizes["RNNS2S"] - sizes["RNNS2S-noEnc"] == pytest.approx(27.15, abs=0.005)
    sweep = [count({**P004, "encoder": {"layers": n}}, 31_480, 31_480) / 1e6 for n in (1, 3, 5, 6)]
    none = count({**P004, "encoder": {"kind": "none"}}, 31_480, 31_480) / 1e6
    assert [s - none for s in sweep] == pytest.approx([5.5, 16.5, 27.6, 33.1], abs=0.05)


OPTIONS = [
    ({"initial": "zero"}, -12 * (64 * 64 + 64)),
    ({"input_feeding": False}, -4 * 64 * 64),
    ({"attention": "general"}, -(64 * 64) - 64),
    ({"attention": "multihead"}, 2 * 64 * 64 - 64),
    ({"residual": True}, 0),
    ({"cell": "gru"}, -(6 * lstm(64, 64) + 4 * 64 * 64) // 4 + 6 * 64 - 6 * (64 * 64 + 64)),
]


@pytest.mark.parametrize(("keys", "difference"), OPTIONS, ids=str)
def test_what_options_of_a_recurrent_decoder_cost(keys: dict, difference: int) -> None:
    plain = {"width": 64, "encoder": {"kind": "none"}, "decoder": {"kind": "recurrent"}}
    assert count({**plain, "decoder": {**plain["decoder"], **keys}}, 50, 50) - count(plain, 50, 50) == difference


def test_relative_positions_add_two_tables_a_layer() -> None:
    relative = {"score": {"kind": "relative", "clip": 16}}
    config = {"preset": "base", "attention": {"encoder_self": relative, "decoder_self": relative}}
    assert count(config, 100, 100) - count({"preset": "base"}, 100, 100) == 12 * 2 * 33 * 64


# Spec §1.7: squares of the width in a block of the encoder, and in one of the decoder (self, cross); millions of the whole.
TABLE = [
    ("token", 4, 4, 63.05),
    ("queryk heterogeneous 1-2", 8, 8, 81.9),
    ("queryk heterogeneous 1-2-3", 14, 14, 110.2),
    ("queryk heterogeneous 1-2-3-4", 22, 22, 148.0),
    ("queryk heterogeneous 1-2 keys-per-order", 9, 9, 86.6),
    ("queryk heterogeneous 1-2-3 keys-per-order", 16, 16, 119.7),
    ("convkv heterogeneous 1-2", 8, 8, 81.9),
    ("convkv heterogeneous 1-2-3", 14, 14, 110.2),
    ("convkv homogeneous 44", 5, 5, 67.8),
    ("queryk homogeneous 44", 5, 5, 67.8),
    ("convkv homogeneous 323", 6, 6, 72.5),
    ("queryk homogeneous 323", 6, 6, 72.5),
    ("convkv interleaved 1-2", 12, 11, 97.6),
    ("queryk interleaved 1-2 keys-per-order", 17, 16, 121.2),
]


@pytest.mark.parametrize(("attention", "encoder", "decoder", "millions"), TABLE, ids=[row[0] for row in TABLE])
def test_phrasal_models(attention: str, encoder: int, decoder: int, millions: float) -> None:
    """All 18 blocks are phrasal; nothing but their matrices grows."""
    with torch.device("meta"):
        model = build_model(ModelConfig.model_validate({"preset": "base", "attention": attention}), 37_000, 37_000)
    blocks = [layer.attention for layer in model.encoder.layers]
    assert {sum(p.numel() for p in b.parameters()) for b in blocks} == {encoder * 512**2}
    blocks = [b for layer in model.decoder.layers for b in (layer.self_attention, layer.cross_attention)]
    assert {sum(p.numel() for p in b.parameters()) for b in blocks} == {decoder * 512**2}
    total = sum(p.numel() for p in model.parameters())
    assert total == 63_047_680 + (6 * (encoder - 4) + 12 * (decoder - 4)) * 512**2
    assert total / 1e6 == pytest.approx(millions, abs=0.055)


PARTS = [
    ("queryk heterogeneous 1-2", {"Wq": 1 + 2, "Wk": 1, "Wv": 1 + 2, "Wo": 1}),
    ("queryk heterogeneous 1-2-3 keys-per-order", {"Wq": 6, "Wk": 3, "Wv": 6, "Wo": 1}),
    ("convkv heterogeneous 1-2-3", {"Wq": 1, "Wk": 6, "Wv": 6, "Wo": 1}),
    ("convkv homogeneous 44", {"Wq": 1, "Wk": 1.5, "Wv": 1.5, "Wo": 1}),
    ("queryk homogeneous 44", {"Wq": 1.5, "Wk": 1, "Wv": 1.5, "Wo": 1}),
    ("convkv homogeneous 323", {"Wq": 1, "Wk": 2, "Wv": 2, "Wo": 1}),
    ("queryk homogeneous 323", {"Wq": 2, "Wk": 1, "Wv": 2, "Wo": 1}),
    ("convkv interleaved 1-2", {"Wq": 1 + 2, "Wk": 3, "Wv": 3, "Wo": 3}),
    ("queryk interleaved 1-2 keys-per-order", {"Wq": 1 + 2 + 2 + 4, "Wk": 2, "Wv": 3, "Wo": 3}),
]


@pytest.mark.parametrize(("attention", "expected"), PARTS, ids=[row[0] for row in PARTS])
def test_which_matrices_grow(attention: str, expected: dict[str, float]) -> None:
    """The columns of the table: Wq, Wk, Wv and the output of one block of the encoder, in squares of the width."""
    width = 64
    config = {"preset": "tiny", "width": width, "heads": 8, "attention": {"encoder_self": attention}}
    block = build_model(ModelConfig.model_validate(config), 10, 10).encoder.layers[0].attention
    squares = dict.fromkeys(expected, 0.0)
    for name, matrix in {**block.score.matrices(), **block.arrangement.matrices()}.items():
        squares[name[:2]] += matrix.numel() / width**2
    assert squares == expected


def test_ties() -> None:
    sizes = {tied: count({"preset": "tiny", "tied": tied}, 50, 50) for tied in ("three_way", "two_way", "none")}
    assert sizes["two_way"] - sizes["three_way"] == sizes["none"] - sizes["two_way"] == 50 * 64


def test_reference_shape_of_the_speed_figures() -> None:
    assert count({"preset": "small"}, 8000, 8000) == 7_569_408
