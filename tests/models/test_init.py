"""`model.init`: what is drawn from where. And that models and runs of earlier versions are read."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_tokenizer
from torch import nn

from phraseloom.config import ConfigError, validate
from phraseloom.files import atomic_write_text
from phraseloom.layers.feedforward import FeedForward
from phraseloom.layers.phrase_representation import AttentiveCombination
from phraseloom.layers.recurrent import Cell
from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_language_model, build_model
from phraseloom.models.store import read_config, save_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import InitConfig, ModelConfig, fill_stored
from phraseloom.recipe import load_recipe
from phraseloom.report.run.folders import describe
from phraseloom.training.run_folder import dump_yaml, prepare_folder

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

SIZES: dict[str, Any] = {"width": 64, "heads": 4, "ffn_width": 256, "encoder": {"layers": 2}, "decoder": {"layers": 2}}
RECURRENT: dict[str, Any] = {"width": 64, "heads": 4, "encoder": {"kind": "recurrent", "layers": 2},
                             "decoder": {"kind": "recurrent", "layers": 2}}  # fmt: skip


def model(keys: dict[str, Any], size: int = 200) -> Any:
    torch.manual_seed(0)
    return build_model(ModelConfig.model_validate(keys), size, size)


def is_uniform(matrix: torch.Tensor, bound: float) -> bool:
    largest, deviation = matrix.abs().max().item(), matrix.std().item()
    return 0.95 * bound < largest <= bound * (1 + 1e-6) and deviation == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize(
    ("kind", "up", "down"),
    [("fan_in_uniform", 1 / 8, 1 / 16), ("xavier_uniform", math.sqrt(6 / 320), math.sqrt(6 / 320))],
)
def test_matrices_are_drawn_by_their_fans(kind: str, up: float, down: float) -> None:
    built = model({**SIZES, "init": kind, "phrases": {}})
    for part in (m for m in built.modules() if isinstance(m, FeedForward)):
        assert is_uniform(part.up.weight, up)
        assert is_uniform(part.down.weight, down)
        assert not part.up.bias.any()
    assert built.source_embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.03)


COLUMNS: dict[str, Any] = {"width": 64, "embedding_width": 32, "reordering": {"window": 3}, "tied": "none",
                           "encoder": {"kind": "columns", "layers": 2, "cell": "gru", "width": 48},
                           "decoder": {"kind": "segmental", "layers": 2, "cell": "gru", "connect": True}}  # fmt: skip


@pytest.mark.parametrize("keys", [{**SIZES, "phrases": {}}, RECURRENT, COLUMNS])
def test_the_kind_decides_how_every_matrix_is_drawn(keys: dict[str, Any]) -> None:
    """The two kinds differ in their range by 5 % or more for all of these shapes; the joining layer has one range."""
    largest = [
        {
            n: m.weight.abs().max().item()
            for n, m in model({**keys, "init": kind}).named_modules()
            if isinstance(m, nn.Linear)
        }
        for kind in ("fan_in_uniform", "xavier_uniform")
    ]
    same = [name for name, value in largest[0].items() if abs(value / largest[1][name] - 1) < 0.05]
    assert largest[0] and same == (["decoder.hidden"] if keys is RECURRENT else [])
    if keys is RECURRENT:
        assert largest[0]["decoder.hidden"] == pytest.approx(math.sqrt(6 / 192), rel=0.01)


@pytest.mark.parametrize("hidden_layer", [False, True])
def test_the_projection_of_a_continuous_output_follows_the_kind(hidden_layer: bool) -> None:
    table = TargetTable(nn.functional.normalize(torch.randn(50, 300), dim=1))
    output = {"kind": "continuous", "hidden_layer": hidden_layer}
    for kind, first, second in (("fan_in_uniform", 1 / 8, 300**-0.5), ("xavier_uniform", math.sqrt(6 / 364), 0.1)):
        config = ModelConfig.model_validate({**SIZES, "tied": "two_way", "init": kind, "output": output})
        built = build_model(config, 50, 50, table)
        assert not any(m.bias.any() for m in built.modules() if isinstance(m, nn.Linear) and m.bias is not None)
        project = built.output.project
        assert is_uniform((project[0] if hidden_layer else project).weight, first)
        if hidden_layer:
            assert is_uniform(project[2].weight, second)


def test_uniform_leaves_layer_normalisation_alone_and_does_not_scale_embeddings() -> None:
    built = model({**SIZES, "init": {"kind": "uniform", "range": 0.1}})
    norms = [m for m in built.modules() if isinstance(m, nn.LayerNorm)]
    assert norms
    assert all(bool((m.weight == 1).all()) and not m.bias.any() for m in norms)
    assert is_uniform(built.source_embedding.weight, 0.1)
    embedded = nn.functional.embedding(torch.tensor([[7]]), built.source_embedding.weight)
    built.source_embedding.positions = None
    assert torch.equal(built.eval().source_embedding(torch.tensor([[7]])), embedded)
    scaled = model({**SIZES, "init": {"kind": "uniform", "range": 0.1}, "scale_embeddings": True})
    scaled.source_embedding.positions = None
    assert torch.equal(scaled.eval().source_embedding(torch.tensor([[7]])), 8 * embedded)


@pytest.mark.parametrize(("name", "square"), [("small_uniform", 2), ("xavier_uniform", 6)])
def test_uniform_embeddings(name: str, square: int) -> None:
    built = model({**SIZES, "init": {"embeddings": name}, "tied": "two_way"})
    for matrix in (built.source_embedding.weight, built.target_embedding.weight):
        assert is_uniform(matrix, math.sqrt(square / 264))


def test_orthogonal_recurrent_matrices() -> None:
    for cell in (m for m in model(RECURRENT).modules() if isinstance(m, Cell)):
        for gate in cell.hidden_weight.split(cell.width):
            assert torch.allclose(gate @ gate.T, torch.eye(cell.width), atol=1e-5)
        assert is_uniform(cell.input_weight, math.sqrt(6 / (cell.input_width + cell.width)))
    plain = model({**RECURRENT, "init": {"recurrent": "fan_in_uniform"}})
    assert is_uniform(plain.decoder.cells[1].hidden_weight, 1 / 8)


def test_a_branch_that_starts_at_zero_is_the_identity() -> None:
    x = torch.randn(2, 5, 64)
    built = model({**SIZES, "init": {"branch_scale": 0.0}}).eval()
    assert torch.equal(built.encoder.layers[0](x, visible(5))[0], x)
    phrasal = model({**SIZES, "phrases": {}, "init": {"phrase_scale": 0.0}}).eval()
    plain = model({**SIZES, "phrases": {}}).eval()
    combination = next(m for m in phrasal.modules() if isinstance(m, AttentiveCombination))
    assert not combination.down.weight.any()
    assert not combination.output.weight.any()
    assert phrasal.encoder.layers[0].feed_forward.down.weight.any()
    assert next(m for m in plain.modules() if isinstance(m, AttentiveCombination)).down.weight.any()


def visible(length: int) -> Any:
    from phraseloom.layers.attention.masks import Visibility

    return Visibility(key_length=length, query_length=length, device=torch.device("cpu"))


def test_language_models_have_a_start_too() -> None:
    torch.manual_seed(0)
    keys = {"width": 64, "heads": 4, "ffn_width": 256, "decoder": {"layers": 1}, "init": "xavier_uniform"}
    built = build_language_model(LanguageModelConfig.model_validate(keys), 50)
    assert is_uniform(built.decoder.layers[0].feed_forward.up.weight, math.sqrt(6 / 320))


def test_configurations_of_earlier_versions() -> None:
    old = ModelConfig.model_validate({**SIZES, "init_range": 0.1})
    assert (old.init.kind, old.init.range, old.scale_embeddings) == ("uniform", 0.1, True)
    assert ModelConfig.model_validate({**SIZES, "init_range": None}).init.kind == "fan_in_uniform"
    for config in (old, ModelConfig.model_validate({**SIZES, "init": {"kind": "uniform", "range": 0.1}})):
        assert ModelConfig.model_validate(config.model_dump(mode="json")) == config


OF_CELLS = {"kind": "xavier_uniform", "recurrent": "fan_in_uniform"}


def stored(keys: dict[str, Any], *, without_init: bool = True, task: Any = ModelConfig) -> dict[str, Any]:
    """The configuration of a model as it is written; without `init`, as before that option existed."""
    value: dict[str, Any] = task.model_validate(keys).model_dump(mode="json")
    if without_init:
        del value["init"]
    return value


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ({}, {"kind": "xavier_uniform"}),
        ({"preset": "tiny", "phrases": {}}, {"kind": "xavier_uniform"}),
        ({"encoder": {"kind": "none"}}, {"kind": "xavier_uniform"}),
        (RECURRENT, OF_CELLS),
        ({"encoder": {"kind": "recurrent"}}, OF_CELLS),
        ({"decoder": {"kind": "recurrent"}}, OF_CELLS),
        ({"encoder": {"kind": "columns"}, "decoder": {"kind": "segmental"}}, OF_CELLS),
    ],
)
def test_a_stored_configuration_without_init_has_the_start_of_its_time(
    keys: dict[str, Any], start: dict[str, Any]
) -> None:
    value = stored(keys)
    for old in (value, {**value, "init_range": None}):
        config = validate(ModelConfig, fill_stored(old))
        assert config.init == InitConfig.model_validate(start)
        assert config.scale_embeddings
    assert "init" not in value
    assert validate(ModelConfig, value).init == InitConfig()  # a recipe: today's default
    ranged = validate(ModelConfig, fill_stored({**value, "init_range": 0.1}))
    assert (ranged.init.kind, ranged.init.range) == ("uniform", 0.1)


def test_the_stored_start_of_a_language_model() -> None:
    old = fill_stored(stored({"preset": "tiny"}, task=LanguageModelConfig))
    assert validate(LanguageModelConfig, old).init == InitConfig(kind="xavier_uniform")


def test_a_stored_init_is_what_it_says() -> None:
    for init in ({}, {"branch_scale": 0.5}, {"kind": "uniform", "range": 0.1}, {"kind": "xavier_uniform"}):
        config = ModelConfig.model_validate({**SIZES, "init": init})
        assert validate(ModelConfig, fill_stored(config.model_dump(mode="json"))) == config


def test_a_model_folder_of_an_earlier_version_names_its_start() -> None:
    folder = Path(__file__).resolve().parents[1] / "golden" / "model_format_1" / "model"
    raw, config = read_config(folder)
    assert "init" not in raw["model"]
    assert config.init == InitConfig(kind="xavier_uniform")
    assert describe(folder)["model"]["init"] == {"kind": "xavier_uniform"}


IDLE: dict[str, tuple[dict[str, Any], str]] = {
    "phrase_scale": ({**SIZES, "init": {"phrase_scale": 0.0}}, "source phrases (model.phrases)"),
    "phrase_scale of recurrent models": (
        {**RECURRENT, "init": {"phrase_scale": 1.0}},
        "source phrases (model.phrases)",
    ),
    "recurrent": ({**SIZES, "init": {"recurrent": "fan_in_uniform"}}, "LSTM or GRU layers"),
    "recurrent without encoder": (
        {**SIZES, "encoder": {"kind": "none"}, "init": {"recurrent": "xavier_uniform"}},
        "LSTM or GRU layers",
    ),
    "branch_scale": ({**RECURRENT, "init": {"branch_scale": 0.5}}, "Transformer layers"),
    "branch_scale of segmental models": (
        {"encoder": {"kind": "columns"}, "decoder": {"kind": "segmental"}, "init": {"branch_scale": 0.5}},
        "Transformer layers",
    ),
}


@pytest.mark.parametrize("name", IDLE)
def test_an_init_without_effect_is_refused_and_left_out_of_stored_ones(name: str) -> None:
    keys, needed = IDLE[name]
    key = name.split(" ")[0]
    with pytest.raises(ConfigError) as caught:
        validate(ModelConfig, keys, file="recipe.yaml")
    assert f"init.{key} has no meaning in a model without {needed}; leave it out" in str(caught.value)
    assert "\n" not in str(caught.value)
    usual = {k: v for k, v in keys.items() if k != "init"}
    whole = {**stored(usual, without_init=False)}
    assert validate(ModelConfig, fill_stored({**whole, "init": {**whole["init"], **keys["init"]}})) == validate(
        ModelConfig, usual
    )


ONE: dict[str, Any] = {"kind": "recurrent", "layers": 1}
REFUSED_TODAY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "encoder": ({**SIZES, "encoder": ONE}, {"residual": True, "dropout": 0.3}),
    "decoder": ({**SIZES, "decoder": ONE}, {"residual": True, "dropout": 0.3}),
    "phrases": ({**SIZES, "phrases": {"segments": {"kind": "fixed", "max_tokens": 4, "floor": 4}}},
                {"segments": {"kind": "fixed", "max_tokens": 2, "min_chunks": 6, "floor": 4, "basis": "sentence"}}),
}  # fmt: skip


def stored_before(part: str) -> tuple[ModelConfig, dict[str, Any]]:
    """A configuration, and the same one as a version could store it that did not refuse options without effect."""
    keys, old = REFUSED_TODAY[part]
    config = ModelConfig.model_validate(keys)
    value = config.model_dump(mode="json")
    return config, {**value, part: {**value[part], **old}}


@pytest.mark.parametrize("part", REFUSED_TODAY)
def test_options_without_effect_are_left_out_of_stored_configurations(part: str) -> None:
    config, old = stored_before(part)
    with pytest.raises(ConfigError):
        validate(ModelConfig, old)
    assert validate(ModelConfig, fill_stored(old)) == config


def test_other_stored_layers_and_segments_stay_as_they_are() -> None:
    two = {"kind": "recurrent", "layers": 2, "residual": True, "dropout": 0.3}
    for keys in (
        {**SIZES, "encoder": two, "decoder": two},
        {**SIZES, "phrases": {"segments": {"kind": "dataset"}}},
        {**SIZES, "phrases": {"segments": {"kind": "fixed", "max_tokens": 4, "floor": 2}}},
    ):
        config = ModelConfig.model_validate(keys)
        assert validate(ModelConfig, fill_stored(config.model_dump(mode="json"))) == config


@pytest.mark.parametrize("part", REFUSED_TODAY)
def test_a_model_folder_with_options_without_effect_is_read(part: str, tmp_path: Path) -> None:
    config, old = stored_before(part)
    other = config.model_copy(update={part: getattr(config, part).model_copy(update=REFUSED_TODAY[part][1])})
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    sizes = len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic, of values that were not validated
        save_model(tmp_path / "m", build_model(config, *sizes), other, tokenizer, languages=("en", "de"))
    raw, found = read_config(tmp_path / "m")
    assert raw["model"] == old
    assert found == config
    assert describe(tmp_path / "m")["model"][part]["kind" if part != "phrases" else "glance"]


@pytest.mark.parametrize("part", REFUSED_TODAY)
def test_a_run_with_options_without_effect_goes_on_without_them(part: str, tmp_path: Path) -> None:
    config, old = stored_before(part)
    recipe = load_recipe(RECIPES / "demo" / "world.yaml").model_copy(update={"model": config})
    assert prepare_folder(recipe, tmp_path / "run", "f" * 64, allow_changed=False) == []
    path = tmp_path / "run" / "config.yaml"
    atomic_write_text(path, dump_yaml({**recipe.model_dump(mode="json"), "model": old}))
    assert prepare_folder(recipe, tmp_path / "run", "f" * 64, allow_changed=False) == []


@pytest.mark.parametrize("key", [{"recurrent": "fan_in_uniform"}, {"phrase_scale": 0.5}])
def test_an_init_without_effect_on_a_language_model(key: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"init.{next(iter(key))} has no meaning"):
        validate(LanguageModelConfig, {"preset": "tiny", "init": key})
    validate(LanguageModelConfig, {"preset": "tiny", "init": {"branch_scale": 0.5}})


@pytest.mark.parametrize(
    "keys",
    [
        {"phrases": {}, "init": {"phrase_scale": 0.25, "branch_scale": 0.5}},
        {"encoder": {"kind": "recurrent"}, "phrases": {}, "init": {"recurrent": "xavier_uniform", "phrase_scale": 0.5}},
        {"decoder": {"kind": "recurrent"}, "init": {"recurrent": "xavier_uniform", "branch_scale": 0.5}},
        {"encoder": {"kind": "none"}, "init": {"branch_scale": 0.5}},
        {"encoder": {"kind": "columns"}, "decoder": {"kind": "segmental"}, "init": {"recurrent": "xavier_uniform"}},
        {**SIZES, "init": {"kind": "uniform", "range": 0.1, "branch_scale": 0.5}},
    ],
)
def test_an_init_that_is_accepted_changes_the_model(keys: dict[str, Any]) -> None:
    keys = {**SIZES, "tied": "none", **keys}
    for part in ("encoder", "decoder"):
        if keys[part].get("kind", "none") != "none":
            keys[part] = {"layers": 2, **keys[part]}
    init: dict[str, Any] = keys["init"]
    with_all = dict(model(keys).named_parameters())
    for key in init.keys() - {"kind", "range"}:
        without = model({**keys, "init": {k: v for k, v in init.items() if k != key}})
        assert any(not torch.equal(p, with_all[name]) for name, p in without.named_parameters()), key


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"init": "glorot"}, ["init", "xavier_uniform"]),
        ({"init": {"kind": "uniform"}}, ["init: kind: uniform needs a range, such as 0.1"]),
        ({"init": {"range": 0.1}}, ["init: range is for kind: uniform; with kind: fan_in_uniform, leave it out"]),
        ({"init": {"kind": "uniform", "range": float("nan")}}, ["init.range"]),
        ({"init": {"kind": "uniform", "range": float("inf")}}, ["init.range"]),
        ({"init": {"kind": "uniform", "range": 0.1, "embeddings": "small_uniform"}}, ["leave embeddings out"]),
        ({"init": {"branch_scale": 2.0}}, ["init.branch_scale"]),
        ({"init": "uniform", "init_range": 0.1}, ["keep init"]),
    ],
)
def test_a_start_that_cannot_be_is_refused(keys: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(ModelConfig, {**SIZES, **keys})
    assert all(word in str(caught.value) for word in words), str(caught.value)
