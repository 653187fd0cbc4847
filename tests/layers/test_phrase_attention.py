"""PhraseAttention: torch's layer where there are no n-grams, our block where there are, any mask by the rule of the spec."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.reference.structures import CASES, HEADS, Case
from torch import Tensor, nn

from phraseloom.errors import UsageError
from phraseloom.layers import PhraseAttention
from phraseloom.layers.attention import MultiHeadAttention
from phraseloom.layers.phrase_masks import as_hidden
from phraseloom.layers.replacement import _successor

WIDTH, QUERIES, KEYS, BATCH = 12, 4, 6, 3
STRUCTURES = (
    "token", "relative", "queryk-relative heterogeneous 1-2", "convkv homogeneous 121", "queryk homogeneous 22",
    "convkv heterogeneous 1-2-3",
    "queryk heterogeneous 1-3", "queryk heterogeneous 2-3", "queryk heterogeneous 1-2 keys-per-order",
    "convkv interleaved 1-2-3", "queryk interleaved 1-2",
)  # fmt: skip
exact: dict[str, Any] = {"rtol": 0, "atol": 1e-12}


def tensors(*sizes: int, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(BATCH, size, WIDTH, dtype=torch.float64) for size in sizes]


def torch_layer(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(5)
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def filled(structure: str, **options: Any) -> PhraseAttention:
    layer = PhraseAttention(WIDTH, HEADS, structure, dtype=torch.float64, **options)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.4, generator=generator)
    return layer.eval()


def masks_of_torch(queries: int, keys: int, kind: str) -> dict[str, Tensor]:
    """Masks that leave something visible to every query."""
    torch.manual_seed(2)
    padding = torch.rand(BATCH, keys) < 0.4
    some = torch.rand(queries, keys) < 0.4
    per_head = torch.rand(BATCH * HEADS, queries, keys) < 0.4
    padding[:, 2] = some[:, 2] = per_head[..., 2] = False
    causal = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    causal_padding = torch.arange(keys)[None] >= torch.tensor([[keys], [2], [1]])
    minus_inf = torch.zeros(queries, keys, dtype=torch.float64).masked_fill(causal, float("-inf"))
    return {
        "none": {}, "padding": {"key_padding_mask": padding}, "attn": {"attn_mask": some}, "per head": {"attn_mask": per_head},
        "causal": {"attn_mask": causal}, "causal, padding": {"attn_mask": causal, "key_padding_mask": causal_padding},
        "float": {"attn_mask": minus_inf},
        "lowest float": {"attn_mask": minus_inf.clamp(min=torch.finfo(torch.float64).min)},
        "float padding": {"key_padding_mask": (~padding).double().log()},
        "both": {"attn_mask": some, "key_padding_mask": padding},
    }[kind]  # fmt: skip


KINDS = (
    "none",
    "padding",
    "attn",
    "per head",
    "causal",
    "causal, padding",
    "float",
    "lowest float",
    "float padding",
    "both",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [False, True])
def test_of_tokens_it_is_the_layer_of_torch(kind: str, bias: bool, cross: bool) -> None:
    old = torch_layer(bias=bias)
    new = _successor(old, "token", False, "old")
    query, memory = tensors(QUERIES, KEYS)
    key = memory if cross else query
    masks = masks_of_torch(QUERIES, key.shape[1], kind)
    for average in (True, False):
        expected, expected_weights = old(query, key, key, average_attn_weights=average, **masks)
        output, weights = new(query, key, key, average_attn_weights=average, **masks)
        torch.testing.assert_close(output, expected, **exact)
        torch.testing.assert_close(weights, expected_weights, **exact)
    assert new(query, key, key, need_weights=False, **masks)[1] is None


def test_layouts_of_torch() -> None:
    old = torch_layer()
    new = _successor(old, "token", False, "old")
    (x,) = tensors(5)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.tensor([False, False, True, False, True])
    for average in (True, False):
        for got, expected in zip(
            new(x[0], x[0], x[0], padding, average_attn_weights=average),
            old(x[0], x[0], x[0], padding, average_attn_weights=average),
            strict=True,
        ):
            torch.testing.assert_close(got, expected, **exact)
    old.batch_first = new.batch_first = False
    x = x.transpose(0, 1)
    for got, expected in zip(
        new(x, x, x, attn_mask=mask, is_causal=True), old(x, x, x, attn_mask=mask, is_causal=True), strict=True
    ):
        torch.testing.assert_close(got, expected, **exact)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_of_n_grams_it_is_the_block(case: Case) -> None:
    """Without biases, with padding on the right and the causal mask: what our own models compute."""
    block = case.build(width=WIDTH)
    ahead = case.use == "encoder_self" and block.structure.reads_ahead
    layer = PhraseAttention(WIDTH, HEADS, case.text, bias=False, reads_ahead=ahead, dtype=torch.float64).eval()
    if case.score.endswith("relative"):
        layer.score = copy.deepcopy(block.score)
    layer.load_state_dict(block.state_dict())
    cross = case.use == "cross"
    x, memory = tensors(QUERIES if cross else KEYS, KEYS)
    lengths = torch.tensor([KEYS, 3, 1])
    padding = torch.arange(KEYS)[None] >= lengths[:, None]
    key = memory if cross else x
    expected, expected_weights = block(x, memory if cross else None, case.visibility(KEYS, lengths, queries=QUERIES))
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1) if case.causal else None
    output, weights = layer(x, key, key, padding, attn_mask=causal, average_attn_weights=False)
    real = torch.ones(BATCH, QUERIES, dtype=torch.bool) if cross else ~padding
    torch.testing.assert_close(output[real], expected[real], **exact)
    weights, expected_weights = (
        block.structure.split(w).movedim(3, 1)[real] for w in (weights, expected_weights)
    )  # (rows, H, J, G, K)
    torch.testing.assert_close(weights, expected_weights, **exact)


def slot_is_hidden(layer: PhraseAttention, order: int, j: int, hidden_tokens: Tensor) -> bool:
    """Spec §1.2, §1.3: any in-sentence token of the window that ends at j is hidden."""
    if not layer.structure.zero_extended and j - order + 1 < 0:
        return True
    return any(bool(hidden_tokens[k]) for k in range(max(0, j - order + 1), j + 1))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_mask_hides_what_the_rule_says(structure: str, kind: str) -> None:
    """Weights are zero exactly where a loop over the windows says so."""
    layer, (x,) = filled(structure), tensors(KEYS)
    masks = masks_of_torch(KEYS, KEYS, kind)
    weights = layer.structure.split(layer(x, x, x, average_attn_weights=False, **masks)[1])
    padding = as_hidden(masks.get("key_padding_mask", torch.zeros(BATCH, KEYS, dtype=torch.bool)), "")
    forbidden = as_hidden(masks.get("attn_mask", torch.zeros(KEYS, KEYS, dtype=torch.bool)), "")
    forbidden = (
        forbidden.view(BATCH, HEADS, KEYS, KEYS) if forbidden.dim() == 3 else forbidden.expand(BATCH, HEADS, -1, -1)
    )
    for b in range(BATCH):
        for m, query_order in enumerate(layer.structure.query_orders):
            for i in range(KEYS):
                exists = i >= query_order - 1
                if query_order > 1:
                    exists = exists and not padding[b, i - query_order + 1 : i + 1].any()
                for g, parts in enumerate(layer.structure.blocks):
                    for part in parts:
                        for h in range(part.first, part.last):
                            tokens = padding[b] | forbidden[b, h, i]
                            slots = [slot_is_hidden(layer, part.order, j, tokens) for j in range(KEYS)]
                            hidden = [slot or not exists for slot in slots]
                            assert (weights[b, h, m, i, g] == 0).tolist() == hidden


@pytest.mark.parametrize("structure", [s for s in STRUCTURES if "homogeneous" not in s])
def test_padding_on_either_side_changes_nothing(structure: str) -> None:
    layer, (x,) = filled(structure), tensors(4)
    filler = torch.full((BATCH, 2, WIDTH), float("nan"), dtype=torch.float64)
    padding = torch.tensor([True, True, False, False, False, False]).expand(BATCH, -1)
    expected, _ = layer(x, x, x)
    for side, mask, real in ((0, padding, slice(2, None)), (1, padding.flip(1), slice(0, 4))):
        padded = torch.cat([x, filler] if side else [filler, x], 1).requires_grad_()
        output, _ = layer(padded, padded, padded, mask)
        torch.testing.assert_close(output[:, real], expected, **exact)
        layer.zero_grad()
        output[:, real].sum().backward()
        assert padded.grad is not None and torch.isfinite(padded.grad).all()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)


def test_a_hole_hides_the_bigrams_across_it() -> None:
    layer, (x,) = filled("queryk heterogeneous 1-2"), tensors(4)
    padding = torch.tensor([[False, True, False, False]]).expand(BATCH, -1)
    weights = layer.structure.split(layer(x, x, x, padding)[1][:, None])[:, 0, 0]
    assert (weights[:, :, 1] == 0).all(0).all(0).tolist() == [True, True, True, False]
    torch.testing.assert_close(weights.sum((-1, -2)), torch.ones(BATCH, 4, dtype=torch.float64))


def test_biases_belong_to_tokens_that_exist() -> None:
    """x W + b of a token is that of a wider input whose last feature is 1; a token before the text has neither."""
    layer, (x,) = filled("convkv homogeneous 22"), tensors(5)
    assert layer.bias is not None and layer.out_bias is not None
    output, weights = layer(x, x, x, average_attn_weights=False)
    matrices = layer.score.layout.matrices(layer.score.weight)
    rows = {name: (start, taps) for name, (start, taps, _) in layer.score.layout.names.items()}
    size, b = WIDTH // HEADS, 1
    contexts = []
    for order in (1, 2):
        wide = matrices[f"Wq_n{order}"].shape[-1]

        def project(name: str, tap: int, token: int, wide: int = wide) -> Tensor:
            start, taps = rows[name]
            bias = layer.bias[start + tap * wide : start + (tap + 1) * wide]  # type: ignore[index]
            return x[b, token] @ (matrices[name][tap] if taps else matrices[name]) + bias

        q = torch.stack([project(f"Wq_n{order}", 0, i) for i in range(5)])
        keys, values = (
            torch.stack(
                [
                    sum(
                        (
                            project(f"{w}_n{order}", t, j - order + 1 + t)
                            for t in range(order)
                            if j - order + 1 + t >= 0
                        ),
                        torch.zeros(()),
                    )
                    for j in range(5)
                ]
            )
            for w in ("Wk", "Wv")
        )
        for h in range(wide // size):
            part = slice(h * size, (h + 1) * size)
            p = (q[:, part] @ keys[:, part].T / size**0.5).softmax(-1)
            torch.testing.assert_close(weights[b, len(contexts)], p, **exact)
            contexts.append(p @ values[:, part])
    expected = torch.cat(contexts, -1) @ layer.arrangement.matrices()["Wo"] + layer.out_bias
    torch.testing.assert_close(output[b], expected, **exact)


def test_a_query_that_sees_nothing_gives_the_bias() -> None:
    layer, (x,) = filled("queryk heterogeneous 1-2"), tensors(3)
    output, weights = layer(x, x, x, torch.ones(BATCH, 3, dtype=torch.bool))
    assert layer.out_bias is not None
    assert not weights.any()
    assert torch.equal(output, layer.out_bias.expand_as(output))


def test_token_weights_of_a_layer() -> None:
    layer, (x,) = filled("queryk heterogeneous 1-2-3"), tensors(5)
    tokens = layer.structure.token_weights(layer(x, x, x, average_attn_weights=False)[1])
    assert tokens.shape == (BATCH, HEADS, 5, 5)
    torch.testing.assert_close(tokens.sum(-1), torch.ones(BATCH, HEADS, 5, dtype=torch.float64))


def test_dropout_is_of_training_only() -> None:
    layer, (x,) = filled("convkv heterogeneous 1-2", dropout=0.5), tensors(5)
    still = layer(x, x, x)[0]
    assert torch.equal(layer(x, x, x)[0], still)
    assert not torch.allclose(layer.train()(x, x, x)[0], still)


X, Y = torch.zeros(2, 3, WIDTH), torch.zeros(2, 4, WIDTH)
W, NO = X.clone().requires_grad_(), torch.zeros(3, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("structure", "given", "options", "words"),
    [
        ("token", (X, X, X.clone()), {}, "key and value are two tensors"),
        ("token", (X, W, W.detach()), {}, "key and value are two tensors"),
        ("token", (X, X, X[:, :2]), {}, "key and value are two tensors"),
        ("token", (X, X, X), {"is_causal": True}, "is_causal needs an attn_mask"),
        ("token", (X, X, X), {"key_padding_mask": NO}, r"shape \(3, 3\), but \(2, 3\)"),
        ("token", (X, X, X), {"attn_mask": torch.zeros(2, 3, 3)}, r"\(3, 3\) or \(8, 3, 3\)"),
        ("token", (X, X, X), {"attn_mask": torch.full((3, 3), -2.5)}, "other than 0 and -inf"),
        ("token", (X, X, X), {"attn_mask": torch.full((3, 3), float("nan"))}, "other than 0 and -inf"),
        ("token", (X, X, X), {"attn_mask": torch.zeros(3, 3, dtype=torch.uint8)}, "torch.uint8"),
        ("token", (X, Y[:1], Y[:1]), {}, "do not fit"),
        ("token", (X[..., :6], X, X), {}, "do not fit embed_dim 12"),
        ("token", (X, X[0], X[0]), {}, "3 dimensions and key 2"),
        ("relative", (X, Y, Y), {}, "for self-attention"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_refused(structure: str, given: Any, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PhraseAttention(WIDTH, HEADS, structure)(*given, **options)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    nested = torch._nested_tensor_from_mask(X, torch.tensor([[True, True, False]] * 2))
    with pytest.raises(UsageError, match="nested"):
        PhraseAttention(WIDTH, HEADS)(nested, nested, nested)


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        ("querky heterogeneous 1-2", "'querky' is no score; did you mean queryk"),
        ("queryk heterogenous 1-2", "'heterogenous' is no arrangement"),
        ("queryk heterogeneous", "is not SCORE"),
        ("queryk heterogeneous 1-x", "no orders"),
        ("queryk heterogeneous 1-1", "name one order twice"),
        ("queryk interleaved 2-3", "needs order 1"),
        ("convkv homogeneous 23", "does not divide 4 heads"),
        ("convkv heterogeneous 1-2 shared-keys", "which only queryk and queryk-relative scores have"),
        ("queryk homogeneous 22 keys-per-order", "share_keys has no meaning here"),
        ("token heterogeneous 1-2", "no n-grams"),
        (0.1, "structure is 0.1"),
    ],
)
def test_structures_that_do_not_fit_are_refused(structure: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PhraseAttention(WIDTH, HEADS, structure)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="not a multiple"):
        PhraseAttention(10, 4)
    with pytest.raises(UsageError, match="a gate lies between"):
        PhraseAttention(WIDTH, HEADS, "queryk homogeneous 22", gated=True)
    with pytest.raises(UsageError, match="no attn_mask"):
        PhraseAttention(WIDTH, HEADS, "queryk interleaved 1-2", reads_ahead=True)(X, X, X, attn_mask=NO)
    with pytest.raises(UsageError, match="reads_ahead is for query n-grams"):
        PhraseAttention(WIDTH, HEADS, "queryk heterogeneous 1-2", reads_ahead=True)
    for rate in (1.5, -0.5):
        with pytest.raises(UsageError, match=r"dropout .* is not between 0 and 1"):
            PhraseAttention(WIDTH, HEADS, dropout=rate)


def test_device_and_type_are_those_asked_for() -> None:
    layer = PhraseAttention(WIDTH, HEADS, gated=True, dtype=torch.bfloat16)
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
    x = X.bfloat16()
    assert layer(x, x, x)[0].dtype == torch.bfloat16
    assert {p.device.type for p in PhraseAttention(WIDTH, HEADS, device="meta").parameters()} == {"meta"}


def test_the_package_exports_it_without_importing_torch() -> None:
    code = "import sys, phraseloom.layers as l; print('torch' in sys.modules, l.__all__, l.replace_attention.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(" ", 1) == ["False", "['PhraseAttention', 'replace_attention'] replace_attention\n"]


def test_it_holds_the_parts_of_the_block() -> None:
    """So that weights go from one to the other by state_dict."""
    layer = PhraseAttention(WIDTH, HEADS, bias=False)
    assert set(layer.state_dict()) == set(
        MultiHeadAttention(score=layer.score, arrangement=layer.arrangement).state_dict()
    )


@pytest.mark.parametrize(
    "structure", ["token", "convkv heterogeneous 1-2", "queryk interleaved 1-2", "relative", "queryk-relative"]
)
def test_no_tokens_give_no_output(structure: str) -> None:
    layer, x = PhraseAttention(WIDTH, HEADS, structure), torch.zeros(2, 0, WIDTH, requires_grad=True)
    output = layer(x, x, x)[0]
    assert output.shape == x.shape
    output.sum().backward()


@pytest.mark.parametrize("structure", ["token", "convkv heterogeneous 1-2", "queryk interleaved 1-2"])
def test_no_queries(structure: str) -> None:
    memory = torch.zeros(2, 3, WIDTH)
    output, _ = PhraseAttention(WIDTH, HEADS, structure)(torch.zeros(2, 0, WIDTH), memory, memory)
    assert output.shape == (2, 0, WIDTH)


class _Reversed(torch.autograd.Function):
    """The same memory, with another gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def test_memory_that_is_shared_without_the_gradient_is_another_tensor() -> None:
    x, layer = torch.randn(1, 3, WIDTH, dtype=torch.float64).requires_grad_(), PhraseAttention(WIDTH, HEADS).double()
    for make in (_Reversed.apply, lambda x: x.detach().requires_grad_()):
        key = make(x)
        apart = key.detach().clone().requires_grad_()
        (expected,) = torch.autograd.grad(layer(x, apart, apart)[0].square().sum(), x)
        made = torch.autograd.grad(layer(x, key, key)[0].square().sum(), [x] if key.grad_fn else [x, key])
        if key.grad_fn:
            expected = expected - torch.autograd.grad(layer(x.detach(), apart, apart)[0].square().sum(), apart)[0]
        torch.testing.assert_close(made[0], expected, **exact)
        with pytest.raises(UsageError, match="two tensors"):
            layer(x, x, key)
    rows = torch.randn(3, 2, WIDTH, dtype=torch.float64).requires_grad_()
    layer(rows.transpose(0, 1)[0], rows.transpose(0, 1)[0], rows.transpose(0, 1)[0])  # the same view: one tensor


