"""Checkpointed activations: the same bits of the gradient, dropout included, and less in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contracts import every_model
from tests.models import test_language_model

from phraseloom.data.tensors import make_batch
from phraseloom.models.recompute import checkpoint_layers

LINES = ["token", "queryk heterogeneous 1-2", "convkv interleaved 1-2"]


def gradients(model: Any, *, checkpointed: bool, batch: Any) -> tuple[dict[str, torch.Tensor], int]:
    """The gradients of an update with dropout, and the bytes that autograd keeps for the backward, each tensor once."""
    model.float().train()
    if checkpointed:
        checkpoint_layers(model)
    storages: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.nn.Parameter):
            kept.append(x)
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    kept: list[torch.Tensor] = []
    torch.manual_seed(7)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        objective = model.loss(batch).objective
    size = sum(storages.values())
    objective.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, size


@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("line", LINES)
def test_the_gradient_has_the_same_bits_and_less_is_kept(line: str, backend: str) -> None:
    uses = ("encoder_self", "decoder_self", "cross")
    keys = {"attention": dict.fromkeys(uses, line) | {"backend": backend}, "dropout": 0.2}
    generator = torch.Generator().manual_seed(3)
    texts = torch.randint(4, 9, (4, 24), generator=generator).tolist()
    batch = make_batch(texts, [t[:20] for t in texts])
    plain, whole = gradients(every_model.translation(**keys), checkpointed=False, batch=batch)
    again, kept = gradients(every_model.translation(**keys), checkpointed=True, batch=batch)
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[n], again[n]) for n in plain)
    assert kept < 0.35 * whole


def test_a_language_model_and_a_model_with_phrases() -> None:
    batch = make_batch([[]] * 2, [[5, 6, 7], [8, 4]])
    for checkpointed in (False, True):
        model = test_language_model.model(attention="queryk heterogeneous 1-2")
        found, _ = gradients(model, checkpointed=checkpointed, batch=batch)
        expected = found if not checkpointed else expected  # noqa: F821
        assert all(torch.equal(found[n], expected[n]) for n in found)
    batch = make_batch([[5, 6, 7], [8, 4]], [[5, 6, 7], [8, 4]])
    plain, _ = gradients(every_model.translation(phrases={}), checkpointed=False, batch=batch)
    again, _ = gradients(every_model.translation(phrases={}), checkpointed=True, batch=batch)
    assert all(torch.equal(plain[n], again[n]) for n in plain)
