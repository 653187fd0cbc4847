"""First pass over text files: line counts, hashes, encoding. Errors appear here, before any work is done (T4, T8)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from phraseloom.data.shards import FileInfo
from phraseloom.errors import CorruptError, DataError, FileProblem
from phraseloom.files import require_file, sha256_file
from phraseloom.options.data import ParallelFiles, TextFile
from phraseloom.text.lines import LineReport, open_binary, read_blocks, read_lines

Progress = Callable[[str, int, int], None]


def locate(data_root: Path, name: str) -> Path:
    """The path of a data file, relative to the data root unless it is absolute. Raises FileProblem."""
    path = require_file(data_root / name, "text file")
    if not path.is_file():
        what = "this is a pipe or device; a text file is needed, because it is read more than once"
        raise FileProblem(what, file=path)
    return path


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


def survey(files: ParallelFiles | TextFile, data_root: Path, tags: Sequence[str] = ()) -> FileInfo:
    """Read each file once. Raises DataError, CorruptError (hash), FileProblem.

    DataError: line counts differ, a line is not UTF-8, or the text has one of `tags`, the tags of the dataset.
    """
    paths = {side: locate(data_root, name) for side, (name, _) in files.all_files.items()}
    hashes, reports = {}, {}
    for side, path in paths.items():
        reports[side], digest, expected = LineReport(), hashlib.sha256(), files.all_files[side][1]
        try:
            with open_binary(path, digest=digest) as handle:
                for block in read_blocks(handle, name=path, report=reports[side]):
                    if tags and side in files.sides:
                        _refuse_tags(tags, block, path, reports[side].lines - len(block))
        except (DataError, CorruptError):
            check_sha256(path, expected)  # another file than the recipe's explains the error better
            raise
        hashes[side] = _compare_sha256(path, digest.hexdigest(), expected)
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


def sample(paths: list[Path], total: int, size: int) -> Iterator[str]:
    """`size` of `total` lines, spread evenly over the files; every call gives the same lines."""
    size = min(size, total)
    chosen = ((j * total) // size for j in range(size))
    following = next(chosen, -1)
    start = 0
    for path in paths:
        with open_binary(path) as handle:
            for block in read_blocks(handle, name=path):
                while start <= following < start + len(block):
                    yield block[following - start]
                    following = next(chosen, -1)
                start += len(block)


def parallel(paths: dict[str, Path], size: int) -> Iterator[dict[str, list[str]]]:
    """Chunks of `size` lines of each file (the last one may be smaller). Raises DataError if a file has changed meanwhile."""
    names = list(paths)
    for together in zip_longest(*(chunks(path, size) for path in paths.values())):
        sizes = [-1 if lines is None else len(lines) for lines in together]
        if len(set(sizes)) > 1:
            other = next(name for name, n in zip(names, sizes, strict=True) if n != sizes[0])
            what = f"the line counts of this file and {paths[other].name} changed during reading"
            raise DataError(what, file=paths[names[0]])
        yield dict(zip(names, together, strict=True))


def chunks(path: Path, size: int) -> Iterator[list[str]]:
    """Lists of exactly `size` lines; the last one may be smaller."""
    pending: list[str] = []
    with open_binary(path) as handle:
        for block in read_blocks(handle, name=path):
            pending += block
            start = 0
            while len(pending) - start >= size:
                yield pending[start : start + size]
                start += size
            if start:
                pending = pending[start:]
    if pending:
        yield pending
