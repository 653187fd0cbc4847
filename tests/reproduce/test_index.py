"""The page that lists tables, and the tables that stand in docs/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import CorruptError, UsageError
from phraseloom.reproduce.index import HEADING, index_page, write_index

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "results"
TABLES = sorted(COMMITTED.glob("*/*/table.json"))
PATHS = re.compile(r"(?<![\w.:/])(?:/[\w.-]+){2,}|\blocal/|~/|[A-Z]:\\")
RUN = {"seconds": 90.0, "updates": 5}


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"task": "en-de", "row": name, "not_run": None, "failures": [], "run": {}, "metrics": {}, **more}


def table(**changes: Any) -> dict[str, Any]:
    """A table of one row that was run twice, one that shares its training, one that failed, one that was not run."""
    rows = [
        row("base", run={"1": RUN, "2": {**RUN, "seconds": 30.0}}, metrics={"bleu": {}}),
        row("twin", run={"1": RUN}, metrics={"bleu": {}}),
        row("broken", failures=["no luck"], metrics={"bleu": {}}),
        row("absent", not_run="no data"),
    ]
    claims = [{"verdict": verdict} for verdict in ("held", "held", "did not hold", "undecided", "not measured")]
    content = {"format": 2, "table": "009-table1", "title": "A table | of all", "scale": "tiny", "seeds": [1, 2]}
    return {**content, "rows": rows, "claims": claims, "left_out": [], **changes}


def write(folder: Path, content: Any, name: str = "tiny/009-table1") -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "table.json").write_bytes(json.dumps(content).encode())


def lines(page: str) -> list[list[str]]:
    found = [line for line in page.split("\n") if line.startswith("| [")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found]


def test_a_line_says_what_came_out(tmp_path: Path) -> None:
    write(tmp_path, table())
    (line,) = lines(index_page(tmp_path))
    assert line == [
        "[A table \\| of all](tiny/009-table1/table.md)",
        "2 run, 1 failed, 1 not run",
        "2 held, 1 did not hold, 1 undecided, 1 not measured",
        "1, 2",
        "2.0",
        "no",
    ]
    write(tmp_path, table(sentences="table.sentences.json.xz"))
    assert lines(index_page(tmp_path))[0][-1] == "stored"
    write(tmp_path, table())
    assert "    phraseloom reproduce 009-table1 --scale tiny --seeds 1,2\n" in index_page(tmp_path)


def test_the_command_has_the_precision_that_was_asked_for(tmp_path: Path) -> None:
    """Without it, the command would run other trainings."""
    says = "Two updates. All trainings in fp32 (--precision)."
    write(tmp_path, table(definition={"scales": {"tiny": {"says": says}}}))
    assert "    phraseloom reproduce 009-table1 --scale tiny --seeds 1,2 --precision fp32\n" in index_page(tmp_path)


def test_scales_have_sections_and_tables_an_order(tmp_path: Path) -> None:
    for place in ("paper/b", "small/a", "tiny/b", "tiny/a"):
        scale = place.partition("/")[0]
        write(tmp_path, table(scale=scale, title=place, claims=[], rows=[row("base")]), place)
    page = index_page(tmp_path)
    assert re.findall(r"## Scale (\w+)", page) == ["tiny", "small", "paper"]
    assert [line[0].partition("]")[0] for line in lines(page)] == ["[tiny/a", "[tiny/b", "[small/a", "[paper/b"]
    assert lines(page)[0][1:] == ["1 not run", "none", "", "", "no"]
    assert "--scale paper --data-root corpora" in page and "--seeds" not in page


def test_the_command_names_chosen_rows(tmp_path: Path) -> None:
    write(tmp_path, table(left_out=["Absent: not chosen (--rows)"]))
    assert "--rows en-de/base,en-de/twin,en-de/broken" in index_page(tmp_path)


def test_the_page_takes_the_place_of_its_like_alone(tmp_path: Path) -> None:
    write(tmp_path, table())
    assert write_index(tmp_path) == tmp_path / "README.md"
    for heading in (HEADING.encode(), b"# Tables made again: what came out"):  # the second is that of earlier versions
        (tmp_path / "README.md").write_bytes(heading)
        assert write_index(tmp_path).read_bytes() == index_page(tmp_path).encode()
    (tmp_path / "README.md").write_bytes(b"# My project\n")
    with pytest.raises(UsageError, match="no list of tables"):
        write_index(tmp_path)
    assert (tmp_path / "README.md").read_bytes() == b"# My project\n"


@pytest.mark.parametrize("content", [[], {"format": 1}, {"format": 2}, table(rows=[{}]), table(claims=[{}])])
def test_what_is_no_table_is_refused(tmp_path: Path, content: Any) -> None:
    write(tmp_path, content)
    with pytest.raises(CorruptError) as error:
        index_page(tmp_path)
    assert error.value.file == tmp_path / "tiny" / "009-table1" / "table.json"


def test_a_folder_without_tables(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no SCALE/TABLE"):
        index_page(tmp_path)


def test_the_committed_page_is_made_of_the_committed_tables() -> None:
    """`phraseloom reproduce --index docs/results` writes it."""
    page = (COMMITTED / "README.md").read_bytes().decode()
    assert page.startswith(HEADING)
    assert page == index_page(COMMITTED)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: "/".join(path.parent.parts[-2:]))
def test_committed_tables(path: Path) -> None:
    """They stand where they say, show their plot, and name no path of the machine that made them."""
    content = json.loads(path.read_bytes())
    assert (content["scale"], content["table"]) == path.parent.parts[-2:]
    text = (path.parent / "table.md").read_bytes().decode()
    assert text.startswith(f"# {content['title']}\n")
    assert ("](table.svg)" in text) == (path.parent / "table.svg").is_file()
    for name in ("table.json", "table.md"):
        found = PATHS.search((path.parent / name).read_bytes().decode())
        assert not found, f"{path.parent / name} names {found}"
    files = {p.name for p in path.parent.iterdir()}
    pictures = {"table.svg", "budget.svg"}
    assert {"table.json", "table.md"} <= files <= {"table.json", "table.md", "table.sentences.json.xz"} | pictures
    assert (content["sentences"] is not None) == ("table.sentences.json.xz" in files)
    few_seeds = len(content["seeds"]) < 3
    for claim in content["claims"]:
        exact = all(c["difference"] is None or c["difference"]["exact"] for c in claim["comparisons"])
        assert exact or content["scale"] != "tiny" or claim["verdict"] in ("path only", "not measured")
        assert exact or not few_seeds or claim["verdict"] not in ("held", "did not hold")
