"""Products of bytes (precision int8): whole numbers in float64, near float32, the same bits in every batch; whole searches."""

from __future__ import annotations

import copy
from ctypes import byref
from typing import Any

import pytest
import torch
from tests.native.test_native import (
    CASES,
    EAGER,
    SOURCES,
    TRAINED,
    built,
    encoded,
    needs_library,
    trained,
    walk,
)
from torch import Tensor

from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.errors import ModelError, UsageError
from phraseloom.native import library
from phraseloom.native.model import NativeModel, fast

pytestmark = needs_library

NEAR = 0.1  # of small random models, whose errors add up over layers
SOME = (
    "token", "relative", "convkv-homogeneous-22", "queryk-interleaved-1-2-3", "post-norm", "phrases-gated",
    "phrases-heads-of-6", "phrases-no-encoder", "lstm", "lstm-width-42", "lstm-encoder-deep", "gru-mlp", "gru-general",
    "continuous-two-layers", "gate-queryk-heterogeneous-1-2-3", "lstm-narrow-embeddings",
)  # fmt: skip
some = pytest.mark.parametrize("name", SOME)


def multiplied(variant: int, w: Tensor, x: Tensor, bias: Tensor | None = None, *, activation: str = "linear") -> Tensor:
    parts = library.Parts(variant, as_bytes=True)
    matrix, y = parts.matrix(w, bias), torch.empty(len(x), len(w))
    kind = library.ACTIVATIONS[activation]
    parts.library.pl_multiply(variant, byref(matrix), x.data_ptr(), len(x), kind, y.data_ptr())
    return y


def in_whole_numbers(w: Tensor, x: Tensor, limit: int, *, fused: bool) -> Tensor:
    """The definition of body.inc, in float64: the rows of W and x as multiples of their largest number / limit.

    `fused`: x is rounded once, as processors with fused multiplication and addition do.
    """
    scales = [rows.abs().amax(1, keepdim=True) for rows in (w, x)]
    q, inverse = (w * (limit / scales[0])).round().double(), 127 / scales[1]
    p = (x.double() * inverse.double()).round() if fused else (x * inverse).round().double()
    return (p @ q.t()) * (scales[0].t().double() / limit) * (scales[1].double() / 127)


