"""docs/papers: links to existing code, names that it defines, figures that a page of measurements has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
SECTIONS = [
    "What it says",
    "Where each equation is",
    "How to run it",
    "What we found",
    "The claims",
    "What differs from the paper",
    "Measurements",
]
each = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)


def sections(page: Path) -> dict[str, str]:
    found = re.split(r"^## (.+)$", page.read_bytes().decode(), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def measurements() -> str:
    """What was measured: the claims of each paper's page, and pages of results."""
    papers = [sections(page)["The claims"] for page in PAGES]
    names = ["baselines.md", "performance.md", "continuous.md", "npmt.md", *(f"paper_{page.stem}.md" for page in PAGES)]
    others = [(ROOT / "docs/results" / name).read_bytes().decode() for name in names]
    return "\n".join([*papers, *others]).replace("−", "-").replace("+", "")


def defined(path: Path) -> set[str]:
    """Classes, functions, fields and tables of a module, methods included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_there_is_a_page_a_paper() -> None:
    assert [page.stem for page in PAGES] == [f"00{n}" for n in range(5)]


@each
def test_sections(page: Path) -> None:
    assert list(sections(page)) == SECTIONS


@each
def test_code_is_where_the_page_says(page: Path) -> None:
    """`[file](path)`, then the names in it: each link resolves, its text is the path, each name is defined there."""
    rows = sections(page)["Where each equation is"].split("\n")
    links = 0
    for row in rows:
        parts = re.split(r"\[([\w/.]+)\]\(([\w/.]+)\)", row)
        for text, path, behind in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            file = (page.parent / path).resolve()
            assert file.is_file(), path
            assert path.endswith(f"src/phraseloom/{text}"), f"{text} is the text of {path}"
            names = re.findall(r"`([A-Za-z]\w*)`", behind)
            missing = set(names) - defined(file)
            assert not missing, f"{text} has no {sorted(missing)}"
            links += 1
    assert links >= 6


def without_the_papers(text: str) -> str:
    """The text without the columns of its tables whose head begins with "paper"."""
    lines: list[str] = []
    left_out: set[int] = set()
    for line in text.split("\n"):
        cells = line.strip("|").split("|") if line.startswith("|") else []
        if not lines or not lines[-1].startswith("|"):  # a head
            left_out = {n for n, cell in enumerate(cells) if cell.strip().startswith("paper")}
        some = (cell for n, cell in enumerate(cells) if n not in left_out)
        lines.append("|" + "|".join(some) if cells else line)
    return "\n".join(lines)


def test_columns_of_the_paper_are_left_out() -> None:
    text = "a 1.1\n| x | paper | y |\n|---|---|---|\n| 1.2 | 1.3 | 1.4 |\n\n| y |\n|---|\n| 1.5 |\n"
    assert re.findall(r"\d\.\d", without_the_papers(text)) == ["1.1", "1.2", "1.4", "1.5"]


@each
def test_figures_are_measured(page: Path) -> None:
    """Our own numbers with a decimal point, and counts of parameters, are in some section of measurements."""
    text = without_the_papers(sections(page)["What we found"].replace("−", "-"))
    numbers = set(re.findall(r"(?<![\d.,])[+-]?\d+\.\d+|\d{1,3}(?:,\d{3})+", text))
    assert len(numbers) > 8
    known = measurements()
    missing = [n for n in numbers if not re.search(rf"(?<![\d.,]){re.escape(n.lstrip('+'))}(?!\d)", known)]
    assert not missing, sorted(missing)


def test_figures_of_the_overview_are_measured() -> None:
    """docs/results.md outside of its generated table."""
    text = re.sub(r"(?s)<!-- evidence -->.*<!-- end of evidence -->", "", (ROOT / "docs/results.md").read_text())
    text = text[: text.index("## How the numbers were made")]
    known = measurements()
    numbers = set(re.findall(r"(?<![\d.,])\d+\.\d\d+", text))
    assert numbers and not [n for n in numbers if not re.search(rf"(?<![\d.,]){re.escape(n)}(?!\d)", known)]


CLAIM = re.compile(
    r"^\| .+\| [+−][\d.,]+ \(([+−][\d.]+) … ([+−][\d.]+)\) \|.*\| (held|did not hold)( †)? ?[^|]*\|$", re.MULTILINE
)
STATED = re.compile(
    r"\(([+−]?\d+\.\d+) … ([+−]?\d+\.\d+)(?:; p [<\d. ]+)?"  # an interval, in a sentence or a table
    r"(?:\)\*{0,2}(?: \| [<\d. ]+)? ?[,|;]? ?\*{0,2}|; )(held|did not hold)\*{0,2}( ?†)?"
)


def test_verdicts_have_a_dagger_where_the_claims_have_it() -> None:
    """The dagger depends on the number of registered hypotheses, so each new experiment can change older verdicts."""
    claims: dict[tuple[str, str, str], set[bool]] = {}
    for page in [*PAGES, ROOT / "docs/results.md"]:
        for low, high, verdict, dagger in CLAIM.findall(page.read_bytes().decode()):
            ends = sorted((low.strip("+−"), high.strip("+−")))  # a loss may be told without its signs
            claims.setdefault((*ends, verdict), set()).add(bool(dagger))
    found, wrong = 0, []
    folders = (ROOT / "docs" / name for name in ("papers", "results", "experiments"))
    for page in [ROOT / "docs/results.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]:
        for low, high, verdict, dagger in STATED.findall(page.read_bytes().decode()):
            known = claims.get((*sorted((low.strip("+−"), high.strip("+−"))), verdict))
            found += known is not None
            if known is not None and known != {bool(dagger)}:
                wrong.append(f"{page.name}: {low} … {high}: {verdict}{dagger}")
    assert not wrong
    assert found > 40
