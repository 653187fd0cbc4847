"""Every mechanism must start where tokens can be told apart (`training/start.py`): nothing built in starts collapsed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.contracts.test_encoders_decoders import CASES, GATED
from tests.helpers import in_turn

from phraseloom.data.tensors import Batch
from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_language_model, build_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.recipe import AnyRecipe, LanguageModelRecipe, load_recipe
from phraseloom.training.start import StartReport, _part, _vectors, measure_start, random_batch

SIZE = 60
ATTENTIONS = [
    "token",
    "relative",
    "queryk interleaved 1-2 keys-per-order",
    *(
        f"{score} {form}"
        for score in ("convkv", "queryk")
        for form in (
            "homogeneous 22",
            "heterogeneous 1-2",
            "heterogeneous 1-2-3",
            "interleaved 1-2",
            "heterogeneous 1-2 gated",
        )
    ),
    "queryk-relative heterogeneous 1-2",
]
PHRASES: dict[str, Any] = {
    "none": None,
    "max": {"attention": "none", "transparent": False},
    "mean": {"glance": "mean", "attention": "none", "transparent": False},
    "max-attn": {"transparent": False},
    "max-attn-ta": {},
    "gated": {"attention": "gated", "transparent_tokens": True},
    "token-residual": {"residual": "token"},
    "no-network": {"combination_width": 0},
}


def table() -> TargetTable:
    rows = torch.nn.functional.normalize(torch.randn(SIZE, 10, generator=torch.Generator().manual_seed(8)), dim=-1)
    rows[[0, 2]] = 0
    return TargetTable(rows, SIZE - 20)


def start(model: dict[str, Any], size: int = SIZE) -> StartReport:
    torch.manual_seed(0)
    built = build_model(ModelConfig.model_validate(model), size, size, table() if size == SIZE else None)
    return measure_start(built, source_size=size, target_size=size)


LEAST_GRADIENT_SIGNAL = 0.4  # 65 of the Transformer decoders below have 0.72 or more


def check_far_from_collapse(report: StartReport) -> None:
    parts = dict(report.parts)
    gradient = parts.pop("gradient")
    assert gradient.separation > 0.05, report
    assert gradient.signal > LEAST_GRADIENT_SIGNAL, report
    for part in parts.values():
        assert part.separation > 0.25, report
        assert part.signal > 0.7, report
        assert part.spread is not None and part.spread > 0.3, report


# Recurrent decoders without an encoder, as those of recipes in WEAK below.
WITHOUT_AN_ENCODER = {
    "none+mlp": {"decoder"},
    "none+fixed": {"decoder", "gradient"},
    "none+fixed-not-fed": {"gradient"},
}


@pytest.mark.parametrize("name", CASES)
def test_no_encoder_and_decoder_start_collapsed(name: str) -> None:
    case = CASES[name]
    tied = "two_way" if "output" in case else "none"
    report = start({"width": 32, "heads": 4, "ffn_width": 64, "tied": tied, **case})
    assert set(report.collapsed) <= WITHOUT_AN_ENCODER.get(name, set()), report


@pytest.mark.parametrize(("attention", "norm", "phrases"), in_turn(ATTENTIONS, ["pre", "post"], PHRASES, every=4))
def test_transformers_start_far_from_collapse(attention: str, norm: str, phrases: str) -> None:
    """Two layers a side; `test_no_recipe_starts_collapsed` measures deeper models."""
    layers = {"encoder": {"layers": 2}, "decoder": {"layers": 2}}
    line = attention if "relative" not in attention else {"encoder_self": attention, "decoder_self": attention}
    report = start(
        {
            "width": 32,
            "heads": 4,
            "ffn_width": 128,
            "norm": norm,
            "attention": line,
            "phrases": PHRASES[phrases],
            **layers,
        }
    )
    check_far_from_collapse(report)


OUTPUTS: dict[str, dict[str, Any]] = {
    "max_margin": {"kind": "continuous"},
    "vmf": {"kind": "continuous", "loss": "vmf_reg1_reg2", "hidden_layer": True},
    "cosine": {"kind": "continuous", "loss": "cosine"},
    "word_or_phrase": {"kind": "word_or_phrase", "loss": "vmf"},
    "gated": GATED,
}


@pytest.mark.parametrize(
    ("output", "norm", "phrases", "tied"),
    in_turn(OUTPUTS, ["pre", "post"], ["none", "max-attn-ta"], ["none", "two_way"]),
)
def test_transformers_with_other_outputs_start_far_from_collapse(
    output: str, norm: str, phrases: str, tied: str
) -> None:
    model = {"width": 32, "heads": 4, "ffn_width": 128, "encoder": {"layers": 2}, "decoder": {"layers": 2}}
    report = start({**model, "norm": norm, "phrases": PHRASES[phrases], "tied": tied, "output": OUTPUTS[output]})
    check_far_from_collapse(report)


ENCODERS: dict[str, dict[str, Any]] = {
    "transformer": {"layers": 2},
    "none": {"kind": "none"},
    "lstm": {"kind": "recurrent", "layers": 2},
    "gru": {"kind": "recurrent", "layers": 2, "cell": "gru"},
}
ALL_ENCODERS = {**ENCODERS, "columns": {"kind": "columns", "layers": 2, "width": 16}}


def two_layers(encoder: str, attention: str, phrases: str, **more: Any) -> dict[str, Any]:
    """A model with two layers a side and a Transformer decoder."""
    line: Any = attention
    if "relative" in attention:
        line = {use: attention for use in ("encoder_self", "decoder_self") if (encoder, use) in RELATIVE}
    model = {"width": 32, "heads": 4, "ffn_width": 64, "encoder": ALL_ENCODERS[encoder], "decoder": {"layers": 2}}
    return {**model, "attention": line, "phrases": PHRASES[phrases], **more}


def without_dropout(model: dict[str, Any]) -> StartReport:
    """Separation and spread, and no signal: a seventh of the time of `start`."""
    config = ModelConfig.model_validate(model)
    torch.manual_seed(0)
    built = build_model(config, SIZE, SIZE, table() if "output" in model else None).eval()
    vectors = _vectors(built, random_batch(source_size=SIZE, target_size=SIZE))
    return StartReport({name: _part(name, x, torch.stack([x, x])) for name, x in vectors.items()})


def clean_start(encoder: str, attention: str, phrases: str, **more: Any) -> StartReport:
    return without_dropout(two_layers(encoder, attention, phrases, **more))


# Relative scores are for self-attention, and a Transformer encoder alone has it.
RELATIVE = {("transformer", "encoder_self"), *((encoder, "decoder_self") for encoder in ALL_ENCODERS)}
# The output of a cell is small, σ(o) tanh(c) in an LSTM, and a plain layer above makes it smaller (docs/encoder_free.md).
SMALL = {("lstm", "encoder"): 0.05, ("gru", "encoder"): 0.15}


# Two of 4,992 combinations, measured once, miss the bound of 0.05 on the separation of gradients: this one, with 0.045, and
# the same model with post-norm, with 0.048, which the tests below leave out. `train` warns below 0.01.
KNOWN = {("none", "vmf"): ["convkv interleaved 1-2, max-attn, pre, two_way"]}


def near_collapse(encoder: str, models: Iterable[tuple[str, StartReport]]) -> dict[str, str]:
    """Those of `models` that are not as far from collapse as Transformers are; the spread of recurrent states may be SMALL."""
    wrong = {}
    for name, report in models:
        far = report.parts["gradient"].separation > 0.05 and all(
            part.separation > 0.25 and part.spread is not None and part.spread > SMALL.get((encoder, side), 0.3)
            for side, part in report.parts.items()
            if side != "gradient"
        )
        assert not report.collapsed, (name, report)
        if not far:
            wrong[name] = str(report)
    return wrong


@pytest.mark.parametrize(("encoder", "attention"), in_turn(["none", "lstm", "gru"], ATTENTIONS))
def test_other_encoders_with_phrases_start_far_from_collapse(encoder: str, attention: str) -> None:
    norms = ["pre", "post"] if ATTENTIONS.index(attention) % 2 else ["post", "pre"]  # take turns
    cases = zip(PHRASES, itertools.cycle(norms), strict=False)
    models = ((f"{kind} {norm}", clean_start(encoder, attention, kind, norm=norm)) for kind, norm in cases)
    assert not near_collapse(encoder, models)


@pytest.mark.parametrize(("encoder", "output"), in_turn(ENCODERS, OUTPUTS))
def test_outputs_with_n_grams_start_far_from_collapse(encoder: str, output: str) -> None:
    """Every attention; phrases, norms and tied matrices take turns, so that each stands beside each output."""

    def models() -> Iterator[tuple[str, StartReport]]:
        turns = itertools.cycle(itertools.product(PHRASES, ["pre", "post"]))
        ties = itertools.cycle(["none", "none", "two_way", "two_way"])
        for attention, (kind, norm), tied in zip(ATTENTIONS * 2, turns, ties, strict=False):
            report = clean_start(encoder, attention, kind, norm=norm, tied=tied, output=OUTPUTS[output])
            yield f"{attention}, {kind}, {norm}, {tied}", report

    wrong = near_collapse(encoder, models())
    assert list(wrong) == KNOWN.get((encoder, output), []), wrong


ALL_OUTPUTS: dict[str, dict[str, Any]] = {"softmax": {}, **OUTPUTS}


def transformer_decoders(encoder: str, output: str) -> list[tuple[str, ...]]:
    """The whole grid of this encoder and output; `tied` takes turns. Columns have no phrases."""
    phrases = ["none"] if encoder == "columns" else list(PHRASES)
    ties = itertools.cycle(["none", "two_way", "two_way", "none"])
    cells = itertools.product([encoder], [output], ATTENTIONS, phrases, ["pre", "post"])
    return [(*cell, tied) for cell, tied in zip(cells, ties, strict=False)]


def weak_with_dropout(cells: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Those of `cells` whose start is near collapse or nearly drowns in the noise of dropout."""
    wrong = {}
    for encoder, output, attention, phrases, norm, tied in cells:
        more = {"output": OUTPUTS[output]} if output in OUTPUTS else {}
        report = start(two_layers(encoder, attention, phrases, norm=norm, tied=tied, **more))
        signals = {side: part.signal for side, part in report.parts.items()}
        drowned = signals.pop("gradient") < LEAST_GRADIENT_SIGNAL or min(signals.values()) < 0.7
        name = ", ".join((attention, phrases, norm, tied))
        if drowned or (near_collapse(encoder, [(name, report)]) and name not in KNOWN.get((encoder, output), [])):
            wrong[f"{encoder}, {output}, {name}"] = str(report)
    return wrong


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.full) for part in (2, 3))])
def test_a_sample_of_transformer_decoders_starts_above_the_noise_of_dropout(part: int) -> None:
    every = [cell for pair in itertools.product(ALL_ENCODERS, ALL_OUTPUTS) for cell in transformer_decoders(*pair)]
    assert not weak_with_dropout(random.Random(0).sample(every, 40)[part::4])


