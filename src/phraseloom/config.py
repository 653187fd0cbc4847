"""Strict typed configuration: the base class of every config, YAML with the place of each key, and error messages.

Recipes are data: a safe YAML subset (no tags, no aliases, no duplicate keys), validated by frozen pydantic models that
forbid unknown keys. pydantic reports which value does not fit and why; `explain` adds the file and line, or the override
of the command line, that the value comes from, and the nearest valid name (reliability.md S2, O4).
"""

from __future__ import annotations

import copy
import difflib
import re
import types
import typing
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import pydantic
import yaml
from pydantic_core import PydanticCustomError

from phraseloom.errors import ConfigError, CorruptError, plural
from phraseloom.files import require_file
from phraseloom.other_names import suggest_key
from phraseloom.reading import read_bounded

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
    """Every place below a type that may have a key `name`, except in lists."""
    for config in filter(_is_config, members(annotation)):
        for field, info in config.model_fields.items():
            if field == name:
                yield (*path, field)
            yield from places_of(info.annotation, name, (*path, field))


def types_at(kind: Any, value: Any, path: KeyPath) -> list[Any]:
    """The types that the value at `path` may have, found by walking down the fields, lists, mappings and kinds."""
    annotations = [kind]
    for step in path:
        value = value_at(value, (step,), None)
        annotations = _type_step(annotations, step, value)
    return annotations


def _type_step(annotations: list[Any], step: str | int, value: Any) -> list[Any]:
    """The types of the `value` at `step` of one of these types."""
    candidates = [inner for outer in annotations for inner in _below(outer, step)]
    return [a for a in candidates if _kind_fits(a, value)] or candidates


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
        for member in typing.get_args(annotation):
            yield from members(member)
    else:
        yield annotation


def bounds(kind: type[pydantic.BaseModel], field: str) -> tuple[Any, Any]:
    """The least and the greatest number that a field takes; None for a bound that it does not have, or excludes."""
    info = kind.model_fields[field]
    marks = [*info.metadata, *_inner_marks(info.annotation)]
    least, greatest = ([getattr(m, name) for m in marks if hasattr(m, name)] for name in ("ge", "le"))
    return (least[0] if least else None), (greatest[0] if greatest else None)


def _inner_marks(annotation: Any) -> Iterator[Any]:
    for mark in getattr(annotation, "__metadata__", ()):
        yield from getattr(mark, "metadata", ())
    for inner in typing.get_args(annotation):
        yield from _inner_marks(inner)


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def keys(kinds: Iterable[Any]) -> list[str]:
    """The keys of all these types, sorted."""
    return sorted({name for kind in kinds if _is_config(kind) for name in kind.model_fields})


def kinds(annotations: Iterable[Any]) -> list[str]:
    """The variants of a union with a `kind`, or the values of literals."""
    names: list[str] = []
    for annotation in annotations:
        if _is_config(annotation) and "kind" in annotation.model_fields:
            annotation = annotation.model_fields["kind"].annotation
        if typing.get_origin(annotation) is typing.Literal:
            names += map(str, typing.get_args(annotation))
    return list(dict.fromkeys(names))


def _kind_fits(candidate: Any, value: Any) -> bool:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not _is_config(candidate) or "kind" not in candidate.model_fields or kind is None:
        return True
    names: tuple[Any, ...] = typing.get_args(candidate.model_fields["kind"].annotation)
    return isinstance(kind, str) and kind in names


RECIPE_MAX_BYTES = 2**20
RECIPE_MAX_DEPTH = 30
RECIPE_MAX_DIGITS = 40


