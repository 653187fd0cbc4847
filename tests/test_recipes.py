"""Every recipe of the repository is valid, and every file that the pages name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phraseloom.errors import ConfigError
from phraseloom.options.data import DataConfig
from phraseloom.recipe import check_recipe, load_recipe

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted(p for p in (ROOT / "recipes").rglob("*.yaml") if "tables" not in p.parts)  # tests/reproduce has those
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_recipe_is_valid(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.data.train
    assert load_recipe(path, ["model.dropout=0.25"]).model.dropout == 0.25


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_name_files_that_exist(page: Path) -> None:
    text = page.read_bytes().decode()
    missing = [
        name
        for name in re.findall(r"(?<![\w/])(?:recipes|benchmarks|docs)/[\w/.-]+\.(?:yaml|py|md)", text)
        if not (ROOT / name).is_file()
    ]
    links = [link for link in re.findall(r"\]\((?!http)([^)#]+)\)", text) if not (page.parent / link).exists()]
    assert not missing + links


def test_a_recipe_lies_over_its_base(tmp_path: Path) -> None:
    base = {"train": "[{source: a, target: b}]"}
    (tmp_path / "base.yaml").write_bytes(
        f"name: base\ndata: {{folder: d, source_language: en, target_language: de, train: {base['train']}}}\n"
        "training: {schedule: {kind: linear, peak: 0.1}, max_updates: 5}\n".encode()
    )
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"base: base.yaml\nname: mine\ntraining: {schedule: {kind: constant, rate: 0.2}}\n")
    recipe = load_recipe(path, ["training.max_updates=7", "model.preset=tiny"])
    assert (recipe.name, recipe.training.max_updates, recipe.model.width) == ("mine", 7, 64)
    assert recipe.training.schedule.kind == "constant"
    path.write_bytes(b"base: recipe2.yaml\nname: x\n")
    (tmp_path / "recipe2.yaml").write_bytes(b"base: base.yaml\nname: y\n")
    with pytest.raises(ConfigError, match="one level"):
        load_recipe(path)


def test_another_kind_on_the_command_line_replaces_the_variant() -> None:
    """`layers` of the file is no key of an encoder-free model; what the command line says of the new kind stays."""
    path = ROOT / "recipes" / "multi30k" / "phrasal" / "base.yaml"
    assert load_recipe(path, ["model.encoder.kind=none"]).model.encoder.layers == 0  # type: ignore[union-attr]
    recurrent = ["model.decoder.layers=2", "model.decoder.kind=recurrent"]
    recipe = load_recipe(path, [*recurrent, "training.schedule.rate=0.1", "training.schedule.kind=constant"])
    assert (recipe.model.decoder.kind, recipe.model.decoder.layers) == ("recurrent", 2)
    assert recipe.training.schedule.kind == "constant"


def test_resolved_recipes_are_recipes(tmp_path: Path) -> None:
    for path in RECIPES:
        value = load_recipe(path).model_dump(mode="json")
        assert check_recipe(value).model_dump(mode="json") == value


def test_phrases_of_the_dataset_need_a_segmenter() -> None:
    path = ROOT / "recipes" / "demo" / "world.yaml"
    wanted = "model.phrases={segments: {kind: dataset}}"
    with pytest.raises(ConfigError, match=r"data\.phrases must say how they are made"):
        load_recipe(path, [wanted])
    load_recipe(path, [wanted, "data.phrases={kind: table, file: phrases.txt}"])


def test_a_gate_is_trained_or_it_is_not_there() -> None:
    """An untrained gate would judge every checkpoint; `training.fertility` adds one that is trained."""
    path = ROOT / "recipes" / "own" / "phrases.yaml"
    assert load_recipe(path).training.fertility is not None
    with pytest.raises(
        ConfigError, match=r"write training: \{fertility: \{classes: 2\}\}, or use phraseloom fertility train"
    ):
        load_recipe(path, ["model.output.fertility={classes: 2}"])


def test_the_best_cosine_loss_is_of_continuous_output() -> None:
    wanted = "training.best_by=cosine_loss"
    recipe = load_recipe(ROOT / "recipes" / "continuous" / "de-en_conmt.yaml", [wanted])
    assert recipe.training.best_by == "cosine_loss"
    with pytest.raises(ConfigError, match="cosine_loss is of a continuous output; a softmax has none"):
        load_recipe(ROOT / "recipes" / "demo" / "world.yaml", [wanted])
    text = {"folder": "d", "language": "en", "train": [{"text": "a"}]}
    with pytest.raises(ConfigError, match="a language model has none"):
        check_recipe(
            {
                "name": "x",
                "task": "language_model",
                "data": text,
                "training": {"best_by": "cosine_loss", "max_updates": 1},
            }
        )


def test_recurrent_rows_to_convergence_and_with_residual_layers() -> None:
    """Paper 004 trains until validation stands still, and takes the checkpoint with the best perplexity."""
    folder = ROOT / "recipes" / "multi30k" / "encoder_free"
    training = load_recipe(folder.parent / "converged.yaml").training
    assert (training.schedule.kind, training.patience, training.best_by) == ("plateau", 12, "perplexity")
    assert training.patience > training.schedule.patience  # type: ignore[union-attr]  # the rate falls before the run ends
    assert training.average_last == 0 and training.bleu_every == 1
    model = load_recipe(folder / "rnn_residual.yaml").model
    plain = load_recipe(folder / "rnn.yaml").model
    assert model.encoder.residual and model.decoder.residual  # type: ignore[union-attr]
    assert not plain.encoder.residual and not plain.decoder.residual  # type: ignore[union-attr]


def test_jieba_needs_chinese() -> None:
    path, jieba = ROOT / "recipes" / "demo" / "world.yaml", "data.text.tokenize=jieba"
    with pytest.raises(
        ConfigError, match=r"data\.text\.tokenize: jieba is for Chinese \(zh\), and the data are en → de"
    ):
        load_recipe(path, [jieba])
    load_recipe(path, [jieba, "data.source_language=zho_Hans"])
    recipe = load_recipe(path, ["data.target_language=cmn", jieba])
    assert recipe.data.target_language == "cmn"
    old = DataConfig.model_validate({**recipe.data.model_dump(), "target_language": "de"})
    assert old.text.tokenize == "jieba"  # a dataset of an earlier version opens
