"""Phrases that a translation must contain, or must not contain, in its detokenised text.

A phrase is in a text if its characters are, composed (Unicode's NFC) and with runs of white space as one space, and no word
extends beyond either end: `Haus` is in `das Haus.` and not in `das Hausboot`. A word is a run of letters, digits, combining
marks and `_`. Scripts without spaces between words (Han, kana, Thai, Lao, Burmese, Khmer) have no such ends. With
`inside_words` the ends do not count. Case counts, but at the beginning of the text the first letter may be a capital.

`read_constraints` reads one line of a file of constraints: a JSON object, or nothing for no constraints.

    {"include": ["das Haus"], "exclude": ["die Hütte", "Villa"], "inside_words": false}
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phraseloom.errors import DataError

FILE = "constraints"  # the name of the caller's constraints in messages
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
BROKEN = "\ufffd"  # what decoding writes for bytes that are no character, or not yet
_FIELDS = ("include", "exclude", "inside_words")


def canonical(text: str) -> str:
    """The text with composed characters (NFC), runs of white space as one space, and none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def goes_on(before: str, after: str) -> bool:
    """Whether two adjacent characters belong to one word."""
    if not (_is_word(before) and _is_word(after)):
        return False
    return not (_UNSPACED.match(before) or _UNSPACED.match(after))


def contains(
    text: str, phrase: str, *, inside_words: bool = False, open_end: bool = False, required: bool = False
) -> bool:
    """Whether a phrase is in a text, both canonical.

    `open_end`: the text is unfinished, so a phrase at its end counts only if no next character can undo it. `required`: a
    broken character (U+FFFD) beside the phrase is no end of a word.
    """

    def is_whole(start: int) -> bool:
        end = start + len(phrase)
        before = text[start - 1] if start else " "
        following = text[end] if end < len(text) else "a" if open_end else " "
        is_glued = goes_on(before, phrase[0]) or goes_on(phrase[-1], following)
        return inside_words or not (is_glued or (required and BROKEN in (before, following)))

    capital = phrase[0].upper()
    if len(capital) == 1 and text.startswith(capital + phrase[1:]) and is_whole(0):
        return True
    start = text.find(phrase)
    while start >= 0:
        if is_whole(start):
            return True
        start = text.find(phrase, start + 1)
    return False


def words_of(text: str) -> list[str]:
    """The words of a raw text in composed characters (NFC), every other character that is no space for itself."""
    result: list[str] = []
    previous = " "
    for character in unicodedata.normalize("NFC", text):
        if not character.isspace():
            if goes_on(previous, character):
                result[-1] += character
            else:
                result.append(character)
        previous = character
    return result


@dataclass(frozen=True)
class Constraints:
    """Phrases that the translation of a line must contain (`include`) and must not contain (`exclude`)."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    inside_words: bool = False

    def forbidden_in(self, phrase: str) -> str | None:
        """A phrase of `exclude` that every text with `phrase` contains."""
        inside_a_text = f"\ufffc {phrase}"  # not at its beginning, where a capital would do
        return next((p for p in self.exclude if contains(inside_a_text, p, inside_words=self.inside_words)), None)

    def unmet(self, text: str) -> list[str]:
        """The phrases of `include` that `text` lacks, then those of `exclude` that it contains."""
        text = canonical(text)
        lacking = [p for p in self.include if not contains(text, p, inside_words=self.inside_words, required=True)]
        return lacking + [p for p in self.exclude if contains(text, p, inside_words=self.inside_words)]


def read_constraints(value: Any, line: int, written: Callable[[str], str] = str) -> Constraints:
    """The constraints of line `line` (from 1): Constraints, a mapping with its fields, a line of JSON, or None.

    `written`: a phrase in the characters of the translations (`Side.written`).

    Raises DataError for anything else, an empty phrase, and a phrase that is required and contains a forbidden one.
    """

    def refuse(what: str, hint: str | None = None) -> DataError:
        return DataError(what, file=FILE, line=line, hint=hint)

    example = 'write {"include": ["…"], "exclude": ["…"]}, or leave the line blank'
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise refuse(f"not JSON ({str(error)[:80]})", example) from None
    if value is None:
        return Constraints()
    if isinstance(value, Constraints):
        value = {"include": value.include, "exclude": value.exclude, "inside_words": value.inside_words}
    if not isinstance(value, Mapping):
        raise refuse("not an object", example)
    for name in value:
        if name not in _FIELDS:
            raise refuse(f"unknown field {str(name)[:40]!r}", f"fields: {', '.join(_FIELDS)}")
    inside = value.get("inside_words", False)
    if not isinstance(inside, bool):
        raise refuse("inside_words is neither true nor false")
    include, exclude = (_phrases(value.get(name, ()), name, written, refuse) for name in _FIELDS[:2])
    result = Constraints(include, exclude, inside)
    for phrase in include:
        if forbidden := result.forbidden_in(phrase):
            raise refuse(
                f"{phrase!r} is required and contains {forbidden!r}, which is forbidden", "remove one of the two"
            )
    return result


def _phrases(value: Any, name: str, written: Callable[[str], str], refuse: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(p, str) for p in value):
        raise refuse(f"{name} is not a list of phrases")
    if any("\ud800" <= character <= "\udfff" for phrase in value for character in phrase):
        raise refuse(f"{name} has half of a surrogate pair")
    phrases = tuple(dict.fromkeys(canonical(written(phrase)) for phrase in value))
    if "" in phrases:
        raise refuse(f"{name} has an empty phrase", "remove it")
    return phrases
