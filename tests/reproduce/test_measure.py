"""Numbers from texts, JSON and run folders; what is missing is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.reproduce.measure import Meter, run_facts, scorer_of, select
from phraseloom.reproduce.steps import StepScope
from phraseloom.reproduce.table import JsonMetric, ReachedMetric, RunMetric, TextMetric, TimeMetric

from .fakes import make_steps, one

REPORT = {
    "systems": [
        {"name": "x", "layers": [{"layer": 1, "share": 0.25, "head": None}, {"layer": 2, "share": 0.5, "head": 3}]}
    ],
    "by": {"idiom": {"accuracy": 0.75}, "case": {"accuracy": 0.5}},
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("systems.0.layers.1.share", [0.5]),
        ("systems.0.layers.*.share", [0.25, 0.5]),
        ("systems.0.layers.[head=null].share", [0.25]),
        ("systems.[name=x].layers.[layer=2,head=3].share", [0.5]),
        ("by.*.accuracy", [0.75, 0.5]),
        ("systems.1.layers", []),
        ("nothing.here", []),
    ],
)
def test_paths(path: str, values: list[Any]) -> None:
    assert [value for _, value in select(REPORT, path.split("."))] == values


def meter(folder: Path) -> tuple[Meter, StepScope, Path]:
    steps = make_steps(folder, {"look": {"run": ["translate", "x"]}})
    return Meter(steps), StepScope("", "base", 1), one(steps, "look").folder


def test_json_numbers_and_series(tmp_path: Path) -> None:
    read, place, folder = meter(tmp_path)
    folder.mkdir(parents=True)
    (folder / "r.json").write_text(json.dumps(REPORT))

    def metric(at: str, **more: Any) -> Any:
        data = {"kind": "json", "title": "t", "file": "{look}/r.json", "at": at, **more}
        return read.measure(JsonMetric.model_validate(data), place)

    assert metric("systems.0.layers.0.share", factor=100).value == 25
    assert metric("systems.0.layers.*.share", label="layer").value == {"1": 0.25, "2": 0.5}
    assert metric("by.*.accuracy", label="key").value == {"idiom": 0.75, "case": 0.5}
    assert "2 numbers" in metric("systems.0.layers.*.share").missing
    assert "no number at systems.0.name" in metric("systems.0.name").missing
    assert "no number at nothing" in metric("nothing").missing


def test_the_sums_of_sentences_stand_beside_the_numbers(tmp_path: Path) -> None:
    read, place, folder = meter(tmp_path)
    folder.mkdir(parents=True)
    layers = [{"layer": n, "aer": 1 - n / 4, "rows": [[n, 3], [0, 1]]} for n in (1, 2)]
    report = {
        "layers": layers,
        "perplexity": math.exp(1.5),
        "sums": [[1.0, 2], [5.0, 2]],
        "flat": [1, 2],
        "words": "no",
    }
    (folder / "r.json").write_text(json.dumps(report))

    def metric(at: str, by_sentence: str, **more: Any) -> Any:
        data = {"kind": "json", "title": "t", "file": "{look}/r.json", "at": at, "by_sentence": by_sentence, **more}
        return read.measure(JsonMetric.model_validate(data), place)

    series = metric("layers.*.aer", "layers.*.rows", label="layer", form="complement", factor=100)
    assert series.value == {"1": 75, "2": 50}
    assert {name: rows.tolist() for name, rows in series.statistics.items()} == {n: [[int(n), 3], [0, 1]] for n in "12"}
    assert series.scorer.value(np.array([1, 2])) == 50
    first = metric("layers.[layer=1].aer", "layers.*.rows", label="layer", form="complement", factor=100)
    assert first.value == {"1": 75} and first.statistics.keys() == {"1"}
    single = metric("perplexity", "sums", form="exp")
    assert single.value == pytest.approx(math.exp(1.5))
    assert single.statistics[""].tolist() == [[1, 2], [5, 2]]
    for wrong in ("flat", "words", "layers.0.rows", "nothing"):
        found = metric("perplexity", wrong, form="exp")
        assert f"the sums at {wrong} do not give the numbers at perplexity" in found.missing


def test_texts_and_chosen_lines(tmp_path: Path) -> None:
    read, place, folder = meter(tmp_path)
    folder.mkdir(parents=True)
    lines = ["a b c d e", "f g h i j", "k l m n o"]
    (folder / "ref").write_text("\n".join(lines) + "\n")
    (folder / "hyp").write_text("\n".join([lines[0], "nothing of it", lines[2]]) + "\n")
    (folder / "lines").write_text("1\n3\n")
    data = {"kind": "bleu", "title": "BLEU", "hypotheses": "{look}/hyp", "reference": "{look}/ref"}
    whole = read.measure(TextMetric.model_validate(data), place)
    some = read.measure(TextMetric.model_validate({**data, "lines": "{look}/lines"}), place)
    assert isinstance(whole.value, float) and whole.value < 90
    assert some.value == pytest.approx(100)
    assert "tok:13a" in whole.signature
    assert len(whole.statistics[""]) == 3
    (folder / "src").write_text("a\na b c\na b c d e f\n")
    data |= {"source": "{look}/src", "edges": "2,4"}
    groups = read.measure(TextMetric.model_validate(data), place)
    assert groups.value == pytest.approx({"≤2": 100, "3–4": 0, ">4": 100})
    assert {label: len(counts) for label, counts in groups.statistics.items()} == {"≤2": 1, "3–4": 1, ">4": 1}
    data = {k: v for k, v in data.items() if k not in ("source", "edges")}
    gone = read.measure(TextMetric.model_validate({**data, "hypotheses": "{look}/none"}), place)
    assert gone.value is None and "not found" in gone.missing


def test_bleu_of_tensor2tensor_knows_the_language_of_the_target(tmp_path: Path) -> None:
    steps = make_steps(tmp_path, {"look": {"run": ["translate", "x"]}}, tasks={"to": {"all": {"target": "de"}}})
    place = StepScope("to", "base", 1)
    read, folder = Meter(steps), steps.step("look", place).folder
    folder.mkdir(parents=True)
    (folder / "ref").write_text("Die E-Mail-Adresse ist falsch .\n")
    (folder / "hyp").write_text("Die E-Mail-Adresse ist richtig .\n")
    data = {"kind": "t2t", "title": "BLEU-t2t", "hypotheses": "{look}/hyp", "reference": "{look}/ref"}
    metric = TextMetric.model_validate({**data, "language": "{target}"})
    score = read.measure(metric, place)
    assert "tok:t2t-de-" in score.signature
    # 9 tokens with both hyphens, 8 of them right; 6 of 8 bigrams, 5 of 7 trigrams, 4 of 6 4-grams
    assert score.value == pytest.approx(100 * (8 / 9 * 6 / 8 * 5 / 7 * 4 / 6) ** 0.25)
    assert scorer_of(metric).value(score.statistics[""].sum(0)) == score.value
    for wrong in (data, {**data, "kind": "bleu", "language": "de"}):
        with pytest.raises(ValueError, match="t2t and language stand together"):
            TextMetric.model_validate(wrong)


def test_run_folders(tmp_path: Path) -> None:
    read, place, folder = meter(tmp_path)
    run = folder / "run"
    run.mkdir(parents=True)
    records = [
        {"update": 5, "validation": {"perplexity": 9.0, "bleu": 3.0}},
        {"update": 9, "validation": {"perplexity": 7.5, "bleu": 4.0}},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (run / "timing.jsonl").write_text('{"update": 9, "seconds": 4.0, "target_tokens": 200}\n')
    assert run_facts(run) == {"updates": 9, "seconds": 4.0, "tokens_per_second": 50.0, "perplexity": 7.5, "bleu": 4.0}
    trained = [{"update": u, "epoch": (u - 1) // 4, "loss": 1.0, "examples": 10 + u} for u in range(1, 10)]
    records[0]["best"] = True
    records[1]["best"] = False
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*trained, *records]))
    (run / "timing.jsonl").write_text('{"update": 4, "seconds": 2.0}\n{"update": 8, "seconds": 4.0}\n')
    pairs = sum(10 + update for update in range(1, 9))  # of the updates that have a time
    counted = {"pairs_per_second": pairs / 4, "epochs_to_best": 2, "seconds_to_best": 2.5}
    assert run_facts(run).items() >= counted.items()
    del trained[3]["examples"]  # a run that an earlier version began
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*trained, *records]))
    assert "pairs_per_second" not in run_facts(run)
    data = {"kind": "run", "title": "t", "read": "perplexity", "folder": "{look}/run"}
    assert read.measure(RunMetric.model_validate(data), place).value == 7.5
    missing = read.measure(RunMetric.model_validate({**data, "read": "parameters"}), place)
    assert "the run has no parameters" in missing.missing


VALIDATIONS = [(100, 40.0, None), (200, 20.0, 5.0), (300, 5.0, 15.0), (400, 6.0, 14.0)]


def reach(folder: Path, read: str, perplexity: float) -> Any:
    steps = make_steps(folder, {"look": {"run": ["translate", "x"]}})
    run = one(steps, "look").folder / "run"
    run.mkdir(parents=True, exist_ok=True)
    lines = [
        {"update": u, "validation": {"perplexity": p, **({} if b is None else {"bleu": b})}} for u, p, b in VALIDATIONS
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"kind": "reached", "title": "t", "read": read, "perplexity": perplexity, "folder": "{look}/run"}
    return Meter(steps).measure(ReachedMetric.model_validate(data), StepScope("", "base", 1))


def test_what_a_run_needs_to_reach_a_perplexity(tmp_path: Path) -> None:
    """Log perplexity is a straight line between validations: 10 lies half way from 20 down to 5."""
    assert reach(tmp_path, "updates", 10.0).value == pytest.approx(250)
    assert reach(tmp_path, "bleu", 10.0).value == pytest.approx(10.0)
    assert reach(tmp_path, "updates", 20.0).value == 200
    assert reach(tmp_path, "updates", 40.0).value == 100  # the first validation is at it
    assert reach(tmp_path, "updates", 50.0).value == 100  # nothing is known before
    assert "perplexity 4 was not reached: the best was 5.00" in reach(tmp_path, "updates", 4.0).missing
    assert "no validation BLEU around update 150" in reach(tmp_path, "bleu", math.sqrt(800)).missing


def test_times_are_relative_to_a_row(tmp_path: Path) -> None:
    steps = make_steps(tmp_path, {"look": {"run": ["translate", "{row}"]}})
    for row, seconds in (("base", 8.0), ("new", 12.0)):
        folder = one(steps, "look", row).folder
        folder.mkdir(parents=True)
        (folder / "step.json").write_text(json.dumps({"status": "done", "seconds": seconds}))
    read = Meter(steps)

    def time(row: str, **more: Any) -> Any:
        return read.measure(
            TimeMetric.model_validate({"kind": "time", "title": "t", "step": "look", **more}), place(row)
        )

    def place(row: str) -> StepScope:
        return StepScope("", row, 1)

    assert [time(row).value for row in ("base", "new")] == [8.0, 12.0]
    assert [time(row, relative_to="base").value for row in ("base", "new")] == [1.0, 1.5]
    (one(steps, "look").folder / "step.json").write_text(json.dumps({"status": "failed", "seconds": 3.0}))
    assert "not done" in time("new", relative_to="base").missing
    (one(steps, "look").folder / "step.json").write_text("{}")
    assert "no seconds" in time("base").missing
