"""What link-grammar prints, made into a tree whose leaves are the line itself, character for character.

link-grammar decorates words (`river.n`, `tandom{?}.n`, `{the}` for a word that it could not link), writes every bracket
inside a word as `{` or `}`, lower-cases first words and may leave characters out. Its words are laid over the
characters of the line from left to right; case and characters then come from the line, and characters that no word took
become leaves of the smallest constituent that spans their place. A leaf never spans white space, and each bracket is a
leaf of its own, written as in the Penn treebank (`-LRB-`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EVENT = re.compile(r"\(([^\s()]*)|(\))|([^\s()]+)")
_GUESS = re.compile(r"\{[!?~&^]\}(?:\.[a-z][\w-]*)?$")
_SUBSCRIPT = re.compile(r"\.[a-z][\w-]*$")
_LABEL = re.compile(r"[^A-Za-z0-9-]")
_SAME = str.maketrans("([{<)]}>“”„‘’", '{{{<}}}>"""\'\'')
_WOULD_CHANGE = re.compile(r"-(?=[LR][RSC]B-)|\\(?=[/*])", re.IGNORECASE)
_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}

# How many characters without a word may lie before a word of link-grammar.
MAX_SKIP = 40

Event = str | tuple[int, int]  # "(LABEL", ")", or the characters from … to … as a leaf


@dataclass(frozen=True)
class _Line:
    """The characters of a line without white space, their form for comparing, where words end and leaves must end."""

    characters: str
    compared: str
    ends: frozenset[int]
    cuts: frozenset[int]

    def word_end(self, start: int) -> int:
        """The end of the word that the character at `start` stands in."""
        end = start + 1
        while end not in self.ends:
            end += 1
        return end


def _comparable(text: str) -> str:
    lower = (c.lower() if len(c.lower()) == 1 else c for c in text)
    return "".join(lower).translate(_SAME)


def _read(line: str) -> _Line:
    words = line.split()
    ends, total = set(), 0
    for word in words:
        total += len(word)
        ends.add(total)
    characters = "".join(words)
    cuts = (m.end() for m in _WOULD_CHANGE.finditer(characters))
    return _Line(characters, _comparable(characters), frozenset(ends), frozenset(cuts))


def _forms(token: str) -> list[str]:
    """What `token` may stand for, barest first: `dog{?}.n` → dog, dog{?}, dog{?}.n; `{the}` → the, {the}."""
    forms = [token]
    if len(token) > 2 and token[0] == "{" and token[-1] == "}":
        forms.append(token[1:-1])
    for pattern in (_SUBSCRIPT, _GUESS):
        bare = pattern.sub("", token)
        if bare and bare not in forms:
            forms.append(bare)
    return [_comparable(form) for form in sorted(forms, key=len)]


def _match(line: _Line, place: int, forms: list[str]) -> int | None:
    """The end of the form that stands at `place`: one that ends a word if there is one, or else the barest."""
    limit = line.word_end(place)
    ends = [place + len(f) for f in forms if line.compared.startswith(f, place) and place + len(f) <= limit]
    if not ends:
        return None
    return limit if limit in ends else ends[0]


def _find(line: _Line, place: int, token: str) -> tuple[int, int] | None:
    """Where `token` stands in the line, at `place` or a little further on."""
    forms = _forms(token)
    for start in range(place, min(place + MAX_SKIP, len(line.characters))):
        end = _match(line, start, forms)
        if end is not None:
            return start, end
    return None


def _events(line: _Line, output: str) -> list[Event]:
    """The constituents and leaves of `output`, whose brackets are balanced here if they are not, all within one."""
    events: list[Event] = []
    place = depth = 0
    roots = 0
    for label, close, token in _EVENT.findall(output):
        if close:
            if depth:
                depth -= 1
                events.append(")")
        elif token:
            found = _find(line, place, token)
            if found is not None:
                events.append(found)
                place = found[1]
                roots += depth == 0
        else:
            roots += depth == 0
            depth += 1
            events.append("(" + (_LABEL.sub("", label) or "X"))
    events.extend([")"] * depth)
    return events if roots == 1 and events[0] == "(S" else ["(S", *events, ")"]


def _filled(events: list[Event], length: int) -> list[Event]:
    """`events` with the characters that no leaf took as leaves, outside of what ends before and begins after them."""
    result: list[Event] = [events[0]]
    place, after = 0, 1  # after: where in `result` the last leaf's constituents have been closed
    for event in events[1:]:
        if isinstance(event, tuple):
            if event[0] > place:
                result.insert(after, (place, event[0]))
            place = event[1]
        result.append(event)
        if isinstance(event, tuple) or (event == ")" and after == len(result) - 1):
            after = len(result)
    if place < length:
        result.insert(len(result) - 1, (place, length))
    return result


def _leaves(line: _Line, start: int, end: int) -> list[str]:
    """The characters from `start` to `end` as leaves: cut where words end and around brackets."""
    leaves = [""]
    for i in range(start, end):
        bracket = _BRACKETS.get(line.characters[i])
        if bracket:
            leaves += [bracket, ""]
        else:
            leaves[-1] += line.characters[i]
        if i + 1 in line.ends or i + 1 in line.cuts:
            leaves.append("")
    return [leaf for leaf in leaves if leaf]


def repair(line: str, output: str) -> str:
    """The tree that link-grammar printed as `output` for `line`, in one line, with the characters of `line` as leaves.

    Any `output` gives a tree; what cannot be found in the line is left out. A line of white space gives "".
    """
    read = _read(line)
    if not read.characters:
        return ""
    parts: list[str] = []
    for event in _filled(_events(read, output), len(read.characters)):
        if isinstance(event, tuple):
            parts += _leaves(read, *event)
        elif event == ")" and parts[-1].startswith("("):
            parts.pop()
        else:
            parts.append(event)
    return re.sub(r" \)", ")", " ".join(parts))
