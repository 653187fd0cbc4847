"""From a table to command lines: names in braces filled in, and the identity of each step.

The identity of a step is a SHA-256 over its command line, in which a folder of another step stands as that step's identity and
a recipe as its content. So it does not hang on where files lie, a changed recipe is another step, and what one table has
trained another one finds. The folder of a step ends in the first twelve digits. Files of the data root are in it by name alone;
whether they have changed is told by the record (inputs.py).

The files of the data root that steps read, and whether they are still those that were read.

A step reads what its command line names below `{root}` (a file, all files of a folder, or all that begin with a stem), with
`--data-root {root}` also what its recipe names, and whatever the steps read that it needs. Its record holds of each file

    inputs: {name below the data root: {"bytes", "mtime_ns", "sha256"}}

as it was when the step that reads it began. A file of the same size and time of change counts as the same and is not opened;
one of another size as changed; only where the size is equal and the time is not, the SHA-256 decides. A large corpus is thus
read once a step that reads it anyway. A file that is not there now says nothing: what was made of it stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from phraseloom.config import merge, read_yaml
from phraseloom.errors import ConfigError
from phraseloom.files import sha256_file
from phraseloom.recipe import AnyRecipe, base_of, load_recipe
from phraseloom.reproduce.table import Scale, ScaleConfig, StepConfig, TableConfig

ROOT = "{root}"
BELOW = re.compile(r"\{root\}/([^\s,'\"\]}]+)")
Entry = dict[str, Any]
Reads = tuple[tuple[str, Path], ...]


def reads(words: Sequence[str], argv: Sequence[str], root: Path, work: Path) -> Reads:
    """(name, path) of what a step reads itself. `words`: its command line and standard input with `{root}` left as it is;
    `argv`: the command line filled in; `work`: the folder of steps, whose files are outputs.

    Raises ConfigError for a recipe that cannot be read.
    """
    found = {name: root / name for word in words for stem in BELOW.findall(word) for name in _expanded(stem, root)}
    if ("--data-root", ROOT) in pairwise(words):
        path = next(Path(word) for word in argv[1:] if word.endswith(".yaml"))
        changes = [word for word in argv if "=" in word and not word.startswith("-")]
        found |= {name: root / name for name in recipe_files(load_recipe(path, changes))}
    made = work.resolve()
    return tuple((name, path) for name, path in sorted(found.items()) if not path.resolve().is_relative_to(made))


def recipe_files(recipe: AnyRecipe) -> Iterator[str]:
    """The files that `prepare` reads for a recipe: texts, trees, vectors, phrase table."""
    data = recipe.data
    for split in ("train", "valid", "test"):
        yield from (name for files in data.files(split) for name, _ in files.all_files.values())
    others = (getattr(data.subwords, "vectors", None), getattr(getattr(data, "phrases", None), "file", None))
    yield from (name for name in others if isinstance(name, str))


def all_reads(step: Step) -> dict[str, Path]:
    """What a step reads, and what the steps read that it needs."""
    found: dict[str, Path] = {}
    for need in step.needs:
        found |= all_reads(need)
    return found | dict(step.reads)


def noted(step: Step, of_needs: Sequence[Mapping[str, Any]]) -> dict[str, Entry]:
    """The `inputs` of a step that begins now; `of_needs`: those of the steps that it needs, which stand as they were read.

    Where two steps have read a file before and after it was changed, it fits nothing: this step will count as changed.
    """
    found: dict[str, Entry] = {}
    for inputs in of_needs:
        for name, entry in inputs.items():
            other = found.setdefault(name, dict(entry))
            if other["sha256"] != entry["sha256"]:
                found[name] = {"bytes": -1, "mtime_ns": 0, "sha256": ""}
    for name, path in step.reads:
        entry = _entry(path)
        if entry is not None:
            found[name] = entry
    return found


def changed(step: Step, inputs: object, began: float = 0.0) -> dict[str, str]:
    """Name and what is different of every file that is not the one in `inputs`.

    A file that is not in it is the same if it was changed last before `began`, in seconds as `os.stat` counts them.
    """
    known = inputs if isinstance(inputs, dict) else {}
    found = {name: _difference(path, known.get(name), began) for name, path in all_reads(step).items()}
    return {name: why for name, why in found.items() if why}


def missing(steps: Sequence[Step]) -> list[str]:
    """The files that steps have read or would read, and that are not there."""
    return sorted({name for step in steps for name, path in step.reads if not path.is_file()})


def _expanded(stem: str, root: Path) -> list[str]:
    """The names of a file, of all files of a folder, or of all that begin with a stem and a full stop."""
    path = root / stem
    if path.is_dir():
        return [p.relative_to(root).as_posix() for p in sorted(path.rglob("*")) if p.is_file()]
    beside = [] if path.exists() or not path.parent.is_dir() else sorted(path.parent.iterdir())
    some = [p.relative_to(root).as_posix() for p in beside if p.name.startswith(f"{path.name}.") and p.is_file()]
    return some or [stem]


def _difference(path: Path, entry: object, began: float) -> str:
    if not path.is_file():
        return ""
    found = path.stat()
    if not isinstance(entry, dict):
        return "" if found.st_mtime < began else "not noted when it was read, and changed since"
    if found.st_size != entry.get("bytes"):
        return "another size"
    if found.st_mtime_ns == entry.get("mtime_ns"):
        return ""
    return "" if _digest(path, found.st_size, found.st_mtime_ns) == entry.get("sha256") else "other content"


def _entry(path: Path) -> Entry | None:
    """What is noted of a file; None of one that cannot be read: the step will say so."""
    try:
        found = path.stat()
        return {
            "bytes": found.st_size,
            "mtime_ns": found.st_mtime_ns,
            "sha256": _digest(path, found.st_size, found.st_mtime_ns),
        }
    except OSError:
        return None


@cache
def _digest(path: Path, size: int, mtime_ns: int) -> str:
    return sha256_file(path)


NAME = re.compile(r"\{([a-z][a-z0-9_]*)(?:@([A-Za-z0-9_.+-]+))?\}")
DEEPEST = 8
DIGITS = 12


@dataclass(frozen=True)
class StepScope:
    """For whom a step is made; "" and None: for all."""

    task: str = ""
    row: str = ""
    seed: int | None = None

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}"
        return " ".join(filter(None, (self.task, self.row, seed)))


@dataclass(frozen=True)
class Step:
    """A command line ready to run. `needs`: steps that come before; `recipe` and `changes` where it trains one.

    `reads`: name and path of the files of the data root that it reads itself.
    """

    name: str
    place: StepScope
    argv: tuple[str, ...]
    identity: str
    folder: Path
    stdin: tuple[Path, ...] = ()
    stdout: Path | None = None
    needs: tuple[Step, ...] = ()
    recipe: Path | None = None
    changes: tuple[str, ...] = ()
    reads: Reads = ()

    @property
    def title(self) -> str:
        """The step in words."""
        return f"{self.name} {self.place}".rstrip()

    @property
    def trains(self) -> bool:
        """Whether it is a training, which goes on where it stopped."""
        return self.argv[0] == "train"


@dataclass
class Steps:
    """The steps of a table at a scale, made when they are asked for.

    `work`: the folder that holds all steps of this scale; `recipes`: that of the recipes; `root`: that of the corpora.
    """

    table: TableConfig
    scale: Scale
    work: Path
    recipes: Path
    root: str = "."
    made: dict[tuple[str, StepScope], Step] = field(default_factory=dict)
    _open: list[tuple[str, StepScope]] = field(default_factory=list)

    @property
    def config(self) -> ScaleConfig:
        """The steps and variables of the scale."""
        return self.table.scales[self.scale]

    def step(self, name: str, place: StepScope) -> Step:
        """The step of that name for a row, task and seed. Raises ConfigError for names that are not there."""
        config = self.config.steps.get(name)
        if config is None:
            raise self._problem(f"no step or variable {name!r}; steps: {', '.join(self.config.steps)}")
        if not applies(config, place.row) and config.each == "seed":
            raise self._problem(f"step {name} is not made for row {place.row!r}")
        place = _narrowed(place, config.each)
        if (name, place) not in self.made:
            if (name, place) in self._open:
                circle = " → ".join(f"{n} {p}".rstrip() for n, p in [*self._open, (name, place)])
                raise self._problem(f"step {name} needs itself: {circle}")
            self._open.append((name, place))
            self.made[name, place] = self._make(name, config, place)
            self._open.pop()
        return self.made[name, place]

    def steps_of(self, row: str, task: str, seed: int) -> list[Step]:
        """Every step that is made for a row and seed itself, and those that its metrics read."""
        place = StepScope(task, row, seed)
        names = [n for n, config in self.config.steps.items() if config.each == "seed" and applies(config, row)]
        found = [self.step(name, place) for name in names]
        for metric in self.table.metrics_at(self.scale).values():
            with contextlib.suppress(ConfigError):  # a step that this row does not have: its number will be missing
                for text in metric.reads:
                    self._filler(place, found)(text)
        return list(dict.fromkeys(found))

    def fill(self, text: str, place: StepScope) -> str:
        """`text` with its names filled in: what a metric reads."""
        return self._filler(place, [])(text)[0]

    def portable(self, text: str) -> str:
        """A message without the paths of this machine: those of steps, recipes and corpora begin anew at these folders."""
        names = {self.work: "steps", self.recipes: "recipes", Path(self.root): "{root}", Path(): ".", Path.home(): "~"}
        places = {str(path.absolute()): name for path, name in names.items() if path.absolute() != Path("/")}
        for path in sorted(places, key=len, reverse=True):
            for form in (path, os.path.relpath(path)):
                if form != "." and not form.startswith(".."):
                    text = re.sub(rf"(?<![\w./~-]){re.escape(form)}(?![\w.-])", places[path], text)
        return text

    def _make(self, name: str, config: StepConfig, place: StepScope) -> Step:
        needs: list[Step] = []
        fill = self._filler(place, needs)
        words: list[tuple[str, str]] = []
        for word in config.run:
            words += [fill(change) for change in self._changes(place)] if word == "{overrides}" else [fill(word)]
        stdin = [fill(path) for path in config.stdin]
        trained = Path(fill("{recipe}")[0]) if "{recipe}" in config.run else None
        said = [name, [digest for _, digest in words], [digest for _, digest in stdin], config.stdout]
        identity = hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).hexdigest()
        folder = self._folder(name, place, identity[:DIGITS])
        here = {"{here}": str(folder)}
        argv = tuple(_put(text, here) for text, _ in words)
        named = [digest for _, digest in [*words, *stdin]]
        if ("--data-root", ROOT) in pairwise(named):  # names in recipes are looked up there, unless they are absolute
            argv = tuple(word.replace(f"{self.work}/", f"{self.work.absolute()}/") for word in argv)
        return Step(
            name=name,
            place=place,
            argv=argv,
            identity=identity,
            folder=folder,
            stdin=tuple(Path(_put(text, here)) for text, _ in stdin),
            stdout=None if config.stdout is None else folder / config.stdout,
            needs=tuple(dict.fromkeys(needs)),
            recipe=trained,
            changes=tuple(
                _put(text, here) for text, _ in words if trained and "=" in text and not text.startswith("-")
            ),
            reads=reads(named, argv, Path(self.root), self.work),
        )

    def _folder(self, name: str, place: StepScope, digits: str) -> Path:
        """The folder of an identity: the one that is there, under whatever name, or a new one named for this place."""
        there = sorted(self.work.glob(f"*-{digits}"))
        parts = [name, place.task, place.row, "" if place.seed is None else f"seed{place.seed}", digits]
        return there[0] if there else self.work / "-".join(filter(None, parts))

    def _changes(self, place: StepScope) -> list[str]:
        """The changes to the recipe: those of the scale, then those of the row."""
        of_row = self.table.rows[place.row].overrides.get(self.scale, []) if place.row else []
        return [*self.config.overrides, *of_row]

    def _variables(self, place: StepScope) -> dict[str, str]:
        found = dict(self.config.variables)
        for given in (self.table.tasks.get(place.task, {}), self.table.rows[place.row].variables if place.row else {}):
            found |= given.get("all", {})
            found |= given.get(self.scale, {})
        return found

    def _filler(self, place: StepScope, needs: list[Step]) -> Callable[[str], tuple[str, str]]:
        """A function that gives a text with its names filled in twice: for the command line, and for the identity."""
        known = {"task": place.task, "row": place.row, "scale": self.scale}
        if place.seed is not None:
            known["seed"] = str(place.seed)
        variables = self._variables(place)

        def one(name: str, row: str | None, depth: int) -> tuple[str, str]:
            if depth > DEEPEST:
                raise self._problem(f"variable {name} is defined by itself")
            if name == "here":
                return "{here}", "{here}"
            if name == "root":
                return self.root, "{root}"
            if name == "recipes":
                return str(self.recipes), "{recipes}"
            if name == "recipe":
                return self._recipe(place, whole)
            if row is None and name in known:
                return known[name], known[name]
            if row is None and name in variables:
                return whole(variables[name], depth + 1)
            if row is not None and row not in self.table.rows:
                raise self._problem(f"{{{name}@{row}}}: no such row")
            step = self.step(name, StepScope(place.task, row or place.row, place.seed))
            needs.append(step)
            return str(step.folder), f"<{step.identity}>"

        def whole(text: str, depth: int = 0) -> tuple[str, str]:
            found = [one(match[1], match[2], depth) for match in NAME.finditer(text)]
            pieces = NAME.split(text)[::3]
            first, second = [pieces[0]], [pieces[0]]
            for (value, digest), piece in zip(found, pieces[1:], strict=True):
                first += [value, piece]
                second += [digest, piece]
            if text.startswith("{recipes}/") and text.endswith(".yaml"):
                return "".join(first), recipe_digest(Path("".join(first)))
            return "".join(first), "".join(second)

        return whole

    def _recipe(self, place: StepScope, fill: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
        given = self.table.rows[place.row].recipe.get(self.scale) if place.row else None
        if given is None:
            raise self._problem(f"row {place.row!r} has no recipe")
        path = self.recipes / fill(given)[0]
        return str(path), recipe_digest(path)

    def _problem(self, text: str) -> ConfigError:
        return ConfigError(f"{self.table.title}, scale {self.scale}: {text}")


def applies(config: StepConfig, row: str) -> bool:
    """Whether a step is made for a row."""
    return row not in config.without and (config.rows is None or row in config.rows)


def recipe_digest(path: Path) -> str:
    """The content of a recipe over its base, whatever its name, comments and layout, as a SHA-256."""
    value, _ = read_yaml(path)
    base = value.pop("base", None)
    if base is not None:
        value = merge(read_yaml(base_of(path, base))[0], value)
    value.pop("name", None)
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The steps and all that they need, each behind what it needs, none twice (equal ones are one)."""
    found: dict[str, Step] = {}

    def add(step: Step) -> None:
        if step.identity in found:
            return
        for need in step.needs:
            add(need)
        found.setdefault(step.identity, step)

    for step in steps:
        add(step)
    return list(found.values())


def _narrowed(place: StepScope, each: str) -> StepScope:
    if each == "table":
        return StepScope()
    return StepScope(place.task) if each == "task" else place


def _put(text: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
