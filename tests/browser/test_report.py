"""The page of a report in a browser: sorting, what a mark says, print, and nothing asked of a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import Tab, chromium, find
from tests.report.made_runs import make_run
from tests.report.test_evaluation import BASE, NEW, OTHER, REFERENCE

from phraseloom.report.run.measured import ScoredOn, score_parts
from phraseloom.report.run.page import report_page
from phraseloom.report.run.report import build
from phraseloom.report.run.runs import parse_systems, read_system

FIRST_COLUMN = "Array.from(document.querySelectorAll('#overview tbody tr'), row => row.children[0].textContent)"
HEADING = "Array.from(document.querySelectorAll('#overview thead th')).find(th => th.textContent === 'BLEU')"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """The page of three systems, the second the best."""
    program = find()
    if program is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium), or its path in PHRASELOOM_CHROMIUM")
    folder = tmp_path_factory.mktemp("report")
    systems = [read_system(system) for system in parse_systems([str(make_run(folder / n)) for n in "abc"])]
    parts = score_parts({"a": [BASE], "b": [NEW], "c": [OTHER]}, ScoredOn(REFERENCE, REFERENCE, samples=40))
    path = folder / "report.html"
    path.write_bytes(report_page(build(systems, parts)).encode())
    with chromium(program, folder / "profile") as browser:
        browser.size(1366, 768)
        browser.open(path.as_uri())
        yield browser


def test_a_click_on_a_heading_sorts(tab: Tab) -> None:
    assert tab.run(FIRST_COLUMN) == ["a", "b", "c"]
    button = f"{HEADING}.querySelector('button')"
    tab.run(f"{button}.focus()")
    tab.key("Enter")
    assert tab.run(FIRST_COLUMN) == ["a", "c", "b"]
    assert tab.run(f"{HEADING}.getAttribute('aria-sort')") == "ascending"
    tab.run(f"{button}.click()")
    assert tab.run(FIRST_COLUMN) == ["b", "c", "a"]
    assert tab.run("document.querySelectorAll('#overview [aria-sort]').length") == 1


def test_a_mark_says_its_numbers(tab: Tab) -> None:
    assert tab.run("document.getElementById('tip').hidden")
    x, y = tab.middle("figure.chart .mark[data-tip]", 0)
    tab.hover(x, y)
    tab.wait("!document.getElementById('tip').hidden")
    said = tab.run("document.getElementById('tip').textContent").split("\n")
    assert said == [f"{name}, update 1: 8.000" for name in "abc"]
    tab.hover(1, 1)
    tab.wait("document.getElementById('tip').hidden")


def test_charts_are_inside_the_window_and_their_texts_do_not_overlap(tab: Tab) -> None:
    assert tab.run("document.documentElement.scrollWidth") <= 1366
    overlaps = """Array.from(document.querySelectorAll('figure.chart svg')).flatMap(svg => {
        const boxes = Array.from(svg.querySelectorAll('text:not(.small)'), t => [t.textContent, t.getBoundingClientRect()]);
        return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) => p.width && q.width
            && p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1)
            .map(([b]) => a + ' / ' + b)); })"""
    assert tab.run(overlaps) == []


def test_it_prints_and_asks_nobody(tab: Tab, tmp_path: Path) -> None:
    assert tab.pdf(tmp_path / "report.pdf").stat().st_size > 10_000
    assert tab.errors == []
    assert all(address.startswith("file:") for address in tab.requests)
