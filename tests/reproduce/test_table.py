"""Tables are strict: a mistake is said with its key, file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import ConfigError, UsageError
from phraseloom.reproduce.table import find_table, load_table

from .fakes import make_table, table_data

STEPS: dict[str, Any] = {"translate": {"run": ["translate", "x"], "stdout": "out.txt"}}
CLAIM = {"says": "better", "metric": "bleu", "more": ["new"], "than": ["base"]}


def test_a_table_is_read(tmp_path: Path) -> None:
    table = make_table(tmp_path, table_data(STEPS, claims=[CLAIM]))
    assert list(table.rows) == ["base", "new"]
    assert table.claims[0].sign == 1
    assert table.paper_of("new", "") == {"bleu": 21.0}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"titel": "A"}, "did you mean title"),
        ({"rows": {}}, "rows"),
        ({"baseline": "bass"}, "no row 'bass'; there are base, new"),
        ({"claims": [{**CLAIM, "more": ["old"]}]}, "no row 'old'"),
        ({"claims": [{**CLAIM, "metric": "blue"}]}, "no metric 'blue'"),
        ({"claims": [{**CLAIM, "less": ["new"]}]}, "exactly one of more, less and equal"),
        ({"claims": [{**CLAIM, "value": 3}]}, "exactly one of value"),
        ({"claims": [{**CLAIM, "within": 0.5}]}, "equal and within stand together"),
        ({"rows": {"base": {"label": "b", "paper": {"blue": 1.0}}}}, "no metric 'blue'"),
        ({"rows": {"base": {"label": "b", "tasks": ["xx"]}}}, "no task 'xx'"),
        ({"scales": {"tiny": {"steps": STEPS}}}, "scale small is missing"),
        ({"format": 2}, "format"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        make_table(tmp_path, table_data(STEPS, **changes))
    assert "table.yaml" in str(error.value)


def test_a_row_needs_a_recipe_or_a_reason(tmp_path: Path) -> None:
    data = table_data({"train": {"run": ["train", "{recipe}"]}})
    data["rows"]["base"]["recipe"] = {"tiny": "a.yaml"}
    with pytest.raises(ConfigError, match="row new has neither a recipe for tiny nor a reason"):
        make_table(tmp_path, data)
    data["rows"]["new"]["not_run"] = {"tiny": "too large"}
    make_table(tmp_path, data)


def test_a_scale_uses_steps_of_another_file(tmp_path: Path) -> None:
    shared = tmp_path / "recipes" / "tables" / "steps" / "shared.yaml"
    shared.parent.mkdir(parents=True)
    shared.write_bytes(b"says: shared\nvariables: {a: '1', b: '1'}\nsteps: {say: {run: [translate, x]}}\n")
    data = table_data(STEPS)
    data["scales"]["tiny"] = {"use": "steps/shared.yaml", "variables": {"b": "2"}}
    scale = make_table(tmp_path, data).scales["tiny"]
    assert (scale.says, scale.variables, list(scale.steps)) == ("shared", {"a": "1", "b": "2"}, ["say"])


def test_the_nearest_table_is_named(tmp_path: Path) -> None:
    make_table(tmp_path, table_data(STEPS))
    assert find_table("table", tmp_path / "recipes").name == "table.yaml"
    assert find_table("elsewhere/x.yaml", tmp_path) == Path("elsewhere/x.yaml")
    with pytest.raises(UsageError, match="did you mean table"):
        find_table("tabel", tmp_path / "recipes")
    with pytest.raises(UsageError, match="--recipes"):
        find_table("table", tmp_path)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="not found"):
        load_table(tmp_path / "none.yaml")
