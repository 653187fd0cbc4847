"""Check the corpora that a table reads before anything is trained: which files, whether they are right, where to get them.

`recipes/corpora.json` describes the folders of the data root: the name of the corpus, where its makers publish it, what its
files are, and of files that were used for published numbers the size and SHA-256 of the text. Both are those of the
decompressed bytes, so that plain, .gz and .xz files of the same text agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from phraseloom.config import Config
from phraseloom.errors import CorruptError, PhraseloomError, plural
from phraseloom.files import read_json
from phraseloom.reproduce.steps import Step
from phraseloom.text.lines import BLOCK, open_binary

FILE = "corpora.json"
State = Literal["right", "unknown", "missing", "unreadable", "different"]
USABLE = ("right", "unknown")


class TextChecksum(Config):
    """Size in bytes and SHA-256 of the decompressed text."""

    bytes: int
    sha256: str


class CorpusSource(Config):
    """A folder of the data root: the name of the corpus, where to get it, how its files are made, and their checksums."""

    name: str
    get: str
    about: str = ""
    files: dict[str, TextChecksum] = Field({})


class CorpusList(Config):
    """All folders, by name."""

    format: Literal[1]
    corpora: dict[str, CorpusSource]


@dataclass(frozen=True)
class CheckedFile:
    """A file below the data root. `what`: why it cannot be used; `steps`: how many steps read it."""

    name: str
    state: State
    what: str
    corpus: str
    get: str
    steps: int


@dataclass(frozen=True)
class CheckedData:
    """The files that the steps of a table read, by name, and the sources of those that cannot be used."""

    root: str
    files: list[CheckedFile]
    sources: dict[str, CorpusSource]

    @property
    def unusable(self) -> list[CheckedFile]:
        """The files that are missing, unreadable or different."""
        return [file for file in self.files if file.state not in USABLE]

    def text(self) -> str:
        """One line per file, then where to get the corpora of those that cannot be used."""
        if not self.files:
            return "no step reads a corpus\n"
        width = max(len(file.name) for file in self.files)
        lines = [f"{file.name:{width}}  {file.what or SAYS[file.state]}" for file in self.files]
        folders = dict.fromkeys(folder_of(file.name) for file in self.unusable)
        for folder in folders:
            source = self.sources.get(folder)
            if source is None:
                lines.append(f"{folder}/: {FILE} does not say where to get it; see the recipe")
            else:
                lines.append(f"{folder}/: {source.name}. Get it: {source.get}." + f" {source.about}".rstrip())
        return "\n".join(lines) + "\n"

    def data(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"format": 1, "root": self.root, "usable": not self.unusable, "files": [asdict(f) for f in self.files]}

    def require(self) -> None:
        """Raise PhraseloomError if a file cannot be used."""
        if self.unusable:
            first = self.unusable[0]
            what = f"{plural(len(self.unusable), 'file')} of {len(self.files)} cannot be used, first {first.name}"
            raise PhraseloomError(
                f"{what} ({first.what})", file=self.root, hint="get or replace them, or name another --data-root"
            )


SAYS: dict[State, str] = {"right": "right", "unknown": "present; no checksum is known"}


def folder_of(name: str) -> str:
    """The folder of the data root that a file is in."""
    return name.partition("/")[0]


def read_sources(recipes: Path) -> dict[str, CorpusSource]:
    """The corpora in the list of a recipe folder; none without a list. Raises CorruptError."""
    path = recipes / FILE
    if not path.is_file():
        return {}
    try:
        return CorpusList.model_validate(read_json(path, "list of corpora")).corpora
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"not a list of corpora: {place}: {first['msg']}", file=path) from error


def check_data(steps: Sequence[Step], root: str, recipes: Path) -> CheckedData:
    """Check every file below the data root that steps read; each is read once. Raises CorruptError for a bad list."""
    sources = read_sources(recipes)
    paths: dict[str, Path] = {}
    readers: dict[str, int] = {}
    for step in steps:
        for name, path in step.reads:
            paths[name] = path
            readers[name] = readers.get(name, 0) + 1
    files = []
    for name in sorted(paths):
        source = sources.get(folder_of(name))
        known = None if source is None else source.files.get(name.partition("/")[2])
        state, what = _check(paths[name], known)
        titles = ("", "") if source is None else (source.name, source.get)
        files.append(CheckedFile(name, state, what, *titles, readers[name]))
    return CheckedData(root, files, sources)


def _check(path: Path, known: TextChecksum | None) -> tuple[State, str]:
    if not path.exists():
        return "missing", "missing"
    digest, size = hashlib.sha256(), 0
    try:
        with open_binary(path) as handle:
            while block := handle.read(BLOCK):
                digest.update(block)
                size += len(block)
    except PhraseloomError as error:
        return "unreadable", error.what
    except OSError as error:
        return "unreadable", f"cannot be read: {error.strerror}"
    if known is None:
        return "unknown", ""
    if size != known.bytes:
        return "different", f"another text: {size:,} bytes, not {known.bytes:,}"
    if digest.hexdigest() != known.sha256:
        return "different", f"another text: SHA-256 {digest.hexdigest()}, not {known.sha256}"
    return "right", ""
