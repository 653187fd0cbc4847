"""Under autocast every matrix product of an update is in bf16: forward, backward and the loss."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest
import torch
from tests.contracts import every_model, test_encoders_decoders
from torch.utils._python_dispatch import TorchDispatchMode

from phraseloom.losses.cross_entropy import cross_entropy
from phraseloom.losses.vmf import Distance, vmf_loss
from phraseloom.models.device import arithmetic

WHOLE = {"linear", "matmul"}  # as they are in inference mode
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "_addmm_activation", "_scaled_dot_product_flash"}


class Products(TorchDispatchMode):
    """Counts the operations of matrix products by their name and the type of their factors."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, torch.dtype]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WHOLE:
            self.counts[name, args[0].dtype] += 1
        if name.rstrip("_") in {p.rstrip("_") for p in PRODUCTS}:
            a, b = [x for x in args if isinstance(x, torch.Tensor)][-2:]
            size = 2 * a.shape[-2] * a.shape[-1] * b.shape[-1] * (a.shape[0] if a.dim() == 3 else 1)
            self.counts[name, a.dtype] += size
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "line", ["token", "queryk heterogeneous 1-2", "convkv heterogeneous 1-2", "queryk interleaved 1-2"]
)
def test_every_product_of_an_update_is_in_bf16(line: str) -> None:
    model, batch = every_model.translation(attention=line).float().train(), test_encoders_decoders.batch()
    with Products() as products:
        with arithmetic("bf16", torch.device("cpu")):
            loss = model.loss(batch)
        loss.objective.backward()
    assert products.counts.total() > 0
    assert {dtype for _, dtype in products.counts} == {torch.bfloat16}, products.counts


def test_the_loss_in_bf16_is_near_that_in_fp32() -> None:
    torch.manual_seed(0)
    h, weight, gold = torch.randn(300, 32), torch.randn(50, 32) / 4, torch.randint(50, (300,))
    results = []
    for precision in ("fp32", "bf16"):
        inputs = [x.clone().requires_grad_() for x in (h, weight)]
        with arithmetic(precision, torch.device("cpu")):
            objective, _ = cross_entropy(*inputs, None, gold, epsilon=0.1)
        objective.backward()
        results.append([objective.detach(), *(x.grad for x in inputs)])
        assert results[-1][2].dtype == torch.float32
    for full, half in zip(*results, strict=True):
        assert (half - full).norm() <= 0.01 * full.norm()


@pytest.mark.parametrize("kind", get_args(Distance))
def test_terms_of_the_von_mises_fisher_loss_are_not_rounded(kind: Distance) -> None:
    """ê comes in bf16 from the last product; nothing after it is rounded to bf16, nor its slope."""
    torch.manual_seed(2)
    hidden, weight = torch.randn(20, 16), torch.randn(32, 16)
    gold = torch.nn.functional.normalize(torch.randn(20, 32), dim=-1)
    with arithmetic("bf16", torch.device("cpu")):
        predicted = torch.nn.functional.linear(hidden, weight)
        assert predicted.dtype == torch.bfloat16
        given = predicted.float().requires_grad_()
        found = vmf_loss(given, gold, kind=kind)
        assert torch.equal(vmf_loss(predicted, gold, kind=kind), found.detach())
    exact = predicted.double().requires_grad_()
    expected = vmf_loss(exact, gold.double(), kind=kind)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), y)[0].double() for x, y in ((found, given), (expected, exact))),
                               rtol=1e-4, atol=1e-5)  # fmt: skip
