"""Mutated recipes and overrides: each is read, or refused with exit code 2 and one clear line; never anything else.

The mutations start from the recipes of this repository: values of other types and sizes, keys that are lost, doubled,
misspelt or in another place, YAML that only looks like data, bytes that are no YAML, and overrides of all of these.
`make test` draws the same few every time; `-m full --hypothesis-profile=explore` draws new ones without end.
"""

from __future__ import annotations

import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phraseloom.errors import ConfigError, UsageError
from phraseloom.recipe import LanguageModelRecipe, Recipe, load_recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPES = [
    "demo/world.yaml", "own/small.yaml", "multi30k/de-en.yaml", "segments/world.yaml", "continuous/world_pconmt.yaml",
    "paper001/table1_en-de_base.yaml", "paper002/table1_en-de_base.yaml", "paper004/table1_fi-en_rnn.yaml",
]  # fmt: skip
MOST_BYTES = 30 * 2**20
LONGEST_MESSAGE = 3000

# Written as they are into the YAML: what people, programs and enemies write where a value belongs.
ODD = [
    "", "~", "null", "true", "no", "on", "0", "-1", "1.0", "1e3", "1e400", ".inf", "-.inf", ".nan", "017", "0x20", "0b1",
    "1_000", "9:59", "9:59:59.0", "2020-01-01", "2020-13-45", "2001-12-14t21:59:43.10-99:99", "0001-01-01 00:00:00 +23:59",
    "9" * 30, "9" * 5000, "-" + "9" * 5000, "0." + "0" * 500 + "1", "1e" + "9" * 400, "0.9999999", "[]", "{}", "[[]]", "[{}]",
    "[1, a, true]", "{kind: []}", "{kind: {}}", "{kind: null}", "{kind: 3}", "{kind: x}", "{null: 1}", "{[a]: b}",
    "{{a: b}: c}",
    "? [a, b] : c", "{? {a: b} : c}", "{true: 1}", "{a: 1, a: 2}", "{<<: {a: 1}}", "=", "<<", "!!python/name:os.system ''",
    "!!int '3'", "!x y", "&a b", "*a", "&a [*a]", '"32"', "'32'", '"true"', "'", '"',
    "[", "{", "}", "]", "a: b: c", "- a", "|", ">",
    "%", "@", "`", "#", "a # b", "\\0",
    '"\\0"', '"\\ud800"', '"\\x1b[31m"', '"\\u202e"', "\u2028", "\x85", "\t", "é", "模型", "😀",
    "a" * 5000, "[" * 40 + "]" * 40, "[" * 200, "{a: " * 40 + "1" + "}" * 40, "../../x", "/etc/passwd",
    "/dev/null", ".", "..", "a/b", "a\\b",
    "translation", "language_model", "words", "sentencepiece", "transformer", "recurrent", "none", "auto", "token", "queryk",
    "queryk heterogeneous 1-2", "queryk homogeneous 99999999999", "convkv interleaved 1-2-3-4-5-6-7-8",
    "softmax", "von_mises_fisher",
]  # fmt: skip
KEYS = [
    "", "kind", "name", "base", "task", "format", "data", "model", "training", "decoding", "width", "heads",
    "layers", "encoder", "0", "-1",
    "99999999999999999999999", "x" * 5000, "a b", "é", "<<", "__class__", "model_fields",
    "[0]", "[", "{a: b}", "data.train", "'", '"', "\x00",
]  # fmt: skip


def resolved(name: str) -> dict[str, Any]:
    """A recipe of the repository with its base, as plain data."""
    value: dict[str, Any] = yaml.safe_load((ROOT / "recipes" / name).read_bytes())
    if "base" in value:
        below = yaml.safe_load(((ROOT / "recipes" / name).parent / value.pop("base")).read_bytes())
        for key, inner in below.items():
            both = isinstance(inner, dict) and isinstance(value.get(key), dict)
            value[key] = {**inner, **value[key]} if both else value.get(key, inner)
    return value


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key path of nested plain data."""
    if isinstance(value, dict | list):
        steps = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, inner in steps for found in [(*path, key), *paths_of(inner, (*path, key))]]
    return []


BASES = {name: resolved(name) for name in RECIPES}
PATHS = {name: paths_of(value) for name, value in BASES.items()}


class Raw(str):
    """YAML text that is written as it is."""


def written(value: Any) -> str:
    """Plain data as YAML in one line, `Raw` values as they are."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{k if isinstance(k, Raw) else json.dumps(k)}: {written(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value, default=str)


