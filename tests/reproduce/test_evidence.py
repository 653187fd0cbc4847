"""The evidence table: a row per measured claim, the weakest comparison, the paper's difference, and the page that holds it."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from phraseloom.errors import CorruptError, PhraseloomError, UsageError
from phraseloom.metrics.seeds import quantile
from phraseloom.reproduce.evidence import BEGIN, END, evidence_table, write_evidence
from phraseloom.reproduce.sentences import read_sentences

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "docs" / "results"
HERE = "small/009-table1"


def difference(mean: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean - 1, "high": mean + 1, "exact": False}


def comparison(says: str, mean: float | None) -> dict[str, Any]:
    return {"says": says, "difference": None if mean is None else difference(mean)}


def table(*comparisons: dict[str, Any], verdict: str = "held", claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """A stored table of three rows and one claim; the paper has 20, 22 and 25."""
    claim = claim or {"says": "new is better", "where": "§5", "metric": "bleu", "more": ["a", "b"], "than": ["base"]}
    metric = {"kind": "bleu", "title": "BLEU", "hypotheses": "h", "reference": "r"}
    paper = {"base": 20.0, "a": 22.0, "b": 25.0}
    return {
        "format": 2,
        "table": "009-table1",
        "scale": "small",
        "seeds": [1, 2],
        "definition": {
            "format": 1,
            "paper": "A paper",
            "title": "A table",
            "metrics": {"bleu": metric},
            "rows": {name: {"label": name, "paper": {"bleu": bleu}} for name, bleu in paper.items()},
            "claims": [claim],
            "scales": {"tiny": {"not_done": "no"}, "small": {"says": "Two\n  updates."}, "paper": {"not_done": "no"}},
        },
        "rows": [{"row": name, "run": {"1": {"updates": 5}, "2": {"updates": 6}}} for name in paper],
        "claims": [
            {"says": "new is better", "verdict": verdict, "reason": "", "p_holm": 0.004, "comparisons": comparisons}
        ],
    }


def store(folder: Path, content: Any, place: str = HERE) -> Path:
    path = folder / place / "table.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(content).encode())
    return path


def cells(text: str) -> list[list[str]]:
    """The cells of each row of the table, which begins with its headers and a rule."""
    lines = [line[2:-2].split(" | ") for line in text.split("\n") if line.startswith("| ")]
    return [line for line in lines[1:] if line[0] != "---"]


BETTER = (comparison("b > base", 3.5), comparison("a > base", 1.25))


def test_a_claim_shows_its_weakest_comparison_beside_that_of_the_paper(tmp_path: Path) -> None:
    store(tmp_path, table(*BETTER))
    ((claim, compared, paper, here, seeds, budget, p, verdict),) = cells(evidence_table(tmp_path, tmp_path))
    assert claim == "new is better, §5 ([009-table1](small/009-table1/table.md))"
    assert compared == "BLEU: a > base (weakest of 2)"
    assert (paper, here) == ("+2.00", "+1.25 (+0.25 … +2.25)")
    assert (seeds, budget, p, verdict) == ("2", "5 to 6 updates (a)", "0.004", "held (exploration)")
    assert "\n* (a) Two updates.\n" in evidence_table(tmp_path)


def test_seeds_are_those_that_were_compared(tmp_path: Path) -> None:
    """A run without a score is none of a comparison."""
    found = table(*BETTER)
    for one in found["claims"][0]["comparisons"]:
        one["difference"] = {**one["difference"], "seeds": 1}
    store(tmp_path, found)
    assert cells(evidence_table(tmp_path))[0][4] == "1"


@pytest.mark.parametrize(
    ("claim", "weakest"),
    [
        ({"less": ["a", "b"], "than": ["base"]}, "b > base"),
        ({"equal": ["a", "b"], "than": ["base"], "within": 1.0}, "b > base"),
    ],
)
def test_the_weakest_depends_on_the_claimed_side(tmp_path: Path, claim: dict[str, Any], weakest: str) -> None:
    store(tmp_path, table(*BETTER, claim={"says": "new is better", "metric": "bleu", **claim}))
    assert cells(evidence_table(tmp_path))[0][1].startswith(f"BLEU: {weakest}")


def test_a_claim_measured_in_part_is_marked_and_one_not_measured_is_counted(tmp_path: Path) -> None:
    part = table(BETTER[0], comparison("a > base", None), verdict="not measured")
    store(tmp_path, part)
    assert cells(evidence_table(tmp_path))[0][-1] == "1 of 2 comparisons measured"
    store(tmp_path, table(comparison("a > base", None), verdict="not measured"), "small/009-table2")
    text = evidence_table(tmp_path)
    assert len(cells(text)) == 1
    assert text.endswith("No evidence for 1 more claim, by table: 009-table1 (1).\n")


def test_the_paper_has_no_difference_where_the_claim_is_not_its_own(tmp_path: Path) -> None:
    own = {"says": "new is better", "metric": "bleu", "more": ["a"], "than": ["base"], "scales": ["small"]}
    store(tmp_path, table(comparison("a > base", 1.0), claim=own))
    assert cells(evidence_table(tmp_path))[0][2] == "–"


def test_a_claim_stays_in_its_row(tmp_path: Path) -> None:
    own = {"says": "new | is\nbetter\x1b", "metric": "bleu", "more": ["a"], "than": ["base"]}
    store(tmp_path, table(comparison("a > base", 1.0), claim=own))
    assert cells(evidence_table(tmp_path, tmp_path))[0][0].startswith("new \\| is better\\x1b (")


def test_scale_tiny_is_no_evidence(tmp_path: Path) -> None:
    tiny = json.loads((COMMITTED / "tiny" / "004-table4" / "table.json").read_bytes())
    store(tmp_path, tiny, "tiny/004-table4")
    with pytest.raises(UsageError, match="no table of another scale than tiny"):
        evidence_table(tmp_path)
    store(tmp_path, table(*BETTER))
    assert [row[-1] for row in cells(evidence_table(tmp_path))] == ["held (exploration)"]


def test_no_tables(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no SCALE/TABLE"):
        evidence_table(tmp_path)


DAMAGED = [
    [],
    {"format": 2},
    {**table(*BETTER), "claims": []},
    {**table(*BETTER), "definition": {}},
    table({"says": "a > base"}),
    table({"says": "a > base", "difference": {"mean": "much"}}),
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_table_is_refused(tmp_path: Path, content: Any) -> None:
    path = store(tmp_path, content)
    with pytest.raises(CorruptError) as error:
        evidence_table(tmp_path)
    assert error.value.file == path and "\n" not in str(error.value)


def test_the_table_replaces_what_is_between_the_markers(tmp_path: Path) -> None:
    store(tmp_path, table(*BETTER))
    page = tmp_path / "page.md"
    for old in ("", "\nold | table\n"):
        page.write_bytes(f"before\n{BEGIN}{old}{END}\nafter".encode())
        write_evidence(tmp_path, page)
        inside = f"{BEGIN}\n\n{evidence_table(tmp_path, tmp_path)}\n{END}"  # Markdown needs the empty lines
        assert page.read_bytes().decode() == f"before\n{inside}\nafter"


@pytest.mark.parametrize("text", ["none", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_page_without_both_markers_is_left_alone(tmp_path: Path, text: str) -> None:
    store(tmp_path, table(*BETTER))
    page = tmp_path / "page.md"
    page.write_bytes(text.encode())
    with pytest.raises(PhraseloomError, match="no place for the table"):
        write_evidence(tmp_path, page)
    assert page.read_bytes().decode() == text


def short_rows(folder: Path) -> list[list[str]]:
    return cells(re.sub(r"\*\* \|(  \|)+", "** |", evidence_table(folder, folder, short=True)))


def test_the_short_table_has_the_claims_with_several_seeds(tmp_path: Path) -> None:
    own = {"says": "new", "short": "new is better", "metric": "bleu", "more": ["a"], "than": ["base"]}
    several = {**table(comparison("a > base by 0.5", 1.25), claim={**own, "by": 0.5}), "table": "002-table1"}
    one = table(comparison("a > base", 9.0), claim=own)
    for row in one["rows"]:
        del row["run"]["2"]
    store(tmp_path, {**one, "table": "002-table2"}, "small/002-table2")
    assert evidence_table(tmp_path, short=True) == "No claim with a short wording has several seeds yet.\n"
    store(tmp_path, several, "small/002-table1")
    group, (claim, paper, here, seeds, trained, p, verdict) = short_rows(tmp_path)
    assert group == ["**Phrasal attention (papers 000 and 002)**", "ours: 1 held"]
    assert claim == "new is better (ours)"
    assert (paper, here, seeds, p, verdict) == ("+2.00", "+1.25 (+0.25 … +2.25)", "2", "0.004", "held (exploration)")
    assert trained == "[Two updates., 5 to 6 updates](small/002-table1/table.md)"
    undecided = {**several["claims"][0], "verdict": "undecided", "reason": "few seeds"}
    store(tmp_path, {**several, "claims": [undecided]}, "small/002-table1")
    assert "undecided (few seeds; exploration)" in evidence_table(tmp_path)
    assert short_rows(tmp_path)[-1][-1] == "undecided (exploration)"
    several["definition"]["metrics"]["bleu"] = {"kind": "run", "title": "updates", "read": "updates"}
    store(tmp_path, several, "small/002-table1")
    assert short_rows(tmp_path)[-1][2] == "+1.25 (+0.25 … +2.25) updates"


RUN = {"kind": "run", "title": "perplexity", "read": "perplexity"}
SCORED = {"kind": "json", "title": "perplexity", "file": "f", "at": "a", "by_sentence": "b", "form": "exp"}


@pytest.mark.parametrize("metric", [RUN, SCORED])
def test_the_short_table_has_perplexities_in_per_cent(tmp_path: Path, metric: dict[str, Any]) -> None:
    """Of the row that is compared with, which has 50 here and 20 in the paper; the long table has them as they are."""
    claim = {"says": "new", "where": "§5", "short": "new", "metric": "bleu", "less": ["a"], "than": ["base"]}
    stored = {**table(comparison("a < base", -5.0), claim=claim), "table": "002-table1"}
    stored["definition"]["metrics"]["bleu"] = metric
    for row, mean in zip(stored["rows"], (50.0, 45.0, 40.0), strict=True):
        row |= {"task": "", "metrics": {"bleu": {"mean": mean}}}
    store(tmp_path, stored, "small/002-table1")
    assert short_rows(tmp_path)[-1][1:3] == ["+10.0 %", "−10.0 % (−12.0 … −8.0) perplexity"]
    assert cells(evidence_table(tmp_path))[0][2:4] == ["+2.00", "−5.00 (−6.00 … −4.00)"]
    del stored["definition"]["rows"]["base"]["paper"]
    store(tmp_path, stored, "small/002-table1")
    assert short_rows(tmp_path)[-1][1:3] == ["–", "−10.0 % (−12.0 … −8.0) perplexity"]
    claim |= {"than": [], "value": 40.0}
    stored["claims"][0]["comparisons"] = [comparison("a < 40", -5.0)]
    store(tmp_path, stored, "small/002-table1")
    assert short_rows(tmp_path)[-1][2] == "−5.00 (−6.00 … −4.00) perplexity"


def test_the_short_table_is_in_groups_of_papers(tmp_path: Path) -> None:
    """The papers' claims first; equal ones together, by updates; each budget says what is different; no other tables."""

    def one(name: str, updates: int, verdict: str = "held", **claim: Any) -> None:
        claim = {"says": "long", "metric": "bleu", "more": ["a"], "than": ["base"], **claim}
        content = table(comparison("a > base", 1.0), verdict=verdict, claim=claim)
        content |= {"table": name, "rows": [{"row": r, "run": {s: {"updates": updates} for s in "123"}} for r in "a"]}
        text = "Text, 10 pairs, 8,000 and 10,000 updates of 5 tokens (2.5 and 10 epochs), rate 0.008, beam 5."
        content["definition"]["scales"]["small"]["says"] = text
        content["definition"]["tasks"] = {"fr-en" if name == "001-a" else "one": {}}
        store(tmp_path, content, f"small/{name}")

    one("guided-alignment", 5, short="no paper of ours", where="§1")
    one("004-x", 10000, "did not hold", short="last, by far", where="§2", by=0.5)
    one("002-b", 10000, "undecided", short="better", budget="rate 0.002", where="§5")
    one("002-a", 8000, short="better", where="§5")
    one("000-a", 700, says="a question (our question, not the paper's)", short="a question")
    one("000-b", 700, says="a claim that stays on the long page", where="§5")
    one("001-a", 10, short="in between", where="§1")
    rows = short_rows(tmp_path)
    assert [row[0] for row in rows] == [
        "**Phrasal attention (papers 000 and 002)**",
        "better",
        "",
        "a question (ours)",
        "**Source phrase representations (paper 001)**",
        "in between",
        "**Models without their encoder (paper 004)**",
        "last, by far",
    ]
    assert [row[1] for row in rows if len(row) == 2] == [
        "1 held, 1 undecided; ours: 1 held",
        "1 held",
        "1 did not hold",
    ]
    assert [row[4].partition("]")[0] for row in rows if len(row) == 7] == [
        "[Text, 8,000 updates (2.5 epochs), rate 0.008",
        "[Text, 10,000 updates (10 epochs), rate 0.002",
        "[Text, 700 updates, rate 0.008",
        "[Text, fr→en, 10 updates, rate 0.008",
        "[Text, 10,000 updates (10 epochs), rate 0.008",
    ]
    assert len(cells(evidence_table(tmp_path, tables=["002", "004"]))) == 3
    with pytest.raises(UsageError, match="begins with 003 or 5"):
        evidence_table(tmp_path, tables=["003", "5"])