@pytest.mark.full
@pytest.mark.parametrize("output", ALL_OUTPUTS)
@pytest.mark.parametrize("encoder", ALL_ENCODERS)
def test_transformer_decoders_start_above_the_noise_of_dropout(encoder: str, output: str) -> None:
    """Every eleventh of this encoder and output, so that attentions, phrases, norms and ties are mixed."""
    assert not weak_with_dropout(transformer_decoders(encoder, output)[::11])


RECURRENT_DECODERS: dict[str, dict[str, Any]] = {
    **{kind: {"attention": kind} for kind in ("mlp", "general", "fixed")},
    **{kind: {"attention": "multihead"} for kind in ATTENTIONS if "relative" not in kind},
}
RECURRENT_STEPS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "lstm-not-fed": {"input_feeding": False},
    "gru": {"cell": "gru"},
    "gru-not-fed": {"cell": "gru", "input_feeding": False},
}
# The output of two plain LSTM layers is small, and so are the queries: these attentions are nearly uniform, and without an
# encoder the gradient is nearly the same at all source words. GRU layers have larger outputs; a few stay below the limit.
UNIFORM = [
    "token",
    *(f"{score} {form}" for score in ("convkv", "queryk") for form in ("homogeneous 22", "heterogeneous 1-2 gated")),
]
# Recurrent decoders without residual connections that start collapsed: (step, encoder, decoder, output): parts.
# - fixed: they read one vector of the source. It drowns the target's if it has unit size; without an encoder, it knows no word.
# - mlp without an encoder: the mean of the source vectors drowns the target's. A softmax and `gated` have 0.0103, at the limit.
COLLAPSED: dict[tuple[str, str, str, str], list[str]] = {
    **{(step, "none", "fixed", output): ["decoder", "gradient"] for step in ("lstm", "lstm-not-fed") for output in ALL_OUTPUTS},
    **{(step, "transformer", "fixed", output): ["decoder"] for step in ("lstm", "lstm-not-fed") for output in ALL_OUTPUTS},
    **{(step, "none", "fixed", output): ["gradient"] for step in ("gru", "gru-not-fed") for output in ALL_OUTPUTS},
    **{("lstm", "none", "mlp", output): ["decoder"] for output in OUTPUTS if output != "gated"},
    **{
        (step, "none", decoder, output): ["gradient"]
        for step in ("lstm", "lstm-not-fed")
        for decoder in UNIFORM
        for output in ALL_OUTPUTS
    },
    ("lstm-not-fed", "none", "queryk interleaved 1-2 keys-per-order", "gated"): ["gradient"],
    ("gru", "none", "convkv heterogeneous 1-2 gated", "word_or_phrase"): ["gradient"],
    ("gru", "none", "queryk heterogeneous 1-2 gated", "word_or_phrase"): ["gradient"],
    ("gru", "none", "queryk heterogeneous 1-2 gated", "cosine"): ["gradient"],
    ("gru-not-fed", "none", "convkv homogeneous 22", "gated"): ["gradient"],
    ("gru-not-fed", "none", "queryk homogeneous 22", "gated"): ["gradient"],
}  # fmt: skip


