"""A whole table with a program that stands in for ours: run, measured, compared, judged, written."""

from __future__ import annotations

import copy
import json
import lzma
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import CorruptError, InterruptedRun, UsageError
from phraseloom.files import FolderLock
from phraseloom.models import device
from phraseloom.reproduce import table_run
from phraseloom.reproduce.plan import CostEstimate, Speed, speed_here, speed_of
from phraseloom.reproduce.sentences import read_sentences
from phraseloom.reproduce.stored import read_result, recompute, take_rows
from phraseloom.reproduce.table_run import TableOptions, open_plan, plan_text, reproduce

from .fakes import make_table, program, table_data

REFERENCE = "\n".join(f"the cat number {n} sleeps on the red mat of house {n * 3 % 17}" for n in range(40))
WORSE = REFERENCE.replace("sleeps on the red", "is at a")
STEPS: dict[str, Any] = {
    "data": {"each": "table", "run": ["write", "{here}/ref", REFERENCE]},
    "train": {"run": ["train", "{recipe}", "--run", "{here}/run", "training.seed={seed}"]},
    "translate": {"run": ["translate", "{words}", "{train}"], "stdout": "out.txt"},
}
CLAIMS = [
    {"says": "new is better", "metric": "bleu", "more": ["new"], "than": ["base"]},
    {"says": "base is better", "metric": "bleu", "more": ["base"], "than": ["new"]},
    {"says": "old is better", "metric": "bleu", "more": ["old"], "than": ["base"]},
    {"says": "equal perplexity", "metric": "ppl", "equal": ["new"], "than": ["base"], "within": 1.0},
]
RECIPE = """name: {name}
data:
  folder: nowhere
  source_language: en
  target_language: de
  train: [{{source: a, target: b}}]
  subwords: {{kind: sentencepiece, size: 100}}
model: {{width: {width}, heads: 2, ffn_width: 16, encoder: {{layers: 1}}, decoder: {{layers: 1}}}}
training: {{batch_tokens: 100, max_updates: 5}}
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Write a table of three rows, the last not run; run it. Pictures take longer than all else, so they are left out."""

    def call(
        steps: dict[str, Any] | None = None,
        plan_only: bool = False,
        metrics: dict[str, Any] | None = None,
        pictures: bool = False,
        **options: Any,
    ) -> Any:
        if not pictures:
            for name in ("draw", "draw_budget"):
                monkeypatch.setattr(table_run, name, lambda *_: False)
        data = table_data(steps or STEPS, claims=CLAIMS, baseline="base", notes=["A note."])
        data["scales"]["small"] = copy.deepcopy(data["scales"]["tiny"])
        data["metrics"]["ppl"] = {"kind": "run", "title": "perplexity", "read": "perplexity"}
        data["metrics"] |= metrics or {}
        for name, width, words in (("base", 8, WORSE), ("new", 12, REFERENCE)):
            (tmp_path / "recipes").mkdir(exist_ok=True)
            (tmp_path / "recipes" / f"{name}.yaml").write_text(RECIPE.format(name=name, width=width))
            data["rows"][name] |= {"recipe": {"tiny": f"{name}.yaml", "small": f"{name}.yaml"}}
            data["rows"][name]["variables"] = {"all": {"words": words}}
        data["rows"]["old"] = {"label": "Old", "not_run": {"tiny": "lost", "small": "lost"}, "paper": {"bleu": 5.0}}
        make_table(tmp_path, data)
        chosen = TableOptions(folder=tmp_path / "made", program=program(tmp_path), flops=1e9, **options)
        plan = open_plan("table", tmp_path / "recipes", chosen)
        if plan_only:
            return plan, chosen
        said: list[str] = []
        return *reproduce(plan, "table", chosen, said.append), said

    return call


def test_a_table_from_beginning_to_end(make: Callable[..., Any], tmp_path: Path) -> None:
    result, target, _ = make(seeds=[1, 2, 3], scale="small", pictures=True)
    assert target == tmp_path / "made" / "small" / "table"
    files = ["budget.svg", "table.json", "table.md", "table.sentences.json.xz", "table.svg"]
    assert sorted(p.name for p in target.iterdir()) == files
    text = (target / "table.md").read_text()
    assert "| New " in text and "100.00 ± 0.00" in text and "20.00" in text
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in text
    assert "Old: not run at this scale: lost" in text
    assert "3 and 3 seeds, 1,000 resamples of the sentences, normal" in text
    data = json.loads((target / "table.json").read_text())
    assert [c["verdict"] for c in data["claims"]] == ["held", "did not hold", "not measured", "held"]
    new = data["rows"][1]
    assert new["metrics"]["bleu"]["seeds"] == dict.fromkeys("123", pytest.approx(100))
    assert new["metrics"]["bleu"]["against_baseline"]["p"] < 1e-6
    assert data["claims"][0]["p_holm"] == pytest.approx(3 * data["claims"][0]["p"])
    assert new["run"]["1"]["seconds"] == 2.0
    assert new["validation"]["2"] == {"perplexity": [[5.0, 2.0, 7.5]]}
    assert "](budget.svg)" in text and "Learning curves (mean over seeds" in text
    assert new["paper"] == {"bleu": 21.0}
    assert not result.failures


