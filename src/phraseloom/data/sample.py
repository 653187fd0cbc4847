"""Learn subwords and truecasers from a sample of the training text, in parts that worker processes can count.

Most subwords need only the words of the sample with their counts, and counts of parts add up to those of the whole. So the
parts are read, normalised and counted in any process, and how the sample is cut changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from phraseloom.data.survey import sample
from phraseloom.options.text import SubwordsConfig, TextConfig
from phraseloom.text.normalize import Normaliser
from phraseloom.text.subwords import Subwords
from phraseloom.text.tokenizer import count_words, learn_from_words, learn_subwords
from phraseloom.text.truecase import Truecaser, count_forms

PART_LINES = 50_000


@dataclass(frozen=True)
class Sample:
    """`size` of the `total` lines of files, normalised as `text` says; `rows`: only these of them."""

    paths: tuple[Path, ...]
    total: int
    size: int
    text: TextConfig
    language: str
    truecaser: Truecaser | None = None
    rows: range | None = None

    def lines(self) -> Iterator[str]:
        """The normalised lines, without blank ones."""
        normalise = Normaliser(self.text, self.language, self.truecaser)
        for line in sample(self.paths, self.total, self.size, self.rows):
            if line.strip():
                yield normalise(line)

    def parts(self) -> list[Sample]:
        """Samples of `PART_LINES` lines. Text that stays as it is, is one part: to read it is all its work."""
        if self.text == TextConfig():
            return [self]
        begins = range(0, self.size, PART_LINES)
        return [replace(self, rows=range(begin, min(begin + PART_LINES, self.size))) for begin in begins]


def count(part: Sample, options: SubwordsConfig | None) -> Counter[str]:
    """What subwords of these options are learned from, or without options truecasers; counts of parts add up."""
    return count_forms(part.lines()) if options is None else count_words(part.lines(), options)


def learn(samples: list[Sample], options: SubwordsConfig, counts: Counter[str] | None) -> Subwords:
    """The subwords of counted words, or without counts of the samples. Raises DataError."""
    if counts is not None:
        return learn_from_words(counts, options)
    return learn_subwords(chain.from_iterable(part.lines() for part in samples), options)
