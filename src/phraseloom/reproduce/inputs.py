"""The files of the data root that steps read, and whether they are still those that were read.

A step reads what its command line names below `{root}` (a file, all files of a folder, or all that begin with a stem), with
`--data-root {root}` also what its recipe names, and whatever the steps read that it needs. Its record holds of each file

    inputs: {name below the data root: {"bytes", "mtime_ns", "sha256"}}

as it was when the step that reads it began. A file of the same size and time of change counts as the same and is not opened;
one of another size as changed; only where the size is equal and the time is not, the SHA-256 decides. A large corpus is thus
read once a step that reads it anyway. A file that is not there now says nothing: what was made of it stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phraseloom.files import sha256_file
from phraseloom.recipe import AnyRecipe, load_recipe

if TYPE_CHECKING:
    from phraseloom.reproduce.steps import Step

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
