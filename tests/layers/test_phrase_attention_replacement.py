"""replace_attention: a torch model keeps its outputs, under every mask and in every mode, and then learns to use n-grams."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.errors import UsageError
from phraseloom.layers import PhraseAttention, replace_attention
from phraseloom.layers.attention.gate import opening

WIDTH, HEADS, BATCH, LENGTH = 16, 4, 3, 7
SINGLE = ("token", "relative", "convkv homogeneous 22", "queryk homogeneous 121", "queryk homogeneous 013")
JOINT = (
    "queryk heterogeneous 1-2", "queryk heterogeneous 1-2-3-4 keys-per-order", "convkv heterogeneous 1-2-3",
    "queryk interleaved 1-2", "queryk interleaved 1-2-3 keys-per-order", "convkv interleaved 1-2",
)  # fmt: skip
ALL = SINGLE + JOINT
TYPES = [(torch.float64, 1e-13), (torch.float32, 1e-6)]
each = pytest.mark.parametrize("structure", ALL)
exactly = pytest.mark.parametrize(("dtype", "share"), TYPES, ids=["fp64", "fp32"])
PADDING = torch.arange(LENGTH)[None] >= torch.tensor([[LENGTH], [4], [1]])
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def assert_equal(got: Tensor, expected: Tensor, share: float) -> None:
    """To a share of the largest number."""
    torch.testing.assert_close(got, expected, rtol=0, atol=share * expected.abs().max().item())


def shaken(model: nn.Module) -> nn.Module:
    """Biases and norms that do something: torch starts them at 0 and 1."""
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def encoder(
    *, batch_first: bool = True, norm_first: bool = True, dtype: torch.dtype = torch.float64, **options: Any
) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 20, dropout=0.0, batch_first=batch_first, norm_first=norm_first, dtype=dtype, **options
    )
    return shaken(nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first and not norm_first))


def source(dtype: torch.dtype, *, batch_first: bool = True, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype)
    return x if batch_first else x.transpose(0, 1).contiguous()


@each
@exactly
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_keeps_its_outputs(
    structure: str, dtype: torch.dtype, share: float, batch_first: bool, norm_first: bool
) -> None:
    """Training and evaluation, with gradients; padding, causality and both; every row, padded ones too."""
    old = encoder(batch_first=batch_first, norm_first=norm_first, dtype=dtype)
    new = replace_attention(copy.deepcopy(old), structure)
    x = source(dtype, batch_first=batch_first)
    for masks in (
        {},
        {"src_key_padding_mask": PADDING},
        {"mask": CAUSAL},
        {"mask": CAUSAL, "src_key_padding_mask": PADDING},
    ):
        for training in (True, False):
            old.train(training), new.train(training)
            assert_equal(new(x, **masks), old(x, **masks), share)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@each
@exactly
def test_the_fused_path_of_torch_is_not_taken(structure: str, dtype: torch.dtype, share: float) -> None:
    """Without gradients torch goes through nested tensors and a fused layer; real rows are the same."""
    old = encoder(norm_first=False, dtype=dtype).eval()
    new = replace_attention(copy.deepcopy(old), structure)
    with torch.inference_mode():
        expected = old(source(dtype), src_key_padding_mask=PADDING)
        assert not expected[PADDING].any(), "this torch has no nested path to compare with"
        got = new(source(dtype), src_key_padding_mask=PADDING)
        assert_equal(got[~PADDING], expected[~PADDING], share)
        layer, replaced = old.layers[0], new.layers[0]  # type: ignore[union-attr,index]
        assert_equal(replaced(source(dtype)), layer(source(dtype)), share)  # type: ignore[operator]


@pytest.mark.parametrize("structure", JOINT)
def test_any_mask_keeps_the_outputs(structure: str) -> None:
    """Padding on the left and with holes; a mask over queries and keys. (Homogeneous structures hide more.)"""
    old = encoder()
    new = replace_attention(copy.deepcopy(old), structure)
    torch.manual_seed(8)
    padding, mask = torch.rand(BATCH, LENGTH) < 0.4, torch.rand(LENGTH, LENGTH) < 0.3
    padding[:, 3] = mask[:, 3] = False
    given = {"mask": mask, "src_key_padding_mask": padding}
    torch.testing.assert_close(
        new(source(torch.float64), **given), old(source(torch.float64), **given), rtol=0, atol=1e-12
    )


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("structure", [s for s in ALL if s != "relative"])
@exactly
@pytest.mark.parametrize("bias", [True, False])
def test_a_whole_transformer_keeps_its_outputs(structure: str, dtype: torch.dtype, share: float, bias: bool) -> None:
    old = nn.Transformer(WIDTH, HEADS, 2, 2, 20, dropout=0.0, batch_first=True, norm_first=True, bias=bias, dtype=dtype)
    old = shaken(old)
    new = replace_attention(copy.deepcopy(old), structure)
    assert not [m for m in new.modules() if isinstance(m, nn.MultiheadAttention)]
    assert len([m for m in new.modules() if isinstance(m, PhraseAttention)]) == 6
    tgt = source(dtype, seed=2)[:, :5]
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=dtype)
    masks = {
        "src_key_padding_mask": PADDING,
        "memory_key_padding_mask": PADDING,
        "tgt_mask": causal,
        "tgt_is_causal": True,
    }
    for training in (True, False):
        old.train(training), new.train(training)
        assert_equal(new(source(dtype), tgt, **masks), old(source(dtype), tgt, **masks), share)


@pytest.mark.parametrize("structure", [s for s in JOINT if "interleaved" in s])
def test_reading_ahead_in_the_encoder_keeps_the_outputs(structure: str) -> None:
    old = shaken(nn.Transformer(WIDTH, HEADS, 1, 1, 20, dropout=0.0, batch_first=True, dtype=torch.float64))
    new = replace_attention(copy.deepcopy(old), structure, reads_ahead=True)
    flags = {name: m.structure.reads_ahead for name, m in new.named_modules() if isinstance(m, PhraseAttention)}
    assert [name for name, ahead in flags.items() if ahead] == ["encoder.layers.0.self_attn"]
    x, tgt = source(torch.float64), source(torch.float64, seed=2)
    masks = {"src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING, "tgt_mask": CAUSAL}
    torch.testing.assert_close(new(x, tgt, **masks), old(x, tgt, **masks), rtol=0, atol=1e-12)


def phrase_rows(layer: PhraseAttention) -> dict[str, slice]:
    """Rows of the packed projections that n-grams have and tokens have not."""
    found = {}
    for name, (start, taps, wide) in layer.score.layout.names.items():
        last = start + wide * max(1, torch.Size(taps).numel())
        own = start if "_n2" in name else last
        if layer.structure.zero_extended:
            own, last = start, last - wide
        if own < last:
            found[name] = slice(own, last)
    return found


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    x = source(torch.float64)
    F.mse_loss(model(x), x.flip(1)).backward()
    optimizer.step()


@pytest.mark.parametrize(
    "structure", ["queryk heterogeneous 1-2", "convkv heterogeneous 1-2", "queryk interleaved 1-2"]
)
def test_the_gate_opens_at_the_first_step_and_the_rest_follows(structure: str) -> None:
    model = replace_attention(encoder(), structure)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    layers = [m for m in model.modules() if isinstance(m, PhraseAttention)]
    for layer in layers:
        assert layer.gate is not None and layer.gate.grad is not None
        assert (layer.gate.grad != 0).all(), "the gate of every head moves at once"
        assert (opening(layer.gate) > 0).all(), "whatever the sign of its gradient, it opens"
        if "interleaved" not in structure:
            for name, rows in phrase_rows(layer).items():
                assert not layer.score.weight.grad[rows].any(), f"{name}: nothing to learn behind a shut gate"
    step(model, optimizer)
    for layer in layers:
        assert phrase_rows(layer)
        for name, rows in phrase_rows(layer).items():
            assert layer.score.weight.grad[rows].any(), name


@pytest.mark.parametrize("structure", ["queryk homogeneous 22", "convkv homogeneous 22"])
def test_homogeneous_taps_learn_at_the_first_step(structure: str) -> None:
    model = replace_attention(encoder(), structure)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for layer in (m for m in model.modules() if isinstance(m, PhraseAttention)):
        assert layer.gate is None
        for name, rows in phrase_rows(layer).items():
            assert layer.score.weight.grad[rows].any(), name


@pytest.mark.parametrize("structure", ["queryk heterogeneous 1-2-3", "convkv heterogeneous 1-2-3"])
def test_behind_the_gate_an_n_gram_begins_as_the_mean_of_its_tokens(structure: str) -> None:
    """Wide open, the layer is the plain one, with scores and values that are means over windows."""
    torch.manual_seed(0)
    old = shaken(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64))
    layer = replace_attention(old, structure)
    assert isinstance(layer, PhraseAttention) and layer.gate is not None
    torch.nn.init.constant_(layer.gate, 50.0)
    x = source(torch.float64)
    output, weights = layer(x, x, x, average_attn_weights=False)
    q, k, v = (
        t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for t in F.linear(x, old.in_proj_weight, old.in_proj_bias).chunk(3, -1)
    )
    scores, values = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, v
    slots = [(scores.unfold(-1, n, 1).mean(-1), values.unfold(2, n, 1).mean(-1)) for n in (1, 2, 3)]
    p = torch.cat([s for s, _ in slots], -1).softmax(-1)
    context = p @ torch.cat([v for _, v in slots], 2)
    torch.testing.assert_close(output, old.out_proj(context.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)
    ours = torch.cat([w[..., g:] for g, w in enumerate(layer.structure.split(weights)[:, :, 0].unbind(-2))], -1)
    torch.testing.assert_close(ours, p, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_gate_and_its_gradient(sign: float) -> None:
    theta = torch.tensor([0.0, sign * 0.3, sign * 90.0], requires_grad=True)
    g = opening(theta)
    g.sum().backward()
    torch.testing.assert_close(g, torch.tensor([0.0, 0.3, 90.0]).tanh())
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad, torch.tensor([1.0, sign * (1 - torch.tensor(0.3).tanh() ** 2), 0.0]))


def order_task(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ten of 12 letters; does "b" follow "a" at once anywhere? Without positions, no attention to tokens can tell."""
    letters = torch.randint(2, 12, (batch, 10), generator=generator)
    place, yes = torch.randint(0, 9, (batch,), generator=generator), torch.rand(batch, generator=generator) < 0.5
    rows = torch.arange(batch)
    letters[rows, place + (~yes).long()] = 0
    letters[rows, place + yes.long()] = 1
    return letters, yes.float()


