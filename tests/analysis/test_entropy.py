"""Attention entropy: cases by hand, slow float64 loops over models of every arrangement, and texts in any company."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.analysis import entropy as module
from phraseloom.analysis.attention import Attended, cross_structures, forced_attention
from phraseloom.analysis.entropy import MeanEntropy, attention_entropy, entropy, own_targets, uniform_slots
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.models.build import build_model
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig

SIZES = {"width": 16, "heads": 4, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 3}}
RECURRENT = {"kind": "recurrent", "layers": 1, "cell": "gru"}
VARIANTS: dict[str, dict[str, Any]] = {
    "token": {},
    "homogeneous": {"attention": "queryk homogeneous 13"},
    "heterogeneous": {"attention": "queryk heterogeneous 1-2-3"},
    "interleaved": {"attention": "convkv interleaved 1-2"},
    "recurrent": {"encoder": {"kind": "none"}, "decoder": {**RECURRENT, "attention": "mlp"}},
}
TARGETS = ["zwei Büros .", *LINES[:3]]
TOKEN = Structure.of_orders(2, [1])


def made(folder: Path, variant: dict[str, Any]) -> Translator:
    tokenizer = tiny_tokenizer(folder)
    torch.manual_seed(5)
    size = len(tokenizer.source.vocabulary)
    model = build_model(ModelConfig.model_validate({**SIZES, **variant}), size, size)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Translator(model, tokenizer).with_options(max_length={"constant": 9}, beam=2)


@pytest.fixture(scope="module", params=VARIANTS)
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return made(tmp_path_factory.mktemp("text"), VARIANTS[request.param])


def near(value: MeanEntropy, tolerance: float = 1e-9) -> Any:
    close: list[Any] = [pytest.approx(v, abs=tolerance) for v in (value.steps, value.sentences)]
    return MeanEntropy(*close)


def test_entropy_by_hand() -> None:
    rows = [[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0], [0.5, 0.25, 0.25, 0.0]]
    expected = [math.log(4), 0.0, math.log(2), 1.5 * math.log(2)]
    found = entropy(np.array(rows, np.float32))
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert math.copysign(1, found[1]) == 1
    assert entropy(np.array([[rows[:2]] * 3])).shape == (1, 3, 2)


def of(attended: Sequence[Attended], structures: list[Structure], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The entropies of given attention in place of that of a model."""
    monkeypatch.setattr(module, "cross_structures", lambda model: structures)
    monkeypatch.setattr(module, "forced_attention", lambda *_, **__: iter(attended))
    side = SimpleNamespace(encode_batch=lambda lines: [], subwords=SimpleNamespace(longest_piece=1))
    tokenizer = SimpleNamespace(source=side, target=side)
    given = SimpleNamespace(model=None, tokenizer=tokenizer, config=DecodingConfig())
    given.first_model = lambda: given
    return attention_entropy(given, [""] * len(attended), [""] * len(attended))


def test_heads_and_layers_are_averaged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]
    agreed, parted = np.array([[one], [one]]), np.array([[one], [other]])
    pair = Attended([agreed, parted], [agreed, parted], [0, 1, 2], [0])
    found = of([pair], [TOKEN, TOKEN], monkeypatch).tokens
    log = math.log
    assert [m.steps for m in found.layers] == pytest.approx([0, log(2)])
    assert found.whole.steps == pytest.approx(-(0.75 * log(0.75) + 0.25 * log(0.25)))
    assert found.uniform.steps == pytest.approx(log(4))
    assert [m.steps for layer in found.heads for m in layer] == [0.0] * 4


def test_means_over_steps_and_over_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    sharp = np.array([[[1.0, 0.0]] * 3] * 2)
    even = np.full((2, 2, 2), 0.5)
    pairs = [Attended([a], [a], [0], [0]) for a in (sharp, even)]
    found = of(pairs, [TOKEN], monkeypatch)
    assert (found.steps, found.sentences, found.slots) == (5, 2, None)
    assert found.tokens.layers == [near(MeanEntropy(2 * math.log(2) / 5, math.log(2) / 2))]


