"""The sections of the report page on what is right or wrong: contrastive items, phenomena, classes of fertility, spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phraseloom.errors import plural
from phraseloom.report import svg
from phraseloom.report.markup import TableCell, charts, details, note, section, table
from phraseloom.report.parts import Part
from phraseloom.report.run_report_scores import Looks, p_value, plus_minus

TESTS = "Intervals: Wilson; p: exact McNemar test against the first system."


def contrastive_section(part: Part, looks: Looks, number: int) -> str:
    """Accuracy by distance, a chart for each category that has distances, and the table of all groups."""
    figures = []
    for category in dict.fromkeys(g["category"] for g in part["groups"]):
        some = [g for g in part["groups"] if g["category"] == category and g["distance"] is not None]
        if some:
            title = f"Accuracy by distance: {category}" if category else "Accuracy by distance"
            figures.append(_by_place(title, [(g["distance"], g["items"], g) for g in some], looks, "distance in words"))
    rows = [
        [
            "all" if g["category"] is None else g["category"] or "–",
            g["distance"] or "all",
            g["items"],
            e["name"],
            _percent(e["accuracy"], e["deviation"]),
            TableCell(f"{100 * e['low']:.1f} … {100 * e['high']:.1f}", e["low"]),
            None if e["difference"] is None else TableCell(f"{100 * e['difference']:+.1f}", e["difference"]),
            p_value(e["p"]),
        ]
        for g in part["groups"]
        for e in g["systems"]
    ]
    headers = ["category", "distance", "items", "system", "right %", "95 %", "difference", "p"]
    whole = [
        row
        for row, g in zip(rows, (g for g in part["groups"] for _ in g["systems"]), strict=True)
        if g["distance"] is None
    ]
    estimate = (
        " (distance estimated by the position of the first word that differs)" if part["distance"] == "position" else ""
    )
    text = f"{part['items']:,} items{estimate}; right: the correct translation is likelier than the wrong one. {TESTS}"
    return section(
        f"contrastive-{number}",
        f"Contrastive accuracy: {part['name']}",
        note(text),
        charts(*figures),
        table(headers, whole),
        details(f"All {plural(len(rows), 'row')}, by distance", table(headers, rows)) if len(whole) < len(rows) else "",
    )


def phenomena_section(part: Part, looks: Looks, number: int) -> str:
    """Accuracy of the phenomena of the built-in world."""
    rows = [
        [
            g["phenomenon"],
            g["instances"],
            e["name"],
            _percent(e["accuracy"]),
            TableCell(f"{100 * e['low']:.1f} … {100 * e['high']:.1f}", e["low"]),
            p_value(e["p"]),
        ]
        for g in part["groups"]
        for e in g["systems"]
    ]
    groups = [(g["phenomenon"], g["instances"], g) for g in part["groups"]]
    figure = _by_place("Accuracy by phenomenon", groups, looks, "", joined=False)
    headers = ["phenomenon", "instances", "system", "right %", "95 %", "p"]
    text = f"{plural(part['sentences'], 'sentence')} of {part['split']}. {TESTS}"
    return section(
        f"phenomena-{number}", f"Phenomena: {part['name']}", note(text), charts(figure), table(headers, rows)
    )


def fertility_section(part: Part, looks: Looks, number: int) -> str:
    """Precision, recall and F1 of the classes of the fertility module."""
    rows = [
        [
            system["name"],
            of,
            name,
            int(s["total"]),
            *(TableCell(f"{100 * s[k]:.2f}", s[k]) for k in ("precision", "recall", "f1")),
        ]
        for system in part["systems"]
        for of, scored in (("fertility", system["classes"]), ("word or phrase", system["gate"]))
        for name, s in scored.items()
    ]
    headers = ["system", "about", "class", "tokens", "precision %", "recall %", "F1 %"]
    accuracy = "; ".join(
        f"{s['name']}: accuracy {100 * s['accuracy']:.2f} %, loss {s['loss']:.4f}" for s in part["systems"]
    )
    return section(f"fertility-{number}", f"Fertility: {part['name']}", table(headers, rows), note(accuracy + "."))


def coverage_section(part: Part, looks: Looks, number: int) -> str:
    """How much of the attention to phrase slots is on gold phrases."""
    rows = [
        [
            s["name"],
            r["use"],
            int(r["layer"]),
            int(r["order"]),
            *(None if r[k] is None else TableCell(f"{100 * r[k]:.1f}", r[k]) for k in ("covered", "chance")),
            r["lift"],
            None if not r["interval"] else TableCell("{:.2f} … {:.2f}".format(*r["interval"]), r["interval"][0]),
        ]
        for s in part["systems"]
        for r in s["rows"]
    ]
    headers = ["system", "attention", "layer", "order", "on gold phrases %", "by chance %", "lift", "95 %"]
    return section(
        f"coverage-{number}",
        f"Gold phrases under phrase slots: {part['name']}",
        note(f"{plural(part['phrases'], 'phrase')} in {plural(part['sentences'], 'sentence')}."),
        table(headers, rows),
    )


def _by_place(
    title: str, groups: Sequence[tuple[str, int, Mapping[str, Any]]], looks: Looks, x: str, *, joined: bool = True
) -> str:
    names = list(dict.fromkeys(e["name"] for _, _, g in groups for e in g["systems"]))
    series = []
    for i, name in enumerate(names):
        aside = 0.5 * (i - (len(names) - 1) / 2) / max(1, len(names))
        points, low, high, tips = [], [], [], []
        for place, (label, items, group) in enumerate(groups):
            e = next(e for e in group["systems"] if e["name"] == name)
            points.append((place + aside, 100 * e["accuracy"]))
            low.append(100 * e["low"])
            high.append(100 * e["high"])
            tips.append(f"{name}, {label} ({items:,}): {points[-1][1]:.1f} % ({low[-1]:.1f} … {high[-1]:.1f})")
        series.append(svg.Series(name, points, looks[name], low, high, joined=joined, tips=tips))
    places = [(float(i), label) for i, (label, _, _) in enumerate(groups)]
    level = (50.0, "guessing") if joined else None
    return svg.lines(title, series, svg.Axes(x=x, y="right (%)", places=places, level=level))


def _percent(value: float, deviation: float | None = None) -> TableCell:
    found = plus_minus(100 * value, None if deviation is None else 100 * deviation, 1)
    return TableCell(found.text, value)
