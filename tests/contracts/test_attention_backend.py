"""Fused attention is explicit attention: outputs and gradients of every score × arrangement × use, under every mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import in_turn
from tests.reference.structures import CASES, Case
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from phraseloom.errors import UsageError
from phraseloom.layers import PhraseAttention
from phraseloom.layers.attention import SCORES, MultiHeadAttention, backend, build_attention, fused, kernels
from phraseloom.layers.attention.convkv import ConvKVScore
from phraseloom.layers.attention.masks import Visibility

WIDTH = 12
FUSED = [c for c in CASES if not SCORES[c.score].distances]
each = pytest.mark.parametrize("case", in_turn(FUSED), ids=str)
LENGTHS = torch.tensor([7, 3, 1, 0])
LINES = (
    "token",
    "convkv homogeneous 121",
    "queryk heterogeneous 1-2-3",
    "queryk heterogeneous 2-3 keys-per-order",
    "queryk interleaved 1-2",
    "convkv interleaved 1-2-3",
)


@pytest.fixture(params=["of the device", "blocks"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the kernel that the device has, and with blocks so small that there are several."""
    if request.param == "blocks":
        monkeypatch.setattr(kernels, "ROWS", 2)
        monkeypatch.setattr(fused, "choose_kernel", lambda *_, **__: kernels.BlockKernel())


def attend(
    block: MultiHeadAttention, name: str, given: list[Tensor], visibility: Visibility, real: Tensor | None = None
) -> list[Tensor]:
    """The output by a backend, and the gradients of all inputs and parameters for a fixed direction."""
    block.backend = name
    output, weights = block(given[0], given[1] if len(given) > 1 else None, visibility, need_weights=False)
    assert (weights is None) is (name == "fused")
    direction = torch.arange(output.numel(), dtype=output.dtype).view(output.shape).sin()
    if real is not None:
        direction, output = direction[real], output[real]
    wanted = [*given, *block.parameters()]
    return [output, *torch.autograd.grad((output * direction).sum(), wanted)]


def inputs(case: Case, length: int, dtype: torch.dtype, queries: int = 5) -> list[Tensor]:
    torch.manual_seed(11)
    sizes = (queries, length) if case.use == "cross" else (length,)
    return [torch.randn(len(LENGTHS), n, WIDTH, dtype=dtype, requires_grad=True) for n in sizes]


