"""`phraseloom analyse phenomena`: tables and JSON of a small world, and what a user can get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phraseloom.world.writer import write_world

from .conftest import Command


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world") / "out"
    write_world(out, seed=3, train=200, valid=20, test=40, challenge=10, contrastive=11)
    gold = (out / "test.de").read_bytes()
    (out.parent / "gold.de").write_bytes(gold)
    (out.parent / "half.de").write_bytes(b"".join(gold.splitlines(True)[:20]) + b"nichts .\n" * 20)
    (out.parent / "short.de").write_bytes(b"eins\nzwei\n")
    return out


def test_the_table(world: Path, command: Command) -> None:
    done = command(
        "analyse", "phenomena", world, world.parent / "half.de", world.parent / "gold.de", "--bootstrap", "20"
    )
    assert done.code == 0
    assert "analyse: warning: idiom: intervals and p of 3 sentences are too small to mean anything" in done.err
    first, _, *rows = done.out.splitlines()
    words = "phenomenon instances system right % 95 % sentences exact % difference 95 % won:lost p"
    assert " ".join(first.split()) == words
    kinds = [row.split()[0] for row in rows[::2]]
    assert {"idiom", "compound", "separable", "gender"} <= set(kinds) and kinds[-1] == "sentence"
    sentence = rows[-2].split() + rows[-1].split()
    assert (
        sentence[1] == "40"
        and "50.0" in sentence
        and "+50.0" in sentence
        and "20:0" in sentence
        and "<0.0001" in sentence
    )


def test_one_system_needs_no_comparison(world: Path, command: Command) -> None:
    done = command(
        "analyse", "phenomena", world, world.parent / "gold.de", "--output", "markdown", "--by-frequency", "1,3"
    )
    assert done.code == 0 and done.out.startswith("| phenomenon")
    assert "difference" not in done.out and "compound, 3+× in training" in done.out
    assert done.out.count("100.0") > 10


def test_json_holds_everything(world: Path, command: Command) -> None:
    files = world.parent / "half.de", world.parent / "gold.de"
    done = command("analyse", "phenomena", world, *files, "--output", "json", "--bootstrap", "20")
    report = json.loads(done.out)
    assert (report["split"], report["sentences"], report["bootstrap"], report["seed"]) == ("test", 40, 20, 12345)
    last = report["phenomena"][-1]
    assert last["phenomenon"] == "sentence" and [s["system"] for s in last["systems"]] == [str(f) for f in files]
    assert set(last["systems"][1]) == {
        "system", "correct", "accuracy", "interval", "exact_sentences", "difference", "won", "lost", "p", "difference_interval"
    }  # fmt: skip


def test_what_a_user_can_get_wrong(world: Path, command: Command, tmp_path: Path) -> None:
    gold, short = world.parent / "gold.de", world.parent / "short.de"
    for arguments, code, message in (
        ([tmp_path, gold], 1, "not a world folder"),
        ([tmp_path / "none", gold], 1, "no such folder"),
        ([gold, gold], 1, "world folder expected, but this is a file"),
        ([world, short], 1, "short.de has 2 lines, but the world has 40"),
        ([world, tmp_path / "none.de"], 1, "translation not found"),
        ([world, tmp_path], 1, "this is a folder"),
        ([world, gold, gold], 2, "given twice"),
        ([world, gold, "--split", "tests"], 2, "no split 'tests'"),
        ([world, gold, "--by-frequency", "5,1"], 2, "not a rising list"),
        ([world, gold, "--output", "xml"], 2, "xml"),
        ([world, gold, "--bootstrap", "0"], 2, "bootstrap"),
    ):
        done = command("analyse", "phenomena", *arguments)
        assert done.code == code, (arguments, done)
        assert done.is_one_line_of("analyse"), done.err
        assert message in done.err, done.err
