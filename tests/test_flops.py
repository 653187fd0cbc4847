"""The FLOP that the benchmarks count are those that torch sees, for every structure: forward, backward, search."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.search import Limits, SearchOptions, search
from phraseloom.models.build import build_model
from phraseloom.models.config import ModelConfig

PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "flops.py"
VOCABULARY = 29
ATTENTIONS: list[Any] = [
    "token",
    {"encoder_self": "relative", "decoder_self": "relative"},
    *[
        f"{score} {structure}"
        for score in ("convkv", "queryk")
        for structure in ("homogeneous 22", "homogeneous 121", "heterogeneous 1-2", "heterogeneous 1-2-3")
    ],
    *[f"{score} interleaved {orders}" for score in ("convkv", "queryk") for orders in ("1-2", "1-2-3")],
    "queryk heterogeneous 1-2-3 keys-per-order",
    "queryk interleaved 1-2 keys-per-order",
    {"encoder_self": "convkv heterogeneous 2", "decoder_self": "token", "cross": "queryk interleaved 1-3"},
]


@pytest.fixture(scope="module")
def flops() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_flops", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def config(attention: Any) -> ModelConfig:
    layers = {"encoder": {"layers": 2}, "decoder": {"layers": 1}}
    return ModelConfig.model_validate({"width": 16, "heads": 4, "ffn_width": 24, **layers, "attention": attention})


def in_place(bias: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * a[0] * a[1] * b[1]


def counter() -> FlopCounterMode:
    """torch's counter, which does not know the in-place sum of products in the loss."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_training(flops: Any, attention: Any) -> None:
    model_config = config(attention)
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    source, target, sentences = 7, 5, 3
    batch = make_batch([[4] * (source - 1)] * sentences, [[5] * (target - 1)] * sentences)
    with counter() as seen:
        model.loss(batch).objective.backward()
    counted = flops.training_flop(model_config, VOCABULARY, [(source, target)] * sentences)
    assert seen.get_total_flops() == counted


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_search(flops: Any, attention: Any, beam: int) -> None:
    model_config = config(attention)
    model = build_model(model_config, VOCABULARY, VOCABULARY).eval()
    source, tokens, sentences = 6, 4, 2
    batch = make_batch([[4] * (source - 1)] * sentences, [[]] * sentences)
    bounds = [tokens] * sentences
    with counter() as seen, torch.inference_mode():
        memory = model.encode(batch.source_BS, batch.source_lengths_B)
        found = search(model, memory, Limits.of(bounds, bounds), SearchOptions(beam=beam))
    assert all(len(hypotheses[0].tokens) == tokens for hypotheses in found)
    counted = flops.decoding_flop(model_config, VOCABULARY, [(source, tokens + 1)] * sentences, beam=beam)
    # at its longest length a search asks once more for the probabilities of the same hidden vectors, to close with EOS
    again = 2 * beam * sentences * model_config.width * VOCABULARY
    assert seen.get_total_flops() == counted + again


def test_padding_and_length_are_counted(flops: Any) -> None:
    model_config = config("queryk heterogeneous 1-2")
    short = flops.training_flop(model_config, VOCABULARY, [(3, 4)])
    assert flops.padded([(3, 9), (8, 4)]) == [(8, 9), (8, 9)]
    assert flops.padded([]) == []
    assert short < flops.training_flop(model_config, VOCABULARY, [(3, 5)])
    assert short < flops.training_flop(model_config, VOCABULARY, [(4, 4)])


def test_what_a_structure_adds(flops: Any) -> None:
    """Projections of spec §1.7 in units of D² and token: 8 for QueryK and ConvKV 1-2 against 4."""
    for attention, units in [("token", 4), ("queryk heterogeneous 1-2", 8), ("convkv heterogeneous 1-2", 8)]:
        use = config(attention)
        cost = flops.block_cost(use, use.attention.encoder_self, reads_ahead=True)
        assert cost.query + cost.key + cost.output == units * use.width**2