def test_uniform_over_slots_by_hand() -> None:
    log = math.log
    for structure, length, expected in (
        (Structure.of_orders(4, [1]), 5, log(5)),
        (Structure.of_orders(4, [1, 2]), 5, log(5 + 4)),
        (Structure.of_orders(4, [1, 2, 3], query_orders=(1, 2)), 5, log(5 + 4 + 3)),
        (Structure.of_orders(4, [1, 2, 3]), 2, log(2 + 1)),
        (Structure(4, ((HeadGroup(1, 0, 2), HeadGroup(2, 2, 4)),), zero_extended=True), 5, log(5) + log(2)),
        (Structure(4, ((HeadGroup(1, 0, 1), HeadGroup(2, 1, 4)),), zero_extended=True), 5,
         log(5) - 0.25 * log(0.25) - 0.75 * log(0.75)),
    ):  # fmt: skip
        assert uniform_slots(structure, length) == pytest.approx(expected)


def slow(found: list[Attended], structures: list[Structure], *, over: str) -> dict[str, list[list[float]]]:
    """By name of the value, for each sentence the entropy of every step, in loops."""

    def one(weights: dict[Any, float]) -> float:
        return -sum(w * math.log(w) for w in weights.values() if w > 0)

    result: dict[str, list[list[float]]] = {}
    for sentence, attended in enumerate(found):
        num_t, num_s = attended.layers[0].shape[1:]
        for t in range(num_t):
            everything: dict[Any, float] = defaultdict(float)
            values: dict[str, float] = {}
            for number, structure in enumerate(structures):
                of_layer: dict[Any, float] = defaultdict(float)
                for h in range(structure.heads):
                    of_head: dict[Any, float] = defaultdict(float)
                    if over == "tokens":
                        of_head.update({s: float(attended.layers[number][h, t, s]) for s in range(num_s)})
                    else:
                        for g, block in enumerate(structure.blocks):
                            order = next(p.order for p in block if p.first <= h < p.last)
                            for j in range(num_s):
                                of_head[order, j] += float(attended.slots[number][h, t, g * num_s + j])
                    values[f"head {number} {h}"] = one(of_head)
                    for key, weight in of_head.items():
                        of_layer[key] += weight / structure.heads
                values[f"layer {number}"] = one(of_layer)
                for key, weight in of_layer.items():
                    everything[key] += weight / len(structures)
            values["whole"] = one(everything)
            for name, value in values.items():
                rows = result.setdefault(name, [])
                rows += [[]] * (sentence + 1 - len(rows))
                rows[sentence] = [*rows[sentence], value]
    return result


def mean(values: Sequence[Sequence[float]]) -> MeanEntropy:
    steps = [v for of_sentence in values for v in of_sentence]
    macro = [sum(of_sentence) / len(of_sentence) for of_sentence in values]
    return MeanEntropy(sum(steps) / len(steps), sum(macro) / len(macro))


def test_slow_reference(translator: Translator) -> None:
    found = attention_entropy(translator, LINES, TARGETS)
    attended, structures = list(forced_attention(translator, LINES, TARGETS)), cross_structures(translator.model)
    is_token = all(structure.is_token for structure in structures)
    assert (found.slots is None) == is_token
    assert found.sentences == len(LINES)
    assert found.steps == sum(a.layers[0].shape[1] for a in attended)
    for over in ["tokens"] if is_token else ["tokens", "slots"]:
        reading, expected = getattr(found, over), slow(attended, structures, over=over)
        assert reading.layers == [near(mean(expected[f"layer {n}"])) for n in range(len(structures))]
        assert reading.whole == near(mean(expected["whole"]))
        heads = [[near(mean(expected[f"head {n} {h}"])) for h in range(s.heads)] for n, s in enumerate(structures)]
        assert reading.heads == heads
        lengths = [a.layers[0].shape[1:] for a in attended]
        even = [[math.log(s) if over == "tokens" else uniform_slots(structures[0], s)] * t for t, s in lengths]
        assert reading.uniform == near(mean(even))


