"""Activation shares: weights made by hand with known shares, a slow loop, and models of every arrangement."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis import explain_kinds
from tests.helpers import LINES, tiny_tokenizer
from torch import Tensor

from phraseloom.analysis.activation import QUADRANTS, USES, activation_shares, sentence_sums, shares
from phraseloom.analysis.attention import look_in_batches
from phraseloom.cli.analyse.activation import render
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig

TT, TP, PT, PP = QUADRANTS
HETEROGENEOUS = Structure.of_orders(1, [1, 2])
INTERLEAVED = Structure.of_orders(1, [1, 2], query_orders=(1, 2))
HOMOGENEOUS = Structure(3, ((HeadGroup(1, 0, 1), HeadGroup(2, 1, 3)),), zero_extended=True)
STRUCTURES = {
    "token": Structure.of_orders(2, [1]),
    "heterogeneous": Structure.of_orders(2, [1, 2, 3]),
    "interleaved": Structure.of_orders(2, [1, 2], query_orders=(1, 2)),
    "three orders": Structure.of_orders(2, [1, 2, 3], query_orders=(1, 2, 3)),
    "homogeneous": HOMOGENEOUS,
}


def all_of(weights: Tensor, structure: Structure, lengths: list[int], **how: Any) -> Any:
    mass, active = sentence_sums(weights, structure, torch.tensor(lengths), **{"tau": 0.1, **how})
    return shares(mass, active, structure)


def test_heterogeneous_by_hand() -> None:
    # two queries, three tokens: three unigram slots, then three places of bigrams, the first of which is none
    weights = torch.tensor([[[[0.5, 0.05, 0.05, 0.0, 0.3, 0.1], [0.09, 0.01, 0.0, 0.0, 0.0, 0.9]]]])
    found = all_of(weights, HETEROGENEOUS, [2])
    assert found.mass == pytest.approx({TT: 35.0, TP: 65.0}, abs=1e-4)
    assert found.joint == pytest.approx(found.mass)
    assert found.activation == pytest.approx({TT: 100 / 3, TP: 200 / 3})  # 0.5 | 0.3 0.9; 0.1 is not above 0.1
    assert found.orders == pytest.approx({"1-1": 35.0, "1-2": 65.0}, abs=1e-4)
    assert all_of(weights, HETEROGENEOUS, [2], tau=0.5).activation == {TT: 0.0, TP: 100.0}


def test_interleaved_by_hand() -> None:
    rows = [
        [0.8, 0.0, 0.0, 0.2],  # token 0
        [0.4, 0.0, 0.0, 0.6],  # token 1
        [0.7, 0.0, 0.0, 0.3],  # the bigram that would end at token 0: there is none
        [0.05, 0.05, 0.0, 0.9],  # bigram of tokens 0 and 1
    ]
    found = all_of(torch.tensor([[rows]]), INTERLEAVED, [2])
    assert found.mass == pytest.approx({TT: 60.0, TP: 40.0, PT: 10.0, PP: 90.0}, abs=1e-4)
    assert found.joint == pytest.approx({TT: 40.0, TP: 80 / 3, PT: 10 / 3, PP: 30.0}, abs=1e-4)
    assert found.activation == pytest.approx({TT: 40.0, TP: 40.0, PT: 0.0, PP: 20.0})


def test_homogeneous_heads_count_by_their_order() -> None:
    weights = torch.tensor([[[[0.9, 0.1]], [[1.0, 0.0]], [[0.5, 0.5]]]])
    found = all_of(weights, HOMOGENEOUS, [1])
    assert found.mass == pytest.approx({TT: 100 / 3, TP: 200 / 3}, abs=1e-4)
    assert found.activation == pytest.approx({TT: 25.0, TP: 75.0})
    # the heads' mean: 0.3 0.03 | 0.5 0.17
    assert all_of(weights, HOMOGENEOUS, [1], mean_heads=True).activation == pytest.approx({TT: 100 / 3, TP: 200 / 3})


def test_sentences_count_alike_whatever_their_length() -> None:
    weights = torch.zeros(2, 1, 4, 8)
    weights[0, :, 0, 0] = 1  # one query: all on a token
    weights[1, :, :, 5] = 1  # four queries: all on a bigram
    weights[0, :, 1:, 6] = 1  # padding
    found = all_of(weights, HETEROGENEOUS, [1, 4])
    assert found.mass == found.activation == {TT: 50.0, TP: 50.0}


def test_sentences_without_the_queries_or_active_cells_are_left_out() -> None:
    weights = torch.zeros(2, 1, 4, 4)
    weights[0, :, 0, 0] = 1  # one token: no bigram query
    weights[1, :, 0, :2] = weights[1, :, 1, :2] = 0.5
    weights[1, :, 3, 3] = 1
    found = all_of(weights, INTERLEAVED, [1, 2], tau=0.6)
    assert found.mass == {TT: 100.0, TP: 0.0, PT: 0.0, PP: 100.0}
    assert found.activation == {TT: 50.0, TP: 0.0, PT: 0.0, PP: 50.0}
    assert found.silent == 0
    found = all_of(weights * 0.05, INTERLEAVED, [1, 2])
    assert (found.activation, found.silent) == (dict.fromkeys(QUADRANTS), 2)


def random_weights(structure: Structure, lengths: list[int], num_keys: int) -> Tensor:
    """Rows sum to one over the slots that exist; what does not exist is zero, padded queries hold noise."""
    queries, keys = max(lengths), num_keys
    shape = (len(lengths), structure.heads, len(structure.query_orders), queries, len(structure.blocks), keys)
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    for g, block in enumerate(structure.blocks):
        for part in block:
            if not structure.zero_extended:
                logits[:, part.first : part.last, :, :, g, : part.order - 1] = -torch.inf
    return logits.flatten(4).softmax(-1).flatten(2, 3)


def slow(weights: Tensor, structure: Structure, lengths: list[int], tau: float) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, list[float]]] = {r: {q: [] for q in QUADRANTS} for r in ("mass", "joint", "activation")}
    slots = structure.split(weights).numpy()
    for b, length in enumerate(lengths):
        mass, count = dict.fromkeys(QUADRANTS, 0.0), dict.fromkeys(QUADRANTS, 0)
        for h, m, i, g, j in itertools.product(*map(range, slots.shape[1:])):
            query = structure.query_orders[m]
            slot = next(p.order for p in structure.blocks[g] if p.first <= h < p.last)
            if i < length and i >= query - 1:
                quadrant = f"{'token' if query == 1 else 'phrase'}-to-{'token' if slot == 1 else 'phrase'}"
                mass[quadrant] += slots[b, h, m, i, g, j]
                count[quadrant] += slots[b, h, m, i, g, j] > tau
        for q in QUADRANTS:
            same = [other for other in QUADRANTS if other.split("-")[0] == q.split("-")[0]]
            for reading, value, of in (
                ("mass", mass, same),
                ("joint", mass, QUADRANTS),
                ("activation", count, QUADRANTS),
            ):
                if total := sum(value[o] for o in of):
                    sums[reading][q].append(100 * value[q] / total)
    return {r: {q: sum(v) / len(v) for q, v in found.items() if v} for r, found in sums.items()}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("tau", [0.0, 0.1, 0.3])
def test_slow_reference(name: str, tau: float) -> None:
    structure, lengths = STRUCTURES[name], [5, 1, 4, 2]
    weights = random_weights(structure, lengths, num_keys=6)
    found, expected = all_of(weights, structure, lengths, tau=tau), slow(weights, structure, lengths, tau)
    for reading in ("mass", "joint", "activation"):
        values = getattr(found, reading)
        assert values == pytest.approx({q: expected[reading][q] for q in values})
        assert all(value == 0 for q, value in expected[reading].items() if q not in values)
        assert sum(values.values()) == pytest.approx(200 if reading == "mass" and PT in values else 100)
    if name == "token":
        assert found.mass == found.joint == found.activation == {TT: 100.0}


@pytest.fixture(
    scope="module", params=["token", "queryk homogeneous 22", "convkv heterogeneous 1-2-3", "queryk interleaved 1-2"]
)
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 4, "ffn_width": 32, "encoder": {"layers": 3}, "decoder": {"layers": 2}}
    config = ModelConfig.model_validate({**sizes, "attention": request.param})
    size = len(tokenizer.source.vocabulary)
    return Translator(build_model(config, size, size), tokenizer)


def test_a_whole_model(translator: Translator) -> None:
    sources, targets = [*LINES, "", "a ."], ["zwei Büros .", *LINES[:3], "a", ""]
    found = activation_shares(translator, sources, targets)
    assert (found.sentences, found.blank, found.cropped) == (4, 2, 0)
    assert [len(found.uses[use]) for use in ("encoder-self", "decoder-self", "cross")] == [3, 2, 2]
    for layers in found.uses.values():
        assert [s.layer for s in layers] == list(range(1, len(layers) + 1))
        for layer in layers:
            assert sum(v or 0 for v in layer.joint.values()) == pytest.approx(100)
        whole = found.whole[next(use for use in found.uses if found.uses[use] is layers)]
        assert whole.layer == 0
        for quadrant, value in whole.mass.items():  # every layer has the same queries, and a row sums to one
            assert value == pytest.approx(sum(layer.mass[quadrant] or 0 for layer in layers) / len(layers), abs=1e-4)
        rows = whole.by_sentence["mass"]["token-to-token"]
        assert [d for _, d in rows] == [1, 1, 1, 1, 0, 0]  # a row for each line
        assert all(layer.silent < 4 for layer in [whole, *layers])  # none of a line that is left out
        assert whole.mass["token-to-token"] == pytest.approx(sum(n for n, _ in rows) / sum(d for _, d in rows))
    # one sentence after the other gives the same mean
    alone = [
        activation_shares(translator, [s], [t]).uses["cross"][1] for s, t in zip(sources[:4], targets, strict=False)
    ]
    for quadrant, rows in found.uses["cross"][1].by_sentence["joint"].items():
        expected = [a.by_sentence["joint"][quadrant][0] for a in alone]
        torch.testing.assert_close(torch.tensor(rows[:4]), torch.tensor(expected), atol=1e-4, rtol=0)
    for quadrant, value in found.uses["cross"][1].joint.items():
        assert value == pytest.approx(sum(a.joint[quadrant] or 0 for a in alone) / 4, abs=1e-4)
    only = activation_shares(translator, sources, targets, uses=["cross"])
    assert only.uses == {"cross": found.uses["cross"]} and only.whole == {"cross": found.whole["cross"]}


@pytest.mark.parametrize("kind", [kind for kind in explain_kinds.OTHERS if not kind.startswith("segmental")])
def test_attention_that_a_model_lacks_is_left_out(kind: str, tmp_path: Path) -> None:
    other = explain_kinds.translator_of(kind, tiny_tokenizer(tmp_path))
    there = [use for use in USES if getattr(maps_of(other), use.replace("-", "_"))]
    if not there:
        with pytest.raises(ModelError, match=r"this model has no .* attention$"):
            activation_shares(other, LINES[:2], LINES[1:3])
        return
    found = activation_shares(other, LINES[:2], LINES[1:3])
    assert list(found.uses) == there and all(render(found))
    for use in set(USES) - set(there):
        with pytest.raises(ModelError, match=f"this model has no {use} attention"):
            activation_shares(other, LINES[:2], LINES[1:3], uses=[use])


def maps_of(other: Translator) -> Any:
    ids = [other.tokenizer.source.encode(LINES[0])]
    _, _, maps = next(iter(look_in_batches(other, ids, ids, None, sentences=1, tokens=99)))
    return maps


def test_what_cannot_be_looked_at(translator: Translator) -> None:
    with pytest.raises(UsageError, match="2 sources, but 1 targets"):
        activation_shares(translator, ["a", "b"], ["c"])
    with pytest.raises(DataError, match="no pair of lines"):
        activation_shares(translator, ["a", " "], ["", "b"])
    for tau in (-0.1, 1.0, float("nan")):
        with pytest.raises(UsageError, match="tau"):
            activation_shares(translator, ["a"], ["b"], tau=tau)
    cropped = activation_shares(translator.with_options(max_input_tokens=3), ["the old man sleeps ."], ["a"])
    assert cropped.cropped == 1


def test_a_broken_model_is_refused(translator: Translator) -> None:
    weight = next(p for n, p in translator.model.decoder.layers[0].cross_attention.named_parameters())
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(torch.nan)
        with pytest.raises(ModelError, match="NaN"):
            activation_shares(translator, ["a"], ["b"])
    finally:
        with torch.no_grad():
            weight.copy_(kept)
