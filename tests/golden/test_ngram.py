"""Phrasal attention against the golden vectors: first the loop reference, then the blocks (P000, P002).

Files `ngram_<technique>_<structure>_<orders>_<use>[_sharedkey].npz`; sizes, orders, splits, lengths are in the arrays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.layers.attention import MultiHeadAttention, build_attention
from phraseloom.layers.attention.masks import Visibility
from tests.golden.folder import golden_files
from tests.reference import ngram as reference

FILES = golden_files("ngram_*.npz")
PRECISIONS = [pytest.param(torch.float64, 1e-9, id="float64"), pytest.param(torch.float32, 2e-4, id="float32")]


class Case:
    """One file: what was asked, what went in and what has to come out."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as data:
            self.data: dict[str, Any] = {name: data[name] for name in data.files}
        self.technique, self.structure, _, self.use = path.stem.split("_")[1:5]
        self.heads, self.causal = int(self.data["num_heads"]), bool(self.data["causal"])
        self.orders = sorted(int(n) for n in self.data["ngrams"])
        self.split = {int(n): int(h) for n, h in self.data.get("heads_per_ngram", ()) if h}
        self.matrices = {name.removeprefix("weight_"): w for name, w in self.data.items() if name.startswith("weight_")}
        self.query = self.data["query_input"]
        self.lengths = self.data["query_lengths"].astype(np.int64)
        self.memory = self.data.get("key_value_input")
        self.key_lengths = self.lengths if self.memory is None else self.data["key_value_lengths"].astype(np.int64)
        assert self.causal == (self.use == "decself")
        assert (self.memory is None) == (self.use != "cross")

    @property
    def reads_ahead(self) -> bool:
        return self.use == "encself"

    def reference(self, sentence: int, matrices: dict[str, np.ndarray] | None = None) -> reference.Result:
        """What the loops make of the real tokens of one sentence."""
        w = self.matrices if matrices is None else matrices
        keys = self.query if self.memory is None else self.memory
        x_q, x_k = self.query[sentence, : self.lengths[sentence]], keys[sentence, : self.key_lengths[sentence]]
        rest: dict[str, Any] = {"technique": self.technique, "causal": self.causal}
        if self.structure == "homogeneous":
            return reference.homogeneous(x_q, x_k, w, split=self.split, **rest)
        rest |= {"heads": self.heads, "orders": self.orders}
        if self.structure == "heterogeneous":
            return reference.heterogeneous(x_q, x_k, w, **rest)
        return reference.interleaved(x_q, x_k, w, reads_ahead=self.reads_ahead, **rest)

    def block(self, dtype: torch.dtype) -> MultiHeadAttention:
        """Our block with the matrices of the file."""
        options: dict[str, Any] = {"orders": self.orders}
        if self.structure == "homogeneous":
            options = {"split": [self.split.get(n, 0) for n in range(1, max(self.split) + 1)]}
        elif self.technique == "queryk":
            options["share_keys"] = "Wk" in self.matrices
        made = build_attention(
            width=self.query.shape[-1], heads=self.heads, score=self.technique, arrangement=self.structure,
            reads_ahead=self.reads_ahead, **options,
        ).to(dtype).eval()  # fmt: skip
        write(made, self.our_matrices())
        return made

    def our_matrices(self) -> dict[str, np.ndarray]:
        """The names of the file are ours but for the paper's output convolution over (b_{i-1}, u_i[, b_i])."""
        if "Wout" not in self.matrices:
            return self.matrices
        assert self.orders == [1, 2], "Wout of the paper is for orders 1 and 2"
        taps = self.matrices["Wout"]
        own = {name: w for name, w in self.matrices.items() if name != "Wout"}
        return own | {"Wout_q1": taps[1:2], "Wout_q2": taps[[0, 2] if len(taps) == 3 else [0]]}

    def run(self, block: MultiHeadAttention, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(self.query).to(dtype)
        memory = None if self.memory is None else torch.from_numpy(self.memory).to(dtype)
        keys = x if memory is None else memory
        visibility = Visibility(
            key_length=keys.shape[1], lengths_B=torch.from_numpy(self.key_lengths), causal=self.causal,
            query_length=x.shape[1],
        )  # fmt: skip
        with torch.no_grad():
            return block(x, memory, visibility)

    def by_name(self, block: MultiHeadAttention, weights: torch.Tensor) -> dict[str, np.ndarray]:
        """Our weights (B, H, J·Q, G·K) as the arrays of the file, where slots are named by their first token."""
        slots, result = block.structure.split(weights).double().numpy(), {}
        for g, blocks in enumerate(block.structure.blocks):
            for part in blocks:
                n, heads = part.order, slice(part.first, part.last)
                edge = 0 if self.structure == "homogeneous" else n - 1
                for row, m in enumerate(block.structure.query_orders):
                    name = f"query{m}gram_key{n}gram" if self.structure == "interleaved" else f"n{n}"
                    result[f"expected_probs_{name}"] = slots[:, heads, row, m - 1 :, g, edge:]
        return result


def write(block: MultiHeadAttention, given: dict[str, np.ndarray]) -> None:
    """Put matrices into a block; every one of the block has to be given and every one given has to be used."""
    own = {**block.score.matrices(), **block.arrangement.matrices()}
    assert own.keys() == given.keys()
    with torch.no_grad():
        for name, view in own.items():
            assert tuple(view.shape) == given[name].shape, name
            view.copy_(torch.from_numpy(given[name]))


def close(got: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    assert got.shape == expected.shape, what
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance, err_msg=what)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_the_reference(path: Path) -> None:
    case = Case(path)
    for b, q in enumerate(case.lengths):
        result = case.reference(b)
        close(case.reference(b, case.our_matrices()).output, result.output, 1e-12, "any orders")
        close(result.output, case.data["expected_output"][b, :q], 1e-9, "output")
        if result.context is not None:
            close(result.context, case.data["expected_context_before_output_projection"][b, :q], 1e-9, "context")
        for m, vectors in result.vectors.items():
            expected = case.data[f"expected_query{m}gram_vectors"][b, : max(q - m + 1, 0)]
            close(vectors, expected, 1e-9, f"{m}-gram vectors")
        assert {f"expected_probs_{n}" for n in result.probs} == {
            n for n in case.data if n.startswith("expected_probs_")
        }
        for name, probs in result.probs.items():
            expected = case.data[f"expected_probs_{name}"][b]
            rows, slots = probs.shape[1:]
            close(probs, expected[:, :rows, :slots], 1e-9, name)
            assert not expected[:, :rows, slots:].any(), "a slot that does not exist for this sentence has weight"


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_output_and_probabilities(path: Path, dtype: torch.dtype, tolerance: float) -> None:
    case = Case(path)
    block = case.block(dtype)
    output, weights = case.run(block, dtype)
    assert output.dtype == weights.dtype == dtype
    probs = case.by_name(block, weights)
    assert probs.keys() == {name for name in case.data if name.startswith("expected_probs_")}
    for b, q in enumerate(case.lengths):
        close(output[b, :q].double().numpy(), case.data["expected_output"][b, :q], tolerance, f"output {b}")
        for name, got in probs.items():
            m = int(name.split("query")[1][0]) if "query" in name else 1
            rows = max(q - m + 1, 0)
            close(got[b, :, :rows], case.data[name][b, :, :rows], tolerance, f"{name} {b}")


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_before_the_output_matrix(path: Path, dtype: torch.dtype, tolerance: float) -> None:
    """With the identity as output matrix a block shows its context, or the vectors of one query order."""
    case = Case(path)
    block = case.block(dtype)
    outputs = block.arrangement.matrices()
    shown = {"Wo": ("expected_context_before_output_projection", 1)}
    if case.structure == "interleaved":
        shown = {f"Wout_q{m}": (f"expected_query{m}gram_vectors", m) for m in case.orders}
    assert shown.keys() == outputs.keys()
    for name, (expected_name, m) in shown.items():
        with torch.no_grad():
            for matrix in outputs.values():
                matrix.zero_()
            chosen = outputs[name] if outputs[name].dim() == 2 else outputs[name][0]
            chosen.copy_(torch.eye(len(chosen)))
        got = case.run(block, dtype)[0].double().numpy()
        for b, q in enumerate(case.lengths):
            expected = case.data[expected_name][b, : max(q - m + 1, 0)]
            close(got[b, min(m - 1, q) : q], expected, tolerance, f"{expected_name} {b}")