def measured_often(step: str, encoder: str, output: str) -> bool:
    """What `make test` measures; `make test-full` measures all."""
    return step == "lstm" and output in ("softmax", "vmf")


@pytest.mark.parametrize(
    ("step", "encoder", "output"),
    [
        pytest.param(*case, marks=[] if measured_often(*case) else [pytest.mark.full])
        for case in itertools.product(RECURRENT_STEPS, ALL_ENCODERS, ALL_OUTPUTS)
    ],
)
def test_recurrent_decoders_start_collapsed_only_where_it_is_known(step: str, encoder: str, output: str) -> None:
    """Without residual connections. Exactly the parts in COLLAPSED are: an exception that is no longer needed is deleted."""
    wrong = {}
    for decoder, options in RECURRENT_DECODERS.items():
        if (decoder, output) == ("fixed", "gated"):
            continue  # the gate is weighed by attention
        model = {"width": 32, "heads": 4, "ffn_width": 64, "encoder": ALL_ENCODERS[encoder]}
        model["decoder"] = {"kind": "recurrent", "layers": 2, **options, **RECURRENT_STEPS[step]}
        if options["attention"] == "multihead":
            model["attention"] = {"cross": decoder}
        more = {"tied": "two_way", "output": OUTPUTS[output]} if output in OUTPUTS else {"tied": "none"}
        report = without_dropout({**model, **more})
        known = COLLAPSED.get((step, encoder, decoder, output), [])
        if report.collapsed != known or any(
            part.separation < (0.0 if (decoder, side) == ("fixed", "gradient") else 0.002)
            for side, part in report.parts.items()
        ):
            wrong[decoder] = str(report)
    assert not wrong


