"""Whole models: neighbours, incremental decoding, search, loss and ties, with each structure; and which recipes are refused."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.penalties import WuPenalty
from phraseloom.decoding.search import search
from phraseloom.models.build import build_model
from phraseloom.models.decoder import DecoderState
from phraseloom.models.translation import TranslationModel
from phraseloom.options.model import ModelConfig
from phraseloom.text.vocabulary import EOS

MIXED = {
    "encoder_self": "queryk interleaved 1-2",
    "decoder_self": "convkv homogeneous 121",
    "cross": "queryk heterogeneous 1-2-3",
}
ATTENTIONS: dict[str, Any] = {
    "convkv homogeneous 22": "convkv homogeneous 22",
    "queryk homogeneous 121": "queryk homogeneous 121",
    "convkv heterogeneous 1-2": "convkv heterogeneous 1-2",
    "queryk heterogeneous 1-2-3": "queryk heterogeneous 1-2-3",
    "queryk heterogeneous 2-3 keys-per-order": "queryk heterogeneous 2-3 keys-per-order",
    "convkv interleaved 1-2": "convkv interleaved 1-2",
    "queryk interleaved 1-2 keys-per-order": "queryk interleaved 1-2 keys-per-order",
    "queryk interleaved 1-2-3": "queryk interleaved 1-2-3",
    "mixed": MIXED,
    "queryk heterogeneous 1-2 gated": "queryk heterogeneous 1-2 gated",
    "convkv interleaved 1-2-3 gated": "convkv interleaved 1-2-3 gated",
}
RELATIVE = {"score": {"kind": "relative", "clip": 3}}
VARIANTS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm": "post"},
    "relative": {"attention": {"encoder_self": RELATIVE, "decoder_self": RELATIVE}, "positions": {"kind": "none"}},
    "interleaved": {"positions": {"kind": "sinusoid", "layout": "interleaved"}, "tied": "none"},
    "t2t-bias": {"positions": {"kind": "sinusoid", "layout": "t2t"}, "tied": "two_way", "output": {"bias": True}},
    **{name: {"width": 32, "ffn_width": 64, "attention": attention} for name, attention in ATTENTIONS.items()},
}
SOURCES, TARGETS = [[5, 6, 7], [8, 9], [4], [10, 11, 12, 13]], [[5, 6], [7, 8, 9, 10], [], [5, 5, 5]]
SIZE = 30


def built(name: str, **rest: Any) -> TranslationModel:
    torch.manual_seed(0)
    config = {"preset": "tiny", **VARIANTS[name], **rest}
    model = build_model(ModelConfig.model_validate(config), SIZE, SIZE).double().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith(".gate"):
            torch.nn.init.uniform_(parameter, -1.0, 1.0)
    return model


def batch(order: list[int]) -> Batch:
    return make_batch([SOURCES[i] for i in order], [TARGETS[i] for i in order])


each = pytest.mark.parametrize("name", VARIANTS)
each_attention = pytest.mark.parametrize("name", ATTENTIONS)


@each
def test_neighbours_do_not_matter(name: str) -> None:
    model = built(name)
    together = model.score(batch([0, 1, 2, 3])).sum(1)
    for order in ([3, 1], [0], [2, 0, 3, 1]):
        apart = model.score(batch(order)).sum(1)
        torch.testing.assert_close(apart, together[order], rtol=0, atol=1e-10)


@each
def test_incremental_equals_full(name: str) -> None:
    model, b = built(name), batch([0, 1, 2, 3])
    full = model.score(b)
    state = model.start(model.encode(b.source_BS, b.source_lengths_B), beam=1, max_length=2)
    state.expand(2)
    for t in range(b.target_in_BT.shape[1]):
        hidden, weights, _ = model.step(b.target_in_BT[:, t].repeat_interleave(2), state)
        structure = model.decoder.layers[0].cross_attention.structure
        rows, columns = len(structure.query_orders), len(structure.blocks) * b.source_BS.shape[1]
        assert [tuple(w.shape) for w in weights] == [(8, 4, rows, columns)] * 2
        gold = b.target_out_BT[:, t].repeat_interleave(2)[:, None]
        log_p = model.output.log_probs(hidden).gather(1, gold).view(4, 2)
        real = t < b.target_lengths_B
        torch.testing.assert_close(log_p[real], full[real, t, None].expand(-1, 2), rtol=0, atol=1e-10)


@each
def test_keep_and_reorder_follow_their_sentences(name: str) -> None:
    """Hypotheses change places and sentences leave: hidden states and cross-attention are those of the prefix alone."""
    model, b = built(name), batch([0, 1, 3])
    state = model.start(model.encode(b.source_BS, b.source_lengths_B), beam=2, max_length=8)
    model.step(torch.tensor([2] * 6), state)
    model.step(torch.tensor([5, 6, 7, 8, 9, 10]), state)
    state.reorder(torch.tensor([1, 0, 2, 2, 5, 4]))
    state.keep(torch.tensor([2, 0]))
    hidden, weights, _ = model.step(torch.tensor([11, 12, 13, 14]), state)
    for row, (sentence, prefix) in enumerate([(3, [2, 10, 11]), (3, [2, 9, 12]), (0, [2, 6, 13]), (0, [2, 5, 14])]):
        alone = make_batch([SOURCES[sentence]], [[]])
        memory = model.encode(alone.source_BS, alone.source_lengths_B)
        expected, looks, _ = model.decode(torch.tensor([prefix]), memory, keep_weights=True)
        torch.testing.assert_close(hidden[row], expected[0, -1], rtol=0, atol=1e-10)
        for layer, look, weight in zip(model.decoder.layers, looks, weights, strict=True):
            slots = layer.cross_attention.structure.split(look)[0, :, :, -1]
            length = slots.shape[-1]
            got = weight[row].unflatten(-1, (slots.shape[-2], -1))
            torch.testing.assert_close(got[..., :length], slots, rtol=0, atol=1e-10)
            assert not got[..., length:].any()


@each_attention
def test_search_reorders_and_its_scores_are_those_of_the_full_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A translation does not depend on its batch; its score under beam search is that of the full forward."""
    model = built(name, tied="none", output={"bias": True})
    with torch.no_grad():
        model.output.weight.mul_(3.0)
        model.output.bias[EOS] = 2.0
    moved, reorder = [], DecoderState.reorder

    def watched(state: DecoderState, rows: torch.Tensor) -> None:
        moved.append(len(rows) == 12 and rows.tolist() != list(range(12)))
        reorder(state, rows)

    monkeypatch.setattr(DecoderState, "reorder", watched)
    options = SearchOptions(beam=3, n_best=3, penalty=WuPenalty(0.6))

    def translate(sources: list[list[int]]) -> list[Any]:
        b = make_batch(sources, [[] for _ in sources])
        limits = Limits.of([6] * len(sources), None, None)
        return search(model, model.encode(b.source_BS, b.source_lengths_B), limits, options)

    together = translate(SOURCES)
    assert sum(moved) >= 2, "the beam has to change places for this to be a test"
    for source, found in zip(SOURCES, together, strict=True):
        (alone,) = translate([source])
        assert [h.tokens for h in alone] == [h.tokens for h in found]
        assert [h.log_prob for h in alone] == pytest.approx([h.log_prob for h in found], abs=1e-10)
        scores = model.score(make_batch([source] * 3, [h.tokens for h in found])).sum(1)
        assert [h.log_prob for h in found] == pytest.approx(scores.tolist(), abs=1e-10)


