"""docs/results/length.py prints what the page of paper 003 says of the length of translations."""

from __future__ import annotations

import re
import runpy

import pytest
from tests.docs.pages import ROOT

MODULE = runpy.run_path(str(ROOT / "docs" / "results" / "length.py"))
TABLES = ("003-multi30k", "003-tatoeba", "003-french")
ROWS = {"Attn": "attn", "CoNMT": "conmt", "PCoNMT,": "pconmt", "PCoNMT +": "fertility2"}


def test_the_penalty_is_that_of_bleu() -> None:
    from sacrebleu.metrics.bleu import BLEU

    found = BLEU(force=True).corpus_score(["the cat sat on the mat"], [["the cat sat on the mat today"]])
    assert found.bp < 1
    assert MODULE["without_penalty"](found.score, found.sys_len / found.ref_len) == pytest.approx(100)
    assert MODULE["without_penalty"](30.0, 1.2) == 30.0


def test_the_page_has_the_figures_that_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    MODULE["main"]([str(ROOT / "docs" / "results" / "small" / name) for name in TABLES])
    pattern = r"(\S+) +(\S+) +bleu  (\S+)  length (\S+)  without penalty (\S+) "
    printed = {(table, row): figures for table, row, *figures in re.findall(pattern, capsys.readouterr().out)}
    page = (ROOT / "docs" / "results" / "paper_003.md").read_bytes().decode()
    lines = page.split("## How much of it is length?")[1].splitlines()
    for begins, row in ROWS.items():
        (line,) = (text for text in lines if text.startswith(f"| {begins}"))
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        expected = [printed[name, row] for name in TABLES]
        assert cells == [cell for bleu, length, freed in expected for cell in (length, bleu, freed)]
