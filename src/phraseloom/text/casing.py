"""Lower and upper case by language: Turkish and Azeri have a dotted and a dotless i, Georgian begins no word in upper case."""

from __future__ import annotations

from collections.abc import Callable

from phraseloom.options.languages import base_language

__all__ = ["begin_upper", "lower_case"]

DOTTED = frozenset(("tr", "az"))


def lower_case(language: str) -> Callable[[str], str]:
    """The function that writes text of a language in lower case. In Turkish and Azeri, `I` becomes `ı` and `İ` becomes `i`."""
    return _dotted if base_language(language) in DOTTED else str.lower


def _dotted(text: str) -> str:
    return text.replace("İ", "i").replace("I", "ı").lower()


def begin_upper(word: str, language: str) -> str:
    """The word with its first letter as at the beginning of a sentence; unchanged if that is not one letter (`ß`)."""
    upper = "İ" if word[:1] == "i" and base_language(language) in DOTTED else word[:1].title()
    return upper + word[1:] if len(upper) == 1 else word
