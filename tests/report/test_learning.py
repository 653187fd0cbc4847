"""Levels below which a model has learned next to nothing, and what a report says of runs near them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.report.run.learning import learned_nothing, unigram_level, unigram_perplexity
from phraseloom.report.run.parts import read_part
from phraseloom.report.run.report import ComparedScore, build
from phraseloom.report.run.runs import OverRuns, SystemFacts

from .made_runs import make_run
from .test_parts import write
from .test_run_report import systems_of


def test_the_unigram_perplexity_by_hand() -> None:
    """Counts 3, 1, 0 of three types: p = 4/7, 2/7, 1/7."""
    train, valid = np.array([3.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0])
    assert unigram_perplexity(train, valid) == pytest.approx(((4 / 7) * (1 / 7)) ** -0.5)
    assert unigram_perplexity(np.full(5, 9.0), np.ones(5)) == pytest.approx(5.0), "an even distribution: V"


def test_a_dataset_that_is_gone_has_no_level(tmp_path: Path) -> None:
    for config in (
        None,
        {},
        {"data": None},
        {"data": {"folder": str(tmp_path / "no")}},
        {"data": {"folder": str(tmp_path)}},
    ):
        assert unigram_level(config, "ab" * 32) is None


def system(tmp_path: Path, **changes: Any) -> SystemFacts:
    """One run whose best perplexity is 5, with its level."""
    make_run(tmp_path / "base")
    (result,) = systems_of(str(tmp_path / "base"))
    return result.model_copy(update={"runs": [result.runs[0].model_copy(update=changes)]})


@pytest.mark.parametrize(
    ("level", "output", "warned"),
    [(6.2, "softmax", True), (6.3, "softmax", False), (5.0, "continuous", False), (None, "softmax", False)],
)
def test_perplexity_near_the_unigram_level(tmp_path: Path, level: float | None, output: str, warned: bool) -> None:
    """The rule: above 80 % of the level. Perplexities of continuous outputs are no measure of it."""
    document = build([system(tmp_path, unigram_perplexity=level, output=output)])
    assert bool(document.warnings) == warned
    if warned:
        (said,) = document.warnings
        assert said.startswith("base has learned next to nothing")
        assert "is 5.0, above 80 % of that of a unigram model (6.2)" in said


@pytest.mark.parametrize(
    ("test", "valid", "said"),
    [(1.9, 30.0, "BLEU is 1.90, below 2"), (2.1, 1.0, ""), (None, 1.5, "validation BLEU is 1.50"), (None, None, "")],
)
def test_bleu_below_the_floor(tmp_path: Path, test: float | None, valid: float | None, said: str) -> None:
    """BLEU on the test set counts; validation BLEU where there is none."""
    (base,) = build([system(tmp_path)]).systems
    changes = {
        "valid_bleu": None if valid is None else OverRuns(mean=valid, deviation=None, values=[valid]),
        "scores": {} if test is None else {"BLEU": ComparedScore(value=test, deviation=None, runs=None)},
    }
    known = base.model_copy(update={"summary": base.summary.model_copy(update=changes)})
    warnings = list(learned_nothing([known]))
    assert said in warnings[0] if said else warnings == []


def test_bleu_of_a_later_test_set_counts(tmp_path: Path) -> None:
    """The overview has the first test set alone; a system of the second one is warned of all the same."""
    parts = []
    for name, bleu in (("fine", 30.0), ("poor", 1.5)):
        score = {"name": "BLEU", "value": bleu, "signature": "s"}
        value = {"sentences": 9, "references": 1, "systems": [{"name": name, "scores": [score]}]}
        parts.append(read_part(name, write(tmp_path / f"{name}.json", value)))
    (said,) = build([], parts).warnings
    assert said.startswith("poor") and "BLEU is 1.50, below 2" in said
