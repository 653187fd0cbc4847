"""The count of judgements: shares, accuracies, tests, and the table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from phraseloom import results
from phraseloom.metrics.ratio import mcnemar, wilson
from phraseloom.phrases.sample import JudgedPhrase, Sheet
from phraseloom.report.phrase_sample import render, tally
from phraseloom.reproduce.measure import Meter
from phraseloom.reproduce.steps import Steps, StepScope
from phraseloom.reproduce.table import load_table

PLACES = ["found in reference", "found by base"]
KINDS = ("exact", "scattered", "partly", "absent")
# A sample with the counts of Table 6: category, phrases, correct in the first system, in the other.
TABLE_6 = [("CN", 16, 10, 4), ("VP", 28, 14, 16), ("CO", 56, 40, 30)]


def sheet(*systems: str) -> Sheet:
    rows = []
    for category, number, new, base in TABLE_6:
        for i in range(number):
            found = ["exact" if i < new else "partly", KINDS[i % 4]]
            rows.append(JudgedPhrase(len(rows) + 1, 1, "a b", category, [i < new, i >= number - base], found))
    rows.append(JudgedPhrase(101, 1, "a b", None, None, ["absent", "exact"]))
    names = list(systems or ("new", "base"))
    return Sheet(names, [PLACES[0], f"found by {names[1]}"], rows)


def test_the_numbers_of_the_paper() -> None:
    found = tally(sheet())
    assert (found.systems, found.phrases, found.judged) == (["new", "base"], 101, 100)
    rounded = [
        (c.category, c.phrases, c.share, *(round(s.accuracy or 0, 2) for s in c.scores)) for c in found.categories
    ]
    assert rounded == [
        ("CN", 16, 0.16, 0.62, 0.25),
        ("VP", 28, 0.28, 0.5, 0.57),
        ("CO", 56, 0.56, 0.71, 0.54),
        ("all", 100, 1.0, 0.64, 0.5),
    ]
    scores = found.categories[0].scores
    low, high = wilson(10, 16)
    assert scores[0].model_dump() == {"system": "new", "correct": 10, "accuracy": 0.625, "low": low, "high": high}
    # of 16, new has the first 10 right, base the last 4; of 28 they share 2, of 56 14
    tests = [c.first_against[0] for c in found.categories]
    assert [(t.won, t.lost) for t in tests] == [(10, 4), (12, 14), (26, 16), (48, 34)]
    assert tests[3].p == mcnemar(48, 34)
    assert tests[3].difference == pytest.approx(0.14)
    assert json.loads(results.line(found)) == found.as_json()


def test_where_phrases_were_found() -> None:
    reference, base = tally(sheet()).found
    assert (reference.place, reference.system) == ("found in reference", "new")
    counts = [(k.kind, k.phrases, k.judged, k.correct) for k in reference.kinds]
    assert counts == [("exact", 64, 64, 64), ("scattered", 0, 0, 0), ("partly", 36, 36, 0), ("absent", 1, 0, 0)]
    assert (base.place, base.system) == ("found by base", "base")
    assert [k.phrases for k in base.kinds] == [26, 25, 25, 25]
    assert sum(k.judged for k in base.kinds) == 100
    assert sum(k.correct for k in base.kinds) == 50


def test_the_text() -> None:
    text = render(tally(sheet()))
    assert text.startswith("100 of 101 phrases judged, 1 open\n\n") and text.endswith("\n")
    (row,) = re.findall(r"^all .*$", text, re.MULTILINE)
    assert row.split()[:8] == ["all", "100", "100%", "0.64", "0.54", "…", "0.73", "0.50"]
    assert row.split()[8:] == ["0.40", "…", "0.60", f"{mcnemar(48, 34):.3f}"]
    assert "p new / base" in text and "64 of 64 correct" in text and "other" not in text


def test_the_page_shows_this(root: Path) -> None:
    """docs/phrases.md has lines of the table for the counts of Table 6."""
    page = (root / "docs" / "phrases.md").read_bytes().decode()
    block = page.partition("For made-up judgements with the counts of Table 6:\n\n")[2].partition("\n\nThe second")[0]
    shown = [line.removeprefix("    ") for line in block.split("\n") if line.strip() not in ("", "…")]
    found = render(tally(sheet("PCoNMT", "CoNMT"))).split("\n")
    assert len(shown) > 8
    assert [line for line in found if line in shown] == shown


def test_a_category_without_phrases_and_one_more() -> None:
    rows = [JudgedPhrase(1, 1, "a b", "other", [True], ["exact"]), JudgedPhrase(2, 1, "a b", "VP", [False], ["absent"])]
    found = tally(Sheet(["new"], PLACES[:1], rows))
    assert [(c.category, c.phrases, c.scores[0].accuracy) for c in found.categories] == [
        ("CN", 0, None), ("VP", 1, 0.0), ("CO", 0, None), ("other", 1, 1.0), ("all", 2, 0.5),
    ]  # fmt: skip
    text = render(found)
    assert "McNemar" not in text
    assert re.search(r"^CO \(collocation\) +0 +0%$", text, re.MULTILINE)


def test_nothing_judged_yet() -> None:
    found = tally(Sheet(["new", "base"], PLACES, [JudgedPhrase(1, 1, "a b", None, None, ["exact", "partly"])]))
    assert results.line(found)
    text = render(found)
    assert text.startswith(
        "0 of 1 phrase judged, 1 open\n\nthe words of the phrase  found in reference  found by base\n"
    )
    assert "judged new" not in text


def test_a_system_whose_column_was_deleted() -> None:
    rows = [JudgedPhrase(1, 1, "a b", "CN", [True], ["exact", "partly"])]
    found = tally(Sheet(["new"], PLACES, rows))
    assert [k.judged for k in found.found[1].kinds] == [0, 0, 0, 0]
    assert [k.phrases for k in found.found[1].kinds] == [0, 0, 1, 0]
    assert render(found)


def test_the_table_of_reproduce_reads_judgements_and_counts(tmp_path: Path) -> None:
    recipes = Path(__file__).resolve().parents[2] / "recipes"
    table = load_table(recipes / "tables" / "003-table6.yaml")
    steps = Steps(table, "small", tmp_path / "steps", recipes, str(tmp_path))
    meter, rows = Meter(steps), {row: StepScope("", row, 1) for row in table.rows}
    counts = tally(sheet("pconmt", "conmt"))
    results.write(steps.step("tally", rows["pconmt"]).folder / "counts.json", counts)
    found = {key: meter.measure(table.metrics[key], rows["pconmt"]).value for key in ("reference", "conmt_too")}
    assert found == {"reference": 64, "conmt_too": 26}
    judged = ("right", "nouns", "verbs", "collocations", "share")
    before = meter.measure(table.metrics["right"], rows["conmt"])
    assert before.value is None and "003-table6.small.seed1.json" in before.missing
    results.write(tmp_path / "judged" / "003-table6.small.seed1.json", counts)
    for row, place in rows.items():
        for key in judged if row == "pconmt" else judged[:-1]:
            value, told = meter.measure(table.metrics[key], place).value, table.rows[row].paper[key]
            assert value == pytest.approx(told, abs=0.6), (row, key)
