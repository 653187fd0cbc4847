"""The page of a report (`run_report.py`): one HTML file, charts as inline SVG, a script for sorting and hovering only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from phraseloom.errors import escape_controls
from phraseloom.report import svg
from phraseloom.report.markup import TableCell, charts, details, mono, note, section, table
from phraseloom.report.page import page
from phraseloom.report.run_report_items import (
    contrastive_section,
    coverage_section,
    fertility_section,
    phenomena_section,
)
from phraseloom.report.run_report_layers import activation_section, alignment_section, entropy_section, links_section
from phraseloom.report.run_report_phrases import neighbours_section, segments_section, source_phrases_section
from phraseloom.report.run_report_scores import Looks, duration, p_value, plus_minus, score_section, speed_section

SECTIONS: dict[str, Callable[[Any, Looks, int], str]] = {
    "scores": score_section,
    "contrastive": contrastive_section,
    "alignment": alignment_section,
    "links": links_section,
    "entropy": entropy_section,
    "activation": activation_section,
    "fertility": fertility_section,
    "coverage": coverage_section,
    "phenomena": phenomena_section,
    "segments": segments_section,
    "source_phrases": source_phrases_section,
    "neighbours": neighbours_section,
}
Document = Mapping[str, Any]
CURVES = (
    ("perplexity", "Validation perplexity", "perplexity (log scale)", True),
    ("bleu", "Validation BLEU", "BLEU", False),
    ("cosine_loss", "Validation cosine loss", "1 − cosine with the vector of the word", False),
    ("lr", "Learning rate", "learning rate", False),
    ("grad_norm", "Gradient norm before clipping", "L2 norm (log scale)", True),
)


def report_page(document: Document) -> str:
    """The whole page."""
    looks = {s["name"]: s["look"] for s in document["systems"]}
    speed: dict[str, Any] = next((p for p in document["parts"] if p["kind"] == "speed"), {"systems": []})
    sections = [
        section("overview", "Overview", overview(document)),
        section("curves", "Learning curves", curves(document["systems"])),
        *(SECTIONS[p["kind"]](p, looks, i) for i, p in enumerate(document["parts"], 1) if p["kind"] in SECTIONS),
        speed_section(speed, [s for s in document["systems"] if s["runs"]]),
        section("provenance", "Configuration and provenance", provenance(document)),
        section("lacks", "What is not in this report", lacks(document)),
    ]
    there = [s for s in sections if s]
    head = f"<h1>{_text(document['title'])}</h1>{_lead(document)}{cautions(document['warnings'])}"
    body = f"<header>{head}</header>{_contents(there)}<main>{''.join(there)}</main>"
    return page(escape_controls(document["title"]), body, styles=["report.css"], scripts=["report.js"])


def overview(document: Document) -> str:
    """The figures of every system, a row each; columns that nobody has are left out."""
    rows = []
    base = document["systems"][0]["name"] if document["systems"] else ""
    scores = next((p for p in document["parts"] if p["kind"] == "scores" and p["of"] is None), None)
    metrics = [m["metric"] for m in scores["metrics"]] if scores else []
    for system in document["systems"]:
        s = system["summary"]
        row: dict[str, object] = {
            "system": TableCell(system["name"], html=svg.key(escape_controls(system["name"]), system["look"]))
        }
        row["runs"] = s["runs"] if any(o["summary"]["runs"] > 1 for o in document["systems"]) else None
        row["parameters"] = _mean(s["parameters"], lambda v: f"{v:,.0f}")
        row["updates"] = _mean(s["updates"], lambda v: f"{v:,.0f}")
        row["training"] = _mean(s["seconds"], duration)
        row["valid. perplexity"] = _with_deviation(s["valid_perplexity"])
        row["valid. BLEU"] = _with_deviation(s["valid_bleu"])
        for metric in metrics:
            e = s.get("scores", {}).get(metric)
            row[metric] = e and plus_minus(e["value"], e["deviation"])
            low, high = (e["low"], e["high"]) if e else (None, None)
            if metric == metrics[0]:
                row[f"{metric} 95 %"] = None if low is None else TableCell(f"{low:.1f} … {high:.1f}", low)
        first = s.get("scores", {}).get(metrics[0]) if metrics else None
        row[f"p vs. {base}"] = p_value(first["p"]) if first else None
        subset, contrast, aligned = s.get("subset"), s.get("contrastive"), s.get("alignment")
        row["lines with phrases"] = subset and plus_minus(subset["value"], subset["deviation"])
        row["contrastive %"] = contrast and plus_minus(100 * contrast["accuracy"], None, 1)
        row["AER %"] = aligned and TableCell(
            f"{100 * aligned['aer']:.1f} (layer {aligned['layer']:.0f})", aligned["aer"]
        )
        row["sentences / s"] = _mean(s.get("speed"), lambda v: f"{v:,.1f}")
        rows.append(row)
    headers = [h for h in rows[0] if any(row[h] is not None for row in rows)] if rows else []
    shown = [[row[h] if row[h] is not None else "–" for h in headers] for row in rows]
    text = (
        "± standard deviation over runs with other seeds. "
        if any(s["summary"]["runs"] > 1 for s in document["systems"])
        else ""
    )
    if metrics and len(rows) > 1:
        one_run = any(s["summary"]["runs"] == 1 for s in document["systems"])
        text += f"p: two-sided, on {metrics[0]}" + (
            ", between these runs alone where a system has one. " if one_run else ". "
        )
    return table(headers, shown, name="Overview") + note(
        text + "–: not known; see the end of the page. A click on a heading sorts."
    )


def curves(systems: Sequence[Mapping[str, Any]]) -> str:
    """Loss, validation perplexity and BLEU by update and by wall time, learning rate and gradient norm."""
    kinds = list(dict.fromkeys(_kind(s) for s in systems if "nll" in s["curves"]))
    losses = [_loss([s for s in systems if _kind(s) == kind], kind, alone=len(kinds) == 1) for kind in kinds]
    figures = {
        key: svg.lines(title, _series(systems, key, None), svg.Axes(x="updates", y=label, y_log=log, x_zero=True))
        for key, title, label, log in CURVES
    }
    unit, seconds = _unit(systems)
    timed = [
        svg.lines(
            f"{title} by wall time",
            _series(systems, key, seconds),
            svg.Axes(x=f"wall time ({unit})", y=label, y_log=log, x_zero=True),
        )
        for key, title, label, log in CURVES[:2]
    ]
    several = any(len(s["runs"]) > 1 for s in systems)
    band = "Lines of several runs are their mean, the band is one standard deviation. " if several else ""
    text = f"{band}Training values are means over intervals of updates; validation is of the checkpoint that was training then."
    main = charts(*losses, *(figures[key] for key in ("perplexity", "bleu", "cosine_loss")), *timed)
    rest = details("Learning rate and gradient norm", charts(figures["lr"], figures["grad_norm"]))
    return main + (note(text) if main else "") + rest


def _kind(system: Mapping[str, Any]) -> str:
    return next((str(run["output"]) for run in system["runs"] if run["output"]), "")


def _loss(systems: Sequence[Mapping[str, Any]], kind: str, *, alone: bool) -> str:
    """The training loss of models whose losses have one meaning."""
    label = "nats per target subword" if kind in ("", "softmax") else f"loss of {kind} output"
    axes = svg.Axes(x="updates", y=label, x_zero=True)
    title = "Training loss" + ("" if alone else f": {kind or 'other'} output")
    return svg.lines(title, _series(systems, "nll", None), axes, legend=not alone)


def _series(systems: Sequence[Mapping[str, Any]], key: str, seconds: float | None) -> list[svg.Series]:
    found = []
    for system in systems:
        curve = system["curves"].get(key)
        if not curve or (seconds and curve["seconds"] is None):
            continue
        places = [s / seconds for s in curve["seconds"]] if seconds else curve["updates"]
        spread = curve["deviation"]
        low, high = (
            [v + sign * d for v, d in zip(curve["values"], spread, strict=True)] if spread else [] for sign in (-1, 1)
        )
        marked = len(places) <= 40
        digits = 5 if key == "lr" else 3
        tips = [
            f"{system['name']}, update {u:,.0f}: {v:.{digits}f}"
            for u, v in zip(curve["updates"], curve["values"], strict=True)
        ]
        points = list(zip(places, curve["values"], strict=True))
        found.append(svg.Series(system["name"], points, system["look"], low, high, band=True, marked=marked, tips=tips))
    return found


def _unit(systems: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    longest = max((max(c["seconds"] or [0]) for s in systems for c in s["curves"].values()), default=0)
    return ("hours", 3600.0) if longest > 3 * 3600 else ("minutes", 60.0) if longest > 180 else ("seconds", 1.0)


def provenance(document: Document) -> str:
    """Recipes, data, versions and machines: what differs first, what is the same folded away."""
    systems = [s for s in document["systems"] if s["runs"]]
    names = [s["name"] for s in systems]
    rows = document["configuration"]
    different = [[TableCell(r["key"], html=mono(r["key"])), *r["values"]] for r in rows if not r["same"]]
    same = [[TableCell(r["key"], html=mono(r["key"])), r["values"][0]] for r in rows if r["same"]]
    parts = []
    if len(names) > 1:
        parts.append("<h3>Where the recipes differ</h3>")
        parts.append(table(["key", *names], different, sortable=False) if different else note("Nowhere."))
    parts.append(
        details(
            f"{'The same in all' if len(names) > 1 else 'The recipe'} ({len(same)} keys)",
            table(["key", "value"], same, sortable=False),
        )
    )
    facts = [[system["name"], mono_cell(run["folder"]), *_facts(run)] for system in systems for run in system["runs"]]
    headers = ["system", "folder", "checkpoint", "seed", "phraseloom", "torch", "Python", "machine", "dataset"]
    parts += ["<h3>Runs</h3>", table(headers, facts)] if facts else []
    files = [[key, mono_cell(str(value))] for key, value in document["about"].items() if value is not None]
    parts += ["<h3>Made from</h3>", table(["", "what"], files, sortable=False)] if files else []
    return "".join(parts)


def cautions(warnings: Sequence[str]) -> str:
    """What a reader should know before comparing, in a box."""
    entries = "".join(f"<li>{_text(warning)}</li>" for warning in warnings)
    return f'<ul class="panel" aria-label="Cautions">{entries}</ul>' if entries else ""


def mono_cell(text: str) -> TableCell:
    """A path or a checksum."""
    return TableCell(text, html=mono(text))


def _facts(run: Mapping[str, Any]) -> list[object]:
    facts = run["facts"] or {}
    seed = "–" if run["seed"] is None else str(run["seed"])
    said = [str(facts.get(k) or "–") for k in ("phraseloom", "torch", "python", "machine")]
    return [run["checkpoint"] or "–", seed, *said, mono_cell(str(facts.get("dataset") or "–")[:12])]


def lacks(document: Document) -> str:
    """What is not known, and why or how to get it."""
    rows = [[lack["system"] or "all", lack["what"], lack["why"]] for lack in document["lacks"]]
    return (
        table(["system", "what", "why"], rows, sortable=False)
        if rows
        else note("Nothing that can be measured is missing.")
    )


def _lead(document: Document) -> str:
    systems = document["systems"]
    runs = sum(len(s["runs"]) for s in systems)
    count = f"{len(systems)} system{'s' * (len(systems) != 1)}, {runs} run{'s' * (runs != 1)}"
    base = f"; the base of comparisons is {systems[0]['name']}" if len(systems) > 1 else ""
    return f'<p class="soft">{_text(count + base)}. Made by phraseloom {_text(document["version"])}.</p>'


def _contents(sections: Sequence[str]) -> str:
    def entry(html: str) -> str:
        anchor = html.split('id="', 1)[1].split('"', 1)[0]
        title = html.split("<h2>", 1)[1].split("</h2>", 1)[0]
        return f'<a href="#{anchor}">{title}</a>'

    return f'<nav aria-label="Contents" class="contents no-print">{"".join(map(entry, sections))}</nav>'


def _mean(value: Mapping[str, Any] | None, form: Callable[[float], str]) -> TableCell | None:
    return None if value is None else TableCell(form(value["mean"]), value["mean"])


def _with_deviation(value: Mapping[str, Any] | None) -> TableCell | None:
    return None if value is None else plus_minus(value["mean"], value["deviation"])


def _text(text: str) -> str:
    return escape(escape_controls(text))
