"""The FLOP that the benchmarks count are those that torch sees, for every structure: forward, backward, search."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.layers.feedforward import FeedForward
from phraseloom.layers.table import TargetTable
from phraseloom.models import flops
from phraseloom.models.build import build_model
from phraseloom.npmt.flops import segmental_parts
from phraseloom.options.model import ModelConfig

VOCABULARY = 29
SOFTMAX = {"glance": "max", "attention": "softmax"}
PHRASES: dict[str, dict[str, Any]] = {
    "mean": {"glance": "mean", "attention": "none", "transparent": False},
    "max": {"glance": "max", "attention": "none", "transparent": False},
    "max_attn": {**SOFTMAX, "transparent": False},
    "max_attn_ta": SOFTMAX,
    "mean_gated_ta": {"glance": "mean", "attention": "gated", "transparent_tokens": True, "scorer_width": 12},
    "attention_alone": {**SOFTMAX, "combination_width": 0},
    "narrow": {**SOFTMAX, "combination_width": 16, "segments": {"kind": "fixed", "max_tokens": 2, "floor": 1}},
}
ATTENTIONS: list[Any] = [
    "token",
    {"encoder_self": "relative", "decoder_self": "relative"},
    *[
        f"{score} {structure}"
        for score in ("convkv", "queryk")
        for structure in ("homogeneous 22", "homogeneous 121", "heterogeneous 1-2", "heterogeneous 1-2-3")
    ],
    *[f"{score} interleaved {orders}" for score in ("convkv", "queryk") for orders in ("1-2", "1-2-3")],
    "queryk heterogeneous 1-2-3 keys-per-order",
    "queryk interleaved 1-2 keys-per-order",
    {"encoder_self": "convkv heterogeneous 2", "decoder_self": "token", "cross": "queryk interleaved 1-3"},
]

RNN: dict[str, Any] = {"encoder": {"kind": "recurrent", "layers": 2}, "decoder": {"kind": "recurrent", "layers": 2}}
NONE: dict[str, Any] = {"kind": "none"}


def changed(**decoder: Any) -> dict[str, Any]:
    """An LSTM model whose decoder differs."""
    return {**RNN, "decoder": {**RNN["decoder"], **decoder}}


RECURRENT: dict[str, dict[str, Any]] = {
    "noenc": {"encoder": NONE, "decoder": {"layers": 2}},
    "noenc_queryk": {"encoder": NONE, "decoder": {"layers": 2}, "attention": "queryk interleaved 1-2"},
    "rnn": RNN,
    "general": changed(attention="general"),
    "fixed": changed(attention="fixed"),
    "no_feeding": changed(input_feeding=False),
    "no_feeding_general_zero": changed(input_feeding=False, attention="general", initial="zero"),
    "gru": {
        "encoder": {**RNN["encoder"], "cell": "gru", "bidirectional": 0},
        "decoder": {**RNN["decoder"], "cell": "gru", "residual": True},
    },
    "final": {"encoder": {**RNN["encoder"], "dropout": 0.1}, "decoder": changed(initial="final")["decoder"]},
    "all_both_ways": {"encoder": {**RNN["encoder"], "bidirectional": 2}, "decoder": changed(initial="zero")["decoder"]},
    "noenc_rnn": {**RNN, "encoder": NONE},
    "noenc_rnn_fixed": {**changed(attention="fixed"), "encoder": NONE},
    **{
        f"multihead_{attention}": {**changed(attention="multihead", **given), "attention": attention}
        for attention, given in {
            "token": {},
            "queryk heterogeneous 1-2": {},
            "convkv heterogeneous 1-2": {"input_feeding": False},
            "queryk interleaved 1-2": {},
        }.items()
    },
    "transformer_rnn": {"encoder": {"layers": 2}, "decoder": RNN["decoder"]},
    "rnn_transformer": {"encoder": RNN["encoder"], "decoder": {"layers": 2}},
    "noenc_phrases": {"encoder": NONE, "decoder": {"layers": 2}, "phrases": {}},
    "rnn_transformer_phrases": {"encoder": RNN["encoder"], "decoder": {"layers": 2}, "phrases": {}},
}


def config(attention: Any) -> ModelConfig:
    layers = {"encoder": {"layers": 2}, "decoder": {"layers": 1}}
    return ModelConfig.model_validate({"width": 16, "heads": 4, "ffn_width": 24, **layers, "attention": attention})


def in_place(bias: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * a[0] * a[1] * b[1]


def matrix_vector(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def counter() -> FlopCounterMode:
    """torch's counter, with what it lacks: the in-place sum of products in the loss, and a matrix times a vector."""
    mapping = {torch.ops.aten.addmm_: in_place, torch.ops.aten.mv: matrix_vector}
    return FlopCounterMode(display=False, custom_mapping=mapping)


