"""A recipe: everything that prepares, trains and uses one model, as one strict YAML file.

One level of `base:` (a path beside the recipe) lies under it; `key.sub=value` overrides lie over it. Recipes are data: a
recipe names files, sizes and kinds, never code. Reading one imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from phraseloom.config import Config, Lines, merge, read_yaml, set_override, validate
from phraseloom.data.config import DataConfig
from phraseloom.decoding.config import DecodingConfig
from phraseloom.errors import ConfigError
from phraseloom.models.config import ModelConfig
from phraseloom.training.config import TrainingConfig

FORMAT = 1


class Recipe(Config):
    """A whole experiment: data, model, training, decoding. `name` is also the name of the run folder."""

    format: Literal[1] = 1
    name: str
    task: Literal["translation"] = "translation"
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()


def load_recipe(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """Read, merge and check a recipe; ConfigError names the key, the file and line, and the nearest valid name."""
    path = Path(path)
    value, lines = _read(path)
    base = value.pop("base", None)
    if base is not None:
        value, lines = _over_base(path, str(base), value, lines)
    for override in overrides or []:
        lines = dict(lines)
        changed = set_override(value, override)
        lines = {k: n for k, n in lines.items() if k[: len(changed)] != changed}
    return validate(Recipe, value, file=path, lines=lines)


def _read(path: Path) -> tuple[dict[str, Any], Lines]:
    value, lines = read_yaml(path)
    found = value.get("format", FORMAT)
    if found != FORMAT:
        raise ConfigError(
            f"recipe format {found!r} is not known (this phraseloom reads {FORMAT})",
            file=path,
            line=lines.get(("format",)),
            hint="upgrade phraseloom, or write the recipe for this version",
        )
    return value, lines


def _over_base(path: Path, base: str, value: dict[str, Any], lines: Lines) -> tuple[dict[str, Any], Lines]:
    below, _ = _read(path.parent / base)
    if "base" in below:
        raise ConfigError(
            f"base {base} has a base of its own; one level is allowed", file=path, line=lines.get(("base",))
        )
    return merge(below, value), lines
