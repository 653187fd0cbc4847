"""Find and read the files of tables, with the shared steps that their scales use."""

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
        known = f"tables: {', '.join(names)}" if names else "--recipes names the folder that holds tables/"
        raise UsageError(
            f"no table {name!r} in {recipes / 'tables'}", hint=f"did you mean {near[0]}?" if near else known
        )
    return recipes / "tables" / f"{name}.yaml"


def all_tables(recipes: Path) -> list[Path]:
    """The files of all tables, by name."""
    return sorted((recipes / "tables").glob("*.yaml"))


def load_table(path: Path) -> TableConfig:
    """Read and check a table. Raises ConfigError with the key, the file and the line."""
    value, places = read_yaml(path)
    scales = value.get("scales")
    if isinstance(scales, dict):
        for scale, options in scales.items():
            if isinstance(options, dict) and "use" in options:
                scales[scale] = _used(path, options, places, scale)
    return validate(TableConfig, value, file=path, places=places)


def _used(path: Path, options: dict[str, Any], places: Places, scale: str) -> dict[str, Any]:
    """The keys of a scale, merged into those of the file that it uses."""
    name = options["use"]
    if not isinstance(name, str):
        raise places[("scales", scale, "use")].problem("use names one file in the folder of the table")
    below, _ = read_yaml(path.parent / name)
    return merge(below, {key: value for key, value in options.items() if key != "use"})
