"""Contrastive items: a source, its correct translation, and the translation with one error inserted.

They are read from JSON lines (source, correct, wrong; optional distance, category or phenomenon, tree), such as the
`contrastive.jsonl` of the built-in world; from the JSON of LingEval97 (Sennrich 2017); or from three parallel files, such as a
set of DistilLingEval. The distance, given by the data, is the number of words between the two that the error concerns
(subject and verb).
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phraseloom.errors import DataError, FileProblem, UsageError, plural
from phraseloom.files import require_folder
from phraseloom.text.lines import open_binary, read_lines

SIDES = ("src", "tgt.correct", "tgt.incorrect")
MOST_DIGITS = 9


class Item(NamedTuple):
    """A pair of translations and its place; `category` "" and `distance` None if the data does not have them.

    `tree` is the parse tree of the source, on the same line of the file `tree_file`.
    """

    source: str
    correct: str
    wrong: str
    category: str = ""
    distance: int | None = None
    file: str = ""
    line: int = 0
    tree: str | None = None
    tree_file: str = ""

    @property
    def blank(self) -> bool:
        """Whether one of the three texts is empty."""
        return not (self.source.strip() and self.correct.strip() and self.wrong.strip())


def read_items(path: str | Path) -> list[Item]:
    """The items of a JSON lines file, one object per line; unknown fields are ignored. Raises FileProblem, DataError."""
    with contextlib.closing(read_lines(path)) as lines:
        items = [_item(line, str(path), number) for number, line in enumerate(lines, 1)]
    return _not_empty(items, path)


def _item(line: str, file: str, number: int) -> Item:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = "write one object per line"
        raise DataError(f"not JSON: {str(error)[:100]}", file=file, line=number, hint=hint) from None
    if not isinstance(fields, dict):
        raise DataError(f"not a JSON object but {_short(fields)}", file=file, line=number)
    return _checked(fields, file, number)


def _checked(fields: dict[str, Any], file: str, number: int) -> Item:
    """The item of an object, field by field. Raises DataError."""
    source, correct, wrong = (_text(fields, name, file, number) for name in ("source", "correct", "wrong"))
    name = "category" if fields.get("category") is not None else "phenomenon"
    category = _text({name: "", **{k: v for k, v in fields.items() if v is not None}}, name, file, number)
    distance = fields.get("distance")
    is_number = isinstance(distance, int) and not isinstance(distance, bool)
    if distance is not None and not (is_number and 0 <= distance < 10**MOST_DIGITS):
        what = f"distance {_short(distance)}: not a whole number from 0"
        raise DataError(what, file=file, line=number, hint="or null")
    tree = None if fields.get("tree") is None else _text(fields, "tree", file, number)
    return Item(source, correct, wrong, category, distance, file, number, tree, file if tree is not None else "")


def read_lingeval(path: str | Path, category: str | None = None) -> list[Item]:
    """The items of a file in the format of LingEval97, of one category or of all: one item per error of each sentence.

    The file is a JSON list of {"source", "reference", "errors": [{"type", "contrastive", "distance"?, …}, …], …}; `frequency`
    and `origin` are ignored. The `line` of an item is the number of its sentence in the list, from 1. Raises FileProblem,
    DataError.
    """
    with open_binary(path) as handle:
        try:
            content = json.loads(handle.read())
        except (ValueError, RecursionError) as error:
            what = f"not JSON: {str(error)[:100]}"
            raise DataError(what, file=path, hint="LingEval97's lingeval97.json is one list") from None
    if not isinstance(content, list):
        raise DataError(f"not a JSON list but {_short(content)}", file=path, hint="--items reads one object per line")
    items: list[Item] = []
    types: set[str] = set()
    for number, entry in enumerate(content, 1):
        for mistake in _mistakes(entry, path, number):
            types.add(str(mistake["type"]))
            if category is None or mistake["type"] == category:
                distance = mistake.get("distance")
                distance = 0 if distance == "0" else distance  # the file has both 0 and "0"
                texts = {"source": entry["source"], "correct": entry["reference"], "wrong": mistake["contrastive"]}
                items.append(_checked({**texts, "category": mistake["type"], "distance": distance}, str(path), number))
    if not items and category is not None:
        near = difflib.get_close_matches(category, types, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(types)[:20]) or 'none'}"
        raise DataError(f"no errors of category {category}", file=path, hint=hint)
    if content and not items:
        raise DataError("no items: no entry has errors", file=path)
    return _not_empty(items, path)


def _mistakes(entry: Any, file: str | Path, number: int) -> list[dict[str, Any]]:
    """The errors of an entry of LingEval97, with all keys that they need. Raises DataError."""

    def problem(what: str) -> DataError:
        return DataError(what, file=file, line=number, hint="the line is the number of the entry")

    def check(value: Any, name: str, keys: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            raise problem(f"{name} is {_short(value)}, not an object with {', '.join(keys)}")
        if lacking := [key for key in keys if key not in value]:
            raise problem(f"{name} has no {' and no '.join(lacking)}: {_short(value)}")

    check(entry, f"entry {number}", ("source", "reference", "errors"))
    if not isinstance(entry["errors"], list):
        raise problem(f"entry {number}: errors is {_short(entry['errors'])}, not a list")
    for i, mistake in enumerate(entry["errors"], 1):
        check(mistake, f"error {i} of entry {number}", ("type", "contrastive"))
    return list(entry["errors"])


def _text(fields: dict[str, Any], name: str, file: str, line: int) -> str:
    if name not in fields:
        raise DataError(f"no {name!r}", file=file, line=line, hint="an item has source, correct and wrong")
    value = fields[name]
    if not isinstance(value, str):
        raise DataError(f"{name} is {_short(value)}, not a text", file=file, line=line)
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise DataError(f"{name} holds half a surrogate pair: not Unicode text", file=file, line=line)
    return value


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:40] + "…"


def read_parallel(
    source: str | Path,
    correct: str | Path,
    wrong: str | Path,
    *,
    distances: str | Path | None = None,
    category: str = "",
) -> list[Item]:
    """The items of three files, line by line; the file `distances` has whole numbers, and blank lines for unknown ones.

    `file` and `line` of an item are those of its source. Raises FileProblem, DataError.
    """
    texts = [list(read_lines(path)) for path in (source, correct, wrong)]
    for path, lines in zip((correct, wrong), texts[1:], strict=True):
        _parallel(lines, path, texts[0], source)
    known: list[int | None] = [None] * len(texts[0])
    if distances is not None:
        lines = list(read_lines(distances))
        _parallel(lines, distances, texts[0], source)
        known = [_distance(line, distances, number) for number, line in enumerate(lines, 1)]
    items = [
        Item(s, c, w, category, distance, str(source), number)
        for number, (s, c, w, distance) in enumerate(zip(*texts, known, strict=True), 1)
    ]
    return _not_empty(items, source)


def _distance(line: str, file: str | Path, number: int) -> int | None:
    text = line.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        what = f"distance {_short(text)}: not a whole number from 0"
        raise DataError(what, file=file, line=number, hint="or a blank line")
    return int(text)


def _parallel(lines: Sequence[str], file: str | Path, first: Sequence[str], first_file: str | Path) -> None:
    if len(lines) != len(first):
        hint = f"line n of both must be about item n, but {first_file} has {len(first):,}"
        raise DataError(plural(len(lines), "line"), file=file, hint=hint)


def _not_empty(items: list[Item], file: str | Path) -> list[Item]:
    if not items:
        raise DataError("no items: the file is empty", file=file)
    return items


def read_set(stem: str | Path) -> list[Item]:
    """The items of a set named as in DistilLingEval: STEM.src.*, STEM.tgt.correct.*, STEM.tgt.incorrect.*.

    STEM may also be a folder with src.*, tgt.correct.* and tgt.incorrect.*. The category is the name of the set. Raises
    FileProblem, DataError, and UsageError if a name matches several files.
    """
    stem = Path(stem)
    folder, prefix = (stem, "") if stem.is_dir() else (require_folder(stem.parent), f"{stem.name}.")
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    files = []
    for side in SIDES:
        fitting = [name for name in names if name.startswith(f"{prefix}{side}.") or name == f"{prefix}{side}"]
        if not fitting:
            raise FileProblem(f"no file {prefix}{side}.* in this folder", file=folder, hint=_nearest(prefix, names))
        if len(fitting) > 1:
            raise UsageError(f"{' and '.join(fitting[:2])} are both {side} of the set", file=folder, hint="keep one")
        files.append(folder / fitting[0])
    return read_parallel(*files, category=stem.name)


def _nearest(prefix: str, names: Sequence[str]) -> str | None:
    stems = sorted({name.partition(f".{SIDES[0]}")[0] for name in names if f".{SIDES[0]}" in name})
    near = difflib.get_close_matches(prefix.rstrip("."), stems, n=1)
    return f"did you mean {near[0]}?" if near else None


def with_trees(items: Sequence[Item], path: str | Path) -> list[Item]:
    """The items with the tree of each source, one line per item. Raises FileProblem, DataError."""
    trees = list(read_lines(path))
    if len(trees) != len(items):
        hint = f"line n must be the tree of item n, but {items[0].file} has {len(items):,}"
        raise DataError(plural(len(trees), "line"), file=path, hint=hint)
    return [item._replace(tree=tree, tree_file=str(path)) for item, tree in zip(items, trees, strict=True)]


def first_change(correct: str, wrong: str) -> int | None:
    """The position (from 0) of the first word that differs, words separated by white space; None if there is none."""
    left, right = correct.split(), wrong.split()
    shared = min(len(left), len(right))
    changed = next((i for i in range(shared) if left[i] != right[i]), shared)
    return changed if changed < max(len(left), len(right)) else None


def with_positions(items: Sequence[Item]) -> list[Item]:
    """The items with the position of the first changed word as an estimate of the distance.

    Raises UsageError if an item has a distance of its own.
    """
    known = next((item for item in items if item.distance is not None), None)
    if known is not None:
        what = "the items have distances, which an estimate would hide"
        raise UsageError(what, file=known.file, line=known.line)
    return [item._replace(distance=first_change(item.correct, item.wrong)) for item in items]
