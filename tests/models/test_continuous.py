"""Models with continuous output: the gate from attention and fertility, sizes, and configurations that cannot be."""

from __future__ import annotations

from functools import partial
from typing import Any

import pydantic
import pytest
import torch

from phraseloom.config import validate
from phraseloom.data.tensors import make_batch
from phraseloom.errors import ConfigError, ModelError
from phraseloom.layers.fertility import Tempering
from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_model
from phraseloom.models.translation import TranslationModel
from phraseloom.options.model import ModelConfig, fill_stored

SIZE, M = 9, 10
FERTILITY: dict[str, Any] = {"classes": 4, "widths": [5]}
RECURRENT: dict[str, Any] = {
    "encoder": {"kind": "recurrent", "layers": 2},
    "decoder": {"kind": "recurrent", "layers": 2, "attention": "general"},
}
OUTPUT: dict[str, Any] = {"kind": "word_or_phrase", "fertility": FERTILITY}


def config(**more: Any) -> ModelConfig:
    return ModelConfig.model_validate({"width": 8, "heads": 2, **RECURRENT, "output": OUTPUT, **more})


def table() -> TargetTable:
    rows = torch.nn.functional.normalize(torch.randn(SIZE, M, generator=torch.Generator().manual_seed(1)), dim=-1)
    return TargetTable(rows.double(), SIZE - 3)


def built(**more: Any) -> TranslationModel:
    torch.manual_seed(4)
    return build_model(config(**more), SIZE, SIZE, table()).double().eval()