class Config(pydantic.BaseModel):
    """Base of every configuration class: frozen; an unknown key or a value of another type is an error.

    The only conversion is from a whole number to a float: true is not 1, "32" is not 32, and 8.0 is not a whole number.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
    former_keys: ClassVar[Mapping[str, KeyPath]] = {}
    """Keys of earlier versions that are still read, each with the path that it sets."""


def _is_whole(value: Any) -> Any:
    """`value` if it is an int: for Python, true and 1.0 equal the literal 1."""
    if type(value) is not int:
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


Whole = pydantic.BeforeValidator(_is_whole)

JsonSchema = dict[str, Any]


ABOUT = ("title", "description", "default")
"""Keys of a JSON schema that do not restrict the value."""


def or_short(form: JsonSchema) -> Callable[[JsonSchema], None]:
    """A `json_schema_extra`: `form` may stand in place of the value, because a validator reads it."""

    def extend(schema: JsonSchema) -> None:
        whole = {key: schema.pop(key) for key in list(schema) if key not in ABOUT}
        schema["anyOf"] = [copy.deepcopy(form), whole]

    return extend


def or_value_of(field: str) -> Callable[[JsonSchema], None]:
    """A `json_schema_extra` of a class: the value of this field may stand in place of the mapping."""

    def extend(schema: JsonSchema) -> None:
        or_short({key: value for key, value in schema["properties"][field].items() if key not in ABOUT})(schema)

    return extend


def with_former_keys(schema: JsonSchema, kind: type[Config]) -> None:
    """A `json_schema_extra` of a class: its `former_keys` are keys."""
    for key, path in kind.former_keys.items():
        schema["properties"][key] = {"deprecated": True, "description": f"Former name of {dotted(path)}."}


C = TypeVar("C", bound=Config)


class _NotAllowed(yaml.MarkedYAMLError):
    """Valid YAML that a recipe may not have."""


class _Loader(yaml.SafeLoader):
    """YAML with numbers as in JSON: 017 is not octal, 9:59 is not a base-60 number, and 1e3 is a number.

    No tags, aliases or deep nesting.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        collection = isinstance(event, yaml.CollectionStartEvent)
        self.depth += collection
        problem, tag = None, getattr(event, "tag", None)
        if self.depth > RECIPE_MAX_DEPTH:
            problem = f"nested deeper than {RECIPE_MAX_DEPTH} levels"
        elif getattr(event, "anchor", None):  # an alias has one too
            problem = "YAML anchors and aliases are not allowed in a recipe"
        elif tag is not None and tag != "!":
            problem = f"YAML tag {tag} is not allowed in a recipe"
        if problem is not None:
            raise _NotAllowed(problem=problem, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= collection
        return node


_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_NUMBER = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
)
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT, _FLOAT)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
NUMBERS = ((_INT, _WHOLE, list("-+0123456789")), (_FLOAT, _NUMBER, list("-+0123456789.")))
"""What is a number in our YAML: tag, pattern, first characters."""
for _resolver in NUMBERS:
    _Loader.add_implicit_resolver(*_resolver)


@lru_cache(maxsize=256)  # a table of `reproduce` reads the recipes under its own once for each training
def _compose(text: str) -> Any:
    return yaml.compose(text, Loader=_Loader)


