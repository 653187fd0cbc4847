"""The report of `phraseloom evaluate`, `report` and `diff`: scores of several systems as plain data, and as text.

A system has the translations of one or more runs (seeds); its score is the mean of the corpus scores of its runs. Intervals and
p are those of metrics/seeds.py: with several runs of both systems they are about training, with one about these runs alone.
The plain data (a dictionary) is what `--output json` prints; `render` makes the text of it. Every score carries the sacreBLEU
signature that says how it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from phraseloom.errors import UsageError, escape_controls
from phraseloom.metrics.bleu import LengthGroup, Scorer, bleu_by_length, check_parallel, count_tokens
from phraseloom.metrics.compare import FEWEST, SEED, bootstrap_values, holm
from phraseloom.metrics.seeds import LEVEL, SeedScores, compare_seeds, seed_deviation
from phraseloom.report.markup import terminal
from phraseloom.report.run.runs import mean

Lines = Sequence[str]
COMPARED = ("difference", "difference_low", "difference_high", "p", "one_seed")
ONE_RUN = "One run of a system: its intervals and p are about these runs on other sentences, and say nothing about other seeds."


@dataclass(frozen=True)
class ByLength:
    """BLEU by source length: the source lines, the edges of the groups, and the tokenizer that counts."""

    source: Sequence[str]
    edges: Sequence[int]
    tokenize: str = "13a"
    metric: str = "BLEU"


def evaluate(
    systems: Mapping[str, Sequence[Lines]],
    references: Sequence[Lines],
    scorers: Sequence[Scorer],
    *,
    by_length: ByLength | None = None,
    bootstrap: int = 0,
    seed: int = SEED,
    pairs: bool = False,
) -> dict[str, Any]:
    """Score every system; the first one is the baseline of the comparisons.

    `systems` name → the lines of each run; `references` one list of lines per file; `bootstrap` resamples, 0 = no intervals;
    `pairs` adds the comparison of every system with every other one. Raises DataError where line counts differ, UsageError for
    a single resample, which has no variance.
    """
    if bootstrap == 1:
        raise UsageError("one resample has no variance", hint="--bootstrap 1000")
    names = list(systems)
    for name, runs in systems.items():
        for lines in runs:
            check_parallel({"the reference": references[0], f"the translation of {name}": lines})
    counts = {
        s.name: [[s.statistics(lines, references) for lines in runs] for runs in systems.values()] for s in scorers
    }
    report: dict[str, Any] = {"sentences": len(references[0]), "references": len(references)}
    report["systems"] = [
        {"name": name, "runs": len(runs), "scores": [_score(s, counts[s.name][i]) for s in scorers]}
        for i, (name, runs) in enumerate(systems.items())
    ]
    if by_length is not None:
        scorer = next(s for s in scorers if s.name == by_length.metric)
        report["by_length"] = _by_length(by_length, names, scorer, counts[scorer.name], bootstrap, seed)
    if bootstrap:
        results: list[dict[str, Any]] = []
        between: list[dict[str, Any]] = []
        for s in scorers:
            drawn = _drawn(s, counts[s.name], bootstrap, seed)
            said = {"signature": f"{s.signature}|bs:{bootstrap}|seed:{seed}"}
            results += [{"metric": s.name, "system": name, **_tested(drawn, i), **said} for i, name in enumerate(names)]
            between += [{"metric": s.name, **pair, **said} for pair in _between(names, drawn)] if pairs else []
        report["bootstrap"] = {"samples": bootstrap, "seed": seed, "baseline": names[0], "results": results}
        if pairs:
            report["bootstrap"]["pairs"] = between
    return report


def _score(scorer: Scorer, of_runs: Sequence[np.ndarray]) -> dict[str, Any]:
    scores = [scorer.score(rows.sum(0)) for rows in of_runs]
    values = [s.value for s in scores]
    return {
        "name": scorer.name,
        "value": mean(values),
        "deviation": seed_deviation(values),
        "runs": values,
        "signature": scorer.signature,
        "detail": scores[0].detail if len(scores) == 1 else "",
        "higher_is_better": scorer.higher_is_better,
    }


def _drawn(scorer: Scorer, counts: Sequence[Sequence[np.ndarray]], samples: int, seed: int) -> list[SeedScores]:
    """The scores of the runs of each system, on the same resamples."""
    flat = [rows for of_runs in counts for rows in of_runs]
    whole = np.array([scorer.value(rows.sum(0)) for rows in flat])
    sampled = bootstrap_values(scorer, flat, samples=samples, seed=seed)
    ends = np.cumsum([0, *map(len, counts)])
    return [SeedScores(whole[a:b], sampled[a:b]) for a, b in pairwise(ends)]


def _tested(drawn: Sequence[SeedScores], i: int) -> dict[str, Any]:
    """The score of a system with its interval, and its comparison with the first one; None for the first itself."""
    alone = compare_seeds(drawn[i])
    found = {"value": alone.mean, "low": alone.low, "high": alone.high}
    return found | (_compared(drawn[i], drawn[0]) if i else dict.fromkeys(COMPARED))


def _compared(one: SeedScores, other: SeedScores) -> dict[str, Any]:
    d = compare_seeds(one, other)
    return dict(zip(COMPARED, (d.mean, d.low, d.high, d.p, d.one_seed), strict=True))


def _between(names: Sequence[str], drawn: Sequence[SeedScores]) -> list[dict[str, Any]]:
    """Every system against every one before it, with the p of Holm for their number."""
    found = [
        {"system": names[i], "other": names[j], **_compared(drawn[i], drawn[j])}
        for i in range(len(names))
        for j in range(i)
    ]
    for pair, p in zip(found, holm([pair["p"] for pair in found]), strict=True):
        pair["p_holm"] = p
    return found


def _by_length(
    options: ByLength,
    names: Sequence[str],
    scorer: Scorer,
    counts: Sequence[Sequence[np.ndarray]],
    bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    """Groups of each system; with `bootstrap` each group of at least `FEWEST` sentences is resampled by itself."""
    lengths = count_tokens(options.source, tokenize=options.tokenize)
    groups = [[bleu_by_length(scorer, rows, lengths, edges=options.edges) for rows in of_runs] for of_runs in counts]
    drawn: list[list[SeedScores] | None] = []
    for group in groups[0][0]:
        inside = group.holds(lengths)
        enough = bool(bootstrap) and group.sentences >= FEWEST
        chosen = [[rows[inside] for rows in of_runs] for of_runs in counts] if enough else []
        drawn.append(_drawn(scorer, chosen, bootstrap, seed) if enough else None)
    found: dict[str, Any] = {"metric": scorer.name, "signature": scorer.signature, "source_tokens": options.tokenize}
    found["systems"] = [
        {"name": name, "groups": [_group(of_runs, g, tested, i) for g, tested in enumerate(drawn)]}
        for i, (name, of_runs) in enumerate(zip(names, groups, strict=True))
    ]
    return found | ({"baseline": names[0], "samples": bootstrap, "seed": seed} if bootstrap else {})


def _group(
    of_runs: Sequence[Sequence[LengthGroup]], g: int, tested: Sequence[SeedScores] | None, i: int
) -> dict[str, Any]:
    group = of_runs[0][g]
    scores = [s.value for run in of_runs if (s := run[g].score) is not None]
    return {
        "label": group.label,
        "above": group.above,
        "up_to": group.up_to,
        "sentences": group.sentences,
        "score": {"value": mean(scores), "deviation": seed_deviation(scores)} if scores else None,
        "bootstrap": None if tested is None else _tested(tested, i),
    }


def render(report: Mapping[str, Any]) -> str:
    """The report of `evaluate` as text for a terminal, with a final newline."""
    parts = [_scores(report)]
    if "by_length" in report:
        parts.append(_lengths(report["by_length"]))
    if "bootstrap" in report:
        parts.append(_bootstrap(report["bootstrap"]))
    return "\n\n".join(parts) + "\n"


def _scores(report: Mapping[str, Any]) -> str:
    first = report["systems"][0]["scores"]
    headers = ["system", *(s["name"] for s in first)]
    rows = [[_named(r), *(_value(s) for s in r["scores"])] for r in report["systems"]]
    several = f", {report['references']} references" if report["references"] > 1 else ""
    subset = report.get("lines")
    number, of = f"{report['sentences']:,}", f" of {subset['of']:,} sentences" if subset else " sentences"
    chosen = f", those of {escape_controls(subset['file'])}" if subset else ""
    lines = [f"{number}{of}{several}{chosen}", "", terminal(headers, rows), ""]
    if len(rows) == 1:
        lines += [f"{s['name']}: {s['detail']}" for s in first if s["detail"]]
    lines += [f"{s['name']}: {s['signature']}" for s in first]
    return "\n".join(lines)


def _lengths(part: Mapping[str, Any]) -> str:
    systems, groups = part["systems"], part["systems"][0]["groups"]
    tokens = "as they stand" if part["source_tokens"] == "none" else f"of sacreBLEU's {part['source_tokens']}"
    title = f"{part['metric']} by source length (tokens {tokens}; {part['metric']}: {part['signature']})"
    if "samples" in part:
        against = f"; differences to {part['baseline']}" if len(systems) > 1 else ""
        title += f"\n{part['samples']:,} resamples of the sentences of each group, seed {part['seed']}{against}"
        if any(0 < g["sentences"] < FEWEST for g in groups):
            title += f"\nno intervals for groups of fewer than {FEWEST} sentences"
        return f"{title}\n\n{terminal(*_resampled_lengths(part))}"
    headers, rows = ["source tokens", "sentences", *(s["name"] for s in systems)], []
    for i, group in enumerate(groups):
        of_systems = [s["groups"][i]["score"] for s in systems]
        rows.append([group["label"], group["sentences"], *(float(s["value"]) if s else None for s in of_systems)])
    return f"{title}\n\n{terminal(headers, rows)}"


def _resampled_lengths(part: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Headers and rows, one row a group and system."""
    several = len(part["systems"]) > 1
    headers = ["source tokens", "sentences", "system", part["metric"], "95 % interval"]
    headers += ["difference", "95 % interval", "p"] if several else []
    rows: list[list[object]] = []
    for i, group in enumerate(part["systems"][0]["groups"]):
        for number, system in enumerate(part["systems"]):
            place = [None, None] if number else [group["label"], group["sentences"]]
            found, score = system["groups"][i]["bootstrap"], system["groups"][i]["score"]
            row = [*place, system["name"], float(score["value"]) if score else None]
            row += [f"{found['low']:.2f} … {found['high']:.2f}" if found else None]
            if found and number:
                ends = f"{found['difference_low']:+.2f} … {found['difference_high']:+.2f}"
                row += [f"{found['difference']:+.2f}", ends, _p(found["p"])]
            rows.append([*row, *[None] * (len(headers) - len(row))])
    return headers, rows


