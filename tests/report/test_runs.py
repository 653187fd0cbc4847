"""Systems from a command line, and what their folders say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phraseloom.errors import CorruptError, FileProblem, UsageError
from phraseloom.report.run.page import curves
from phraseloom.report.run.runs import parse_systems, read_system

from .made_runs import make_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 1), ("b", 2), ("x=y,z", 3), ("deep/a", 4)):
        make_run(tmp_path / name, seed=seed, perplexities={10: 8.0, 20: 4.0 + seed})
    return tmp_path


def test_names_of_systems(runs: Path) -> None:
    found = parse_systems(["a", "two=b", "x=y,z"])
    assert [(s.name, [str(f) for f in s.folders]) for s in found] == [
        ("a", ["a"]),
        ("two", ["b"]),
        ("x=y,z", ["x=y,z"]),
    ]
    assert [s.name for s in parse_systems(["a", "deep/a"])] == ["a", "deep/a"]
    assert [str(f) for f in parse_systems(["both=a,b"])[0].folders] == ["a", "b"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "./a"], "given twice"),
        (["n=a,a"], "given twice"),
        (["n=a", "n=b"], "called n"),
        (["=a"], "a run is RUN"),
        (["n="], "a run is RUN"),
        (["n=a,"], "a run is RUN"),
    ],
)
def test_what_is_no_system(runs: Path, texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_systems(texts)


def test_facts_and_curves_over_seeds(runs: Path) -> None:
    system = read_system(parse_systems(["both=a,b"])[0])
    assert [run.seed for run in system.runs] == [1, 2]
    assert system.runs[0].seconds == 10.0
    assert system.runs[0].tokens_per_second == 200.0
    found = system.over_runs("valid_perplexity")
    assert found is not None
    assert found.values == [5.0, 6.0]
    assert found.mean == 5.5
    curve = system.curves["perplexity"]
    assert curve.values == [8.0, 5.5]
    assert curve.seconds == [5.0, 10.0]
    assert curve.deviation is not None and curve.deviation[0] == 0.0
    assert system.over_runs("parameters") is None


@pytest.mark.parametrize(("lengths", "points"), [((10000, 110), 110), ((1200, 2400), 120), ((300, 250, 7), 7)])
def test_seeds_of_different_length_meet_before_they_are_thinned(
    tmp_path: Path, lengths: tuple[int, ...], points: int
) -> None:
    folders = [
        make_run(tmp_path / str(n), perplexities={}, losses={u: 10 / u**0.5 for u in range(1, n + 1)}) for n in lengths
    ]
    (system,) = (read_system(one) for one in parse_systems(["all=" + ",".join(map(str, folders))]))
    curve = system.curves["nll"]
    assert len(curve.updates) == points and curve.updates[-1] == min(lengths)
    assert curve.deviation == [0.0] * points


def test_cosine_loss_has_a_curve_where_there_is_one(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name) for name in "ab"]
    with (folders[0] / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for update, value in ((10, 0.75), (20, 0.5)):
            validation = {"perplexity": 9.0, "cosine_loss": value}
            file.write(json.dumps({"update": update, "validation": validation}) + "\n")
    a, b = (read_system(system) for system in parse_systems(list(map(str, folders))))
    assert a.curves["cosine_loss"].values == [0.75, 0.5] and "cosine_loss" not in b.curves
    assert "Validation cosine loss" in curves([a, b]) and "cosine" not in curves([b])


def test_what_is_missing_stays_none(tmp_path: Path) -> None:
    make_run(tmp_path / "bare", perplexities={}, losses={}, timed=False)
    system = read_system(parse_systems([str(tmp_path / "bare")])[0])
    (run,) = system.runs
    assert system.curves == {}
    assert (run.has_model, run.parameters, run.seconds, run.valid_bleu) == (False, None, None, None)


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("other", "missing"):
        with pytest.raises(FileProblem):
            read_system(parse_systems([str(tmp_path / name)])[0])


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [("run.json", '{"torch": 2}', "torch: Input"), ("run.json", "[]", "facts: Input"),
     ("config.yaml", "training: {seed: one}", "seed: Input")],
)  # fmt: skip
def test_facts_of_another_type_are_refused(tmp_path: Path, file: str, text: str, what: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / file).write_text(text)
    with pytest.raises(CorruptError, match=what) as error:
        read_system(parse_systems([str(folder)])[0])
    assert error.value.file == (folder / file if file == "run.json" else folder)


def test_a_validation_that_is_no_number_is_not_the_best(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", perplexities={10: float("inf"), 20: 5.0, 30: float("nan")})
    (run,) = read_system(parse_systems([str(folder)])[0]).runs
    assert run.valid_perplexity is not None and (run.valid_perplexity.value, run.valid_perplexity.update) == (5.0, 20)
