"""Training text that is also in held-out text (validation and test): decontamination.

Two lines are equal if their letters and digits are: case, punctuation, symbols (with the variation selectors and tags of emoji)
and white space do not count, so tokenised and raw text compare. The dot of an i does not count either, because Turkish has an i
with and one without in both cases. A pair is held out if one of its sides equals a line of that side in the held-out text and
has `words` words or more; shorter lines (*Yes.*) recur in any text. Words are what white space, punctuation and symbols
separate.

Of the held-out text, only a 64-bit hash of each line is in memory (8 bytes). With a million of them, chance takes one training
line in 10^13 for a held-out one.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from phraseloom.files import atomic_write_bytes

FILE = "held_out.safetensors"
SEPARATING = frozenset("PSZC")  # general categories of Unicode: punctuation, symbols, separators, controls
LAST = 0x20000  # the planes after the second have no punctuation, and no symbols but OF_SYMBOLS
# The keycap, variation selectors and tags: marks and format characters that change how the character before them looks.
OF_SYMBOLS = re.compile("[\u20e3\ufe00-\ufe0f\U000e0000-\U000e0fff]")
DOT = "\u0307"  # above a letter; a small capital I with a dot is an i and this

Hashes = npt.NDArray[np.uint64]


@functools.cache
def _separators() -> re.Pattern[str]:
    """Runs of characters that separate words."""
    separating = [unicodedata.category(chr(n))[0] in SEPARATING for n in range(LAST)]
    changes = [n for n, (one, other) in enumerate(pairwise([False, *separating, False])) if one != other]
    ranges = (f"\\U{begin:08x}-\\U{end - 1:08x}" for begin, end in zip(changes[::2], changes[1::2], strict=True))
    return re.compile(f"[{''.join(ranges)}]+")


def hash_line(line: str, words: int) -> int | None:
    """A 64-bit hash of the letters and digits of a line; None for a line of fewer than `words` words."""
    text = line if line.isascii() else unicodedata.normalize("NFKC", OF_SYMBOLS.sub("", line))
    folded = text.casefold().replace(DOT, "").replace("ı", "i")
    parts = [part for part in _separators().split(folded) if part]
    if len(parts) < words:
        return None
    return int.from_bytes(hashlib.blake2b("".join(parts).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class HeldOut:
    """The sorted hashes of held-out lines of at least `words` words, by side ("source", "target")."""

    words: int
    sides: Mapping[str, Hashes]

    @classmethod
    def of(cls, words: int, sides: Mapping[str, Iterable[str]]) -> HeldOut:
        """The hashes of the lines of each side."""
        hashes = {}
        for side, lines in sides.items():
            numbers = (hash_line(line, words) for line in lines)
            hashes[side] = np.unique(np.array(array("Q", (n for n in numbers if n is not None)), np.uint64))
        return cls(words, hashes)

    def found(self, sides: Mapping[str, Sequence[str]]) -> npt.NDArray[np.bool_]:
        """Whether a side of each pair is in the held-out text, bool (N,). `sides`: parallel lines; other sides are ignored."""
        result = np.zeros(len(next(iter(sides.values()))), bool)
        for side, lines in sides.items():
            held_out = self.sides.get(side, np.empty(0, np.uint64))
            if len(held_out):
                numbers = [hash_line(line, self.words) for line in lines]
                places = [i for i, number in enumerate(numbers) if number is not None]
                hashes = np.array([numbers[i] for i in places], np.uint64)
                result[places] |= held_out[np.minimum(np.searchsorted(held_out, hashes), len(held_out) - 1)] == hashes
        return result

    def save(self, folder: Path) -> None:
        """Write `FILE` into a folder. Raises FileProblem."""
        arrays = {**self.sides, "words": np.array([self.words])}
        atomic_write_bytes(folder / FILE, safetensors.numpy.save(arrays))

    @classmethod
    def load(cls, folder: Path) -> HeldOut | None:
        """What `save` wrote into a folder; None if it has not."""
        if not (folder / FILE).is_file():
            return None
        sides = safetensors.numpy.load((folder / FILE).read_bytes())
        return cls(int(sides.pop("words")[0]), sides)
