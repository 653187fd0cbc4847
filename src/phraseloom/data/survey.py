"""First pass over text files: line counts, hashes, encoding. Errors appear here, before any work is done (T4, T8)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phraseloom.data.shards import FileInfo
from phraseloom.errors import CorruptError, DataError
from phraseloom.files import require_regular_file, sha256_file
from phraseloom.options.data import ParallelFiles, TextFile
from phraseloom.text.lines import (
    LineReport,
    open_binary,
    read_blocks,
    read_lines,
    read_regions,
    split_region,
)

Progress = Callable[[str, int, int], None]
LINE_END = ord("\n")
Reading = tuple[Path, str | None, tuple[str, ...]]


def locate(data_root: Path, name: str) -> Path:
    """The path of a data file, relative to the data root unless it is absolute. Raises FileProblem."""
    return require_regular_file(data_root / name)


def check_sha256(path: Path, expected: str | None) -> str:
    """The SHA-256 of a file. Raises CorruptError if the recipe expects another one."""
    return _compare_sha256(path, sha256_file(path), expected)


def _compare_sha256(path: Path, actual: str, expected: str | None) -> str:
    if expected is not None and actual != expected:
        raise CorruptError(
            f"SHA-256 is {actual}, but the recipe has {expected}",
            file=path,
            hint="fetch the file again, or correct the recipe if this is the right file",
        )
    return actual


def read_through(path: Path, expected: str | None, tags: Sequence[str] = ()) -> tuple[LineReport, str]:
    """Read a file once: the report of its lines, and its SHA-256. Raises DataError, CorruptError (hash), FileProblem.

    `expected`: the SHA-256 of the recipe, if there is one. DataError: a line is not UTF-8, or has one of `tags`.
    """
    report, digest = LineReport(), hashlib.sha256()
    try:
        with open_binary(path, digest=digest) as handle:
            for block in read_blocks(handle, name=path, report=report):
                if tags:
                    _refuse_tags(tags, block, path, report.lines - len(block))
    except (DataError, CorruptError):
        check_sha256(path, expected)  # another file than the recipe's explains the error better
        raise
    return report, _compare_sha256(path, digest.hexdigest(), expected)


def readings(files: ParallelFiles | TextFile, data_root: Path, tags: Sequence[str] = ()) -> list[Reading]:
    """The arguments of `read_through` for the files of a corpus. `tags`: the tags of the dataset. Raises FileProblem."""
    return [
        (locate(data_root, name), sha256, tuple(tags) if side in files.sides else ())
        for side, (name, sha256) in files.all_files.items()
    ]


def survey(files: ParallelFiles | TextFile, data_root: Path, results: Iterable[tuple[LineReport, str]]) -> FileInfo:
    """Put together what `read_through` returned for the `readings` of a corpus. Raises DataError if line counts differ."""
    paths = {side: locate(data_root, name) for side, (name, _) in files.all_files.items()}
    hashes, reports = {}, {}
    for side, (report, sha256) in zip(paths, results, strict=True):
        reports[side], hashes[side] = report, sha256
    if "source" in paths and reports["source"].lines != reports["target"].lines:
        raise _counts_differ(paths["source"], paths["target"], reports["source"].lines, reports["target"].lines)
    if "trees" in paths and reports["trees"].lines != reports["source"].lines:
        raise _trees_differ(paths["source"], paths["trees"], reports["source"].lines, reports["trees"].lines)
    if "links" in paths and reports["links"].lines != reports["target"].lines:
        counts = f"{reports['links'].lines} in {paths['links'].name}, but {reports['target'].lines} pairs"
        line = min(reports["links"].lines, reports["target"].lines) + 1
        hint = "write the links of one pair per line, and a blank line for none"
        raise DataError(f"line counts differ: {counts}", file=paths["links"], line=line, hint=hint)
    names = {side: name for side, (name, _) in files.all_files.items()}
    return FileInfo(
        source=names.get("source", ""),
        target=names["target"],
        source_sha256=hashes.get("source", ""),
        target_sha256=hashes["target"],
        lines=reports["target"].lines,
        source_report=reports["source"].as_dict() if "source" in reports else {},
        target_report=reports["target"].as_dict(),
        trees=names.get("trees"),
        trees_sha256=hashes.get("trees"),
        trees_report=reports["trees"].as_dict() if "trees" in reports else None,
        links=names.get("links"),
        links_sha256=hashes.get("links"),
        links_report=reports["links"].as_dict() if "links" in reports else None,
    )


def _refuse_tags(tags: Sequence[str], lines: list[str], path: Path, before: int) -> None:
    """Raise DataError (file, line) if a tag occurs in lines of a file; `before`: the number of lines before them."""
    for number, line in enumerate(lines, start=before + 1):
        tag = next((tag for tag in tags if tag in line), None)
        if tag is not None:
            hint = "choose another tag, or remove it from the text: prepare writes it before the source itself"
            raise DataError(f"the text has the tag {tag}", file=path, line=number, hint=hint)


def _counts_differ(source: Path, target: Path, source_lines: int, target_lines: int) -> DataError:
    """An error with both counts and the first line that is blank on one side only, because the shift is near it."""
    what = f"line counts differ: {source_lines} in {source.name}, {target_lines} in {target.name}"
    for number, (left, right) in enumerate(zip_longest(read_lines(source), read_lines(target)), start=1):
        if left is None or right is None:
            break
        if bool(left.strip()) != bool(right.strip()):
            blank = source.name if not left.strip() else target.name
            hint = f"the first line that is blank on one side only is {number} ({blank}); correct the files before it"
            return DataError(what, file=source, line=number, hint=hint)
    shorter = min(source_lines, target_lines)
    hint = f"no line up to {shorter} is blank on one side only; one file may be truncated, or a line end missing"
    return DataError(what, file=source, line=shorter + 1, hint=hint)


def _trees_differ(source: Path, trees: Path, lines: int, tree_lines: int) -> DataError:
    """An error with both counts and the first blank line with a tree. (Text without a tree is not unusual.)"""
    what = f"line counts differ: {tree_lines} in {trees.name}, but {lines} in its source {source.name}"
    for number, (line, tree) in enumerate(zip(read_lines(source), read_lines(trees), strict=False), start=1):
        if tree.strip() and not line.strip():
            return DataError(what, file=trees, line=number, hint="this is the first tree of a blank line")
    hint = "write one tree per line, and a blank line for a missing tree"
    return DataError(what, file=trees, line=min(lines, tree_lines) + 1, hint=hint)


def sample(paths: Sequence[Path], total: int, size: int, rows: range | None = None) -> Iterator[str]:
    """`size` of `total` lines, spread evenly over the files; every call gives the same lines. `rows`: only these of them."""
    size = min(size, total)
    rows = range(size) if rows is None else rows
    chosen = np.arange(rows.start, rows.stop) * total // max(size, 1)
    start = 0
    for path in paths:
        if not len(chosen):
            return
        with open_binary(path) as handle:
            for region in read_regions(handle, path):
                ends = _line_ends(region)
                inside = chosen[: np.searchsorted(chosen, start + len(ends))] - start
                begins = np.append(0, ends)[inside]
                try:
                    region.decode()
                except UnicodeDecodeError:
                    split_region(region, name=path, report=LineReport(lines=start))  # raises, with the line
                lines = [region[begin:end] for begin, end in zip(begins.tolist(), ends[inside].tolist(), strict=True)]
                yield from split_region(b"".join(lines), name=path)
                chosen, start = chosen[len(inside) :], start + len(ends)
                if not len(chosen):
                    return


def _line_ends(region: bytes) -> npt.NDArray[np.int64]:
    """The place after each line of whole lines."""
    ends = np.flatnonzero(np.frombuffer(region, np.uint8) == LINE_END) + 1
    return ends if not region or region.endswith(b"\n") else np.append(ends, len(region))


def parallel(paths: dict[str, Path], size: int) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Chunks of `size` lines of each file (the last one may be smaller): the number of lines, and their bytes.

    Raises DataError if a file has changed meanwhile.
    """
    names = list(paths)
    for together in zip_longest(*(chunks(path, size) for path in paths.values()), fillvalue=(-1, b"")):
        sizes = [lines for lines, _ in together]
        if len(set(sizes)) > 1:
            other = next(name for name, n in zip(names, sizes, strict=True) if n != sizes[0])
            what = f"the line counts of this file and {paths[other].name} changed during reading"
            raise DataError(what, file=paths[names[0]])
        yield sizes[0], {name: data for name, (_, data) in zip(names, together, strict=True)}


def chunks(path: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of exactly `size` lines (the last ones may be fewer), after their number; `split_region` makes them lines."""
    pending, held = list[bytes](), 0
    with open_binary(path) as handle:
        for region in read_regions(handle, path):
            ends, place, begin = _line_ends(region), 0, 0
            while len(ends) - place >= size - held:
                place += size - held
                end = int(ends[place - 1])
                yield size, b"".join((*pending, region[begin:end]))
                pending, held, begin = [], 0, end
            if place < len(ends):
                pending.append(region[begin:])
                held += len(ends) - place
    if held:
        yield held, b"".join(pending)
