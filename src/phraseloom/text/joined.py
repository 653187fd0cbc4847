"""Words joined into one token, `quality of life` → `quality_of_life`, and the same words back.

    join     w1 … wn → e(w1)_…_e(wn)      e writes _ as &#95;, and the & of &#95; and &#38; as &#38;
    split    a token → the words between its _, with e undone

So a token `quality_of_life` of the text itself becomes `quality&#95;of&#95;life` and is no phrase, and all text that holds
neither _ nor those two entities stays as it is, that of Moses (`&apos;`, `&#91;`) included. Joined text is text of which every
token is of `join`. Joining with _: Park and Tsvetkov 2019, §2.2; they do not tell a joined phrase from a token with _.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

JOINER = "_"
_ESCAPED = "&#95;"
_AMPERSAND = re.compile(r"&(?=#(?:95|38);)")
_ENTITY = re.compile(r"&#(?:95|38);")


def join(words: Sequence[str]) -> str:
    """The token of one or more words. Raises ValueError for an empty word or one with a blank, which no token could hold."""
    if not words or not all(words) or any(" " in word for word in words):
        raise ValueError(f"not words to be joined: {words!r}")
    return JOINER.join(map(escape, words))


def split(token: str) -> list[str]:
    """The words of a token; all of it is one word where a part between _ is empty, which `join` never makes."""
    parts = token.split(JOINER)
    return [unescape(part) for part in parts] if all(parts) else [unescape(token)]


def is_phrase(token: str) -> bool:
    """Whether a token is of two words or more."""
    return JOINER in token and all(token.split(JOINER))


def escape(word: str) -> str:
    """A word as part of a token."""
    if "&#" in word:
        word = _AMPERSAND.sub("&#38;", word)
    return word.replace(JOINER, _ESCAPED)


def unescape(part: str) -> str:
    """The word that `escape` was given."""
    return _ENTITY.sub(lambda entity: JOINER if entity[0] == _ESCAPED else "&", part) if "&#" in part else part


def join_line(words: Sequence[str], sizes: Sequence[int]) -> str:
    """A line of words as joined text; phrase k has `sizes[k]` words. An empty word stands for one blank too many."""
    tokens, start = [], 0
    for size in sizes:
        tokens.append(escape(words[start]) if size == 1 else join(words[start : start + size]))
        start += size
    return " ".join(tokens)


def split_line(line: str) -> str:
    """The line of which `join_line` made this one, blanks included."""
    if JOINER not in line and "&#" not in line:
        return line
    return " ".join(" ".join(split(token)) for token in line.split(" "))