@each_attention
def test_looks_are_distributions_in_the_layout_of_their_structure(name: str) -> None:
    model, b = built(name), batch([0, 1, 2, 3])
    looks = model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT)
    source, target = b.source_BS.shape[1], b.target_in_BT.shape[1]
    for found, queries, keys in (
        (looks.encoder_self, source, source),
        (looks.decoder_self, target, target),
        (looks.cross, target, source),
    ):
        assert len(found) == 2
        for weights, structure in found:
            slots = structure.split(weights)
            shape = (4, 4, len(structure.query_orders), queries, len(structure.blocks), keys)
            assert slots.shape == shape
            last = slots[0, :, 0, 2].sum((-2, -1))  # three tokens: every order up to 3 has a slot
            torch.testing.assert_close(last, torch.ones_like(last), rtol=0, atol=1e-12)


def test_loss_without_smoothing_is_minus_score() -> None:
    model, b = built("pre"), batch([0, 1, 2, 3])
    sums = model.loss(b)
    assert sums.tokens == b.target_tokens == 13
    assert sums.nll.item() == pytest.approx(-model.score(b).sum().item(), abs=1e-9)


def test_ties_are_one_storage() -> None:
    model = built("pre")
    assert model.source_embedding.weight is model.target_embedding.weight is model.output.weight
    model = built("t2t-bias")
    assert model.target_embedding.weight is model.output.weight
    assert model.source_embedding.weight is not model.output.weight


def test_loss_falls_on_one_batch() -> None:
    torch.manual_seed(0)
    config = {"preset": "tiny", "dropout": 0.0, "output": {"label_smoothing": 0.0}}
    model = build_model(ModelConfig.model_validate(config), SIZE, SIZE)
    optimizer, b = torch.optim.Adam(model.parameters(), lr=3e-3), batch([0, 1, 2, 3])
    for _ in range(60):
        sums = model.loss(b)
        optimizer.zero_grad()
        (sums.objective / sums.tokens).backward()
        optimizer.step()
    assert sums.nll.item() / sums.tokens < 0.1


def test_one_loss_step_reaches_every_matrix() -> None:
    for name in ATTENTIONS:
        model = built(name)
        model.loss(batch([0, 1, 3])).objective.backward()
        for block in [m for m in model.modules() if hasattr(m, "arrangement")]:
            for module in (block.score, block.arrangement):
                for matrix in _gradients(module):
                    assert torch.isfinite(matrix).all()
                    assert matrix.any(), name


def _gradients(module: Any) -> list[torch.Tensor]:
    """The gradient of every named matrix of a score or an arrangement."""
    own, held = module.matrices(), list(module.parameters())
    assert sum(m.numel() for m in own.values()) == sum(p.numel() for p in held)
    with torch.no_grad():
        for parameter in held:
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    return list(own.values())


