"""Recurrent translation models against loops over single sentences; and which of them can be asked for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reference import recurrent as reference
from tests.reference.recurrent_weights import Cast, decoder_of, encoded, same
from torch import Tensor

from phraseloom.config import validate
from phraseloom.data.tensors import Batch, make_batch
from phraseloom.errors import ConfigError, ModelError
from phraseloom.models.build import build_model
from phraseloom.models.decoder import Memory
from phraseloom.models.store import read_config
from phraseloom.models.translation import TranslationModel
from phraseloom.options.model import ModelConfig, SinusoidConfig

SIZE = 12
SOURCES, TARGETS = [[5, 6, 7], [8], []], [[5, 6], [], [7, 8, 9]]
SMALL = {
    "width": 8, "heads": 2, "ffn_width": 8, "tied": "none", "output": {"bias": True}, "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


def built(*, seed: int = 0, **keys: Any) -> TranslationModel:
    """A float64 model whose parameters, biases too, are large enough that no gate is near its middle."""
    model = build_model(ModelConfig.model_validate({**SMALL, **keys}), SIZE, SIZE).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model.eval()


def recurrent(**keys: Any) -> dict[str, Any]:
    return {"kind": "recurrent", "layers": 2, **keys}


def batch(order: tuple[int, ...] = (0, 1, 2)) -> Batch:
    return make_batch([SOURCES[i] for i in order], [TARGETS[i] for i in order])


def embedded(embedding: Any, tokens: Tensor, cast: Cast) -> list[Tensor]:
    x = cast(embedding.weight)[tokens] * embedding.weight.shape[1] ** 0.5
    return list(x if embedding.positions is None else x + cast(embedding.positions(0, len(tokens))))


def by_loops(model: TranslationModel, b: Batch, cast: Cast = same) -> list[tuple[Tensor, list[Tensor | None]]]:
    """For each sentence log p of every target token, and the attention weights of every step."""
    found, decoder = [], decoder_of(model.decoder, cast)
    for source, n, target, gold, m in zip(
        b.source_BS, b.source_lengths_B, b.target_in_BT, b.target_out_BT, b.target_lengths_B, strict=True
    ):
        memory, final = encoded(model.encoder, embedded(model.source_embedding, source[:n], cast), cast)
        hidden, weights = reference.decode(embedded(model.target_embedding, target[:m], cast), memory, decoder, final)
        logits = torch.stack(hidden) @ cast(model.output.weight).T + cast(model.output.bias)
        found.append((logits.log_softmax(-1)[torch.arange(int(m)), gold[:m]], weights))
    return found


def compare(model: TranslationModel) -> None:
    """log p, attention and every gradient in float64; log p again in float32."""
    b = batch()
    expected = by_loops(model, b)
    found = model.score(b)
    coefficients = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    objective = torch.zeros((), dtype=torch.float64)
    for row, (log_p, _) in enumerate(expected):
        torch.testing.assert_close(found[row, : len(log_p)], log_p, rtol=0, atol=1e-9)
        assert not found[row, len(log_p) :].any()
        objective = objective + (log_p * coefficients[row, : len(log_p)]).sum()
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(objective, parameters)
    for got, gradient in zip(torch.autograd.grad((found * coefficients).sum(), parameters), wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-9)
    with torch.no_grad():
        memory = model.encode(b.source_BS, b.source_lengths_B)
        _, kept, _ = model.decode(b.target_in_BT, memory, keep_weights=True)
        assert len(kept) == len(model.decoder.cross_structures)
        for look, structure in zip(kept, model.decoder.cross_structures, strict=True):
            slots = structure.split(look)
            for row, (_, weights) in enumerate(expected):
                real = int(b.source_lengths_B[row])
                for t, shares in enumerate(weights):
                    assert shares is not None
                    got = slots[row, :, :, t]
                    assert not got[..., real:].any()
                    torch.testing.assert_close(got[..., :real].flatten(), shares.flatten(), rtol=0, atol=1e-9)
        model.float()
        rounded = by_loops(model, b, lambda x: x.double())
        single = model.score(b)
        for row, (log_p, _) in enumerate(rounded):
            torch.testing.assert_close(single[row, : len(log_p)].double(), log_p, rtol=0, atol=2e-5)


GRID = list(
    itertools.product(
        ("lstm", "gru"),
        ("mlp", "general", "fixed", "multihead"),
        ("last", "final", "zero"),
        (True, False),
        (True, False),
    )
)


@pytest.mark.parametrize(("cell", "attention", "initial", "input_feeding", "residual"), GRID)
def test_models_are_those_of_the_equations(
    cell: str, attention: str, initial: str, input_feeding: bool, residual: bool
) -> None:
    """Both sides recurrent, over ragged sentences."""
    decoder = recurrent(
        cell=cell, attention=attention, initial=initial, input_feeding=input_feeding, residual=residual,
    )  # fmt: skip
    encoder = recurrent(cell=cell, residual=residual, bidirectional=1 + residual)
    compare(built(encoder=encoder, decoder=decoder))


PHRASAL = ["queryk heterogeneous 1-2", "convkv homogeneous 11", "convkv interleaved 1-2", "queryk interleaved 1-2-3"]


@pytest.mark.parametrize("input_feeding", [True, False], ids=["fed", "not-fed"])
@pytest.mark.parametrize("line", PHRASAL)
def test_phrasal_attention_of_a_recurrent_decoder(line: str, input_feeding: bool) -> None:
    """Over the embeddings themselves, where n-grams are all the context there is."""
    decoder = recurrent(attention="multihead", input_feeding=input_feeding)
    compare(built(encoder={"kind": "none"}, decoder=decoder, attention=line))


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "plain"])
@pytest.mark.parametrize("layers", [1, 3])
def test_other_depths(layers: int, residual: bool) -> None:
    encoder, decoder = ({"layers": n, "residual": residual and n > 1} for n in (4 - layers, layers))
    decoder = recurrent(**decoder, initial="last")
    compare(built(encoder=recurrent(**encoder, bidirectional=0), decoder=decoder))
    compare(built(encoder={"kind": "none"}, decoder={**decoder, "input_feeding": False, "cell": "gru"}))


def test_the_final_states_of_another_encoder_are_missed() -> None:
    model = built(encoder=recurrent(), decoder=recurrent(initial="final"))
    memory = model.encode(*(torch.tensor([[5, 6, 3]]), None))
    with pytest.raises(ModelError, match="final states"):
        model.start(Memory(memory.states_BSD, None))


def test_hypotheses_begin_with_the_states_of_their_sentence() -> None:
    """A beam from the start is one hypothesis made into many."""
    for initial in ("last", "final"):
        model, b = built(encoder=recurrent(), decoder=recurrent(initial=initial)), batch()
        memory = model.encode(b.source_BS, b.source_lengths_B)
        one, many = model.start(memory, beam=1), model.start(memory, beam=3)
        one.expand(3)
        tokens = torch.arange(9) + 3
        for _ in range(2):
            torch.testing.assert_close(model.step(tokens, many)[0], model.step(tokens, one)[0], rtol=0, atol=1e-12)


DECODER = recurrent(hidden_dropout=0.0)
MULTIHEAD = {**DECODER, "attention": "multihead"}
RATES: list[dict[str, Any]] = [
    {"encoder": recurrent(dropout=0.5), "decoder": DECODER},
    {"decoder": {**DECODER, "dropout": 0.5}},
    {"decoder": {**DECODER, "dropout": 0.5, "input_feeding": False}},
    {"decoder": {**DECODER, "hidden_dropout": 0.5}},
    {"decoder": {**DECODER, "hidden_dropout": 0.5, "input_feeding": False}},
    {"decoder": MULTIHEAD, "attention_dropout": 0.5},
    {"decoder": {**MULTIHEAD, "input_feeding": False}, "attention_dropout": 0.5},
    {"decoder": DECODER, "dropout": 0.5},
]


def without_rates(keys: Any) -> Any:
    if not isinstance(keys, dict):
        return keys
    return {name: 0.0 if name.endswith("dropout") else without_rates(value) for name, value in keys.items()}


@pytest.mark.parametrize("keys", RATES, ids=str)
def test_each_dropout_acts_in_training_only(keys: dict[str, Any]) -> None:
    """And nothing else does: with the rate at 0 training gives the numbers of evaluation."""
    keys = {"encoder": recurrent(), **keys}
    model, calm = built(**keys), built(**without_rates(keys))
    expected = calm.score(batch())
    assert torch.equal(model.score(batch()), expected)
    torch.testing.assert_close(calm.train().score(batch()), expected, rtol=0, atol=1e-12)
    torch.manual_seed(0)
    assert not torch.allclose(model.train().score(batch()), expected)


def test_joined_outputs_lose_channels_of_query_and_context() -> None:
    """hidden_dropout zeroes elements of [q ; c], so a unit matrix in front of tanh shows which, and how the rest is scaled."""
    model = built(encoder=recurrent(), decoder=recurrent(hidden_dropout=0.25, attention="fixed")).train()
    decoder, rows = model.decoder, 4000
    query, context = torch.full((rows, 8), 0.1).double(), torch.full((rows, 8), 0.2).double()
    with torch.no_grad():
        decoder.hidden.bias.zero_()
        decoder.hidden.weight.copy_(torch.eye(8, 16))
        of_query = decoder._join(query, context)
        decoder.hidden.weight.copy_(torch.eye(16)[8:])
        of_context = decoder._join(query, context)
    for found, value in ((of_query, 0.1), (of_context, 0.2)):
        kept = torch.tanh(torch.tensor(value / 0.75, dtype=torch.float64))
        assert ((found == 0) | (found - kept).abs().lt(1e-4)).all()
        assert found.eq(0).double().mean().item() == pytest.approx(0.25, abs=0.02)


# Configuration

NONE, SINUSOID = {"kind": "none"}, {"kind": "sinusoid"}
T2T = {"kind": "sinusoid", "layout": "t2t"}
RECURRENT = {"kind": "recurrent", "layers": 2}
SIDES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "halves", "halves"),
    ({"encoder": NONE}, "halves", "halves"),
    ({"encoder": RECURRENT}, "none", "halves"),
    ({"decoder": RECURRENT}, "halves", "none"),
    ({"encoder": NONE, "decoder": RECURRENT}, "halves", "none"),
    ({"encoder": RECURRENT, "decoder": RECURRENT}, "none", "none"),
    ({"positions": NONE}, "none", "none"),
    ({"positions": T2T}, "t2t", "t2t"),
    ({"positions": {"source": NONE}}, "none", "halves"),
    ({"positions": {"target": T2T}}, "halves", "t2t"),
    ({"positions": {"source": NONE, "target": T2T}}, "none", "t2t"),
    ({"positions": {}}, "halves", "halves"),
    ({"encoder": RECURRENT, "positions": SINUSOID}, "halves", "halves"),
    ({"encoder": RECURRENT, "positions": {"target": T2T}}, "none", "t2t"),
    ({"encoder": RECURRENT, "positions": {"source": T2T}}, "t2t", "halves"),
    ({"decoder": RECURRENT, "positions": {"source": NONE}}, "none", "none"),
    ({"encoder": RECURRENT, "decoder": RECURRENT, "positions": {}}, "none", "none"),
]


@pytest.mark.parametrize(("keys", "source", "target"), SIDES, ids=str)
def test_positions_of_each_side(keys: dict[str, Any], source: str, target: str) -> None:
    """Both have them, but not one that recurrent layers read, unless they are asked for; and the model has what it says."""
    config = ModelConfig.model_validate({**SMALL, **keys})
    sides = (config.positions.source, config.positions.target)
    assert tuple(getattr(side, "layout", side.kind) for side in sides) == (source, target)
    model = build_model(config, SIZE, SIZE)
    layouts = [e.positions and e.positions.layout for e in (model.source_embedding, model.target_embedding)]
    assert [layout or "none" for layout in layouts] == [source, target]


LINES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {"encoder_self": "queryk", "decoder_self": "queryk", "cross": "queryk"}),
    ({"encoder": NONE}, {"encoder_self": "token", "decoder_self": "queryk", "cross": "queryk"}),
    ({"encoder": RECURRENT}, {"encoder_self": "token", "decoder_self": "queryk", "cross": "queryk"}),
    ({"decoder": RECURRENT}, {"encoder_self": "queryk", "decoder_self": "token", "cross": "token"}),
    (
        {"decoder": {**RECURRENT, "attention": "multihead"}},
        {"encoder_self": "queryk", "decoder_self": "token", "cross": "queryk"},
    ),
    (
        {"encoder": NONE, "decoder": {**RECURRENT, "attention": "multihead"}},
        {"encoder_self": "token", "decoder_self": "token", "cross": "queryk"},
    ),
]


@pytest.mark.parametrize(("keys", "scores"), LINES, ids=str)
def test_one_line_is_for_the_attentions_that_there_are(keys: dict[str, Any], scores: dict[str, str]) -> None:
    found = ModelConfig.model_validate({**keys, "attention": "queryk heterogeneous 1-2"}).attention
    assert {use: getattr(found, use).score.kind for use in scores} == scores


PHRASE = "queryk heterogeneous 1-2"
ONE = recurrent(layers=1)
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"encoder": NONE, "attention": {"encoder_self": PHRASE}}, r"attention\.encoder_self .*\{kind: none\}"),
    ({"encoder": RECURRENT, "attention": {"encoder_self": PHRASE}}, r"attention\.encoder_self .*\{kind: recurrent\}"),
    (
        {"decoder": RECURRENT, "attention": {"decoder_self": PHRASE}},
        r"attention\.decoder_self .*this recurrent decoder$",
    ),
    ({"decoder": RECURRENT, "attention": {"cross": PHRASE}}, r"attention\.cross .*decoder\.attention: multihead would"),
    ({"encoder": NONE, "decoder": RECURRENT, "attention": PHRASE}, r"attention\.cross .*multihead would use it"),
    ({"encoder": RECURRENT, "decoder": RECURRENT, "width": 9, "heads": 3}, "width 9 is odd: a bidirectional layer"),
    ({"encoder": NONE, "width": 9, "heads": 3}, "width 9 is odd: sinusoid"),
    (
        {"encoder": RECURRENT, "decoder": RECURRENT, "embedding_width": 9, "tied": "none", "positions": SINUSOID},
        "embedding_width 9 is odd: sinusoid",
    ),
    ({"encoder": {**RECURRENT, "bidirectional": 3}}, "3 bidirectional layers, of only 2"),
    ({"encoder": {**ONE, "residual": True}}, r"encoder: residual has no effect on one recurrent layer: it adds"),
    ({"encoder": {**ONE, "dropout": 0.1}}, r"encoder: dropout has no effect on one recurrent layer: it acts between"),
    ({"decoder": {**ONE, "residual": True}}, r"decoder: residual has no effect .*leave it out, or set more layers"),
    ({"decoder": {**ONE, "cell": "gru", "dropout": 0.1}}, r"decoder: dropout has no effect on one recurrent layer"),
    ({"decoder": RECURRENT, "phrases": {}}, "phrases .*Transformer decoder"),
    ({"encoder": NONE, "decoder": {**RECURRENT, "initial": "final"}}, r"decoder\.initial: final needs a recurrent"),
    ({"decoder": {**RECURRENT, "initial": "final"}}, "final needs a recurrent encoder"),
    ({"encoder": {**RECURRENT, "layers": 3}, "decoder": {**RECURRENT, "initial": "final"}}, "as many layers"),
    ({"encoder": {**RECURRENT, "cell": "gru"}, "decoder": {**RECURRENT, "initial": "final"}}, "the same cell"),
    ({"encoder": {"kind": "none", "layers": 2}}, r"unknown key encoder\.layers"),
    ({"encoder": {"kind": "none"}, "preset": "tiny", "decoder": {"cell": "gru"}}, r"unknown key decoder\.cell"),
    ({"encoder": {"kind": "recurent"}}, "encoder.kind: 'recurent' is not known; did you mean recurrent"),
    ({"decoder": {"kind": "none"}}, "decoder.kind: 'none' is not known; one of transformer, recurrent"),
    ({"encoder": {**RECURRENT, "cell": "rnn"}}, r"encoder\.cell: .*lstm or gru"),
    ({"encoder": {**RECURRENT, "attention": "mlp"}}, r"unknown key encoder\.attention"),
    ({"encoder": {**RECURRENT, "bidirectional": -1}}, r"encoder\.bidirectional: .*greater than or equal to 0"),
    ({"encoder": {**RECURRENT, "layers": 0}}, r"encoder\.layers: .*greater than or equal to 1"),
    ({"decoder": {**RECURRENT, "attention": "dot"}}, r"decoder\.attention: .*mlp, general, fixed"),
    ({"decoder": {**RECURRENT, "initial": "first"}}, r"decoder\.initial: .*last, final or zero"),
    ({"decoder": {**RECURRENT, "hidden_dropout": 1.0}}, r"decoder\.hidden_dropout: .*less than or equal to 0\.9999"),
    ({"positions": {"source": {"kind": "none", "layout": "t2t"}}}, r"unknown key positions\.source\.layout"),
    ({"positions": {"source": NONE, "kind": "none"}}, r"unknown key positions\.kind"),
]


@pytest.mark.parametrize(("keys", "reason"), MISFITS, ids=[str(row[0]) for row in MISFITS])
def test_what_does_not_fit_is_refused_with_the_reason(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate(ModelConfig, keys)


def test_one_layer_has_the_options_that_act_on_it() -> None:
    variational = {"inputs": 0.1, "states": 0.1}
    more = {"variational_dropout": variational, "residual": False, "dropout": 0.0}
    encoder = {**ONE, "memory_norm": True, **more}
    config = ModelConfig.model_validate({"encoder": encoder, "decoder": {**ONE, "hidden_dropout": 0.3, **more}})
    assert config.encoder.layers == config.decoder.layers == 1


def test_odd_widths_are_for_models_without_halves() -> None:
    for keys in (
        {"encoder": {**RECURRENT, "bidirectional": 0}, "decoder": RECURRENT},
        {"encoder": NONE, "decoder": RECURRENT, "positions": NONE},
        {
            "encoder": {**RECURRENT, "bidirectional": 0},
            "decoder": RECURRENT,
            "embedding_width": 6,
            "positions": SINUSOID,
        },
    ):
        config = ModelConfig.model_validate({**SMALL, "width": 9, "heads": 3, **keys})
        b = batch()
        assert build_model(config, SIZE, SIZE).score(b).isfinite().all()


WHOLE: list[dict[str, Any]] = [
    {"encoder": NONE},
    {"preset": "tiny", "encoder": NONE, "positions": {"source": NONE}},
    {"preset": "small", "encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent"}},
    {"encoder": {"kind": "recurrent", "cell": "gru"}, "decoder": {"kind": "recurrent", "cell": "gru", "initial": "final"}},
    {"encoder": NONE, "decoder": {**RECURRENT, "attention": "multihead"}, "attention": PHRASE},
    {"encoder": RECURRENT, "attention": {"decoder_self": "relative", "cross": PHRASE}},
    {"encoder": NONE, "phrases": {}},
    {"encoder": RECURRENT, "positions": {"source": T2T}},
]  # fmt: skip


@pytest.mark.parametrize("keys", WHOLE, ids=str)
def test_a_stored_configuration_is_the_same_configuration(keys: dict[str, Any]) -> None:
    config = ModelConfig.model_validate(keys)
    stored = config.model_dump(mode="json")
    assert ModelConfig.model_validate(stored) == config
    assert ModelConfig.model_validate(stored).model_dump(mode="json") == stored


@pytest.mark.parametrize(
    ("preset", "layers", "width"), [("tiny", 2, 64), ("small", 3, 256), ("base", 6, 512), ("big", 6, 1024)]
)
def test_presets_give_other_kinds_their_sizes(preset: str, layers: int, width: int) -> None:
    """But no number of layers to an encoder that has none."""
    config = ModelConfig.model_validate({"preset": preset, "encoder": NONE, "decoder": {"kind": "recurrent"}})
    assert (config.width, config.encoder.layers, config.decoder.layers) == (width, 0, layers)
    config = ModelConfig.model_validate({"preset": preset, "encoder": {"kind": "recurrent", "layers": 1}})
    assert (config.encoder.layers, config.decoder.layers, config.decoder.kind) == (1, layers, "transformer")


def test_a_word_or_nothing_said_is_the_paper_s_model() -> None:
    config = ModelConfig.model_validate({"encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent"}})
    encoder, decoder = config.encoder, config.decoder
    assert (encoder.layers, encoder.cell, encoder.bidirectional, encoder.residual) == (6, "lstm", 1, False)
    assert (decoder.layers, decoder.cell, decoder.attention, decoder.initial) == (6, "lstm", "mlp", "last")
    assert (decoder.input_feeding, decoder.residual, decoder.hidden_dropout) == (True, False, 0.2)


def test_model_folders_of_before_read_as_they_were_meant(root: Path) -> None:
    """They said `positions` once for both sides, and `layers` of a Transformer without a kind."""
    _, config = read_config(root / "tests" / "golden" / "model_format_1" / "model")
    assert isinstance(config, ModelConfig)
    assert config.positions.source == config.positions.target == SinusoidConfig(layout="halves")
    assert (config.encoder.kind, config.encoder.layers, config.decoder.kind) == ("transformer", 1, "transformer")
    old = {"positions": {"kind": "sinusoid", "layout": "t2t"}, "encoder": {"layers": 1}}
    config = ModelConfig.model_validate(old)
    assert config.positions.source == config.positions.target == SinusoidConfig(layout="t2t")
    assert (config.encoder.kind, config.encoder.layers) == ("transformer", 1)