@pytest.mark.parametrize("structure", ["token", *STRUCTURES])
def test_second_derivatives_and_functional_transforms(structure: str) -> None:
    """Penalties on gradients, and gradients of each sentence with torch.func."""
    torch.manual_seed(3)
    layer = PhraseAttention(WIDTH, HEADS, structure, backend="explicit", dtype=torch.float64)
    names = dict(layer.named_parameters())
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    padding = torch.tensor([[False] * 4, [False] * 3 + [True]])

    def slope(x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(layer(x, x, x, padding)[0].square().sum(), x, create_graph=True)
        return g.square().sum()

    x.requires_grad_()
    along = [torch.randn_like(p) for p in (x, *names.values())]
    found = torch.autograd.grad(slope(x), [x, *names.values()])
    expected = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            for p, d in zip((x, *names.values()), along, strict=True):
                p.add_(d, alpha=step)
        expected.append(slope(x).item())
        with torch.no_grad():
            for p, d in zip((x, *names.values()), along, strict=True):
                p.sub_(d, alpha=step)
    given = sum((g * d).sum().item() for g, d in zip(found, along, strict=True))
    assert given == pytest.approx((expected[0] - expected[1]) / 2e-6, rel=1e-5)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, parameters, (x, x, x))[0].square().sum()
        return result

    values, rows = {name: p.detach() for name, p in names.items()}, x.detach()[:, None]
    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, rows)
    of_all = torch.autograd.grad(layer(x, x, x)[0].square().sum(), list(names.values()))
    for name, whole in zip(names, of_all, strict=True):
        torch.testing.assert_close(of_each[name].sum(0), whole, **exact)


@pytest.mark.parametrize("structure", ["queryk heterogeneous 1-2", "queryk interleaved 1-2"])
def test_fused_attention_says_that_it_has_no_second_derivatives(structure: str) -> None:
    layer = PhraseAttention(WIDTH, HEADS, structure, backend="fused")
    x = torch.randn(1, 4, WIDTH).requires_grad_()
    loss = layer(x, x, x, need_weights=False)[0].square().sum()
    with pytest.raises(RuntimeError, match="use the backend explicit"):
        torch.autograd.grad(loss, x, create_graph=True)