RECIPES = Path(__file__).resolve().parents[2] / "recipes"
FOLDERS = sorted(p.name for p in RECIPES.iterdir() if p.is_dir() and p.name != "tables")
ROWS_OF_PAPER_001 = 43_000  # recipes/paper001/README.md


@dataclass(frozen=True)
class Weak:
    """A start that stays below the limits because the system is defined so: `train` warns, and docs/training.md has the reason.

    `separation`: the least separation of the parts named by `parts`, which may be collapsed. All other parts must not be.
    """

    parts: tuple[str, ...]
    separation: float


# The released start of paper 001: U(±√(2 / (V + D))) makes token vectors small beside the sinusoids.
# The start of Sockeye, U(±√(6 / (V + D))), does so too, by √3 less.
# Recurrent decoders without an encoder: the source vectors, of unit size and nearly the same at all steps, drown the target's.
# Without attention as well, only the end of the source reaches the decoder: the gradient at its words is zero.
WEAK = {
    "paper001/*.yaml": Weak(("encoder", "decoder"), 0.002),
    "paper004/*rnn_noenc.yaml": Weak(("decoder",), 0.00003),
    "*/*rnn_noenc.yaml": Weak(("decoder",), 0.0004),
    "*/*rnn_noatt_noenc.yaml": Weak(("decoder", "gradient"), 0.0),
    "paper004/*_transformer.yaml": Weak(("decoder",), 0.005),
    "paper004/table4_*.yaml": Weak(("decoder",), 0.005),
}


