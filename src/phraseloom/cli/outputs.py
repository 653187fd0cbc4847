"""Check the output files of a command before any work: they must be new, or `--overwrite` given."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from phraseloom import files
from phraseloom.errors import FileProblem, UsageError
from phraseloom.replace import OTHER_NAME, AnyPath, check_parent, named_inputs, system_errors

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
OverwriteModel = Annotated[bool, typer.Option("--overwrite", help="Replace an existing model.")]


def check_outputs(
    outputs: Mapping[str, AnyPath | None],
    *,
    overwrite: bool,
    inputs: Iterable[AnyPath | None] = (),
    compresses: bool = False,
) -> None:
    """Check the output files of a command, by option, before it does any work.

    `inputs`: the files and folders that it reads; - is standard input. Raises UsageError for a file that exists (without
    `overwrite`), is an input, is named by two options, or has the name of a compressed file, unless the command `compresses`;
    FileProblem for a path that cannot be written as a file.
    """
    paths = {option: Path(path) for option, path in outputs.items() if path is not None}
    sources = named_inputs(inputs)
    places: dict[str, set[object]] = {}
    for option, path in paths.items():
        if path.suffix in (".gz", ".xz") and not compresses:
            what = f"{path}: the output is not compressed"
            raise UsageError(what, hint="choose a name without .gz or .xz")
        with system_errors(path):
            _check_file(path)
            places[option] = _places(path)
            for other, taken in places.items():
                if other != option and taken & places[option]:
                    raise UsageError(f"{other} and {option} are the same file", file=path, hint="give two names")
            for source in sources:
                if _places(source) & places[option]:
                    raise UsageError(f"{option} is also an input of the command", file=path, hint="choose another name")
    for path in paths.values():
        if not path.is_file():
            continue
        if not overwrite:
            raise UsageError("the file is there already", file=path, hint=OTHER_NAME)
        folder = files.folder_that_lists(path)
        if folder is not None:
            raise UsageError(
                f"this file is part of {folder}, which would be damaged", file=path, hint="choose another name"
            )


def _check_file(path: Path) -> None:
    """Raise FileProblem if no file can be written."""
    if path.is_dir():
        raise FileProblem("a file to write expected, but this is a folder", file=path)
    if path.exists() and not path.is_file():
        raise FileProblem("neither a file nor a new name: a device or pipe cannot be written whole", file=path)
    try:
        real = path.resolve()
    except RuntimeError as error:  # before Python 3.13
        raise FileProblem("a link that leads to itself", file=path) from error
    if real.is_symlink():
        raise FileProblem("a link that leads to itself", file=path)
    check_parent(path, real)


def _places(path: Path) -> set[object]:
    """What identifies a file however it is spelt: its real path and, if it exists, device and inode."""
    identifiers: set[object] = {os.path.realpath(path)}
    with suppress(OSError, ValueError):
        status = path.stat()
        identifiers.add((status.st_dev, status.st_ino))
    return identifiers
