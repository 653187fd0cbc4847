"""The evidence for each claim of the papers, as one table: the paper's difference, ours with its interval, and the verdict.

The numbers come from the stored tables, FOLDER/SCALE/TABLE/table.json, and the claims from their definitions. A claim has one
row per scale. If it needs several comparisons, the row shows the weakest measured one: the least difference on the claimed
side, or the largest for a claim of equality. Scale tiny is no evidence, so it has no rows.

p is that after Holm's correction for the claims of one table. A verdict with † becomes "undecided" if the registered
hypotheses of all tables, measured or not, are corrected together.

A second table has other scores beside BLEU, where a table has stored them: BLEU as tensor2tensor computes it, and the
log-likelihood of the reference on the test set,

    difference = mean over seeds and sentences of ln p(reference | source) of one row − that of the other, nats a sentence

The short table has only the claims with a short wording (`short`) whose rows have several seeds. It is in groups of papers,
each with the number of its verdicts: first the claims of the papers, then our own questions. A claim that several tables test
is named once. Tables of no paper are left out. Perplexities of different texts are not comparable, nor are their differences;
so the short table has, of the paper and here,

    100 · (perplexity of one row − that of the other) / that of the other, per cent

and the ends of the interval divided by the same number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from phraseloom.errors import CorruptError, UsageError, escape_controls, plural
from phraseloom.files import atomic_write_bytes, require_file, require_folder
from phraseloom.metrics.compare import holm
from phraseloom.metrics.ratio import Ratio
from phraseloom.metrics.seeds import LEVEL
from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.result import Judge, Result, paper_result
from phraseloom.reproduce.stored import judged_table, read_numbers
from phraseloom.reproduce.table import (
    ClaimConfig,
    JsonMetric,
    MetricConfig,
    RunMetric,
    TableConfig,
    all_tables,
    load_table,
)
from phraseloom.reproduce.writing import JSON, MARKDOWN, p_in_words, read_table, stored_tables

BEGIN, END = "<!-- evidence -->", "<!-- end of evidence -->"
HEADERS = ("claim", "comparison", "paper", "here (95 %)", "seeds", "budget", "p", "verdict")
SHORT_HEADERS = ("claim", "paper", "here, BLEU (95 %)", "seeds", "text and updates", "p", "verdict")
GROUPS = {
    ("000", "002"): "Phrasal attention (papers 000 and 002)",
    ("001",): "Source phrase representations (paper 001)",
    ("003",): "Continuous output and phrases as output units (paper 003)",
    ("004",): "Models without their encoder (paper 004)",
}
EPOCHS = re.compile(r"([\d,]+(?: and [\d,]+)*) updates[^(;.]*\(([\d.]+(?: and [\d.]+)*) epochs\)")
RATE = re.compile(r"\brate [\d.]+\d")
TEST_PERPLEXITY, LOG_LIKELIHOOD = "test_perplexity", "log-likelihood"
OTHER_HEADERS = ("comparison", "BLEU (95 %)", "BLEU-t2t (95 %)", "log-likelihood, nats a sentence (95 %)")
OTHER_SCORES = (
    "Other scores of the same comparisons, where they are stored. They decide nothing. BLEU-t2t is that of tensor2tensor, on "
    "Moses tokens with compounds split at hyphens; the log-likelihood is that of the reference on the test set, and needs no "
    "search. More is better for both."
)
LOUD = ("held", "did not hold")
FALLS = " †"
NO_EVIDENCE = "tiny"
REGISTERED = "small"  # the scale of registered experiments
NOT_MEASURED = "not measured"
DIRECTION = re.compile(r"([a-z]{2})-([a-z]{2})")


@dataclass(frozen=True)
class ClaimEvidence:
    """A claim at a scale; `row` has the cells of HEADERS, None if no comparison of the claim is measured.

    `short`: its cells in the short table, none if it is not there; `seeds`: the least number of the rows, and `updates` of
    their trainings; `ours`: whether it is our own question, which no paper answers; `registered`: its hypothesis, `verdict` on
    it, and `p` before Holm's correction; `difference`: mean and ends of the interval, `papers`: the paper's; `on_bleu`: whether
    they are in BLEU.
    """

    table: str
    scale: str
    place: Path
    row: tuple[str, ...] | None = None
    budget: str = ""
    short: tuple[str, ...] = ()
    seeds: int = 0
    updates: int = 0
    ours: bool = False
    registered: str = ""
    verdict: str = ""
    p: float | None = None
    difference: tuple[float, float | None, float | None] = (0.0, None, None)
    papers: float | None = None
    on_bleu: bool = False


def short_claims(folder: str | Path, *, tables: Sequence[str] = (), recipes: Path | None = None) -> list[ClaimEvidence]:
    """The claims of the short table: those with a short wording whose rows have several seeds.

    Raises as `evidence_table` does.
    """
    return _short_of(_read(folder, tables, recipes)[1])


def short_groups(claims: Sequence[ClaimEvidence]) -> list[tuple[str, list[ClaimEvidence]]]:
    """The claims by papers, with their titles. Equal claims stand together, from few updates to many; ours come last."""
    groups = []
    for tables, title in GROUPS.items():
        group = [claim for claim in claims if claim.table.startswith(tables)]
        wordings = list(dict.fromkeys(claim.short[0] for claim in group))
        group.sort(key=lambda claim: (claim.ours, wordings.index(claim.short[0]), claim.updates, claim.short[4]))
        groups += [(title, group)] if group else []
    return groups


def evidence_table(
    folder: str | Path,
    page: str | Path = ".",
    *,
    short: bool = False,
    tables: Sequence[str] = (),
    recipes: Path | None = None,
) -> str:
    """The evidence table in Markdown, with links relative to the folder `page`.

    `tables`: only those whose name begins with one of these (none: all). Raises UsageError if no table of another scale than
    tiny is stored, or none begins so, CorruptError for a damaged table.json.
    """
    everything, claims = _read(folder, tables, recipes)
    shown = [claim for claim in claims if claim.row is not None]
    fallen = _fallen_note(shown, everything)
    if short:
        listed = _short_of(claims)
        return "\n\n".join(filter(None, [_short(listed, page), fallen if listed else ""])) + "\n"
    budgets = list(dict.fromkeys(claim.budget for claim in shown))
    lines = [_line(HEADERS), _line(["---"] * len(HEADERS))]
    for claim in shown:
        assert claim.row is not None
        cells = list(claim.row)
        cells[0] += f" ([{claim.table}]({_link(claim.place, page)}))"
        cells[5] += f" ({_letter(budgets.index(claim.budget))})"
        lines.append(_line(cells))
    notes = [f"* ({_letter(number)}) {text}" for number, text in enumerate(budgets)]
    parts = ["\n".join(lines), "\n".join(notes), _without(claims), fallen]
    parts += [_other_scores(dict.fromkeys(claim.place.with_name(JSON) for claim in shown), page, recipes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _read(
    folder: str | Path, tables: Sequence[str], recipes: Path | None
) -> tuple[list[ClaimEvidence], list[ClaimEvidence]]:
    """All claims, and those of the tables whose names begin with one of `tables`, by table."""
    folder = require_folder(folder)
    stored = [claim for path in stored_tables(folder) for claim in _read_claims(path, recipes)]
    everything = _mark_fallen([*stored, *_not_stored(stored, recipes)])
    if all(claim.scale == NO_EVIDENCE for claim in everything):
        hint = "reproduce TABLE --scale small --seeds 1,2,3 writes some"
        raise UsageError(f"no table of another scale than {NO_EVIDENCE}: there is no evidence", file=folder, hint=hint)
    begin = tuple(tables) or ("",)
    claims = sorted((c for c in everything if c.table.startswith(begin)), key=lambda claim: claim.table)
    if tables and not any(claim.row for claim in claims):
        raise UsageError(f"no measured claim of a table whose name begins with {' or '.join(tables)}", file=folder)
    return everything, claims


def _short_of(claims: Sequence[ClaimEvidence]) -> list[ClaimEvidence]:
    return [claim for claim in claims if claim.row is not None and claim.short and claim.seeds > 1]


def _mark_fallen(claims: Sequence[ClaimEvidence]) -> list[ClaimEvidence]:
    """Mark the verdicts that do not survive Holm's correction over the registered hypotheses of all tables."""
    registered = [claim for claim in claims if claim.registered]
    adjusted = holm([1.0 if claim.p is None else claim.p for claim in registered])
    fallen = {c.registered for c, p in zip(registered, adjusted, strict=True) if c.verdict in LOUD and p >= LEVEL}
    return [_fallen(claim) if claim.registered in fallen else claim for claim in claims]