def test_the_length_of_the_translations_stands_beside_bleu(make: Callable[..., Any], tmp_path: Path) -> None:
    ter = {"kind": "ter", "title": "TER", "hypotheses": "{translate}/out.txt", "reference": "{data}/ref"}
    _, target, _ = make(metrics={"ter": ter}, seeds=[1, 2, 3], scale="small")
    base, new, _ = json.loads((target / "table.json").read_text())["rows"]
    assert base["metrics"]["bleu"]["length_ratio"] == dict.fromkeys("123", pytest.approx(11 / 12))
    assert new["metrics"]["bleu"]["length_ratio"] == dict.fromkeys("123", 1.0)
    assert "length_ratio" not in base["metrics"]["ter"] and "length_ratio" not in base["metrics"]["ppl"]
    text = (target / "table.md").read_text()
    head, _, first, *_ = (line.split("|") for line in text.splitlines() if line.startswith("|"))
    columns = [cell.strip() for cell in head]
    assert columns.index("length") == columns.index("BLEU") + 1 and columns.count("length") == 1
    assert first[columns.index("length")].strip() == "0.917 ± 0.000"
    assert "* length: tokens of the translations over tokens of the reference" in text
    shutil.rmtree(tmp_path / "made" / "small" / "steps")
    assert recompute(target).length_ratios(("", "base", "bleu")) == dict.fromkeys((1, 2, 3), pytest.approx(11 / 12))


def test_a_metric_of_a_step_that_a_row_does_not_have_is_none_of_its_metrics(make: Callable[..., Any]) -> None:
    steps = {**STEPS, "again": copy.deepcopy(STEPS["translate"]) | {"rows": ["new"]}}
    again = {"kind": "bleu", "title": "again", "hypotheses": "{again}/out.txt", "reference": "{data}/ref"}
    _, target, _ = make(steps, metrics={"again": again}, seeds=[1, 2, 3], scale="small")
    base, new, _ = json.loads((target / "table.json").read_text())["rows"]
    assert "again" not in base["metrics"]
    assert new["metrics"]["again"]["mean"] == pytest.approx(100)
    assert new["metrics"]["again"]["against_baseline"] is None
    assert "not made" not in (target / "table.md").read_text()


def test_few_seeds_and_the_tiny_scale_give_no_verdict(make: Callable[..., Any]) -> None:
    _, target, _ = make(scale="small")
    verdicts = [c["verdict"] for c in json.loads((target / "table.json").read_text())["claims"]]
    said = [f"between these two runs: {word}" for word in ("yes", "no", "undecided")]
    assert verdicts == [said[0], said[1], "not measured", said[2]]  # perplexity: one seed, no interval
    assert "other trainings may come out otherwise" in (target / "table.md").read_text()
    _, target, _ = make(seeds=[1, 2], scale="small")
    verdicts = [c["verdict"] for c in json.loads((target / "table.json").read_text())["claims"]]
    assert verdicts == ["with two seeds: yes", "with two seeds: no", "not measured", "with two seeds: yes"]
    text = (target / "table.md").read_text()
    assert "a verdict takes three" in text and "other trainings may come out otherwise" not in text
    _, target, _ = make(seeds=[1, 2])
    data = json.loads((target / "table.json").read_text())
    assert [c["verdict"] for c in data["claims"]] == ["path only", "path only", "not measured", "path only"]
    assert data["claims"][0]["comparisons"][0]["difference"]["mean"] > 0
    assert "its numbers say nothing about the claim" in (target / "table.md").read_text()


