"""Which keys and kinds may stand where in a configuration: a walk over the types of its fields."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pydantic

KeyPath = tuple[str | int, ...]


def value_at(value: Any, path: KeyPath, otherwise: Any) -> Any:
    """The value at `path` of nested plain data; `otherwise` where there is none."""
    for step in path:
        in_list = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not in_list and not (isinstance(value, dict) and step in value):
            return otherwise
        value = value[step]
    return value


def places_of(annotation: Any, name: str, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every place below a type at which there may be a key `name`; items of lists are left out."""
    for config in filter(_is_config, members(annotation)):
        for field, info in config.model_fields.items():
            if field == name:
                yield (*path, field)
            yield from places_of(info.annotation, name, (*path, field))


def types_at(kind: Any, value: Any, path: KeyPath) -> list[Any]:
    """The types that the value at `path` may have, by the fields, lists, mappings and kinds on the way."""
    found = [kind]
    for step in path:
        value = value_at(value, (step,), None)
        found = _step(found, step, value)
    return found


def _step(annotations: list[Any], step: str | int, value: Any) -> list[Any]:
    """The types of the `value` that stands at `step` of one of these types."""
    found = [inner for outer in annotations for inner in _below(outer, step)]
    return [a for a in found if _kind_fits(a, value)] or found


def _below(outer: Any, step: str | int) -> Iterator[Any]:
    if _is_config(outer):
        if step in outer.model_fields:
            yield from members(outer.model_fields[step].annotation)
    elif typing.get_origin(outer) in (list, dict):
        yield from members(typing.get_args(outer)[-1])


def members(annotation: Any) -> Iterator[Any]:
    """The types of a union, or the one type."""
    if typing.get_origin(annotation) is typing.Annotated:
        yield from members(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for one in typing.get_args(annotation):
            yield from members(one)
    else:
        yield annotation


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def keys(kinds: Iterable[Any]) -> list[str]:
    """The keys that there may be where one of these types stands."""
    return sorted({name for kind in kinds if _is_config(kind) for name in kind.model_fields})


def kinds(found: Iterable[Any]) -> list[str]:
    """The variants of a union that is chosen by `kind`, or the names of literals."""
    names: list[str] = []
    for one in found:
        if _is_config(one) and "kind" in one.model_fields:
            one = one.model_fields["kind"].annotation
        if typing.get_origin(one) is typing.Literal:
            names += map(str, typing.get_args(one))
    return list(dict.fromkeys(names))


def _kind_fits(candidate: Any, value: Any) -> bool:
    wanted = value.get("kind") if isinstance(value, Mapping) else None
    if not _is_config(candidate) or "kind" not in candidate.model_fields or wanted is None:
        return True
    names: tuple[Any, ...] = typing.get_args(candidate.model_fields["kind"].annotation)
    return isinstance(wanted, str) and wanted in names
