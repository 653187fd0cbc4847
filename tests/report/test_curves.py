"""Learning curves: the same charts for the report and for the picture in the folder of a run."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from tests.report.made_runs import make_run

from phraseloom.report.charts import picture
from phraseloom.report.charts.chart import Axes, Chart
from phraseloom.report.charts.curves import curve_charts, draw_after_training, draw_curves
from phraseloom.report.run.runs import SystemFacts, parse_systems, read_system

PNG = b"\x89PNG\r\n\x1a\n"


def facts(*runs: Path, name: str = "system") -> SystemFacts:
    (system,) = parse_systems([f"{name}={','.join(map(str, runs))}"])
    return read_system(system)


def titles(charts: list[Chart]) -> list[str]:
    return [chart.title for chart in charts]


def test_charts_of_a_run(tmp_path: Path) -> None:
    charts = curve_charts([facts(make_run(tmp_path / "run"))])
    assert titles(charts.loss) == ["Training loss; pale: validation"]
    assert titles(charts.validation) == ["Validation perplexity"]
    assert titles(charts.by_time) == ["Validation perplexity by wall time"]
    assert titles(charts.steps) == ["Learning rate", "Gradient norm before clipping"]
    (perplexity,) = charts.validation[0].series
    assert list(perplexity.points) == [(10.0, 9.0), (20.0, 5.0)]
    assert list(charts.by_time[0].series[0].points) == [(5.0, 9.0), (10.0, 5.0)]
    assert charts.by_time[0].axes == Axes("wall time (seconds)", "perplexity (log scale)", y_log=True, x_zero=True)
    training, validation = charts.loss[0].series
    assert training.points[0] == (1.0, 8.0) and not training.faint
    assert [y for _, y in validation.points] == pytest.approx([math.log(9), math.log(5)]) and validation.faint
    untimed = curve_charts([facts(make_run(tmp_path / "untimed", timed=False))])
    assert untimed.by_time == [] and titles(untimed.validation) == titles(charts.validation)


def test_a_huge_perplexity_has_a_short_tip(tmp_path: Path) -> None:
    charts = curve_charts([facts(make_run(tmp_path / "run", perplexities={10: 1.25e300, 20: 5.0}))])
    assert charts.validation[0].series[0].tips == ["system, update 10: 1.25e+300", "system, update 20: 5.000"]


def test_seeds_make_a_band_and_losses_of_other_outputs_a_chart_of_their_own(tmp_path: Path) -> None:
    two = facts(make_run(tmp_path / "1"), make_run(tmp_path / "2", seed=2, perplexities={10: 7.0, 20: 5.0}), name="two")
    vectors = facts(make_run(tmp_path / "v", output="vmf"), name="vectors")
    charts = curve_charts([two, vectors])
    assert titles(charts.loss) == ["Training loss; pale: validation (softmax output)", "Training loss (vmf output)"]
    band = charts.validation[0].series[0]
    assert band.points[0] == (10.0, 8.0)
    assert band.intervals[0] == pytest.approx((8 - math.sqrt(2), 8 + math.sqrt(2)))


def test_the_picture_is_drawn_once_after_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "run")
    said: list[str] = []
    draw_after_training(run, said.append)
    drawn = run / "curves.png"
    assert drawn.read_bytes().startswith(PNG) and said == []
    first = drawn.read_bytes()
    draw_curves(run, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == first
    drawn.write_bytes(b"as it was")
    os.utime(drawn, (2**31, 2**31))
    draw_after_training(run, said.append)
    assert drawn.read_bytes() == b"as it was"
    drawn.unlink()
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    draw_after_training(run, said.append)
    assert not drawn.exists() and "phraseloom[plot]" in said[0]


def test_a_run_without_an_update_and_a_damaged_one_are_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said: list[str] = []
    draw_after_training(make_run(tmp_path / "empty", perplexities={}, losses={}), said.append)
    assert "no update" in said[0]
    broken = make_run(tmp_path / "broken")
    (broken / "config.yaml").write_bytes(b"\xff: [")
    draw_after_training(broken, said.append)
    assert said[1].startswith("no learning curves drawn: ")
    assert not any(path.suffix == ".png" for path in tmp_path.rglob("*"))