@pytest.mark.parametrize("variant", library.variants())
@pytest.mark.parametrize(
    ("n", "k", "rows"),
    [(1, 1, 1), (7, 3, 2), (64, 64, 5), (130, 67, 9), (300, 256, 65), (33, 2049, 130), (70, 40000, 3)],
)
def test_products_are_those_of_whole_numbers(variant: int, n: int, k: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(n)
    w, x = (torch.randn(s, k, generator=generator) * torch.rand(s, 1, generator=generator) for s in (n, rows))
    w[n // 2], x[0] = w[n // 2].abs(), x[0].abs()  # the largest sums
    bias = torch.randn(n, generator=generator)
    limit = 127 if library.VARIANTS[variant].endswith("vnni") else 64
    got, exact = multiplied(variant, w, x), x.double() @ w.double().t()
    either = torch.stack([in_whole_numbers(w, x, limit, fused=fused) - got for fused in (False, True)])
    assert float(either.abs().amin(0).max()) <= 1e-5 * float(exact.abs().max())
    assert float((got - exact).norm()) <= 0.03 * float(exact.norm())
    rectified = multiplied(variant, w, x, bias, activation="relu")
    assert torch.equal(rectified, multiplied(variant, w, x, bias).clamp(min=0))
    assert torch.equal(rectified, torch.cat([multiplied(variant, w, row[None], bias, activation="relu") for row in x]))


@pytest.mark.parametrize("variant", library.variants())
def test_extreme_numbers(variant: int) -> None:
    """Sums of the largest numbers do not overflow; zeros and tiny numbers are zeros; what is not finite shows."""
    w, x = torch.ones(3, 5000), torch.ones(5, 5000)
    w[1], x[1], x[2] = -1.0, 0.0, 1e-38
    expected = torch.tensor([5000.0, -5000.0, 5000.0])
    got = multiplied(variant, w, x)
    torch.testing.assert_close(got, torch.stack([expected, 0 * expected, 0 * expected, expected, expected]))
    w[0, 7], x[3, 4999], x[4, 0] = float("nan"), float("inf"), float("nan")
    got = multiplied(variant, w, x)
    assert got[:, 0].isnan().all() and got[3:].isnan().all()
    torch.testing.assert_close(got[:3, 1:], torch.stack([expected[1:], 0 * expected[1:], 0 * expected[1:]]))


@some
@torch.inference_mode()
def test_states_are_near_those_of_float32(name: str) -> None:
    reference = built(name)
    native = fast(reference, precision="int8")
    assert isinstance(native, NativeModel)
    assert native._compiled.decoder is not fast(reference, "native")._compiled.decoder
    for got, expected in zip(walk(native), walk(reference), strict=True):
        difference = float((got.hidden - expected.hidden).norm() / expected.hidden.norm())
        assert 0 < difference <= NEAR
    assert torch.equal(walk(fast(reference, "native"))[-1].hidden, walk(fast(reference, "native", "fp32"))[-1].hidden)


@some
@torch.inference_mode()
def test_no_row_depends_on_its_batch(name: str) -> None:
    native = fast(built(name), precision="int8")
    together = encoded(native, SOURCES * 10)
    state = native.start(together, beam=1, max_length=3)
    tokens = torch.arange(len(SOURCES) * 10)  # below the size of the vocabulary with some repeated
    tokens = tokens % 50
    decoded = [native.step(tokens, state) for _ in range(4)]
    log_probs, ids = native.output.candidates(decoded[-1].hidden, 7, decoded[-1].gate)
    for number in (0, 1, 2, 69):
        alone = encoded(native, [SOURCES[number % len(SOURCES)]])
        assert torch.equal(alone.states_BSD[0], together.states_BSD[number, : alone.states_BSD.shape[1]])
        state = native.start(alone, beam=1, max_length=9)
        for step in range(4):
            got = native.step(tokens[number : number + 1], state)
            assert torch.equal(got.hidden[0], decoded[step].hidden[number]), step
        row = decoded[-1].rows(torch.tensor([number]))
        got_log_probs, got_ids = native.output.candidates(row.hidden, 7, row.gate)
        assert torch.equal(got_ids[0], ids[number]) and torch.equal(got_log_probs[0], log_probs[number])


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_write_nearly_the_same(name: str) -> None:
    reference = trained(name)
    generator = torch.Generator().manual_seed(4)
    sources = [torch.randint(4, 24, (1 + n % 7,), generator=generator).tolist() for n in range(60)]
    limits = Limits.of([2 * len(s) + 3 for s in sources], [1] * len(sources), [[]] * len(sources))
    for beam in (1, 4):
        with torch.inference_mode():
            found = [
                search(searched, encoded(searched, sources), limits, SearchOptions(beam=beam))
                for searched in (reference, fast(reference, precision="int8"))
            ]
        pairs = list(zip(*found, strict=True))
        same = [(one, other) for [one, *_], [other, *_] in pairs if one.tokens == other.tokens]
        assert len(same) >= 0.85 * len(pairs)
        assert [other.score for _, other in same] == pytest.approx([one.score for one, _ in same], abs=0.3)


@torch.inference_mode()
def test_changed_weights_are_packed_again() -> None:
    changing = copy.deepcopy(built("token"))
    before = walk(fast(changing, precision="int8"))
    with torch.no_grad():
        next(iter(changing.decoder.parameters())).mul_(2.0)
    assert not torch.equal(walk(fast(changing, precision="int8"))[-1].hidden, before[-1].hidden)


@torch.inference_mode()
def test_a_broken_model_is_refused() -> None:
    broken = copy.deepcopy(built("token"))
    broken.decoder.layers[0].feed_forward.up.weight[3, 3] = float("nan")
    limits = Limits.of([5] * len(SOURCES), [1] * len(SOURCES), [[]] * len(SOURCES))
    searched = fast(broken, precision="int8")
    with pytest.raises(ModelError, match="NaN"):
        search(searched, encoded(searched, SOURCES), limits, SearchOptions(beam=2))


def test_what_the_library_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = torch.nn.Linear(1, 1)
    with pytest.raises(
        UsageError,
        match=r"precision: int8 is not possible: it runs one translation or language model, .*; use precision: fp32",
    ):
        fast(other, precision="int8")
    reordered = next(name for name, part in EAGER.items() if part == "encoder")
    assert fast(built(reordered), precision="int8")._compiled.encoder is None and reordered in CASES
    monkeypatch.setattr("phraseloom.native.model.load", lambda: None)
    with pytest.raises(UsageError, match="int8 is not possible: the compiled library is not there"):
        fast(built("token"), precision="int8")
