"""Models with source phrase representations: nothing around a sentence matters, steps equal the whole, every part learns; and
what is asked for is what is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.reference import phrases as phrase_loops

from phraseloom.config import validate
from phraseloom.data.tensors import Batch, make_batch
from phraseloom.errors import ConfigError, ModelError
from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.feedforward import dropout
from phraseloom.layers.phrase_representation import AttentiveCombination
from phraseloom.models.build import build_model
from phraseloom.models.translation import AttentionMaps, TranslationModel
from phraseloom.options.model import ModelConfig, PhrasesConfig

CPU = torch.device("cpu")
BATCH_BASIS = {"segments": {"kind": "fixed", "basis": "batch"}}
PHRASAL = "queryk heterogeneous 1-2"
VARIANTS: dict[str, dict[str, Any]] = {
    "mean": {"phrases": {"glance": "mean", "attention": "none", "transparent": False}},
    "max": {"phrases": {"glance": "max", "attention": "none", "transparent": False}},
    "max-attn": {"phrases": {"transparent": False}},
    "max-attn-ta": {"phrases": {}},
    "gated": {"phrases": {"attention": "gated", "glance": "mean"}},
    "tokens-too": {"phrases": {"transparent_tokens": True}},
    "narrow": {"phrases": {"combination_width": 24, "scorer_width": 16}},
    "attention-alone": {"phrases": {"combination_width": 0}},
    "attention-alone-post": {"norm": "post", "phrases": {"combination_width": 0}},
    "post": {"norm": "post", "embedding_norm": True, "phrases": {}},
    "queryk": {"attention": PHRASAL, "phrases": {}},
    "convkv-post": {"norm": "post", "attention": "convkv heterogeneous 1-2-3", "phrases": {}},
    "interleaved": {"attention": "queryk interleaved 1-2", "phrases": {}},
    "homogeneous": {"attention": "convkv homogeneous 22", "phrases": {}},
    "token-residual": {"phrases": {"residual": "token"}},
    "dataset": {"phrases": {"segments": {"kind": "dataset"}}},
}
SOURCES = [[5, 6, 7], list(range(4, 27)), [4], [], [10, 11, 12, 13, 14]]
TARGETS = [[5, 6], [7, 8, 9, 10], [], [5], [5, 5, 5]]
PHRASES = [[2, 2], [1, 9, 9, 4, 1], [2], [1], [1, 1, 1, 1, 1, 1]]


def built(variant: str) -> TranslationModel:
    torch.manual_seed(0)
    model = build_model(ModelConfig.model_validate({"preset": "tiny", **VARIANTS[variant]}), 30, 30).double()
    for parameter in model.parameters():  # also the zeros and ones of a new model
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def batch(order: list[int], phrases: list[list[int]] | None = None) -> Batch:
    made = make_batch([SOURCES[i] for i in order], [TARGETS[i] for i in order])
    sizes = [(phrases or PHRASES)[i] for i in order]
    padded = torch.zeros(len(order), max(map(len, sizes)), dtype=torch.long)
    for row, some in zip(padded, sizes, strict=True):
        row[: len(some)] = torch.tensor(some)
    return Batch(**{**made.__dict__, "phrase_sizes_BP": padded})


ALL = list(range(len(SOURCES)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_neighbours_do_not_matter(variant: str) -> None:
    model = built(variant)
    together = model.score(batch(ALL)).sum(1)
    for order in ([3, 1], [0], [2, 0, 3, 1], [4]):
        apart = model.score(batch(order)).sum(1)
        torch.testing.assert_close(apart, together[order], rtol=0, atol=1e-10)


def test_the_released_basis_is_the_one_where_they_do() -> None:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"preset": "tiny", "phrases": BATCH_BASIS})
    model = build_model(config, 30, 30).double().eval()
    together, apart = model.score(batch([0, 1])).sum(1)[0], model.score(batch([0])).sum()
    assert abs((together - apart).item()) > 1e-6


@pytest.mark.parametrize("variant", VARIANTS)
def test_incremental_equals_full(variant: str) -> None:
    model, b = built(variant), batch(ALL)
    full = model.score(b)
    memory = model.encode(b.source_BS, b.source_lengths_B, b.phrase_sizes_BP)
    state = model.start(memory, beam=1, max_length=2)
    state.expand(2)
    rows, sentences = torch.arange(10), torch.arange(5)
    for t in range(b.target_in_BT.shape[1]):
        if t == 2:  # some sentences leave, the others change places
            sentences = torch.tensor([4, 1, 0])
            state.keep(sentences)
            rows = torch.tensor([1, 0, 2, 3, 5, 4])
            state.reorder(rows)
        gold = b.target_out_BT[sentences, t].repeat_interleave(2)[:, None]
        hidden, *_ = model.step(b.target_in_BT[sentences, t].repeat_interleave(2), state)
        log_p = model.output.log_probs(hidden).gather(1, gold).view(-1, 2)
        real = t < b.target_lengths_B[sentences]
        expected = full[sentences][real, t, None].expand(-1, 2)
        torch.testing.assert_close(log_p[real], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", ["max-attn-ta", "tokens-too", "dataset"])
def test_a_memory_of_chosen_sentences(variant: str) -> None:
    model, b, chosen = built(variant), batch(ALL), torch.tensor([4, 1])
    memory = model.encode(b.source_BS, b.source_lengths_B, b.phrase_sizes_BP)
    whole, part = (
        model.decode(b.target_in_BT, memory)[0],
        model.decode(b.target_in_BT[chosen], memory.select(chosen))[0],
    )
    torch.testing.assert_close(part, whole[chosen], rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_targets_do_not_see_their_future(variant: str) -> None:
    model, b = built(variant), batch([0, 1])
    changed = b.target_in_BT.clone()
    changed[1, 3:] = 20
    memory = model.encode(b.source_BS, b.source_lengths_B, b.phrase_sizes_BP)
    before, after = model.decode(b.target_in_BT, memory)[0], model.decode(changed, memory)[0]
    assert torch.equal(before[1, :3], after[1, :3])
    assert not torch.allclose(before[1, 3], after[1, 3])


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_learns(variant: str) -> None:
    model = built(variant).train()
    model(batch(ALL)).objective.backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not without
    still = {n for n, p in model.named_parameters() if not p.grad.any()}  # type: ignore[union-attr]
    assert not still


@pytest.mark.parametrize("variant", ["max-attn-ta", "dataset", "post"])
def test_half_precision_and_float32_agree(variant: str) -> None:
    model, b = built(variant), batch(ALL)
    exact = model.score(b)
    torch.testing.assert_close(model.float().score(b).double(), exact, rtol=0, atol=1e-3)
    rough = model.bfloat16().score(b)
    assert rough.isfinite().all()
    torch.testing.assert_close(rough.double(), exact, rtol=0.1, atol=0.3)


def test_phrases_decide_what_comes_out() -> None:
    model = built("dataset")
    other = [[1, 3], [9, 9, 6], [1, 1], [1], [6]]
    first, second = model.score(batch(ALL)).sum(1), model.score(batch(ALL, other)).sum(1)
    changed = (first - second).abs() > 1e-8
    assert changed.tolist() == [True, True, True, False, True]


def test_missing_and_wrong_phrases_are_refused() -> None:
    model = built("dataset")
    plain = make_batch(SOURCES, TARGETS)
    with pytest.raises(ModelError, match="the batch has none") as caught:
        model.score(plain)
    assert "--trees" in str(caught.value)
    with pytest.raises(ModelError, match="do not cover"):
        model.score(batch(ALL, [[2, 1], *PHRASES[1:]]))
    assert model.needs_phrases
    assert not built("max").needs_phrases


def test_layers_of_the_decoder_read_what_they_should() -> None:
    b = batch(ALL)
    levels = 3
    plain, mixed = built("max-attn"), built("max-attn-ta")
    memory = plain.encode(b.source_BS, b.source_lengths_B)
    assert memory.phrases is not None and memory.mixed is None
    looks = plain.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT)
    assert looks.phrases is not None and len(looks.phrases.vectors) == levels
    for vectors in memory.phrases.vectors:
        assert torch.equal(vectors, looks.phrases.vectors[-1])
    first, second = mixed.encode(b.source_BS, b.source_lengths_B).phrases.vectors  # type: ignore[union-attr]
    assert not torch.allclose(first, second)
    shares = looks.phrases.weights[0]
    assert shares is not None
    torch.testing.assert_close(shares.sum(-1), (looks.phrases.segments.sizes_BP > 0).double())


@pytest.mark.parametrize("variant", ["max-attn-ta", "post"])
def test_phrases_are_made_of_what_the_combination_reads(variant: str) -> None:
    """Pre-norm: of normalised tokens, all levels on one scale; post-norm: of the tokens as they are."""
    model, b = built(variant), batch(ALL)
    looks, memory = (
        model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT),
        model.encode(b.source_BS, None),
    )
    combination = model.encoder.layers[0].combination
    assert looks.phrases is not None and combination is not None
    embedded = model.source_embedding(b.source_BS)
    read = torch.nn.functional.layer_norm(
        embedded, embedded.shape[-1:], combination.residual.norm.weight, combination.residual.norm.bias, eps=1e-6
    )
    torch.testing.assert_close(looks.phrases.tokens[0], read if variant == "max-attn-ta" else embedded)
    assert len(looks.phrases.tokens) == 3
    whole = torch.tensor([b.source_BS.shape[1] == n for n in b.source_lengths_B])
    torch.testing.assert_close(looks.phrases.tokens[-1][whole], memory.states_BSD[whole])


@pytest.mark.parametrize("residual", ["both", "token"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_residual_of_a_built_model_is_that_of_the_loops(norm: str, residual: str) -> None:
    """Every combination network of a model of this configuration, encoder and decoder, in float64."""
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"preset": "tiny", "norm": norm, "phrases": {"residual": residual}})
    model = build_model(config, 30, 30).double().eval()
    networks = [m for m in model.modules() if isinstance(m, AttentiveCombination)]
    assert len(networks) == 4
    for made in networks:
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        x, phrases = torch.randn(1, 3, 64).double(), torch.randn(1, 4, 64).double()
        found, _ = made(x, made.project_phrases(phrases, Visibility(key_length=4, device=CPU)))
        _, value = made.keys_values.weight.chunk(2)
        rest = {"value": value, "output": made.output.weight, "hidden": made.hidden.weight}
        rest |= {"bias": made.hidden.bias, "down": made.down.weight}
        weights = combination_weights(made) | {name: w.detach().numpy() for name, w in rest.items()}
        for t in range(3):
            read = [phrase.numpy() for phrase in phrases[0]]
            wanted = phrase_loops.combination(
                x[0, t].numpy(), read, weights, made.heads, pre=norm == "pre", residual=residual
            )
            np.testing.assert_allclose(found[0, t].detach().numpy(), wanted, rtol=0, atol=1e-11)


def look(model: TranslationModel, b: Batch) -> AttentionMaps:
    return model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT, b.phrase_sizes_BP)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_of_phrases_are_those_of_the_loops(variant: str) -> None:
    """From the model's own parameters, the tokens that enter each combination network, and the phrase vectors of its level."""
    model, b = built(variant), batch(ALL)
    entered: list[torch.Tensor] = []
    layers = [*model.encoder.layers, *model.decoder.layers]
    for layer in layers:
        layer.combination.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    with torch.no_grad():
        looks = look(model, b)
    assert looks.phrases is not None and model.phrases is not None
    levels, sizes = [vectors.numpy() for vectors in looks.phrases.vectors], looks.phrases.segments.sizes_BP
    read = [levels[-1]] * len(model.decoder.layers)
    if model.phrases.transparent is not None:
        read = phrase_loops.mixtures(levels, model.phrases.transparent.weight.detach().numpy())
    found = [*looks.encoder_phrases, *looks.decoder_phrases]
    assert len(found) == len(layers) == len(entered)
    for layer, x_BQD, vectors, weights_BHQP in zip(layers, entered, [*levels[:-1], *read], found, strict=True):
        w, pre = combination_weights(layer.combination), VARIANTS[variant].get("norm") != "post"
        lengths = b.source_lengths_B if layer in list(model.encoder.layers) else b.target_lengths_B
        for row, length in enumerate(lengths.tolist()):
            real = [vectors[row, p] for p, size in enumerate(sizes[row].tolist()) if size]
            assert not weights_BHQP[row, :, :, len(real) :].any()
            for t in range(length):
                x = x_BQD[row, t].numpy()
                shares = phrase_loops.shares(
                    phrase_loops.layer_norm(x, w["gain"], w["offset"]) if pre else x, real, w, layer.combination.heads
                )
                np.testing.assert_allclose(weights_BHQP[row, :, t, : len(real)], shares, rtol=0, atol=1e-11)
        torch.testing.assert_close(weights_BHQP.sum(-1), torch.ones_like(weights_BHQP[..., 0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_of_phrases_do_not_depend_on_neighbours(variant: str) -> None:
    model, b = built(variant), batch(ALL)
    together = look(model, b)
    for row in ALL:
        alone = look(model, batch([row]))
        for use in ("encoder_phrases", "decoder_phrases"):
            for all_BHQP, one in zip(getattr(together, use), getattr(alone, use), strict=True):
                cut = all_BHQP[row, :, : one.shape[2], : one.shape[3]]
                torch.testing.assert_close(cut, one[0], rtol=0, atol=1e-12)


def test_weights_of_phrases_are_kept_where_they_are_asked_for() -> None:
    model, b = built("max-attn"), batch(ALL)
    memory = model.encode(b.source_BS, b.source_lengths_B)
    assert memory.phrases is not None and memory.phrases.attention_weights is None
    model.decode(b.target_in_BT, memory, keep_weights=True)
    assert (
        memory.phrases.attention_weights is None and memory.select(torch.tensor([0])).phrases.attention_weights is None
    )  # type: ignore[union-attr]
    levels = model.phrases.begin(b.source_BS, b.source_lengths_B, None)  # type: ignore[union-attr]
    model.encoder(model.source_embedding(b.source_BS), b.source_lengths_B, phrases=levels)
    assert levels.attention_weights is None
    looks = look(model, b)
    assert [w.shape[:3] for w in looks.encoder_phrases] == [(5, 4, b.source_BS.shape[1])] * 2
    assert [w.shape[:3] for w in looks.decoder_phrases] == [(5, 4, b.target_in_BT.shape[1])] * 2


@pytest.mark.parametrize("encoder", [{"kind": "none"}, {"kind": "recurrent", "layers": 2}])
def test_only_the_decoder_reads_phrases_of_other_encoders(encoder: dict[str, Any]) -> None:
    model = build_model(
        ModelConfig.model_validate({"preset": "tiny", "encoder": encoder, "phrases": {}}), 30, 30
    ).eval()
    looks = look(model, batch(ALL))
    assert len(looks.encoder_phrases) == 0
    assert len(looks.decoder_phrases) == len(model.decoder.layers)
    plain = look(build_model(ModelConfig.model_validate({"preset": "tiny"}), 30, 30).eval(), batch(ALL))
    assert (len(plain.encoder_phrases), len(plain.decoder_phrases)) == (0, 0)


def combination_weights(made: AttentiveCombination) -> dict[str, Any]:
    key, _ = made.keys_values.weight.chunk(2)
    found = {"query": made.query.weight, "key": key}
    found |= {"gain": made.residual.norm.weight, "offset": made.residual.norm.bias}
    return {name: w.detach().numpy() for name, w in found.items()}


def with_rates(phrases: dict[str, Any], **rates: float) -> TranslationModel:
    torch.manual_seed(0)
    config = {"preset": "tiny", "phrases": phrases, "dropout": 0.3, "attention_dropout": 0.2, **rates}
    return build_model(ModelConfig.model_validate(config), 30, 30)


@pytest.mark.parametrize(
    ("phrases", "rate", "of_attended"),
    [
        ({}, 0.3, 0.0),
        ({"combination_dropout": 0.6}, 0.6, 0.0),
        ({"combination_dropout": 0.0}, 0.0, 0.0),
        ({"attended_dropout": 0.4}, 0.3, 0.4),
    ],
)
def test_where_dropout_acts_in_the_combination(phrases: dict[str, Any], rate: float, of_attended: float) -> None:
    """The draws are those of the attention, its output, the f inner units, and the residual, in this order: the same bits."""
    made = next(m for m in with_rates(phrases).train().modules() if isinstance(m, AttentiveCombination))
    x, keys = torch.randn(3, 5, 64), made.project_phrases(torch.randn(3, 2, 64), Visibility(key_length=2, device=CPU))
    torch.manual_seed(1)
    found, weights = made(x, keys)
    torch.manual_seed(1)
    before = made.before(x)
    attended = made.output((dropout(weights, 0.2, True) @ keys.values).transpose(1, 2).flatten(2))
    attended = dropout(attended, of_attended, True)
    inner = made.hidden(torch.cat([before, attended], -1)).sigmoid()
    inner = dropout(inner, rate, True) if rate else inner
    assert torch.equal(found, made.residual.after(x + attended, made.down(inner)))


def test_dropout_of_the_combination_is_by_default_that_of_the_model() -> None:
    b = batch(ALL)
    losses = []
    for phrases in ({}, {"combination_dropout": 0.3}, {"combination_dropout": 0.0}):
        model = with_rates(phrases).train()
        torch.manual_seed(1)
        losses.append(model.loss(b).objective)
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])
    none = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}
    for rate, key in ((0.0, "combination_dropout"), (0.3, "combination_dropout"), (0.3, "attended_dropout")):
        model = with_rates({"combination_dropout": 0.0, key: rate}, **none)
        assert torch.equal(model.train().loss(b).objective, model.eval().loss(b).objective) == (rate == 0.0)


