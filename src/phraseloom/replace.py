"""The only code that decides what may be removed or replaced: only what phraseloom wrote itself.

A folder is made in a working folder beside it and takes its name in one step (`new_folder`):

    OUT.partial/phraseloom.json   the mark: the kind of folder, and its name
    OUT.partial/.lock             held while the command runs
    OUT.partial/new/              the new folder; it becomes OUT
    OUT.partial/old/              the old OUT, until the new folder is in its place

The next run clears a working folder that a killed run left, if it has the mark; it refuses an `OUT.partial` without a mark.
`--overwrite` replaces a folder of the same `FolderKind` if the folder holds only the files that it lists and no input of the
command, and is neither a link nor the current folder. `cli/outputs.py` checks the files that a command writes.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phraseloom import files
from phraseloom.errors import CorruptError, FileProblem, PhraseloomError, UsageError

MARK, LOCK, NEW, OLD = "phraseloom.json", ".lock", "new", "old"
WORKING = ".partial"
OTHER_NAME = "choose another name or give --overwrite"
STDIN = "-"

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class FolderKind:
    """How to recognise a folder that phraseloom wrote.

    `name`: such as "dataset". `listing`: the JSON file whose object `key` lists all files of the folder as its keys. A folder
    of this kind has the files `needs`, and none of `without`.
    """

    name: str
    listing: str = files.MANIFEST
    key: str = "files"
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def check(self, folder: Path) -> None:
        """Raise FileProblem unless `folder` is of this kind and holds nothing else."""
        needed = (self.listing, *self.needs)
        missing = [name for name in needed if not (folder / name).is_file()]
        if missing or any(os.path.lexists(folder / name) for name in self.without):
            raise FileProblem(
                f"not a {self.name} of phraseloom{f' (no {missing[0]} there)' if missing else ''}, and --overwrite "
                "replaces nothing else",
                file=folder,
                hint="choose another name, or move the folder away",
            )
        content = files.read_json(folder / self.listing, f"list of the files of a {self.name}")
        names = content.get(self.key) if isinstance(content, dict) else None
        if not isinstance(names, dict):
            raise CorruptError(f"does not list the files of a {self.name}", file=folder / self.listing)
        stranger = _stranger(folder, {*names, *needed})
        if stranger is not None:
            what = f"this is not a file of the {self.name}, and --overwrite would remove it"
            raise FileProblem(what, file=folder / stranger, hint="move it away, or choose another name")


def _stranger(folder: Path, names: set[str]) -> str | None:
    """A file or folder in `folder` that `names` does not list (links never count as listed), or None."""
    parents = {parent.as_posix() for name in names for parent in Path(name).parents}
    for place, inner, plain in os.walk(folder):
        for name in sorted(inner):
            path = Path(place, name)
            if path.is_symlink() or path.relative_to(folder).as_posix() not in parents:
                return path.relative_to(folder).as_posix()
        for name in sorted(plain):
            path = Path(place, name)
            shown = path.relative_to(folder).as_posix()
            own = shown in names or shown == LOCK or files.is_temporary(path)
            if not own or not stat.S_ISREG(path.lstat().st_mode):
                return shown
    return None


def check_folder(
    path: AnyPath, kind: FolderKind, *, overwrite: bool = False, inputs: Iterable[AnyPath | None] = ()
) -> Path:
    """The real path of a folder that can be written at `path`; changes nothing.

    `inputs`: the files that the command reads; a folder that holds any of them is never replaced. Raises UsageError for a
    folder in use (not empty without `overwrite`, current, with an input), FileProblem if no folder can be written there.
    """
    path, what = Path(path), f"{kind.name} folder"
    if path.name in ("", ".."):
        raise UsageError(f"{path} does not name a folder to write", hint=f"give the new {kind.name} a name")
    with system_errors(path):
        real = path.parent.resolve() / path.name
        if real.is_symlink():
            real = _behind_link(path, real, overwrite)
        check_parent(path, real)
        if os.path.lexists(real) and not real.is_dir():
            raise FileProblem(f"{what} expected, but this is a file", file=path)
        sources = named_inputs(inputs)
        if real.is_dir():
            _check_present(path, real, kind, sources, overwrite=overwrite)
        _check_working(_working(real), real, kind, sources)
    return real


def named_inputs(inputs: Iterable[AnyPath | None]) -> list[Path]:
    """The inputs that are files or folders."""
    return [Path(name) for name in inputs if name is not None and os.fspath(name) != STDIN]


def _behind_link(path: Path, link: Path, overwrite: bool) -> Path:
    """The empty folder that a link points to. Raises FileProblem for any other link."""
    if not link.exists():
        raise FileProblem("a link to nothing: no folder can be made here", file=path, hint="remove the link")
    real = link.resolve()
    if real.is_dir() and any(real.iterdir()):
        if not overwrite:
            raise UsageError("this is a link to a folder that is not empty", file=path, hint="choose another name")
        raise FileProblem(
            "this is a link, and --overwrite replaces no folder through a link",
            file=path,
            hint=f"name the folder itself, {real}",
        )
    return real


def check_parent(path: Path, real: Path) -> None:
    """Raise FileProblem if nothing can be written in the folder of `real`."""
    place = real.parent
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise FileProblem("this is not a folder, so nothing can be written below it", file=place)
    if not os.access(place, os.W_OK | os.X_OK):
        reason = "a read-only file system" if _is_read_only(place) else "permission denied"
        hint = "make it writable, or choose another folder"
        raise FileProblem(f"nothing can be written here: {reason}", file=place, hint=hint)


def _is_read_only(place: Path) -> bool:
    return hasattr(os, "statvfs") and bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def _check_present(path: Path, real: Path, kind: FolderKind, inputs: list[Path], *, overwrite: bool) -> None:
    """The existing folder must be empty, or of the same kind and free to be replaced."""
    current = Path.cwd()
    if real == current or real in current.parents:
        raise UsageError("this is the current folder, or holds it", file=path, hint="name a folder inside of it")
    if os.path.ismount(real):
        raise FileProblem("this is where a disk is mounted", file=path, hint="name a folder inside of it")
    if not any(real.iterdir()):
        return
    _holds_no_input(path, real, inputs)
    if not overwrite:
        raise UsageError(f"{kind.name} folder is not empty", file=path, hint=OTHER_NAME)
    kind.check(real)
    owner = files.folder_that_lists(real)
    if owner is not None:
        raise UsageError(f"this is part of {owner}, which would be damaged", file=path, hint="choose another name")


def _holds_no_input(path: Path, real: Path, inputs: list[Path]) -> None:
    for name in inputs:
        for place in (name.parent.resolve() / name.name, name.resolve()):
            if real == place or real in place.parents:
                what = f"this folder holds an input of the command, {name}"
                raise UsageError(what, file=path, hint="choose another name for the output")


def _working(real: Path) -> Path:
    return real.with_name(real.name + WORKING)


def _check_working(work: Path, real: Path, kind: FolderKind, inputs: list[Path]) -> None:
    """Raise FileProblem unless the working folder is missing, empty, or left by an earlier run for this name."""
    if not os.path.lexists(work):
        return
    if work.is_symlink() or not work.is_dir():
        problem = "is in the way, and is no folder"
    else:
        names = {entry.name for entry in work.iterdir() if not _is_half_mark(entry)}
        current = Path.cwd()
        if work == current or work in current.parents:
            problem = "is in the way: this is the current folder"
        elif LOCK in names and not _is_lock(work / LOCK):
            problem = "is in the way, and was not made by phraseloom"
        elif names <= {LOCK} or (names <= {MARK, LOCK, NEW, OLD} and _marked(work, real, kind)):
            _holds_no_input(work, work, inputs)
            return
        else:
            problem = f"is in the way: it is no folder that an earlier run left when it made this {kind.name}"
    raise FileProblem(
        f"this name is needed while {real.name} is written; it {problem}",
        file=work,
        hint="move it away, or choose another name for the output",
    )


def _is_half_mark(path: Path) -> bool:
    return path.name.startswith(f".{MARK}.") and files.is_temporary(path) and not path.is_dir()


def _is_lock(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    text = path.read_bytes()[:8]
    return text in (b"", b"process ")


def _marked(work: Path, real: Path, kind: FolderKind) -> bool:
    if any((work / name).is_symlink() for name in (MARK, NEW, OLD)):
        return False
    try:
        content = files.read_json(work / MARK, "mark")
    except PhraseloomError:
        # Cleared except for the mark, or stopped before the mark was written.
        return not any(os.path.lexists(work / name) for name in (MARK, NEW, OLD))
    return bool(content == _mark(real, kind))


def _mark(real: Path, kind: FolderKind) -> dict[str, Any]:
    return {"phraseloom": "unfinished", "kind": kind.name, "for": real.name}


@contextmanager
def new_folder(
    path: AnyPath, kind: FolderKind, *, overwrite: bool = False, inputs: Iterable[AnyPath | None] = ()
) -> Iterator[Path]:
    """An empty folder that becomes `path` when the block ends; if the block raises, `path` stays as it was.

    `path` is either the whole old folder or the whole new one at every instant. Raises as `check_folder`, and FileProblem if
    the disk fails or another process writes the same folder.
    """
    sources = named_inputs(inputs)
    real = check_folder(path, kind, overwrite=overwrite, inputs=sources)
    work = _working(real)
    with system_errors(Path(path)):
        files.disk.mkdir(work)
        try:
            with files.FolderLock(work):
                try:
                    _clear(work, real)
                    _check_again(Path(path), real, kind, sources, overwrite=overwrite)
                    files.atomic_write_json(work / MARK, _mark(real, kind))
                    files.disk.mkdir(work / NEW)
                    yield work / NEW
                    _check_again(Path(path), real, kind, sources, overwrite=overwrite)
                    swap(work / NEW, real, work / OLD)
                except BaseException:
                    with suppress(OSError):
                        _clear(work, real)
                        _close(work)
                    raise
                _clear(work, real, finished=Path(path))
                _close(work)
        finally:
            with suppress(OSError):
                work.rmdir()  # only if it is empty


def _check_again(path: Path, real: Path, kind: FolderKind, inputs: list[Path], *, overwrite: bool) -> None:
    """Check the folder again: it may have been restored from a killed run, or another process may have written there."""
    if real.is_dir() and not real.is_symlink():
        _check_present(path, real, kind, inputs, overwrite=overwrite)
    elif os.path.lexists(real):
        raise FileProblem("something appeared under this name meanwhile", file=path, hint="choose another name")


def _clear(work: Path, real: Path, *, finished: Path | None = None) -> None:
    """Empty a working folder except for the mark; move an old folder back if its place is empty.

    `finished`: the new folder, if it is in place, for the message if the old one cannot be removed.
    """
    if os.path.lexists(work / OLD) and not os.path.lexists(real):
        files.disk.rename(work / OLD, real)
    for name in (NEW, OLD):
        if os.path.lexists(work / name):
            try:
                files.disk.remove_tree(work / name)
            except OSError as error:
                if finished is None:
                    raise
                what = f"{finished} is whole and in its place, but what it replaced cannot be removed"
                reason = error.strerror or error
                raise FileProblem(f"{what}: {reason}", file=work / name, hint="remove it by hand") from error


def _close(work: Path) -> None:
    """Remove the mark and the lock."""
    for path in (*filter(_is_half_mark, list(work.iterdir())), work / MARK, work / LOCK):
        remove_own(path)


def swap(new: Path, target: Path, old: Path) -> None:
    """Rename the folder `new` to `target`, and an existing `target` to `old`. If a rename fails, nothing has changed.

    Raises OSError; FileProblem, with its location, if the old folder cannot be moved back either.
    """
    moved = os.path.lexists(target)
    if moved:
        files.disk.rename(target, old)
    try:
        files.disk.rename(new, target)
    except BaseException as error:
        if moved:
            try:
                files.disk.rename(old, target)
            except OSError:
                raise FileProblem(
                    "cannot be written, and what was here cannot be put back", file=target, hint=f"it is in {old}"
                ) from error
        raise
    files.disk.fsync_folder(target.parent)


def check_marked(folder: Path, *marks: str) -> None:
    """Check that `remove_marked` may remove a folder. Raises FileProblem for a link, a file, a folder without a mark, and the
    current folder.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise FileProblem("in the way, and no folder that phraseloom made", file=folder, hint="move it away")
    inside = sorted(folder.iterdir())
    known = [folder / mark for mark in marks if _is_plain(folder / mark)]
    if not known and not all(map(files.is_temporary, inside)):
        raise FileProblem(
            f"in the way, and not made by phraseloom (no {marks[0]} there)", file=folder, hint="move the folder away"
        )
    current, real = Path.cwd(), folder.resolve()
    if real == current or real in current.parents:
        raise FileProblem("the current folder cannot be removed", file=folder, hint="change to another folder")


