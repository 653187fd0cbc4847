"""`phraseloom decontaminate`: parallel text without the pairs that are in held-out text."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, compress, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import SourceText, TargetText
from phraseloom.cli.streams import note
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import require_file, require_regular_file, write_manifest

if TYPE_CHECKING:
    from phraseloom.text.held_out import HeldOut
    from phraseloom.text.lines import LineReport

BLOCK = 20_000
NAMES, LINES = ("source.txt", "target.txt"), "lines.txt"


def command(
    source: SourceText,
    target: TargetText,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The folder to write.")],
    held_out_source: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Validation or test text in the source language. Repeatable."),
    ] = None,
    held_out_target: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Validation or test text in the target language. Repeatable."),
    ] = None,
    words: Annotated[int, typer.Option(min=1, metavar="N", help="Fewest words of a line that counts.")] = 5,
    deduplicate: Annotated[bool, typer.Option("--deduplicate", help="Leave out pairs that came before, too.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing folder.")] = False,
) -> None:
    """Leave out the training pairs of which a side of at least N words is in held-out text of its language.

    Case, punctuation and white space do not count. The output folder has the remaining pairs, source.txt and
    target.txt, and their line numbers, lines.txt. The filters of data.filter do the same within prepare (docs/data.md).

    Example: phraseloom decontaminate -s train.de -t train.en --held-out-source test.de --held-out-target test.en -o clean
    """
    from phraseloom.replace import FolderKind, check_folder, new_folder
    from phraseloom.text.held_out import HeldOut
    from phraseloom.text.lines import LineReport, read_lines, write_lines

    held_out = {"source": held_out_source or [], "target": held_out_target or []}
    inputs = [source, target, *chain.from_iterable(held_out.values())]
    if len(inputs) == 2 and not deduplicate:
        raise UsageError("no held-out text", hint="give --held-out-source, --held-out-target, or both")
    kind = FolderKind("decontaminated text", needs=NAMES)
    check_folder(output, kind, overwrite=overwrite, inputs=inputs)
    for number, path in enumerate(inputs):
        require_regular_file(path) if number < 2 else require_file(path, "text file")
    reports: dict[Path, LineReport] = {}

    def lines_of(path: Path) -> Iterator[str]:
        report = LineReport()
        reports.setdefault(path, report)
        return read_lines(path, report=report)

    known = HeldOut.of(words, {side: chain.from_iterable(map(lines_of, paths)) for side, paths in held_out.items()})
    files = {"source": source, "target": target}
    free = _kept(files, lines_of, known)
    pairs = len(free)
    if not any(free):
        raise DataError(f"no pair is left: {plural(pairs, 'pair')} in held-out text", file=source)
    kept = bytes(map(operator.gt, free, _repeated(files))) if deduplicate else free
    with new_folder(output, kind, overwrite=overwrite, inputs=inputs) as folder:
        for path, name in zip((source, target), NAMES, strict=True):
            write_lines(folder / name, compress(read_lines(path), kept))
        write_lines(folder / LINES, map(str, compress(range(1, pairs + 1), kept)))
        write_manifest(folder, (*NAMES, LINES))
    _report(reports, pairs, sum(free) if len(inputs) > 2 else None, sum(free) - sum(kept) if deduplicate else None)


def _report(reports: Mapping[Path, LineReport], pairs: int, free: int | None, repeated: int | None) -> None:
    """Say what reading has changed, and how many pairs were left out for each reason that was asked for."""
    for path, report in reports.items():
        for text in report.warnings(path):
            note("decontaminate", text)
    held_out = None if free is None else pairs - free
    for count, why in ((held_out, "a side is in held-out text"), (repeated, "the same pair came before")):
        if count is not None:
            note("decontaminate", f"left out {count:,} of {plural(pairs, 'pair')} ({count / pairs:.2%}): {why}")


def _kept(files: dict[str, Path], lines_of: Callable[[Path], Iterator[str]], known: HeldOut) -> bytearray:
    """Whether each pair is kept, a byte a pair. Raises DataError if one side ends first."""
    from phraseloom.text.lines import PARALLEL

    kept = bytearray()
    both = zip_longest(*map(lines_of, files.values()))
    while block := list(islice(both, BLOCK)):
        sides = dict(zip(files, map(list, zip(*block, strict=True)), strict=True))
        for side, lines in sides.items():
            if None in lines:
                number = len(kept) + lines.index(None) + 1
                raise DataError("this file ends before the other side", file=files[side], line=number, hint=PARALLEL)
        kept += (~known.found(sides)).tobytes()
    return kept


def _repeated(files: dict[str, Path]) -> bytes:
    """Whether each pair came before, a byte a pair, by 128-bit hashes (16 bytes a pair in memory, and as much to sort them)."""
    import hashlib

    import numpy as np

    from phraseloom.text.lines import read_lines

    hashes = bytearray()
    for pair in zip(*map(read_lines, files.values()), strict=True):
        hashes += hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest()
    first, second = np.frombuffer(hashes, np.uint64).reshape(-1, 2).T
    order = np.lexsort((second, first))  # stable: of equal pairs the first one stays first
    equal = (first[order[1:]] == first[order[:-1]]) & (second[order[1:]] == second[order[:-1]])
    result = np.zeros(len(order), bool)
    result[order[1:][equal]] = True
    return result.tobytes()
