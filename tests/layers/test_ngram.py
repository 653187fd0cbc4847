"""Phrasal attention equals its loops (tests/reference/ngram.py) and finite differences, within its memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import ngram as reference
from tests.reference.structures import CASES, USES, Case
from torch.utils._python_dispatch import TorchDispatchMode

from phraseloom.layers.attention import MultiHeadAttention, build_attention
from phraseloom.layers.attention.structure import Structure

PHRASAL = [c for c in CASES if c.score in ("convkv", "queryk")]
SCORE_BY_USE = [(s, use) for s in ("convkv", "queryk") for use in USES]
RELATIVE_BY_USE = [(f"{s}-relative", use) for s, use in SCORE_BY_USE if use != "cross"]
ARRANGED = ("homogeneous", "heterogeneous", "interleaved")


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    """Sizes, orders, heads and lengths of a small attention problem."""
    heads = draw(st.integers(1, 4))
    orders = draw(st.sets(st.integers(1, 4), min_size=1))
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    return {
        "heads": heads,
        "width": heads * draw(st.integers(1, 4)),
        "orders": sorted(orders),
        "split_at": sorted(draw(st.lists(st.integers(0, heads), max_size=3))),
        "lengths": lengths,
        "queries": draw(st.integers(1, 7)),
        "share_keys": draw(st.booleans()),
        "seed": draw(st.integers(0, 10**6)),
    }


def structure_of(arrangement: str, score: str, problem: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `build_attention` for one arrangement of the problem."""
    if arrangement == "homogeneous":
        edges = [0, *(n for n in problem["split_at"] if n < problem["heads"]), problem["heads"]]
        return {"split": [b - a for a, b in itertools.pairwise(edges)]}
    orders = problem["orders"] if arrangement == "heterogeneous" else sorted({1, *problem["orders"]})
    return {"orders": orders} | ({"share_keys": problem["share_keys"]} if score.startswith("queryk") else {})


def matrices(block: MultiHeadAttention) -> dict[str, np.ndarray]:
    """The block's own matrices, by name, in float64."""
    tables = {name: table for name, table in block.score.named_parameters() if name.endswith("_table")}
    own = {**block.score.matrices(), **block.arrangement.matrices(), **tables}
    return {name: matrix.detach().double().numpy() for name, matrix in own.items()}


def loops(
    block: MultiHeadAttention, score: str, x_q: torch.Tensor, x_k: torch.Tensor, *, causal: bool
) -> reference.Result:
    """The reference for one sentence, with the matrices of the block."""
    structure, w, score = block.structure, matrices(block), score.removesuffix("-relative")
    x_q, x_k = x_q.double().numpy(), x_k.double().numpy()
    if structure.zero_extended:
        split = {part.order: part.last - part.first for part in structure.blocks[0]}
        return reference.homogeneous(x_q, x_k, w, technique=score, split=split, causal=causal)
    rest: dict[str, Any] = {"technique": score, "heads": structure.heads, "orders": structure.orders, "causal": causal}
    if "Wo" in w:
        return reference.heterogeneous(x_q, x_k, w, **rest)
    return reference.interleaved(x_q, x_k, w, reads_ahead=structure.reads_ahead, **rest)


def same(got: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    torch.testing.assert_close(got.double(), torch.from_numpy(expected), rtol=0, atol=tolerance)


@pytest.mark.parametrize("arrangement", ARRANGED)
@pytest.mark.parametrize(("score", "use"), [*SCORE_BY_USE, *RELATIVE_BY_USE])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-9), pytest.param(torch.float32, 1e-5, marks=pytest.mark.full)],
    ids=["float64", "float32"],
)
def test_equals_the_loops(score: str, arrangement: str, use: str, dtype: torch.dtype, tolerance: float) -> None:
    @settings(max_examples=25, deadline=None)
    @given(problem=problems())
    def check(problem: dict[str, Any]) -> None:
        compare(score, arrangement, use, problem, dtype, tolerance)

    check()