def _fallen(claim: ClaimEvidence) -> ClaimEvidence:
    row, short = claim.row, claim.short
    if row is not None:
        row = (*row[:-1], claim.verdict + FALLS + row[-1].removeprefix(claim.verdict))
    if short:
        plain = short[-1].replace("**", "")
        short = (*short[:-1], claim.verdict + FALLS + plain.removeprefix(claim.verdict))
    return replace(claim, row=row, short=short)


def _fallen_note(shown: Sequence[ClaimEvidence], claims: Sequence[ClaimEvidence]) -> str:
    """What † means, if a verdict that is shown has one."""
    if not any(claim.row and FALLS in claim.row[-1] for claim in shown):
        return ""
    number = sum(bool(claim.registered) for claim in claims)
    return f"† Undecided if all {number} registered hypotheses of all tables, measured or not, are corrected together."


def _other_scores(paths: Iterable[Path], page: str | Path, recipes: Path | None) -> str:
    """The comparisons on BLEU of the tables that have stored another score of the same translations and references."""
    lines = []
    for path in paths:
        content = read_table(path)
        kinds = {key for row in content["rows"] for key in row.get("metrics", {})}
        t2t = next((k for k, m in content["definition"]["metrics"].items() if m["kind"] == "t2t" and k in kinds), None)
        if content["scale"] == NO_EVIDENCE or content.get("sentences") is None or not (t2t or TEST_PERPLEXITY in kinds):
            continue
        result = read_numbers(path.parent, recipes)
        _add_log_likelihood(result)
        judge = Judge(result)
        claims = [claim for claim in result.table.claims if result.scale in claim.scales and claim.metric == "bleu"]
        for pair in dict.fromkeys(pair for claim in claims for pair in judge.pairs(claim)):
            found = [judge.difference(replace(pair, metric=m)) if m else None for m in ("bleu", t2t, LOG_LIKELIHOOD)]
            if pair.other is None or pair.beyond or found[0] is None or not any(found[1:]):
                continue
            says = f"{pair.task}: {pair.row} − {pair.other}".removeprefix(": ")
            says += f" ([{result.name}]({_link(path.with_name(MARKDOWN), page)}))"
            lines.append(_line((says, *("" if d is None else _difference(asdict(d), 2) for d in found))))
    if not lines:
        return ""
    return "\n".join([OTHER_SCORES, "", _line(OTHER_HEADERS), _line(["---"] * len(OTHER_HEADERS)), *lines])


