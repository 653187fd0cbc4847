"""`FaultyDisk` breaks one operation of `files.disk`; `RecordingDisk` writes them all down, and `power_loss_states` makes
every state that a journalled file system may show after the power went."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from phraseloom import files

OPERATIONS = (
    "open", "write", "flush", "fsync", "rename", "unlink", "mkdir", "remove_tree", "symlink", "fsync_folder",
)  # fmt: skip
KINDS: dict[str, int] = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT}


class FaultyDisk(files.Disk):
    """Counts operations and, at number `at` (from 1), fails: once or from there on.

    kind: a name of KINDS; "half" writes half of the data and then fails (any other operation just fails); "kill" ends the
    process.
    """

    def __init__(self, kind: str = "EIO", at: int | None = None, *, for_good: bool = False) -> None:
        self.kind, self.at, self.for_good, self.count = kind, at, for_good, 0

    def __getattribute__(self, name: str) -> Any:
        inner = super().__getattribute__(name)
        return self._broken(name, inner) if name in OPERATIONS else inner

    def _broken(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.count += 1
            if self.at is None or not (self.count == self.at or (self.for_good and self.count > self.at)):
                return inner(*arguments)
            if name == "write" and self.kind in ("half", "kill"):
                handle, data = arguments
                handle.write(data[: len(data) // 2])
                handle.flush()
            if self.kind == "kill":
                os._exit(9)
            number = KINDS.get(self.kind, errno.EIO)
            raise OSError(number, os.strerror(number), str(arguments[0]))

        return call


@dataclass
class Operation:
    """One recorded call: `path` and, for renames, `other`; `data` of a write; `inode` names the file written to."""

    name: str
    path: str
    other: str = ""
    inode: int = -1
    data: bytes = b""


@dataclass
class RecordingDisk(files.Disk):
    """Does everything, and keeps a record of it."""

    root: Path
    operations: list[Operation] = field(default_factory=list)
    _inodes: dict[int, tuple[int, str]] = field(default_factory=dict)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def open(self, path: Path, mode: str) -> IO[bytes]:
        handle = super().open(path, mode)
        inode = os.fstat(handle.fileno()).st_ino
        self._inodes[id(handle)] = (inode, self._name(path))
        if "w" in mode:
            self.operations.append(Operation("create", self._name(path), inode=inode))
        return handle

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        super().write(handle, data)
        inode, name = self._inodes[id(handle)]
        self.operations.append(Operation("write", name, inode=inode, data=bytes(data)))

    def fsync(self, handle: IO[bytes]) -> None:
        super().fsync(handle)
        inode, name = self._inodes[id(handle)]
        self.operations.append(Operation("fsync", name, inode=inode))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.operations.append(Operation("rename", self._name(source), self._name(target)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.operations.append(Operation("remove", self._name(path)))

    def remove_tree(self, path: Path) -> None:
        super().remove_tree(path)
        self.operations.append(Operation("remove", self._name(path)))

    def mkdir(self, path: Path) -> None:
        new = not path.is_dir()
        super().mkdir(path)
        if new:
            self.operations.append(Operation("mkdir", self._name(path)))

    def symlink(self, text: str, path: Path) -> None:
        super().symlink(text, path)
        self.operations.append(Operation("symlink", self._name(path), text))

    def fsync_folder(self, path: Path) -> None:
        super().fsync_folder(path)
        self.operations.append(Operation("fsync_folder", self._name(path)))


Names = dict[str, Any]  # path -> inode (file), ("link", text) or None (folder)


def read_tree(root: Path) -> tuple[Names, dict[int, bytes]]:
    """The names under a folder, and the content of its files by inode."""
    names: Names = {}
    content: dict[int, bytes] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            names[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            names[name] = None
        else:
            names[name] = path.stat().st_ino
            content[path.stat().st_ino] = path.read_bytes()
    return names, content


def _apply(names: Names, operation: Operation) -> None:
    inside = [n for n in names if n == operation.path or n.startswith(operation.path + "/")]
    if operation.name == "create":
        names[operation.path] = operation.inode
    elif operation.name == "mkdir":
        names[operation.path] = None
    elif operation.name == "symlink":
        names[operation.path] = ("link", operation.other)
    elif operation.name == "remove":
        for name in inside:
            del names[name]
    elif operation.name == "rename":
        moved = {operation.other + name[len(operation.path) :]: names.pop(name) for name in inside}
        names.update(moved)


def power_loss_states(
    names: Names,
    content: dict[int, bytes],
    operations: list[Operation],
    build: Callable[[Names, dict[int, bytes]], None],
) -> Iterator[tuple[int, str]]:
    """For a crash after each operation, give `build` every state the disk may then be in; yields (crash, description).

    Changes of the names in one folder reach the disk in order, and at the latest when that folder is fsynced; those of
    different folders come in any order (each folder is tried at each point, with the others early and late). Of data
    that was written since the last fsync of its file, all, half or nothing is there.
    """
    changes = [i for i, o in enumerate(operations) if o.name not in ("write", "fsync", "fsync_folder")]
    for crash in range(len(operations) + 1):
        synced: dict[str, int] = {}
        for i, o in enumerate(operations[:crash]):
            if o.name == "fsync_folder":
                synced[o.path] = i
        done = [c for c in changes if c < crash]
        loose = [c for c in done if c > synced.get(_folder(operations[c]), -1)]
        kept = [c for c in done if c not in loose]
        choices = {tuple(kept), tuple(done)}
        for folder in {_folder(operations[c]) for c in loose}:
            here = [c for c in loose if _folder(operations[c]) == folder]
            for count in range(len(here) + 1):
                for others in ([], [c for c in loose if c not in here]):
                    choices.add(tuple(sorted([*kept, *here[:count], *others])))
        for chosen in sorted(choices):
            for share in (0.0, 0.5, 1.0):
                now: Names = dict(names)
                for c in chosen:
                    _apply(now, operations[c])
                build(now, _data(content, operations[:crash], share))
                yield crash, f"crash after {crash}, {len(chosen)} of {len(done)} names, {share:.0%} of unsynced data"


def _folder(operation: Operation) -> str:
    return operation.path.rpartition("/")[0] or "."


def _data(content: dict[int, bytes], operations: list[Operation], share: float) -> dict[int, bytes]:
    safe = dict(content)
    pending: dict[int, bytes] = {}
    for o in operations:
        if o.name == "create":
            safe[o.inode], pending[o.inode] = b"", b""
        elif o.name == "write":
            pending[o.inode] = pending.get(o.inode, b"") + o.data
        elif o.name == "fsync":
            safe[o.inode] = safe.get(o.inode, b"") + pending.pop(o.inode, b"")
    for inode, data in pending.items():
        safe[inode] = safe.get(inode, b"") + data[: int(share * len(data))]
    return safe


def build_tree(root: Path, names: Names, content: dict[int, bytes]) -> None:
    """Make the files, folders and links of a state in an empty folder."""
    for name, kind in sorted(names.items()):
        path = root / name
        if not path.parent.is_dir():
            continue  # the folder did not reach the disk
        if kind is None:
            path.mkdir(exist_ok=True)
        elif isinstance(kind, tuple):
            path.symlink_to(kind[1])
        else:
            path.write_bytes(content.get(kind, b""))