def compare(
    score: str, arrangement: str, use: str, problem: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(problem["seed"])
    width, lengths, case = problem["width"], torch.tensor(problem["lengths"]), Case(score, use)
    options = {"clip": 2} if score.endswith("relative") else {}
    block = build_attention(
        width=width, heads=problem["heads"], score=score, arrangement=arrangement, reads_ahead=use == "encoder_self",
        **structure_of(arrangement, score, problem), **options,
    ).to(dtype)  # fmt: skip
    longest = max(problem["lengths"])
    memory = torch.randn(len(lengths), longest, width, dtype=dtype)
    x = torch.randn(len(lengths), problem["queries"], width, dtype=dtype) if use == "cross" else memory
    visibility = case.visibility(longest, lengths, queries=x.shape[1])
    with torch.no_grad():
        output, weights = block(x, memory if use == "cross" else None, visibility)
    slots = block.structure.split(weights)
    for b, length in enumerate(problem["lengths"]):
        count = x.shape[1] if use == "cross" else length
        result = loops(block, score, x[b, :count], memory[b, :length], causal=case.causal)
        same(output[b, :count], result.output, tolerance)
        compare_weights(block.structure, slots[b, :, :, :count, :, :length], result, tolerance)


def compare_weights(structure: Structure, slots: torch.Tensor, result: reference.Result, tolerance: float) -> None:
    """Ours (H, J, Q, G, K), slots and queries by their last token, against the loops' by their first; the rest is zero."""
    left = slots.clone()
    for g, parts in enumerate(structure.blocks):
        for part in parts:
            n, heads = part.order, slice(part.first, part.last)
            edge = 0 if structure.zero_extended else n - 1
            for row, m in enumerate(structure.query_orders):
                name = f"n{n}" if f"n{n}" in result.probs else f"query{m}gram_key{n}gram"
                same(slots[heads, row, m - 1 :, g, edge:], result.probs[name], tolerance)
                left[heads, row, m - 1 :, g, edge:] = 0
    assert not left.any(), "weight on a slot, or of a query n-gram, that does not exist"


@pytest.mark.parametrize(
    "case", [c for c in PHRASAL if c.text.endswith(("1-2", "1-2-3", "1-3", "2-3", "121", "order"))], ids=str
)
def test_gradients_against_finite_differences(case: Case) -> None:
    block, width = case.build(width=8), 8
    names, values = zip(*block.named_parameters(), strict=True)
    torch.manual_seed(2)
    xs = [
        torch.randn(2, n, width, dtype=torch.float64, requires_grad=True)
        for n in ((2, 3) if case.use == "cross" else (3,))
    ]
    visibility = case.visibility(3, torch.tensor([3, 2]), queries=xs[0].shape[1])
    real = torch.ones(2, xs[0].shape[1], dtype=torch.bool)
    if case.use != "cross":
        real[1, 2] = False  # what stands at a padded query is nobody's business

    def outputs(*given: torch.Tensor) -> torch.Tensor:
        x, memory = given[0], given[1] if case.use == "cross" else None
        own = dict(zip(names, given[len(xs) :], strict=True))
        return torch.func.functional_call(block, own, (x, memory, visibility))[0][real]

    assert torch.autograd.gradcheck(outputs, (*xs, *values), fast_mode=True)


class Largest(TorchDispatchMode):
    """Records the most elements that any tensor made inside it stores."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else [result]:
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.untyped_storage().nbytes() // made.element_size())
        return result


@pytest.mark.parametrize(
    "case", [c for c in PHRASAL if c.text.split()[2:3] and c.text.split()[2] in ("1-2-3", "121")], ids=str
)
def test_no_tensor_of_queries_by_keys_by_width(case: Case) -> None:
    """Forward and backward at l = 64: nothing larger than the scores of all shifts (l·l·H) or the windows (l·d)."""
    length, width, heads = 64, 64, 2
    options = {**case.options(), "heads": heads}
    if "split" in options:
        options["split"] = [0, 1, 1]
    block = build_attention(width=width, reads_ahead=case.use == "encoder_self", **options)
    structure = block.structure
    shifts = sum(structure.orders) * len(structure.query_orders)
    bound = max(length * length * heads * shifts, length * width * shifts, block.score.weight.numel())
    assert bound < length * length * width, "the bound would not notice"
    xs = [torch.randn(1, length, width, requires_grad=True) for _ in range(2 if case.use == "cross" else 1)]
    visibility = case.visibility(length, torch.tensor([length - 3]))
    with Largest() as largest:
        output, _ = block(xs[0], xs[1] if case.use == "cross" else None, visibility)
        output.square().sum().backward()
    assert length * length * heads <= largest.elements <= bound


def test_the_guard_notices() -> None:
    x = torch.randn(64, 8, requires_grad=True)
    with Largest() as largest:
        (x[:, None] * x[None]).sum().backward()
    assert largest.elements == 64 * 64 * 8


@pytest.mark.parametrize("case", [c for c in PHRASAL if c.use == "encoder_self"], ids=str)
def test_a_slot_spreads_over_the_tokens_that_it_covers(case: Case) -> None:
    """token_weights: evenly over the tokens of the window that exist, of the queries of order 1 alone."""
    structure, length = case.build().structure, 4
    weights = torch.rand(1, structure.heads, len(structure.query_orders) * 2, len(structure.blocks) * length)
    slots, expected = structure.split(weights)[0], torch.zeros(1, structure.heads, 2, length)
    for g, parts in enumerate(structure.blocks):
        for part in parts:
            for j in range(0 if structure.zero_extended else part.order - 1, length):
                covered = range(max(j - part.order + 1, 0), j + 1)
                for token in covered:
                    heads = slice(part.first, part.last)
                    expected[0, heads, :, token] += slots[heads, 0, :, g, j] / len(covered)
    if not structure.zero_extended:  # slots that do not exist have no weight
        for g, parts in enumerate(structure.blocks):
            structure.split(weights)[..., g, : parts[0].order - 1] = 0
    torch.testing.assert_close(structure.token_weights(weights), expected)


def fans(name: str, score: str, taps: tuple[int, ...], outputs: int) -> tuple[int, int]:
    """Inputs and outputs of a matrix in widths: windows count as inputs, the taps of a query kernel as outputs."""
    if name.startswith("Wout"):
        return outputs, 1
    if score == "queryk" and name.startswith("Wq"):
        return math.prod(taps[:-1]), taps[-1]
    return math.prod(taps), 1


@pytest.mark.parametrize("arrangement", ["homogeneous", "heterogeneous", "interleaved"])
@pytest.mark.parametrize("score", ["convkv", "queryk"])
def test_initialisation_is_glorot_of_the_windows(score: str, arrangement: str) -> None:
    torch.manual_seed(0)
    options = {"split": [1, 2, 1]} if arrangement == "homogeneous" else {"orders": [1, 2, 3]}
    block = build_attention(width=32, heads=4, score=score, arrangement=arrangement, reads_ahead=True, **options)
    own = {**block.score.matrices(), **block.arrangement.matrices()}
    outputs = sum(len(m) for name, m in own.items() if name.startswith("Wout"))
    for name, matrix in own.items():
        before, after = fans(name, score, tuple(matrix.shape[:-2]), outputs)
        bound = math.sqrt(6 / ((before + after) * 32))
        assert 0.9 * bound < matrix.abs().max().item() <= bound, name
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
