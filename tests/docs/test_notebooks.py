"""Notebooks: one per paper, with stored outputs and pictures; they run, and the site shows them."""

from __future__ import annotations

import json
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT
from tests.helpers import HANGS

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 300_000
EVIDENCE = re.compile(r"## \d\. What our evidence says\n")
every = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_bytes())["cells"] if cell["cell_type"] == kind]


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_is_one_per_paper() -> None:
    assert [path.stem[:3] for path in PATHS] == [path.stem for path in sorted((ROOT / "docs" / "papers").glob("*.md"))]


@every
def test_stored_outputs_are_complete_and_small(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run all cells in order"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    text = path.read_bytes().decode()
    places = (Path(__file__).resolve().parents[2], Path.home(), Path(tempfile.gettempdir()))
    assert not [place for place in places if f"{place}/" in text], "a notebook names no place of a machine"


@every
def test_it_ends_with_the_evidence_of_its_paper(path: Path) -> None:
    """Every number with a decimal point in the last section is on the page of the paper."""
    last = text(cells(path, "markdown")[-1])
    assert EVIDENCE.search(last)
    page = f"docs/papers/{path.stem[:3]}.md"
    assert f"](../{page})" in last
    numbers = set(re.findall(r"\d+\.\d+", last[last.index("What our evidence says") :]))
    measured = (ROOT / page).read_bytes().decode()
    results = ROOT / "docs" / "results"
    own = (results / f"paper_{Path(page).stem}.md").read_bytes().decode()
    linked = {*re.findall(r"\]\(\.\./results/(\w+\.md)[)#]", measured), *re.findall(r"\]\((\w+\.md)[)#]", own)}
    measured += own + "".join((results / name).read_bytes().decode() for name in linked)
    known = set(re.findall(r"\d+\.\d+", measured))
    assert numbers and not numbers - known


@every
def test_links_lead_somewhere(path: Path) -> None:
    links = [target for cell in cells(path, "markdown") for target in re.findall(r"\]\(([^)#]+)", text(cell))]
    assert links and not [target for target in links if not (path.parent / target).exists()]


# The trainings of the notebooks: each count of updates, and a smaller one.
UPDATES = {
    "000": [("updates=300", "updates=20"), ("range(10, 301, 10)", "range(10, 21, 10)")],
    "001": [("updates=200", "updates=30"), ("in range(200):", "in range(30):")],
    "002": [("in range(100):", "in range(20):"), ("range(10, 101, 10)", "range(10, 21, 10)")],
    "003": [("in range(200):", "in range(30):")],
    "004": [("UPDATES = 180", "UPDATES = 30")],
}


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@every
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells in their order, with short trainings."""
    matplotlib = pytest.importorskip("matplotlib", reason="the notebooks need pip install 'phraseloom[notebooks]'")
    matplotlib.use("agg")
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "show", lambda: pyplot.close("all"))
    code = "\n".join(text(cell) for cell in cells(path, "code"))
    for long, short in UPDATES[path.stem[:3]]:
        assert long in code
        code = code.replace(long, short)
    program = tmp_path / f"{path.stem}.py"
    program.write_text(code)
    with matplotlib.rc_context():
        runpy.run_path(str(program))


@pytest.mark.full
@every
def test_it_runs_in_a_fresh_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells as they are; a cell that raises ends the test with its traceback."""
    why = "the notebooks need pip install 'phraseloom[notebooks]'"
    nbformat = pytest.importorskip("nbformat", reason=why)
    nbclient = pytest.importorskip("nbclient", reason=why)
    pytest.importorskip("ipykernel", reason=why)
    pytest.importorskip("matplotlib", reason=why)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert nbclient.NotebookClient(notebook, timeout=HANGS, kernel_name="python3").execute() is not None