@pytest.mark.parametrize("classes", [4, 2])
@pytest.mark.parametrize("attention", ["general", "multihead"])
def test_the_gate_is_attention_times_fertility(classes: int, attention: str) -> None:
    """λ_word of each target position by loops (P003 §2.3); EOS of the source counts as a word."""
    decoder = {**RECURRENT["decoder"], "attention": attention}
    model = built(decoder=decoder, output={**OUTPUT, "fertility": {**FERTILITY, "classes": classes}})
    assert model.fertility is not None
    sources, targets = [[4, 5, 6, 7], [8]], [[5, 6, 7], [4]]
    batch = make_batch(sources, targets)
    memory = model.encode(batch.source_BS, batch.source_lengths_B)
    with torch.no_grad():
        _, (weights,), gate = model.decode(batch.target_in_BT, memory, keep_weights=True)
    assert gate is not None
    for b, source in enumerate(sources):
        alone = make_batch([source], [targets[b]])
        embedded, states = model.source_states(alone.source_BS, None)
        logits = [model.fertility(embedded[0, s], states[0, s]) for s in range(len(source))]
        phi = torch.stack(logits).detach().softmax(-1)
        word = [*phi[:, : classes // 2].sum(-1).tolist(), 1.0]
        for t in range(len(targets[b]) + 1):
            attended = weights[b, :, t, : len(word)].mean(0).tolist()
            expected = sum(a * w for a, w in zip(attended, word, strict=True))
            assert gate[b, t].tolist() == pytest.approx([expected, 1 - expected], abs=1e-6)


@pytest.mark.parametrize(("odds", "weight"), [(1.0, 1.0), (0.125, 3.0), (1.0, 4.0)])
@torch.inference_mode()
def test_a_phrase_that_the_gate_hardly_allows_has_its_probability(odds: float, weight: float) -> None:
    """λ_phrase is 10⁻² to 10⁻⁸ here: in float32, in bfloat16, alone and in a batch, log p is that of float64."""
    transformer = {"width": 16, "heads": 2, "encoder": {"layers": 2}, "decoder": {"layers": 2}, "ffn_width": 16}
    model = built(**transformer, output={**OUTPUT, "fertility": {"classes": 2, "widths": [8]}})
    assert model.fertility is not None
    model.fertility.maps[-1].bias[0] = 4.0  # of a word
    score = partial(model.score, tempering=Tempering(odds, weight))
    sources = [[4, 5, 6], [7, 8, 4, 5, 6, 7, 8, 5, 6], [5] * 12]
    targets = [[6, 4], [7, 8, 6], [5, 8]]  # from 6 on phrases
    exact = score(make_batch(sources, targets))
    assert exact.min() < -weight
    model.float()
    together = score(make_batch(sources, targets))
    with torch.autocast("cpu", torch.bfloat16):
        reduced = score(make_batch(sources, targets))
    assert reduced.dtype == torch.float32
    assert torch.allclose(together.double(), exact, atol=1e-4)
    assert torch.allclose(reduced.double(), exact, atol=0.3)
    for row, source, target in zip(together, sources, targets, strict=True):
        [alone] = score(make_batch([source], [target]))
        assert torch.allclose(row[: len(alone)], alone, atol=1e-4)


@torch.inference_mode()
def test_the_smaller_of_the_two_shares_counts() -> None:
    """Of a word as of a phrase: neither is 1 - the other."""
    output = built().output
    hidden, gate = torch.randn(3, 8, dtype=torch.float64), torch.tensor([[1e-9, 1.0], [1.0, 1e-9], [0.0, 1.0]])
    exact = output.log_probs(hidden, gate.double())
    assert exact.isfinite()[:, max(output.forbidden) + 1 :].all()
    found = output.float().log_probs(hidden.float(), gate).double()
    assert torch.allclose(found[:2], exact[:2], atol=1e-5)


def test_the_gate_is_no_part_of_training_words() -> None:
    """The loss of a gated model is that of the same model without a gate: fertility is trained by itself."""
    still = {"decoder": {**RECURRENT["decoder"], "hidden_dropout": 0.0}, "dropout": 0.0}
    gated, plain = built(**still), built(**still, output={"kind": "word_or_phrase"})
    plain.load_state_dict({k: v for k, v in gated.state_dict().items() if not k.startswith("fertility.")})
    batch = make_batch([[4, 5], [6]], [[5], [6, 7]])
    torch.testing.assert_close(gated.train()(batch).objective, plain.train()(batch).objective)


def test_sizes() -> None:
    """Every matrix by its formula: embeddings of width E, two layers of LSTM, general attention, projection to m."""
    e, d, m, source = 6, 8, M, 11
    model = build_model(config(embedding_width=e, output={"kind": "continuous"}), source, SIZE, table())

    def lstm(reads: int, width: int) -> int:
        return 4 * width * (reads + width + 1)

    encoder = 2 * lstm(e, d // 2) + lstm(d, d)
    decoder = lstm(e + d, d) + lstm(d, d) + d * d + (2 * d * d + d) + (2 * 2 * d * d + 2 * 2 * d)
    ends = source * e + (m * e + e) + (d * m + m)
    assert sum(p.numel() for p in model.parameters()) == encoder + decoder + ends


def test_the_range_of_initial_parameters() -> None:
    torch.manual_seed(0)
    model = build_model(config(init_range=0.1), SIZE, SIZE, table())
    for name, parameter in model.named_parameters():
        assert 0 < parameter.abs().max() <= 0.1, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tied": "three_way"}, "vectors of a continuous output are fixed"),
        (
            {"decoder": {"kind": "transformer"}, "encoder": {"kind": "none"}, "embedding_width": 6},
            "embedding_width is for",
        ),
        ({"output": {"kind": "softmax"}, "embedding_width": 6, "tied": "two_way"}, "set tied: none"),
        ({"decoder": {**RECURRENT["decoder"], "attention": "fixed"}}, "there is none"),
        ({"output": {"kind": "continuous", "fertility": FERTILITY}}, "fertility"),
        ({"output": {"kind": "continuous", "loss": "vfm"}}, "vmf"),
    ],
)
def test_what_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        config(**change)


@pytest.mark.parametrize(
    ("loss", "option", "message"),
    [
        ("vmf", {"margin": 0.9}, "margin is for a max-margin loss: loss: max_margin, or a margin_weight"),
        ("l2", {"rival": "nearest"}, "rival is for a max-margin loss"),
        ("vmf_reg2", {"lambda1": 0.5}, "lambda1 is for loss: vmf_reg1 or vmf_reg1_reg2"),
        ("vmf_reg1", {"lambda2": 0.5}, "lambda2 is for loss: vmf_reg2 or vmf_reg1_reg2"),
        ("max_margin", {"lambda_released": 0.5}, "lambda_released is for loss: vmf_released"),
        ("cosine", {"approximation": "bound"}, "approximation is for a von Mises-Fisher loss: loss: vmf, "),
    ],
)
@pytest.mark.parametrize("kind", ["continuous", "word_or_phrase"])
def test_an_option_that_the_loss_does_not_read_is_refused_and_left_out_of_stored_configurations(
    kind: str, loss: str, option: dict[str, Any], message: str
) -> None:
    usual = config(output={"kind": kind, "loss": loss})
    stored = usual.model_dump(mode="json")
    old = {**stored, "output": {**stored["output"], **option}}
    with pytest.raises(ConfigError, match=message):
        validate(ModelConfig, old)
    assert validate(ModelConfig, fill_stored(old)) == usual
    assert fill_stored(stored)["output"] == stored["output"]


@pytest.mark.parametrize(
    "output",
    [
        {"kind": "continuous", "loss": "cosine", "margin_weight": 0.5, "margin": 0.9, "rival": "nearest", "rivals": 5},
        {"kind": "continuous", "loss": "vmf_reg1_reg2", "lambda1": 0.5, "lambda2": 0.5, "approximation": "bound"},
        {"kind": "continuous", "loss": "vmf_released", "lambda_released": 0.5, "approximation": "released"},
        {"kind": "word_or_phrase", "loss": "cosine", "score": "density", "approximation": "bound"},
        {"kind": "word_or_phrase", "score": "released", "margin": 0.9, "approximation": "released"},
    ],
    ids=str,
)
def test_an_option_that_is_read_stays_in_stored_configurations(output: dict[str, Any]) -> None:
    asked = config(output=output)
    assert asked.output.model_dump().items() >= output.items()
    assert validate(ModelConfig, fill_stored(asked.model_dump(mode="json"))) == asked


def test_vectors_of_one_dimension_are_refused() -> None:
    with pytest.raises(
        ModelError, match="needs target vectors of 2 or more dimensions, not 1; prepare the data with wider"
    ):
        build_model(config(), SIZE, SIZE, TargetTable(torch.ones(SIZE, 1)))


@pytest.mark.parametrize("rows", [None, 5])
def test_without_vectors(rows: int | None) -> None:
    some = None if rows is None else TargetTable(torch.eye(rows, M))
    with pytest.raises(ModelError, match="vectors of the 9 target tokens"):
        build_model(config(), SIZE, SIZE, some)