def test_a_table_is_judged_again_from_its_own_files(make: Callable[..., Any], tmp_path: Path) -> None:
    """With nothing else there: no recipes, steps or corpora; to the byte what was written first."""
    _, target, _ = make(seeds=[1, 2, 3], scale="small")
    alone = tmp_path / "elsewhere"
    shutil.copytree(target, alone)
    files = {path.name: path.read_bytes() for path in alone.iterdir()}
    for name in ("made", "recipes"):
        shutil.rmtree(tmp_path / name)
    result = recompute(alone)
    assert {path.name: path.read_bytes() for path in alone.iterdir()} == files
    assert result.judged[0].verdict == "held"
    stored = read_sentences(alone / "table.sentences.json.xz")
    assert [(h.row, h.seed, h.metrics) for h in stored.hypotheses] == [
        (row, seed, ["bleu"]) for row in ("base", "new") for seed in (1, 2, 3)
    ]
    assert stored.hypotheses[0].lines == WORSE.split("\n")
    assert stored.hypotheses[0].signatures[0].startswith("nrefs:1|")
    data = json.loads(files["table.json"])
    data["claims"][0]["verdict"], data["rows"][1]["metrics"]["bleu"]["against_baseline"] = "a lie", None
    (alone / "table.json").write_text(json.dumps(data))
    recompute(alone)
    assert (alone / "table.json").read_bytes() == files["table.json"]


def test_rows_of_a_stored_table_stand_beside_new_ones(make: Callable[..., Any], tmp_path: Path) -> None:
    """As if all rows had been run together, but for a note on minutes."""
    whole, target, _ = make(seeds=[1, 2], scale="small")
    all_rows = json.loads((target / "table.json").read_text())
    make(seeds=[1, 2], scale="small", rows=["base"])
    half = tmp_path / "half"
    shutil.copytree(target, half)
    _, target, _ = make(seeds=[1, 2], scale="small", rows=["new"], rows_from=half)
    joined = json.loads((target / "table.json").read_text())
    for part in ("rows", "claims"):
        assert joined[part] == all_rows[part]
    assert "a comparison of minutes: runs of the rows base are those of a table stored before" in joined["left_out"]
    assert "not chosen" not in (target / "table.md").read_text()
    assert recompute(target).judged == whole.judged
    with pytest.raises(UsageError, match="it has scale small, not scale tiny"):
        make(rows=["new"], rows_from=half, seeds=[1, 2])
    stored = json.loads((half / "table.json").read_text())
    for part, name, change in (
        ("scale", "small", {"says": "More text."}),
        ("metric", "bleu", {"reference": "other.txt"}),
    ):
        other = copy.deepcopy(stored)
        other["definition"][f"{part}s"][name] |= change
        (half / "table.json").write_text(json.dumps(other))
        with pytest.raises(UsageError, match=f"not the same: {part} {name};"):
            make(seeds=[1, 2], scale="small", rows=["new"], rows_from=half)
    more = copy.deepcopy(stored)
    more["definition"]["metrics"]["more"] = {"kind": "run", "title": "tokens/s", "read": "tokens_per_second"}
    for row in more["rows"]:
        if row["row"] == "base":
            row["metrics"]["more"] = {**row["metrics"]["bleu"], "statistics": None}
    (half / "table.json").write_text(json.dumps(more))
    _, target, _ = make(seeds=[1, 2], scale="small", rows=["new"], rows_from=half)
    assert json.loads((target / "table.json").read_text())["rows"] == all_rows["rows"]
    elsewhere = {**stored, "table": "other"}
    (half / "table.json").write_text(json.dumps(elsewhere))
    _, target, _ = make(seeds=[1, 2], scale="small", rows=["new"], rows_from=half)
    assert json.loads((target / "table.json").read_text())["rows"] == all_rows["rows"]
    elsewhere["definition"] = copy.deepcopy(stored["definition"])
    elsewhere["definition"]["rows"]["base"]["label"] = "Another base"
    for name, says in (
        ("other", "none that was run has the name and label of a row here"),
        ("table", "other labels now: base"),
    ):
        (half / "table.json").write_text(json.dumps({**elsewhere, "table": name}))
        with pytest.raises(UsageError, match=says):
            make(seeds=[1, 2], scale="small", rows=["new"], rows_from=half)
    stored["definition"]["claims"][0]["says"] = "what was claimed before"
    stored["definition"]["metrics"]["bleu"] |= {"title": "what it was called", "scales": ["tiny", "small"]}
    stored["definition"]["notes"] = ["Another note."]
    (half / "table.json").write_text(json.dumps(stored))
    _, target, _ = make(seeds=[1, 2], scale="small", rows=["new"], rows_from=half)
    assert json.loads((target / "table.json").read_text())["claims"] == all_rows["claims"]
    (half / "table.json").write_text(json.dumps({**stored, "sentences": None}))
    with pytest.raises(UsageError, match="the sentences of this table are not stored"):
        make(seeds=[1, 2], scale="small", rows=["new"], rows_from=half)