def _add_log_likelihood(result: Result) -> None:
    """Add the mean log-likelihood of a sentence, from the sums of log-likelihoods and tokens behind the test perplexity."""
    for (task, row, metric), seeds in list(result.measured.items()):
        for seed, measured in seeds.items() if metric == TEST_PERPLEXITY else ():
            if "" in measured.statistics:
                nats = -measured.statistics[""][:, 0]
                by_sentence = {"": np.stack([nats, np.ones_like(nats)], axis=1)}
                cell = result.measured.setdefault((task, row, LOG_LIKELIHOOD), {})
                cell[seed] = MeasuredValue(float(nats.mean()), statistics=by_sentence, scorer=Ratio())


def _tally(claims: Sequence[ClaimEvidence]) -> str:
    """How many claims have each verdict."""
    verdicts = [claim.verdict + (FALLS if FALLS in claim.short[-1] else "") for claim in claims]
    words = [*(word + mark for word in LOUD for mark in ("", FALLS)), "undecided"]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in words if word in verdicts)


def _short(claims: Sequence[ClaimEvidence], page: str | Path) -> str:
    """The claims on one line each, under the names of their papers and the number of their verdicts: the paper's, and ours."""
    lines = []
    for title, group in short_groups(claims):
        of_paper, ours = (_tally([claim for claim in group if claim.ours is own]) for own in (False, True))
        tallies = "; ".join(filter(None, [of_paper, ours and f"ours: {ours}"]))
        lines.append(_line([f"**{title}**", *[""] * (len(SHORT_HEADERS) - 2), tallies]))
        above = ""
        for claim in group:
            says, *cells, trained, p, verdict = claim.short
            budget = f"[{trained}]({_link(claim.place, page)})"
            lines.append(_line(("" if says == above else says, *cells, budget, p, verdict)))
            above = says
    if not lines:
        return "No claim with a short wording has several seeds yet."
    return "\n".join([_line(SHORT_HEADERS), "|" + "---|" * len(SHORT_HEADERS), *lines])