class Reader(nn.Module):
    """Embeddings without positions, a torch encoder, and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.read = nn.Embedding(12, 32), nn.Linear(32, 1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, letters: Tensor) -> Tensor:
        return self.read(self.encoder(self.embedding(letters)).mean(1))[:, 0]


def trained(model: nn.Module, steps: int) -> float:
    """Accuracy on new examples after training."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        letters, yes = order_task(64, generator)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(letters), yes).backward()
        optimizer.step()
    with torch.no_grad():
        letters, yes = order_task(1000, generator)
        return ((model(letters) > 0) == yes.bool()).float().mean().item()


@pytest.mark.parametrize("structure", ["queryk heterogeneous 1-2", "convkv heterogeneous 1-2", "queryk homogeneous 22"])
def test_training_finds_the_n_grams(structure: str) -> None:
    torch.manual_seed(0)
    model = Reader()
    assert trained(model, 60) < 0.6, "tokens alone cannot tell"
    model = replace_attention(model, structure)
    assert trained(model, 80) > 0.95
    layer = model.encoder.layers[0].self_attn  # type: ignore[union-attr,index]
    x = model.embedding(order_task(50, torch.Generator())[0])  # type: ignore[operator]
    weights = layer.structure.split(layer(x, x, x, average_attn_weights=False)[1])
    if layer.gate is not None:
        assert weights[:, :, :, :, 1].sum(-1).mean() > 0.05, "share of the bigrams"
        assert (opening(layer.gate) > 0.05).all()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum((-1, -2)), torch.ones_like(weights[..., 0, 0]))


