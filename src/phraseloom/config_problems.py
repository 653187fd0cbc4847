"""What is wrong with a configuration, in the words of a recipe: the key, its place, what would fit.

pydantic says where a value does not fit and why; `explain` says it with the line of the file, or the override of the
command line, that the value comes from, and with the nearest valid name (reliability.md O4).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pydantic

from phraseloom.config_types import KeyPath, keys, kinds, places_of, types_at, value_at
from phraseloom.errors import ConfigError

OVERRIDES_NAMED = 3
LONGEST_SHOWN, SHOWN = 120, 60


class Place(NamedTuple):
    """Where a value stands: a line (from 1) of a file, or in an `override`, as given on the command line.

    `text`: a single value as it is written there, before YAML makes a truth value, a number or a date of it.
    """

    file: str | Path | None = None
    line: int | None = None
    override: str | None = None
    text: str | None = None

    def problem(self, what: str, *, hint: str | None = None) -> ConfigError:
        """The error that says so, at this place."""
        if self.override is not None:
            return ConfigError(f"override {short(self.override)!r}: {what}", hint=hint)
        return ConfigError(what, file=self.file, line=self.line, hint=hint)


Places = dict[KeyPath, Place]


def short(text: str) -> str:
    """`text`, of a long one the beginning and its length: a message is one line that can be read."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


class _Found(NamedTuple):
    """A value that does not fit: its key, the value as it was given, what could stand there (types), where it stands."""

    path: KeyPath
    given: Any
    annotations: list[Any]
    place: Place

    @property
    def key(self) -> str:
        return dotted(self.path)

    @property
    def text(self) -> str:
        """The value as it is written, as far as that is known; empty for a mapping or list."""
        if isinstance(self.given, dict | list):
            return ""
        if self.place.text and not isinstance(self.given, str):
            return short(self.place.text)
        if self.given is None:
            return "nothing"
        if isinstance(self.given, bool):
            return "true" if self.given else "false"
        return repr(short(self.given)) if isinstance(self.given, str) else short(str(self.given))


def dotted(path: KeyPath) -> str:
    """`data.train.0.source`."""
    return ".".join(short(str(step)) for step in path)


def one_of(name: Any, names: Iterable[str], *, cutoff: float = 0.5) -> str:
    """`did you mean …?` with the nearest of `names`, or all of them."""
    names = list(names)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(names)}"


def explain(
    kind: type[pydantic.BaseModel],
    value: Any,
    failure: pydantic.ValidationError,
    *,
    file: str | Path | None = None,
    places: Places | None = None,
) -> ConfigError:
    """The first of what pydantic found in `value`, as an error in our words; how many keys more are wrong."""
    places = places or {}
    groups: dict[KeyPath, list[Any]] = {}
    for error in failure.errors():
        groups.setdefault(_key_path(value, error), []).append(error)
    # A misspelt key is found twice, as unknown and as missing; that it is unknown says more.
    path, errors = min(groups.items(), key=lambda group: group[1][0]["type"] == "missing")
    place = next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), Place(file))
    if path not in places:
        place = place._replace(text=None)
    found = _Found(path, value_at(value, path, errors[0]["input"]), types_at(kind, value, path), place)
    if errors[0]["type"] == "extra_forbidden":
        what, hint = f"unknown key {found.key}", _known_keys(kind, value, path)
    elif errors[0]["type"] in ("missing", "union_tag_not_found"):
        names = kinds(found.annotations)
        what, hint = f"key {found.key} is missing", f"one of {', '.join(names)}" if names else None
    else:
        what, hint = _misfit(found, errors)
        what += _overrides_below(path, places) if place.override is None else ""
    more = f" (and {len(groups) - 1} more)" if len(groups) > 1 else ""
    return place.problem(what + more, hint=hint)


def _overrides_below(path: KeyPath, places: Places) -> str:
    """The overrides that set keys below `path`: what does not fit together may come from them."""
    found = [p.override for key, p in places.items() if p.override is not None and key[: len(path)] == path]
    names = list(dict.fromkeys(found))
    rest = " …" if len(names) > OVERRIDES_NAMED else ""
    return f" (with {' '.join(map(short, names[:OVERRIDES_NAMED]))}{rest})" if names else ""


