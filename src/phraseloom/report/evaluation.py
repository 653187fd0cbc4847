"""The report of `phraseloom evaluate`: scores of several systems as plain data, and as text.

The plain data (a dictionary) is what `--output json` prints; `render` makes the text of it. Every score carries the
sacreBLEU signature that says how it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phraseloom.metrics.bleu import Scorer, bleu_by_length, count_tokens
from phraseloom.metrics.compare import paired_bootstrap
from phraseloom.report.tables import terminal


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
) -> dict[str, Any]:
    """Score every system; the first one is the baseline of the bootstrap.

    `systems` name → lines; `references` one list of lines per file; `bootstrap` resamples, 0 = none. Raises DataError
    where line counts differ.
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
        lengths = count_tokens(by_length.source, tokenize=by_length.tokenize)
        groups = [bleu_by_length(scorer, c, lengths, edges=by_length.edges) for c in statistics[scorer.name]]
        report["by_length"] = {
            "metric": scorer.name,
            "source_tokens": by_length.tokenize,
            "systems": [
                {"name": name, "groups": [asdict(g) for g in of_system]}
                for name, of_system in zip(names, groups, strict=True)
            ],
        }
    if bootstrap:
        results = []
        for s in scorers:
            tested = paired_bootstrap(s, statistics[s.name], samples=bootstrap, seed=seed)
            signature = f"{s.signature}|bs:{bootstrap}|seed:{seed}"
            results += [
                {"metric": s.name, "system": name, **asdict(t), "signature": signature}
                for name, t in zip(names, tested, strict=True)
            ]
        report["bootstrap"] = {"samples": bootstrap, "seed": seed, "baseline": names[0], "results": results}
    return report


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
    lines = [f"{report['sentences']:,} sentences{several}", "", terminal(headers, rows), ""]
    if len(rows) == 1:
        lines += [f"{s['name']}: {s['detail']}" for s in first if s["detail"]]
    lines += [f"{s['name']}: {s['signature']}" for s in first]
    return "\n".join(lines)


def _lengths(part: Mapping[str, Any]) -> str:
    groups = part["systems"][0]["groups"]
    headers = ["source tokens", "sentences", *(s["name"] for s in part["systems"])]
    rows = []
    for i, group in enumerate(groups):
        of_systems = [s["groups"][i]["score"] for s in part["systems"]]
        rows.append([group["label"], group["sentences"], *(float(s["value"]) if s else None for s in of_systems)])
    tokens = "as they stand" if part["source_tokens"] == "none" else f"of sacreBLEU's {part['source_tokens']}"
    signature = next(g["score"]["signature"] for g in groups if g["score"])
    title = f"{part['metric']} by source length (tokens {tokens}; {part['metric']}: {signature})"
    return f"{title}\n\n{terminal(headers, rows)}"


def _bootstrap(part: Mapping[str, Any]) -> str:
    headers = ["metric", "system", "score", "95 % interval", "difference", "wins", "ties", "p(no win)", "p(null)"]
    rows = []
    for r in part["results"]:
        system = r["system"] + (" (baseline)" if r["difference"] is None else "")
        row = [r["metric"], system, float(r["value"]), f"{r['mean']:.2f} ± {r['half_width']:.2f}"]
        if r["difference"] is None:
            row += [None] * 5
        else:
            p_win = f"{r['p_win']:.4f}" if r["p_win"] else f"<{1 / part['samples']:.4f}"
            row += [f"{r['difference']:+.2f}", r["wins"], r["ties"], p_win, f"{r['p_null']:.4f}"]
        rows.append(row)
    title = f"Paired bootstrap against {part['baseline']}: {part['samples']:,} resamples, seed {part['seed']}"
    notes = (
        "wins, ties: resamples in which the system that is better on the test set wins, draws.\n"
        "p(no win): share of resamples in which it does not win (Koehn 2004). p(null): sacreBLEU's two-sided p.\n"
    )
    signatures = "\n".join(f"{m}: {s}" for m, s in {r["metric"]: r["signature"] for r in part["results"]}.items())
    return f"{title}\n\n{terminal(headers, rows)}\n\n{notes}{signatures}"