def test_a_replaced_model_is_stored_and_copied() -> None:
    model = replace_attention(encoder(), "queryk heterogeneous 1-2")
    step(model, torch.optim.SGD(model.parameters(), lr=0.5))
    again = replace_attention(encoder(), "queryk heterogeneous 1-2")
    again.load_state_dict(model.state_dict())
    x = source(torch.float64)
    for other in (again, copy.deepcopy(model)):
        torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)


def test_places_shared_and_chosen() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.two = nn.MultiheadAttention(WIDTH, HEADS)
            self.nested = nn.ModuleDict({"deep": self.one, "other": nn.MultiheadAttention(WIDTH, HEADS, dropout=0.2)})

    model = replace_attention(Twice().eval())
    assert model.one is model.two is model.nested["deep"]  # type: ignore[index]
    other = model.nested["other"]  # type: ignore[index]
    assert other is not model.one and other.dropout == 0.2 and not other.batch_first and not other.training
    chosen = replace_attention(Twice(), where=lambda name: name == "nested.other")
    assert isinstance(chosen.nested["other"], PhraseAttention)  # type: ignore[index]
    assert isinstance(chosen.one, nn.MultiheadAttention)
    single = replace_attention(nn.MultiheadAttention(WIDTH, HEADS))
    assert isinstance(single, PhraseAttention)


class Own(nn.MultiheadAttention):
    """A layer of which nobody knows what it computes."""


@pytest.mark.parametrize(
    ("layer", "structure", "words"),
    [
        (nn.Linear(2, 2), "queryk heterogeneous 1-2", "ModuleList holds no torch.nn.MultiheadAttention"),
        (nn.MultiheadAttention(8, 2, kdim=4), "queryk heterogeneous 1-2", "1 is no plain"),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), "queryk heterogeneous 1-2", "1 is no plain"),
        (nn.MultiheadAttention(8, 2, add_zero_attn=True), "queryk heterogeneous 1-2", "1 is no plain"),
        (Own(8, 2), "queryk heterogeneous 1-2", "1 is no plain"),
        (nn.MultiheadAttention(8, 2), "queryk heterogeneous 2-3", "no slots of order 1"),
        (nn.MultiheadAttention(8, 2), "queryk heterogenous 1-2", "is no arrangement"),
    ],
)
def test_what_cannot_be_replaced_leaves_the_model_alone(layer: nn.Module, structure: str, words: str) -> None:
    plain = nn.MultiheadAttention(8, 2) if isinstance(layer, nn.MultiheadAttention) else nn.Identity()
    model = nn.ModuleList([plain, layer])
    with pytest.raises(UsageError, match=words):
        replace_attention(model, structure)
    assert model[0] is plain and model[1] is layer


def test_where_that_chooses_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="that `where` chooses"):
        replace_attention(encoder(), where=lambda name: False)
