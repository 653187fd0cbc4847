"""Every model that can be built, small and in float64, with a batch for it: what a device must compute as the CPU does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts import test_encoders_decoders as contract
from tests.models import test_language_model
from tests.npmt import test_model as segmental

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig

ATTENTION = [
    "token",
    "queryk homogeneous 22",
    "queryk heterogeneous 1-2",
    "queryk interleaved 1-2",
    "convkv homogeneous 22",
    "convkv heterogeneous 1-2-3",
    "convkv interleaved 1-2",
]
TRANSFORMER = {"encoder": contract.ENCODER["transformer"], "decoder": contract.DECODER["transformer"]}


def models() -> dict[str, Any]:
    result: dict[str, Any] = {name: lambda name=name: contract.built(name) for name in contract.CASES}
    for line in ATTENTION:
        for backend in ("explicit", "fused"):
            config = {
                "attention": dict.fromkeys(("encoder_self", "decoder_self", "cross"), line) | {"backend": backend}
            }
            result[f"{line} {backend}"] = lambda config=config: translation(**config)
    result["language model"] = lambda: test_language_model.model(attention="queryk heterogeneous 1-2")
    result |= {f"segmental {kind}": lambda kind=kind: segmental.built(kind) for kind in segmental.KINDS}
    return result


def translation(**keys: Any) -> Any:
    sizes = {"width": 16, "heads": contract.HEADS, "ffn_width": 16, "tied": "none", "output": {"bias": True}}
    torch.manual_seed(4)
    config = ModelConfig.model_validate({**sizes, **TRANSFORMER, **keys})
    return build_model(config, contract.SIZE, contract.SIZE).double().eval()


MODELS = models()
each = pytest.mark.parametrize("name", MODELS)


def batch_of(name: str) -> Batch:
    if name.startswith("segmental"):
        return segmental.batch()
    if name == "language model":
        return make_batch([[]] * 4, contract.TARGETS)
    return contract.batch()


def update(model: Any, batch: Batch) -> dict[str, Any]:
    model.zero_grad()
    loss = model.loss(batch)
    loss.objective.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None} | {"objective": loss.objective}


def memory_of(model: Any, name: str, place: Any) -> Any:
    if name == "language model":
        return len(contract.SOURCES)
    batch = make_batch(contract.SOURCES, [[]] * 4).to(place)
    with torch.no_grad():
        return model.encode(batch.source_BS, batch.source_lengths_B)


def may_wait(name: str) -> bool:
    """Whether an update waits for the device: for lengths that torch's recurrent kernels read on the host, for the sizes of
    source phrases, for the rows of segments."""
    return name.startswith("segmental") or "+final" in name or name.endswith(("-phrases", "-released"))
