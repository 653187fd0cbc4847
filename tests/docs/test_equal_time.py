"""docs/results/equal_time.py prints what the page of paper 003 says of validation BLEU at equal time."""

from __future__ import annotations

import re
import runpy

import pytest
from tests.docs.pages import ROOT

MODULE = runpy.run_path(str(ROOT / "docs" / "results" / "equal_time.py"))
TABLES = ("003-seeds", "003-annealed")


def test_bleu_is_interpolated_between_two_validations_and_constant_after_the_last() -> None:
    curve = [[200, 10.0, 20.0], [400, 30.0, 24.0]]
    assert [MODULE["bleu_after"](curve, seconds) for seconds in (9.9, 10, 15, 30, 99)] == [None, 20, 21, 24, 24]


def test_rows_are_compared_by_seed_at_shares_of_the_seconds_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    first = {"1": [[1, 1.0, 1.0], [2, 10.0, 10.0]], "2": [[1, 1.0, 1.0], [2, 10.0, 10.0]], "3": [[1, 1.0, 90.0]]}
    second = {"1": [[1, 1.0, 6.0], [2, 5.0, 8.0]], "2": [[1, 3.0, 4.0], [2, 5.0, 4.0]]}
    shown = MODULE["compare"](first, second)
    assert shown[0] == (2.0, 2.0, 6.5)  # seed 2 of the second has no BLEU yet
    assert shown[-1] == (10.0, 10.0, 6.0)
    assert "second ahead in 0 of 2" in capsys.readouterr().out.splitlines()[-1]


def test_the_page_has_the_figures_that_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(ROOT / "docs" / "results" / "small" / name) for name in TABLES]
    figures: dict[str, list[list[str]]] = {}
    for row in ("conmt", "pconmt"):
        MODULE["main"](f"attn,{row}", folders)
        figures[row] = [list(found) for found in re.findall(r"\d s +(\S+) +(\S+)  second", capsys.readouterr().out)]
    words, phrases = figures["conmt"], figures["pconmt"]
    expected = [
        [words[n][0], words[n][1], phrases[n][1], words[n + 5][0], words[n + 5][1], phrases[n + 5][1]] for n in range(5)
    ]
    page = (ROOT / "docs" / "results" / "paper_003.md").read_bytes().decode()
    lines = page.split("share of Attn's time")[1].splitlines()[2:7]
    assert [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines] == expected
