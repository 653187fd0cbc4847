"""The steps of a table: command lines with the names in braces filled in, the identity of each step, and the files it reads.

The identity of a step is a SHA-256 over its command line, in which the folder of another step is replaced by the identity of
that step and a recipe by its content. So the identity does not depend on paths, a changed recipe gives another step, and
tables share trainings. The folder of a step ends in the first twelve digits. Files of the data root count by name; the record
of a step tells whether they have changed.

A step reads the files that its command line names below `{root}` (a file, all files of a folder, or all files with a stem) or
by a word of `Steps.files`, with `--data-root {root}` also the files of its recipe, and the files of the steps that it needs.
Its record has for each file

    inputs: {name below the data root: {"bytes", "mtime_ns", "ctime_ns", "sha256"}}

from the time when the step started. A file with the same size and the same two times, of its last modification and of its
last change of status, is unchanged and is not opened; a file of another size has changed; if only a time differs, the SHA-256
decides. (`cp -p`, rsync and tar set the first time back; only the system sets the second.) A file that no longer exists counts
as unchanged.
"""

from __future__ import annotations

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

from phraseloom.config import read_yaml
from phraseloom.errors import ConfigError, PhraseloomError
from phraseloom.files import read_json, sha256_file
from phraseloom.recipe import AnyRecipe, base_of, load_recipe, over_base
from phraseloom.reproduce.table import RECORD, MetricConfig, Scale, ScaleConfig, StepConfig, TableConfig

ROOT = "{root}"
BELOW = re.compile(r"\{root\}/([^\s,'\"\]}]+)")
Entry = dict[str, Any]
Reads = tuple[tuple[str, Path], ...]


def folders_of(work: Path, digits: str) -> list[Path]:
    """The folders of an identity, those of a finished step first. There are two if commands ran it for tables of other rows."""
    found = sorted(work.glob(f"[!.]*-{digits}"))  # not what a killed merge of an earlier version left
    return sorted((path for path in found if not path.is_symlink()), key=lambda path: not _says_done(path / RECORD))


def _says_done(record: Path) -> bool:
    try:
        return read_json(record, "record of a step")["status"] == "done"
    except (PhraseloomError, KeyError, TypeError):
        return False


def reads(words: Sequence[str], argv: Sequence[str], root: Path, work: Path, known: Mapping[str, str]) -> Reads:
    """(name, path) of the files that a step reads itself. `words`: its command line and standard input with `{root}`;
    `argv`: the filled-in command line; `work`: the folder of steps, whose files are outputs; `known`: `Steps.files`.

    Raises ConfigError for a recipe that cannot be read.
    """
    files = {known[word]: root / known[word] for word in words if word in known}
    stems = [stem for word in words if word not in known for stem in BELOW.findall(word)]
    files |= {name: root / name for stem in stems for name in _expanded(stem, root)}
    if ("--data-root", ROOT) in pairwise(words):
        path = next(Path(word) for word in argv[1:] if word.endswith(".yaml"))
        changes = [word for word in argv if "=" in word and not word.startswith("-")]
        files |= {name: root / name for name in recipe_files(load_recipe(path, changes))}
    outputs = work.resolve()
    return tuple((name, path) for name, path in sorted(files.items()) if not path.resolve().is_relative_to(outputs))


def recipe_files(recipe: AnyRecipe) -> Iterator[str]:
    """The files that `prepare` reads for a recipe: texts, trees, vectors, phrase table."""
    data = recipe.data
    for split in ("train", "valid", "test"):
        yield from (name for files in data.files(split) for name, _ in files.all_files.values())
    others = (getattr(data.subwords, "vectors", None), getattr(getattr(data, "phrases", None), "file", None))
    yield from (name for name in others if isinstance(name, str))


def all_reads(step: Step) -> dict[str, Path]:
    """The files that a step and the steps that it needs read."""
    files: dict[str, Path] = {}
    for need in step.needs:
        files |= all_reads(need)
    return files | dict(step.reads)


def noted(step: Step, of_needs: Sequence[Mapping[str, Any]]) -> dict[str, Entry]:
    """The `inputs` of a step that starts now. `of_needs`: the inputs of the steps that it needs.

    If two of them have read a file before and after a change, this step will count as changed.
    """
    result: dict[str, Entry] = {}
    for inputs in of_needs:
        for name, entry in inputs.items():
            other = result.setdefault(name, dict(entry))
            if other["sha256"] != entry["sha256"]:
                result[name] = {"bytes": -1, "mtime_ns": 0, "ctime_ns": 0, "sha256": ""}
    for name, path in step.reads:
        entry = _entry(path)
        if entry is not None:
            result[name] = entry
    return result


def changed(step: Step, inputs: object, began: float = 0.0) -> dict[str, str]:
    """How each file differs from the one in `inputs`, by name; unchanged files are left out.

    A file without an entry is unchanged if its modification time is before `began`, in seconds as in `os.stat`.
    """
    known = inputs if isinstance(inputs, dict) else {}
    differences = {name: _difference(path, known.get(name), began) for name, path in all_reads(step).items()}
    return {name: why for name, why in differences.items() if why}


