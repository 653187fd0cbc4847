"""What `phraseloom analyse contrastive` reads: contrastive items in one of three forms, with trees or without."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from phraseloom.analysis.contrastive_items import Item, read_items, read_lingeval, read_parallel, read_set, with_trees
from phraseloom.errors import UsageError, plural

MOST_BINS = 1000


def read(
    items: Sequence[Path],
    sets: Sequence[Path],
    three: Mapping[str, Path | None],
    *,
    lingeval: Path | None = None,
    distances: Path | None,
    category: str | None,
    trees: Sequence[Path],
) -> list[Item]:
    """The items of JSON lines files, or of sets, or of `three` parallel files (option → file), or of LingEval97's file.

    Raises UsageError for anything but one of the four forms, DataError, FileProblem.
    """
    given = [option for option, path in three.items() if path is not None]
    forms = ["--items"] * bool(items) + ["--set"] * bool(sets) + ["--lingeval"] * bool(lingeval) + given[:1]
    if len(forms) != 1:
        what = f"{' and '.join(forms)} together" if forms else "no items"
        raise UsageError(what, hint="give --items, or --set, or --lingeval, or --source with --correct and --wrong")
    missing = [option for option in three if option not in given]
    if given and missing:
        raise UsageError(f"{given[0]} without {missing[0]}", hint="the three files go together")
    for option, value in (("--distances", distances), ("--category", category)):
        if value is not None and not given and (option, forms[0]) != ("--category", "--lingeval"):
            raise UsageError(f"{option} goes with --source, not with {forms[0]}")
    if items:
        parts = [read_items(path) for path in items]
    elif sets:
        parts = [read_set(stem) for stem in sets]
    elif lingeval is not None:
        parts = [read_lingeval(lingeval, category)]
    else:
        parts = [
            read_parallel(*(path for path in three.values() if path), distances=distances, category=category or "")
        ]
    if trees:
        if len(trees) != len(parts):
            what = f"{plural(len(trees), 'file')} of trees for {len(parts)} of items"
            raise UsageError(what, hint="give --trees once for each, in the same order")
        parts = [with_trees(part, path) for part, path in zip(parts, trees, strict=True)]
    return [item for part in parts for item in part]


def edges(text: str) -> list[int]:
    """`0-5,10,20` as [0, 1, 2, 3, 4, 5, 10, 20]: where bins end. Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        last = int(ends[2] or ends[1]) if ends else -1
        if not ends or last - int(ends[1]) >= MOST_BINS:
            break
        found += range(int(ends[1]), last + 1)
    else:
        if found and found == sorted(set(found)) and len(found) <= MOST_BINS:
            return found
    raise UsageError(
        f"--bins {text}: not at most {MOST_BINS} rising whole numbers from 0", hint="such as 0-15 or 0,2,5,10"
    )
