"""The interface of all subwords.

A word is a run of characters other than the space U+0020. `undo(pieces(x)) == x` for every line x, including runs of spaces,
U+2581, `@@`, `</s>` and control characters (reliability.md T11, T15). `decode(encode(x)) == x` if no piece is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

# A private-use character that opens an escape; in text it is escaped itself.
ESCAPE = "\ue581"
# Replaces an unknown piece in decoded text.
UNKNOWN = "\u2047"
# The ids of lines one after the other, int32 (N,), and their number in each line, int32 (L,).
Flat = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


def flat(lines: Sequence[Sequence[int]]) -> Flat:
    """The ids of lines as two arrays."""
    lengths = np.fromiter(map(len, lines), np.int32, len(lines))
    return np.fromiter(chain.from_iterable(lines), np.int32, int(lengths.sum())), lengths


def shown_pieces(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The pieces of ids without special ones; an unknown piece is U+2047."""
    return [UNKNOWN if i == UNK else vocabulary.piece(i) for i in ids if i not in (PAD, BOS, EOS)]


class Subwords(Protocol):
    """Cuts words into pieces; has a vocabulary."""

    vocabulary: Vocabulary
    content: bytes
    longest_piece: int

    def pieces(self, text: str) -> list[str]:
        """The pieces of a line; none holds a space."""
        ...

    def undo(self, pieces: Sequence[str]) -> str:
        """The line that the pieces were cut from."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of a line."""
        ...

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each line, fast."""
        ...

    def encode_flat(self, texts: list[str]) -> Flat:
        """`encode` of each line, as arrays."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids; special ids are left out, an unknown piece becomes U+2047."""
        ...

    def word_starts(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[bool]:
        """For each id, whether a word begins with it. `begun`: the pieces of the first ids; UNK alone has no mark."""
        ...

    def save(self, folder: Path, name: str) -> list[str]:
        """Write the files of this model; return their names, which begin with `name`."""
        ...