def _bootstrap(part: Mapping[str, Any]) -> str:
    headers = ["metric", "system", "score", "95 % interval", "difference", "95 % interval", "p"]
    rows = []
    for r in part["results"]:
        system = r["system"] + (" (baseline)" if r["difference"] is None else "")
        row = [r["metric"], system, float(r["value"]), f"{r['low']:.2f} … {r['high']:.2f}"]
        if r["difference"] is None:
            row += [None] * 3
        else:
            ends = f"{r['difference_low']:+.2f} … {r['difference_high']:+.2f}"
            row += [f"{r['difference']:+.2f}", ends, _p(r["p"])]
        rows.append(row)
    title = f"Paired bootstrap against {part['baseline']}: {part['samples']:,} resamples, seed {part['seed']}"
    one_run = any(r["one_seed"] for r in part["results"])
    notes = "p: two-sided, of no difference. " + (ONE_RUN if one_run else "Intervals hold sentences and seeds.") + "\n"
    signatures = "\n".join(f"{m}: {s}" for m, s in {r["metric"]: r["signature"] for r in part["results"]}.items())
    between = _pairs(part) if part.get("pairs") else ""
    return f"{title}\n\n{terminal(headers, rows)}\n\n{notes}{between}{signatures}"


def _named(system: Mapping[str, Any]) -> str:
    return system["name"] + (f" ({system['runs']} runs)" if system["runs"] > 1 else "")