def write_evidence(
    folder: str | Path,
    page: str | Path,
    *,
    short: bool = False,
    tables: Sequence[str] = (),
    recipes: Path | None = None,
) -> None:
    """Replace what a page has between its two markers with the evidence table, or with the short one.

    Raises UsageError if the page does not have each marker once, in this order.
    """
    page = require_file(page, "page")
    before, begin, rest = page.read_bytes().partition(BEGIN.encode())
    _, end, after = rest.partition(END.encode())
    if not begin or not end or begin in rest or end in after:
        raise UsageError("the page has no place for the table", file=page, hint=f"write {BEGIN} and {END} into it")
    text = evidence_table(folder, page.parent, short=short, tables=tables, recipes=recipes)
    atomic_write_bytes(page, before + begin + f"\n\n{text}\n".encode() + end + after)


def _link(place: Path, page: str | Path) -> str:
    return Path(os.path.relpath(place, page)).as_posix()


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else str(number)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape_controls(" ".join(cell.split())).replace("|", "\\|") for cell in cells) + " |"


def _without(claims: Sequence[ClaimEvidence]) -> str:
    """The tables with claims that no scale but tiny has measured."""
    counts = {}
    for table in dict.fromkeys(claim.table for claim in claims):
        here = [claim for claim in claims if claim.table == table]
        stored = [claim for claim in here if claim.place.name == MARKDOWN]
        measured = [claim for claim in stored if claim.scale != NO_EVIDENCE]
        missing = sum(claim.row is None for claim in measured or stored or here)
        if missing:
            counts[table] = missing
    if not counts:
        return ""
    names = ", ".join(f"{table} ({number})" for table, number in counts.items())
    return f"No evidence for {plural(sum(counts.values()), 'more claim')}, by table: {names}."


def _read_claims(path: Path, recipes: Path | None) -> list[ClaimEvidence]:
    content = judged_table(path, recipes)
    place = path.with_name(MARKDOWN)
    try:
        table = TableConfig.model_validate(content["definition"])
        name, scale = content["table"], content["scale"]
        claims = zip((c for c in table.claims if scale in c.scales), content["claims"], strict=True)
        return [_claim(content, table, claim, stored, place, (name, scale)) for claim, stored in claims]
    except (KeyError, TypeError, ValueError, AttributeError, pydantic.ValidationError) as error:
        raise CorruptError(f"not a whole table ({type(error).__name__})", file=path) from error


