"""Strict typed configuration: the base class of every config, and YAML that says where each key stands.

Recipes are data: a safe YAML subset (no tags, no aliases, no duplicate keys), validated by frozen pydantic models that
forbid unknown keys. An error names the file, the line and the nearest valid name (reliability.md S2, O4).
"""

from __future__ import annotations

import difflib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from phraseloom.errors import ConfigError
from phraseloom.files import require_file

RECIPE_MAX_BYTES = 2**20
RECIPE_MAX_DEPTH = 30


class Config(pydantic.BaseModel):
    """Base of every configuration class: frozen, and an unknown key is an error."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


C = TypeVar("C", bound=Config)
Lines = dict[tuple[str | int, ...], int]


def parse_yaml(text: str, *, file: str | Path | None = None) -> tuple[Any, Lines]:
    """Plain data from YAML text, and the line (from 1) of each key path. Tags, aliases and duplicate keys are refused."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1 if event.start_mark else None
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > RECIPE_MAX_DEPTH:
                raise ConfigError(f"nested deeper than {RECIPE_MAX_DEPTH} levels", file=file, line=line)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ConfigError("YAML anchors and aliases are not allowed in a recipe", file=file, line=line)
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!":
                raise ConfigError(f"YAML tag {tag} is not allowed in a recipe", file=file, line=line)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
        raise ConfigError(f"not valid YAML: {problem}", file=file, line=mark.line + 1 if mark else None) from error
    lines: Lines = {}
    loader = yaml.SafeLoader("")
    return _plain(node, (), lines, loader, file), lines


def _plain(node: Any, path: tuple[str | int, ...], lines: Lines, loader: yaml.SafeLoader, file: Any) -> Any:
    if node is None:
        return None
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in result:
                raise ConfigError(f"key {'.'.join(map(str, (*path, key)))} is given twice", file=file, line=line)
            lines[(*path, key)] = line
            result[key] = _plain(value_node, (*path, key), lines, loader, file)
        return result
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[(*path, i)] = item.start_mark.line + 1
        return [_plain(item, (*path, i), lines, loader, file) for i, item in enumerate(node.value)]
    try:
        return loader.construct_object(node)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"value not understood: {error}", file=file, line=node.start_mark.line + 1) from error


def read_yaml(path: str | Path) -> tuple[dict[str, Any], Lines]:
    """The mapping in a YAML file, and the line of each key path."""
    path = require_file(path, "recipe")
    if path.stat().st_size > RECIPE_MAX_BYTES:
        raise ConfigError(f"recipe is larger than {RECIPE_MAX_BYTES >> 20} MiB", file=path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe is not UTF-8 (byte {error.start})", file=path) from error
    value, lines = parse_yaml(text, file=path)
    if not isinstance(value, dict):
        raise ConfigError("a recipe is a mapping of keys to values", file=path)
    return value, lines


def set_override(value: dict[str, Any], text: str) -> tuple[str, ...]:
    """Apply `key.sub=value` (value in YAML) to nested plain data; the path that was set.

    Another `kind` replaces the mapping that it stands in, as in `merge`: the other keys belong to another variant.
    """
    name, equals, raw = text.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(f"override {text!r} is not of the form key.sub=value")
    parsed, _ = parse_yaml(raw)
    target: Any = value
    for i, key in enumerate(path[:-1]):
        target = target[int(key)] if isinstance(target, list) and key.isdigit() and int(key) < len(target) else target
        if isinstance(target, dict):
            inner = target.get(key)
            if not isinstance(inner, dict | list):
                target[key] = inner = {}
            target = inner
        elif not isinstance(target, dict | list):
            raise ConfigError(f"override {text!r}: {'.'.join(path[: i + 1])} has no keys of its own")
    last = path[-1]
    if isinstance(target, list):
        if not (last.isdigit() and int(last) < len(target)):
            raise ConfigError(f"override {text!r}: no such item")
        target[int(last)] = parsed
    else:
        if last == "kind" and target.get("kind") != parsed:
            target.clear()
        target[last] = parsed
    return path


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`below` with the keys of `above` over it, mapping by mapping; lists and other values are replaced whole.

    A mapping whose `kind` differs replaces the one below it: its other keys belong to another variant.
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            value = merge(old, value)
        result[key] = value
    return result


def validate(kind: type[C], value: Any, *, file: str | Path | None = None, lines: Lines | None = None) -> C:
    """`value` as a `kind`; ConfigError with the key, its line and the nearest valid name otherwise."""
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as failure:
        error = failure.errors()[0]
        path = _key_path(value, tuple(error["loc"]))
        raise _explain(kind, value, error, path, len(failure.errors()), file, lines or {}) from failure


def _key_path(value: Any, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """`loc` without the variant tags that pydantic puts in for unions."""
    path: list[str | int] = []
    for i, step in enumerate(loc):
        known = (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int))
        if known:
            value = value[step]
            path.append(step)
        elif i == len(loc) - 1 and not (isinstance(value, dict) and value.get("kind") == step):
            path.append(step)
    return tuple(path)


def _explain(
    kind: type[Config], value: Any, error: Any, path: tuple[str | int, ...], count: int, file: Any, lines: Lines
) -> ConfigError:
    name = ".".join(map(str, path))
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
    more = f" (and {count - 1} more)" if count > 1 else ""
    if error["type"] == "extra_forbidden":
        names = _names_at(kind, value, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"valid here: {', '.join(names)}" if names else None
        return ConfigError(f"unknown key {name}{more}", file=file, line=line, hint=hint)
    if error["type"] == "missing":
        return ConfigError(f"key {name} is missing{more}", file=file, line=line)
    message = error["msg"].removeprefix("Value error, ")
    given = "" if isinstance(error["input"], dict | list) else f" (given: {error['input']!r})"
    return ConfigError(f"{name or 'recipe'}: {message}{given}{more}", file=file, line=line)


def _names_at(kind: Any, value: Any, path: tuple[str | int, ...]) -> list[str]:
    """The valid key names at `path`, following fields, lists and `kind` unions."""
    candidates = _configs_in(kind)
    for step in path:
        value = value[step] if isinstance(value, dict | list) else None  # type: ignore[index]
        if isinstance(step, int):
            continue
        found: list[type[Config]] = []
        for candidate in candidates:
            if step in candidate.model_fields:
                found += _configs_in(candidate.model_fields[step].annotation)
        candidates = [c for c in found if _kind_fits(c, value)] or found
    return sorted({name for c in candidates for name in c.model_fields})


def _kind_fits(candidate: type[Config], value: Any) -> bool:
    field = candidate.model_fields.get("kind")
    wanted = value.get("kind") if isinstance(value, dict) else None
    return field is None or wanted is None or wanted in typing.get_args(field.annotation)


def _configs_in(annotation: Any) -> list[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    if isinstance(annotation, types.GenericAlias) or typing.get_origin(annotation) is not None:
        return [c for a in typing.get_args(annotation) for c in _configs_in(a)]
    return []