def test_seeds_of_a_stored_table_stand_beside_new_ones(make: Callable[..., Any], tmp_path: Path) -> None:
    """Three seeds, one after the other and each in a folder of its own, are as three seeds at once."""
    whole, target, _ = make(seeds=[1, 2, 3], scale="small")
    at_once = json.loads((target / "table.json").read_text())
    stored = None
    for seed in (3, 1, 2):
        _, target, _ = make(seeds=[seed], scale="small", rows_from=stored)
        stored = tmp_path / f"seed{seed}"
        shutil.copytree(target, stored)
    joined = json.loads((target / "table.json").read_text())
    for part in ("seeds", "rows", "claims"):
        assert joined[part] == at_once[part]
    assert recompute(target).judged == whole.judged
    assert not [line for line in joined["left_out"] if "not chosen" in line]


def test_seeds_of_rows_that_are_not_taken_do_not_count(make: Callable[..., Any], tmp_path: Path) -> None:
    _, target, _ = make(seeds=[1, 2, 3], scale="small")
    stored = tmp_path / "stored"
    shutil.copytree(target, stored)
    content = json.loads((stored / "table.json").read_text())
    content["seeds"] = [1, 2, 3, 4]
    (stored / "table.json").write_text(json.dumps(content))
    joined, _, said = make(seeds=[1, 2, 3], scale="small", rows=["new"], rows_from=stored)
    assert joined.seeds == [1, 2, 3] and not [line for line in joined.left_out if "not chosen" in line]
    assert f"{stored} has the rows base, new; those that are not chosen are taken from there" in said[0]


def test_a_stored_row_that_has_only_a_run_is_taken(make: Callable[..., Any]) -> None:
    _, target, _ = make(seeds=[1], scale="small")
    stored, here = read_result(target), read_result(target)
    stored.measured = {cell: numbers for cell, numbers in stored.measured.items() if cell[1] != "base"}
    here.measured, here.facts = {}, {}
    assert ("", "base") in take_rows(here, stored)
    assert here.facts["", "base"] == stored.facts["", "base"]


def test_a_row_with_fewer_seeds_than_another_says_so(make: Callable[..., Any], tmp_path: Path) -> None:
    _, target, _ = make(seeds=[1, 2], scale="small")
    stored = tmp_path / "stored"
    shutil.copytree(target, stored)
    joined, target, _ = make(seeds=[2, 3], scale="small", rows=["new"], rows_from=stored)
    assert joined.seeds == [1, 2, 3]
    assert {row: sorted(seeds) for (_, row, _), seeds in joined.measured.items()} == {"base": [1, 2], "new": [1, 2, 3]}
    assert [line for line in joined.left_out if "not chosen" in line] == ["Base, seed 3: not chosen (--seeds)"]
    assert "Base, seed 3: not chosen" in (target / "table.md").read_text()


def test_sentences_that_do_not_fit_are_refused(make: Callable[..., Any]) -> None:
    _, target, _ = make(seeds=[1, 2], scale="small")
    path, sentences = target / "table.json", target / "table.sentences.json.xz"
    data = json.loads(path.read_text())

    def refused(match: str, **changes: Any) -> None:
        path.write_text(json.dumps({**data, **changes}))
        with pytest.raises((CorruptError, UsageError), match=match):
            recompute(target)

    rows = json.loads(path.read_text())["rows"]
    rows[1]["metrics"]["bleu"]["seeds"]["1"] = 99.0
    refused("sentences of new bleu, seed 1 give 100, the table says 99", rows=rows)
    rows[1]["metrics"]["bleu"]["seeds"]["1"] = "abc"
    for without in ({}, {"sentences": None}):
        refused(r"not a complete table \(TypeError\)", rows=rows, **without)
    refused("not the file that table.json was written with", sentences={**data["sentences"], "sha256": "0" * 64})
    refused("sentences of this table are not stored", format=1)
    refused("not a table of format 2", format=3)
    refused("not a complete table", definition={})
    packed = sentences.read_bytes()
    for damaged in (packed[:-40], b"no xz", lzma.compress(b"{}"), lzma.compress(b"[" * 100_000)):
        sentences.write_bytes(damaged)
        refused("not the sentences of a table|cut short")


