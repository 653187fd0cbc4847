"""Strict typed configuration: the base class of every config, and YAML that says where each key stands.

Recipes are data: a safe YAML subset (no tags, no aliases, no duplicate keys), validated by frozen pydantic models that
forbid unknown keys. An error names the file, the line and the nearest valid name (reliability.md S2, O4).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml
from pydantic_core import PydanticCustomError

from phraseloom.config_problems import Place, Places, dotted, explain
from phraseloom.config_types import KeyPath, value_at
from phraseloom.errors import ConfigError, CorruptError
from phraseloom.files import require_file
from phraseloom.reading import read_bounded

RECIPE_MAX_BYTES = 2**20
RECIPE_MAX_DEPTH = 30


RECIPE_MAX_DIGITS = 40


class Config(pydantic.BaseModel):
    """Base of every configuration class: frozen; an unknown key is an error, and so is a value of another type.

    Only a whole number where any number fits is converted: true is no 1, "32" no 32, and 8.0 no whole number.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


def _is_whole(value: Any) -> Any:
    """`value` if it is an int: Python finds true and 1.0 among the literals [1]."""
    if type(value) is not int:
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


Whole = pydantic.BeforeValidator(_is_whole)


C = TypeVar("C", bound=Config)


class _Loader(yaml.SafeLoader):
    """YAML with numbers as in JSON: 017 is no octal number, 9:59 no number to the base 60, and 1e3 is a number."""


_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_NUMBER = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
)
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in some if tag not in (_INT, _FLOAT)]
    for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, _WHOLE, list("-+0123456789"))
_Loader.add_implicit_resolver(_FLOAT, _NUMBER, list("-+0123456789."))


def parse_yaml(text: str, *, file: str | Path | None = None) -> tuple[Any, Places]:
    """Plain data from YAML text, and the place of each key path. Tags, aliases and duplicate keys are refused."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            line = event.start_mark.line + 1 if event.start_mark else None
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > RECIPE_MAX_DEPTH:
                raise ConfigError(f"nested deeper than {RECIPE_MAX_DEPTH} levels", file=file, line=line)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ConfigError("YAML anchors and aliases are not allowed in a recipe", file=file, line=line)
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!":
                raise ConfigError(f"YAML tag {tag} is not allowed in a recipe", file=file, line=line)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
        raise ConfigError(f"not valid YAML: {problem}", file=file, line=mark.line + 1 if mark else None) from error
    places: Places = {}
    loader = _Loader("")
    return _plain(node, (), places, loader, file), places


def _plain(node: Any, path: KeyPath, places: Places, loader: _Loader, file: Any) -> Any:
    if node is None:
        return None
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                what = f"a key of {dotted(path) or 'the recipe'} is a list or a mapping"
                raise ConfigError(what, file=file, line=key_node.start_mark.line + 1, hint="a key is one word")
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in result:
                raise ConfigError(f"key {dotted((*path, key))} is given twice", file=file, line=line)
            places[(*path, key)] = Place(file, line, text=_written(value_node))
            result[key] = _plain(value_node, (*path, key), places, loader, file)
        return result
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            places[(*path, i)] = Place(file, item.start_mark.line + 1, text=_written(item))
        return [_plain(item, (*path, i), places, loader, file) for i, item in enumerate(node.value)]
    line = node.start_mark.line + 1
    if node.tag in (_INT, _FLOAT) and len(node.value) > RECIPE_MAX_DIGITS:
        raise ConfigError(f"a number of {len(node.value):,} digits", file=file, line=line)
    try:
        return loader.construct_object(node)
    except (ValueError, ArithmeticError, yaml.YAMLError) as error:
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"value not understood: {problem}", file=file, line=line) from error


def _written(node: Any) -> str | None:
    return node.value if isinstance(node, yaml.ScalarNode) else None


def read_yaml(path: str | Path) -> tuple[dict[str, Any], Places]:
    """The mapping in a YAML file, and the place of each key path."""
    path = require_file(path, "recipe")
    try:
        text = read_bounded(path, "recipe", RECIPE_MAX_BYTES).decode("utf-8-sig")
    except CorruptError as error:
        raise ConfigError(error.what, file=path) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe is not UTF-8 (byte {error.start})", file=path) from error
    value, places = parse_yaml(text, file=path)
    if not isinstance(value, dict):
        raise ConfigError("a recipe is a mapping of keys to values", file=path)
    return value, places


def set_override(value: dict[str, Any], text: str) -> KeyPath:
    """Apply `key.sub=value` (value in YAML) to nested plain data; the path that was set.

    Another `kind` replaces the mapping that it stands in, as in `merge`: the other keys belong to another variant. Items of
    lists are named by their number, from 0, and have to be there. Raises ConfigError.
    """
    name, equals, raw = text.partition("=")
    place = Place(override=text)
    steps = name.strip().split(".")
    if not equals or not all(steps):
        raise place.problem("not of the form key.sub=value")
    if brackets := re.search(r"\[\s*\d+\s*\]", name):
        dots = re.sub(r"\[\s*(\d+)\s*\]", r".\1", name)
        raise place.problem(f"{brackets[0]} is not how an item of a list is named here", hint=f"write {dots}={raw}")
    try:
        parsed, _ = parse_yaml(raw)
    except ConfigError as error:
        raise place.problem(error.what, hint=error.hint) from error
    target: Any = value
    path: KeyPath = ()
    for step in steps[:-1]:
        path = (*path, _step(target, path, step, place))
        inner = value_at(target, path[-1:], None)
        if not isinstance(inner, dict | list):
            target[path[-1]] = inner = {}
        target = inner
    path = (*path, _step(target, path, steps[-1], place))
    if path[-1] == "kind" and target.get("kind") != parsed:
        target.clear()
    target[path[-1]] = parsed
    return path


def _step(target: dict[str, Any] | list[Any], path: KeyPath, step: str, place: Place) -> str | int:
    """`step` as the key of a mapping, or as the number of an item that the list has."""
    if isinstance(target, dict):
        return step
    size = f"{dotted(path)} has {len(target)} item{'s' * (len(target) != 1)}"
    if not (step.isascii() and step.isdigit()):
        raise place.problem(
            f"{size}, and {step!r} is not the number of one", hint=f"such as {dotted((*path, 0))}.{step}"
        )
    if int(step) >= len(target):
        raise place.problem(f"{size}, no {step}", hint="items count from 0; a whole list is written [ , ]")
    return int(step)


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


def validate(kind: type[C], value: Any, *, file: str | Path | None = None, places: Places | None = None) -> C:
    """`value` as a `kind`; ConfigError with the key, its place and the nearest valid name otherwise."""
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as failure:
        raise explain(kind, value, failure, file=file, places=places) from failure
    except TypeError as failure:  # a list or a mapping where the name of a kind or a preset is looked up
        raise ConfigError(f"a name is expected where there is a list or a mapping ({failure})", file=file) from failure