def parse_yaml(text: str, *, file: str | Path | None = None) -> tuple[Any, Places]:
    """Plain data from YAML text, and the place of each key path. Tags, aliases and duplicate keys are refused."""
    try:
        node = _compose(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
        what = problem if isinstance(error, _NotAllowed) else f"not valid YAML: {problem}"
        raise ConfigError(what, file=file, line=mark.line + 1 if mark else None) from error
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


PATH = re.compile(r"(?:/|\.{1,2}/|~/)")
"""How values of overrides begin that are paths, and not read as YAML."""


def set_override(
    value: dict[str, Any],
    text: str,
    expand: Callable[[KeyPath, Any], dict[str, Any] | None] | None = None,
    kinds: Mapping[KeyPath, str] | None = None,
) -> KeyPath:
    """Apply `key.sub=value` (value in YAML) to nested plain data; return the path that was set.

    A path (/…, ./…, ../…, ~/…) is taken as it is, and text without quotes has no comment, so that ` #` may be in it.
    A new `kind` clears its mapping, as in `merge`: the other keys belong to another variant. Items of lists are named by
    their number, from 0, and must exist. `expand`: one word at a path as a mapping, None if it is none. `kinds`: those of
    mappings that name none. Raises ConfigError, also for a key below a word that is no mapping: the word would be lost.
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
        parsed = raw if PATH.match(raw) else parse_yaml(raw)[0]
    except ConfigError as error:
        raise place.problem(error.what, hint=error.hint) from error
    if isinstance(parsed, str) and " #" in raw and raw.lstrip()[:1] not in ("'", '"'):
        parsed = raw.strip()
    target: Any = value
    path: KeyPath = ()
    for step in steps[:-1]:
        path = (*path, _step(target, path, step, place))
        inner = value_at(target, path[-1:], None)
        if not isinstance(inner, dict | list):
            mapping = {} if inner is None else expand and expand(path, inner)
            if mapping is None:
                hint = f"to replace it by a mapping, write {dotted(path)}={{…}} with all its keys"
                raise place.problem(f"{dotted(path)} is {inner!r} here, which has no keys", hint=hint)
            target[path[-1]] = inner = mapping
        target = inner
    path = (*path, _step(target, path, steps[-1], place))
    if path[-1] == "kind" and target.get("kind", (kinds or {}).get(path[:-1])) != parsed:
        target.clear()
    target[path[-1]] = parsed
    return path


def _step(target: dict[str, Any] | list[Any], path: KeyPath, step: str, place: Place) -> str | int:
    """`step` as the key of a mapping, or as the number of an existing item of a list."""
    if isinstance(target, dict):
        return step
    size = f"{dotted(path)} has {plural(len(target), 'item')}"
    if not (step.isascii() and step.isdigit()):
        raise place.problem(
            f"{size}, and {step!r} is not the number of one", hint=f"such as {dotted((*path, 0))}.{step}"
        )
    if int(step) >= len(target):
        raise place.problem(f"{size}, no {step}", hint="items count from 0; a whole list is written [ , ]")
    return int(step)


def merge(
    below: dict[str, Any], above: dict[str, Any], kinds: Mapping[KeyPath, str] | None = None, path: KeyPath = ()
) -> dict[str, Any]:
    """`below` updated with `above`, mapping by mapping; lists and other values are replaced whole.

    A mapping whose `kind` differs replaces the one below it: its other keys belong to another variant. `kinds`: those of
    mappings that name none, by their place; `path`: the place of these two.
    """
    result = dict(below)
    for key, value in above.items():
        old, here = result.get(key), (*path, key)
        if isinstance(old, dict) and isinstance(value, dict):
            kind = old.get("kind", (kinds or {}).get(here))
            if value.get("kind", kind) == kind:
                value = merge(old, value, kinds, here)
        result[key] = value
    return result


def validate(kind: type[C], value: Any, *, file: str | Path | None = None, places: Places | None = None) -> C:
    """`value` as a `kind`. Raises ConfigError with the key, its place and the nearest valid name."""
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as failure:
        raise explain(kind, value, failure, file=file, places=places) from failure
    except TypeError as failure:  # a list or a mapping in place of the name of a kind or a preset
        raise ConfigError(f"a name is expected where there is a list or a mapping ({failure})", file=file) from failure


OVERRIDES_NAMED = 3
LONGEST_SHOWN, SHOWN = 120, 60


class Place(NamedTuple):
    """The place of a value: a line (from 1) of a file, or an `override` of the command line.

    `text`: a scalar as it is written there, before YAML turns it into a boolean, a number or a date.
    """

    file: str | Path | None = None
    line: int | None = None
    override: str | None = None
    text: str | None = None

    def problem(self, what: str, *, hint: str | None = None) -> ConfigError:
        """A ConfigError at this place."""
        if self.override is not None:
            return ConfigError(f"override {short(self.override)!r}: {what}", hint=hint)
        return ConfigError(what, file=self.file, line=self.line, hint=hint)


Places = dict[KeyPath, Place]


def short(text: str) -> str:
    """`text`; a long one is cut, and its length added, to keep a message readable."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


class _BadValue(NamedTuple):
    """A value that does not fit: its key, the value, the types that would fit, its place."""

    path: KeyPath
    given: Any
    annotations: list[Any]
    place: Place

    @property
    def key(self) -> str:
        return dotted(self.path)

    @property
    def start(self) -> str:
        """How a message about the value begins; empty for the whole configuration, which has no key."""
        return f"{self.key}: " if self.path else ""

    @property
    def text(self) -> str:
        """The value as it is written, if that is known; empty for a mapping or list."""
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


def one_of(name: Any, names: Iterable[str]) -> str:
    """`did you mean …?` with the nearest of `names`, or all of them."""
    names = list(names)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(names)}"


