"""The tables of recipes: every recipe of a paper stands in one, with its attention and its number of parameters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from phraseloom.models.build import build_model
from phraseloom.models.config import AttentionsConfig
from phraseloom.recipe import Recipe, load_recipe

ROOT = Path(__file__).resolve().parents[1] / "recipes"
PAGES = [ROOT / "README.md", ROOT / "paper000" / "README.md", ROOT / "paper002" / "README.md"]
ROW = re.compile(
    r"^\| `(?P<file>[\w/.-]+\.yaml)` \|.*?\| `(?P<attention>[^`]+)` \| (?P<parameters>[\d,]+) \|", re.MULTILINE
)
ROWS = [
    (page, found["file"], found["attention"], int(found["parameters"].replace(",", "")))
    for page in PAGES
    for found in ROW.finditer(page.read_bytes().decode())
]


@pytest.mark.parametrize(("page", "file", "attention", "parameters"), ROWS, ids=[row[1] for row in ROWS])
def test_row_tells_the_truth(page: Path, file: str, attention: str, parameters: int) -> None:
    recipe = load_recipe(page.parent / file)
    assert isinstance(recipe, Recipe)
    use = recipe.model.attention
    if attention == "relative in self-attention":
        assert (use.encoder_self.score.kind, use.cross.score.kind) == ("relative", "token")
    else:
        assert use == AttentionsConfig.model_validate(attention)
    assert recipe.data.subwords.kind == "sentencepiece"
    size = recipe.data.subwords.size
    with torch.device("meta"):
        model = build_model(recipe.model, size, size)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("folder", ["paper000", "paper002", "multi30k/phrasal"])
def test_every_recipe_stands_in_a_table(folder: str) -> None:
    told = {(page.parent / file).resolve() for page, file, _, _ in ROWS}
    there = {path for path in (ROOT / folder).glob("*.yaml") if not path.name.startswith("table3")}
    assert there
    assert there <= told


@pytest.mark.parametrize(
    "pair", ["multi30k/phrasal/{}.yaml wide queryk_heterogeneous_12", "demo/world_{}.yaml wide phrasal"]
)
def test_the_widened_base_is_as_large(pair: str) -> None:
    pattern, *names = pair.split()
    found = {file: parameters for _, file, _, parameters in ROWS}
    wide, phrasal = (found[pattern.format(name)] for name in names)
    assert abs(wide / phrasal - 1) < 0.01


def test_twins_differ_in_the_model_alone() -> None:
    base = load_recipe(ROOT / "multi30k" / "phrasal" / "base.yaml")
    for path in (ROOT / "multi30k" / "phrasal").glob("*.yaml"):
        twin = load_recipe(path)
        assert (twin.data, twin.training, twin.decoding) == (base.data, base.training, base.decoding)


@pytest.mark.parametrize("path", sorted(ROOT.glob("paper00?/table[12]*.yaml")), ids=lambda p: p.stem)
def test_settings_of_the_papers(path: Path) -> None:
    recipe = load_recipe(path)
    schedule, training = recipe.training.schedule, recipe.training
    assert (schedule.kind, getattr(schedule, "factor", None), getattr(schedule, "warmup", None)) == (
        "inverse_sqrt",
        2.0,
        16000,
    )
    assert recipe.name == f"{path.parent.name}-{path.stem.replace('_', '-')}"
    assert training.checkpoint_every == (10_000 if path.parent.name == "paper002" else 5_000)
    assert training.batch_tokens == (32_768 if path.match("paper000/table1*") else 4096)
    assert (training.average_last, recipe.decoding.model_dump()["beam"]) == (5, 5)