def missing(steps: Sequence[Step]) -> list[str]:
    """The missing files among those that steps read."""
    return sorted({name for step in steps for name, path in step.reads if not path.is_file()})


def _expanded(stem: str, root: Path) -> list[str]:
    """The names of a file, of all files of a folder, or of all files whose name starts with a stem and a full stop."""
    path = root / stem
    if path.is_dir():
        return [p.relative_to(root).as_posix() for p in sorted(path.rglob("*")) if p.is_file()]
    beside = [] if path.exists() or not path.parent.is_dir() else sorted(path.parent.iterdir())
    files = [p.relative_to(root).as_posix() for p in beside if p.name.startswith(f"{path.name}.") and p.is_file()]
    return files or [stem]


def _difference(path: Path, entry: object, began: float) -> str:
    if not path.is_file():
        return ""
    stat = path.stat()
    if not isinstance(entry, dict):
        return "" if stat.st_mtime < began else "not noted when it was read, and changed since"
    if stat.st_size != entry.get("bytes"):
        return "another size"
    times = (stat.st_mtime_ns, stat.st_ctime_ns)
    if times == (entry.get("mtime_ns"), entry.get("ctime_ns")):
        return ""
    return "" if _digest(path, stat.st_size, *times) == entry.get("sha256") else "other content"


def _entry(path: Path) -> Entry | None:
    """The entry of a file; None if it is unreadable, which the step will report."""
    try:
        stat = path.stat()
        return {
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "ctime_ns": stat.st_ctime_ns,
            "sha256": _digest(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns),
        }
    except OSError:
        return None


@cache
def _digest(path: Path, size: int, mtime_ns: int, ctime_ns: int) -> str:
    return sha256_file(path)


NAME = re.compile(r"\{([a-z][a-z0-9_]*)(?:@([A-Za-z0-9_.+-]+))?\}")
DEEPEST = 8
DIGITS = 12


@dataclass(frozen=True)
class StepScope:
    """The task, row and seed of a step; "" and None mean all."""

    task: str = ""
    row: str = ""
    seed: int | None = None

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}"
        return " ".join(filter(None, (self.task, self.row, seed)))