def explain(
    kind: type[pydantic.BaseModel],
    value: Any,
    failure: pydantic.ValidationError,
    *,
    file: str | Path | None = None,
    places: Places | None = None,
) -> ConfigError:
    """The first error of pydantic in `value`, reworded, with the number of other wrong keys."""
    places = places or {}
    groups: dict[KeyPath, list[Any]] = {}
    for error in failure.errors():
        groups.setdefault(_key_path(kind, value, error), []).append(error)
    # A misspelt key is reported twice, as unknown and as missing; unknown is more helpful.
    path, errors = min(groups.items(), key=lambda group: group[1][0]["type"] == "missing")
    path = _as_written(kind, value, path)
    known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in places), None)
    place = Place(file) if known is None else places[known]
    if path != known:
        place = place._replace(text=None)
    bad = _BadValue(path, value_at(value, path, errors[0]["input"]), types_at(kind, value, path), place)
    if errors[0]["type"] == "extra_forbidden":
        unknown = errors[0]["loc"][-1]
        if path[-1:] == (unknown,):
            what, hint = f"unknown key {bad.key}", _known_keys(kind, value, path)
        else:  # text that is short for a mapping with this key
            what, hint = f"{bad.start}{bad.text or 'this'} is short for a mapping with the unknown key {unknown}", None
    elif errors[0]["type"] in ("missing", "union_tag_not_found"):
        names = kinds(bad.annotations)
        what, hint = f"key {bad.key} is missing", f"one of {', '.join(names)}" if names else None
    else:
        what, hint = _misfit(bad, errors)
        what += _overrides_below(known or path, places) if place.override is None else ""
    more = f" (and {len(groups) - 1} more)" if len(groups) > 1 else ""
    return place.problem(what + more, hint=hint)


def _overrides_below(path: KeyPath, places: Places) -> str:
    """The overrides that set keys below `path`, because a conflict may come from them."""
    overrides = [p.override for key, p in places.items() if p.override is not None and key[: len(path)] == path]
    names = list(dict.fromkeys(overrides))
    dots = " …" if len(names) > OVERRIDES_NAMED else ""
    return f" (with {' '.join(map(short, names[:OVERRIDES_NAMED]))}{dots})" if names else ""


