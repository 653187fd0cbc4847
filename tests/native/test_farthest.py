"""Rivals found by products of bytes: those of a search in double, with ties, near ties, odd sizes and bad directions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from phraseloom.layers.table import TargetTable
from phraseloom.losses.vmf import Rival, max_margin_loss
from phraseloom.models.build import build_model
from phraseloom.native import farthest, library
from phraseloom.native.farthest import ByteTable, search_by_bytes
from phraseloom.options.model import ModelConfig

loaded = library.load()
pytestmark = pytest.mark.skipif(
    loaded is None or not loaded.pl_has_farthest(),
    reason="the library is not built, or the processor has no AVX-512 VNNI",
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def exact(towards: Tensor, excluded: Tensor, rows: Tensor) -> Tensor:
    """The same in double, all rows at once; ties go to the first."""
    products = towards.double() @ rows.double().t()
    products.scatter_(1, excluded[:, None], float("-inf"))
    return torch.stack([(p == p.max()).nonzero()[0, 0] for p in products])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("rows", "width", "count"), [(64, 4, 6), (1, 3, 2), (2, 300, 1), (70, 37, 13), (3001, 300, 601)]
)
def test_the_row_is_that_of_a_search_in_double(rows: int, width: int, count: int, threads: int) -> None:
    table, excluded = normalize(torch.randn(rows, width)), torch.randint(rows, (count,))
    towards = normalize(torch.randn(count, width)) - table[excluded]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = ByteTable(table)(towards, excluded)
    finally:
        torch.set_num_threads(before)
    if rows == 1:  # there is no other row
        assert torch.equal(found, excluded)
    else:
        assert torch.equal(found, exact(towards, excluded, table))


@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-4, 1e-2])
def test_rows_that_bytes_do_not_tell_apart(noise: float) -> None:
    """Hundreds of rows are within the error of bytes, and some are equal; without noise all are."""
    table = normalize(torch.randn(1, 50) + noise * torch.randn(900, 50))
    table[500:700] = table[100:300]
    excluded = torch.randint(900, (40,))
    for towards in (torch.randn(40, 50), table[0] + 1e-3 * torch.randn(40, 50)):
        assert torch.equal(ByteTable(table)(towards, excluded), exact(towards, excluded, table))


def test_vectors_with_few_large_numbers() -> None:
    """The scale of a row follows its largest number, so the others lose most of their digits."""
    table, towards = torch.randn(2000, 64), torch.randn(30, 64)
    table[:, 0], towards[:, 1] = 40.0, 30.0
    table = normalize(table)
    excluded = torch.randint(2000, (30,))
    for factor in (1e-12, 1.0, 1e12):
        assert torch.equal(ByteTable(table)(factor * towards, excluded), exact(towards, excluded, table))


def test_long_rows_that_bytes_have_without_loss() -> None:
    """Only the products in float32 err here, by more than beside rows of length 1."""
    table, towards = 1000 * torch.randn(1024, 3).sign(), torch.randn(96, 3).sign()
    excluded = torch.zeros(96, dtype=torch.long)
    assert torch.equal(ByteTable(table)(towards, excluded), exact(towards, excluded, table))


def test_errors_that_all_have_one_sign() -> None:
    """The farthest row loses 0.49 of a step in each number, and half of the numbers of the others gain as much."""
    table = torch.zeros(3, 100)
    table[:, 0] = 127
    table[1, 1:], table[0, 1::2], table[2, 2::2] = 0.49, 0.51, 0.51
    towards = torch.ones(1, 100)
    assert (
        ByteTable(table)(towards, torch.tensor([0])).tolist()
        == exact(towards, torch.tensor([0]), table).tolist()
        == [1]
    )
    # so it is with the direction: of 50 numbers of 0.49, which row 1 reads, nothing is left; the 30 that row 0 reads are 1
    towards[0, 0], towards[0, 1:51], towards[0, 51:81] = 127, 0.49, 0.51
    table = torch.zeros(3, 100)
    table[1, 1:51], table[0, 51:81], table[2, 0] = 1, 1, -1
    assert ByteTable(table)(towards, torch.tensor([2])).tolist() == [1]


def test_rows_of_zeros_and_directions_without_an_answer() -> None:
    table, excluded = normalize(torch.randn(100, 8)), torch.tensor([0, 5, 0, 7, 9])
    table[3] = 0
    towards = -table.sum(0).expand(5, -1).clone()
    towards[0], towards[1, 2], towards[2] = float("nan"), float("inf"), 0.0
    found = ByteTable(table)(towards, excluded)
    assert found[:3].tolist() == [1, 0, 1]
    assert torch.equal(found[3:], exact(towards[3:], excluded[3:], table))
    assert ByteTable(table)(towards[:3], excluded[:3]).tolist() == [1, 0, 1]
    assert ByteTable(table)(towards[:0], excluded[:0]).shape == (0,)
    only = torch.zeros(3, 8)
    only[1:, 0] = -1
    assert ByteTable(only)(torch.eye(8)[:1], torch.tensor([1])).tolist() == [0]  # all others point away


def test_another_default_dtype() -> None:
    table, towards, excluded = normalize(torch.randn(300, 8)), torch.randn(5, 8), torch.arange(5)
    expected = ByteTable(table)(towards, excluded)
    torch.set_default_dtype(torch.float64)  # its numbers are longer: a buffer of them would be read wrongly
    try:
        assert torch.equal(ByteTable(table)(towards, excluded), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_it_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    table = normalize(torch.randn(farthest.LEAST_ROWS, 4))
    assert ByteTable.suits(table)
    for other in (table[1:], table.double(), table * torch.inf, table.to("meta")):
        assert not ByteTable.suits(other)
    monkeypatch.setattr(farthest, "load", lambda: None)
    assert not ByteTable.suits(table)


@pytest.mark.parametrize("rival", ["informative", "nearest"])
def test_the_loss_is_the_same(rival: Rival) -> None:
    table, gold = normalize(torch.randn(1500, 20)), torch.randint(1500, (50,))
    predicted = (3 * torch.randn(50, 20)).requires_grad_()
    plain = max_margin_loss(predicted, gold, table, rival=rival)
    (expected,) = torch.autograd.grad(plain.sum(), predicted)
    other = max_margin_loss(predicted, gold, table, rival=rival, farthest=ByteTable(table))
    (gradient,) = torch.autograd.grad(other.sum(), predicted)
    assert torch.equal(other, plain) and torch.equal(gradient, expected)
    some = torch.arange(0, 1500, 7)
    few = max_margin_loss(predicted, gold, table, rival=rival, rivals_R=some, farthest=ByteTable(table))
    assert torch.equal(few, max_margin_loss(predicted, gold, table, rival=rival, rivals_R=some))


def test_models_search_so_in_training() -> None:
    config = ModelConfig.model_validate({"preset": "tiny", "output": {"kind": "continuous"}})
    model = build_model(config, 20, 1200, table=TargetTable(normalize(torch.randn(1200, 12))))
    search_by_bytes(model)
    assert isinstance(model.output.farthest, ByteTable)
    hidden, gold = torch.randn(40, model.output.width), torch.randint(1200, (40,))
    loss = model.output.loss(hidden, gold).objective
    model.output.farthest = None
    assert torch.equal(model.output.loss(hidden, gold).objective, loss)
    model.output.kind = "cosine"
    search_by_bytes(model)
    assert model.output.farthest is None
