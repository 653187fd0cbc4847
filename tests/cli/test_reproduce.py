"""`phraseloom reproduce` on the tables as they are: plans and mistakes; nothing is trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import Command


def test_the_tables_are_listed(command: Command, root: Path) -> None:
    done = command("reproduce", "--recipes", root / "recipes")
    assert done.code == 0
    assert "002-table1" in done.out and "tiny, small, paper" in done.out


def test_a_plan_writes_nothing(command: Command, root: Path, tmp_path: Path) -> None:
    done = command(
        "reproduce", "002-table1", "--rows", "en-de/base", "--plan", "--flops", "1e11", "--recipes", root / "recipes"
    )
    assert done.code == 0
    assert "en-de base seed 1" in done.out
    assert "1,179,136" in done.out
    assert not list(tmp_path.iterdir())


def test_the_papers_scale_counts_and_trains_nothing(command: Command, root: Path, tmp_path: Path) -> None:
    arguments = ("--scale", "paper", "--rows", "en-de/base", "--gpu", "H100", "--recipes", root / "recipes")
    done = command("reproduce", "002-table1", *arguments)
    assert done.code == 0, done.err
    text = (tmp_path / "reproduced" / "paper" / "002-table1" / "table.md").read_text()
    assert "63,047,680" in text
    assert "nothing was trained" in text
    assert "not found" not in text and "not run yet" not in text
    assert "one H100" in done.err


@pytest.mark.parametrize("name", ["small/004-table1", "tiny/002-table1"])
def test_a_table_without_sentences_keeps_its_intervals(command: Command, root: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(root / "docs" / "results" / name, tmp_path / "table")
    before = {path.name: path.read_bytes() for path in (tmp_path / "table").iterdir()}
    done = command("reproduce", "--recompute", "table")
    assert (done.code, done.out) == (0, "table/table.md\n")
    assert {path.name: path.read_bytes() for path in (tmp_path / "table").iterdir()} == before


def test_the_list_of_tables(command: Command, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "docs" / "results", tmp_path / "made")
    (tmp_path / "made" / "README.md").unlink()
    done = command("reproduce", "--index", "made")
    assert (done.code, done.out) == (0, "made/README.md\n")
    written = (tmp_path / "made" / "README.md").read_bytes()
    assert written == (root / "docs" / "results" / "README.md").read_bytes()


def test_pictures_are_drawn_from_the_tables_alone(command: Command, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("small/004-table1", "tiny/004-table1"):
        (tmp_path / "made" / name).mkdir(parents=True)
        shutil.copy(root / "docs" / "results" / name / "table.json", tmp_path / "made" / name)
    done = command("reproduce", "--pictures", "made")
    assert (done.code, done.out) == (0, "made/small/004-table1/budget.svg\n")
    assert b"BLEU by parameters" in (tmp_path / "made" / "small" / "004-table1" / "budget.svg").read_bytes()


def test_the_evidence_table_is_printed_or_written_into_a_page(command: Command, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "docs" / "results", tmp_path / "made")
    chosen = ("--evidence", "made", "--tables", "004-table1")
    printed = command("reproduce", *chosen)
    assert printed.code == 0 and "](made/small/004-table1/table.md)" in printed.out
    (tmp_path / "page.md").write_text("# Mine\n\n<!-- evidence --><!-- end of evidence -->\n")
    done = command("reproduce", *chosen, "--into", "page.md")
    assert (done.code, done.out) == (0, "page.md\n")
    page = (tmp_path / "page.md").read_text()
    assert page == f"# Mine\n\n<!-- evidence -->\n\n{printed.out}\n<!-- end of evidence -->\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--evidence", "."], "no SCALE/TABLE"),
        (["--into", "page.md"], "give --evidence FOLDER"),
        (["--short"], "give --evidence FOLDER"),
        (["--tables", "001"], "give --evidence FOLDER"),
        (["--plot", "c.svg"], "give --evidence FOLDER"),
        (["--evidence", ".", "--plot", "c.svg", "--into", "page.md"], "two outputs"),
        (["002-table1", "--evidence", "."], "002-table1 is not reproduced"),
        (["002-tabel1"], "did you mean 002-table1"),
        (["002-table1", "--rows", "bass"], "row 'bass' does not exist"),
        (["002-table1", "--seeds", "1,x"], "whole numbers from 0"),
        (["002-table1", "--seeds", "1,1"], "each once"),
        (["002-table1", "--seeds", "1,01"], "each once"),
        (["002-table1", "--rows", ","], "--rows is empty"),
        (["002-table1", "--scale", "large"], "large"),
        (["002-table1", "--scale", "tiny", "--plan", "--merge", "."], "--plan runs nothing, and --merge copies steps"),
        (["002-table1", "--index", "."], "002-table1 is not reproduced"),
        (["002-table1", "--pictures", "."], "--pictures only reads existing tables"),
        (["--pictures", "."], "no SCALE/TABLE"),
        (["002-table1", "--recompute", "."], "002-table1 is not reproduced"),
        (["002-table1", "--scale", "paper", "--plan", "--gpu", "abacus"], "known are V100"),
    ],
)
def test_mistakes(command: Command, root: Path, arguments: list[str], says: str) -> None:
    done = command("reproduce", *arguments, "--recipes", root / "recipes")
    assert (done.code, says in done.err) == (2, True), done.err
    assert done.is_one_line_of("reproduce")
