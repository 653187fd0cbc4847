"""`python -m phraseloom.cli.start`: the separation of tokens of a recipe's new model, without data."""

from __future__ import annotations

from pathlib import Path

import pytest

from phraseloom.cli.start import main

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TINY = ["model.width=16", "model.heads=2", "model.ffn_width=16", "--rows", "50"]


def test_it_prints_the_line_of_train_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RECIPES / "multi30k" / "phrasal" / "base.yaml"), *TINY]) == 0
    line = capsys.readouterr().out
    assert line.startswith("separation of tokens at the start: encoder 0.")
    assert "; gradient 0." in line and line.count("signal/noise") == 3
    assert line.endswith("; collapsed: nothing\n")


def test_a_collapsed_start_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(RECIPES / "language_model" / "base.yaml")
    assert main([recipe, *TINY, "model.init={kind: uniform, range: 1e-30}"]) == 0
    assert capsys.readouterr().out.endswith("; collapsed: decoder\n")


def test_a_recipe_that_does_not_fit_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RECIPES / "multi30k" / "phrasal" / "base.yaml"), "model.widht=3"]) == 1
    assert "did you mean width?" in capsys.readouterr().err