TRAINED, SEARCHED = [(7, 5)] * 3, [(6, 5)] * 2  # source and target tokens of each sentence, including EOS


def counted_training(model: Any) -> int:
    """The FLOP that torch counts in the forward and backward pass of `TRAINED`."""
    batch = make_batch([[4] * (s - 1) for s, _ in TRAINED], [[5] * (t - 1) for _, t in TRAINED])
    with counter() as seen:
        model.train().loss(batch).objective.backward()
    return int(seen.get_total_flops())


def counted_search(model: Any, beam: int) -> int:
    """The FLOP that torch counts in a search whose translations have the lengths of `SEARCHED`."""
    batch = make_batch([[4] * (s - 1) for s, _ in SEARCHED], [[] for _ in SEARCHED])
    bounds = [t - 1 for _, t in SEARCHED]
    with counter() as seen, torch.inference_mode():
        memory = model.eval().encode(batch.source_BS, batch.source_lengths_B)
        result = search(model, memory, Limits.of(bounds, bounds), SearchOptions(beam=beam))
    assert [len(hypotheses[0].tokens) for hypotheses in result] == bounds
    return int(seen.get_total_flops())


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_training(attention: Any) -> None:
    model_config = config(attention)
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    assert counted_training(model) == flops.training_flop(model_config, VOCABULARY, TRAINED)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_search(attention: Any, beam: int) -> None:
    torch.manual_seed(0)  # EOS is not the best token behind the longest length
    model_config = config(attention)
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    counted = flops.decoding_flop(model_config, VOCABULARY, SEARCHED, beam=beam)
    # at its longest length a search asks once more for the probabilities of the same hidden vectors, to close with EOS
    again = 2 * beam * len(SEARCHED) * model_config.width * VOCABULARY
    assert counted_search(model, beam) == counted + again


def recurrent(name: str) -> ModelConfig:
    model: dict[str, Any] = RECURRENT[name]
    return ModelConfig.model_validate({"width": 16, "heads": 4, "ffn_width": 24, **model})


@pytest.fixture
def plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent layers as products that the counter sees; mkldnn has one operation for a whole layer."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.usefixtures("plain_layers")
@pytest.mark.parametrize("name", RECURRENT)
def test_training_of_recurrent_and_encoder_free_models(name: str) -> None:
    model_config = recurrent(name)
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    assert counted_training(model) == flops.training_flop(model_config, VOCABULARY, TRAINED, computed=True)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.usefixtures("plain_layers")
@pytest.mark.parametrize("name", RECURRENT)
def test_search_of_recurrent_and_encoder_free_models(name: str, beam: int) -> None:
    torch.manual_seed(2)  # EOS is not the best token behind the longest length
    model_config = recurrent(name)
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    counted = flops.decoding_flop(model_config, VOCABULARY, SEARCHED, beam=beam, computed=True)
    again = 2 * beam * len(SEARCHED) * model_config.width * VOCABULARY
    assert counted_search(model, beam) == counted + again


