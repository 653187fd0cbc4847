"""The evidence for each claim of the papers, as one table: the paper's difference, ours with its interval, and the verdict.

The rows come from the stored tables, FOLDER/SCALE/TABLE/table.json, and from nothing else. A claim has one row per scale. If it
needs several comparisons, the row shows the weakest measured one: the least difference on the claimed side, or the largest for
a claim of equality. Scale tiny is no evidence, so it has no rows. The short table has only the claims on BLEU (not on BLEU by
length) whose rows have several seeds, in fewer columns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from phraseloom.errors import CorruptError, UsageError, escape_controls, plural
from phraseloom.files import atomic_write_bytes, require_file, require_folder
from phraseloom.reproduce.result import Judge, paper_result
from phraseloom.reproduce.table import ClaimConfig, TableConfig, TextMetric
from phraseloom.reproduce.writing import MARKDOWN, read_table, stored_tables

BEGIN, END = "<!-- evidence -->", "<!-- end of evidence -->"
HEADERS = ("claim", "comparison", "paper", "here (95 %)", "seeds", "budget", "verdict")
SHORT_HEADERS = ("claim", "paper", "here (95 %)", "seeds", "budget", "verdict")
NO_EVIDENCE = "tiny"
NOT_MEASURED = "not measured"
OURS = re.compile(r"\(our question, not the papers?'s?\)")


@dataclass(frozen=True)
class ClaimEvidence:
    """A claim at a scale; `row` has the cells of HEADERS, None if no comparison of the claim is measured.

    `says`: the claim alone; `on_bleu`: whether it is about BLEU as one number; `seeds`: the least number of the rows.
    """

    table: str
    scale: str
    place: Path
    row: tuple[str, ...] | None = None
    budget: str = ""
    says: str = ""
    on_bleu: bool = False
    seeds: int = 0


def evidence_table(folder: str | Path, page: str | Path = ".", *, short: bool = False) -> str:
    """The evidence table in Markdown, with links relative to the folder `page`.

    Raises UsageError if no table of another scale than tiny is stored, CorruptError for a damaged table.json.
    """
    folder = require_folder(folder)
    claims = [claim for path in stored_tables(folder) for claim in _read_claims(path)]
    claims.sort(key=lambda claim: claim.table)
    shown = [claim for claim in claims if claim.row is not None]
    if all(claim.scale == NO_EVIDENCE for claim in claims):
        hint = "reproduce TABLE --scale small --seeds 1,2,3 writes some"
        raise UsageError(f"no table of another scale than {NO_EVIDENCE}: there is no evidence", file=folder, hint=hint)
    if short:
        return _short([claim for claim in shown if claim.seeds > 1 and claim.on_bleu], page)
    budgets = list(dict.fromkeys(claim.budget for claim in shown))
    lines = [_line(HEADERS), _line(["---"] * len(HEADERS))]
    for claim in shown:
        assert claim.row is not None
        cells = list(claim.row)
        cells[0] += f" ([{claim.table}]({_link(claim.place, page)}))"
        cells[5] += f" ({_letter(budgets.index(claim.budget))})"
        lines.append(_line(cells))
    notes = [f"* ({_letter(number)}) {text}" for number, text in enumerate(budgets)]
    return "\n\n".join(filter(None, ["\n".join(lines), "\n".join(notes), _without(claims)])) + "\n"


def _short(claims: Sequence[ClaimEvidence], page: str | Path) -> str:
    """The claims as a table of a few words, without the reasons of undecided ones."""
    if not claims:
        return "No claim on BLEU has several seeds yet.\n"
    lines = [_line(SHORT_HEADERS), "|" + "---|" * len(SHORT_HEADERS)]
    for claim in claims:
        assert claim.row is not None
        _, _, paper, ours, seeds, updates, verdict = claim.row
        says = f"{OURS.sub('(ours)', claim.says)} ([{claim.table}]({_link(claim.place, page)}))"
        lines.append(_line((says, paper, ours, seeds, updates, verdict.partition(" (")[0])))
    return "\n".join(lines) + "\n"


def write_evidence(folder: str | Path, page: str | Path, *, short: bool = False) -> None:
    """Replace what a page has between its two markers with the evidence table, or with the short one.

    Raises UsageError if the page does not have each marker once, in this order.
    """
    page = require_file(page, "page")
    before, begin, rest = page.read_bytes().partition(BEGIN.encode())
    _, end, after = rest.partition(END.encode())
    if not begin or not end or begin in rest or end in after:
        raise UsageError("the page has no place for the table", file=page, hint=f"write {BEGIN} and {END} into it")
    table = f"\n\n{evidence_table(folder, page.parent, short=short)}\n".encode()
    atomic_write_bytes(page, before + begin + table + end + after)


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
        measured = [claim for claim in here if claim.scale != NO_EVIDENCE]
        missing = sum(claim.row is None for claim in measured or here)
        if missing:
            counts[table] = missing
    if not counts:
        return ""
    names = ", ".join(f"{table} ({number})" for table, number in counts.items())
    return f"No evidence for {plural(sum(counts.values()), 'more claim')}, by table: {names}."


def _read_claims(path: Path) -> list[ClaimEvidence]:
    content = read_table(path)
    place = path.with_name(MARKDOWN)
    try:
        table = TableConfig.model_validate(content["definition"])
        name, scale = content["table"], content["scale"]
        claims = zip((c for c in table.claims if scale in c.scales), content["claims"], strict=True)
        return [_claim(content, table, claim, stored, place, (name, scale)) for claim, stored in claims]
    except (KeyError, TypeError, ValueError, AttributeError, pydantic.ValidationError) as error:
        raise CorruptError(f"not a whole table ({type(error).__name__})", file=path) from error


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
    measured = [c for c in stored["comparisons"] if c["difference"] is not None]
    if not measured or scale == NO_EVIDENCE:
        return ClaimEvidence(name, scale, place)
    number = len(stored["comparisons"])
    weakest = min(measured, key=lambda c: _support(claim, c["difference"]["mean"]))
    metric = table.metrics.get(claim.metric)
    title, decimals = ("parameters", 0) if metric is None else (metric.title, metric.decimals)
    comparison = f"{title}: {weakest['says']}"
    if len(measured) > 1:
        comparison += f" (weakest of {len(measured)})"
    verdict = stored["verdict"] + (f" ({stored['reason']})" if stored["reason"] else "")
    if verdict == NOT_MEASURED:
        verdict = f"{len(measured)} of {number} comparisons measured"
    rows = [r for r in content["rows"] if r["row"] in (*claim.about, *claim.than) and r["run"]]
    seeds = min((len(row["run"]) for row in rows), default=len(content["seeds"]))
    says = claim.says + (f", {claim.where}" if claim.where else "")
    ours = _difference(weakest["difference"], decimals)
    cells = (
        says,
        comparison,
        _paper(table, claim, weakest["says"], decimals),
        ours,
        str(seeds),
        _updates(rows),
        verdict,
    )
    budget = " ".join(table.scales[scale].says.split())  # type: ignore[index]
    on_bleu = isinstance(metric, TextMetric) and metric.kind in ("bleu", "t2t") and not metric.is_series
    says = claim.says + (f", by {claim.by:g} or more" if claim.by else "")
    return ClaimEvidence(name, scale, place, cells, budget, says, on_bleu, seeds)


def _support(claim: ClaimConfig, mean: float) -> float:
    """How far a difference lies on the claimed side; for a claim of equality, how near to zero."""
    return claim.sign * mean if claim.sign else -abs(mean)


def _paper(table: TableConfig, claim: ClaimConfig, says: str, decimals: int) -> str:
    """The paper's difference in a comparison; a dash if it gives no numbers, or the claim is not about its scale."""
    if "paper" not in claim.scales:
        return "–"
    comparisons = Judge(paper_result(table, "paper")).comparisons(claim)
    means = [c.difference.mean for c, _ in comparisons if c.says == says and c.difference is not None]
    return _signed(means[0], decimals) if means else "–"


def _difference(difference: Mapping[str, Any], decimals: int) -> str:
    text = _signed(difference["mean"], decimals)
    if difference["exact"]:
        return text
    if difference["low"] is None or difference["high"] is None:
        return f"{text} (no interval)"
    return f"{text} ({_signed(difference['low'], decimals)} … {_signed(difference['high'], decimals)})"


def _signed(value: float, decimals: int) -> str:
    return f"{value:+,.{decimals}f}".replace("-", "−")


def _updates(rows: Sequence[Mapping[str, Any]]) -> str:
    """The updates of the rows that a claim is about: one number, or the least and the most."""
    updates = sorted({round(facts["updates"]) for row in rows for facts in row["run"].values() if "updates" in facts})
    if not updates:
        return "–"
    ends = f"{updates[0]:,}" if len(updates) == 1 else f"{updates[0]:,} to {updates[-1]:,}"
    return f"{ends} updates"
