"""Algorithm 1 of Xu et al. (ACL 2020) word by word: an explicit tree from which sub-trees are removed."""

from __future__ import annotations

from collections.abc import Iterator

from phraseloom.phrases.trees import Tree


class Node:
    """A sub-tree with the number of tokens that remain in it; a word has no children."""

    def __init__(self, parent: Node | None, tokens: int = 0) -> None:
        self.parent, self.tokens, self.is_word = parent, 0, tokens > 0
        self.children: list[Node] = []
        # Distance from the root, fixed before anything is removed.
        self.depth: int = 0 if parent is None else parent.depth + 1
        if parent is not None:
            parent.children.append(self)
        self.count(tokens)

    def count(self, tokens: int) -> None:
        """Add tokens here and in the nodes over it."""
        node: Node | None = self
        while node is not None:
            node.tokens += tokens
            node = node.parent

    def remove(self) -> None:
        """Take this sub-tree out, and the nodes over it that nothing is left of."""
        self.count(-self.tokens)
        node = self
        while node.parent is not None and not node.tokens:
            node.parent.children.remove(node)
            node = node.parent


def mutable(tree: Tree, counts: list[int]) -> Node | None:
    """The tree with a number of tokens for each word (a part of speech with its word is one word), and the end attached.

    None if no word has tokens.
    """
    left = iter(counts)

    def copy(node: Tree, parent: Node | None) -> Node:
        is_word = not node.children or (len(node.children) == 1 and not node.children[0].children)
        new = Node(parent, next(left) if is_word else 0)
        for child in () if is_word else node.children:
            copy(child, new)
        return new

    root = copy(tree, None)
    prune(root)
    if not root.tokens:
        return None
    if root.is_word:  # a tree of one word has no constituent that the end could be in
        root, only = Node(None), root
        Node(root, only.tokens)
    top = root
    while len(top.children) == 1 and not top.children[0].is_word:
        top = top.children[0]
    Node(top, 1)
    return root


def prune(node: Node) -> None:
    for child in list(node.children):
        prune(child)
    node.children = [child for child in node.children if child.tokens]


def right_edge(root: Node) -> Iterator[Node]:
    node = root
    while True:
        yield node
        if not node.children:
            return
        node = node.children[-1]


def algorithm1(tree: Tree, counts: list[int], limit: int) -> list[int]:
    """The sizes of the phrases."""
    root = mutable(tree, counts)
    if root is None:
        return [1]
    phrases: list[int] = []
    while root.tokens:
        room = limit
        edge = list(right_edge(root))
        # The largest that fits; of equals the highest, which `max` meets first. A word always fits.
        subtree = max((t for t in edge if t.tokens <= room), key=lambda t: t.tokens, default=edge[-1])
        depth, size = subtree.depth, subtree.tokens
        room -= size
        subtree.remove()
        while room > 0:
            there = [t for t in right_edge(root) if t.depth == depth] if root.tokens else []
            if there and there[0].tokens <= room:
                size, room = size + there[0].tokens, room - there[0].tokens
                there[0].remove()
            else:
                break
        phrases.append(size)
    return phrases[::-1]