def _not_stored(claims: Sequence[ClaimEvidence], recipes: Path | None) -> list[ClaimEvidence]:
    """The claims of the tables in `recipes` of which no scale is stored, and the hypotheses of those without that of these."""
    known = {claim.table for claim in claims}
    measured = {claim.table for claim in claims if claim.scale == REGISTERED}
    paths = [] if recipes is None else [path for path in all_tables(recipes) if path.stem not in measured]
    return [
        ClaimEvidence(path.stem, NO_EVIDENCE, path, registered=claim.registered)
        for path in paths
        for claim in load_table(path).claims
        if claim.registered or path.stem not in known
    ]


def _claim(
    content: Mapping[str, Any],
    table: TableConfig,
    claim: ClaimConfig,
    stored: Mapping[str, Any],
    place: Path,
    names: tuple[str, str],
) -> ClaimEvidence:
    """One claim of a stored table."""
    name, scale = names
    registered = claim.registered if scale == REGISTERED else ""
    measured = [c for c in stored["comparisons"] if c["difference"] is not None]
    if not measured or scale == NO_EVIDENCE:
        return ClaimEvidence(name, scale, place, registered=registered)
    weakest = min(measured, key=lambda c: _support(claim, c["difference"]["mean"]))
    metric = table.metrics.get(claim.metric)
    title, decimals = ("parameters", 0) if metric is None else (metric.title, metric.decimals)
    comparison = f"{title}: {weakest['says']}"
    if len(measured) > 1:
        comparison += f" (weakest of {len(measured)})"
    verdict, word = _verdict(claim, stored, registered, len(measured))
    rows = [r for r in content["rows"] if r["row"] in claim.rows and r["run"]]
    runs = min((len(row["run"]) for row in rows), default=len(content["seeds"]))
    seeds = min((found for c in measured if (found := c["difference"].get("seeds"))), default=runs)
    says = claim.says + (f", {claim.where}" if claim.where else "")
    theirs = _paper(table, claim, weakest["says"])
    paper = "–" if theirs is None else _signed(theirs, decimals)
    ours = _difference(weakest["difference"], decimals)
    budget = " ".join(table.scales[scale].says.split())  # type: ignore[index]
    numbers = sorted({round(facts["updates"]) for row in rows for facts in row["run"].values() if "updates" in facts})
    updates = _updates(numbers, budget)
    p = p_in_words(stored.get("p_holm"))
    cells = (says, comparison, paper, ours, str(seeds), updates, p, verdict)
    plain = claim.short + ("" if claim.where else " (ours)")
    known = [budget.partition(",")[0], _directions(table), updates if numbers else "", claim.budget or _rate(budget)]
    trained = ", ".join(filter(None, known))
    bases = _compared_with(table, claim, content["rows"], weakest["says"]) if _is_perplexity(metric) else None
    if bases is not None:
        ours = _difference(_per_cent(weakest["difference"], bases[0]), 1, " %")
        paper = "–" if theirs is None or bases[1] is None else f"{_signed(100 * theirs / bases[1], 1)} %"
    here = ours if title.startswith("BLEU") else f"{ours} {title}"
    return ClaimEvidence(
        name,
        scale,
        place,
        cells,
        budget,
        short=(plain, paper, here, str(seeds), trained, p, word) if claim.short else (),
        seeds=seeds,
        updates=min(numbers, default=0),
        ours=not claim.where,
        registered=registered,
        verdict=stored["verdict"],
        p=stored.get("p"),
        difference=(weakest["difference"]["mean"], weakest["difference"]["low"], weakest["difference"]["high"]),
        papers=theirs,
        on_bleu=title.startswith("BLEU"),
    )


def _verdict(claim: ClaimConfig, stored: Mapping[str, Any], registered: str, measured: int) -> tuple[str, str]:
    """The verdict on a stored claim with all that is said of it, and in short; `measured`: comparisons with a difference."""
    word = stored["verdict"]
    origin = _registration(registered, word)
    said = "; ".join(filter(None, [stored["reason"], claim.caveat, origin]))
    verdict = word + (f" ({said})" if said else "")
    if word == NOT_MEASURED:
        verdict = f"{measured} of {len(stored['comparisons'])} comparisons measured"
    doubt = claim.caveat or ("" if registered else origin)
    return verdict, f"{word} ({doubt})" if doubt else f"**{word}**" if word in LOUD else word