def test_a_verdict_names_its_hypothesis_or_is_exploration(tmp_path: Path) -> None:
    """Only a registered claim without a caveat is bold in the short table."""
    plain = {"says": "new", "short": "new is better", "metric": "bleu", "more": ["a"], "than": ["base"]}
    caveat = {"caveat": "base is undertrained"}
    for more, long, short in (
        ({}, "held (exploration)", "held (exploration)"),
        ({"registered": "7 H2"}, "held (experiment 7, H2)", "**held**"),
        (
            {"registered": "7 H2", **caveat},
            "held (base is undertrained; experiment 7, H2)",
            "held (base is undertrained)",
        ),
    ):
        content = table(comparison("a > base", 1.25), claim={**plain, **more})
        content["claims"][0]["p"] = 0.001
        store(tmp_path, {**content, "table": "002-table1"}, "small/002-table1")
        assert cells(evidence_table(tmp_path))[0][-1] == long
        assert short_rows(tmp_path)[-1][-1] == short


def test_registered_hypotheses_are_corrected_together(tmp_path: Path) -> None:
    """Three of 0.02, 0.03 and none: 3 × 0.02 is too much. With two, 2 × 0.02 is not. An exploration does not count."""
    plain = {"says": "new", "short": "better", "metric": "bleu", "more": ["a"], "than": ["base"]}
    for number, p in ((1, 0.02), (2, 0.03), (3, None)):
        claim = {**plain, "registered": f"{number} H1"}
        verdict = "not measured" if p is None else "held"
        content = table(comparison("a > base", None if p is None else 1.0), verdict=verdict, claim=claim)
        content["claims"][0]["p"] = p
        store(tmp_path, {**content, "table": f"001-{number}"}, f"small/001-{number}")
        explored = table(comparison("a > base", 1.0), claim=plain)
        explored["claims"][0]["p"] = 0.0
        store(tmp_path, {**explored, "table": "002"}, "small/002")
        marks = [row[-1] for row in cells(evidence_table(tmp_path)) if row[-1].startswith("held")]
        fallen = number == 3
        held = "held †" if fallen else "held"
        assert marks == [*(f"{held} (experiment {n}, H1)" for n in range(1, min(number, 2) + 1)), "held (exploration)"]
        short = [row[-1] for row in short_rows(tmp_path) if len(row) == 7]
        assert short == ["held (exploration)", *["held †" if fallen else "**held**"] * min(number, 2)]
        note = (
            f"† Undecided if all {number} registered hypotheses of all tables, measured or not, are corrected together."
        )
        assert (note in evidence_table(tmp_path)) == (note in evidence_table(tmp_path, short=True)) == fallen
        assert [row[1] for row in short_rows(tmp_path) if len(row) == 2] == [
            "ours: 1 held",
            f"ours: {min(number, 2)} {held}",
        ]
        assert note not in evidence_table(tmp_path, tables=["002"])


