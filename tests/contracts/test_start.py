"""Every mechanism must start where tokens can be told apart (`training/start.py`): nothing built in starts collapsed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts.test_encoders_decoders import CASES, GATED

from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_language_model, build_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.recipe import AnyRecipe, LanguageModelRecipe, load_recipe
from phraseloom.training.start import StartReport, measure_start

SIZE = 60
ATTENTIONS = ["token", "relative", *(f"{s} {a}" for s in ("convkv", "queryk")
              for a in ("homogeneous 22", "heterogeneous 1-2", "heterogeneous 1-2-3", "interleaved 1-2"))]  # fmt: skip
PHRASES: dict[str, Any] = {
    "none": None,
    "max": {"attention": "none", "transparent": False},
    "mean": {"glance": "mean", "attention": "none", "transparent": False},
    "max-attn": {"transparent": False},
    "max-attn-ta": {},
    "gated": {"attention": "gated", "transparent_tokens": True},
    "token-residual": {"residual": "token"},
}


def table() -> TargetTable:
    rows = torch.nn.functional.normalize(torch.randn(SIZE, 10, generator=torch.Generator().manual_seed(8)), dim=-1)
    rows[[0, 2]] = 0
    return TargetTable(rows, SIZE - 20)


def start(model: dict[str, Any]) -> StartReport:
    torch.manual_seed(0)
    built = build_model(ModelConfig.model_validate(model), SIZE, SIZE, table())
    return measure_start(built, source_size=SIZE, target_size=SIZE)


@pytest.mark.parametrize("name", CASES)
def test_no_encoder_and_decoder_start_collapsed(name: str) -> None:
    case = CASES[name]
    tied = "two_way" if "output" in case else "none"
    report = start({"width": 32, "heads": 4, "ffn_width": 64, "tied": tied, **case})
    assert not report.collapsed, report


@pytest.mark.parametrize("phrases", PHRASES)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_transformers_start_far_from_collapse(attention: str, norm: str, phrases: str) -> None:
    layers = {"encoder": {"layers": 3}, "decoder": {"layers": 3}}
    line = attention if attention != "relative" else {"encoder_self": "relative", "decoder_self": "relative"}
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
    for part in report.parts.values():
        assert part.separation > 0.25, report
        assert part.signal > 0.7, report
        assert part.spread > 0.3, report
    assert report.gradient > 0.1, report


OUTPUTS: dict[str, dict[str, Any]] = {
    "max_margin": {"kind": "continuous"},
    "vmf": {"kind": "continuous", "loss": "vmf_reg1_reg2", "hidden_layer": True},
    "cosine": {"kind": "continuous", "loss": "cosine"},
    "word_or_phrase": {"kind": "word_or_phrase", "loss": "vmf"},
    "gated": GATED,
}


@pytest.mark.parametrize("tied", ["none", "two_way"])
@pytest.mark.parametrize("phrases", ["none", "max-attn-ta"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_transformers_with_other_outputs_start_far_from_collapse(
    output: str, norm: str, phrases: str, tied: str
) -> None:
    model = {"width": 32, "heads": 4, "ffn_width": 128, "encoder": {"layers": 3}, "decoder": {"layers": 3}}
    report = start({**model, "norm": norm, "phrases": PHRASES[phrases], "tied": tied, "output": OUTPUTS[output]})
    for part in report.parts.values():
        assert part.separation > 0.25, report
        assert part.signal > 0.7, report
        assert part.spread > 0.3, report
    assert report.gradient > 0.05, report


RECIPES = Path(__file__).resolve().parents[2] / "recipes"
FOLDERS = sorted(p.name for p in RECIPES.iterdir() if p.is_dir() and p.name != "tables")
# All that their decoders read of a source is the embedding of its end, which is large and the same at every step.
END_OF_SOURCE_ALONE = {
    "multi30k/encoder_free/rnn_noatt_noenc.yaml",
    "paper004/table1_fi-en_rnn_noatt_noenc.yaml",
}


def shrunken(recipe: AnyRecipe, **changes: Any) -> str:
    """The model of a recipe with heads of 8 channels, as JSON: widths in proportion, all else (layers, start, rates) unchanged.

    The range of a uniform start grows as the width shrinks, so that a matrix changes the size of its input by the same factor.
    """
    model = recipe.model.model_dump(mode="json")
    ratio = 8 * model["heads"] / model["width"]
    for part, key in (
        (model, "width"),
        (model, "ffn_width"),
        (model, "embedding_width"),
        (model.get("encoder"), "width"),
        (model.get("phrases"), "combination_width"),
        (model.get("phrases"), "scorer_width"),
    ):
        if part and part.get(key) is not None:
            part[key] = max(2, round(part[key] * ratio))
    if model["init"]["range"] is not None:
        model["init"]["range"] = min(1.0, model["init"]["range"] * ratio**-0.5)
    return json.dumps({**model, **changes, "preset": None})


@cache
def start_of(model: str, is_text: bool) -> StartReport:
    """Many recipes have the same model; each is measured once."""
    if not is_text:
        return start(json.loads(model))
    torch.manual_seed(0)
    built = build_language_model(LanguageModelConfig.model_validate_json(model), SIZE)
    return measure_start(built, source_size=SIZE, target_size=SIZE)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_recipe_starts_collapsed(folder: str) -> None:
    paths = sorted((RECIPES / folder).rglob("*.yaml"))
    assert paths
    collapsed = {}
    for path in paths:
        recipe = load_recipe(path)
        report = start_of(shrunken(recipe), isinstance(recipe, LanguageModelRecipe))
        if report.collapsed:
            collapsed[path.relative_to(RECIPES).as_posix()] = report
    expected = {name for name in END_OF_SOURCE_ALONE if name.startswith(f"{folder}/")}
    assert set(collapsed) == expected, {name: str(report) for name, report in collapsed.items()}
    assert all(report.collapsed == ["decoder"] for report in collapsed.values())


@pytest.mark.parametrize("name", ["table1_en-de_max_attn_ta", "table2_en-de_mean"])
def test_a_shrunken_recipe_shows_a_start_that_collapses(name: str) -> None:
    recipe = load_recipe(RECIPES / "paper001" / f"{name}.yaml")
    model = shrunken(recipe, init={"kind": "xavier_uniform"})
    assert start_of(model, False).collapsed == ["encoder", "decoder"]


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