def _key_path(kind: type[pydantic.BaseModel], value: Any, error: Any) -> KeyPath:
    """The key of an error as named in `value`, without pydantic's own steps (variants of unions, shorthands).

    A key that is written under a former name (`init_range` for `init.range`) is named as in `kind`; see `_as_written`.
    """
    path: list[str | int] = []
    loc, whole = tuple(error["loc"]), value
    for i, step in enumerate(loc):
        known = isinstance(value, dict) and step in value
        if known or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
            path.append(step)
        elif (
            isinstance(value, dict)
            and not _is_short(value, loc[i:], error)
            and step in keys(types_at(kind, whole, tuple(path)))
        ):
            value = {}
            path.append(step)
        elif i == len(loc) - 1 and error["type"] == "missing":
            path.append(step)
    if error["type"].startswith("union_tag") and isinstance(value, dict):
        path.append(error["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def _as_written(kind: type[pydantic.BaseModel], value: Any, path: KeyPath) -> KeyPath:
    """`path`, or the former key by which `value` sets it."""
    for n in range(len(path)):
        for config in types_at(kind, value, path[:n]):
            for former, steps in getattr(config, "former_keys", {}).items():
                if path[n:] == steps and value_at(value, (*path[:n], former), None) is not None:
                    return (*path[:n], former)
    return path


def _is_short(value: dict[str, Any], steps: Sequence[str | int], error: Any) -> bool:
    """Whether `value` is short for a mapping with the first of these steps: it stands there itself, or has a later step."""
    return error["input"] == value or any(step in value for step in steps)


# What a value should be, by the type of pydantic's error.
EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
}


def _misfit(bad: _BadValue, errors: Sequence[Any]) -> tuple[str, str | None]:
    """The message and the hint for a value of the wrong type, range or variant."""
    types = {error["type"] for error in errors}
    tag = next((e for e in errors if e["type"] == "union_tag_invalid"), None)
    if tag is not None:
        names = re.findall(r"'([^']*)'", tag["ctx"]["expected_tags"])
        return f"{bad.start}{bad.text} is not known", one_of(bad.given, names)
    if "too_short" in types:
        least = errors[0]["ctx"]["min_length"]
        return f"{bad.start}should have at least {plural(least, 'item')}{_given(bad)}", None
    expected = [_expected(error) for error in errors]
    if all(expected):
        alternatives = " or ".join(dict.fromkeys(filter(None, expected)))
        return f"{bad.start}should be {alternatives}{_given(bad)}", _hint(bad, errors)
    message = errors[0]["msg"].removeprefix("Value error, ")
    if types == {"string_too_short"}:
        message = "is empty"
    elif types == {"string_pattern_mismatch"}:
        message = f"is not of the form {errors[0]['ctx']['pattern']}"
    given = "" if bad.text in message else _given(bad)
    return (f"{bad.start}{message}{given}" if bad.path else message), None


def _given(bad: _BadValue) -> str:
    return f" (given: {bad.text})" if bad.text else ""


def _expected(error: Any) -> str | None:
    """What the value should be, to follow `should be`; None for an error of another form."""
    if error["type"] == "literal_error":
        return " or ".join(", ".join(_literals(error)).rsplit(", ", 1))
    if error["type"] in EXPECTED:
        return EXPECTED[error["type"]]
    start = "Input should be "
    return str(error["msg"]).removeprefix(start) if error["msg"].startswith(start) else None


def _literals(error: Any) -> list[str]:
    expected = error["ctx"]["expected"]
    return re.findall(r"'([^']*)'", expected) or [expected]


def _hint(bad: _BadValue, errors: Sequence[Any]) -> str | None:
    types = {error["type"] for error in errors}
    names = [name for e in errors if e["type"] == "literal_error" for name in _literals(e)]
    if names and isinstance(bad.given, str):
        near = difflib.get_close_matches(bad.given, names, n=1, cutoff=0.5)
        return f"did you mean {near[0]}?" if near else None
    single = not isinstance(bad.given, dict | list) and bad.given is not None
    if "string_type" in types and single:
        if bad.place.override is not None:
            return f"put it in quotes that the shell leaves: {bad.key}='\"{bad.text}\"'"
        return f'put it in quotes: "{bad.text}"'
    if "list_type" in types and bad.given is not None:
        return "put it in [ ], even if it is one"
    if EXPECTED["model_type"] in map(EXPECTED.get, types):
        variants, names = kinds(bad.annotations), keys(bad.annotations)
        if variants:
            return f"such as {{kind: {variants[0]}}}; kinds: {', '.join(variants)}"
        return f"its keys: {', '.join(names)}" if names else None
    return None


class _Keys(Container[str]):
    """The dotted keys that a configuration of this class may have; lists and mappings by name are left out."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __contains__(self, key: object) -> bool:
        return any(dotted(place) == key for place in places_of(self.kind, str(key).rpartition(".")[2]))


def _variants(kind: Any, value: Any, path: KeyPath) -> list[Any]:
    """The classes of every `kind` that the mapping at `path` may have."""
    outer = types_at(kind, value, path[:-1])
    variants = (inner for config in outer for inner in _below(config, path[-1])) if path else ()
    return [v for v in variants if _is_config(v) and "kind" in v.model_fields]


def _known_keys(kind: Any, value: Any, path: KeyPath) -> str | None:
    """A suggestion: the kind here that has the key, our key for the name of another toolkit, the nearest key here, one key
    elsewhere (or two below) of the same name, or all keys here."""
    name, names = str(path[-1]), keys(types_at(kind, value, path[:-1]))
    if others := kinds(config for config in _variants(kind, value, path[:-1]) if name in config.model_fields):
        return f"kind: {' or '.join(others)} has it"
    if path[-1] not in names and (other := suggest_key(name, _Keys(kind))) is not None:
        return other
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not difflib.get_close_matches(name, names, n=1, cutoff=0.8):
        elsewhere = {place for place in places_of(kind, name) if place != path}
        below = {place for place in elsewhere if place[: len(path) - 1] == path[:-1]}
        meant = elsewhere if len(elsewhere) == 1 else below
        if 1 <= len(meant) <= 2:
            return f"did you mean {' or '.join(sorted(map(dotted, meant)))}?"
    return f"did you mean {near[0]}?" if near else f"valid here: {', '.join(names)}" if names else None
