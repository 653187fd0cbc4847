"""Scores of another metric's files: their mean, their bootstrap and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from phraseloom.cli.main import run
from phraseloom.errors import DataError
from phraseloom.metrics.compare import resamples
from phraseloom.metrics.given import read_scores
from phraseloom.text.lines import write_lines


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    values = {name: random.normal(0.5, 0.2, 60) + shift for name, shift in (("a", 0.0), ("b1", 0.1), ("b2", 0.12))}
    for name, scores in values.items():
        write_lines(tmp_path / name, ["a house"] * 60)
        write_lines(tmp_path / f"{name}.comet", [repr(float(x)) for x in scores])
    write_lines(tmp_path / "ref", ["a house"] * 60)
    return values


def test_given_scores_are_compared_like_bleu(files: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "-r", "ref", "a", "b=b1,b2", "--scores", "COMET=a.comet,b1.comet,b2.comet"]
    assert run([*arguments, "--metrics", "bleu", "--bootstrap", "200", "--output", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    [[_, first], [_, second]] = [system["scores"] for system in result["systems"]]
    assert first["name"] == "COMET" and first["value"] == pytest.approx(files["a"].mean())
    assert second["runs"] == pytest.approx([files["b1"].mean(), files["b2"].mean()])
    test = next(t for t in result["bootstrap"]["results"] if t["metric"] == "COMET" and t["system"] == "b")
    drawn = np.concatenate([*resamples(60, 200, seed=12345)]) / 60
    difference = drawn @ (files["b1"] + files["b2"]) / 2 - drawn @ files["a"]
    expected = (files["b1"].mean() + files["b2"].mean()) / 2 - files["a"].mean()
    assert test["difference"] == pytest.approx(expected) and test["p"] < 0.05
    half = 1.959964 * difference.std(ddof=1)  # one run of the baseline: the variance of the sentences alone
    assert test["difference_low"] == pytest.approx(expected - half) and test["one_seed"]
    assert run([*arguments, "--bootstrap", "200"]) == 0
    printed = capsys.readouterr().out
    assert "COMET|mean of given scores" in printed
    assert f"{first['value']:.4f}" in printed and f"{test['difference']:+.4f}" in printed
    assert f"± {second['deviation']:.4f}" in printed and f"{test['difference_low']:+.4f} …" in printed


def test_a_subset_of_lines_is_that_of_the_scores(
    files: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines("lines", ["3", "7", "50"])
    assert run(["evaluate", "-r", "ref", "a", "--scores", "X=a.comet", "--lines", "lines", "--output", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["systems"][0]["scores"][-1]["value"] == pytest.approx(files["a"][[2, 6, 49]].mean())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("COMET", "not NAME=FILE"),
        ("COMET=a.comet,b1.comet", "2 files of scores for 1 file of translations"),
        ("BLEU=a.comet", "is a metric of --metrics"),
        ("chrF2=a.comet", "is a metric of --metrics"),
        ("COMET=none", "none"),
    ],
)
def test_bad_options_are_refused(files: object, capsys: pytest.CaptureFixture[str], option: str, message: str) -> None:
    assert run(["evaluate", "-r", "ref", "a", "--scores", option]) != 0
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_bad_numbers_are_refused_with_their_line(tmp_path: Path) -> None:
    for text in ("much", "nan", "inf", ""):
        write_lines(tmp_path / "scores", ["0.5", text, "1"])
        with pytest.raises(DataError, match="is not a finite number") as caught:
            read_scores(tmp_path / "scores", 3)
        assert caught.value.line == 2
    write_lines(tmp_path / "scores", ["1e308"] * 3)
    with pytest.raises(DataError, match="the sum of these scores is not finite"):
        read_scores(tmp_path / "scores", 3)
    write_lines(tmp_path / "scores", ["0.5", "1"])
    with pytest.raises(DataError, match="2 scores, but the translation has 3 lines"):
        read_scores(tmp_path / "scores", 3)