def test_a_table_at_another_scale_has_its_hypotheses_among_all(tmp_path: Path) -> None:
    """A run at scale tiny makes no correction milder: hypotheses count as not measured until scale small is stored."""
    name, small = "000-language-model", {"scale": "small", "table": "001"}
    claim = {"says": "new", "metric": "bleu", "more": ["a"], "than": ["base"], "registered": "900 H1"}
    content = table(comparison("a > base", 1.0), claim=claim)
    content["claims"][0]["p"] = 0.04
    store(tmp_path, {**content, **small}, "small/001")
    before = evidence_table(tmp_path, recipes=ROOT / "recipes")
    tiny = json.loads((COMMITTED / "small" / name / "table.json").read_bytes())
    tiny |= {"scale": "tiny"}
    store(tmp_path, tiny, f"tiny/{name}")
    note = re.compile(r"if all (\d+) registered hypotheses")
    numbers = [note.findall(text) for text in (before, evidence_table(tmp_path, recipes=ROOT / "recipes"))]
    assert numbers[0] == numbers[1] != []


def test_tables_that_were_never_run_are_named(tmp_path: Path) -> None:
    """Their claims are without evidence; the committed pages check that their registered hypotheses count."""
    store(tmp_path, table(comparison("a > base", 1.0)), "small/009-table1")
    assert "001-parts (8)" in evidence_table(tmp_path, recipes=ROOT / "recipes").partition("by table: ")[2]
    assert "by table" not in evidence_table(tmp_path)


