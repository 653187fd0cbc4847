"""Corpora of the data root: what a step reads of them, and that a changed one makes it, and what needs it, run anew."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from phraseloom.reproduce import steps as inputs
from phraseloom.reproduce.execute import Execution
from phraseloom.reproduce.plan import Speed, make_plan, render
from phraseloom.reproduce.records import RECORD, read_record
from phraseloom.reproduce.result import collect
from phraseloom.reproduce.steps import Step, Steps, in_order

from .fakes import make_steps, make_table, one, program, table_data
from .test_steps import with_recipe, write_recipe

STEPS: dict[str, Any] = {
    "data": {"each": "table", "run": ["copy"], "stdin": ["{root}/text"], "stdout": "ref"},
    "other": {"run": ["translate", "nothing"], "stdout": "x"},
    "train": {"run": ["train", "{recipe}", "--run", "{here}/run", "data.folder={data}/ref"]},
    "translate": {"run": ["translate", "a line", "{train}/run"], "stdout": "out.txt"},
}
RECIPE = """name: small
data:
  folder: nowhere
  source_language: de
  target_language: en
  train: [{source: text.de, target: text.en}]
  subwords: {kind: sentencepiece, size: 100}
model: {width: 8, heads: 2, ffn_width: 16, encoder: {layers: 1}, decoder: {layers: 1}}
training: {batch_tokens: 100, max_updates: 5}
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_recipe(tmp_path)
    (tmp_path / "root").mkdir()
    path = tmp_path / "root" / "text"
    path.write_bytes(b"first text\n")
    return path


def steps_of(folder: Path) -> dict[str, Step]:
    made = make_steps(folder, STEPS, **with_recipe())
    return {name: one(made, name) for name in ("data", "other", "train", "translate")}


def run(folder: Path, names: tuple[str, ...] = ("other", "translate"), ended: list[str] | None = None) -> list[str]:
    """Run the steps of those names and what they need; what was said. `ended`: gets the names of those that are done."""
    steps = steps_of(folder)
    said: list[str] = []
    tell = None if ended is None else lambda step, _: ended.append(step.name)
    Execution(in_order([steps[n] for n in names]), 1, said.append, program=program(folder), ended=tell).run()
    return said


def states(folder: Path) -> dict[str, str]:
    return {name: read_record(step).state for name, step in steps_of(folder).items()}


def rewrite(path: Path, text: bytes) -> None:
    """Other content at another time."""
    later = path.stat().st_mtime_ns + 10**9
    path.write_bytes(text)
    os.utime(path, ns=(later, later))


def test_the_record_says_what_was_read(corpus: Path, tmp_path: Path) -> None:
    run(tmp_path)
    noted = {name: json.loads((s.folder / RECORD).read_bytes())["inputs"] for name, s in steps_of(tmp_path).items()}
    assert noted["other"] == {}
    found = noted["data"]["text"]
    stat = corpus.stat()
    assert (found["bytes"], found["mtime_ns"], found["ctime_ns"]) == (11, stat.st_mtime_ns, stat.st_ctime_ns)
    assert len(found["sha256"]) == 64
    assert noted["train"] == noted["translate"] == noted["data"]


@pytest.mark.parametrize(("text", "why"), [(b"other text\n", "other content"), (b"more of it\n\n", "another size")])
def test_a_changed_corpus_is_read_again_and_all_that_was_made_of_it(
    corpus: Path, tmp_path: Path, text: bytes, why: str
) -> None:
    run(tmp_path)
    before = {name: step.identity for name, step in steps_of(tmp_path).items()}
    rewrite(corpus, text)
    assert {name: step.identity for name, step in steps_of(tmp_path).items()} == before
    assert states(tmp_path) == {"data": "changed", "other": "done", "train": "changed", "translate": "changed"}
    assert read_record(steps_of(tmp_path)["train"]).changed == {"text": why}
    said = run(tmp_path)
    assert said[0] == "1 of 4 steps are done already"
    steps = steps_of(tmp_path)
    assert (steps["data"].folder / "ref").read_bytes() == text
    assert (steps["train"].folder / "run" / "attempts").read_text() == "one\n"  # begun anew, not gone on
    assert steps["train"].folder.with_name(steps["train"].folder.name + ".before").is_dir()
    assert json.loads((steps["train"].folder / RECORD).read_bytes())["attempts"][0]["exit"] == 0
    assert set(states(tmp_path).values()) == {"done"}
    rewrite(corpus, b"a third text\n")
    run(tmp_path)  # what was kept before makes room
    assert set(states(tmp_path).values()) == {"done"}