@st.composite
def mutated(draw: Any) -> bytes:
    """The bytes of a recipe with a few values replaced, keys lost, renamed or moved; now and then no YAML at all."""
    name = draw(st.sampled_from(RECIPES))
    value = copy.deepcopy(BASES[name])
    for _ in range(draw(st.integers(1, 3))):
        *steps, last = draw(st.sampled_from(PATHS[name]))
        inner: Any = value
        for step in steps:
            ok = step in inner if isinstance(inner, dict) else isinstance(inner, list) and step < len(inner)
            inner = inner[step] if ok else None
            if not ok:
                break
        if not isinstance(inner, dict | list):
            continue
        odd = Raw(draw(st.sampled_from(ODD) | st.text(max_size=8)))
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "rename", "wrap"]))
        if isinstance(inner, list):
            inner[:] = [*inner, odd] if how == "add" else [odd]
        elif how == "remove":
            inner.pop(last, None)
        elif how == "rename":
            inner[draw(st.sampled_from(KEYS))] = inner.pop(last, None)
        elif how == "wrap":
            inner[last] = [inner.get(last)]
        else:
            inner[draw(st.sampled_from(KEYS)) if how == "add" else last] = odd
    content = "\n".join(f"{json.dumps(k)}: {written(v)}" for k, v in value.items()).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(st.binary(max_size=6)) + content[at:]
    return content


@st.composite
def overrides(draw: Any) -> tuple[str, list[str]]:
    """A recipe and overrides of its keys, of keys beside them, and of none."""
    name = draw(st.sampled_from(RECIPES))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        path = [str(step) for step in draw(st.sampled_from(PATHS[name]))]
        if draw(st.integers(0, 3)) == 0:
            path[draw(st.integers(0, len(path) - 1))] = draw(st.sampled_from(KEYS) | st.text(max_size=5))
        if draw(st.integers(0, 5)) == 0:
            path.append(draw(st.sampled_from(KEYS)))
        equals = "" if draw(st.integers(0, 20)) == 0 else "="
        found.append(".".join(path) + equals + draw(st.sampled_from(ODD) | st.text(max_size=8)))
    return name, found


def read(path: Path, changes: list[str], *, measure: bool = False) -> None:
    """Read a recipe: a whole one, or one line that says what is wrong; `measure`: within bounded memory (slow)."""
    if measure:
        tracemalloc.start()
    try:
        recipe = load_recipe(path, changes)
        assert isinstance(recipe, Recipe | LanguageModelRecipe)
        json.dumps(recipe.model_dump(mode="json"), allow_nan=False)
    except ConfigError as error:
        message = str(error)
        assert error.exit_code == UsageError.exit_code == 2
        assert message and message.isprintable() and len(message) < LONGEST_MESSAGE, len(message)
        for word in ("Node(", "Error(", "Traceback", "internal", "pydantic", "object at 0x"):
            assert word not in message.replace(str(path), ""), message
    finally:
        peak = tracemalloc.get_traced_memory()[1] if measure else 0
        tracemalloc.stop()
    assert peak < MOST_BYTES, f"{peak:,} bytes for {path.stat().st_size} bytes and {changes}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
MANY = settings(FEW, max_examples=3000)


def recipe_file(folder: Path, content: bytes) -> Path:
    path = folder / "r.yaml"
    path.write_bytes(content)
    return path


@FEW
@given(mutated())
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"\x00")
@example(b"- " * 5000)
@example(b"? " * 5000)
@example(b"a: &x [1]\nb: *x\n")
@example(b"--- {name: a}\n--- {name: b}\n")
@example(b"name: toy\nbase: [a]\n")
@example(b"name: toy\n? [a]\n: b\n")
@example(b"? !!python/object/apply:os.system ['true']\n: 1\n")
@example(b"format: true\nname: toy\n")
def test_a_mutated_recipe(folder: Path, content: bytes) -> None:
    read(recipe_file(folder, content), [])


@FEW
@given(overrides())
@example(("demo/world.yaml", ["model.encoder.kind=[]"]))
@example(("demo/world.yaml", ["format.kind=1"]))
@example(("demo/world.yaml", ["data.train.kind=1"]))
def test_mutated_overrides(folder: Path, changed: tuple[str, list[str]]) -> None:
    read(ROOT / "recipes" / changed[0], changed[1])


def all_odd(name: str, *, measure: bool) -> None:
    """Each odd value in one place of a recipe, whole files beside it."""
    places = [".".join(map(str, path)) for path in PATHS[name]]
    for number, odd in enumerate(ODD):
        read(ROOT / "recipes" / name, [f"{places[(7 * number) % len(places)]}={odd}"], measure=measure)


def test_every_odd_value() -> None:
    all_odd("demo/world.yaml", measure=False)


@pytest.mark.full
@pytest.mark.parametrize("name", RECIPES)
def test_every_odd_value_in_bounded_memory(name: str) -> None:
    all_odd(name, measure=True)


@pytest.mark.full
@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"- " * 5000, b"? " * 5000, b"a: " * 5000, b"x" * 2**20, b"'" + b"x" * 2**19]
)
def test_large_files_in_bounded_memory(folder: Path, content: bytes) -> None:
    read(recipe_file(folder, content), [], measure=True)


@pytest.mark.full
@MANY
@given(mutated())
def test_many_mutated_recipes(folder: Path, content: bytes) -> None:
    read(recipe_file(folder, content), [])


@pytest.mark.full
@MANY
@given(overrides())
def test_many_mutated_overrides(changed: tuple[str, list[str]]) -> None:
    read(ROOT / "recipes" / changed[0], changed[1])
