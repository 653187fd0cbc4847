"""`phraseloom analyse contrastive`: tables, files, pictures, trees, and what a user can get wrong."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.data import TreeSegmenterConfig
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.source import build_segmenter

SIZES = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 1}, "tied": "none"}
DOCUMENTED = Path(__file__).parents[2] / "docs" / "analysis.md"
NO_PLOT = importlib.util.find_spec("matplotlib") is None


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the untrained models `a`, `b` (tokens only) and `t` (phrases of trees)."""
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    folder = tmp_path_factory.mktemp("models")
    trees = build_segmenter(TreeSegmenterConfig(max_tokens=3, min_chunks=2, floor=1), folder)
    size = len(tokenizer.source.vocabulary)
    for seed, name in enumerate("abt"):
        torch.manual_seed(seed)
        phrases: dict[str, Any] = {"phrases": {"segments": {"kind": "dataset"}}} if name == "t" else {}
        config = ModelConfig.model_validate({**SIZES, **phrases})
        built = build_model(config, size, size)
        segmenter = trees if name == "t" else None
        save_model(folder / name, built, config, tokenizer, languages=("en", "de"), segmenter=segmenter)
    return folder


@pytest.fixture
def items(tmp_path: Path) -> str:
    """24 items of two categories, 12 with distances, in `i.jsonl`; the sources are LINES."""
    rows = []
    for n in range(24):
        correct = LINES[n % 4]
        row = {"source": LINES[n // 6], "correct": correct, "wrong": correct.replace("o", "a", 1) + " b" * (n % 3)}
        rows.append({**row, **({"phenomenon": "x", "distance": n} if n % 2 else {"category": "y"})})
    (tmp_path / "i.jsonl").write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode())
    return "i.jsonl"


def test_the_table(command: Command, models: Path, items: str) -> None:
    done = command("analyse", "contrastive", models / "a", models / "b", "--items", items, "--bins", "1-3,9")
    assert done.code == 0, done.err
    header, _, *rows = done.out.splitlines()
    words = "category distance items system right % 95 % difference won:lost p"
    assert " ".join(header.split()) == words
    firsts = [row.split()[:3] for row in rows[::2]]
    assert firsts == [
        ["all", "all", "24"], ["y", "all", "12"], ["x", "all", "12"],
        ["x", "0–1", "1"], ["x", "3", "1"], ["x", "4–9", "3"], ["x", ">9", "7"],
    ]  # fmt: skip
    assert all(str(models / "b") in row and ":" in row for row in rows[1::2])
    one = command("analyse", "contrastive", models / "a", "--items", items, "--output", "markdown")
    assert one.out.startswith("| category | distance |") and "difference" not in one.out


def test_scores_are_those_of_score(command: Command, models: Path, items: str, tmp_path: Path) -> None:
    flags = ["--items", items, "--scores", "out/s.tsv", "--output", "json"]
    done = command("analyse", "contrastive", models / "a", models / "b", *flags)
    assert done.code == 0, done.err
    header, *rows = [line.split("\t") for line in (tmp_path / "out" / "s.tsv").read_bytes().decode().split("\n")[:-1]]
    assert " ".join(header) == "model file line category distance log_prob_correct log_prob_wrong right"
    assert len(rows) == 48 and rows[0][:5] == [str(models / "a"), items, "1", "y", ""] and rows[25][3:5] == ["x", "1"]
    report = json.loads(done.out)
    assert (report["items"], report["distance"], report["cropped"]) == (24, "given", {r[0]: 0 for r in rows})
    wanted = [json.loads(line) for line in (tmp_path / items).read_bytes().decode().split("\n")[:-1]]
    for number, model in enumerate("ab"):
        mine = rows[24 * number : 24 * number + 24]
        for side, column in (("correct", 5), ("wrong", 6)):
            pairs = "".join(f"{row['source']}\t{row[side]}\n" for row in wanted)
            values = command("score", models / model, stdin=pairs.encode()).out.split()
            assert [float(row[column]) for row in mine] == pytest.approx([float(v) for v in values], abs=1e-5)
        right = [row[7] == "1" for row in mine]
        assert right == [float(row[5]) > float(row[6]) for row in mine]
        assert report["groups"][0]["systems"][number]["correct"] == sum(right)


def test_the_three_forms_are_the_same_items(command: Command, models: Path, items: str, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (tmp_path / items).read_bytes().decode().split("\n")[:-1]]
    for name, key in (("z.src.en", "source"), ("z.tgt.correct.de", "correct"), ("z.tgt.incorrect.de", "wrong")):
        (tmp_path / name).write_bytes("".join(row[key] + "\n" for row in rows).encode())
    distances = "".join(f"{row.get('distance', '')}\n" for row in rows)
    (tmp_path / "d").write_bytes(distances.encode())
    common = ("analyse", "contrastive", models / "a", "--output", "json")
    three = ("--source", "z.src.en", "--correct", "z.tgt.correct.de", "--wrong", "z.tgt.incorrect.de")
    of_items = json.loads(command(*common, "--items", items).out)
    of_set = json.loads(command(*common, "--set", "z").out)
    of_three = json.loads(command(*common, *three, "--distances", "d", "--category", "n").out)
    assert of_items["groups"][0] == of_set["groups"][0] == of_three["groups"][0]
    assert of_set["distance"] is None and len(of_set["groups"]) == 1
    assert {g["category"] for g in of_three["groups"][1:]} == {"n"} and len(of_three["groups"]) == 1 + 8 + 1
    estimated = json.loads(command(*common, "--set", "z", "--estimate-distance", "position").out)
    assert estimated["distance"] == "position" and len(estimated["groups"]) > 1
    table = command("analyse", "contrastive", models / "a", "--set", "z", "--estimate-distance", "position").out
    assert "distance (estimate: position)" in table
    twice = json.loads(command(*common, "--set", "z", "--set", "./z").out)
    assert twice["items"] == 48


def test_what_is_not_as_it_should_be_is_said(command: Command, models: Path, tmp_path: Path) -> None:
    rows = [("", "a", "b"), (LINES[1], "we ☃", "we ☄"), (LINES[1], "we", "them")]
    values = [dict(zip(("source", "correct", "wrong"), row, strict=True)) for row in rows]
    (tmp_path / "i").write_bytes("".join(json.dumps(value) + "\n" for value in values).encode())
    shutil.copytree(models / "a", tmp_path / "m")
    done = command("analyse", "contrastive", "m", "--items", "i", "--output", "json")
    assert done.code == 0
    assert done.err.split("\n")[:-1] == [
        "phraseloom analyse: warning: 1 items have a blank text, the first is line 1 of i",
        "phraseloom analyse: warning: m: 1 items are not distinguishable, both translations being the same subwords: "
        "counted as wrong",
    ]
    assert json.loads(done.out)["groups"][0]["systems"][0]["indistinguishable"] == 1
    long = {"source": "cow " * 2000, "correct": "we", "wrong": "them"}
    (tmp_path / "i").write_bytes(json.dumps(long).encode())
    done = command("analyse", "contrastive", "m", "--items", "i")
    assert done.code == 0 and "m: 1 items have texts of more than" in done.err and "cropped" in done.err


@pytest.mark.skipif(NO_PLOT, reason="needs matplotlib")
def test_pictures(command: Command, models: Path, items: str, tmp_path: Path) -> None:
    done = command("analyse", "contrastive", models / "a", models / "b", "--items", items, "--plot", "p.svg")
    assert done.code == 0 and not done.err
    assert b">a<" in (tmp_path / "p.svg").read_bytes()


def test_models_that_read_trees(command: Command, models: Path, items: str, tmp_path: Path) -> None:
    brackets = [" ".join(f"(X {word})" for word in line.split()) for line in LINES]
    lines = [f"(S {brackets[n // 6]})" for n in range(24)]
    (tmp_path / "trees").write_bytes("".join(line + "\n" for line in lines).encode())
    flags = ["--items", items, "--trees", "trees", "--output", "json"]
    both = command("analyse", "contrastive", models / "a", models / "t", *flags)
    assert both.code == 0 and not both.err, both.err
    alone = command("analyse", "contrastive", models / "a", "--items", items, "--output", "json")
    assert json.loads(both.out)["groups"][0]["systems"][0] == json.loads(alone.out)["groups"][0]["systems"][0]
    without = command("analyse", "contrastive", models / "a", models / "t", "--items", items)
    assert without.code == 2 and without.is_one_line_of("analyse") and "--trees" in without.err
    unused = command("analyse", "contrastive", models / "a", *flags)
    assert unused.code == 0 and "--trees has no effect" in unused.err
    lines[6] = "(())"
    (tmp_path / "trees").write_bytes("".join(line + "\n" for line in lines).encode())
    flat = command("analyse", "contrastive", models / "t", *flags)
    assert flat.code == 0 and "warning: 1 items have no tree: all words are children of the root" in flat.err
    lines[6], lines[8] = lines[7], lines[0]
    (tmp_path / "trees").write_bytes("".join(line + "\n" for line in lines).encode())
    wrong = command("analyse", "contrastive", models / "t", *flags)
    assert wrong.code == 1 and "trees:9: " in wrong.err and wrong.is_one_line_of("analyse"), wrong.err


def test_what_a_user_can_get_wrong(command: Command, models: Path, items: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b'{"source": "a"}\n')
    (tmp_path / "two").write_bytes(b"a\nb\n")
    (tmp_path / "one").write_bytes(b"a\n")
    three = ["--source", "two", "--correct", "two", "--wrong", "two"]
    for flags, code, message in (
        ([], 2, "no items; give --items, or --set, or --lingeval, or --source"),
        (["--items", items, *three], 2, "--items and --source together"),
        (["--items", items, "--set", "z"], 2, "--items and --set together"),
        (["--source", "two", "--wrong", "two"], 2, "--source without --correct"),
        (["--items", items, "--distances", "two"], 2, "--distances goes with --source, not with --items"),
        (["--set", "z", "--category", "x"], 2, "--category goes with --source, not with --set"),
        ([*three, "--distances", "one"], 1, "one: 1 line"),
        ([*three, "--distances", "two"], 1, 'two:1: distance "a"'),
        (["--source", "two", "--correct", "one", "--wrong", "two"], 1, "one: 1 line"),
        (["--items", "bad"], 1, "bad:1: no 'correct'"),
        (["--items", "none"], 1, "none: text file not found"),
        (["--set", "z"], 1, "no file z.src.*"),
        (["--items", items, "--trees", "two", "--trees", "two"], 2, "2 files of trees for 1 of items"),
        (["--items", items, "--trees", "two"], 1, "two: 2 lines"),
        (["--items", items, "--estimate-distance", "position"], 2, "the items have distances"),
        (["--items", items, "--estimate-distance", "guess"], 2, "guess"),
        (["--items", items, "--bins", "5,1"], 2, "--bins 5,1"),
        (["--items", items, "--bins", "-1"], 2, "--bins"),
        (["--items", items, "--bins", "0-999999999"], 2, "--bins"),
        (["--items", items, "--bins", ""], 2, "--bins"),
        (["--items", items, "--scores", "."], 1, "this is a folder"),
        (["--items", items, "--workers", "many"], 2, "many"),
    ):
        done = command("analyse", "contrastive", models / "a", *flags)
        assert done.code == code, (flags, done)
        assert done.is_one_line_of("analyse"), done.err
        assert message in done.err, done.err
    twice = command("analyse", "contrastive", models / "a", models / "a", "--items", items)
    assert twice.code == 2 and "given twice" in twice.err


@pytest.mark.skipif(NO_PLOT, reason="needs matplotlib")
def test_pictures_that_cannot_be_drawn_are_refused_before_the_work(command: Command, models: Path, items: str) -> None:
    for plot, message in (("p.jpg", ".png, .svg or .pdf"), (".", "this is a folder")):
        done = command("analyse", "contrastive", "no-model", "--items", items, "--plot", plot)
        assert done.is_one_line_of("analyse") and message in done.err, done.err
    Path("two").write_bytes(b"a\n")
    three = ["--source", "two", "--correct", "two", "--wrong", "two"]
    done = command("analyse", "contrastive", "no-model", *three, "--plot", "p.png")
    assert done.code == 2 and "no item has one; --distances" in done.err
    keys = {"source": "a", "correct": "b", "wrong": "c", "distance": 1}
    many = [json.dumps({**keys, "category": f"c{n}"}) + "\n" for n in range(13)]
    Path("many.jsonl").write_text("".join(many))
    done = command("analyse", "contrastive", "no-model", "--items", "many.jsonl", "--plot", "p.png")
    assert done.code == 2 and "13 categories have distances, a picture holds 12; give the items of fewer" in done.err


def test_lingeval97_by_distance(command: Command, models: Path, tmp_path: Path) -> None:
    errors = [{"type": "subj_verb_agreement", "contrastive": f"{LINES[1]} a", "distance": d} for d in (1, 1, 40)]
    errors.append({"type": "compound", "contrastive": LINES[2]})
    entry = {"source": LINES[0], "reference": LINES[1], "origin": "x", "errors": errors}
    (tmp_path / "l.json").write_text(json.dumps([entry]))
    asked = ("analyse", "contrastive", models / "a", "--lingeval", "l.json")
    done = command(*asked, "--category", "subj_verb_agreement", "--output", "json")
    assert done.code == 0, done.err
    groups = json.loads(done.out)["groups"]
    assert [(g["category"], g["distance"], g["items"]) for g in groups] == [
        (None, None, 3), ("subj_verb_agreement", "1", 2), ("subj_verb_agreement", ">15", 1),
    ]  # fmt: skip
    assert json.loads(command(*asked, "--output", "json").out)["items"] == 4
    both = command(*asked, "--items", "l.json")
    assert both.code == 2 and "--items and --lingeval together" in both.err


def test_the_documented_costs_are_one_of_each_reference_and_one_of_each_error(
    command: Command, models: Path, tmp_path: Path
) -> None:
    errors = [{"type": "t", "contrastive": f"{LINES[1]} {n}"} for n in "abc"]
    entries = [{"source": LINES[0], "reference": LINES[1], "errors": e} for e in (errors[:2], errors[2:])]
    (tmp_path / "l.json").write_text(json.dumps(entries))
    asked = ("analyse", "contrastive", models / "a", "--lingeval", "l.json", "--scores", "s.tsv", "--output", "json")
    assert command(*asked).code == 0
    rows = [line.split("\t") for line in (tmp_path / "s.tsv").read_text().splitlines()[1:]]
    (right, wrong), text = zip(*((-float(r[5]), -float(r[6])) for r in rows), strict=True), DOCUMENTED.read_text()
    (program,) = re.findall(r"awk -F '\\t' '(.*)' scores.tsv", text)
    program = program.replace("runs/base", rows[0][0])
    printed = subprocess.run(
        ["awk", "-F", "\t", program, "s.tsv"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    costs = [float(line) for line in printed.stdout.split()]
    assert costs == pytest.approx([right[0], wrong[0], wrong[1], right[2], wrong[2]], abs=1e-6)
