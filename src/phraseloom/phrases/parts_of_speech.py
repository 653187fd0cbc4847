"""The part-of-speech filter of the released code of PCoNMT (spec §4.7.3): tags of the Penn Treebank.

    2 words   adjective or noun, noun
    3 words   adjective or noun, any, adjective or noun
    others    any

There each phrase was tagged on its own; here the tags are those of the text, most often where the phrase stands in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from phraseloom.errors import DataError, plural
from phraseloom.phrases.aligned import closing, words_of
from phraseloom.phrases.table import index_phrases
from phraseloom.text.lines import read_lines

_NOUN = ("NN",)
_NOUN_OR_ADJECTIVE = ("NN", "JJ")


def is_noun_phrase(tags: Sequence[str] | None) -> bool:
    """Whether the tags of a phrase are of a pattern; False for None: it never stands in the text as it is."""
    if tags is None:
        return False
    if len(tags) == 2:
        return tags[0].startswith(_NOUN_OR_ADJECTIVE) and tags[1].startswith(_NOUN)
    return len(tags) != 3 or (tags[0].startswith(_NOUN_OR_ADJECTIVE) and tags[2].startswith(_NOUN_OR_ADJECTIVE))


class Tags:
    """The tags of a text: a file (plain, .gz, .xz) parallel to it, with one tag a word, blanks between."""

    def __init__(self, text: str | Path, tags: str | Path) -> None:
        self._text, self._tags = text, tags

    def of(self, phrases: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The tags that each phrase has most often (the first by text, if several), for those that occur in one line.

        Raises DataError (file, line) where words and tags differ in number.
        """
        index, found = index_phrases(phrases), dict[str, Counter[tuple[str, ...]]]()
        text, tags_text = read_lines(self._text), read_lines(self._tags)
        with closing(text, tags_text):
            for number, (line, tag_line) in enumerate(zip_longest(text, tags_text), 1):
                words, tags = self._check(number, line, tag_line)
                for start, first in enumerate(words):
                    for size, some in index.get(first, {}).items():
                        if (phrase := " ".join(words[start : start + size])) in some:
                            found.setdefault(phrase, Counter())[tuple(tags[start : start + size])] += 1
        return {phrase: min(of, key=lambda tags: (-of[tags], tags)) for phrase, of in found.items()}

    def _check(self, number: int, line: str | None, tag_line: str | None) -> tuple[list[str], list[str]]:
        if line is None or tag_line is None:
            short, long = (self._text, self._tags) if line is None else (self._tags, self._text)
            raise DataError(f"ends after {plural(number - 1, 'line')}, but {long} goes on", file=short)
        words, tags = words_of(line), words_of(tag_line)
        if len(words) != len(tags):
            what = f"{len(tags)} tags, but the line of {self._text} has {plural(len(words), 'word')}"
            raise DataError(what, file=self._tags, line=number, hint="one tag a word, blanks between")
        return words, tags
