"""Truecasing: the first word of a sentence in the case that it has elsewhere, as Moses' truecaser does it.

    learn      count the forms of each word, upper or lower case, where it begins no sentence; the most frequent is the best
    truecase   a word that begins a sentence → its best form; a word of a form that was never seen → its best form; others stay
    undo       the first letter of every sentence in upper case

A sentence begins with the line and after `.`, `:`, `?` and `!`; brackets and quotes before its first word do not count. The
file is that of Moses: `best (n/total) other (n)`, one line a word. What is upper case depends on the language (`casing.py`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from phraseloom.errors import CorruptError
from phraseloom.files import atomic_write_bytes
from phraseloom.reading import MIB, read_bounded
from phraseloom.text.casing import begin_upper, lower_case

ENDING = ".truecase"
MAX_BYTES = 1024 * MIB  # of some 50 million words
SENTENCE_END = frozenset(".:?!")
BEFORE_FIRST = frozenset(("(", "[", '"', "'", "&apos;", "&quot;", "&#91;", "&#93;"))
_COUNT = re.compile(r"\((\d{1,15})(?:/\d{1,15})?\)")


class Truecaser:
    """`forms`: words of `language` with their counts. Of equally frequent forms of a word, the lower case is the best."""

    def __init__(self, forms: Mapping[str, int], language: str = "") -> None:
        self._lower = lower_case(language)
        of_word: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for form, count in forms.items():
            of_word[self._lower(form)][form] = count
        ordered = {
            word: sorted(counts.items(), key=lambda item: (-item[1], item[0] != word, item[0]))
            for word, counts in sorted(of_word.items())
        }
        self.best = {word: counts[0][0] for word, counts in ordered.items()}
        self.known = {form for counts in ordered.values() for form, _ in counts}
        self.content = "".join(_line(counts) for counts in ordered.values()).encode()

    def __call__(self, words: Sequence[str]) -> list[str]:
        """The words of a line in their true case."""
        found, first = [], True
        for word in words:
            if first or word not in self.known:
                word = self.best.get(self._lower(word), word)
            found.append(word)
            first = _begins_next(word, first)
        return found

    def save(self, path: str | Path) -> None:
        """Write the file, atomically."""
        atomic_write_bytes(Path(path), self.content)

    @classmethod
    def load(cls, path: str | Path, language: str = "") -> Truecaser:
        """Read what `save`, or Moses' trainer, wrote. Raises FileProblem, CorruptError."""
        forms: dict[str, int] = {}
        try:
            text = read_bounded(path, "truecaser", MAX_BYTES).decode()
        except UnicodeDecodeError as error:
            raise CorruptError("a truecaser is UTF-8 text, and this is not", file=path) from error
        for number, line in enumerate(text.split("\n"), start=1):
            fields = line.split(" ") if line else []
            counts = [_COUNT.fullmatch(field) for field in fields[1::2]]
            if len(fields) % 2 or not all(counts) or not all(fields):
                what = "not a line of a truecaser: form (n/total) form (n) … is needed"
                raise CorruptError(what, file=path, line=number)
            for form, count in zip(fields[::2], counts, strict=True):
                assert count is not None
                forms[form] = int(count[1])
        return cls(forms, language)


def learn_truecaser(lines: Iterable[str], language: str = "") -> Truecaser:
    """The truecaser of tokenised lines, words separated by blanks."""
    return Truecaser(count_forms(lines), language)


def count_forms(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs where it begins no sentence; for `Truecaser`. Counts of parts of a text can be added up."""
    forms: Counter[str] = Counter()
    for line in lines:
        first = True
        for word in line.split(" "):
            if not first and word not in SENTENCE_END and word.lower() != word.upper():
                forms[word] += 1
            first = _begins_next(word, first)
    return forms


def undo_truecase(words: Sequence[str], language: str = "") -> list[str]:
    """The words of a line, with the first letter of every sentence in upper case."""
    found, first = [], True
    for word in words:
        found.append(begin_upper(word, language) if first else word)
        first = _begins_next(word, first)
    return found


def _begins_next(word: str, first: bool) -> bool:
    """Whether the word after `word` begins a sentence; `first`: whether `word` could."""
    return word in SENTENCE_END or (first and (word in BEFORE_FIRST or not word))


def _line(counts: Sequence[tuple[str, int]]) -> str:
    (best, most), *others = counts
    total = sum(count for _, count in counts)
    return " ".join([f"{best} ({most}/{total})", *(f"{form} ({count})" for form, count in others)]) + "\n"
