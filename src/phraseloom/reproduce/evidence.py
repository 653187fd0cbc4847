"""The evidence for each claim of the papers, as one table: the paper's difference, ours with its interval, and the verdict.

The numbers come from the stored tables, FOLDER/SCALE/TABLE/table.json, and the claims from their definitions. A claim has one
row per scale. If it needs several comparisons, the row shows the weakest measured one: the least difference on the claimed
side, or the largest for a claim of equality. Scale tiny is no evidence, so it has no rows.

A second table has the log-likelihood of the reference on the test set beside BLEU, where a table has stored it by sentence:

    difference = mean over seeds and sentences of ln p(reference | source) of one row − that of the other, nats a sentence

The short table has only the claims on BLEU (not on BLEU by length) whose rows have several seeds. It is in groups of papers:
first the claims of the papers, then those of our own questions that have a short wording. A claim that several tables test is
named once. Tables of no paper are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
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
from phraseloom.reproduce.table import ClaimConfig, TableConfig, TextMetric
from phraseloom.reproduce.writing import MARKDOWN, read_table, stored_tables

BEGIN, END = "<!-- evidence -->", "<!-- end of evidence -->"
HEADERS = ("claim", "comparison", "paper", "here (95 %)", "seeds", "budget", "verdict")
SHORT_HEADERS = ("claim", "paper", "here, BLEU (95 %)", "seeds", "text and updates", "verdict")
GROUPS = {
    ("000", "002"): "Phrasal attention (papers 000 and 002)",
    ("001",): "Source phrase representations (paper 001)",
    ("003",): "Continuous output and phrases as output units (paper 003)",
    ("004",): "Models without their encoder (paper 004)",
}
EPOCHS = re.compile(r"([\d,]+(?: and [\d,]+)*) updates[^(;.]*\(([\d.]+(?: and [\d.]+)*) epochs\)")
RATE = re.compile(r"\brate [\d.]+\d")
TEST_PERPLEXITY, LOG_LIKELIHOOD = "test_perplexity", "log-likelihood"
LIKELIHOOD_HEADERS = ("comparison", "BLEU (95 %)", "log-likelihood, nats a sentence (95 %)", "registered")
LIKELIHOODS = (
    "Log-likelihood of the reference on the test set, beside BLEU. It needs no search; more is better. "
    "*Registered* says whether a claim of the table is about it. If not, it is exploration and gives no verdict."
)
LOUD = ("held", "did not hold")
NO_EVIDENCE = "tiny"
REGISTERED = "small"  # the scale of registered experiments
NOT_MEASURED = "not measured"
OURS = re.compile(r" ?\(our question, not the papers?'s?\)")


@dataclass(frozen=True)
class ClaimEvidence:
    """A claim at a scale; `row` has the cells of HEADERS, None if no comparison of the claim is measured.

    `short`: its cells in the short table, none if it is not there; `on_bleu`: whether it is about BLEU as one number; `seeds`:
    the least number of the rows, and `updates` of their trainings; `ours`: whether it is our own question, which no paper
    answers; `registered`: its hypothesis, and `p` before Holm's correction.
    """

    table: str
    scale: str
    place: Path
    row: tuple[str, ...] | None = None
    budget: str = ""
    short: tuple[str, ...] = ()
    on_bleu: bool = False
    seeds: int = 0
    updates: int = 0
    ours: bool = False
    registered: str = ""
    p: float | None = None


def evidence_table(
    folder: str | Path, page: str | Path = ".", *, short: bool = False, recipes: Path | None = None
) -> str:
    """The evidence table in Markdown, with links relative to the folder `page`.

    Raises UsageError if no table of another scale than tiny is stored, CorruptError for a damaged table.json.
    """
    folder = require_folder(folder)
    claims = [claim for path in stored_tables(folder) for claim in _read_claims(path, recipes)]
    claims.sort(key=lambda claim: claim.table)
    shown = [claim for claim in claims if claim.row is not None]
    if all(claim.scale == NO_EVIDENCE for claim in claims):
        hint = "reproduce TABLE --scale small --seeds 1,2,3 writes some"
        raise UsageError(f"no table of another scale than {NO_EVIDENCE}: there is no evidence", file=folder, hint=hint)
    if short:
        return _short([claim for claim in shown if claim.short and claim.seeds > 1 and claim.on_bleu], page)
    budgets = list(dict.fromkeys(claim.budget for claim in shown))
    lines = [_line(HEADERS), _line(["---"] * len(HEADERS))]
    for claim in shown:
        assert claim.row is not None
        cells = list(claim.row)
        cells[0] += f" ([{claim.table}]({_link(claim.place, page)}))"
        cells[5] += f" ({_letter(budgets.index(claim.budget))})"
        lines.append(_line(cells))
    notes = [f"* ({_letter(number)}) {text}" for number, text in enumerate(budgets)]
    parts = ["\n".join(lines), "\n".join(notes), _without(claims), _together(claims)]
    parts += [_likelihoods(stored_tables(folder), page, recipes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _likelihoods(paths: Sequence[Path], page: str | Path, recipes: Path | None) -> str:
    """The comparisons on BLEU of the tables with a test perplexity, with the difference in log-likelihood too."""
    lines = []
    for path in paths:
        content = read_table(path)
        measured = any(TEST_PERPLEXITY in row.get("metrics", {}) for row in content["rows"])
        if content["scale"] == NO_EVIDENCE or not measured or content.get("sentences") is None:
            continue
        result = read_numbers(path.parent, recipes)
        claims = [claim for claim in result.table.claims if result.scale in claim.scales]
        registered = any(claim.metric == TEST_PERPLEXITY for claim in claims)
        _add_log_likelihood(result)
        judge = Judge(result)
        for pair in dict.fromkeys(pair for claim in claims if claim.metric == "bleu" for pair in judge.pairs(claim)):
            found = [judge.difference(replace(pair, metric=metric)) for metric in ("bleu", LOG_LIKELIHOOD)]
            if pair.other is not None and not pair.beyond and None not in found:
                says = f"{pair.task}: {pair.row} − {pair.other}".removeprefix(": ")
                cells = [_difference(asdict(difference), 2) for difference in found if difference is not None]
                mark = "yes" if registered else "no"
                lines.append(
                    _line((f"{says} ([{result.name}]({_link(path.with_name(MARKDOWN), page)}))", *cells, mark))
                )
    if not lines:
        return ""
    return "\n".join([LIKELIHOODS, "", _line(LIKELIHOOD_HEADERS), _line(["---"] * len(LIKELIHOOD_HEADERS)), *lines])


def _add_log_likelihood(result: Result) -> None:
    """Add the mean log-likelihood of a sentence, from the sums of log-likelihoods and tokens behind the test perplexity."""
    for (task, row, metric), seeds in list(result.measured.items()):
        for seed, measured in seeds.items() if metric == TEST_PERPLEXITY else ():
            if "" in measured.statistics:
                nats = -measured.statistics[""][:, 0]
                by_sentence = {"": np.stack([nats, np.ones_like(nats)], axis=1)}
                cell = result.measured.setdefault((task, row, LOG_LIKELIHOOD), {})
                cell[seed] = MeasuredValue(float(nats.mean()), statistics=by_sentence, scorer=Ratio())


def _short(claims: Sequence[ClaimEvidence], page: str | Path) -> str:
    """The claims on one line each, under the names of their papers. Equal claims stand together, from few updates to many."""
    lines = []
    for tables, title in GROUPS.items():
        group = [claim for claim in claims if claim.table.startswith(tables)]
        wordings = list(dict.fromkeys(claim.short[0] for claim in group))
        group.sort(key=lambda claim: (claim.ours, wordings.index(claim.short[0]), claim.updates, claim.short[4]))
        lines += [_line([f"**{title}**", *[""] * (len(SHORT_HEADERS) - 1)])] if group else []
        above = ""
        for claim in group:
            says, *cells, trained, verdict = claim.short
            lines.append(
                _line(("" if says == above else says, *cells, f"[{trained}]({_link(claim.place, page)})", verdict))
            )
            above = says
    if not lines:
        return "No claim on BLEU has several seeds yet.\n"
    return "\n".join([_line(SHORT_HEADERS), "|" + "---|" * len(SHORT_HEADERS), *lines]) + "\n"


def write_evidence(folder: str | Path, page: str | Path, *, short: bool = False, recipes: Path | None = None) -> None:
    """Replace what a page has between its two markers with the evidence table, or with the short one.

    Raises UsageError if the page does not have each marker once, in this order.
    """
    page = require_file(page, "page")
    before, begin, rest = page.read_bytes().partition(BEGIN.encode())
    _, end, after = rest.partition(END.encode())
    if not begin or not end or begin in rest or end in after:
        raise UsageError("the page has no place for the table", file=page, hint=f"write {BEGIN} and {END} into it")
    table = f"\n\n{evidence_table(folder, page.parent, short=short, recipes=recipes)}\n".encode()
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


def _together(claims: Sequence[ClaimEvidence]) -> str:
    """Which registered hypotheses have a verdict after Holm's correction over those of all tables, measured or not."""
    registered = [claim for claim in claims if claim.registered]
    if not registered:
        return ""
    adjusted = holm([1.0 if claim.p is None else claim.p for claim in registered])
    some = [c for c, p in zip(registered, adjusted, strict=True) if p < LEVEL and c.row and c.row[-1].startswith(LOUD)]
    names = sorted((claim.registered for claim in some), key=lambda name: (int(name.split()[0]), name))
    return (
        f"The verdicts above are corrected for the claims of one table. If all {len(registered)} registered hypotheses "
        f"of these tables, measured or not, are corrected together, these keep their verdict (experiment and hypothesis): "
        f"{', '.join(names) or 'none'}."
    )


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
    number = len(stored["comparisons"])
    weakest = min(measured, key=lambda c: _support(claim, c["difference"]["mean"]))
    metric = table.metrics.get(claim.metric)
    title, decimals = ("parameters", 0) if metric is None else (metric.title, metric.decimals)
    comparison = f"{title}: {weakest['says']}"
    if len(measured) > 1:
        comparison += f" (weakest of {len(measured)})"
    origin = _registration(registered, stored["verdict"])
    said = "; ".join(filter(None, [stored["reason"], claim.caveat, origin]))
    verdict = stored["verdict"] + (f" ({said})" if said else "")
    if stored["verdict"] == NOT_MEASURED:
        verdict = f"{len(measured)} of {number} comparisons measured"
    rows = [r for r in content["rows"] if r["row"] in claim.rows and r["run"]]
    seeds = min((len(row["run"]) for row in rows), default=len(content["seeds"]))
    says = claim.says + (f", {claim.where}" if claim.where else "")
    paper, ours = _paper(table, claim, weakest["says"], decimals), _difference(weakest["difference"], decimals)
    budget = " ".join(table.scales[scale].says.split())  # type: ignore[index]
    numbers = sorted({round(facts["updates"]) for row in rows for facts in row["run"].values() if "updates" in facts})
    updates = _updates(numbers, budget)
    cells = (says, comparison, paper, ours, str(seeds), updates, verdict)
    plain = claim.short or OURS.sub("", claim.says) + (f", by {claim.by:g} or more" if claim.by else "")
    plain += "" if claim.where else " (ours)"
    known = [budget.partition(",")[0], updates if numbers else "", claim.budget or _rate(budget)]
    trained = ", ".join(filter(None, known))
    word = stored["verdict"]
    doubt = claim.caveat or ("" if registered else origin)
    word = f"{word} ({doubt})" if doubt else f"**{word}**" if word in LOUD else word
    listed = (plain, paper, ours, str(seeds), trained, word)
    short = listed if claim.where or claim.short else ()
    on_bleu = isinstance(metric, TextMetric) and metric.kind in ("bleu", "t2t") and not metric.is_series
    least = min(numbers, default=0)
    return ClaimEvidence(
        name,
        scale,
        place,
        cells,
        budget,
        short,
        on_bleu,
        seeds,
        least,
        not claim.where,
        registered,
        stored.get("p"),
    )


def _registration(registered: str, verdict: str) -> str:
    """The hypothesis that a verdict decides. A verdict on several seeds without one is exploration."""
    if registered:
        return "experiment {}, {}".format(*registered.split())
    return "exploration" if verdict in (*LOUD, "undecided") else ""


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
