"""The models of counts of docs/experiments/017-language-model.md: probabilities by hand, and the figures of the pages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

from phraseloom.text.vocabulary import EOS

SCRIPT = ROOT / "docs" / "experiments" / "kneser_ney.py"
MODULE = runpy.run_path(str(SCRIPT))
BEGIN = MODULE["BEGIN"]
LINES = [[4, 5], [4, 6], [5, 5, 6]]


def test_a_bigram_by_hand() -> None:
    """After 4 come 5 and 6, once each; 5 comes after 3 of the 8 different bigrams, and 4 tokens come after some token."""
    model = MODULE["KneserNey"](LINES, 2, 7)
    shorter = (3 - 0.8) / 8 + 0.8 * 4 / 8 / 7
    assert model.probability((5,)) == pytest.approx(shorter)
    assert model.probability((4, 5)) == pytest.approx((1 - 0.8 + 0.8 * 2 * shorter) / 2)
    assert model.probability((3, 5)) == pytest.approx(shorter)  # nothing was seen after 3


@pytest.mark.parametrize("order", [2, 3])
def test_probabilities_sum_to_one(order: int) -> None:
    model = MODULE["KneserNey"](LINES, order, 7)
    for history in product([BEGIN, *range(7)], repeat=order - 1):
        assert sum(model.probability((*history, token)) for token in range(7)) == pytest.approx(1)


def test_a_line_ends_once() -> None:
    assert list(MODULE["ngrams"]([4, 5], 3)) == [(BEGIN, BEGIN, 4), (BEGIN, 4, 5), (4, 5, EOS)]


def test_the_command_prints_both_perplexities(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"the old man sees a house\nthe man sees a garden\n" * 20)
    changes = ["data.folder=lm", "data.train=[{text: text.txt}]", "data.valid=[{text: text.txt}]", "data.test=[]"]
    recipe = str(ROOT / "recipes" / "language_model" / "base.yaml")
    prepare = ["-m", "phraseloom", "prepare", recipe, "--data-root", ".", *changes, "data.subwords.size=300"]
    subprocess.run([sys.executable, *prepare], cwd=tmp_path, check=True, capture_output=True)
    command = [sys.executable, str(SCRIPT), "lm", "text.txt"]
    printed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.split("\n")
    bigrams, trigrams = (float(line.split()[1]) for line in printed[:2])
    assert printed[0].startswith("bigrams: ") and printed[1].startswith("trigrams: ")
    assert 1 < trigrams <= bigrams < 3


def test_all_pages_have_the_figures_of_the_command() -> None:
    page = (ROOT / "docs" / "experiments" / "017-language-model.md").read_bytes().decode()
    assert "| trigrams | 745.97 | 110.34 |" in page and "python docs/experiments/kneser_ney.py" in page
    others = ["docs/experiments/019-relative.md", "docs/papers/000.md", "docs/results/claims.md"]
    others += [f"recipes/tables/000-{name}.yaml" for name in ("language-model", "relative")]
    for other in others:
        text = (ROOT / other).read_bytes().decode()
        assert "746" in text and re.search(r"(?<![\d.])747", text) is None, other  # 0.747 is a p