def shrinkage(recipe: AnyRecipe) -> float:
    return 8 * recipe.model.heads / recipe.model.width


def rows_of(recipe: AnyRecipe) -> int:
    """The rows of the shrunken model's embeddings.

    U(±√(2 / (V + D))) and U(±√(6 / (V + D))) depend on the rows V: they shrink as the width D does, so that a token vector
    keeps its size beside the sinusoids. The other starts do not depend on V.
    """
    return round(ROWS_OF_PAPER_001 * shrinkage(recipe)) if recipe.model.init.embeddings != "normal" else SIZE


def shrunken(recipe: AnyRecipe, **changes: Any) -> str:
    """The model of a recipe with heads of 8 channels, as JSON: widths in proportion, all else (layers, start, rates) unchanged.

    The range of a uniform start grows as the width shrinks, so that a matrix changes the size of its input by the same factor.
    """
    model = recipe.model.model_dump(mode="json")
    ratio = shrinkage(recipe)
    for part, key in (
        (model, "width"),
        (model, "ffn_width"),
        (model, "embedding_width"),
        (model.get("encoder"), "width"),
        (model.get("phrases"), "combination_width"),
        (model.get("phrases"), "scorer_width"),
    ):
        if part and part.get(key):
            part[key] = max(2, round(part[key] * ratio))
    if model["init"]["range"] is not None:
        model["init"]["range"] = min(1.0, model["init"]["range"] * ratio**-0.5)
    return json.dumps({**model, **changes, "preset": None})


@cache
def start_of(model: str, is_text: bool, size: int) -> StartReport:
    """Many recipes have the same model; each is measured once."""
    if not is_text:
        return start(json.loads(model), size)
    torch.manual_seed(0)
    built = build_language_model(LanguageModelConfig.model_validate_json(model), size)
    return measure_start(built, source_size=size, target_size=size)