def _key_path(value: Any, error: Any) -> KeyPath:
    """The key that an error is about, as it is named in `value`.

    pydantic's own steps (the variants of a union, what a shorthand stands for) are left out.
    """
    path: list[str | int] = []
    loc = tuple(error["loc"])
    for i, step in enumerate(loc):
        known = isinstance(value, dict) and step in value
        if known or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
            path.append(step)
        elif i == len(loc) - 1 and error["type"] == "missing":
            path.append(step)
    if error["type"].startswith("union_tag") and isinstance(value, dict):
        path.append(error["ctx"]["discriminator"].strip("'"))
    return tuple(path)


# What a value should be, by the type of pydantic's error.
WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
}


def _misfit(found: _Found, errors: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong with a value that is not of its type or range, or for which no union has a variant; and the way out."""
    types = {error["type"] for error in errors}
    tag = next((e for e in errors if e["type"] == "union_tag_invalid"), None)
    if tag is not None:
        names = re.findall(r"'([^']*)'", tag["ctx"]["expected_tags"])
        return f"{found.key}: {found.text} is not known", one_of(found.given, names)
    if "too_short" in types:
        least = errors[0]["ctx"]["min_length"]
        return f"{found.key}: should have at least {least} item{'s' * (least != 1)}{_given(found)}", None
    wanted = [_wanted(error) for error in errors]
    if all(wanted):
        said = " or ".join(dict.fromkeys(filter(None, wanted)))
        return f"{found.key}: should be {said}{_given(found)}", _way_out(found, errors)
    message = errors[0]["msg"].removeprefix("Value error, ")
    if types == {"string_too_short"}:
        message = "is empty"
    elif types == {"string_pattern_mismatch"}:
        message = f"is not of the form {errors[0]['ctx']['pattern']}"
    given = "" if found.text in message else _given(found)
    return f"{found.key}: {message}{given}" if found.path else f"{message}", None


def _given(found: _Found) -> str:
    return f" (given: {found.text})" if found.text else ""


def _wanted(error: Any) -> str | None:
    """What should stand there, to be said after `should be`; None for an error that says something else."""
    if error["type"] == "literal_error":
        return " or ".join(", ".join(_literals(error)).rsplit(", ", 1))
    if error["type"] in WANTED:
        return WANTED[error["type"]]
    start = "Input should be "
    return str(error["msg"]).removeprefix(start) if error["msg"].startswith(start) else None


def _literals(error: Any) -> list[str]:
    expected = error["ctx"]["expected"]
    return re.findall(r"'([^']*)'", expected) or [expected]


def _way_out(found: _Found, errors: Sequence[Any]) -> str | None:
    types = {error["type"] for error in errors}
    names = [name for e in errors if e["type"] == "literal_error" for name in _literals(e)]
    if names and isinstance(found.given, str):
        near = difflib.get_close_matches(found.given, names, n=1, cutoff=0.5)
        return f"did you mean {near[0]}?" if near else None
    single = not isinstance(found.given, dict | list) and found.given is not None
    if "string_type" in types and single:
        if found.place.override is not None:
            return f"put it in quotes that the shell leaves: {found.key}='\"{found.text}\"'"
        return f'put it in quotes: "{found.text}"'
    if "list_type" in types and found.given is not None:
        return "put it in [ ], even if it is one"
    if WANTED["model_type"] in map(WANTED.get, types):
        variants, names = kinds(found.annotations), keys(found.annotations)
        if variants:
            return f"such as {{kind: {variants[0]}}}; kinds: {', '.join(variants)}"
        return f"its keys: {', '.join(names)}" if names else None
    return None


def _known_keys(kind: Any, value: Any, path: KeyPath) -> str | None:
    """Which key may have been meant: the nearest one here, one elsewhere (or two below) of that very name, or all here."""
    name, names = str(path[-1]), keys(types_at(kind, value, path[:-1]))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not difflib.get_close_matches(name, names, n=1, cutoff=0.8):
        elsewhere = {place for place in places_of(kind, name) if place != path}
        below = {place for place in elsewhere if place[: len(path) - 1] == path[:-1]}
        meant = elsewhere if len(elsewhere) == 1 else below
        if 1 <= len(meant) <= 2:
            return f"did you mean {' or '.join(sorted(map(dotted, meant)))}?"
    return f"did you mean {near[0]}?" if near else f"valid here: {', '.join(names)}" if names else None
