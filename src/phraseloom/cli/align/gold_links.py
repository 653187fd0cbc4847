"""The input of the verbs that score attention against gold links: a text, its translation, its trees, and the links."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from phraseloom.align.links import Gold

Format = Annotated[
    str, typer.Option("--format", metavar="NAME", help="Format of the gold links: pharaoh, talp, naacl, or auto.")
]
Base = Annotated[int, typer.Option(min=0, max=1, help="Index of the first word in the gold links: 0 or 1.")]
Reverse = Annotated[bool, typer.Option("--reverse", help="The gold links list the target word first.")]


class GoldText(NamedTuple):
    """Parallel lines, the trees of the sources (if given), and gold links."""

    sources: list[str]
    targets: list[str]
    trees: list[str] | None
    gold: list[Gold]


def read(
    source: Path, target: Path, gold: Path, trees: Path | None, *, format: str, base: int, reverse: bool
) -> GoldText:
    """Read and check the files; warns if the links seem to count from 1. Raises DataError, UsageError."""
    from phraseloom.align.links import read_gold
    from phraseloom.analysis.gold import same_length
    from phraseloom.cli.align.evaluate import _never_first, _note
    from phraseloom.text.lines import read_lines

    paths = [path for path in (source, target, trees) if path is not None]
    lines = {path: list(read_lines(path)) for path in paths}
    same_length({str(path): texts for path, texts in lines.items()})
    pairs = list(zip(lines[source], lines[target], strict=True))
    links = read_gold(gold, format=format, base=base, reverse=reverse, lines=pairs)
    if base == 0 and _never_first(links):
        _note(f"{gold}: no link has a word 0; does the file count from 1 (--base 1)?")
    return GoldText(lines[source], lines[target], None if trees is None else lines[trees], links)


@contextlib.contextmanager
def places(trees: Path | None) -> Iterator[None]:
    """Make errors about a tree name its file."""
    from phraseloom.decoding.source_phrases import TREES
    from phraseloom.errors import DataError

    try:
        yield
    except DataError as error:
        if error.file != TREES:
            raise
        raise DataError(error.what, file=trees, line=error.line, hint=error.hint) from error