def start_of_recipe(path: Path, **changes: Any) -> StartReport:
    recipe = load_recipe(path)
    return start_of(shrunken(recipe, **changes), isinstance(recipe, LanguageModelRecipe), rows_of(recipe))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_recipe_starts_collapsed(folder: str, every: int) -> None:
    """In every run of the tests a third of the recipes."""
    paths = sorted((RECIPES / folder).rglob("*.yaml"))[::every]
    assert paths
    wrong = {}
    for path in paths:
        name, report = path.relative_to(RECIPES).as_posix(), start_of_recipe(path)
        weak = next((weak for pattern, weak in WEAK.items() if fnmatch(name, pattern)), Weak((), 0.0))
        if not set(report.collapsed) <= set(weak.parts) or any(
            report.parts[part].separation < weak.separation for part in weak.parts
        ):
            wrong[name] = str(report)
    assert not wrong


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("paper001/table1_en-de_max_attn_ta", ["encoder", "decoder"]),
        ("paper001/table2_en-de_mean", ["encoder", "decoder"]),
        ("paper004/table1_fi-en_transformer", ["decoder"]),
        ("paper004/table4_fi-en_encoder_5", ["decoder"]),
        ("paper004/table1_fi-en_rnn_noenc", ["decoder"]),
        ("multi30k/encoder_free/rnn_noenc", ["decoder"]),
        ("multi30k/encoder_free/rnn_noatt_noenc", ["decoder", "gradient"]),
    ],
)
def test_weak_starts_are_known(name: str, parts: list[str]) -> None:
    """An exception that is no longer needed is deleted."""
    assert start_of_recipe(RECIPES / f"{name}.yaml").collapsed == parts


@pytest.mark.parametrize("name", ["table1_en-de_base", "table1_en-de_max_attn_ta", "table2_en-de_mean"])
def test_paper_001_under_our_default_start_is_far_from_collapse(name: str) -> None:
    report = start_of_recipe(RECIPES / "paper001" / f"{name}.yaml", init={"kind": "fan_in_uniform"})
    assert not report.collapsed, report
    assert all(part.separation > 0.05 for part in report.parts.values()), report


@pytest.mark.parametrize("name", ["table1_en-de_max_attn_ta", "table2_en-de_mean"])
def test_a_shrunken_recipe_shows_a_start_that_collapses(name: str) -> None:
    report = start_of_recipe(RECIPES / "paper001" / f"{name}.yaml", init={"kind": "xavier_uniform"})
    assert report.collapsed == ["encoder", "decoder"]


@pytest.mark.parametrize("encoder", ["columns", "lstm", "transformer"])
def test_segmental_models_do_not_start_collapsed(encoder: str) -> None:
    report = start({"width": 32, "heads": 4, "ffn_width": 64, "tied": "none", "encoder": CASES[f"{encoder}+mlp"]["encoder"],
                    "decoder": {"kind": "segmental", "layers": 1, "max_segment": 2}})  # fmt: skip
    assert not report.collapsed, report


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_language_models_do_not_start_collapsed(attention: str) -> None:
    torch.manual_seed(0)
    config = {"width": 32, "heads": 4, "ffn_width": 64, "decoder": {"layers": 3}, "attention": attention}
    model = build_language_model(LanguageModelConfig.model_validate(config), SIZE)
    assert not measure_start(model, source_size=SIZE, target_size=SIZE).collapsed


def test_a_deep_plain_lstm_keeps_its_signal() -> None:
    """Six layers under U(±1/√D) shrink their input to a spread of 0.002; gate by gate under Glorot's they do not."""
    stack = {"kind": "recurrent", "layers": 6}
    model = {"width": 64, "heads": 4, "encoder": stack, "decoder": {"layers": 1}}
    assert not start(model).collapsed
    assert start({**model, "init": {"recurrent": "fan_in_uniform"}}).collapsed == ["encoder"]


