r"""The only code that splits text into lines: only the byte `\n` ends a line (reliability.md T1–T8).

U+2028, U+0085, VT, FF and a lone `\r` are ordinary characters. `\r\n` is read as `\n` and counted. A byte order mark at
offset 0 is stripped and reported. Invalid UTF-8 stops the reader with file, line and byte (training), or is replaced and
counted (translation). A last line without `\n` counts as a line. Readers accept plain, .gz and .xz files. The decompressed
size and the length of a line are limited, so memory stays bounded.

`join_lines(lines, 2, 3)` joins lines 1-2, 3-5, 6-7, 8-10, …: groups of 2 and 3 lines in turn, joined by spaces. The groups
depend on line numbers only, so parallel files stay parallel.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from phraseloom.errors import CorruptError, DataError, FileProblem, UsageError, plural
from phraseloom.files import atomic_write, disk, require_file

BLOCK = 2**20
MAX_LINE_BYTES = 2**26
XZ_MEMORY = 2**28
# A compressed text may grow to this many times its size, or to this many bytes if that is more.
MAX_GROWTH = 200
FREE_GROWTH = 2**25
GZIP_MAGIC, XZ_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\0"
_BOM = "\ufeff".encode()
_COMPRESSED = {GZIP_MAGIC: "gzip", XZ_MAGIC: "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair: no character, and not to be encoded
PARALLEL = "the files must be parallel, line by line"

Invalid = Literal["stop", "replace"]

# What a reader changes: the unit, and the change.
CHANGES = {
    "crlf": ("line", r"ended by \r\n, read as \n"),
    "bom": ("byte order mark", "at the beginning, left out"),
    "nul": ("line", "with NUL"),
    "invalid_utf8": ("line", "with invalid UTF-8, replaced"),
}


@dataclass
class LineReport:
    """Counts of what a reader changed, and the first line (from 1) of each kind."""

    lines: int = 0
    crlf: int = 0
    bom: int = 0
    nul: int = 0
    invalid_utf8: int = 0
    first: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, count: int, line: int) -> None:
        """Add `count` to `kind`; `line` is the first line concerned."""
        setattr(self, kind, getattr(self, kind) + count)
        self.first.setdefault(kind, line)

    def as_dict(self) -> dict[str, Any]:
        """The counts as plain data."""
        return asdict(self)

    def changes(self) -> Iterator[str]:
        """One phrase per kind of change: how often, and the first line."""
        for kind, (noun, what) in CHANGES.items():
            if count := getattr(self, kind):
                yield f"{plural(count, noun)} {what} (first: line {self.first[kind]})"

    def warnings(self, name: str | Path = "input") -> list[str]:
        """One sentence on all changes in the file `name`; empty if there are none."""
        changes = list(self.changes())
        return [f"{name}: " + "; ".join(changes)] if changes else []


class _Hashed(io.RawIOBase):
    """The bytes of a file, which also go into a hash."""

    def __init__(self, raw: io.FileIO, digest: hashlib._Hash) -> None:
        self._raw, self._digest = raw, digest

    def readable(self) -> bool:
        """Always true."""
        return True

    def fileno(self) -> int:
        """The descriptor of the file."""
        return self._raw.fileno()

    def close(self) -> None:
        """Close this reader and the file."""
        self._raw.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the next bytes; 0 at the end."""
        size = self._raw.readinto(buffer) or 0
        self._digest.update(memoryview(buffer)[:size])
        return size


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of all members of a .gz or .xz file, within the growth limits."""

    def __init__(self, path: Path, raw: IO[bytes]) -> None:
        self._path, self._raw, self._xz = path, raw, path.suffix == ".xz"
        self._limit = max(FREE_GROWTH, MAX_GROWTH * os.fstat(raw.fileno()).st_size)
        self._engine: Any = None
        self._began = False
        self._pending, self._total = b"", 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Close this reader and the compressed file."""
        self._raw.close()
        super().close()

    def _new_engine(self) -> Any:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY) if self._xz else zlib.decompressobj(31)

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with decompressed bytes; 0 at the end. Raises CorruptError."""
        try:
            data = self._decompress(len(buffer))
        except (zlib.error, lzma.LZMAError, MemoryError) as error:
            kind = "xz" if self._xz else "gzip"
            raise CorruptError(f"not a whole {kind} file ({error})", file=self._path, hint="fetch it again") from error
        buffer[: len(data)] = data
        self._total += len(data)
        if self._total > self._limit:
            raise CorruptError(
                f"decompresses to more than {self._limit >> 20} MiB, {MAX_GROWTH} times its size: this is not text",
                file=self._path,
                hint="if it is text, decompress it yourself",
            )
        return len(data)

    def _begin(self, data_in: bytes) -> None:
        """Raise CorruptError if the first bytes are not those of a compressed file."""
        magic, kind = (XZ_MAGIC, "xz") if self._xz else (GZIP_MAGIC, "gzip")
        if not self._began and not magic.startswith(data_in[: len(magic)]):
            raise CorruptError(
                f"not a {kind} file: its first bytes are different; it may be plain text",
                file=self._path,
                hint=f"if it is text, rename it without {self._path.suffix}",
            )
        self._began = True

    def _decompress(self, size: int) -> bytes:
        while True:
            holds = self._xz and self._engine is not None and not self._engine.needs_input
            fresh = b"" if self._pending or holds else self._raw.read(BLOCK)
            ended = not (self._pending or holds or fresh)
            data_in = self._pending + fresh
            if self._engine is None:
                data_in = data_in.lstrip(b"\0")
                if not data_in:
                    if ended:
                        return b""
                    self._pending = b""
                    continue
                self._begin(data_in)
                self._engine = self._new_engine()
            data = self._engine.decompress(data_in, size)
            if self._engine.eof:
                self._pending, self._engine = self._engine.unused_data, None
            else:
                self._pending = b"" if self._xz else self._engine.unconsumed_tail
            if data:
                return bytes(data)
            if ended and self._engine is not None:
                raise CorruptError("the compressed file ends in the middle", file=self._path, hint="fetch it again")


def refuse_one_string(lines: object, what: str) -> None:
    """Raise UsageError for a single string, whose letters would count as lines, and for what has no items."""
    if isinstance(lines, str | bytes) or not isinstance(lines, Iterable):
        kind = "one string" if isinstance(lines, str) else type(lines).__name__
        raise UsageError(f"{what} are a list of lines, not {kind}", hint="write [text]")


def list_of_lines(lines: Iterable[str], what: str, *, first: int = 1) -> list[str]:
    """`lines` as a list. Raises UsageError for a single string, for non-text items, and for text that is no valid Unicode.

    `first`: the number of the first line, for messages.
    """
    refuse_one_string(lines, what)
    result = list(lines)
    for number, line in enumerate(result, first):
        if not isinstance(line, str):
            raise UsageError(f"{what}: item {number} is {type(line).__name__}, not text")
        if not line.isascii() and SURROGATE.search(line):
            message = f"{what}: item {number} has half of a surrogate pair, which is no character"
            raise UsageError(message, hint="read the file with encoding='utf-8' and without errors='surrogateescape'")
    return result


def open_binary(path: str | Path, what: str = "text file", *, digest: hashlib._Hash | None = None) -> io.BufferedReader:
    """Open a plain, .gz or .xz file for reading bytes. Raises FileProblem, CorruptError, DataError.

    `digest`: a hash that gets the bytes of the file (not the decompressed ones) as they are read, all of them at the end.
    """
    path = require_file(path, what)
    try:
        raw: io.BufferedReader = (
            Path.open(path, "rb") if digest is None else io.BufferedReader(_Hashed(io.FileIO(path), digest), BLOCK)
        )
    except OSError as error:
        raise FileProblem(f"{what} cannot be opened: {error.strerror}", file=path) from error
    if path.suffix in (".gz", ".xz"):
        return io.BufferedReader(_Decompressed(path, raw), BLOCK)
    return raw


def _regions(handle: IO[bytes], name: str | Path) -> Iterator[bytes]:
    """The bytes of `handle` in pieces of whole lines, each as soon as it arrives; only the last may lack its `\\n`."""
    read = getattr(handle, "read1", handle.read)
    tail: list[bytes] = []
    held = 0
    while block := read(BLOCK):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join((*tail, block[:cut]))
            tail, held = [], 0
        if cut < len(block):
            tail.append(block[cut:])
            held += len(block) - cut
            if held > MAX_LINE_BYTES:
                raise DataError(f"a line of more than {MAX_LINE_BYTES >> 20} MiB: this is not text", file=name)
    if tail:
        yield b"".join(tail)


def _decode(region: bytes, invalid: Invalid, name: str | Path, report: LineReport) -> str:
    try:
        return region.decode("utf-8")
    except UnicodeDecodeError as error:
        before = region[: error.start]
        line = report.lines + before.count(b"\n") + 1
        if invalid == "stop":
            column = error.start - (before.rfind(b"\n") + 1) + 1
            raise DataError(
                f"invalid UTF-8: byte {column} of the line is 0x{region[error.start]:02x} ({error.reason})",
                file=name,
                line=line,
                hint="correct the line or convert the file to UTF-8",
            ) from None
        text = region.decode("utf-8", "replace")
        broken = sum(1 for part in region.split(b"\n") if not _is_utf8(part))
        report.note("invalid_utf8", broken, line)
        return text


def _is_utf8(part: bytes) -> bool:
    try:
        part.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _line_of(text: str, what: str, report: LineReport) -> int:
    return report.lines + text.count("\n", 0, text.index(what)) + 1


def _refuse_compressed(region: bytes, name: str | Path) -> None:
    kind = next((kind for magic, kind in _COMPRESSED.items() if region.startswith(magic)), None)
    if kind is not None:
        tool = {"gzip": "zcat", "xz": "xzcat", "zstd": "zstdcat"}[kind]
        hint = f"decompress it first ({tool} < FILE > TEXT); a file whose name ends in .gz or .xz is decompressed"
        raise DataError(f"this is {kind} data, not text", file=name, hint=hint)


def read_regions(handle: IO[bytes], name: str | Path, report: LineReport | None = None) -> Iterator[bytes]:
    """The bytes of `handle` in pieces of whole lines, as they arrive, without a byte order mark."""
    for number, region in enumerate(_regions(handle, name)):
        if not number:
            _refuse_compressed(region, name)
        if not number and region.startswith(_BOM):
            if report is not None:
                report.note("bom", 1, 1)
            yield region[len(_BOM) :]
        else:
            yield region


def split_region(
    region: bytes, *, name: str | Path = "stdin", invalid: Invalid = "stop", report: LineReport | None = None
) -> list[str]:
    """The lines of a piece of `read_regions`, without their ends. `report` has counted the lines before it."""
    report = LineReport() if report is None else report
    text = _decode(region, invalid, name, report)
    if "\r\n" in text:
        report.note("crlf", text.count("\r\n"), _line_of(text, "\r\n", report))
        text = text.replace("\r\n", "\n")
    if "\0" in text:
        report.note("nul", sum(1 for line in text.split("\n") if "\0" in line), _line_of(text, "\0", report))
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    report.lines += len(lines)
    return lines


def read_blocks(
    handle: IO[bytes], *, name: str | Path = "stdin", invalid: Invalid = "stop", report: LineReport | None = None
) -> Iterator[list[str]]:
    """Lists of whole lines, without their ends, as they arrive. The fast form of `read_stream`."""
    report = LineReport() if report is None else report
    for region in read_regions(handle, name, report):
        if lines := split_region(region, name=name, invalid=invalid, report=report):
            yield lines


def read_stream(
    handle: IO[bytes], *, name: str | Path = "stdin", invalid: Invalid = "replace", report: LineReport | None = None
) -> Iterator[str]:
    """The lines of an open binary stream, each as soon as it is complete; invalid UTF-8 is replaced by default."""
    for lines in read_blocks(handle, name=name, invalid=invalid, report=report):
        yield from lines


def read_lines(
    path: str | Path, *, invalid: Invalid = "stop", report: LineReport | None = None
) -> Generator[str, None, None]:
    """The lines of a plain, .gz or .xz file. Raises FileProblem, CorruptError, DataError (file, line, byte)."""
    with open_binary(path) as handle:
        yield from read_stream(handle, name=path, invalid=invalid, report=report)


def read_parallel(*paths: Path | None) -> dict[Path, list[str]]:
    """The lines of each file; None is no file. Raises FileProblem, CorruptError, DataError as `check_parallel`."""
    lines = {path: list(read_lines(path)) for path in paths if path is not None}
    check_parallel({str(path): texts for path, texts in lines.items()})
    return lines


def check_parallel(files: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError unless all have the same number of lines, at least one; the message tells where they diverge."""
    (first_name, first), *others = files.items()
    for name, lines in others:
        if len(lines) != len(first):
            pairs = enumerate(zip(first, lines, strict=False), 1)
            place = next((number for number, (a, b) in pairs if bool(a.strip()) != bool(b.strip())), None)
            where = "no blank line tells where" if place is None else f"line {place} is blank in only one of them"
            raise DataError(
                f"{name} has {plural(len(lines), 'line')}, but {first_name} has {len(first):,}; {where}",
                hint=PARALLEL,
            )
    if not first:
        raise DataError(f"{first_name} has no lines")