def agree(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Equal within the tolerance, which is relative to the largest number of each tensor."""
    for one, other in zip(got, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), pytest.param(torch.float32, 1e-5, marks=pytest.mark.full)],
    ids=str,
)
@each
def test_equals_explicit_attention(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    """Output and all gradients, with and without padding, also for sentences shorter than every n-gram."""
    block = case.build(width=WIDTH).to(dtype)
    for length, lengths in ((7, None), (7, LENGTHS), (2, LENGTHS.clamp(max=2)), (1, None)):
        given = inputs(case, length, dtype)
        visibility = case.visibility(length, lengths, queries=5)
        explicit = attend(block, "explicit", given, visibility)
        agree(attend(block, "fused", given, visibility), explicit, tolerance)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("use", ["encoder_self", "decoder_self", "cross"])
@pytest.mark.parametrize(
    "text", ["queryk heterogeneous 1-2-3", "convkv interleaved 1-2", "queryk interleaved 1-3 keys-per-order"]
)
def test_a_gate_equals_explicit_attention(text: str, use: str) -> None:
    case = Case(text, use)
    block = build_attention(
        width=WIDTH, heads=4, reads_ahead=use == "encoder_self", gated=True, bias=True, **case.options()
    ).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.4, generator=torch.Generator().manual_seed(3))
    given, visibility = inputs(case, 7, torch.float64), case.visibility(7, LENGTHS, queries=5)
    explicit = attend(block, "explicit", given, visibility)
    agree(attend(block, "fused", given, visibility), explicit, 1e-12)


@pytest.mark.usefixtures("kernel")
@each
def test_padding_and_the_rest_of_the_batch_do_not_matter(case: Case) -> None:
    """Each sentence gives what it gives alone, forward and backward, with NaN in the padding."""
    block = case.build(width=WIDTH)
    given = inputs(case, 7, torch.float64)
    with torch.no_grad():
        for b, length in enumerate(LENGTHS.tolist()):
            given[-1][b, length:] = float("nan")
    rows = given[0].shape[1]
    real = torch.arange(rows)[None] < (torch.full_like(LENGTHS, rows) if case.use == "cross" else LENGTHS)[:, None]
    output, *gradients = attend(block, "fused", given, case.visibility(7, LENGTHS, queries=rows), real)
    per_sentence = output.split(real.sum(1).tolist())
    for b, length in enumerate(LENGTHS.tolist()):
        assert not gradients[len(given) - 1][b, length:].any()
        if length == 0:
            continue
        alone = [x.detach()[b : b + 1].clone() for x in given]
        alone[-1] = alone[-1][:, :length]
        block.backend = "fused"
        result, _ = block(alone[0], alone[1] if len(alone) > 1 else None, case.visibility(length, queries=rows))
        torch.testing.assert_close(per_sentence[b], result[0], rtol=0, atol=1e-12)
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("case", in_turn(c for c in FUSED if c.causal), ids=str)
def test_the_future_is_not_seen_bit_for_bit(case: Case) -> None:
    block = case.build(width=WIDTH).float()
    block.backend = "fused"
    x = inputs(case, 7, torch.float32)[0].detach()
    before, _ = block(x, None, case.visibility(7), need_weights=False)
    for t in range(7):
        changed = x.clone()
        changed[:, t] += 1.0
        after, _ = block(changed, None, case.visibility(7), need_weights=False)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t:], before[:, t:])


@pytest.mark.parametrize(("text", "use"), in_turn(LINES, ["cross", "decoder_self"]))
def test_beyond_the_blocks_of_the_kernels(text: str, use: str) -> None:
    """More tokens than a block of any kernel, with the padding across a block."""
    case, lengths = Case(text, use), torch.tensor([700, 530, 1, 0])
    block = case.build(width=WIDTH)
    given, visibility = inputs(case, 700, torch.float64, queries=300), case.visibility(700, lengths, queries=300)
    explicit = attend(block, "explicit", given, visibility)
    agree(attend(block, "fused", given, visibility), explicit, 1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@each
def test_half_precision_is_near_and_finite(case: Case, dtype: torch.dtype) -> None:
    block = case.build(width=WIDTH).to(dtype)
    given, visibility = inputs(case, 7, dtype), case.visibility(7, LENGTHS, queries=5)
    exact = case.build(width=WIDTH)
    expected = attend(exact, "explicit", [x.detach().double().requires_grad_() for x in given], visibility)
    for name in ("explicit", "fused"):
        for half, full in zip(attend(block, name, given, visibility), expected, strict=True):
            assert torch.isfinite(half).all()
            assert (half.double() - full).norm() <= 0.1 * full.norm() + 1e-6


# Any mask over tokens


def masks(kind: str) -> dict[str, Tensor]:
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    right, left = torch.arange(7) >= LENGTHS[:, None], torch.arange(7) < (7 - LENGTHS)[:, None]
    holes = torch.rand(7, 7, generator=torch.Generator().manual_seed(2)) < 0.4
    by_head = torch.rand(4 * len(LENGTHS), 7, 7, generator=torch.Generator().manual_seed(2)) < 0.4
    return {
        "none": {},
        "right": {"key_padding_mask": right},
        "left": {"key_padding_mask": left},
        "causal": {"attn_mask": future},
        "causal, right": {"attn_mask": future, "key_padding_mask": right},
        "causal, left": {"attn_mask": future, "key_padding_mask": left},
        "holes": {"attn_mask": holes},
        "holes, right": {"attn_mask": holes, "key_padding_mask": right},
        "by head": {"attn_mask": by_head},
    }[kind]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    "kind",
    ["none", "right", "left", "causal", "causal, right", "causal, left", "holes", "holes, right", "by head"],
)
@pytest.mark.parametrize("line", LINES)
def test_the_layer_equals_explicit_attention_under_any_mask(line: str, kind: str) -> None:
    torch.manual_seed(0)
    layer = PhraseAttention(WIDTH, 4, line).double()
    x = torch.randn(len(LENGTHS), 7, WIDTH, dtype=torch.float64, requires_grad=True)
    results = []
    for name in ("explicit", "fused"):
        layer.backend = name
        output, weights = layer(x, x, x, need_weights=False, **masks(kind))
        assert weights is None
        results.append([output, *torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])])
    agree(results[1], results[0], 1e-12)


def test_the_layer_gives_weights_on_request_and_refuses_other_names() -> None:
    layer = PhraseAttention(WIDTH, 4, "queryk heterogeneous 1-2", backend="fused")
    x = torch.randn(2, 5, WIDTH)
    output, weights = layer(x, x, x)
    assert weights is not None and weights.shape == (2, 5, 10)
    torch.testing.assert_close(layer(x, x, x, need_weights=False)[0], output, rtol=0, atol=1e-5)
    with pytest.raises(UsageError, match="backend 'flash' is none of auto, explicit, fused"):
        PhraseAttention(WIDTH, 4, backend="flash")


# Dropout


def with_dropout(text: str, use: str, *, gated: bool = False) -> MultiHeadAttention:
    case = Case(text, use)
    block = build_attention(
        width=WIDTH, heads=4, dropout=0.3, reads_ahead=use == "encoder_self", gated=gated, **case.options()
    )
    with torch.no_grad():
        for parameter in block.double().parameters():
            parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(3))
    return block.train()


@pytest.mark.parametrize(
    ("text", "gated"),
    [("token", False), ("queryk heterogeneous 1-2-3", False), ("convkv interleaved 1-2", False),
     ("queryk homogeneous 22", False), ("queryk heterogeneous 1-2", True)],
)  # fmt: skip
def test_dropout_has_the_distribution_of_explicit_attention(text: str, gated: bool) -> None:
    """Means, and all covariances of the numbers of an output, over 20,000 draws of each; the standard errors are below 0.02
    of the spread."""
    block, draws = with_dropout(text, "decoder_self", gated=gated), 20_000
    x = torch.randn(1, 4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    torch.manual_seed(5)
    moments = []
    for name in ("explicit", "fused"):
        block.backend = name
        with torch.no_grad():
            output, _ = block(x.expand(draws, -1, -1), None, Visibility(key_length=4, causal=True, query_length=4),
                              need_weights=False)  # fmt: skip
        moments.append((output.mean(0), output[:, -1].T.cov()))
    spread = moments[0][1].diagonal().mean()
    assert spread > 0.01
    assert (moments[1][0] - moments[0][0]).abs().max() < 0.06 * spread.sqrt()
    assert (moments[1][1] - moments[0][1]).abs().max() < 0.15 * spread


@pytest.mark.parametrize("text", ["token", "queryk heterogeneous 1-2", "convkv interleaved 1-2"])
def test_gradients_with_dropout_are_those_of_the_draws(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against finite differences: the backward draws the masks of the forward again."""
    monkeypatch.setattr(kernels, "ROWS", 2)
    block = with_dropout(text, "decoder_self")
    block.backend = "fused"
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(9)
        output: Tensor = block(x, None, Visibility(key_length=5, causal=True, query_length=5), need_weights=False)[0]
        return output

    assert torch.autograd.gradcheck(run, (x,))
    assert not torch.equal(run(x), block.eval()(x, None, Visibility(key_length=5, causal=True, query_length=5))[0])


# The choice


def choices(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> list[bool]:
    """What is chosen by each block while something runs."""
    made: list[bool] = []
    real = backend.is_fused

    def watched(*args: Any, **options: Any) -> bool:
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr("phraseloom.layers.attention.backend.is_fused", watched)
    run()
    return made


def test_auto_takes_the_fused_way_from_a_length_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "FUSED_FROM", 6)
    block = Case("queryk heterogeneous 1-2", "decoder_self").build(width=WIDTH)
    for length, need_weights, expected in ((5, False, False), (6, False, True), (6, True, False)):
        x, visibility = torch.randn(1, length, WIDTH).double(), Visibility(key_length=length, causal=True)
        visibility.query_length = length
        made = choices(monkeypatch, lambda: block(x, None, visibility, need_weights=need_weights))  # noqa: B023
        assert made == [expected]


def test_with_dropout_auto_is_explicit_for_longer() -> None:
    score = Case("token", "cross").build(width=WIDTH).score
    for length, rate, expected in ((256, 0.0, True), (511, 0.1, False), (512, 0.1, True), (255, 0.0, False)):
        assert backend.is_fused("auto", score, length=length, need_weights=False, dropout=rate) is expected


def test_short_texts_keep_every_bit() -> None:
    """Below the threshold, auto is explicit attention itself."""
    block = Case("queryk heterogeneous 1-2-3", "encoder_self").build(width=WIDTH).float()
    x = torch.randn(3, backend.FUSED_FROM - 1, WIDTH)
    visibility = Visibility(key_length=x.shape[1], query_length=x.shape[1])
    outputs = []
    for name in ("explicit", "auto"):
        block.backend = name
        outputs.append(block(x, None, visibility, need_weights=False)[0])
    assert torch.equal(*outputs)


def test_relative_scores_are_explicit_in_any_case() -> None:
    block = Case("relative", "decoder_self").build(width=WIDTH)
    block.backend = "fused"
    x = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    visibility = Visibility(key_length=5, causal=True, query_length=5)
    assert block(x, None, visibility, need_weights=False)[1] is not None


def test_a_score_of_its_own_is_computed_explicitly() -> None:
    """A class that overrides `scores` alone inherits `products` that do not describe it."""

    class Halved(ConvKVScore):
        def scores(self, *arguments: Any) -> list[Tensor]:
            return [block / 2 for block in super().scores(*arguments)]

    structure = build_attention(width=8, heads=2, score="convkv", arrangement="heterogeneous", orders=[1, 2]).structure
    plain, halved = (cls(width=8, structure=structure) for cls in (ConvKVScore, Halved))
    asked = {"length": 1000, "need_weights": False, "dropout": 0.0}
    assert backend.is_fused("auto", plain, **asked) and backend.is_fused("fused", plain, **asked)
    assert not backend.is_fused("auto", halved, **asked) and not backend.is_fused("fused", halved, **asked)


class Rough(kernels.BlockKernel):
    """Blocks whose gradients are off by two per cent."""

    def backward(self, *inputs: Any, **masks: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().backward(*inputs, **masks)
        return q * 1.02, k, v


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_kernel_is_taken_if_it_is_as_exact_as_the_blocks(kind: torch.dtype) -> None:
    cpu = torch.device("cpu")
    assert kernels.is_as_exact_as_blocks(kernels.BlockKernel(), cpu, kind)
    if kind == torch.float32:
        assert not kernels.is_as_exact_as_blocks(Rough(), cpu, kind)


def test_a_kernel_without_numbers_is_refused() -> None:
    class Nothing(kernels.BlockKernel):
        def forward(self, *inputs: Any, **masks: Any) -> tuple[Tensor, Tensor]:
            o, logsumexp = super().forward(*inputs, **masks)
            return o * float("nan"), logsumexp

    assert not kernels.is_as_exact_as_blocks(Nothing(), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(("kind", "narrow", "wide"), [(torch.float32, 6, 12), (torch.bfloat16, 12, 24)])
def test_a_gpu_gets_its_kernel_only_for_heads_that_it_can_load(
    kind: torch.dtype, narrow: int, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_works_on_cuda", lambda *_: True)
    with FakeTensorMode():
        of = [
            kernels.choose_kernel(torch.empty(1, 1, 3, n, device="cuda", dtype=kind), dropout=False)
            for n in (narrow, wide)
        ]
    assert [type(kernel) for kernel in of] == [kernels.BlockKernel, kernels.CUDAEfficientKernel]


@pytest.mark.parametrize("method", ["scores", "compare", "mix"])
def test_a_score_with_a_method_of_its_own_is_explicit(method: str) -> None:
    structure = build_attention(
        score="convkv", width=WIDTH, heads=2, arrangement="heterogeneous", orders=[1, 2]
    ).structure
    own = type("Own", (ConvKVScore,), {method: getattr(ConvKVScore, method)})
    for score, expected in ((ConvKVScore, True), (own, False)):
        made = score(width=WIDTH, structure=structure)
        assert backend.is_fused("fused", made, length=300, need_weights=False, dropout=0.0) is expected
