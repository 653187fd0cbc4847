"""`phraseloom schema`: every recipe of the repository fits its schema, and mistakes do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from phraseloom.config import parse_yaml, read_yaml, set_override
from phraseloom.errors import ConfigError
from phraseloom.options.model import KINDS, InitConfig, ModelConfig, PhrasesConfig
from phraseloom.recipe import check_recipe, schema

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(p for p in (ROOT / "recipes").rglob("*.yaml") if "tables" not in p.parts)
FILES = "train: [{source: a.en, target: a.de}]"
TRANSLATION = f"{{name: a, data: {{folder: a, source_language: en, target_language: de, {FILES}}}}}"
TEXT = "{name: a, task: language_model, data: {folder: a, language: en, train: [{text: a.en}]}}"


@pytest.fixture(scope="module")
def fits() -> Any:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema()).is_valid


def recipe(text: str, *overrides: str) -> dict[str, Any]:
    value, _ = parse_yaml(text)
    for override in overrides:
        set_override(value, override)
    return value


def loads(value: dict[str, Any]) -> bool:
    try:
        check_recipe(value)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_recipe_fits(path: Path, fits: Any) -> None:
    value, _ = read_yaml(path)
    assert fits(value)
    assert not fits({**value, "trainig": {}}) and not fits({**value, "training": {"max_update": 1}})


@pytest.mark.parametrize("page", ["data", "language_models", "training"])
def test_the_pieces_of_recipes_in_the_pages_fit(page: str, fits: Any) -> None:
    pieces = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_bytes().decode(), re.S)
    assert pieces
    for piece in pieces:
        value, _ = parse_yaml(piece)
        assert fits({"base": "b.yaml", **(value if "data" in value else {"data": value})}), piece


@pytest.mark.parametrize(
    "override",
    [
        "model.attention=token",
        "model.attention=queryk heterogeneous 1-2",
        "model.attention=convkv homogeneous 44",
        "model.attention=queryk interleaved 1-2-3 keys-per-order gated",
        "model.attention.decoder_self=relative",
        "model.attention.cross={score: {kind: queryk}, arrangement: {kind: heterogeneous, orders: 1-2}}",
        "model.attention.encoder_self={score: {kind: convkv}, arrangement: {kind: homogeneous, split: 44}}",
        "model.attention.encoder_self={score: {kind: convkv}, arrangement: {kind: homogeneous, split: 4-4}}",
        "model.attention.encoder_self={score: {kind: convkv}, arrangement: {kind: homogeneous, split: [4, 4]}}",
        "model.init=xavier_uniform",
        "model.init.branch_scale=0.5",
        "model.init_range=0.1",
        "model.positions={kind: none}",
        "model.positions.source={kind: none}",
        "model.positions={}",
        "model.encoder.layers=3",
        "model.encoder={kind: recurrent, cell: gru}",
        "model.encoder={}",
        "model.output.label_smoothing=0.2",
        "model.phrases.segments.max_tokens=9",
        "training.start_from=runs/a",
        "training.start_from={path: runs/a, optimizer: continue}",
        "training.embeddings=runs/a",
        "training.embeddings={source: runs/a, fixed: true}",
        "training.schedule={kind: cosine, peak: 1e-3}",
        "training.micro_batches=per_process",
        "training.rates={encoder.*: 0.5}",
        "training.max_updates=null",
        "data.train.0.tag=<2de>",
        "data.train.0.tag=[<2de>, <news>]",
        "data.subwords={kind: words, source: {kind: sentencepiece, size: 99}, vectors: a.vec}",
        "data.subwords={kind: words, vectors: {random: 8}}",
        "decoding.alignment_head=mean",
        "decoding.alignment_head=max",
        "decoding.length_penalty={kind: none}",
    ],
)
def test_what_a_recipe_may_have_fits(override: str, fits: Any) -> None:
    value = recipe(TRANSLATION, override, *(["training.max_epochs=1"] if "max_updates" in override else []))
    assert loads(value) and fits(value)
    assert fits({"base": "b.yaml", **recipe("{}", override)} if "data" not in override else {**value, "base": "b.yaml"})


@pytest.mark.parametrize(
    "override",
    [
        "trainig={}",
        "task=language_mdoel",
        "format=2",
        "model.widht=8",
        "model.width=wide",
        "model.encoder.layer=3",
        "model.encoder.layers=three",
        "model.encoder.cell=gru",
        "model.encoder={kind: recurent}",
        "model.attention=queyk heterogeneous 1-2",
        "model.attention=queryk heterogeneous",
        "model.attention={score: {kind: token}}",
        "model.attention.cross={score: {kind: queyk}}",
        "model.attention.cross={arrangement: {orders: 1-2}}",
        "model.init=xavier",
        "model.positions=none",
        "model.positions={layout: t2t}",
        "model.positions={kind: none, source: {kind: none}}",
        "model.output={loss: vmf}",
        "training.max_update=3",
        "training.max_updates=3k",
        "training.schedule={warmup: 400}",
        "training.schedule={kind: constant}",
        "training.schedule={kind: cosin, peak: 1e-3}",
        "training.start_from={optimizer: continue}",
        "data.train.0.tag=2de",
        "data.train=[{source: a.en}]",
        "data.subwords={size: 99}",
        "data.subwords={kind: words, vectors: {}}",
        "data.language=en",
        "decoding.alignment_head=mode",
        "decoding.beam=true",
    ],
)
def test_a_mistake_does_not_fit(override: str, fits: Any) -> None:
    value = recipe(TRANSLATION, override)
    assert not loads(value) and not fits(value)


@pytest.mark.parametrize(
    ("change", "fitting"),
    [
        ("model.attention=queryk heterogeneous 1-2", True),
        ("model.attention={decoder_self: relative}", True),
        ("model.positions={kind: none}", True),
        ("model.decoder.layers=3", True),
        ("model.attention.cross=token", False),
        ("model.encoder={layers: 3}", False),
        ("model.decoder={kind: recurrent}", False),
        ("data.source_language=en", False),
    ],
)
def test_a_language_model(change: str, fitting: bool, fits: Any) -> None:
    value = recipe(TEXT, change)
    assert loads(value) == fits(value) == fitting


@pytest.mark.parametrize("text", ["{}", "{name: a}", "{data: {}}", "{name: a, data: {folder: a}}"])
def test_only_a_base_makes_keys_optional(text: str, fits: Any) -> None:
    value = recipe(text)
    assert not loads(value) and not fits(value)
    assert fits({"base": "b.yaml", **value}) and not fits({"base": 3, **value})


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ("{training: {schedule: {peak: 1e-3}}}", True),
        ("{model: {encoder: {cell: gru}}}", True),
        ("{model: {encoder: {kind: transformer, cell: gru}}}", False),
        ("{model: {encoder: {layer: 3}}}", False),
        ("{model: {encoder: {kind: recurent}}}", False),
        ("{training: {max_updates: 3k}}", False),
        ("{training: {schedule: {peek: 1e-3}}}", False),
        ("{data: {train: [{source: a.en}]}}", False),
        ("{task: language_model, model: {encoder: {layers: 3}}}", False),
        ("{data: {train: [{text: a.en}]}}", True),
        ("{data: {train: [{text: a.en}], source_language: en}}", False),
    ],
)
def test_a_recipe_over_a_base(text: str, fitting: bool, fits: Any) -> None:
    assert fits({"base": "b.yaml", **recipe(text)}) == fitting


def test_the_usual_kinds_are_those_that_merging_knows() -> None:
    """`KINDS` keeps the other keys where a recipe names a kind that is there anyway."""
    found = {name: node["usual_kind"] for name, node in usual_kinds()}
    assert found == {path[-1]: kind for path, kind in KINDS.items() if path[-1] != "init"}
    assert InitConfig().kind == KINDS["model", "init"]


def usual_kinds() -> Iterator[tuple[str, Any]]:
    """The fields of a model, and of its phrases, whose schema names a usual kind."""
    for kind in (ModelConfig, PhrasesConfig):
        for name, node in kind.model_json_schema()["properties"].items():
            if "usual_kind" in node:
                yield name, node