@dataclass(frozen=True)
class Step:
    """A command line. `needs`: the steps that must run first; `recipe` and `changes`: of a training.

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
        """Whether it is a training, which can resume."""
        return self.argv[0] == "train"


class StepNotMade(ConfigError):
    """A step is not one of those of this row (`rows` and `without` of the step)."""


@dataclass
class Steps:
    """The steps of a table at a scale, created on demand.

    `work`: the folder of all steps of this scale; `recipes`: the folder of recipes; `root`: the folder of corpora.
    `training`: last changes to the recipe of every training. `files`: the words of command lines that are a file each, whatever
    characters its name has, `{root}/NAME` or an absolute path, with that name.
    """

    table: TableConfig
    scale: Scale
    work: Path
    recipes: Path
    root: str = "."
    training: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    made: dict[tuple[str, StepScope], Step] = field(default_factory=dict)
    _open: list[tuple[str, StepScope]] = field(default_factory=list)
    _folders: dict[str, Path] = field(default_factory=dict)

    @property
    def config(self) -> ScaleConfig:
        """The steps and variables of the scale."""
        return self.table.scales[self.scale]

    def step(self, name: str, place: StepScope) -> Step:
        """The step of that name for a row, task and seed. Raises ConfigError for unknown names."""
        config = self.config.steps.get(name)
        if config is None:
            raise self._problem(f"no step or variable {name!r}; steps: {', '.join(self.config.steps)}")
        if not applies(config, place.row) and config.each == "seed":
            raise StepNotMade(self._titled(f"step {name} is not made for row {place.row!r}"))
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
        """The steps of a row and seed, and those that its metrics read."""
        place = StepScope(task, row, seed)
        names = [n for n, config in self.config.steps.items() if config.each == "seed" and applies(config, row)]
        steps = [self.step(name, place) for name in names]
        for metric in self.table.metrics_at(self.scale).values():
            steps += self.read_by(metric, place) or []
        return list(dict.fromkeys(steps))

    def read_by(self, metric: MetricConfig, place: StepScope) -> list[Step] | None:
        """The steps whose files a metric reads; None if the row does not have one of them: then it has no such number."""
        steps: list[Step] = []
        try:
            for text in metric.reads:
                self._filler(place, steps)(text)
        except StepNotMade:
            return None
        except ConfigError:  # of this metric, which the table will say
            pass
        return steps

    def fill(self, text: str, place: StepScope) -> str:
        """`text` with its names filled in."""
        return self._filler(place, [])(text)[0]

    def portable(self, text: str) -> str:
        """A message without paths of this machine: paths start at the folders of steps, recipes and corpora."""
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
        if config.run[0] == "train":
            words += [(change, change) for change in self.training]
        stdin = [fill(path) for path in config.stdin]
        trained = Path(words[1][0]) if config.run[0] == "train" and "{recipe" in "".join(config.run[1:2]) else None
        content = [name, [digest for _, digest in words], [digest for _, digest in stdin], config.stdout]
        identity = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()
        folder = self._folder(name, place, identity[:DIGITS])
        here = {"{here}": str(folder)}
        argv = tuple(_put(text, here) for text, _ in words)
        named = [digest for _, digest in [*words, *stdin]]
        if "--data-root" in named:  # names in recipes are looked up there, unless they are absolute
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
            reads=reads(named, argv, Path(self.root), self.work, self.files),
        )

    def _folder(self, name: str, place: StepScope, digits: str) -> Path:
        """The folder of an identity: the existing one, whatever its name, or a new one named after its first place."""
        if digits not in self._folders:
            parts = [name, place.task, place.row, "" if place.seed is None else f"seed{place.seed}", digits]
            existing = folders_of(self.work, digits)
            self._folders[digits] = existing[0] if existing else self.work / "-".join(filter(None, parts))
        return self._folders[digits]

    def _changes(self, place: StepScope) -> list[str]:
        """The changes to the recipe: those of the scale, then those of the row."""
        of_row = self.table.rows[place.row].overrides.get(self.scale, []) if place.row else []
        return [*self.config.overrides, *of_row]

    def _variables(self, place: StepScope) -> dict[str, str]:
        variables = dict(self.config.variables)
        for values in (self.table.tasks.get(place.task, {}), self.table.rows[place.row].variables if place.row else {}):
            variables |= values.get("all", {})
            variables |= values.get(self.scale, {})
        return variables

    def _filler(self, place: StepScope, needs: list[Step]) -> Callable[[str], tuple[str, str]]:
        """A function that fills in the names of a text twice: for the command line and for the identity."""
        known = {"task": place.task, "row": place.row, "scale": self.scale}
        if place.seed is not None:
            known["seed"] = str(place.seed)
        variables = self._variables(place)

        def fill_name(name: str, row: str | None, depth: int) -> tuple[str, str]:
            if depth > DEEPEST:
                raise self._problem(f"variable {name} is defined by itself")
            if name == "here":
                return "{here}", "{here}"
            if name == "root":
                return self.root, "{root}"
            if name == "recipes":
                return str(self.recipes), "{recipes}"
            if name == "recipe":
                return self._recipe(place, fill_text)
            if row is None and name in known:
                return known[name], known[name]
            if row is None and name in variables:
                return fill_text(variables[name], depth + 1)
            if row is not None and row not in self.table.rows:
                raise self._problem(f"{{{name}@{row}}}: no such row")
            step = self.step(name, StepScope(place.task, row or place.row, place.seed))
            needs.append(step)
            return str(step.folder), f"<{step.identity}>"

        def fill_text(text: str, depth: int = 0) -> tuple[str, str]:
            if text in self.files:
                return (self.root + text.removeprefix(ROOT) if text.startswith(ROOT) else text), text
            values = [fill_name(match[1], match[2], depth) for match in NAME.finditer(text)]
            pieces = NAME.split(text)[::3]
            first, second = [pieces[0]], [pieces[0]]
            for (value, digest), piece in zip(values, pieces[1:], strict=True):
                first += [value, piece]
                second += [digest, piece]
            if text.startswith("{recipes}/") and text.endswith(".yaml"):
                return "".join(first), recipe_digest(Path("".join(first)))
            return "".join(first), "".join(second)

        return fill_text

    def _recipe(self, place: StepScope, fill: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
        recipe = self.table.rows[place.row].recipe.get(self.scale) if place.row else None
        if recipe is None:
            raise self._problem(f"row {place.row!r} has no recipe")
        path = self.recipes / fill(recipe)[0]
        return str(path), recipe_digest(path)

    def _problem(self, text: str) -> ConfigError:
        return ConfigError(self._titled(text))

    def _titled(self, text: str) -> str:
        return f"{self.table.title}, scale {self.scale}: {text}"


def applies(config: StepConfig, row: str) -> bool:
    """Whether a step is made for a row."""
    return row not in config.without and (config.rows is None or row in config.rows)


def recipe_digest(path: Path) -> str:
    """The SHA-256 of a recipe merged into its base; its name, comments and layout do not count."""
    value, _ = read_yaml(path)
    base = value.pop("base", None)
    if base is not None:
        value = over_base(read_yaml(base_of(path, base))[0], value)
    value.pop("name", None)
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The steps and all that they need, each after the steps that it needs, without duplicates."""
    ordered: dict[str, Step] = {}

    def add(step: Step) -> None:
        if step.identity in ordered:
            return
        for need in step.needs:
            add(need)
        ordered.setdefault(step.identity, step)

    for step in steps:
        add(step)
    return list(ordered.values())


def _narrowed(place: StepScope, each: str) -> StepScope:
    if each == "table":
        return StepScope()
    return StepScope(place.task) if each == "task" else place


def _put(text: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
