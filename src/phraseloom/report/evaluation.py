"""The report of `phraseloom evaluate`: scores of several systems as plain data, and as text.

The plain data (a dictionary) is what `--output json` prints; `render` makes the text of it. Every score carries the
sacreBLEU signature that says how it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phraseloom.errors import escape_controls
from phraseloom.metrics.bleu import Scorer, bleu_by_length, count_tokens
from phraseloom.metrics.compare import FEWEST, all_pairs, bootstrap_by_length, paired_bootstrap
from phraseloom.report.tables import terminal

ALPHA = 0.05


@dataclass(frozen=True)
class ByLength:
    """BLEU by source length: the source lines, the edges of the groups, and the tokenizer that counts."""

    source: Sequence[str]
    edges: Sequence[int]
    tokenize: str
    metric: str = "BLEU"


def evaluate(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    scorers: Sequence[Scorer],
    *,
    by_length: ByLength | None = None,
    bootstrap: int = 0,
    seed: int = 12345,
    pairs: bool = False,
) -> dict[str, Any]:
    """Score every system; the first one is the baseline of the bootstrap.

    `systems` name → lines; `references` one list of lines per file; `bootstrap` resamples, 0 = none; `pairs` adds the
    bootstrap of every system against every other one. Raises DataError where line counts differ.
    """
    names = list(systems)
    statistics = {s.name: [s.statistics(lines, references) for lines in systems.values()] for s in scorers}
    report: dict[str, Any] = {"sentences": len(references[0]), "references": len(references)}
    report["systems"] = [
        {"name": name, "scores": [asdict(s.score(statistics[s.name][i].sum(0))) for s in scorers]}
        for i, name in enumerate(names)
    ]
    if by_length is not None:
        scorer = next(s for s in scorers if s.name == by_length.metric)
        report["by_length"] = _by_length(by_length, names, scorer, statistics[scorer.name], bootstrap, seed)
    if bootstrap:
        results: list[dict[str, Any]] = []
        between: list[dict[str, Any]] = []
        for s in scorers:
            tested = paired_bootstrap(s, statistics[s.name], samples=bootstrap, seed=seed)
            signature = f"{s.signature}|bs:{bootstrap}|seed:{seed}"
            results += [
                {"metric": s.name, "system": name, **asdict(t), "signature": signature}
                for name, t in zip(names, tested, strict=True)
            ]
            for pair in all_pairs(s, statistics[s.name], samples=bootstrap, seed=seed) if pairs else ():
                said = {"metric": s.name, "system": names[pair.system], "other": names[pair.other]}
                between.append({**asdict(pair), **said, "signature": signature})
        report["bootstrap"] = {"samples": bootstrap, "seed": seed, "baseline": names[0], "results": results}
        if pairs:
            report["bootstrap"]["pairs"] = between
    return report


def _by_length(
    options: ByLength, names: Sequence[str], scorer: Scorer, statistics: Sequence[Any], bootstrap: int, seed: int
) -> dict[str, Any]:
    """Groups of each system; with `bootstrap` each group is resampled by itself."""
    lengths = count_tokens(options.source, tokenize=options.tokenize)
    groups = [bleu_by_length(scorer, c, lengths, edges=options.edges) for c in statistics]
    found: dict[str, Any] = {
        "metric": scorer.name,
        "source_tokens": options.tokenize,
        "systems": [{"name": n, "groups": [asdict(g) for g in of]} for n, of in zip(names, groups, strict=True)],
    }
    if bootstrap:
        found |= {"baseline": names[0], "samples": bootstrap, "seed": seed}
        tested = bootstrap_by_length(scorer, statistics, lengths, groups[0], samples=bootstrap, seed=seed)
        for i, system in enumerate(found["systems"]):
            for group, of_group in zip(system["groups"], tested, strict=True):
                group["bootstrap"] = asdict(of_group[i]) if of_group is not None else None
    return found


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
    rows = [[r["name"], *(float(s["value"]) for s in r["scores"])] for r in report["systems"]]
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
    signature = next(g["score"]["signature"] for g in groups if g["score"])
    title = f"{part['metric']} by source length (tokens {tokens}; {part['metric']}: {signature})"
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
    headers += ["difference", "95 % interval", "p(no win)"] if several else []
    rows: list[list[object]] = []
    for i, group in enumerate(part["systems"][0]["groups"]):
        for number, system in enumerate(part["systems"]):
            place = [None, None] if number else [group["label"], group["sentences"]]
            found, score = system["groups"][i]["bootstrap"], system["groups"][i]["score"]
            row = [*place, system["name"], float(score["value"]) if score else None]
            row += [f"{found['low']:.2f} … {found['high']:.2f}" if found else None]
            if found and number:
                ends = f"{found['difference_low']:+.2f} … {found['difference_high']:+.2f}"
                row += [f"{found['difference']:+.2f}", ends, _p_win(found["p_win"], part["samples"])]
            rows.append([*row, *[None] * (len(headers) - len(row))])
    return headers, rows


def _bootstrap(part: Mapping[str, Any]) -> str:
    headers = ["metric", "system", "score", "95 % interval", "difference", "wins", "ties", "p(no win)", "p(null)"]
    rows = []
    for r in part["results"]:
        system = r["system"] + (" (baseline)" if r["difference"] is None else "")
        row = [r["metric"], system, float(r["value"]), f"{r['mean']:.2f} ± {r['half_width']:.2f}"]
        if r["difference"] is None:
            row += [None] * 5
        else:
            p_win = _p_win(r["p_win"], part["samples"])
            row += [f"{r['difference']:+.2f}", r["wins"], r["ties"], p_win, f"{r['p_null']:.4f}"]
        rows.append(row)
    title = f"Paired bootstrap against {part['baseline']}: {part['samples']:,} resamples, seed {part['seed']}"
    notes = (
        "wins, ties: resamples in which the system that is better on the test set wins, draws.\n"
        "p(no win): share of resamples in which it does not win (Koehn 2004). p(null): sacreBLEU's two-sided p.\n"
    )
    signatures = "\n".join(f"{m}: {s}" for m, s in {r["metric"]: r["signature"] for r in part["results"]}.items())
    between = _pairs(part) if part.get("pairs") else ""
    return f"{title}\n\n{terminal(headers, rows)}\n\n{notes}{between}{signatures}"


def _p_win(p: float, samples: int) -> str:
    return f"{p:.4f}" if p else f"<{1 / samples:.4f}"


def _pairs(part: Mapping[str, Any]) -> str:
    """A matrix for each metric: below the diagonal, the system of the row minus that of the column."""
    metrics = list(dict.fromkeys(r["metric"] for r in part["results"]))
    text = ""
    for metric in metrics:
        values = {r["system"]: r["value"] for r in part["results"] if r["metric"] == metric}
        names, cells = list(values), {}
        for pair in (p for p in part["pairs"] if p["metric"] == metric):
            star = "*" if pair["p_holm"] < ALPHA else " "
            cells[pair["system"], pair["other"]] = f"{pair['difference']:+.2f} ({pair['p_null']:.3f}){star}"
        headers = ["", metric, "score", *(f"− {i}" for i in range(1, len(names)))]
        rows: list[list[object]] = [
            [str(i), name, float(values[name]), *(cells.get((name, other)) for other in names[:-1])]
            for i, name in enumerate(names, 1)
        ]
        text += f"{terminal(headers, rows)}\n\n"
    star = f"* p(null) < {ALPHA} after Holm's correction for the number of pairs."
    return f"\nEvery pair: row − column, and p(null) in brackets.\n\n{text}{star}\n"