def test_a_random_start_of_the_phrases_is_for_training() -> None:
    b = batch(ALL)
    none = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}
    fixed, random = (with_rates({"segments": {"random_start": on}}, **none) for on in (False, True))
    assert torch.equal(fixed.eval().loss(b).objective, random.eval().loss(b).objective)
    random.train()
    torch.manual_seed(1)  # as before every micro-batch of a training, so that a resumed run draws the same places
    drawn = [random.loss(b).objective.item() for _ in range(5)]
    torch.manual_seed(1)
    assert len(set(drawn)) > 1 and [random.loss(b).objective.item() for _ in range(5)] == drawn


def test_bad_options_are_refused() -> None:
    for phrases, what in (
        ({"glance": "median"}, "glance"),
        ({"attention": "none", "scorer_width": 8}, "scorer_width"),
        ({"segments": {"kind": "fixed", "floor": 0}}, "floor"),
        ({"segments": {"kind": "fixed", "max_tokens": 2}}, r"segments: floor is at most max_tokens \(2\), not 3"),
        ({"segments": {"kind": "fixed", "floor": 9}}, r"segments: floor is at most max_tokens \(8\), not 9"),
        ({"segments": {"kind": "tree"}}, "segments"),
        ({"combination_dropout": 1.0}, "combination_dropout"),
    ):
        with pytest.raises(ConfigError, match=what):
            validate(ModelConfig, {"preset": "tiny", "phrases": phrases})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"combination_width": 0, "residual": "token"}, "nothing reads the phrases"),
        ({"combination_width": 0, "combination_dropout": 0.3}, "combination_dropout has no meaning"),
    ],
)
def test_attention_alone_has_no_options_of_the_network(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PhrasesConfig.model_validate(options)
