r"""Parse trees in Penn Treebank brackets, `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))`, one on a line.

Reading cleans up as usual: traces (`-NONE-`) and nodes without words are left out, function tags are cut (`NP-SBJ-1` → `NP`),
an unlabelled bracket around one constituent is removed, and words become text (`-LRB-` → `(`, `1\/2` → `1/2`). Nothing
recurses, so a tree may be as deep as memory allows.

`repair` turns the output of link-grammar into a tree whose leaves are the characters of the line. link-grammar decorates
words (`river.n`, `tandom{?}.n`, `{the}` for a word that it could not link), writes every bracket inside a word as `{` or `}`,
lowercases first words and may leave characters out. `repair` matches its words with the characters of the line from left to
right and takes case and characters from the line. Characters without a match become leaves of the smallest constituent around
them. A leaf never spans white space, and each bracket is a leaf of its own, written as in the Penn Treebank (`-LRB-`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from phraseloom.errors import DataError

TRACE = "-NONE-"
# The label of a bracket without one.
UNNAMED = "X"
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)
_PLAIN = re.compile(r"\([^\s()]+ [^\s()]+\)|\([^\s()]+|[()]|[^\s()]+", re.ASCII)
_ESCAPED = re.compile(r"-[LR][RSC]B-|\\(?=[/*])", re.IGNORECASE)
_UNSAFE = re.compile(r"[()\s]", re.ASCII)
_SAFE = {"(": "-LRB-", ")": "-RRB-"}


class Tree:
    """A constituent with its children, or a word: a leaf whose label is the word."""

    __slots__ = ("children", "label")

    def __init__(self, label: str, children: Sequence[Tree] = ()) -> None:
        self.label, self.children = label, children

    @property
    def leaves(self) -> list[str]:
        """The words, from left to right."""
        return [node.label for node in self._nodes() if not node.children]

    def _nodes(self) -> Iterator[Tree]:
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def __str__(self) -> str:
        """One line of brackets; `(` and `)` in words become `-LRB-` and `-RRB-`, white space in words is dropped."""
        parts: list[str] = []
        stack: list[Tree | None] = [self]
        while stack:
            node = stack.pop()
            if node is None:
                parts.append(")")
            elif node.children:
                parts.append(f" ({_safe(node.label) or UNNAMED}")
                stack.append(None)
                stack.extend(reversed(node.children))
            else:
                parts.append(f" {_safe(node.label)}")
        return "".join(parts)[1:]

    def __repr__(self) -> str:
        return f"Tree {self}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        stack = [(self, other)]
        while stack:
            left, right = stack.pop()
            if left.label != right.label or len(left.children) != len(right.children):
                return False
            stack.extend(zip(left.children, right.children, strict=True))
        return True

    __hash__ = None  # type: ignore[assignment]


def _safe(label: str) -> str:
    return _UNSAFE.sub(lambda m: _SAFE.get(m[0], ""), label)


@functools.lru_cache(maxsize=4096)
def _label(token: str) -> str:
    """A label without function tags and indices; `-LRB-` and `-NONE-` begin with a hyphen and stay."""
    return token if token[0] == "-" else re.split("[-=]", token, maxsplit=1)[0] or token


def unescape(word: str) -> str:
    """The text of a treebank word: `-LRB-` → `(`, `\\/` → `/`, `\\*` → `*`."""
    return _ESCAPED.sub(lambda m: _BRACKETS.get(m[0].upper(), ""), word) if "-" in word or "\\" in word else word


def _build(tokens: Iterable[str]) -> list[Tree | None]:
    """The trees of balanced tokens, None for one without words. Raises IndexError if they are not balanced."""
    trees: list[Tree | None] = []
    stack: list[list[Tree]] = []
    labels: list[str] = []
    children: list[Tree] = []
    opened = False
    for token in tokens:
        if token == "(":
            labels.append("")
            stack.append(children)
            children = []
            opened = True
        elif token == ")":
            label, inner = labels.pop(), children
            children = stack.pop()
            opened = False
            if not label and len(inner) == 1 and inner[0].children:
                children.append(inner[0])
            elif inner and label != TRACE:
                children.append(Tree(label or UNNAMED, inner))
            if not stack:
                trees.append(children.pop() if children else None)
        elif opened:
            labels[-1] = _label(token)
            opened = False
        elif stack:
            children.append(Tree(unescape(token)))
        else:
            raise IndexError
    if stack:
        raise IndexError
    return trees


def parse_tree(line: str) -> Tree:
    """The single tree of a line, cleaned up. Raises DataError with the column (from 1) of the problem."""
    try:
        trees = _build(_TOKEN.findall(line))
    except IndexError:
        trees = []
    if len(trees) != 1 or trees[0] is None:
        raise DataError(_problem(line))
    return trees[0]


def _problem(line: str) -> str:
    """A description of the problem of a line that is not one tree."""
    opened: list[int] = []
    ended = False
    for match in _TOKEN.finditer(line):
        token, column = match[0], match.start() + 1
        if ended:
            return f"column {column}: text follows the tree: {line[match.start() :][:20]!r}"
        if token == "(":
            opened.append(column)
        elif not opened:
            what = "a closing bracket without an opening one" if token == ")" else f"{token[:40]!r} outside of brackets"
            return f"column {column}: {what}"
        elif token == ")":
            opened.pop()
            ended = not opened
    if opened:
        return f"column {opened[-1]}: a bracket is never closed" + (f", nor {len(opened) - 1} more" * (len(opened) > 1))
    return "a tree without words" if ended else "no tree here"


def skeleton(tree: Tree) -> tuple[list[str], list[int]]:
    """The words of a tree and their joints, which is all that Algorithm 1 needs.

    The joint of a word is the depth of the lowest node above it and the word before (the root has depth 0); the first word
    has -1. So a node at depth d other than the root begins at a word with a joint below d, and all other joints in it are at
    least d.
    """
    words: list[str] = []
    joints: list[int] = []
    stack = [(tree, 0)]
    joint: int | None = None
    while stack:
        node, depth = stack.pop()
        if joint is None:
            joint = depth - 1
        children = node.children
        if children:
            depth += 1
            stack.extend([(child, depth) for child in reversed(children)])
        else:
            words.append(node.label)
            joints.append(joint)
            joint = None
    return words, joints


def scan(line: str) -> tuple[list[str], list[int]] | None:
    """`skeleton(parse_tree(line))` for the usual output of parsers, several times faster; None for any other line.

    The usual output is one tree with labels everywhere, a part of speech over each word, no trace and no extra space.
    """
    words: list[str] = []
    joints: list[int] = []
    depth = lowest = 0
    if TRACE in line or line[:1] != "(":
        return None
    for token in _PLAIN.findall(line):
        if token == ")":
            depth -= 1
            if depth < 0 or not words:
                return None
            if depth < lowest:
                lowest = depth
        elif depth == 0 and words:
            return None
        elif token[-1] == ")":
            if not depth:
                return None
            words.append(token[token.index(" ") + 1 : -1])
            joints.append(lowest - 1)
            lowest = depth
        elif token[0] == "(" and len(token) > 1:
            depth += 1
        else:
            return None
    if depth:
        return None
    if "-" in line or "\\" in line:
        words = [unescape(word) for word in words]
    return words, joints


_EVENT = re.compile(r"\(([^\s()]*)|(\))|([^\s()]+)")
_GUESS = re.compile(r"\{[!?~&^]\}(?:\.[a-z][\w-]*)?$")
_SUBSCRIPT = re.compile(r"\.[a-z][\w-]*$")
_LABEL = re.compile(r"[^A-Za-z0-9-]")
_SAME = str.maketrans("([{<)]}>“”„‘’", '{{{<}}}>"""\'\'')
_WOULD_CHANGE = re.compile(r"-(?=[LR][RSC]B-)|\\(?=[/*])", re.IGNORECASE)
_ALL_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}

