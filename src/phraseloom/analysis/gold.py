"""A split of a world with its gold truth: words, instances of every phenomenon, how often training shows each phrase.

Read from a folder that `phraseloom world` wrote; every line is checked, and a wrong one is named by file and line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from phraseloom.analysis.instances import Instance, instances
from phraseloom.errors import DataError, FileProblem, UsageError, plural
from phraseloom.files import read_json, require_folder
from phraseloom.text.lines import read_lines
from phraseloom.world.pair import parse_phrases

NEEDED = ("en", "de", "align", "trees", "phrases", "agreement")
OF_SEVERAL_WORDS = ("idiom", "compound", "separable", "expansion")
WORD = re.compile(r"[^\s.,]+|[.,]")


def words_of(line: str) -> list[str]:
    """The words of a line; full stop and comma are words, whether or not a space stands before them."""
    return WORD.findall(line)


def same_length(files: Mapping[str, Sequence[str]]) -> None:
    """DataError unless all files have as many lines as the first, and at least one. Blank lines are as good as any."""
    (first_name, first), *others = files.items()
    for name, lines in others:
        if len(lines) != len(first):
            hint = f"line n of both must be about sentence n, but {first_name} has {len(first):,}"
            raise DataError(plural(len(lines), "line"), file=name, hint=hint)
    if not first:
        raise DataError("no lines: there is nothing to look at", file=first_name)


class GoldSplit(NamedTuple):
    """One split of a world: gold target words, instances, and for each instance its groups (rows of the report)."""

    gold: list[list[str]]
    found: list[list[Instance]]
    groups: list[list[list[str]]]


def read_world(folder: str | Path, split: str, *, edges: Sequence[int] = ()) -> GoldSplit:
    """Read a split; with `edges`, phrases are also grouped by how often training shows their source words.

    Raises FileProblem, DataError, UsageError (no such split).
    """
    folder = require_folder(folder, "world folder")
    if not (folder / "world.json").is_file():
        raise FileProblem("not a world folder: it holds no world.json", file=folder, hint="phraseloom world writes one")
    summary = read_json(folder / "world.json", "description of the world")
    pairs = summary.get("pairs") if isinstance(summary, dict) else None
    if not isinstance(pairs, dict) or split not in pairs:
        known = ", ".join(pairs) if isinstance(pairs, dict) else "none"
        raise UsageError(f"no split {split!r} in {folder}", hint=f"splits: {known}")
    columns = {str(folder / f"{split}.{e}"): list(read_lines(folder / f"{split}.{e}")) for e in NEEDED}
    same_length(columns)
    lines = list(zip(*columns.values(), strict=True))
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(instances(dict(zip(NEEDED, line, strict=True))))
        except DataError as error:
            raise DataError(f"annotation: {error.what}", file=folder / split, line=number, hint=error.hint) from error
    seen = _training_counts(folder) if edges else Counter()
    groups = []
    for line, some in zip(lines, found, strict=True):
        source = line[0].split()
        groups.append([[i.kind, *_frequency_group(i, source, seen, edges)] for i in some])
    return GoldSplit([words_of(line[1]) for line in lines], found, groups)


def _key(kind: str, words: Sequence[str]) -> tuple[str, str]:
    return kind, " ".join(words).lower()


def _training_counts(folder: Path) -> Counter[tuple[str, str]]:
    """How often the source words of each phrase stand in the training pairs as a phrase of that kind."""
    counts: Counter[tuple[str, str]] = Counter()
    columns = {str(folder / f"train.{e}"): list(read_lines(folder / f"train.{e}")) for e in ("en", "phrases")}
    same_length(columns)
    for source, line in zip(*columns.values(), strict=True):
        if line:
            words = source.split()
            counts.update(_key(p.label, words[p.source[0] : p.source[1]]) for p in parse_phrases(line))
    return counts


def _frequency_group(
    instance: Instance, source: Sequence[str], seen: Counter[tuple[str, str]], edges: Sequence[int]
) -> list[str]:
    if not edges or instance.kind not in OF_SEVERAL_WORDS:
        return []
    times = seen[_key(instance.kind, source[instance.source[0] : instance.source[1]])]
    bounds = [0, *edges]
    place = sum(times >= b for b in bounds) - 1
    last = place == len(bounds) - 1
    span = f"{bounds[place]}+" if last else f"{bounds[place]}–{bounds[place + 1] - 1}"
    if not last and bounds[place + 1] - 1 == bounds[place]:
        span = str(bounds[place])
    return [f"{instance.kind}, {span}× in training"]
