"""The tree of files in CONTRIBUTING.md names existing files, and every folder of the project and the package."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import PAGES, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_bytes().decode()
TREE = PAGE[PAGE.index("## The files") :]
PACKAGE = ROOT / "src" / "phraseloom"


def named() -> list[Path]:
    """The paths at the beginning of the tree's lines."""
    found = []
    for indent, names in re.findall(r"^    ( {0,2})(?! )((?:[\w.]+/?(?: |(?=$)|(?<=/)))+) ", TREE, re.MULTILINE):
        folder = PACKAGE if indent else ROOT
        found += [folder / name for name in names.split()]
    return found


def test_what_the_tree_names_is_there() -> None:
    paths = named()
    assert len(paths) > 20
    assert not [str(path) for path in paths if not path.exists()]


def test_every_folder_is_in_the_tree() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert not {name for name in folders if f" {name}/" not in TREE}
    assert not {path.name for path in (ROOT / "recipes").iterdir() if path.is_dir() and f"{path.name}/" not in TREE}


def test_every_page_is_in_the_tree() -> None:
    """Of docs/, by name; of its folders, the folder."""
    docs = TREE[TREE.index("docs/ ") : TREE.index("src/phraseloom/")]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    missing = {name for name in pages if f"{name} " not in f"{docs} ".replace("\n", " ")}
    assert not missing
    assert "papers/" in docs and "decisions/" in docs


def test_tests_that_pages_name_are_there() -> None:
    """Each `tests/…` of a page exists; docs/add_a_mechanism.md has its reader write one."""
    named = {(page, name) for page in PAGES for name in re.findall(r"\btests/[\w./-]*\w", page.read_bytes().decode())}
    missing = {(page.name, name) for page, name in named if not (ROOT / name).exists()}
    assert missing == {("add_a_mechanism.md", "tests/layers/test_biased.py")}