def test_a_collapsed_start_is_seen() -> None:
    """Source phrases under Glorot's distribution, post-norm as in paper 001: every token gets one vector."""
    model = {"width": 128, "heads": 4, "ffn_width": 512, "norm": "post", "embedding_norm": True, "phrases": {}}
    collapsed = start({**model, "init": "xavier_uniform"})
    assert collapsed.collapsed == ["encoder", "decoder"]
    assert collapsed.parts["encoder"].separation < 0.002
    assert collapsed.parts["encoder"].signal < 0.1
    assert not start(model).collapsed


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("span", [1e-30, 1e-3, 0.01])
def test_embeddings_near_zero_are_flagged(span: float, norm: str) -> None:
    """Sinusoids alone separate the positions of a sentence, and normalisation gives them unit size."""
    model = {"width": 64, "heads": 4, "norm": norm, "init": {"kind": "uniform", "range": span}}
    report = start(model)
    assert {"encoder", "decoder"} <= set(report.collapsed), report
    assert all(report.parts[side].separation < 0.001 for side in ("encoder", "decoder")), report


class AdditiveModel(torch.nn.Module):
    """A model whose states have a vector for each position and each sentence, and `share` of one for each token."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.source_embedding, self.share = torch.nn.Embedding(SIZE, 32), share
        self.position = torch.nn.Parameter(torch.randn(100, 32))

    def states(self, tokens_BS: torch.Tensor, embedded_BSD: torch.Tensor) -> torch.Tensor:
        sentence_B1D = torch.nn.functional.embedding(tokens_BS, self.source_embedding.weight).mean(1, keepdim=True)
        return self.position[: tokens_BS.shape[1]] + 3 * sentence_B1D + self.share * embedded_BSD

    def token_states(self, batch: Batch) -> dict[str, torch.Tensor]:
        sides = {"encoder": batch.source_BS, "decoder": batch.target_in_BT}
        return {name: self.states(tokens, self.source_embedding(tokens)) for name, tokens in sides.items()}

    def loss(self, batch: Batch) -> Any:
        states_BSD = self.states(batch.source_BS, self.source_embedding(batch.source_BS))
        return SimpleNamespace(objective=(self.position[: states_BSD.shape[1]] * states_BSD).sum())


def test_a_model_that_separates_only_positions_and_sentences_is_flagged() -> None:
    torch.manual_seed(5)
    report = measure_start(AdditiveModel(0.0), source_size=SIZE, target_size=SIZE)
    assert report.collapsed == ["encoder", "decoder", "gradient"], report
    assert all(part.separation < 1e-12 for part in report.parts.values()), report
    report = measure_start(AdditiveModel(1.0), source_size=SIZE, target_size=SIZE)
    assert report.parts["encoder"].separation > 0.2 and report.parts["decoder"].separation > 0.2, report
    assert report.parts["gradient"].collapsed, "the same gradient for every sentence"


def test_no_token_occurs_twice_at_a_position() -> None:
    for size in (5, 8, SIZE, 43_000):
        batch = random_batch(source_size=size, target_size=SIZE)
        for column in batch.source_BS[:, :-1].T.tolist() + batch.target_in_BT[:, 1:].T.tolist():
            assert len(set(column)) == len(column) >= 2


def test_the_separation_of_independent_vectors_is_one() -> None:
    """Whatever the number of sentences and positions: their means are estimated, and the estimate is corrected for that."""
    vectors = torch.randn(400, 3, 4, 50, generator=torch.Generator().manual_seed(1))
    separations = [_part("encoder", x, torch.stack([x, x])).separation for x in vectors]
    assert sum(separations) / len(separations) == pytest.approx(1.0, abs=0.01)


def test_measuring_changes_nothing() -> None:
    torch.manual_seed(3)
    model = build_model(ModelConfig.model_validate({"width": 16, "heads": 2, "ffn_width": 16}), SIZE, SIZE)
    model.train()
    before = torch.random.get_rng_state()
    first = measure_start(model, source_size=SIZE, target_size=SIZE)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert measure_start(model, source_size=SIZE, target_size=SIZE) == first
