"""Parse trees in Penn Treebank brackets: `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))`, one tree a line or many lines.

Reading cleans up as is usual: traces (`-NONE-`) and nodes without words are left out, function tags are cut
(`NP-SBJ-1` → `NP`), an unnamed bracket around one constituent is taken off, and words are text again (`-LRB-` → `(`,
`1\\/2` → `1/2`). Nothing recurses, so a tree may be as deep as memory allows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from phraseloom.errors import DataError
from phraseloom.text.lines import MAX_LINE_BYTES, read_lines

TRACE = "-NONE-"
# What a bracket without a label is called.
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
        """One line of brackets; `(` and `)` of words are written `-LRB-` and `-RRB-`, white space in them is dropped."""
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
            one, two = stack.pop()
            if one.label != two.label or len(one.children) != len(two.children):
                return False
            stack.extend(zip(one.children, two.children, strict=True))
        return True

    __hash__ = None  # type: ignore[assignment]


def _safe(label: str) -> str:
    return _UNSAFE.sub(lambda m: _SAFE.get(m[0], ""), label)


@functools.lru_cache(maxsize=4096)
def _label(token: str) -> str:
    """A label without function tags and indices; `-LRB-` and `-NONE-` begin with the sign and stay."""
    return token if token[0] == "-" else re.split("[-=]", token, maxsplit=1)[0] or token


def unescape(word: str) -> str:
    """A word of a treebank as text: `-LRB-` → `(`, `\\/` → `/`, `\\*` → `*`."""
    return _ESCAPED.sub(lambda m: _BRACKETS.get(m[0].upper(), ""), word) if "-" in word or "\\" in word else word


def _build(tokens: Iterable[str]) -> list[Tree | None]:
    """The trees of tokens that are balanced, None for one without words. Raises IndexError where they are not."""
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


def parse_tree(line: str, *, file: str | Path | None = None, number: int | None = None) -> Tree:
    """The one tree of a line, cleaned up. Raises DataError with the column (from 1) of what is wrong."""
    try:
        trees = _build(_TOKEN.findall(line))
    except IndexError:
        trees = []
    if len(trees) != 1 or trees[0] is None:
        raise DataError(_problem(line), file=file, line=number)
    return trees[0]


def _problem(line: str, *, several: bool = False) -> str:
    """What is wrong with a line that is not one tree."""
    opened: list[int] = []
    ended = False
    for match in _TOKEN.finditer(line):
        token, column = match[0], match.start() + 1
        if ended and not several:
            return f"column {column}: something follows the tree: {line[match.start() :][:20]!r}"
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


def read_trees(path: str | Path) -> Iterator[Tree]:
    """The trees of a plain, .gz or .xz file, whatever lines they are spread over. Raises FileProblem, DataError."""
    held: list[str] = []
    depth = size = first = 0
    for number, line in enumerate(read_lines(path), start=1):
        if not held:
            first = number
        held.append(line)
        size += len(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0 or size > MAX_LINE_BYTES:
            yield from _several(" ".join(held), path, first)
            held, depth, size = [], 0, 0
    yield from _several(" ".join(held), path, first)


def _several(text: str, path: str | Path, first: int) -> Iterator[Tree]:
    try:
        trees = _build(_TOKEN.findall(text))
    except IndexError:
        problem = _problem(text, several=True)
        raise DataError(f"in the tree that begins here, {problem}", file=path, line=first) from None
    yield from (tree for tree in trees if tree is not None)


def skeleton(tree: Tree) -> tuple[list[str], list[int]]:
    """The words of a tree and their joints: all of the tree that Algorithm 1 needs.

    The joint of a word is the depth of the lowest node over it and the word before (the root has depth 0); that of the
    first word is -1. So a node at depth d that is not the whole tree begins at a word whose joint is less than d, and all
    other joints in it are d or more.
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
    """`skeleton(parse_tree(line))` of a line as parsers write it, several times faster; None for any other line.

    Such a line is one tree with labels everywhere, a part of speech over each word, no trace and no spare space.
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
