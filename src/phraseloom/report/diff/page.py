"""The comparison of two systems (`diff.py`) as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from phraseloom.errors import escape_controls
from phraseloom.report.charts import svg
from phraseloom.report.charts.chart import Axes, Chart, Series
from phraseloom.report.diff.diff import (
    ComparedCurve,
    ComparedNumber,
    ComparedSentences,
    ComparedText,
    RunComparison,
    marked,
)
from phraseloom.report.diff.text import CURVES, change, differences, numbers, reached, summary, value
from phraseloom.report.markup import TableCell, charts, details, html_text, note, page, section, table
from phraseloom.report.run.page import curves, mono_cell, warning_box
from phraseloom.report.run.runs import Missing
from phraseloom.report.run.scores import score_section


def diff_page(document: RunComparison) -> str:
    """The whole page."""
    systems = document.systems
    names = [s.name for s in systems]
    config = document.configuration
    keys = [[mono_cell(r.key), *r.values] for r in config.different]
    body = [
        section(
            "configuration",
            "Configuration",
            note(f"{len(keys)} keys differ, {config.same} are the same."),
            table(["key", *names], keys, sortable=False) if keys else "",
        ),
        section("data", "Data", _compared(document.data, names)),
        section("versions", "Versions and machine", _compared(document.versions, names)),
        section("training", "Training", _training(document.training, names)),
        section(
            "curves",
            "Learning curves",
            curves(systems),
            _differences(document.curves),
            _reached(document.curves, names),
        ),
        score_section(document.scores, {n: i for i, n in enumerate(names)}, 1) if document.scores else "",
        _sentences(document.sentences, names) if document.sentences else "",
        section("lacks", "Not compared", _lacks(document.lacks)),
    ]
    keyed = "".join(svg.key(escape_controls(s.name), s.look) for s in systems)
    folders = "; ".join(f"{s.name}: {', '.join(run.folder for run in s.runs)}" for s in systems if s.runs)
    title = f"{names[0]} and {names[1]} compared"
    lead = f"{folders}. Differences are {names[1]} − {names[0]}. Made by phraseloom {document.version}."
    warnings = warning_box(document.warnings)
    header = f'<header><h1>{html_text(title)}</h1><p class="keys">{keyed}</p>{note(lead)}{warnings}</header>'
    inside = "".join(part for part in body if part)
    return page(escape_controls(title), f"{header}<main>{inside}</main>", styles=["report.css"], scripts=["report.js"])


def _compared(rows: Sequence[ComparedText], names: Sequence[str]) -> str:
    cells = [[r.what, *r.values, "same" if r.same else TableCell("different", strong=True)] for r in rows]
    return f'<div class="wrap">{table(["", *names, ""], cells, sortable=False)}</div>'


def _training(rows: Sequence[ComparedNumber], names: Sequence[str]) -> str:
    cells: list[list[object]] = []
    for r in rows:
        values = [value(r.key, v) for v in r.values]
        if any(values):
            cells.append([r.what, *values, *(text and TableCell(text, r.difference) for text in change(r))])
    return table(["", *names, "difference", "relative"], cells, sortable=False)


def _differences(parts: Sequence[ComparedCurve]) -> str:
    figures = []
    for curve in parts:
        points = [(row.update, row.difference) for row in curve.rows]
        tips = [f"update {u:,.0f}: {d:+.3f}" for u, d in points]
        series = Series(CURVES[curve.key], points, 6, marked=len(points) <= 40, tips=tips)
        axes = Axes(x="updates", y="difference", x_zero=True, y_zero=True, level=(0.0, "the same"))
        figures.append(svg.lines(Chart(f"{CURVES[curve.key]}: difference", [series], axes)))
    return charts(*figures)


def _reached(parts: Sequence[ComparedCurve], names: Sequence[str]) -> str:
    sentences = [
        f"{CURVES[c.key]}: {reached(names[i], names[1 - i], r)}."
        for c in parts
        if c.key != "nll"
        for i, r in enumerate(c.reached)
    ]
    return note(" ".join(sentences))


def _sentences(part: ComparedSentences, names: Sequence[str]) -> str:
    shown = []
    for sentence in part.listed:
        rows = [(what, html_text(line)) for what, line in sentence.texts.items()]
        first, second = (s.translations[0] for s in sentence.systems)
        sides = marked(first, second)
        for system, words, tag in zip(sentence.systems, sides, ("del", "ins"), strict=True):
            html = " ".join(f"<{tag}>{html_text(t)}</{tag}>" if only else html_text(t) for t, only in words)
            rows.append((system.name + numbers(system), html))
            rows += [(system.name, html_text(text)) for text in dict.fromkeys(system.translations[1:])]
            if system.phrases:
                rows.append(("phrases", html_text(system.phrases)))
        entries = "".join(f"<dt>{html_text(name)}</dt><dd>{html}</dd>" for name, html in rows)
        head = f'<strong>Line {sentence.line}</strong> <span class="soft">{html_text(differences(sentence))}</span>'
        shown.append(f'<div class="sentence">{head}<dl>{entries}</dl></div>')
    marks = "Marked: words that the other translation does not have in this place." if shown else ""
    return section("sentences", "Sentences that differ most", note(summary(part, names)), note(marks), *shown)


def _lacks(lacks: Sequence[Missing]) -> str:
    rows = [[lack.system or "both", lack.what, lack.why] for lack in lacks]
    return (
        details(f"{len(rows)} things are not known", table(["system", "what", "why"], rows, sortable=False))
        if rows
        else ""
    )
