"""The chunked loss: equal to the loops, to torch's own, to itself in any chunking; exact gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reference.losses import smoothed_loss
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from phraseloom.losses.cross_entropy import cross_entropy


def made(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    hidden, weight = torch.randn(11, 6, dtype=dtype), torch.randn(9, 6, dtype=dtype)
    return hidden, weight, torch.randn(9, dtype=dtype), torch.randint(2, 9, (11,))


@pytest.fixture(params=["eager", "compiling"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms: the function of eager torch and the operation for the compiler."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: request.param == "compiling")


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("smoothing", ["uniform", "t2t", "kl"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_loops_and_plain_autograd(smoothing: str, epsilon: float, bias: bool) -> None:
    hidden, weight, b, gold = made()
    forbidden = torch.tensor([0, 1]) if smoothing == "kl" else None
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, b)]
    objective, nll = cross_entropy(
        leaves[0], leaves[1], leaves[2] if bias else None, gold,
        epsilon=epsilon, smoothing=smoothing, forbidden=forbidden, chunk_rows=4,
    )  # fmt: skip
    logits = hidden @ weight.t() + (b if bias else 0)
    expected = sum(
        smoothed_loss(
            row.tolist(),
            int(g),
            epsilon=epsilon,
            smoothing=smoothing,
            forbidden=(0, 1) if forbidden is not None else (),
        )
        for row, g in zip(logits, gold, strict=True)
    )
    assert objective.item() == pytest.approx(expected, abs=1e-9)
    assert nll.item() == pytest.approx(F.cross_entropy(logits, gold, reduction="sum").item(), abs=1e-9)
    (objective * 0.7).backward()
    plain = [t.clone().requires_grad_() for t in (hidden, weight, b)]
    log_p = (plain[0] @ plain[1].t() + (plain[2] if bias else 0)).log_softmax(1)
    classes = 9
    q = torch.full_like(log_p, epsilon / classes)
    if smoothing == "t2t":
        q = torch.full_like(log_p, epsilon / (classes - 1))
    if smoothing == "kl":
        q = torch.full_like(log_p, epsilon / (classes - 3))
        q[:, :2] = 0
    q.scatter_(1, gold[:, None], 1 - epsilon + (epsilon / classes if smoothing == "uniform" else 0))
    (-(q * log_p).sum() * 0.7).backward()
    for ours, theirs in zip(leaves[: 2 + bias], plain[: 2 + bias], strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-10)


def test_chunked_equals_whole() -> None:
    hidden, weight, _, gold = made(torch.float32)
    results = []
    for rows in (1, 3, 100):
        leaf = hidden.clone().requires_grad_()
        objective, _ = cross_entropy(leaf, weight, None, gold, epsilon=0.1, chunk_rows=rows)
        objective.backward()
        results.append((objective.item(), leaf.grad))
    for value, grad in results[1:]:
        assert value == pytest.approx(results[0][0], rel=1e-6)
        torch.testing.assert_close(grad, results[0][1])


def test_matches_torch_for_the_uniform_variant_and_stays_finite() -> None:
    hidden, weight, _, gold = made()
    objective, _ = cross_entropy(hidden, weight, None, gold, epsilon=0.2)
    expected = F.cross_entropy(hidden @ weight.t(), gold, label_smoothing=0.2, reduction="sum")
    assert objective.item() == pytest.approx(expected.item(), abs=1e-9)
    huge = (hidden.float() * 1e4).requires_grad_()
    objective, nll = cross_entropy(huge, weight.float(), None, gold, epsilon=0.1)
    objective.backward()
    assert torch.isfinite(objective)
    assert torch.isfinite(nll)
    assert torch.isfinite(huge.grad).all()


def test_without_gradient_and_without_rows() -> None:
    hidden, weight, _, gold = made()
    with torch.no_grad():
        objective, nll = cross_entropy(hidden[:0], weight, None, gold[:0], epsilon=0.1)
    assert (objective.item(), nll.item()) == (0.0, 0.0)


class Products(TorchDispatchMode):
    """Shapes of the results of all products of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in ("mm", "addmm", "addmm_"):
            self.shapes.append(tuple(result.shape))
        return result


@pytest.mark.parametrize("smoothing", ["uniform", "t2t", "kl"])
def test_a_fixed_matrix_costs_no_product_and_changes_no_other_gradient(smoothing: Any) -> None:
    hidden, weight, bias, gold = made(torch.float32)
    forbidden = torch.tensor([0, 1]) if smoothing == "kl" else None
    grads, products = [], []
    for fixed in (False, True):
        h, w, b = (t.clone().requires_grad_() for t in (hidden, weight, bias))
        w.requires_grad_(not fixed)
        with Products() as counted:
            objective, _ = cross_entropy(h, w, b, gold, epsilon=0.1, smoothing=smoothing, forbidden=forbidden)
            objective.backward()
        assert (w.grad is None) == fixed
        grads.append((h.grad, b.grad))
        products.append(counted.shapes)
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))
    assert products == [[(11, 9), (11, 6), (9, 6)], [(11, 9), (11, 6)]]


@pytest.mark.parametrize("needs", [[True, True, True], [True, False, False], [False, False, False]])
@pytest.mark.parametrize("bias", [False, True])
def test_the_operation_for_the_compiler_is_what_it_says_it_is(needs: list[bool], bias: bool) -> None:
    hidden, weight, b, gold = made()
    given = [x.requires_grad_(need) for x, need in zip((hidden, weight, b), needs, strict=True)]
    arguments = (
        *given[:2],
        given[2] if bias else None,
        gold,
        [0.9, 0.0125, 0.0],
        None,
        4,
        [*needs[:2], needs[2] and bias],
        None,
    )
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.phraseloom.cross_entropy.default, arguments, test_utils=checks)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("smoothing", ["uniform", "t2t", "kl"])
def test_mixed_precision_sums_in_single(smoothing: Any) -> None:
    hidden, weight, bias, gold = made(torch.float32)
    found = []
    for mixed in (False, True):
        h, w, b = (t.clone().requires_grad_() for t in (hidden, weight, bias))
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            objective, nll = cross_entropy(h, w, b, gold, epsilon=0.1, smoothing=smoothing)
        objective.backward()
        assert objective.dtype == nll.dtype == w.grad.dtype == torch.float32
        found.append((objective.detach(), h.grad, w.grad, b.grad))
    for plain, mixed_one in zip(*found, strict=True):
        assert torch.allclose(plain, mixed_one, rtol=0.03, atol=0.03 * float(plain.abs().max()))


def test_what_its_backward_pass_cannot_do_is_an_error() -> None:
    h, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss, _ = cross_entropy(h, w, None, torch.tensor([0, 1, 2]))
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(loss, h, create_graph=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()
