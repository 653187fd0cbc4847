"""The files of tables: which there are, the one of a name, and reading it with the steps that its scales use."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from phraseloom.config import Places, merge, read_yaml, validate
from phraseloom.errors import UsageError
from phraseloom.reproduce.table import TableConfig


def find_table(name: str, recipes: Path) -> Path:
    """The file of a table: a path, or a name such as 002-table1 in RECIPES/tables. UsageError with the nearest name."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    names = [path.stem for path in all_tables(recipes)]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        there = f"tables: {', '.join(names)}" if names else "--recipes names the folder that holds tables/"
        raise UsageError(
            f"no table {name!r} in {recipes / 'tables'}", hint=f"did you mean {near[0]}?" if near else there
        )
    return recipes / "tables" / f"{name}.yaml"


def all_tables(recipes: Path) -> list[Path]:
    """The files of all tables, by name."""
    return sorted((recipes / "tables").glob("*.yaml"))


def recipes_folder() -> Path:
    """`recipes` of the present folder, or else of the checkout that this program runs from."""
    here = Path("recipes")
    checkout = Path(__file__).resolve().parents[3] / "recipes"
    return here if (here / "tables").is_dir() or not checkout.is_dir() else checkout


def load_table(path: Path) -> TableConfig:
    """Read and check a table; ConfigError names the key, the file and the line."""
    value, places = read_yaml(path)
    scales = value.get("scales")
    if isinstance(scales, dict):
        for scale, given in scales.items():
            if isinstance(given, dict) and "use" in given:
                scales[scale] = _used(path, given, places, scale)
    return validate(TableConfig, value, file=path, places=places)


def _used(path: Path, given: dict[str, Any], places: Places, scale: str) -> dict[str, Any]:
    """The keys of a scale over those of the file that it uses."""
    name = given["use"]
    if not isinstance(name, str):
        raise places[("scales", scale, "use")].problem("use names one file beside the table")
    below, _ = read_yaml(path.parent / name)
    return merge(below, {key: value for key, value in given.items() if key != "use"})