def test_registered_hypotheses_are_on_the_pages_of_experiments() -> None:
    """Each hypothesis that a claim names, once, and none is left out."""
    pages = {int(path.name[:3]): path.read_text() for path in (ROOT / "docs" / "experiments").glob("0*.md")}
    stated = [
        f"{number} {name}" for number, text in pages.items() for name in set(re.findall(r"\*\*(H\d+)\.\*\*", text))
    ]
    tables = [yaml.safe_load(path.read_text()) for path in (ROOT / "recipes" / "tables").glob("*.yaml")]
    named = [claim["registered"] for part in tables for claim in part["claims"] if claim.get("registered")]
    assert sorted(named) == sorted(stated) and len(named) > 40


def test_other_scores_stand_beside_bleu(tmp_path: Path) -> None:
    """The log-likelihood is that of the sums behind the test perplexity, in nats a sentence."""
    shutil.copytree(COMMITTED / "small" / "002-rate", tmp_path / "small" / "002-rate")
    text = evidence_table(tmp_path, tmp_path)
    rows = {row[0]: row[1:] for row in cells(text[text.index("Other scores") :])}
    assert list(rows) == [f"en-de: queryk − {row} ([002-rate](small/002-rate/table.md))" for row in ("wide", "base")]
    sums = {
        (stored.row, stored.seed): stored.labels[""].array()
        for stored in read_sentences(tmp_path / "small" / "002-rate" / "table.sentences.json.xz").statistics
        if stored.metric == "test_perplexity"
    }
    perplexity = json.loads((tmp_path / "small" / "002-rate" / "table.json").read_bytes())["rows"][0]["metrics"]
    nats, tokens = sums["queryk", 1].sum(0)
    assert perplexity["test_perplexity"]["seeds"]["1"] == pytest.approx(math.exp(nats / tokens))
    queryk, wide = (np.stack([sums[row, seed][:, 0] for seed in (1, 2, 3)]) for row in ("queryk", "wide"))
    parts = [runs.mean(1).var(ddof=1) / 3 for runs in (queryk, wide)]
    by_sentence = wide.mean(0) - queryk.mean(0)  # less NLL is better
    variance = sum(parts) + by_sentence.var() / len(by_sentence)
    half = quantile(variance**2 / sum(part**2 / 2 for part in parts)) * math.sqrt(variance)
    bleu, t2t, likelihood = rows["en-de: queryk − wide ([002-rate](small/002-rate/table.md))"]
    mean, low, high = (float(number) for number in re.findall(r"[+]([\d.]+)", likelihood))
    assert mean == pytest.approx(by_sentence.mean(), abs=0.006)
    assert high - low == pytest.approx(2 * half, rel=0.06)  # the variance over sentences is that of 1,000 resamples
    assert (bleu, t2t) == ("+1.51 (+0.94 … +2.09)", "+1.52 (+0.91 … +2.12)")