def _is_perplexity(metric: MetricConfig | None) -> bool:
    return (isinstance(metric, JsonMetric) and metric.form == "exp") or (
        isinstance(metric, RunMetric) and metric.read == "perplexity"
    )


def _compared_with(
    table: TableConfig, claim: ClaimConfig, rows: Sequence[Mapping[str, Any]], says: str
) -> tuple[float, float | None] | None:
    """The number of the row that a comparison is with, here and in the paper; None if it is not with one row."""
    judge = Judge(paper_result(table, "paper"))
    named = zip(judge.pairs(claim), judge.comparisons(claim), strict=True)
    pair = next((pair for pair, (comparison, _) in named if comparison.says == says), None)
    if pair is None or pair.other is None or pair.beyond or pair.than_label:
        return None
    entries = (r["metrics"].get(pair.metric) for r in rows if (r["task"], r["row"]) == (pair.task, pair.other))
    ours = next((entry["mean"] for entry in entries if entry and entry["mean"]), None)
    theirs = table.paper_of(pair.other, pair.task).get(pair.metric)
    return None if ours is None else (pair.times * ours, None if theirs is None else pair.times * theirs)


def _per_cent(difference: Mapping[str, Any], base: float) -> dict[str, Any]:
    """A difference in per cent of `base`."""
    ends = {key: difference[key] for key in ("mean", "low", "high")}
    return {**difference, **{key: None if end is None else 100 * end / base for key, end in ends.items()}}


def _directions(table: TableConfig) -> str:
    """The translation directions of a table whose tasks are named so: en→de."""
    found = [DIRECTION.fullmatch(task) for task in table.tasks]
    return " and ".join(f"{match[1]}→{match[2]}" for match in found if match)


def _registration(registered: str, verdict: str) -> str:
    """The hypothesis that a verdict decides. A verdict on several seeds without one is exploration."""
    if registered:
        return "experiment {}, {}".format(*registered.split())
    return "exploration" if verdict in (*LOUD, "undecided") else ""


def _support(claim: ClaimConfig, mean: float) -> float:
    """How far a difference lies on the claimed side; for a claim of equality, how near to zero."""
    return claim.sign * mean if claim.sign else -abs(mean)


def _paper(table: TableConfig, claim: ClaimConfig, says: str) -> float | None:
    """The paper's difference in a comparison; None if it gives no numbers, or the claim is not about its scale."""
    if "paper" not in claim.scales:
        return None
    comparisons = Judge(paper_result(table, "paper")).comparisons(claim)
    return next((c.difference.mean for c, _ in comparisons if c.says == says and c.difference is not None), None)


def _difference(difference: Mapping[str, Any], decimals: int, unit: str = "") -> str:
    text = _signed(difference["mean"], decimals) + unit
    if difference["exact"]:
        return text
    if difference["low"] is None or difference["high"] is None:
        return f"{text} (no interval)"
    return f"{text} ({_signed(difference['low'], decimals)} … {_signed(difference['high'], decimals)})"


def _signed(value: float, decimals: int) -> str:
    return f"{value:+,.{decimals}f}".replace("-", "−")


def _updates(numbers: Sequence[int], budget: str) -> str:
    """The updates of some trainings: one number, with its epochs if the budget states them, or the least and the most."""
    if not numbers:
        return "–"
    names = [f"{number:,}" for number in numbers]
    if len(names) > 1:
        return f"{names[0]} to {names[-1]} updates"
    epochs = EPOCHS.search(budget)
    stated = {} if epochs is None else dict(zip(epochs[1].split(" and "), epochs[2].split(" and "), strict=False))
    return f"{names[0]} updates" + (f" ({stated[names[0]]} epochs)" if names[0] in stated else "")


def _rate(budget: str) -> str:
    """The learning rate, if the budget states it."""
    found = RATE.search(budget)
    return "" if found is None else found[0]