def _value(score: Mapping[str, Any]) -> float | str:
    """A score, with the standard deviation over runs where there are several."""
    deviation = score["deviation"]
    return float(score["value"]) if deviation is None else f"{score['value']:.2f} ± {deviation:.2f}"


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def _pairs(part: Mapping[str, Any]) -> str:
    """A matrix for each metric: below the diagonal, the system of the row minus that of the column."""
    metrics = list(dict.fromkeys(r["metric"] for r in part["results"]))
    text = ""
    for metric in metrics:
        values = {r["system"]: r["value"] for r in part["results"] if r["metric"] == metric}
        names, cells = list(values), {}
        for pair in (p for p in part["pairs"] if p["metric"] == metric):
            star = "*" if pair["p_holm"] < LEVEL else " "
            cells[pair["system"], pair["other"]] = f"{pair['difference']:+.2f} ({pair['p']:.3f}){star}"
        headers = ["", metric, "score", *(f"− {i}" for i in range(1, len(names)))]
        rows: list[list[object]] = [
            [str(i), name, float(values[name]), *(cells.get((name, other)) for other in names[:-1])]
            for i, name in enumerate(names, 1)
        ]
        text += f"{terminal(headers, rows)}\n\n"
    star = f"* p < {LEVEL} after Holm's correction for the number of pairs."
    return f"\nEvery pair: row − column, and p in brackets.\n\n{text}{star}\n"