def test_what_was_made_of_the_old_text_stays_known_after_a_stop(corpus: Path, tmp_path: Path) -> None:
    """The corpus has been read again, then the run ended: training and translation are still those of the old text."""
    run(tmp_path)
    rewrite(corpus, b"other text\n")
    run(tmp_path, ("data",))
    assert states(tmp_path) == {"data": "done", "other": "done", "train": "changed", "translate": "changed"}


def test_a_file_that_changes_between_two_readers(corpus: Path, tmp_path: Path) -> None:
    """One step has read the old text, another the new one: what needs both is not done."""
    steps = make_steps(tmp_path, {
        "one": {"run": ["copy"], "stdin": ["{root}/text"], "stdout": "x"},
        "two": {"run": ["copy", "again"], "stdin": ["{root}/text"], "stdout": "x"},
        "both": {"run": ["translate", "{one} {two}"], "stdout": "x"},
    })  # fmt: skip
    both = one(steps, "both")
    for need in both.needs:
        Execution([need], program=program(tmp_path), say=lambda _: None).run()
        rewrite(corpus, b"other text\n")
    records = [read_record(need).content["inputs"] for need in both.needs]
    assert inputs.changed(both, inputs.noted(both, records)) == {"text": "another size"}


def test_a_touched_corpus_is_the_same_and_an_old_one_is_not_opened(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    monkeypatch.setattr(inputs, "_digest", lambda *_: pytest.fail("opened"))
    assert set(states(tmp_path).values()) == {"done"}
    monkeypatch.undo()
    rewrite(corpus, corpus.read_bytes())
    assert set(states(tmp_path).values()) == {"done"}


def test_another_text_of_the_same_size_and_time_is_another_text(corpus: Path, tmp_path: Path) -> None:
    """`cp -p`, rsync and tar set the time of the modification."""
    run(tmp_path)
    before = corpus.stat()
    corpus.write_bytes(corpus.read_bytes().swapcase())
    os.utime(corpus, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = corpus.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert states(tmp_path) == {"data": "changed", "other": "done", "train": "changed", "translate": "changed"}


def test_a_corpus_that_is_gone_says_nothing(corpus: Path, tmp_path: Path) -> None:
    run(tmp_path)
    corpus.unlink()
    assert set(states(tmp_path).values()) == {"done"}


def test_a_record_of_before_is_judged_by_its_time(corpus: Path, tmp_path: Path) -> None:
    """A corpus that was last changed before the first step that reads it began is the one that was read."""
    old = corpus.stat().st_mtime_ns - 10**12
    os.utime(corpus, ns=(old, old))
    run(tmp_path)
    steps = steps_of(tmp_path)
    for step in steps.values():
        content = json.loads((step.folder / RECORD).read_bytes())
        del content["inputs"]
        (step.folder / RECORD).write_bytes(json.dumps(content).encode())
    assert set(states(tmp_path).values()) == {"done"}
    os.utime(corpus)
    assert states(tmp_path) == {"data": "changed", "other": "done", "train": "changed", "translate": "changed"}
    os.utime(corpus, ns=(old, old))
    (steps["data"].folder / RECORD).unlink()
    assert states(tmp_path) == {"data": "new", "other": "done", "train": "changed", "translate": "changed"}


def test_the_plan_says_what_has_changed_and_a_stopped_table_shows_no_old_number(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "recipes" / "a.yaml").write_bytes(RECIPE.encode())
    run(tmp_path)
    steps = make_steps(tmp_path, STEPS, **with_recipe())

    def plan_now() -> Any:
        return make_plan(steps, ["base"], [1])

    rewrite(corpus, b"other text\n")
    plan = plan_now()

    text = render(plan, {"": Speed(1e9, "as given")})
    assert "changed: text (other content): 3 steps will be repeated" in text
    assert "data 0/1" in text and "other 1/1" in text
    result = collect(steps, "table", [1], plan.chosen, plan.records, counted={})
    assert result.measured["", "base", "bleu"][1].missing == "made of data that has changed since"
    assert any("not repeated yet" in text for text in result.failures["", "base"])
    corpus.unlink()
    gone = render(plan_now(), {"": Speed(1e9, "as given")})
    assert f"missing under {tmp_path / 'root'}: text; the results of their steps are kept" in gone
    assert "changed:" not in gone


def test_what_a_failed_need_leaves_undone_stays_changed(corpus: Path, tmp_path: Path) -> None:
    run(tmp_path)
    rewrite(corpus, b"other text\n")
    steps = steps_of(tmp_path)
    execution = Execution(in_order([steps["translate"]]), program=["/no/such/program"], say=lambda _: None)
    execution.run()
    assert execution.records[steps["data"].identity].state == "failed"
    assert execution.records[steps["translate"].identity].state == "changed"


def test_a_need_that_has_another_result_repeats_what_was_made_of_it(corpus: Path, tmp_path: Path) -> None:
    """As after an update of the program: the text is made again, and its training and translation are not those of it."""
    run(tmp_path)
    steps = steps_of(tmp_path)
    (steps["data"].folder / "ref").unlink()
    (tmp_path / "program.py").write_text("raise SystemExit('killed')")
    failed = Execution(in_order([steps["translate"]]), program=[sys.executable, str(tmp_path / "program.py")], say=str)
    failed.run()
    assert [failed.records[steps[n].identity].state for n in ("data", "train", "translate")] == [
        "failed",
        "done",
        "done",
    ]
    ended: list[str] = []
    said = run(tmp_path, ended=ended)
    assert said[0] == "1 of 4 steps are done already"
    assert ended == ["other", "data", "train", "translate"]
    assert (steps["train"].folder / "run" / "attempts").read_text() == "one\n"
    assert not steps["train"].folder.with_name(steps["train"].folder.name + ".before").exists()  # the same text
    assert len(read_record(steps["translate"]).content["attempts"]) == 1
    record = json.loads((steps["data"].folder / RECORD).read_bytes())
    record["outputs"]["ref"]["sha256"] = "0" * 64
    (steps["data"].folder / RECORD).write_bytes(json.dumps(record).encode())
    assert states(tmp_path) == {"data": "done", "other": "done", "train": "changed", "translate": "done"}
    changed = read_record(steps["train"]).changed
    assert changed == {steps["data"].title: "repeated, with another result"}
    said = run(tmp_path)
    assert steps["train"].folder.with_name(steps["train"].folder.name + ".before").is_dir()  # it was begun again
    assert [line.split(":")[0] for line in said if "[" in line] == [
        f"[3/4] {steps['train'].title}"
    ]  # the same translation
    assert set(states(tmp_path).values()) == {"done"}


def test_a_record_without_needs_stays_done(corpus: Path, tmp_path: Path) -> None:
    run(tmp_path)
    path = steps_of(tmp_path)["train"].folder / RECORD
    record = json.loads(path.read_bytes())
    assert record.pop("needs").keys() == {steps_of(tmp_path)["data"].identity}
    path.write_bytes(json.dumps(record).encode())
    data = steps_of(tmp_path)["data"].folder / RECORD
    data.write_bytes(
        data.read_bytes().replace(json.loads(data.read_bytes())["outputs"]["ref"]["sha256"].encode(), b"0")
    )
    assert states(tmp_path)["train"] == "done"


def test_files_folders_and_stems_of_a_command_line(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("a.gz", "folder/b", "folder/deep/c", "set.mt.src.de", "set.mt.tgt.en", "set.mtx"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    steps = make_steps(tmp_path, {
        "data": {"each": "table", "run": ["write", "x", "{root}/set.mt"], "stdin": ["{root}/a.gz", "{root}/folder"]},
        "new": {"run": ["write", "[{source: {root}/a.gz, target: '{root}/not/there'}]", "{root}", "{data}/a.gz"]},
    })  # fmt: skip
    new = one(steps, "new")
    assert [name for name, _ in new.needs[0].reads] == [
        "a.gz", "folder/b", "folder/deep/c", "set.mt.src.de", "set.mt.tgt.en",
    ]  # fmt: skip
    assert [name for name, _ in new.reads] == ["a.gz", "not/there"]
    assert set(inputs.all_reads(new)) == {name for name, _ in (*new.reads, *new.needs[0].reads)}


def test_files_of_the_recipe_are_those_of_the_data_root_alone(tmp_path: Path) -> None:
    """With `--data-root {root}`, as `prepare` is called; what steps write is no corpus, and another root not ours."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "a.yaml").write_bytes(RECIPE.encode())
    line = ["prepare", "{recipes}/a.yaml", "--data-root", "{root}", "data.folder={here}/dataset"]
    steps = make_steps(tmp_path, {
        "data": {"run": ["write", "{here}/x", "x"]},
        "all": {"run": [*line, "data.valid=[{source: v.de, target: '{data}/x'}]"]},
        "own": {"run": [*line[:3], "{data}", *line[4:]]},
    })  # fmt: skip
    assert [name for name, _ in one(steps, "all").reads] == ["text.de", "text.en", "v.de"]
    assert one(steps, "own").reads == ()


def test_recipes_name_texts_trees_vectors_and_tables(tmp_path: Path) -> None:
    from phraseloom.recipe import load_recipe

    path = tmp_path / "a.yaml"
    path.write_bytes(RECIPE.encode())
    words = "data.subwords={kind: words, size: 9, vectors: text.vec}"
    table = "data.phrases={kind: table, file: phrases.txt}"
    trees = "data.phrases={kind: tree}"
    with_trees = "data.train=[{source: a, target: b, trees: c}]"
    assert list(inputs.recipe_files(load_recipe(path, [words, table]))) == [
        "text.de", "text.en", "text.vec", "phrases.txt",
    ]  # fmt: skip
    assert list(inputs.recipe_files(load_recipe(path, [with_trees, trees]))) == ["a", "b", "c"]


@pytest.mark.parametrize("root", ["{root}", "{data}"])
def test_steps_are_found_from_a_data_root_elsewhere(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`prepare` looks the names in its recipe up under the data root: what a step wrote has an absolute one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "a.yaml").write_bytes(RECIPE.encode())
    line = ["prepare", "{recipes}/a.yaml", "--data-root", root, "data.valid=[{source: '{data}/x', target: y}]"]
    table = make_table(tmp_path, table_data({"data": {"run": ["write", "{here}/x", "x"]}, "all": {"run": line}}))
    steps = Steps(table, "tiny", Path("made/steps"), Path("recipes"), "corpora")
    step = one(steps, "all")
    assert step.argv[-1] == f"data.valid=[{{source: '{tmp_path / step.needs[0].folder}/x', target: y}}]"
    read = ["text.de", "text.en", "y"] if root == "{root}" else []
    assert not step.folder.is_absolute() and [name for name, _ in step.reads] == read
    assert step.identity == one(Steps(table, "tiny", tmp_path / "else", Path("recipes"), "."), "all").identity


def test_all_rows_are_trained_with_one_seed_before_the_next(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "recipes" / "a.yaml").write_bytes(RECIPE.encode())
    train = {"run": [*STEPS["train"]["run"], "training.seed={seed}", "{overrides}"]}
    rows = with_recipe(new={"overrides": {"tiny": ["model.width=16"]}})

    plan = make_plan(make_steps(tmp_path, {**STEPS, "train": train}, **rows), None, [1, 2])

    order = [(step.place.row, step.place.seed) for step in plan.trainings]
    assert order == [("base", 1), ("new", 1), ("base", 2), ("new", 2)]
