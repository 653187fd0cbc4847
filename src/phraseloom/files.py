"""The only code that writes files: atomic, durable, checksummed.

A file is written under a temporary name in its own folder, flushed, fsynced, renamed over the target, and the folder is
fsynced. A folder of files is whole only if its `manifest.json` (sizes and SHA-256) verifies, and the manifest is written
last. All system calls go through `disk`, which the fault tests replace (reliability.md C1–C7).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from phraseloom.errors import CorruptError, FileProblem, PhraseloomError
from phraseloom.reading import MIB, inside, limit_of, nested_deeper, read_bounded

MANIFEST = "manifest.json"
JSON_MAX_BYTES = 64 * MIB
MANIFEST_MAX_BYTES = 8 * MIB
JSON_MAX_DEPTH = 64
EXPORT = "export.json"
LISTINGS = {MANIFEST: "files", "world.json": "sha256", "tokenizer.json": "files", EXPORT: "files"}
"""Files that list all others of their folder, and the key of that list."""
LISTED_DEPTH = 3  # how many folders above a file are searched for such a list


def available_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Disk:
    """The primitive file operations; one method a system call, so that a test can count and break each of them."""

    def open(self, path: Path, mode: str) -> IO[bytes]:
        """Open a file for binary writing."""
        return Path.open(path, mode)

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        """Write all of `data`."""
        handle.write(data)

    def flush(self, handle: IO[bytes]) -> None:
        """Hand the written bytes to the system."""
        handle.flush()

    def fsync(self, handle: IO[bytes]) -> None:
        """Wait until the bytes are on the disk."""
        os.fsync(handle.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source` in one step."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file or link."""
        path.unlink()

    def mkdir(self, path: Path) -> None:
        """Make a folder and its parents."""
        path.mkdir(parents=True, exist_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its contents."""
        shutil.rmtree(path)

    def symlink(self, text: str, path: Path) -> None:
        """Make `path` a symbolic link to `text`."""
        path.symlink_to(text)

    def fsync_folder(self, path: Path) -> None:
        """Make the names in a folder durable, on systems that can open a folder."""
        if os.name == "nt":
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


disk = Disk()


def disk_problem(error: OSError, path: Path) -> FileProblem:
    """An error of the operating system as a FileProblem."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FileProblem(
            "the disk is full (or the quota is used up)", file=path, hint="free some space, run it again"
        )
    hints = dict.fromkeys((errno.EROFS, errno.EACCES), "make it writable, or choose another folder")
    hints |= dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "it is a file, or in one: choose another folder")
    return FileProblem(f"cannot write: {error.strerror or error}", file=path, hint=hints.get(error.errno or 0))


def temporary_path(path: Path) -> Path:
    """Where this process writes a new `path` first; on a shared file system, another machine may have the same process id."""
    host = zlib.crc32(socket.gethostname().encode())
    return path.with_name(f".{path.name}.{os.getpid()}{host:010d}.tmp")


def is_temporary(path: Path, names: Container[str] | None = None) -> bool:
    """Whether `atomic_write` may have left this file when it was killed, of a file in `names` if they are given."""
    left = re.fullmatch(r"\.(.+)\.[0-9]+\.tmp", path.name)
    return left is not None and (names is None or left[1] in names)


def remove_temporaries(folder: Path, names: Container[str]) -> None:
    """Remove what killed processes left of new files of these names in `folder`, on which the caller has the lock.

    Raises FileProblem.
    """
    for path in [p for p in folder.iterdir() if is_temporary(p, names) and p.is_file()]:
        try:
            disk.unlink(path)
        except OSError as error:
            raise disk_problem(error, path) from error