# How many characters of the line may be skipped before a word of link-grammar.
MAX_SKIP = 40

Event = str | tuple[int, int]  # "(LABEL", ")", or the span of characters of a leaf


@dataclass(frozen=True)
class _Line:
    """The characters of a line without white space, their comparable form, the ends of words and the forced ends of leaves."""

    characters: str
    compared: str
    ends: frozenset[int]
    cuts: frozenset[int]

    def word_end(self, start: int) -> int:
        """The end of the word of the character at `start`."""
        end = start + 1
        while end not in self.ends:
            end += 1
        return end


def caseless(text: str) -> str:
    """`text` in lower case, character by character: those whose lower case is longer stay."""
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _comparable(text: str) -> str:
    return caseless(text).translate(_SAME)


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
    """The possible texts of `token`, shortest first: `dog{?}.n` → dog, dog{?}, dog{?}.n; `{the}` → the, {the}."""
    forms = [token]
    if len(token) > 2 and token[0] == "{" and token[-1] == "}":
        forms.append(token[1:-1])
    for pattern in (_SUBSCRIPT, _GUESS):
        bare = pattern.sub("", token)
        if bare and bare not in forms:
            forms.append(bare)
    return [_comparable(form) for form in sorted(forms, key=len)]


def _match(line: _Line, place: int, forms: list[str]) -> int | None:
    """The end of the form that matches at `place`: one that ends a word if there is one, else the shortest."""
    limit = line.word_end(place)
    ends = [place + len(f) for f in forms if line.compared.startswith(f, place) and place + len(f) <= limit]
    if not ends:
        return None
    return limit if limit in ends else ends[0]


def _find(line: _Line, place: int, token: str) -> tuple[int, int] | None:
    """The span of `token` in the line, at `place` or a little later."""
    forms = _forms(token)
    for start in range(place, min(place + MAX_SKIP, len(line.characters))):
        end = _match(line, start, forms)
        if end is not None:
            return start, end
    return None


def _events(line: _Line, output: str) -> list[Event]:
    """The constituents and leaves of `output` under one root; missing brackets are added, extra ones dropped."""
    events: list[Event] = []
    place = depth = 0
    roots = 0
    for label, close, token in _EVENT.findall(output):
        if close:
            if depth:
                depth -= 1
                events.append(")")
        elif token:
            span = _find(line, place, token)
            if span is not None:
                events.append(span)
                place = span[1]
                roots += depth == 0
        else:
            roots += depth == 0
            depth += 1
            events.append("(" + (_LABEL.sub("", label) or "X"))
    events.extend([")"] * depth)
    return events if roots == 1 and events[0] == "(S" else ["(S", *events, ")"]


def _filled(events: list[Event], length: int) -> list[Event]:
    """`events` with unmatched characters as leaves, outside constituents that end before or begin after them."""
    result: list[Event] = [events[0]]
    place, after = 0, 1  # after: the place in `result` where the constituents of the last leaf are closed
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
    """The characters from `start` to `end` as leaves, cut at the ends of words and around brackets."""
    leaves = [""]
    for i in range(start, end):
        bracket = _ALL_BRACKETS.get(line.characters[i])
        if bracket:
            leaves += [bracket, ""]
        else:
            leaves[-1] += line.characters[i]
        if i + 1 in line.ends or i + 1 in line.cuts:
            leaves.append("")
    return [leaf for leaf in leaves if leaf]


def repair(line: str, output: str) -> str:
    """The one-line tree of the `output` of link-grammar for `line`, with the characters of `line` as leaves.

    Any `output` gives a tree; words that are not in the line are left out. A line of white space gives "".
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
