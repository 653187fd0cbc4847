"""Python on the pages: blocks are Python, and what they import from the package is there."""

from __future__ import annotations

import ast
import importlib
import textwrap
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, blocks

MADE = {"BiasedScore"}  # by the reader of docs/add_a_mechanism.md


def python_blocks() -> list[tuple[str, str]]:
    """(place, code) of fenced Python, and of the Python in indented blocks: from its first import to the first other line."""
    found = []
    for page in PAGES:
        place = page.relative_to(ROOT).as_posix()
        for block in blocks(page.read_bytes().decode()):
            if block.language == "python":
                found.append((f"{place}:{block.line}", block.text))
            elif block.language is None:
                parts = block.text.split("\n\n")
                found += [(f"{place}:{block.line}", part) for part in parts if part.startswith(("from ", "import "))]
    return found


BLOCKS = python_blocks()


@pytest.mark.parametrize(("place", "code"), BLOCKS, ids=[place for place, _ in BLOCKS])
def test_imports_resolve(place: str, code: str) -> None:
    tree = ast.parse(textwrap.dedent(code))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "phraseloom":
            module = importlib.import_module(str(node.module))
            missing = [a.name for a in node.names if a.name not in MADE and not hasattr(module, a.name)]
            assert not missing, f"{place}: {node.module} has no {missing}"


def test_blocks_are_found() -> None:
    pages = {place.partition(":")[0] for place, _ in BLOCKS}
    assert {"README.md", "docs/data.md", "docs/analysis.md", "docs/add_a_mechanism.md"} <= pages
    assert all(Path(ROOT / page).is_file() for page in pages)