def test_attention_that_knows_nothing_is_uniform(translator: Translator) -> None:
    """Scores of zero: every slot that exists weighs the same, and nothing is more spread than that."""
    trained = attention_entropy(translator, LINES, TARGETS)
    kept = {name: value.clone() for name, value in translator.model.state_dict().items()}
    with torch.no_grad():
        for name, parameter in translator.model.named_parameters():
            if "cross_attention" in name or (".attention." in name and name.startswith("decoder")):
                parameter.zero_()
    try:
        even = attention_entropy(translator, LINES, TARGETS)
    finally:
        translator.model.load_state_dict(kept)
    reading = even.tokens if even.slots is None else even.slots
    assert [*reading.layers, reading.whole] == [near(reading.uniform, 1e-6)] * (len(reading.layers) + 1)
    of_trained = trained.tokens if trained.slots is None else trained.slots
    for value in [*of_trained.layers, of_trained.whole]:
        assert value.steps < of_trained.uniform.steps
    for value in [*trained.tokens.layers, trained.tokens.whole]:
        assert value.steps <= trained.tokens.uniform.steps


def test_company_does_not_matter(translator: Translator) -> None:
    together = attention_entropy(translator, LINES, TARGETS)
    alone = [attention_entropy(translator, [s], [t]) for s, t in zip(LINES, TARGETS, strict=True)]
    for over in ("tokens", "slots") if together.slots else ("tokens",):
        reading, of_alone = getattr(together, over), [getattr(a, over) for a in alone]
        for n, value in enumerate(reading.layers):
            steps = sum(r.layers[n].steps * a.steps for r, a in zip(of_alone, alone, strict=True)) / together.steps
            sentences = sum(r.layers[n].steps for r in of_alone) / len(alone)
            assert value == near(MeanEntropy(steps, sentences), 1e-6)


def test_steps_of_own_translations(translator: Translator) -> None:
    sources = [LINES[0], "", *LINES[1:]]
    own = attention_entropy(translator, sources)
    translations = translator.translate(sources)
    assert (own.own, own.blank, own.sentences) == (True, 1, len(LINES))
    assert own.steps == sum(len(t.tokens) + 1 for t in translations if not t.blank)
    assert own.unfinished == sum(t.hit_max_length for t in translations) > 0
    id_of = translator.tokenizer.target.vocabulary.id
    targets = [[id_of(piece) for piece in t.tokens] for t in translations]
    assert own_targets(translator, sources) == (targets, own.unfinished)
    real = [0, 2, 3, 4]
    attended = list(forced_attention(translator, [sources[n] for n in real], [targets[n] for n in real]))
    expected = slow(attended, cross_structures(translator.model), over="tokens")
    assert own.tokens.layers == [near(mean(expected[f"layer {n}"]), 1e-6) for n in range(len(own.tokens.layers))]


def test_what_is_left_out(translator: Translator) -> None:
    expected = attention_entropy(translator, LINES, TARGETS)
    found = attention_entropy(translator, ["a .", *LINES, ""], [" ", *TARGETS, "a"])
    assert (found.blank, found.sentences, found.steps, found.own) == (2, 4, expected.steps, False)
    assert found.tokens.whole.steps == pytest.approx(expected.tokens.whole.steps, abs=1e-6)
    assert found.tokens.by_sentence["whole"] == [[0, 0], *expected.tokens.by_sentence["whole"], [0, 0]]
    splitting = translator.with_options(max_input_tokens=3, long_lines="split")
    short = attention_entropy(splitting, [*LINES, "a"])
    assert (short.cropped, short.sentences) == (4, 5)
    cropped = splitting.translate(LINES, long_lines="crop")
    assert [len(ids) for ids in own_targets(splitting, LINES)[0]] == [len(t.tokens) for t in cropped]
    for sources, targets in ((["", " "], None), (["a", ""], ["", "a"]), ([], [])):
        with pytest.raises(DataError, match="nothing to analyse"):
            attention_entropy(translator, sources, targets)


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    fixed = made(tmp_path, {"decoder": {**RECURRENT, "attention": "fixed"}})
    with pytest.raises(ModelError, match="attends to no source tokens"):
        attention_entropy(fixed, LINES)
    with pytest.raises(UsageError, match="4 sources, but 1 targets"):
        attention_entropy(made(tmp_path / "t", {}), LINES, ["a"])
