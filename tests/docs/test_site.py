"""`make docs`: the site is built with every link and anchor checked, and asks nothing of the network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.docs.pages import ROOT

CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_bytes())
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install 'phraseloom[docs]'"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(folder)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return folder


@needs_mkdocs
def test_every_page_is_built_and_every_link_holds(site: Path) -> None:
    """Strict: a link or anchor that leads nowhere, or a page outside the navigation, would have stopped it."""
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / (name.with_name("index.html") if name.stem == "README" else name)).is_file()
    assert "make demo" in (site / "index.html").read_bytes().decode()
    assert not (site / "site.py").exists()


@needs_mkdocs
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loads = r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^\"' >]+"
    found = {
        load
        for page in site.rglob("*.html")
        for load in re.findall(loads, page.read_bytes().decode())
        if 'rel="canonical"' not in load
    }
    assert not found
    styles = [
        load
        for page in site.rglob("*.css")
        for load in re.findall(r"url\([\"']?(?:https?:)?//[^)]*", page.read_bytes().decode())
    ]
    assert not styles


@needs_mkdocs
def test_links_out_of_the_pages_are_paths(site: Path) -> None:
    text = (site / "papers" / "000.html").read_bytes().decode()
    assert "<code>src/phraseloom/layers/attention/queryk.py</code>" in text
    assert "../../src" not in text


@needs_mkdocs
def test_tables_are_shown_with_their_plots_and_listed_on_one_page(site: Path) -> None:
    """Nothing in mkdocs.yml names a table: a folder that is put there is part of the site."""
    index = (site / "results" / "index.html").read_bytes().decode()
    folders = [path.parent.relative_to(ROOT / "docs") for path in (ROOT / "docs" / "results").glob("*/*/table.md")]
    assert folders
    for folder in folders:
        assert f'href="{folder.relative_to("results").as_posix()}/table.html"' in index
        page = (site / folder / "table.html").read_bytes().decode()
        if (ROOT / "docs" / folder / "table.svg").is_file():
            assert 'src="table.svg"' in page and (site / folder / "table.svg").is_file()
    text = (ROOT / "mkdocs.yml").read_bytes().decode()
    assert "results/README.md" in text and "-table" not in text


@needs_mkdocs
def test_every_experiment_is_listed_on_their_page(site: Path) -> None:
    """They are not in the navigation, which would be theirs alone."""
    index = (site / "experiments" / "index.html").read_bytes().decode()
    names = [path.stem for path in (ROOT / "docs" / "experiments").glob("0*.md")]
    assert len(names) > 40 and not [name for name in names if f'href="{name}.html"' not in index]


@needs_mkdocs
def test_notebooks_are_pages_with_their_pictures(site: Path) -> None:
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert paths
    index = (site / "index.html").read_bytes().decode()
    for path in paths:
        assert f'href="notebooks/{path.stem}.html"' in index
        page = (site / "notebooks" / f"{path.stem}.html").read_bytes().decode()
        pictures = re.findall(r'<img [^>]*src="([^"]+)"', page)
        assert len(pictures) >= 2 and all((site / "notebooks" / name).is_file() for name in pictures)
        assert f'href="../papers/{path.stem[:3]}.html"' in page


def test_the_site_is_the_one_of_make_docs() -> None:
    assert re.search(
        r"(?m)^docs: install\n\t\$\(BIN\)/mkdocs build --strict$", (ROOT / "Makefile").read_bytes().decode()
    )
    assert CONFIG["validation"]["links"] == dict.fromkeys(
        ("not_found", "anchors", "absolute_links", "unrecognized_links"), "warn"
    )
