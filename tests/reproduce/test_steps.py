"""Names in braces, and which steps are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import ConfigError
from phraseloom.reproduce.steps import StepScope, in_order

from .fakes import make_steps, one

RECIPE = "name: a\nmodel: {width: 8}\n"


def write_recipe(folder: Path, text: str = RECIPE, name: str = "a.yaml") -> None:
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / name).write_bytes(text.encode())


def with_recipe(**more: Any) -> dict[str, Any]:
    rows = {name: {"label": name, "recipe": {"tiny": "a.yaml"}, **more.get(name, {})} for name in ("base", "new")}
    return {"rows": rows}


TRAIN = {
    "data": {"each": "table", "run": ["write", "{here}/ref", "text"]},
    "train": {"run": ["train", "{recipe}", "--run", "{here}/run", "data={data}/ref", "seed={seed}", "{overrides}"]},
    "translate": {"run": ["translate", "{train}/run"], "stdout": "out.txt"},
}


def test_names_are_filled_in(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    steps = make_steps(tmp_path, TRAIN, **with_recipe(new={"overrides": {"tiny": ["width=9", "also={seed}"]}}))
    train = one(steps, "train", "new", 3)
    data = steps.step("data", StepScope())
    assert train.argv == (
        "train",
        str(tmp_path / "recipes" / "a.yaml"),
        "--run",
        f"{train.folder}/run",
        f"data={data.folder}/ref",
        "seed=3",
        "width=9",
        "also=3",
    )
    assert train.recipe == tmp_path / "recipes" / "a.yaml"
    assert train.changes == (f"data={data.folder}/ref", "seed=3", "width=9", "also=3")
    translate = one(steps, "translate", "new", 3)
    assert translate.argv == ("translate", f"{train.folder}/run")
    assert translate.stdout == translate.folder / "out.txt"
    assert [s.name for s in in_order([translate])] == ["data", "train", "translate"]


def test_variables_of_row_stand_over_those_of_scale(tmp_path: Path) -> None:
    steps = make_steps(tmp_path, {"say": {"run": ["translate", "{word}"]}}, rows={
        "base": {"label": "b"},
        "new": {"label": "n", "variables": {"tiny": {"word": "{row} of {other}"}}},
    }, scales={
        "tiny": {"variables": {"word": "plain", "other": "{scale}"}, "steps": {"say": {"run": ["translate", "{word}"]}}},
        "small": {"not_done": "-"},
        "paper": {"not_done": "-"},
    })  # fmt: skip
    assert one(steps, "say").argv[1] == "plain"
    assert one(steps, "say", "new").argv[1] == "new of tiny"


def test_another_rows_step(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    more = with_recipe(new={"overrides": {"tiny": ["embeddings={train@base}/run"]}})
    steps = make_steps(tmp_path, TRAIN, **more)
    train, base = one(steps, "train", "new", 2), one(steps, "train", "base", 2)
    assert train.argv[-1] == f"embeddings={base.folder}/run"
    assert base in train.needs


def test_a_second_training_names_its_recipe(tmp_path: Path) -> None:
    """A step beside `train`, shared by the rows that need it."""
    write_recipe(tmp_path)
    reverse = {"run": ["train", "{recipes}/a.yaml", "--run", "{here}/run", "width=5", "seed={seed}"]}
    after = {"run": ["translate", "{reverse}/run", "{row}"], "stdout": "out.txt"}
    steps = make_steps(tmp_path, {**TRAIN, "reverse": reverse, "after": after}, **with_recipe())
    step = one(steps, "reverse", "new", 2)
    assert (step.recipe, step.changes) == (tmp_path / "recipes" / "a.yaml", ("width=5", "seed=2"))
    assert step.trains and step.identity == one(steps, "reverse", "base", 2).identity
    assert step.folder == one(steps, "reverse", "base", 2).folder  # one folder, although nothing has run yet
    write_recipe(tmp_path, "name: a\nmodel: {width: 10}\n")
    again = make_steps(tmp_path, {**TRAIN, "reverse": reverse, "after": after}, **with_recipe())
    assert one(again, "reverse", "new", 2).identity != step.identity


def test_identity_is_of_content(tmp_path: Path) -> None:
    """Where files lie, comments and the name of a recipe, and the name of the row do not make another step."""
    write_recipe(tmp_path)
    first = one(make_steps(tmp_path, TRAIN, **with_recipe()), "train")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_recipe(elsewhere, "# said otherwise\nname: b\nmodel:\n  width: 8\n")
    steps = make_steps(elsewhere, TRAIN, **with_recipe())
    assert one(steps, "train", "new").identity == first.identity
    assert one(steps, "train", seed=2).identity != first.identity
    write_recipe(elsewhere, "name: a\nmodel: {width: 9}\n")
    assert one(make_steps(elsewhere, TRAIN, **with_recipe()), "train").identity != first.identity


def test_identity_goes_through_a_base_and_through_needs(tmp_path: Path) -> None:
    write_recipe(tmp_path, "name: below\nmodel: {width: 8}\n", "below.yaml")
    write_recipe(tmp_path, "base: below.yaml\nname: a\n")
    first = one(make_steps(tmp_path, TRAIN, **with_recipe()), "translate")
    write_recipe(tmp_path, "name: below\nmodel: {width: 10}\n", "below.yaml")
    assert one(make_steps(tmp_path, TRAIN, **with_recipe()), "translate").identity != first.identity


def test_two_rows_with_equal_commands_share_a_step(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    steps = make_steps(tmp_path, TRAIN, **with_recipe())
    base, new = one(steps, "translate"), one(steps, "translate", "new")
    assert base.identity == new.identity
    assert len(in_order([base, new])) == 3
    base.folder.mkdir(parents=True)
    again = make_steps(tmp_path, TRAIN, **with_recipe())
    assert one(again, "translate", "new").folder == base.folder


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            {"a": {"run": ["write", "{b}"]}, "b": {"run": ["write", "{a}"]}},
            "step a needs itself: a base seed 1 → b base seed 1 → a base seed 1",
        ),
        ({"a": {"run": ["write", "{nothing}"]}}, "no step or variable 'nothing'; steps: a"),
        ({"a": {"run": ["write", "{b@nobody}"]}, "b": {"run": ["copy"]}}, "no such row"),
        ({"a": {"run": ["train", "{recipe}"]}}, "row 'base' has no recipe"),
        ({"a": {"run": ["copy"], "rows": ["new"]}}, "step a is not made for row 'base'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, steps: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        one(make_steps(tmp_path, steps), "a")