def test_only_sentences_that_changed_are_packed_again(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, target, _ = make(seeds=[1, 2], scale="small")
    sentences = target / "table.sentences.json.xz"
    whole = sentences.read_bytes()
    for damaged in (whole[:-40], b"no xz", lzma.compress(b"{}")):
        sentences.write_bytes(damaged)
        make(seeds=[1, 2], scale="small")
        assert sentences.read_bytes() == whole
    monkeypatch.setattr(lzma, "compress", None)
    make(seeds=[1, 2], scale="small")
    assert sentences.read_bytes() == whole


def test_the_format_is_on_its_page(make: Callable[..., Any]) -> None:
    """docs/file_formats.md names every key of table.json, of its parts, and of a record."""
    _, target, _ = make()
    page = (Path(__file__).resolve().parents[2] / "docs" / "file_formats.md").read_bytes().decode()
    told = set(re.findall(r"\w+", page[page.index("\n## Table\n") :]))
    data = json.loads((target / "table.json").read_bytes())
    row, claim = data["rows"][1], data["claims"][0]
    comparison = claim["comparisons"][0]
    keys = {*data, *data["machine"], *row, *row["run"]["1"], *claim, *comparison, *comparison["difference"]}
    keys |= {*row["metrics"]["bleu"], *row["metrics"]["bleu"]["against_baseline"]}
    keys |= {*json.loads(next((target.parent / "steps").glob("*/step.json")).read_bytes())}
    assert keys <= told, keys - told


def test_nothing_is_run_twice(make: Callable[..., Any]) -> None:
    make()
    _, _, said = make()
    assert said == ["5 of 5 steps are done already"]
    _, _, said = make(seeds=[1, 2])
    assert said[0] == "5 of 9 steps are done already"


def test_a_failed_row_is_shown(make: Callable[..., Any]) -> None:
    steps = {**STEPS, "translate": {**STEPS["translate"], "rows": ["new"]}}
    steps["broken"] = {"run": ["fail", "the disk is made of cheese"], "rows": ["base"]}
    result, target, _ = make(steps)
    text = (target / "table.md").read_text()
    assert "base: broken base seed 1: the disk is made of cheese" in text
    assert "100.00" in text  # the other row
    assert list(result.failures) == [("", "base")]
    assert json.loads((target / "table.json").read_text())["rows"][0]["failures"]


def test_the_page_shows_the_plot_where_there_is_one(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, target, _ = make(pictures=True)
    assert "\n\n![A table](table.svg)\n\n" in (target / "table.md").read_text()
    monkeypatch.setattr("phraseloom.report.charts.picture.importlib.util.find_spec", lambda _: None)
    _, target, _ = make(pictures=True)
    assert "table.svg" not in (target / "table.md").read_text()


def test_no_path_of_the_machine_is_in_a_table(make: Callable[..., Any], tmp_path: Path) -> None:
    """Messages name the folders of steps, of recipes and of corpora, wherever these are."""
    words = f"{tmp_path}/made/tiny/steps/a/b: {tmp_path}/recipes/c.yaml, {tmp_path}/corpora/d, {Path.home()}/e"
    steps = {**STEPS, "translate": {"run": ["fail", words], "stdout": "out.txt"}}
    result, target, _ = make(steps, root=f"{tmp_path}/corpora")
    said = "translate base seed 1: steps/a/b: recipes/c.yaml, {root}/d, ~/e"
    assert result.failures["", "base"] == [said]
    written = (target / "table.json").read_text()
    assert "translate base seed 1: failed" in written
    assert str(tmp_path) not in written + (target / "table.md").read_text()
    odd = {"odd": {"kind": "json", "title": "odd", "file": "{data}/ref", "at": "x"}}  # the file is no JSON
    _, target, _ = make(metrics=odd, seeds=[1, 2])
    written = (target / "table.json").read_text()
    assert re.search(r'"steps/data-\w+/ref', written)
    assert str(tmp_path) not in written + (target / "table.md").read_text()


def test_the_machine_is_that_of_the_trainings(make: Callable[..., Any], tmp_path: Path) -> None:
    """A table that is written again elsewhere says where its minutes are from, and that they compare nothing if they do not."""
    make()
    for number, path in enumerate(sorted((tmp_path / "made" / "tiny" / "steps").glob("train-*/step.json"))):
        content = json.loads(path.read_bytes())
        path.write_text(json.dumps({**content, "machine": {**content["machine"], "processor": f"Abacus {number}"}}))
    _, target, _ = make(rows=["base"])
    text = (target / "table.md").read_text()
    assert "; Abacus 0, " in text and "not all trainings" not in text
    _, target, _ = make()
    text = (target / "table.md").read_text()
    assert "not all trainings were run on this machine" in text


def test_a_table_names_the_commits_of_its_steps(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that ran the steps, and the one that measured; of an installed package none."""
    here, now = "phraseloom.reproduce.records.source_commit", "phraseloom.reproduce.result.source_commit"
    for name in (here, now):
        monkeypatch.setattr(name, lambda: None)
    _, target, _ = make()
    assert json.loads((target / "table.json").read_text())["commits"] == []
    assert "commit" not in (target / "table.md").read_text()
    shutil.rmtree(tmp_path / "made")
    monkeypatch.setattr(here, lambda: "a" * 40 + "-dirty")
    monkeypatch.setattr(now, lambda: "b" * 40)
    _, target, _ = make(scale="small")
    assert json.loads((target / "table.json").read_text())["commits"] == ["a" * 40 + "-dirty", "b" * 40]
    text = (target / "table.md").read_text()
    assert "commits aaaaaaaaaa with changes, bbbbbbbbbb;" in text
    recompute(target)
    assert (target / "table.md").read_text() == text


def test_a_stopped_table_is_written_as_far_as_it_is(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row is done when the signal comes; the table has its number, and says what is not run yet."""
    from phraseloom.reproduce import execute

    started: list[str] = []
    spawn = execute.Execution._spawn

    def then_stop(self: Any, step: Any, running: Any) -> None:
        if step.name == "train" and step.place.row == "new":
            os.kill(os.getpid(), signal.SIGTERM)
        started.append(step.title)
        spawn(self, step, running)

    monkeypatch.setattr(execute.Execution, "_spawn", then_stop)
    with pytest.raises(InterruptedRun):
        make()
    text = (tmp_path / "made" / "tiny" / "table" / "table.md").read_text()
    assert "| Base " in text and "translate new seed 1: not run yet" in text
    assert "train new seed 1: stopped; the same command resumes it" in text
    assert "unfinished" in text and "failed" not in text
    assert "translate base seed 1" in started and "translate base seed 1:" not in text


def test_a_training_that_is_not_done_has_no_number(make: Callable[..., Any], tmp_path: Path) -> None:
    """Its last validation is not its result, and a text without a record is not a translation."""
    make(seeds=[1, 2, 3], scale="small")
    (train,) = (tmp_path / "made" / "small" / "steps").glob("train-base-seed3-*")
    record = json.loads((train / "step.json").read_bytes())
    (train / "step.json").write_text(json.dumps({**record, "status": "running", "outputs": {}}))
    plan, options = make(seeds=[1, 2, 3], scale="small", plan_only=True)
    result = table_run.measure(plan, "table", options)
    perplexity = result.measured["", "base", "ppl"]
    assert [perplexity[seed].value for seed in (1, 2, 3)] == [7.5, 7.5, None]
    assert perplexity[3].missing == "train base seed 3: stopped; the same command resumes it"
    assert 3 not in result.facts["", "base"] and 3 in result.facts["", "new"]
    (translate,) = (tmp_path / "made" / "small" / "steps").glob("translate-base-seed2-*")
    (translate / "step.json").unlink()
    plan, options = make(seeds=[1, 2, 3], scale="small", plan_only=True)
    bleu = table_run.measure(plan, "table", options).measured["", "base", "bleu"][2]
    assert (bleu.value, bleu.missing) == (None, "translate base seed 2: not run yet")


def test_a_stopped_run_does_not_replace_a_table_that_has_more(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phraseloom.reproduce import execute

    _, target, _ = make(seeds=[1, 2], scale="small")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    shutil.rmtree(tmp_path / "made" / "small" / "steps")

    said: list[str] = []
    spawn = execute.Execution._spawn

    def then_stop(self: Any, step: Any, running: Any) -> None:
        if step.name == "train":
            os.kill(os.getpid(), signal.SIGTERM)
        spawn(self, step, running)

    with monkeypatch.context() as patch:
        patch.setattr(execute.Execution, "_spawn", then_stop)
        plan, options = make(seeds=[3], scale="small", plan_only=True)
        with pytest.raises(InterruptedRun):
            reproduce(plan, "table", options, said.append)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert any("stays as it was: it has 8 numbers that this run lacks" in line for line in said)
    broken = {
        **STEPS,
        "translate": {"run": ["fail", "no luck"], "stdout": "out.txt"},
        "train": {"run": ["fail", "none"]},
    }
    _, _, said = make(broken, seeds=[1, 2], scale="small")  # it ends, without a single number
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert any("stays as it was" in line for line in said)
    _, target, _ = make(seeds=[3], scale="small")  # a run that ends with numbers replaces it
    assert json.loads((target / "table.json").read_text())["seeds"] == [3]


def test_a_stopped_run_with_more_numbers_is_written(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phraseloom.reproduce import execute

    make(seeds=[1], scale="small")
    spawn = execute.Execution._spawn

    def then_stop(self: Any, step: Any, running: Any) -> None:
        if step.place.row == "new" and step.place.seed == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        spawn(self, step, running)

    monkeypatch.setattr(execute.Execution, "_spawn", then_stop)
    with pytest.raises(InterruptedRun):
        make(seeds=[1, 2, 3], scale="small")
    table = json.loads((tmp_path / "made" / "small" / "table" / "table.json").read_bytes())
    assert table["seeds"] == [1, 2, 3] and table["rows"][0]["metrics"]["bleu"]["seeds"]["2"] is not None


def test_steps_that_are_gone_do_not_make_a_finished_row_fail(make: Callable[..., Any], tmp_path: Path) -> None:
    """The folder of a step that only others needed was deleted."""
    steps = {"prep": {"each": "table", "run": ["write", "{here}/x", "y"]}, **STEPS}
    steps["translate"] = {**STEPS["translate"], "run": [*STEPS["translate"]["run"], "{prep}"]}
    make(steps)
    (prep,) = (tmp_path / "made" / "tiny" / "steps").glob("prep-*")
    shutil.rmtree(prep)
    plan, options = make(steps, plan_only=True)
    result = table_run.measure(plan, "table", options)
    assert not result.failures and result.numbers(("", "base", "bleu"))


def test_the_reason_is_in_the_table_if_a_step_of_the_whole_table_fails(make: Callable[..., Any]) -> None:
    """No metric reads that step, only the training."""
    train = {"run": [*STEPS["train"]["run"], "data.folder={prep}"]}
    _, target, _ = make({**STEPS, "prep": {"each": "table", "run": ["fail", "no more cheese"]}, "train": train})
    assert "\n* base: prep: no more cheese\n" in (target / "table.md").read_text()


def test_two_commands_write_one_table_one_after_the_other(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits while the first writes."""
    plan, options = make(plan_only=True)
    lock = FolderLock(plan.steps.work / table_run.LOCKS / "table")
    lock.__enter__()
    measure = table_run.measure

    def then_release(*arguments: Any) -> Any:
        result = measure(*arguments)
        threading.Timer(0.5, lock.__exit__, (None, None, None)).start()
        return result

    monkeypatch.setattr(table_run, "measure", then_release)
    _, target = reproduce(plan, "table", options, lambda _: None)
    assert (target / "table.json").is_file()


def test_a_folder_in_the_way_stops_no_other_row(make: Callable[..., Any], tmp_path: Path) -> None:
    """Of a step whose record is lost; the others run, and `merge` leaves it out."""
    make()
    shutil.copytree(tmp_path / "made", tmp_path / "copy")
    work = tmp_path / "made" / "tiny" / "steps"
    (damaged,), (gone,) = work.glob("translate-base-seed1-*"), work.glob("translate-new-seed1-*")
    (damaged / "step.json").unlink()
    (damaged / "mine").write_text("keep me")
    shutil.rmtree(gone)
    result, _, said = make()
    assert (damaged / "mine").read_text() == "keep me" and (gone / "out.txt").is_file()
    assert result.numbers(("", "new", "bleu")) and not result.numbers(("", "base", "bleu"))
    (reason,) = result.failures["", "base"]
    assert "in the way" in reason and "move the folder away" in reason
    assert any("FAILED: translate base seed 1" in line for line in said)
    plan, options = make(plan_only=True)
    lines: list[str] = []
    assert table_run.merge(plan, tmp_path / "copy", options, lines.append) == 0
    assert "left out: translate base seed 1" in lines[0] and (damaged / "mine").is_file()


def test_a_file_in_the_place_of_a_training_stops_no_other_row(make: Callable[..., Any], tmp_path: Path) -> None:
    plan, _ = make(plan_only=True)
    (train,) = (step for step in plan.ordered if step.title == "train base seed 1")
    train.folder.parent.mkdir(parents=True)
    train.folder.write_text("keep me")
    result, _, _ = make()
    assert train.folder.read_text() == "keep me" and result.numbers(("", "new", "bleu"))
    assert f"{train.folder.name}: in the way of a folder; move it away" in result.failures["", "base"][0]


def test_a_link_to_a_step_that_is_no_longer_done_is_not_in_the_way(make: Callable[..., Any], tmp_path: Path) -> None:
    """Such a link is made where another command has run the step under another name."""
    make()
    (translate,) = (tmp_path / "made" / "tiny" / "steps").glob("translate-base-seed1-*")
    shutil.rmtree(translate)
    translate.symlink_to(translate.name.replace("base", "other"))
    result, _, _ = make()
    assert not translate.is_symlink() and result.numbers(("", "base", "bleu"))


def test_at_the_scale_of_the_paper_a_single_step_is_refused_too(make: Callable[..., Any]) -> None:
    plan, options = make(plan_only=True)
    chosen = replace(options, scale="paper", step=plan.ordered[0].identity)
    with pytest.raises(UsageError, match="scale paper only counts; --train-paper"):
        table_run.run_step(plan, chosen, print)
    assert table_run.run_step(plan, replace(chosen, train_paper=True), lambda _: None).state == "done"


def test_chosen_rows(make: Callable[..., Any]) -> None:
    result, target, _ = make(rows=["new"])
    assert "Base: not chosen (--rows)" in (target / "table.md").read_text()
    assert {row for _, row, _ in result.measured} == {"new"}
    with pytest.raises(UsageError, match="row 'old' is not run at scale tiny: lost"):
        make(rows=["old"])
    with pytest.raises(UsageError, match="row 'odd' does not exist"):
        make(rows=["odd"])


def test_a_scale_that_is_not_done(make: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="not made at scale paper: no need"):
        make(scale="paper")


def test_the_plan_counts_and_estimates(make: Callable[..., Any], tmp_path: Path) -> None:
    plan, options = make(plan_only=True)
    text = plan_text(plan, options)
    estimate = plan.estimates[plan.trainings[0].identity]
    assert f"{estimate.parameters:,}" in text
    assert estimate.target_tokens == 500
    assert estimate.layers == estimate.updates * 4  # one layer on each side, two micro-batches
    assert estimate.seconds(Speed(1e9, "")) == pytest.approx(estimate.flop / 1e9)
    assert "1 GFLOP/s as given" in text
    assert "25 + 25 tokens per sentence" in text
    assert "not run: Old: lost" in text
    assert "train 0/2" in text
    assert not (tmp_path / "made").exists()
    make()
    plan, options = make(plan_only=True)
    assert "train 2/2" in plan_text(plan, options)


def test_the_precision_of_all_trainings(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "bf16_cost", lambda: 30.0)
    warning = "warning: trainings are in bf16, and on this CPU a product in bf16 takes 30 times as long as in fp32"
    plan, options = make(plan_only=True, precision="bf16")
    assert all(step.argv[-1] == "training.precision=bf16" for step in plan.trainings) and len(plan.trainings) == 2
    assert warning in plan_text(plan, options) and "All trainings in bf16 (--precision)." in plan_text(plan, options)
    assert warning not in plan_text(plan, replace(options, on="slurm"))
    monkeypatch.setattr(device, "bf16_cost", lambda: 0.6)
    assert warning not in plan_text(plan, options)
    identities = {step.identity for step in plan.trainings}
    plan, options = make(plan_only=True)
    assert not identities & {step.identity for step in plan.trainings} and "--precision" not in plan_text(plan, options)


def test_finished_trainings_tell_the_speed(make: Callable[..., Any]) -> None:
    make()
    plan, _ = make(plan_only=True)
    assert "median of 2 finished training(s)" in speed_here(plan.trainings).says


def estimate_of_a_gpu(launches: int) -> float | None:
    cost = CostEstimate(1, 1, 1, flop=1e15, disk=1, precision="bf16", layers=launches)
    return cost.seconds(speed_of("A100", "bf16"))


def test_a_gpu_by_name() -> None:
    assert speed_of("A100", "bf16").flops == pytest.approx(0.4 * 312e12)
    assert speed_of("A100", "tf32").flops == pytest.approx(0.4 * 156e12)
    assert speed_of("V100", "bf16").flops == pytest.approx(0.4 * 15.7e12)
    assert estimate_of_a_gpu(launches=500_000 * 12) == pytest.approx(36_000)
    assert estimate_of_a_gpu(launches=1) == pytest.approx(1e15 / 124.8e12)
    assert "at least 6 ms for each layer and micro-batch, as measured on an H200" in speed_of("A100", "bf16").says
    assert "15.7 TFLOP/s in fp32 (it has no bf16), assumed and not measured" in speed_of("V100", "bf16").says
    with pytest.raises(UsageError, match="known are V100"):
        speed_of("A1", "fp32")