def test_recurrent_cost_by_hand() -> None:
    """RNNS2S at the size of paper 004: formulas, each product written out."""
    model_config = ModelConfig.model_validate(
        {"width": 768, "encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent"}}
    )
    d, s, t, v = 768, 23, 19, 31_400
    encoder = s * 2 * 4 * (d // 2) * (d + d // 2) + s * 5 * 4 * d * (2 * d)
    decoder = t * 4 * d * (3 * d) + t * 5 * 4 * d * (2 * d) + t * (2 * d) * d
    attention = s * d * d + t * d * d + t * s * (d + d)
    first_states = 12 * d * d
    cost = flops.TokenCost(flops.shapes_of(model_config, v))
    smoothing = t * d  # the sums of the smoothed loss, a matrix times a vector without a gradient
    forward = 2 * (encoder + decoder + attention + first_states + t * d * v + smoothing)
    zero_states = 2 * 4 * (d // 2) ** 2 + 5 * 4 * d * d + 4 * d * d  # of the encoder's cells; what is fed to step 1
    columns = (
        t * s * d
    )  # the gradient of a matrix times a vector is a column times a row, which torch does not multiply
    assert cost.update(s, t) == 3 * forward - 2 * (zero_states + columns + 2 * smoothing)


OUTPUTS: dict[str, dict[str, Any]] = {
    "continuous": {"kind": "continuous"},
    "hidden_layer": {"kind": "continuous", "hidden_layer": True},
    "max_margin": {"kind": "continuous", "loss": "max_margin"},
    "words_and_phrases": {"kind": "word_or_phrase"},
    "gate": {"kind": "word_or_phrase", "fertility": {"widths": [10, 6]}},
    "gate_of_states": {"kind": "word_or_phrase", "fertility": {"widths": [10], "inputs": "states", "classes": 2}},
}
TABLE_WIDTH = 12


def continuous(name: str, network: dict[str, Any], **changes: Any) -> tuple[ModelConfig, Any]:
    """A configuration, and a model of it whose target tokens have fixed vectors."""
    model = {"width": 16, "heads": 4, "ffn_width": 24, **network, "output": OUTPUTS[name], **changes}
    model_config = ModelConfig.model_validate(model)
    rows = torch.nn.functional.normalize(torch.randn(VOCABULARY, TABLE_WIDTH), dim=1)
    return model_config, build_model(model_config, VOCABULARY, VOCABULARY, TargetTable(rows, 20))


NETWORKS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": {"layers": 2}, "decoder": {"layers": 1}},
    "rnn": changed(attention="general", initial="final"),
}


@pytest.mark.usefixtures("plain_layers")
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("tied", ["two_way", "none"])
@pytest.mark.parametrize("name", ["continuous", "hidden_layer", "max_margin", "words_and_phrases"])
def test_training_with_continuous_outputs(name: str, tied: str, network: str) -> None:
    """No product with the table, but the one of max_margin that has no gradient."""
    model_config, model = continuous(name, NETWORKS[network], tied=tied)
    counted = flops.training_flop(model_config, VOCABULARY, TRAINED, table_width=TABLE_WIDTH)
    assert counted_training(model) == counted


def test_few_rivals_are_counted() -> None:
    target, words, drawn = 5, 15, 2

    def of(first_phrase: int, **options: Any) -> int:
        output = {"kind": "word_or_phrase", **options}
        model_config = ModelConfig.model_validate({"width": 16, "heads": 4, "ffn_width": 24, "output": output})
        sizes = {"table_width": TABLE_WIDTH, "first_phrase": first_phrase}
        return flops.training_flop(model_config, VOCABULARY, [(7, target)], **sizes)

    row = 2 * target * TABLE_WIDTH
    without, whole = of(words, loss="cosine"), of(words)
    few, all_words = ({"rivals": drawn, "frequent_rivals": frequent} for frequent in (words, "words"))
    assert whole - without == VOCABULARY * row
    for found in (of(words, **few), of(words, **all_words)):
        assert words * row <= found - without <= (words + drawn + target) * row
    assert of(VOCABULARY, **all_words) == whole


@pytest.mark.usefixtures("plain_layers")
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", OUTPUTS)
def test_search_with_continuous_outputs(name: str, network: str, beam: int) -> None:
    torch.manual_seed(1)
    model_config, model = continuous(name, NETWORKS[network])
    counted = flops.decoding_flop(model_config, VOCABULARY, SEARCHED, beam=beam, table_width=TABLE_WIDTH)
    hidden = TABLE_WIDTH**2 if name == "hidden_layer" else 0
    again = model_config.width * TABLE_WIDTH + hidden + VOCABULARY * TABLE_WIDTH
    assert counted_search(model, beam) == counted + 2 * beam * len(SEARCHED) * again


def phrases(name: str, attention: Any = "token") -> ModelConfig:
    return ModelConfig.model_validate({**config(attention).model_dump(), "phrases": PHRASES[name]})


@pytest.mark.parametrize("attention", ["token", "queryk heterogeneous 1-2"])
@pytest.mark.parametrize("name", PHRASES)
def test_training_with_phrases(name: str, attention: str) -> None:
    model_config = phrases(name, attention)
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    assert counted_training(model) == flops.training_flop(model_config, VOCABULARY, TRAINED, computed=True)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", PHRASES)
def test_search_with_phrases(name: str, beam: int) -> None:
    torch.manual_seed(0)  # EOS is not the best token behind the longest length
    model_config = phrases(name)
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    counted = flops.decoding_flop(model_config, VOCABULARY, SEARCHED, beam=beam, computed=True)
    again = 2 * beam * len(SEARCHED) * model_config.width * VOCABULARY
    assert counted_search(model, beam) == counted + again


def paper_flop(model: ModelConfig, source: int, target: int, phrases: int) -> int:
    """What source phrases add to the forward pass of one sentence pair, formula by formula, each product written out."""
    assert model.phrases is not None
    f = model.ffn_width if model.phrases.combination_width is None else model.phrases.combination_width
    d, h = model.width, model.phrases.scorer_width or model.width
    levels, decoder_layers = model.encoder.layers + 1, model.decoder.layers
    total = 0
    for tokens, layers in ((source, model.encoder.layers), (target, decoder_layers)):
        for _ in range(layers):
            total += tokens * d * d + 2 * phrases * d * d  # queries; keys and values
            total += tokens * phrases * d * 2  # scores and mixing of all heads
            total += tokens * d * d  # output projection
            total += tokens * (2 * d) * f + tokens * f * d  # W_a [x ; a], W_b
    if model.phrases.attention != "none":
        for _ in range(levels):
            total += source * (2 * d) * h  # W1 [g ; x_k]
            total += source * d  # sum over k of p_k x_k, each token in one phrase
    if model.phrases.transparent:
        total += decoder_layers * levels * phrases * d
    if model.phrases.transparent_tokens:
        total += decoder_layers * levels * source * d
    return 2 * total


@pytest.mark.parametrize("name", PHRASES)
def test_the_plain_count_is_the_formulas_of_the_paper(name: str) -> None:
    with_phrases, without, pair = phrases(name), config("token"), [(13, 9)]
    count = {"narrow": 7}.get(name, 5)  # of 13 tokens: 2 or 3 in each
    assert flops.phrase_count(with_phrases, 13) == count
    added = flops.training_flop(with_phrases, VOCABULARY, pair) - flops.training_flop(without, VOCABULARY, pair)
    assert added == 3 * paper_flop(with_phrases, 13, 9, count)


@pytest.mark.usefixtures("plain_layers")
@pytest.mark.parametrize("transparent", [True, False])
def test_the_layers_of_a_recurrent_encoder_read_no_phrases(transparent: bool) -> None:
    """Combination networks are in the decoder alone. Without a scorer, the layers compute what the formulas say."""
    model_config = ModelConfig.model_validate(
        {
            "width": 64, "heads": 4, "ffn_width": 128, "encoder": {"kind": "recurrent", "layers": 3}, "decoder": {"layers": 2},
            "phrases": {"attention": "none", "transparent": transparent},
        }
    )  # fmt: skip
    for cost in (flops.training_flop, partial(flops.decoding_flop, beam=2)):
        formulas, computed = (cost(model_config, VOCABULARY, [(24, 19)], computed=c) for c in (False, True))
        assert formulas == computed


@pytest.mark.parametrize("backend", ["auto", "fused"])
def test_the_count_does_not_depend_on_the_backend(backend: str) -> None:
    """With attention dropout in training, and without it in search; at a length at which `auto` is fused."""
    explicit, other = (
        ModelConfig.model_validate({**config("queryk heterogeneous 1-2").model_dump(), "attention": {"backend": b}})
        for b in ("explicit", backend)
    )
    pairs = [(520, 7)]
    assert flops.training_flop(other, VOCABULARY, pairs) == flops.training_flop(explicit, VOCABULARY, pairs)
    searches = [flops.decoding_flop(c, VOCABULARY, pairs, beam=2) for c in (explicit, other)]
    assert searches[0] == searches[1]


def test_time_of_table_2_is_its_flop() -> None:
    """At the paper's size an update has 1.74 times the FLOP of the base; Table 2 says 1.75 times the time."""
    base = ModelConfig.model_validate({"preset": "base"})
    full = base.model_copy(update={"phrases": phrases("max_attn_ta").phrases})
    pairs = [(28, 28)]
    ratio = flops.training_flop(full, 43_000, pairs) / flops.training_flop(base, 43_000, pairs)
    assert ratio == pytest.approx(1.74, abs=0.01)


def test_phrases_of_a_dataset_are_not_known_from_lengths() -> None:
    model_config = ModelConfig.model_validate(
        {**config("token").model_dump(), "phrases": {"segments": {"kind": "dataset"}}}
    )
    with pytest.raises(ValueError, match="dataset"):
        flops.training_flop(model_config, VOCABULARY, [(3, 3)])


def test_padding_and_length_are_counted() -> None:
    model_config = config("queryk heterogeneous 1-2")
    short = flops.training_flop(model_config, VOCABULARY, [(3, 4)])
    assert flops.padded([(3, 9), (8, 4)]) == [(8, 9), (8, 9)]
    assert flops.padded([]) == []
    assert short < flops.training_flop(model_config, VOCABULARY, [(3, 5)])
    assert short < flops.training_flop(model_config, VOCABULARY, [(4, 4)])


def test_what_a_structure_adds() -> None:
    """Projections in units of D² and token: 8 for QueryK and ConvKV 1-2 against 4."""
    for attention, units in [("token", 4), ("queryk heterogeneous 1-2", 8), ("convkv heterogeneous 1-2", 8)]:
        use = config(attention)
        model: Any = flops.shapes_of(use, VOCABULARY)
        one, two = (flops.count(partial(model.encode, torch.tensor([[4] * n]), None)) for n in (1, 2))
        of_token = (4 * one - two) // 2 // 2 // use.encoder.layers  # without what grows with the square; multiply-adds
        assert of_token == units * use.width**2 + 2 * use.width * use.ffn_width


def test_what_a_layer_multiplies_is_counted_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that multiplies once more costs D² a token and layer more, forwards and backwards."""
    use, extra = config("token"), torch.empty(16, 16, device="meta")
    before = flops.TokenCost(flops.shapes_of(use, VOCABULARY)).update(7, 5)
    forward = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: forward(self, x @ extra))
    tokens = 7 * use.encoder.layers + 5 * use.decoder.layers
    after = flops.TokenCost(flops.shapes_of(use, VOCABULARY)).update(7, 5)
    assert after - before == 2 * 2 * tokens * 16**2  # the matrix is constant: one product backwards


SEGMENTAL: dict[str, dict[str, Any]] = {
    "npmt": {"reordering": {"window": 3}, "embedding_width": 12},
    "lstm": {
        "encoder": {"kind": "columns", "layers": 3, "cell": "lstm", "width": 10},
        "decoder": {"cell": "lstm", "layers": 3},
    },
    "band": {"decoder": {"approximation": {"band": 1}}},
    "negatives": {"decoder": {"approximation": {"negatives": 3}}},
    "connected": {"decoder": {"connect": True}, "embedding_width": 20},
    "transformer": {"encoder": {"layers": 2}, "attention": "queryk heterogeneous 1-2"},
    "recurrent": {"encoder": {"kind": "recurrent", "layers": 2}},
}


@pytest.mark.usefixtures("plain_layers")
@pytest.mark.parametrize("name", SEGMENTAL)
def test_forward_pass_of_segmental_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an update adds to it depends on the posterior: two to three times as much. All words differ: a sampled softmax
    then counts as many types as it ever does."""
    monkeypatch.setattr("phraseloom.npmt.model.can_pack", lambda weight: False)
    given = SEGMENTAL[name]
    decoder = {"kind": "segmental", "layers": 2, "max_segment": 3, **given.get("decoder", {})}
    model_config = ModelConfig.model_validate(
        {
            "width": 16, "heads": 4, "ffn_width": 24, "output": {"bias": True},
            "encoder": {"kind": "columns", "layers": 2}, **given, "decoder": decoder,
        }
    )  # fmt: skip
    model = build_model(model_config, VOCABULARY, VOCABULARY)
    pairs = [(7, 5), (4, 8), (3, 1)]
    word = itertools.count(5)
    batch = make_batch([[4] * (s - 1) for s, _ in pairs], [[next(word) for _ in range(t - 1)] for _, t in pairs])
    with counter() as seen:
        loss = model.loss(batch).objective
    parts = segmental_parts(model_config, VOCABULARY, pairs)
    padded = segmental_parts(model_config, VOCABULARY, [(7, 8)] * 3)
    counted = 2 * (sum(parts.values()) - parts["encoder"] + padded["encoder"])
    if model.connects:
        counted += 2 * history_padding(model_config, pairs)
    assert seen.get_total_flops() == counted
    assert flops.training_flop(model_config, VOCABULARY, pairs) == 6 * sum(parts.values())
    again = 2 * (parts["segments"] + parts["softmax"])
    assert flops.training_flop(model_config, VOCABULARY, pairs, computed=True) == 6 * sum(parts.values()) + again
    with counter() as seen:
        loss.backward()
    assert 2 * counted < seen.get_total_flops() <= 3 * counted


def history_padding(model_config: Any, pairs: list[tuple[int, int]]) -> int:
    """Multiply-adds of what the history reads behind the ends of the targets."""
    embedded, width, layers = model_config.embedding_width, model_config.width, model_config.decoder.layers
    token = GRU_GATES * width * (embedded + width) + embedded * width + (layers - 1) * GRU_GATES * width * 2 * width
    longest = max(target for _, target in pairs)
    return token * sum(longest - target for _, target in pairs)


GRU_GATES = 3