def test_the_committed_claims_are_the_short_table_of_the_committed_records(tmp_path: Path) -> None:
    """`phraseloom reproduce --evidence docs/results --short --into docs/results/claims.md` writes it."""
    results = tmp_path / "docs" / "results"
    shutil.copytree(COMMITTED, results, ignore=shutil.ignore_patterns("*.xz", "*.svg"))
    write_evidence(results, results / "claims.md", short=True, recipes=ROOT / "recipes")
    assert (results / "claims.md").read_bytes() == (COMMITTED / "claims.md").read_bytes()


def test_the_readme_sums_up_figures_of_the_claims() -> None:
    section = (ROOT / "README.md").read_text().split("## The papers behind it")[1].split("\n## ")[0]
    figures = re.findall(r"[+−]?\d+\.\d+", section)
    rows = [line.split(" | ") for line in (COMMITTED / "claims.md").read_text().splitlines() if line.startswith("| ")]
    cells = [text for row in rows for text in (row[0], row[1], row[2].partition("(")[0])]  # no ends of intervals
    known = {figure for text in cells for figure in re.findall(r"[+−]?\d+\.\d+", text)}
    assert len(figures) > 20
    assert not [f for f in figures if f not in known and not (f[0].isdigit() and {f"+{f}", f"−{f}"} & known)]