def count_lines(path: str | Path) -> int:
    """Number of lines as `read_lines` counts them; the bytes are not decoded."""
    with open_binary(path) as handle:
        return sum(r.count(b"\n") + (not r.endswith(b"\n")) for r in read_regions(handle, path) if r)


def write_lines(path: str | Path, lines: Iterable[str]) -> int:
    """Write lines, each ended by `\\n`, to a file atomically; return their number. Raises DataError for a line with `\\n`.

    A first line that begins with U+FEFF gets a byte order mark, so that `read_lines` strips the mark and not the character.
    """
    count = 0

    def write(temporary: Path) -> None:
        nonlocal count
        with disk.open(temporary, "wb") as handle:
            for block in groups(lines, 4096, 4096):
                if not count and block[0].startswith("\ufeff"):
                    disk.write(handle, _BOM)
                disk.write(handle, encode_lines(block, file=path, before=count))
                count += len(block)
            disk.flush(handle)

    atomic_write(path, write)
    return count


def encode_lines(lines: list[str], *, file: str | Path | None = None, before: int = 0) -> bytes:
    """The bytes of whole lines. Raises DataError for a line that holds `\\n`."""
    if not lines:
        return b""
    text = "\n".join(lines) + "\n"
    if text.count("\n") != len(lines):
        bad = next(i for i, line in enumerate(lines) if "\n" in line)
        raise DataError("the line to write holds a line end", file=file, line=before + bad + 1)
    return text.encode("utf-8")


T = TypeVar("T")
MAX_GROUP = 100


def group_sizes(text: str) -> tuple[int, int]:
    """Parse the smallest and largest group: `2-3` gives (2, 3), `2` gives (2, 2). Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MAX_GROUP:
        hint = f"write a number from 1 to {MAX_GROUP}, or two, such as 2-3"
        raise UsageError(f"{text!r} is not a group size", hint=hint)
    return low, high


def groups(items: Iterable[T], low: int, high: int) -> Iterator[list[T]]:
    """Groups of low, low + 1, …, high items, then again from low; the last group may be smaller."""
    remaining = iter(items)
    for size in cycle(range(low, high + 1)):
        group = list(islice(remaining, size))
        if not group:
            return
        yield group


def join_lines(lines: Iterable[str], low: int, high: int) -> Iterator[str]:
    """Each group of lines as one line; blank lines are left out."""
    for group in groups(lines, low, high):
        yield " ".join(line.strip() for line in group if line.strip())