def atomic_write(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let `write` write a temporary file, then rename it to `path`.

    `path` holds either the old or the new file at every instant; if it is a link, its target is replaced. Raises FileProblem,
    also for a device or a pipe, which cannot be replaced; the temporary file is removed.
    """
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FileProblem("neither a file nor a new name: a device or pipe cannot be written whole", file=path)
    temporary = temporary_path(path)
    try:
        disk.mkdir(path.parent)
        if os.path.lexists(temporary):
            disk.unlink(temporary)  # left by a killed process with the same id; never write through a link
        write(temporary)
        with disk.open(temporary, "rb+") as handle:
            disk.fsync(handle)
        disk.rename(temporary, path)
        disk.fsync_folder(path.parent)
    except OSError as error:
        raise disk_problem(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_bytes(path: str | Path, data: bytes | memoryview) -> None:
    """Write `data` as the whole content of `path` (see `atomic_write`)."""

    def write(temporary: Path) -> None:
        with disk.open(temporary, "wb") as handle:
            disk.write(handle, data)
            disk.flush(handle)

    atomic_write(path, write)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, byte for byte (no newline translation). Bytes of names that are not UTF-8 become `\\udcff`."""
    atomic_write_bytes(path, text.encode("utf-8", "backslashreplace"))


def json_bytes(value: Any) -> bytes:
    """`value` as JSON, keys in the given order, one final newline."""
    return (json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")


def atomic_write_json(path: str | Path, value: Any) -> None:
    """Write `value` as a JSON file."""
    atomic_write_bytes(path, json_bytes(value))


def append_line(handle: IO[bytes], text: str) -> None:
    """Append one whole line to an open log in one write."""
    disk.write(handle, text.encode("utf-8") + b"\n")
    disk.flush(handle)


def read_json(path: str | Path, what: str = "file", *, limit: int = JSON_MAX_BYTES) -> Any:
    """Read a JSON file, which may come from anybody: checks its kind, size (`limit`, bytes), depth and duplicate keys."""
    path = require_file(path, what)
    text = read_bounded(path, what, limit)

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CorruptError(f"{what} holds a key twice: {twice[:80]!r}", file=path)
        return result

    deep = CorruptError(f"{what} is nested deeper than {JSON_MAX_DEPTH} levels", file=path)
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=no_duplicates)
    except RecursionError:
        raise deep from None
    except ValueError as error:
        raise CorruptError(f"{what} is not valid JSON ({error})", file=path) from error
    if nested_deeper(text, JSON_MAX_DEPTH):
        raise deep
    return value


def require_file(path: str | Path, what: str = "file") -> Path:
    """`path`, if it is a readable regular file (or a pipe). Raises FileProblem with the reason."""
    path = Path(path)
    try:
        if path.is_dir():
            raise FileProblem(f"{what} expected, but this is a folder", file=path)
        if not path.exists():
            reason = ": a link to nothing, or to itself" if path.is_symlink() else ""
            raise FileProblem(f"{what} not found{reason}", file=path, hint=_nearest(path))
    except (OSError, ValueError) as error:
        raise FileProblem(f"{what} cannot be opened: {error}", file=path) from error
    if not os.access(path, os.R_OK):
        raise FileProblem(f"{what} is not readable: permission denied", file=path)
    return path


def require_regular_file(path: str | Path, what: str = "text file") -> Path:
    """`path`, if it is a readable file that can be read again; a pipe or device cannot. Raises FileProblem with the reason."""
    path = require_file(path, what)
    if not path.is_file():
        what = f"this is a pipe or device; a {what} is needed, because it is read more than once"
        raise FileProblem(what, file=path)
    return path


def _nearest(path: Path) -> str | None:
    import difflib

    try:
        names = [p.name for p in path.parent.iterdir() if p.name != path.name] if path.parent.is_dir() else None
    except OSError:
        return None
    if names is None:
        return f"the folder {path.parent} does not exist"
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {near[0]}?" if near else None


def require_folder(path: str | Path, what: str = "folder") -> Path:
    """`path`, if it is a folder. Raises FileProblem with the reason."""
    path = Path(path)
    if path.is_dir():
        return path
    if path.exists():
        raise FileProblem(f"{what} expected, but this is a file", file=path)
    raise FileProblem(f"{what} not found: no such folder", file=path, hint=_nearest(path))


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_manifest(folder: str | Path, names: Iterable[str], *, listing: str = MANIFEST) -> None:
    """Write `manifest.json` over the named files of `folder` (relative, `/`-separated): sizes and SHA-256.

    `listing`: the name of the file; `export.json` for a folder that is not a phraseloom model.
    """
    folder = Path(folder)
    files = {n: {"bytes": (folder / n).stat().st_size, "sha256": sha256_file(folder / n)} for n in sorted(names)}
    atomic_write_json(folder / listing, {"format": 1, "files": files})


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of `folder` as {file: entry}; every file is a regular file in the folder, of an allowed size.

    Raises FileProblem, CorruptError. Does not read the files themselves: see `verify_manifest`.
    """
    folder = require_folder(folder)
    manifest = read_json(inside(folder, MANIFEST, "manifest"), "manifest", limit=MANIFEST_MAX_BYTES)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or type(manifest.get("format")) is not int or manifest["format"] != 1:
        raise CorruptError("not a manifest of format 1", file=folder / MANIFEST)
    for name, entry in files.items():
        if not is_inner(name):
            raise CorruptError(f"manifest names a path outside its folder: {name[:80]!r}", file=folder / MANIFEST)
        try:
            path = inside(folder, name)
            size = path.stat().st_size
        except FileProblem as error:
            raise CorruptError(
                f"named in the manifest, but not a plain file ({error.what})", file=error.file
            ) from error
        limit = limit_of(name)
        if limit is not None and size > limit:
            raise CorruptError(f"larger than {limit / MIB:g} MiB, which no such file is", file=path)
        if size not in [e.get("bytes") for e in _allowed(entry) if type(e.get("bytes")) is int]:
            raise CorruptError(f"size is {size} bytes, the manifest says otherwise", file=path)
    return files


def is_inner(name: str) -> bool:
    """Whether a name in a manifest is a path below its folder."""
    if not name.isprintable() or "\\" in name or len(name) > 1000:
        return False
    return not any(part in ("", ".", "..") for part in name.split("/"))


def _allowed(entry: Any) -> list[dict[str, Any]]:
    """The entries that a file may match: its own, and its next one during `replace_listed`."""
    return [e for e in (entry, _next_of(entry)) if isinstance(e, dict)]


def verify_files(folder: str | Path, files: Mapping[str, Any]) -> None:
    """Compare the checksums of `files`, entries of `read_manifest`. Raises CorruptError for the first that differs."""
    for name, entry in files.items():
        path = Path(folder) / name
        if sha256_file(path) not in [e.get("sha256") for e in _allowed(entry)]:
            raise CorruptError("checksum differs from the manifest: the file is damaged or of another run", file=path)


def verify_manifest(folder: str | Path) -> list[str]:
    """The names in the manifest of `folder`, all verified. Raises CorruptError for the first file that differs."""
    files = read_manifest(folder)
    verify_files(folder, files)
    return list(files)


def _next_of(entry: Any) -> Any:
    """The next entry of a file (see `replace_listed`)."""
    return entry.get("next") if isinstance(entry, dict) else None


def folder_that_lists(path: str | Path) -> Path | None:
    """The folder written by phraseloom that `path` is part of: its list names `path` or a file in it, or is `path`; or None."""
    real = Path(path).resolve()
    for folder in list(real.parents)[:LISTED_DEPTH]:
        name = real.relative_to(folder).as_posix()
        for listing, key in LISTINGS.items():
            if not (folder / listing).is_file():
                continue
            try:
                content = read_json(folder / listing)
            except PhraseloomError:
                continue
            names = content.get(key) if isinstance(content, dict) else None
            if isinstance(names, dict) and (
                name == listing or any(n == name or n.startswith(f"{name}/") for n in names)
            ):
                return folder
    return None


def replace_listed(folder: str | Path, name: str, data: bytes) -> None:
    """Replace a file that the manifest of `folder` names, with its entry; the folder verifies at every instant.

    First the manifest allows both contents (`next`), then the file is replaced, then the manifest allows only the new one.
    Raises CorruptError if the folder is not whole, FileProblem.
    """
    folder = Path(folder)
    if name not in verify_manifest(folder):
        raise CorruptError(f"the manifest does not name {name}", file=folder / MANIFEST)
    manifest = read_json(folder / MANIFEST, "manifest")
    before = {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)}
    after = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"][name] = {**before, "next": after}
    atomic_write_json(folder / MANIFEST, manifest)
    atomic_write_bytes(folder / name, data)
    manifest["files"][name] = after
    atomic_write_json(folder / MANIFEST, manifest)


class LostFolder(FileProblem):
    """A folder in use that was moved, deleted or replaced; nothing may be written at its place any more."""


def in_use(folder: Path, owner: str = "") -> FileProblem:
    """The error on a folder whose lock another process holds."""
    hint = "wait until it has ended, or choose another folder"
    return FileProblem(f"the folder is in use by {owner or 'another process'}", file=folder, hint=hint)


class FolderLock:
    """A lock on a folder during the `with` block; a second process gets an error that names the owner.

    Any number of processes may have the lock at once if all of them ask for a `shared` one. Systems
    without `fcntl` do not have these. With `wait`, the second process waits for the first in place of the error.
    """

    def __init__(self, folder: str | Path, *, shared: bool = False, wait: bool = False) -> None:
        self.path, self.shared, self.wait = Path(folder) / ".lock", shared, wait
        self._handle: IO[bytes] | None = None
        self._portable = _PortableLock(self.path.parent)

    def __enter__(self) -> FolderLock:
        try:
            disk.mkdir(self.path.parent)
        except OSError as error:
            raise disk_problem(error, self.path.parent) from error
        if fcntl is None:
            if not self.shared:
                self._portable.acquire(wait=self.wait)
            return self
        self._handle = self._open()
        try:
            kind = fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX
            fcntl.flock(self._handle, kind if self.wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            self._handle.seek(0)
            owner = self._handle.read(200).decode("utf-8", "replace").strip()
            self._handle.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                what = f"this file system has no locks ({error.strerror or error})"
                hint = "mount it with locks (Lustre: -o flock), or choose a folder on another one"
                raise FileProblem(what, file=self.path.parent, hint=hint) from error
            raise in_use(self.path.parent, owner) from error
        with suppress(OSError):  # a full disk: the lock holds without the name of its owner
            self._handle.truncate(0)
            os.write(self._handle.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        return self

    def _open(self) -> IO[bytes]:
        """The lock file, opened for writing. A link, a pipe, or a file with a second name belongs to somebody else."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        hint = "remove it if no phraseloom runs here"
        try:
            handle = os.open(self.path, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise FileProblem("the lock is not a plain file", file=self.path, hint=hint) from error
            raise disk_problem(error, self.path.parent) from error
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
            os.close(handle)
            raise FileProblem("the lock is not a plain file of its own", file=self.path, hint=hint)
        return os.fdopen(handle, "ab+")

    def check(self) -> None:
        """Raise LostFolder unless the folder is still the one that was locked, not a new one at the same place."""
        if fcntl is None:
            self._portable.check()
            return
        assert self._handle is not None, "outside of the with block"
        locked = os.fstat(self._handle.fileno())
        try:
            present = self.path.stat()
        except OSError as error:
            raise LostFolder("the folder was moved or deleted while it was in use", file=self.path.parent) from error
        if (present.st_dev, present.st_ino) != (locked.st_dev, locked.st_ino):
            raise LostFolder("the folder was replaced while it was in use", file=self.path.parent)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.close()
        self._portable.release()


class _PortableLock:
    """The lock of a system without `fcntl`: the package filelock on the file `.filelock` of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._inode = folder, (0, 0)
        self._lock: Any = None

    def acquire(self, *, wait: bool = False) -> None:
        """Raise FileProblem if another process holds the lock, or `wait` for it."""
        import filelock

        lock = filelock.FileLock(self.folder / ".filelock")
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except filelock.Timeout as error:
            raise in_use(self.folder) from error
        self._lock, self._inode = lock, self._now()

    def _now(self) -> tuple[int, int]:
        try:
            state = self.folder.stat()
        except OSError as error:
            raise LostFolder("the folder was moved or deleted while it was in use", file=self.folder) from error
        return state.st_dev, state.st_ino

    def check(self) -> None:
        """Raise LostFolder if another folder is at this place now."""
        if self._now() != self._inode:
            raise LostFolder("the folder was replaced while it was in use", file=self.folder)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