OTHERS = ["guided-alignment", "synthetic-data"]
PAGES = {"results.md": OTHERS} | {f"papers/{n}.md": [n] for n in ("000", "001", "002", "003", "004")}


@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_has_the_claims_of_the_committed_records(tmp_path: Path, name: str) -> None:
    """`phraseloom reproduce --evidence docs/results --tables NAMES --into docs/NAME` writes it, and the page says so."""
    committed = ROOT / "docs" / name
    (tmp_path / "papers").mkdir()
    (tmp_path / "results").symlink_to(COMMITTED)
    page = shutil.copy(committed, tmp_path / name)
    write_evidence(tmp_path / "results", page, tables=PAGES[name], recipes=ROOT / "recipes")
    assert page.read_bytes() == committed.read_bytes()
    command = f"phraseloom reproduce --evidence docs/results --tables {','.join(PAGES[name])} --into docs/{name}"
    assert f"    {command}\n" in committed.read_text()


def test_every_table_with_a_measured_claim_is_on_a_page() -> None:
    begin = tuple(start for starts in PAGES.values() for start in starts)
    assert all(path.name.startswith(begin) for path in (COMMITTED / "small").iterdir())


def test_no_two_rows_of_the_short_table_read_the_same() -> None:
    rows, says = [], ""
    for first, *others in cells(evidence_table(COMMITTED, short=True)):
        says = first or says
        rows += [] if says.startswith("**") else [(says, others[3].partition("]")[0])]
    assert len(set(rows)) == len(rows) > 15


def test_every_small_claim_with_a_number_is_in_the_table() -> None:
    paths = COMMITTED.glob("small/*/table.json")
    claims = [claim for path in paths for claim in json.loads(path.read_bytes())["claims"]]
    measured = [claim for claim in claims if any(c["difference"] for c in claim["comparisons"])]
    rows = [row for row in cells(evidence_table(COMMITTED)) if len(row) == 8]
    assert len(rows) == len(measured) > 20
    assert not [row for row in rows if row[4] in ("1", "2") and row[-1].startswith(("held", "did not hold"))]
