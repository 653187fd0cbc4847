"""Layers whose interleaved attention takes the place of the feed-forward layer: whole models against loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from tests.reference import ngram
from torch import Tensor

from phraseloom.data.tensors import make_batch
from phraseloom.models.build import build_model
from phraseloom.native.library import Parts, load
from phraseloom.native.program import Unsupported, encoder_program
from phraseloom.options.model import ModelConfig

SIZE, HEADS, WIDTH = 9, 2, 8
SOURCE, TARGET = [5, 6, 7], [8, 4, 5, 6]
LINES = {"convkv": "convkv interleaved 1-2", "queryk": "queryk interleaved 1-2 keys-per-order"}


def config(**changes: Any) -> ModelConfig:
    sizes = {"width": WIDTH, "heads": HEADS, "ffn_width": 16, "tied": "none", "positions": {"kind": "none"}}
    layers = {"encoder": {"layers": 2}, "decoder": {"layers": 2}, "feed_forward": "interleaved"}
    return ModelConfig.model_validate({**sizes, **layers, "attention": LINES["queryk"], **changes})


def built(asked: ModelConfig) -> Any:
    model = build_model(asked, SIZE, SIZE).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model.eval()


def norm(x: np.ndarray, module: Any) -> np.ndarray:
    """LayerNorm, row by row."""
    gain, bias = (p.detach().numpy() for p in (module.weight, module.bias))
    rows = [(row - row.mean()) / np.sqrt(((row - row.mean()) ** 2).mean() + module.eps) for row in x]
    return np.stack(rows) * gain + bias


def matrices(block: Any) -> dict[str, np.ndarray]:
    parts: dict[str, Tensor] = {**block.score.matrices(), **block.arrangement.matrices()}
    return {name: matrix.detach().numpy() for name, matrix in parts.items()}


def sublayer(
    x: np.ndarray, memory: np.ndarray | None, block: Any, residual: Any, technique: str, **how: bool
) -> np.ndarray:
    """x + the convolved interleaved attention (pre), or its norm (post)."""
    queries = norm(x, residual.norm) if residual.pre else x
    keys = queries if memory is None else memory
    result = ngram.interleaved(queries, keys, matrices(block), technique=technique, heads=HEADS, orders=[1, 2], **how)
    return x + result.output if residual.pre else norm(x + result.output, residual.norm)


@pytest.mark.parametrize("normed", ["pre", "post"])
@pytest.mark.parametrize("technique", LINES)
def test_a_model_is_its_loops(technique: str, normed: str) -> None:
    model = built(config(attention=LINES[technique], norm=normed))
    batch = make_batch([SOURCE], [TARGET])
    memory = model.encode(batch.source_BS, batch.source_lengths_B)
    hidden = model.decode(batch.target_in_BT, memory)[0]
    x = model.source_embedding(batch.source_BS)[0].detach().numpy()
    for layer in model.encoder.layers:
        x = sublayer(x, None, layer.attention, layer.attention_residual, technique, reads_ahead=True)
    encoded = norm(x, model.encoder.norm) if normed == "pre" else x
    np.testing.assert_allclose(memory.states_BSD[0].detach().numpy(), encoded, atol=1e-10)
    y = model.target_embedding(batch.target_in_BT)[0].detach().numpy()
    for layer in model.decoder.layers:
        y = sublayer(y, None, layer.self_attention, layer.self_residual, technique, causal=True)
        y = sublayer(y, encoded, layer.cross_attention, layer.cross_residual, technique)
    expected = norm(y, model.decoder.norm) if normed == "pre" else y
    np.testing.assert_allclose(hidden[0].detach().numpy(), expected, atol=1e-10)


def test_only_the_feed_forward_layers_and_their_norms_are_gone() -> None:
    names = {name for name, _ in built(config()).named_parameters()}
    with_layers = {name for name, _ in built(config(feed_forward="pointwise")).named_parameters()}
    assert names < with_layers
    assert {name.split(".")[3] for name in with_layers - names} == {"feed_forward", "feed_forward_residual"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"attention": "queryk heterogeneous 1-2"}, "attention.encoder_self is heterogeneous"),
        (
            {"attention": {"encoder_self": LINES["queryk"], "decoder_self": LINES["queryk"]}},
            "attention.cross is homogeneous",
        ),
        (
            {"decoder": {"kind": "recurrent", "layers": 1}, "encoder": {"kind": "none"}, "attention": {}},
            "the decoder here is",
        ),
        ({"feed_forward": "none"}, "pointwise"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=match):
        config(**changes)


def test_an_encoder_without_layers_asks_nothing_of_its_attention() -> None:
    uses = {"decoder_self": LINES["convkv"], "cross": LINES["convkv"]}
    assert config(encoder={"kind": "none"}, attention=uses).feed_forward == "interleaved"


def test_the_compiled_kernels_leave_such_layers_to_torch() -> None:
    if load() is None:
        pytest.skip("the compiled library is not built")
    model = built(config()).float()
    with pytest.raises(Unsupported, match="without feed-forward"):
        encoder_program(Parts(1), model.encoder, model.source_embedding, None)
