"""Learning curves with bands, gain by budget and score by parameters: the numbers behind the picture, and the picture."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.made_runs import make_run

from phraseloom.errors import CorruptError, UsageError
from phraseloom.reproduce.budget import draw_budget, gain, of_seeds
from phraseloom.reproduce.measure import ValidationCurves, validation_curves
from phraseloom.reproduce.stored import draw_pictures
from phraseloom.reproduce.writing import read_table

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "results" / "small"


def curve(values: dict[int, float], *, key: str = "perplexity", seconds: bool = True) -> ValidationCurves:
    """An update takes half a minute."""
    return {key: [[float(u), 30.0 * u if seconds else None, v] for u, v in values.items()]}


def test_the_curves_of_a_run_are_its_validations(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", perplexities={10: 9.0, 20: 5.0})
    assert validation_curves(run) == {"perplexity": [[10.0, 5.0, 9.0], [20.0, 10.0, 5.0]]}
    untimed = make_run(tmp_path / "untimed", timed=False)
    assert [seconds for _, seconds, _ in validation_curves(untimed)["perplexity"]] == [None, None]
    assert validation_curves(tmp_path / "none") == {}


def test_seeds_are_compared_where_all_of_them_were_validated() -> None:
    seeds = {1: curve({2: 8.0, 4: 6.0, 6: 5.0}), 2: curve({4: 7.0, 2: 9.0}), 3: {"bleu": [[2.0, 1.0, 3.0]]}}
    found = of_seeds(seeds, "perplexity")
    assert found is not None and found.updates.tolist() == [2, 4]
    assert found.values.tolist() == [[8, 6], [9, 7]]
    assert found.minutes is not None and found.minutes.mean(0).tolist() == [1, 2]
    assert found.deviation is not None and found.deviation.tolist() == pytest.approx([statistics.stdev([8, 9])] * 2)
    alone = of_seeds({1: curve({2: 8.0}, seconds=False)}, "perplexity")
    assert alone is not None and alone.deviation is None and alone.minutes is None
    assert of_seeds({1: curve({2: 8.0}), 2: curve({4: 8.0})}, "perplexity") is None
    assert of_seeds(seeds, "cosine_loss") is None


def test_a_gain_has_the_standard_error_of_the_difference() -> None:
    row = of_seeds({1: curve({2: 20.0, 4: 30.0}, key="bleu"), 2: curve({2: 22.0, 4: 31.0}, key="bleu")}, "bleu")
    base = of_seeds({n: curve({4: v, 8: 9.0}, key="bleu") for n, v in ((1, 27.0), (2, 29.0), (3, 28.0))}, "bleu")
    assert row is not None and base is not None
    found = gain(row, base, log=False)
    assert found is not None and found.places.tolist() == [4]
    assert found.values == pytest.approx([30.5 - 28])
    assert found.reach == pytest.approx([math.sqrt(0.5 / 2 + 1.0 / 3)])
    one = of_seeds({1: curve({4: 5.0})}, "perplexity")
    other = of_seeds({1: curve({4: 10.0})}, "perplexity")
    assert one is not None and other is not None
    nats = gain(one, other, log=True)  # a lower perplexity is a gain
    assert nats is not None and nats.values == pytest.approx([math.log(2)]) and nats.reach is None
    assert gain(row, of_seeds({1: curve({3: 1.0}, key="bleu")}, "bleu") or row, log=False) is None


def stored(folder: Path, *, curves: bool = True) -> Path:
    """The committed table of paper 003 on captions as a table that has validation curves."""
    path = folder / "small" / "003-multi30k" / "table.json"
    path.parent.mkdir(parents=True)
    content = json.loads((COMMITTED / "003-multi30k" / "table.json").read_bytes())
    rng = np.random.default_rng(0)
    for number, row in enumerate(content["rows"]):
        if curves and row["run"]:
            row["validation"] = {
                seed: {
                    "bleu": [
                        [u, u * (0.2 + 0.05 * number), (36 - number) * (1 - math.exp(-u / 500)) + rng.normal(0, 0.5)]
                        for u in range(200, 2001, 200)
                    ]
                }
                for seed in row["run"]
            }
    path.write_bytes(json.dumps(content).encode())
    return path


def titles(svg: Path) -> set[str]:
    """The panels that a picture has."""
    text = svg.read_text()
    return {
        what for what in ("by updates", "by minutes of training", "Gain over attn", "by parameters") if what in text
    }


def test_the_picture_comes_from_the_stored_table_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = stored(tmp_path)
    (picture,) = draw_pictures(tmp_path)
    assert picture == path.with_name("budget.svg")
    assert titles(picture) == {"by updates", "by minutes of training", "Gain over attn", "by parameters"}
    assert "Validation BLEU" in picture.read_text() and "CoNMT, max-margin loss" in picture.read_text()
    before = picture.read_bytes()
    draw_pictures(tmp_path)
    assert picture.read_bytes() == before


def test_a_table_without_curves_shows_scores_by_parameters(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    stored(tmp_path, curves=False)
    (picture,) = draw_pictures(tmp_path)
    assert titles(picture) == {"by parameters"}


def test_a_table_with_nothing_to_draw_has_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shutil.copytree(COMMITTED / "002-table3", tmp_path / "small" / "002-table3")
    assert draw_pictures(tmp_path) == []


@pytest.mark.parametrize("damage", [{"rows": [{}]}, {"definition": {}}, {"rows": 5}])
def test_what_cannot_be_drawn_is_said(tmp_path: Path, damage: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    path = stored(tmp_path)
    path.write_bytes(json.dumps({**read_table(path), **damage}).encode())
    with pytest.raises(CorruptError) as error:
        draw_pictures(tmp_path)
    assert error.value.file == path
    with pytest.raises(UsageError, match="no SCALE/TABLE"):
        draw_pictures(tmp_path / "small")


def test_no_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="matplotlib"):
        draw_pictures(tmp_path)
    assert draw_budget(None, tmp_path / "x.svg") is False  # type: ignore[arg-type]
