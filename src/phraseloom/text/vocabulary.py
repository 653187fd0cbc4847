"""Vocabularies: pieces with stable ids, stored byte for byte (reliability.md T12).

The first four ids are special and never represent user text: `</s>` in user text is an ordinary piece or several ordinary
pieces. The file is UTF-8 without byte order mark, one piece per line in the order of ids. Only `\\n` ends a line, and
nothing is stripped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from phraseloom.errors import CorruptError, ModelError
from phraseloom.files import atomic_write_bytes, require_file
from phraseloom.reading import read_bounded
from phraseloom.text.lines import SURROGATE

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
MAX_VOCABULARY_BYTES = 2**26


class Vocabulary:
    """Pieces by id and ids by piece. `pieces` begins with the four specials.

    Raises ModelError for a piece that is empty, occurs twice, or holds NUL, a line end or half a surrogate pair.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = tuple(pieces)
        if self._pieces[: len(SPECIALS)] != SPECIALS:
            raise ModelError(f"a vocabulary begins with {' '.join(SPECIALS)}")
        self._ids: dict[str, int] = {}
        for number, piece in enumerate(self._pieces[len(SPECIALS) :], start=len(SPECIALS)):
            if not piece or "\n" in piece or "\0" in piece or (not piece.isascii() and SURROGATE.search(piece)):
                raise ModelError(f"piece {piece!r} (id {number}) cannot be in a vocabulary")
            if self._ids.setdefault(piece, number) != number:
                raise ModelError(f"piece {piece!r} is in the vocabulary twice (ids {self._ids[piece]} and {number})")

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __contains__(self, piece: str) -> bool:
        return piece in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._pieces == other._pieces

    def __hash__(self) -> int:
        return hash(self._pieces)

    def id(self, piece: str) -> int:
        """The id of an ordinary piece, else UNK; never the id of another special."""
        return self._ids.get(piece, UNK)

    def ids(self, pieces: Sequence[str]) -> list[int]:
        """The ids of ordinary pieces."""
        get = self._ids.get
        return [get(piece, UNK) for piece in pieces]

    def piece(self, number: int) -> str:
        """The piece of an id. Raises ModelError for an id outside the vocabulary."""
        if not 0 <= number < len(self._pieces):
            raise ModelError(f"id {number} is not in this vocabulary of {len(self._pieces)} pieces")
        return self._pieces[number]

    def to_bytes(self) -> bytes:
        """The content of the vocabulary file."""
        return ("\n".join(self._pieces) + "\n").encode("utf-8")

    @property
    def sha256(self) -> str:
        """SHA-256 of the vocabulary file, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the vocabulary file."""
        atomic_write_bytes(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary file, byte for byte. Raises CorruptError."""
        path = require_file(path, "vocabulary")
        try:
            text = read_bounded(path, "vocabulary", MAX_VOCABULARY_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptError(f"vocabulary is not UTF-8 (byte {error.start})", file=path) from error
        if not text.endswith("\n"):
            raise CorruptError("the vocabulary does not end with a line end: the file is truncated", file=path)
        try:
            return cls(text[:-1].split("\n"))
        except ModelError as error:
            raise CorruptError(f"not a vocabulary: {error.what}", file=path) from error