@pytest.mark.parametrize("line", ["queryk heterogeneous 1-2 gated", "convkv interleaved 1-2-3 gated"])
def test_a_shut_gate_hides_the_n_grams(line: str) -> None:
    """Whatever their matrices are, and also in a model that is drawn from one range."""
    model = build_model(
        ModelConfig.model_validate(
            {"preset": "tiny", "width": 32, "attention": line, "init": {"kind": "uniform", "range": 0.1}}
        ),
        SIZE,
        SIZE,
    )
    b = batch([0, 1])
    for weights, structure in model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT).cross:
        slots = structure.split(weights)[:, :, structure.query_orders.index(1)]
        assert not slots[..., 1:, :].any() and slots[..., 0, :].any()


def test_a_line_is_the_long_form() -> None:
    line = ModelConfig.model_validate({"attention": {"cross": "queryk interleaved 1-2 keys-per-order"}})
    written = {
        "score": {"kind": "queryk", "share_keys": False},
        "arrangement": {"kind": "interleaved", "orders": [1, 2]},
    }
    assert line == ModelConfig.model_validate({"attention": {"cross": written}})
    stored = line.model_dump(mode="json")
    assert ModelConfig.model_validate(stored) == line
    assert stored["attention"]["encoder_self"]["score"]["kind"] == "token"
    everywhere = ModelConfig.model_validate({"attention": "convkv homogeneous 44"}).attention
    assert everywhere.encoder_self == everywhere.decoder_self == everywhere.cross
    assert everywhere.cross.arrangement.split == [4, 4]
    of_relative = ModelConfig.model_validate({"attention": {"decoder_self": "relative"}}).attention.decoder_self
    assert of_relative.score.kind == "relative"


REFUSED = [
    ("relative", "no common distance"),
    ({"cross": "relative"}, "no common distance"),
    ("token heterogeneous 1-2", "token scores know no n-grams"),
    ({"encoder_self": "relative homogeneous 44"}, "relative scores know no n-grams"),
    ("convkv homogeneous 45", r"4-5 .*8 heads"),
    ("convkv homogeneous 3", r"3 .*8 heads"),
    ({"cross": "queryk homogeneous 2222-"}, "heads"),
    ("convkv heterogeneous 1-2 shared-keys", "share_keys"),
    ("convkv heterogeneous 1-2 keys-per-order", "share_keys"),
    ("queryk homogeneous 44 shared-keys", "share_keys"),
    ("queryk homogeneous 44 keys-per-order", "share_keys"),
    ("token shared-keys", "share_keys"),
    ("queryk interleaved 2-3", "needs order 1"),
    *(
        (f"{line} gated", "both tokens and n-grams")
        for line in ("token", "queryk homogeneous 44", "convkv heterogeneous 2-3")
    ),
    ("queryk heterogeneous 1-2-2", "twice"),
    ("queryk heterogeneous 0-1", "greater than or equal to 1"),
    ("queryk heterogeneous 1-x", "1-2"),
    ("queryk heterogeneous -1", "1-2"),
    ("queryk heterogeneous", "SCORE"),
    ("queryk heterogeneous 1-2 shared", "SCORE"),
    ("queryk heterogeneous 1-2 shared-keys keys-per-order", "SCORE"),
    ("", "SCORE"),
    ("querik heterogeneous 1-2", "did you mean queryk"),
    ("queryk heterogenous 1-2", "did you mean heterogeneous"),
    ({"encoder": "token"}, "Extra inputs"),
    ({"cross": {"arrangement": {"kind": "heterogeneous", "orders": []}, "score": {"kind": "queryk"}}}, "at least 1"),
    (
        {"cross": {"arrangement": {"kind": "heterogeneous", "split": [4, 4]}, "score": {"kind": "queryk"}}},
        "Extra inputs",
    ),
    ({"cross": {"score": {"kind": "convkv", "share_keys": True}}}, "Extra inputs"),
    ({"cross": {"score": {"kind": "convkv"}, "arrangement": {"kind": "homogeneous", "split": [9, -1]}}}, "equal to 0"),
]


EDGES = [
    "homogeneous 80",
    "homogeneous 008",
    "homogeneous 0044",
    "homogeneous 11111111",
    "heterogeneous 16",
    "heterogeneous 3-1",
]


@pytest.mark.parametrize("text", EDGES)
@pytest.mark.parametrize("score", ["convkv", "queryk"])
def test_what_is_not_refused_can_be_built(score: str, text: str) -> None:
    """The reason has to come from the recipe, not from the middle of building a model."""
    try:
        config = ModelConfig.model_validate({"preset": "tiny", "heads": 8, "attention": f"{score} {text}"})
    except pydantic.ValidationError:
        return
    build_model(config, SIZE, SIZE)


@pytest.mark.parametrize(("attention", "reason"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_what_cannot_be_is_refused_with_the_reason(attention: Any, reason: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=reason):
        ModelConfig.model_validate({"attention": attention})