def remove_marked(folder: Path, *marks: str) -> None:
    """Remove a folder that has one of the files `marks` or is empty; do nothing if there is none.

    The marks are removed last, in order, so that an interrupted removal still leaves one. Raises as `check_marked`; OSError.
    """
    check_marked(folder, *marks)
    if not os.path.lexists(folder):
        return
    inside, known = sorted(folder.iterdir()), [folder / mark for mark in marks if _is_plain(folder / mark)]
    for path in (*(path for path in inside if path not in known), *known):
        remove_own(path)
    folder.rmdir()


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def remove_own(path: Path) -> None:
    """Remove a file, link or folder that phraseloom made, in a folder that it made; do nothing if there is none.

    For a link, only the link is removed, never its target.
    """
    if path.is_dir() and not path.is_symlink():
        files.disk.remove_tree(path)
    elif os.path.lexists(path):
        files.disk.unlink(path)


def discard(folder: Path) -> None:
    """Remove a folder that this operation has written and abandoned, as far as the disk allows."""
    if not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


def move_own(path: Path, target: Path) -> None:
    """Rename a file or folder that phraseloom made, within a folder that it made; a plain file at `target` is replaced.

    Raises FileProblem if a link or a folder is in the way, OSError.
    """
    if target.is_symlink() or target.is_dir():
        raise FileProblem("in the way, and nothing that phraseloom made", file=target, hint="move it away")
    files.disk.rename(path, target)


def point_link(link: Path, text: str) -> None:
    """Make `link` a symbolic link to `text`, in one step. Raises FileProblem if something else has that name, OSError."""
    temporary = link.with_name(f".{link.name}.new")
    for path in (link, temporary):
        if os.path.lexists(path) and not path.is_symlink():
            raise FileProblem("in the way of a link to a checkpoint", file=path, hint="move it away")
    if temporary.is_symlink():
        files.disk.unlink(temporary)
    files.disk.symlink(text, temporary)
    files.disk.rename(temporary, link)
    files.disk.fsync_folder(link.parent)


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Turn OSError, and errors about invalid names, into FileProblem."""
    try:
        yield
    except OSError as error:
        raise files.disk_problem(error, path) from error
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise FileProblem("a name cannot hold a NUL", file=path) from error
