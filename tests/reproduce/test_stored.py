"""Every table of docs/results can be checked by anybody: its sentences are the file that it names, and give its numbers.

Its claims are those of its present definition.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import CorruptError
from phraseloom.files import sha256_file
from phraseloom.metrics.seeds import two_sided
from phraseloom.reproduce.evidence import evidence_table
from phraseloom.reproduce.result import NOT_STORED
from phraseloom.reproduce.stored import judged_table, recompute
from phraseloom.reproduce.table import load_table
from phraseloom.reproduce.writing import definition

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
TABLES = sorted((ROOT / "docs" / "results").glob("*/*/table.json"))
WITH_SENTENCES = [path for path in TABLES if json.loads(path.read_bytes())["sentences"] is not None]


def name(path: Path) -> str:
    return "/".join(path.parent.parts[-2:])


def same(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


@pytest.mark.parametrize("path", WITH_SENTENCES, ids=name)
def test_a_table_names_the_sentences_beside_it(path: Path) -> None:
    entry = json.loads(path.read_bytes())["sentences"]
    assert sha256_file(path.parent / entry["file"]) == entry["sha256"]


@pytest.mark.parametrize("path", TABLES, ids=name)
def test_a_table_recomputed_is_the_same(path: Path, tmp_path: Path) -> None:
    """With the claims of today; so the stored page shows them."""
    folder = shutil.copytree(path.parent, tmp_path / "table")
    recompute(folder, RECIPES)
    before, after = (json.loads(p.read_bytes()) for p in (path, folder / "table.json"))
    assert same(before, after)
    assert (folder / "table.md").read_bytes() == path.with_name("table.md").read_bytes()


@pytest.mark.parametrize("path", TABLES, ids=name)
def test_a_table_states_the_claims_of_its_definition(path: Path) -> None:
    content = json.loads(path.read_bytes())
    current = load_table(RECIPES / "tables" / f"{content['table']}.yaml")
    claims = [claim for claim in current.claims if content["scale"] in claim.scales]
    assert content["definition"]["claims"] == definition(current)["claims"]
    assert [claim["says"] for claim in content["claims"]] == [claim.says for claim in claims]


def test_the_page_lists_the_tables_with_sentences() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_bytes().decode()
    listed = page.partition("have their sentences: ")[2].partition(".\n")[0]
    assert listed.split(", ") == [path.parent.name for path in WITH_SENTENCES]


FIGURES = {"1": 19.0, "2": 18.0, "3": 14.0}
PEAK = {"says": "it has its peak in the middle", "metric": "share", "less": ["a"], "labels": ["1", "3"]}
OLD = {"says": "the middle is above the top", "metric": "share", "more": ["a"], "labels": ["2"], "than_label": "3"}
BETTER = {"says": "a is better", "metric": "bleu", "more": ["a"], "than": ["base"]}
NEW_ROW = {"says": "b is better", "metric": "chrf", "more": ["b"], "than": ["base"]}


def small_table(*claims: dict[str, Any]) -> dict[str, Any]:
    bleu = {"kind": "bleu", "title": "BLEU", "hypotheses": "h", "reference": "r"}
    share = {"kind": "json", "title": "share", "file": "f", "at": "x", "label": "layer", "by_sentence": "y"}
    return {
        "format": 1,
        "paper": "A paper",
        "title": "A table",
        "metrics": {"bleu": bleu, "share": share},
        "baseline": "base",
        "rows": {row: {"label": row} for row in ("base", "a")},
        "claims": list(claims),
        "scales": {scale: {"not_done": "no"} for scale in ("tiny", "paper")} | {"small": {"says": "Two updates."}},
    }


def store(folder: Path, table: dict[str, Any], claims: list[dict[str, Any]]) -> Path:
    """A stored table of one seed, with intervals and without its sentences."""

    def row(name: str, bleu: float, against: dict[str, Any] | None) -> dict[str, Any]:
        metrics = {
            "bleu": {"seeds": {"1": bleu}, "missing": {}, "signature": "s", "against_baseline": against},
            "share": {"seeds": {"1": FIGURES}, "missing": {}, "signature": None, "against_baseline": None},
        }
        place = {"task": "", "row": name, "failures": [], "parameters": None, "run": {}}
        return {**place, "metrics": metrics}

    content = {
        "format": 2,
        "table": "009-table1",
        "scale": "small",
        "seeds": [1],
        "phraseloom": ["0.1.0"],
        "machine": {"processor": "p", "cores": 2, "python": "3.12", "threads": 1},
        "left_out": [],
        "definition": table,
        "rows": [row("base", 20.0, None), row("a", 22.0, interval(2.0))],
        "claims": claims,
        "sentences": None,
    }
    path = folder / "small" / "009-table1" / "table.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    return path


def interval(mean: float) -> dict[str, Any]:
    """As the first tables have it: without a standard error and p."""
    ends = {"mean": mean, "low": mean - 0.98, "high": mean + 0.98, "p": None, "standard_error": None, "freedom": None}
    return {**ends, "deviations": [], "one_seed": True, "exact": False, "how": "one seed"}


def judged(claim: dict[str, Any], says: str, mean: float) -> dict[str, Any]:
    comparison = {"says": says, "difference": interval(mean), "p": None, "agrees": True}
    return {"says": claim["says"], "verdict": "a lie", "reason": "", "p": None, "comparisons": [comparison]}


def test_a_claim_that_has_changed_is_judged_as_it_reads_now(tmp_path: Path) -> None:
    stored = [judged(BETTER, "a > base", 2.0), judged(OLD, "a [2] > [3]", 4.0)]
    path = store(tmp_path / "made", small_table(BETTER, OLD), stored)
    now = small_table(BETTER, {**PEAK, "than_label": "2"}, NEW_ROW)
    now["rows"]["b"] = {"label": "b"}
    now["metrics"]["chrf"] = {**now["metrics"]["bleu"], "kind": "chrf", "title": "chrF2"}
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "009-table1.yaml").write_text(json.dumps(now))
    content = judged_table(path, tmp_path)
    better, peak, new_row = content["claims"]
    assert better["verdict"] == "between these two runs: yes"
    assert better["comparisons"][0]["difference"]["standard_error"] == pytest.approx(0.5, rel=1e-3)
    assert better["p"] == pytest.approx(two_sided(4.0, None), rel=1e-2)
    assert (peak["verdict"], peak["reason"]) == ("in this run: undecided", NOT_STORED)
    first, last = (c["difference"] for c in peak["comparisons"])
    assert (first["mean"], first["low"], first["high"]) == (1.0, None, None) and last["mean"] == -4.0
    assert new_row["verdict"] == "not measured"
    text = evidence_table(tmp_path / "made", recipes=tmp_path)
    assert "it has its peak in the middle" in text and "the middle is above the top" not in text
    assert "+1.00 (no interval)" in text
    recompute(path.parent, tmp_path)
    again = json.loads(path.read_bytes())
    assert same(again["claims"], json.loads(json.dumps(content["claims"])))
    assert (
        "b: not run at this scale: the row was added to the table after it was run"
        in path.with_name("table.md").read_text()
    )
    assert judged_table(path, tmp_path) == again  # nothing to judge again


def test_a_metric_and_a_shared_row_that_the_definition_has_gained(tmp_path: Path) -> None:
    """Without a claim about them; the stored table has no number of either."""
    path = store(tmp_path / "made", small_table(BETTER), [judged(BETTER, "a > base", 2.0)])
    now = small_table(BETTER)
    now["metrics"]["chrf"] = {**now["metrics"]["bleu"], "kind": "chrf", "title": "chrF2"}
    now["rows"] |= {"b": {"label": "b"}, "a": {"label": "a", "paper": {"bleu": 30.0, "chrf": 50.0}, "shares": "b"}}
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "009-table1.yaml").write_text(json.dumps(now))
    content = judged_table(path, tmp_path)
    assert [row["row"] for row in content["rows"]] == ["base", "a", "b"]
    now["rows"] |= {"c": {"label": "c"}, "d": {"label": "d", "shares": "c"}}  # nothing stored needs these
    (tmp_path / "tables" / "009-table1.yaml").write_text(json.dumps(now))
    assert [row["row"] for row in judged_table(path, tmp_path)["rows"]] == ["base", "a", "b"]
    assert content["rows"][1]["paper"] == {"bleu": 30.0, "chrf": 50.0}
    assert "chrf" not in content["rows"][1]["metrics"]


@pytest.mark.parametrize("damage", [{"definition": {"rows": None}}, {"table": []}])
def test_a_damaged_table_is_named(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = store(tmp_path / "made", small_table(BETTER), [judged(BETTER, "a > base", 2.0)])
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "009-table1.yaml").write_text(json.dumps(small_table(BETTER)))
    path.write_text(json.dumps(json.loads(path.read_bytes()) | damage))
    with pytest.raises(CorruptError) as caught:
        evidence_table(tmp_path / "made", recipes=tmp_path)
    assert caught.value.file == path


def test_what_a_definition_no_longer_says_is_gone(tmp_path: Path) -> None:
    """A floor, a row with the models of another and a number of the paper; whether there are sentences stays."""
    stored = small_table(BETTER)
    stored["floor"] = {"metric": "bleu", "at_least": {"small": 30}}
    stored["rows"]["a"] |= {"shares": "base", "paper": {"bleu": 25.0}}
    path = store(tmp_path / "made", stored, [judged(BETTER, "a > base", 2.0)])
    (tmp_path / "tables").mkdir()
    current = tmp_path / "tables" / "009-table1.yaml"
    current.write_text(json.dumps(small_table(BETTER)))
    content = judged_table(path, tmp_path)
    assert content["claims"][0]["verdict"] == "between these two runs: yes"
    assert "floor" not in content["definition"] and content["definition"]["rows"]["a"].keys() == {"label"}
    assert content["sentences"] is None
    again = {**stored, "rows": {**stored["rows"], "a": {**stored["rows"]["a"], "paper": {"bleu": 26.0}}}}
    current.write_text(json.dumps(again))
    assert judged_table(path, tmp_path)["definition"]["rows"]["a"]["paper"] == {"bleu": 26.0}


def test_a_table_that_is_judged_again_keeps_its_sentences(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "docs/results/tiny/003-table4", tmp_path / "tiny" / "003-table4")
    current = definition(load_table(RECIPES / "tables" / "003-table4.yaml"))
    current["claims"][0]["says"] += " (worded anew)"
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "003-table4.yaml").write_text(json.dumps(current))
    content = judged_table(folder / "table.json", tmp_path)
    assert content["claims"][0]["says"].endswith(" (worded anew)")
    assert content["sentences"] == json.loads((folder / "table.json").read_bytes())["sentences"] is not None


def test_a_number_that_is_missing_beside_its_sentences_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "docs/results/tiny/003-table4", tmp_path / "table")
    content = json.loads((folder / "table.json").read_bytes())
    sentences = {row["row"]: row["metrics"] for row in content["rows"]}
    entry = next(entry for metrics in sentences.values() for entry in metrics.values() if entry["seeds"].get("1"))
    entry["seeds"]["1"] = None
    (folder / "table.json").write_text(json.dumps(content))
    with pytest.raises(CorruptError, match="the table says nothing"):
        recompute(folder)


def test_without_its_definition_a_table_keeps_its_claims(tmp_path: Path) -> None:
    path = store(tmp_path / "made", small_table(BETTER), [judged(BETTER, "a > base", 2.0)])
    for recipes in (None, tmp_path):
        assert judged_table(path, recipes)["claims"][0]["verdict"] == "a lie"
    assert recompute(path.parent, tmp_path).judged[0].verdict == "between these two runs: yes"
