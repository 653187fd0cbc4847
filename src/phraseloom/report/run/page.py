"""The page of the document that `report.py` builds: one HTML file with charts as inline SVG; a script only sorts and hovers.

Here are the overview, the curves, the charts, and the sections on attention by layer (alignment, entropy, shares of tokens
and phrases). The sections on scores and speed are in `scores.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from phraseloom.errors import escape_controls, plural
from phraseloom.metrics.seeds import TWO_SEEDS, compares_two_seeds
from phraseloom.report.charts import svg
from phraseloom.report.charts.curves import curve_charts
from phraseloom.report.charts.places import LayerValues, by_layer
from phraseloom.report.markup import TableCell, charts, details, html_text, mono, note, page, section, table
from phraseloom.report.run.parts import (
    METHOD,
    ActivationPart,
    AlignmentPart,
    AlignmentSetting,
    ContrastivePart,
    EntropyPart,
    LayerEntropies,
    LinksPart,
    Part,
    PhenomenaPart,
    ScoresPart,
    SpeedPart,
)
from phraseloom.report.run.report import (
    RunReport,
    contrastive_section,
    coverage_section,
    fertility_section,
    phenomena_section,
)
from phraseloom.report.run.runs import OverRuns, Provenance, RunFacts, SystemFacts
from phraseloom.report.run.scores import (
    Styles,
    duration,
    neighbours_section,
    p_value,
    plus_minus,
    score_section,
    segments_section,
    source_phrases_section,
    speed_section,
)

QUADRANTS = ("token-to-token", "token-to-phrase", "phrase-to-token", "phrase-to-phrase")


def alignment_section(part: AlignmentPart, styles: Styles, number: int) -> str:
    """Alignment error rate by layer: the mean of the heads, and the best head."""
    values, rows = [], []
    for system in part.systems:
        layers = list(_alignment_layers(system.settings))
        bests = [(layer, 100 * best.aer, f"head {best.head}") for layer, _, best in layers if best is not None]
        values.append(LayerValues(system.name, [100 * mean.aer for _, mean, _ in layers], others=bests))
        lowest = min(layers, key=lambda row: row[1].aer)[0]
        for layer, mean, best in layers:
            row: list[object] = [system.name, layer]
            row.append(TableCell(f"{100 * mean.aer:.2f}", mean.aer, strong=layer == lowest))
            row += [TableCell(f"{100 * share:.2f}", share) for share in (mean.precision, mean.recall)]
            row += [int(best.head or 0), TableCell(f"{100 * best.aer:.2f}", best.aer)] if best else [None, None]
            rows.append(row)
    chart = by_layer("Alignment error rate by decoder layer", values, styles, y="AER (%)", digits=2)
    text = (
        f"Gold links of {part.gold}, {part.sentences:,.0f} sentences. Target forced, words linked by the {METHOD} of "
        "both directions; less is better. Lines: mean of the heads; pale marks: the head with the lowest rate, which was "
        "chosen on these sentences."
    ) + "".join(
        f" {system.cropped:,.0f} pairs are longer than the limits of {system.name}: gold links there count as missed."
        for system in part.systems
        if system.cropped
    )
    headers = ["system", "layer", "AER %", "precision %", "recall %", "best head", "its AER %"]
    if all(row[-1] is None for row in rows):
        headers, rows = headers[:-2], [row[:-2] for row in rows]
    return section(
        f"alignment-{number}",
        "Alignment error rate by layer",
        note(text),
        charts(svg.lines(chart)),
        table(headers, rows),
    )


def _alignment_layers(
    settings: Sequence[AlignmentSetting],
) -> Iterator[tuple[int, AlignmentSetting, AlignmentSetting | None]]:
    chosen = [m for m in settings if m.method == METHOD] or settings
    for layer in sorted({m.layer for m in chosen}):
        of_layer = [m for m in chosen if m.layer == layer]
        heads = [m for m in of_layer if m.head not in (None, "max")]
        best = min(heads, key=lambda m: m.aer) if len(heads) > 1 else None
        yield int(layer), next(m for m in of_layer if m.head is None), best


def links_section(part: LinksPart, styles: Styles, number: int) -> str:
    """Links of files against gold links."""
    rows = [
        [s.name, *(TableCell(f"{100 * share:.2f}", share) for share in (s.aer, s.precision, s.recall, s.f1))]
        for s in part.systems
    ]
    text = f"Gold links of {part.gold}, {plural(part.sentences, 'sentence')}."
    return section(
        f"links-{number}",
        f"Word alignments: {part.name}",
        note(text),
        table(["system", "AER %", "precision %", "recall %", "F1 %"], rows),
    )


def entropy_section(part: EntropyPart, styles: Styles, number: int) -> str:
    """Entropy of cross-attention by layer, over tokens and over slots if there are any."""
    figures = []
    rows: list[tuple[str, str, list[TableCell], TableCell, TableCell]] = []
    for over in ("tokens", "slots"):
        values = []
        for system in part.systems:
            reading: LayerEntropies | None = getattr(system, over)
            if reading is None:
                continue
            spread: LayerEntropies | None = getattr(system.deviation, over, None)
            ends = [*spread.layers, spread.whole] if spread else []
            values.append(LayerValues(system.name, reading.layers, reading.whole, reading.uniform, ends))
            deviations = spread.layers if spread else [None] * len(reading.layers)
            cells = [plus_minus(v, d, 3) for v, d in zip(reading.layers, deviations, strict=True)]
            whole = plus_minus(reading.whole, spread.whole if spread else None, 3)
            rows.append((system.name, over, cells, whole, TableCell(f"{reading.uniform:.3f}", reading.uniform)))
        title = f"Entropy over {over} by decoder layer"
        figures.append(svg.lines(by_layer(title, values, styles, y="entropy (nats)", digits=3, levels="uniform")))
    most = max(len(row[2]) for row in rows)
    headers = ["system", "over", *(f"layer {i}" for i in range(1, most + 1)), "all layers", "uniform"]
    shown = [
        [name, over, *cells, *[None] * (most - len(cells)), whole, even] for name, over, cells, whole, even in rows
    ]
    first = part.systems[0]
    targets = "each model's own translations" if first.own else "the reference, forced"
    text = (
        f"Cross-attention, heads averaged, mean over the steps of {first.sentences:,.0f} sentences ({targets}). uniform: "
        "attention spread evenly, the greatest there is over tokens."
    )
    return section(
        f"entropy-{number}", "Attention entropy by layer", note(text), charts(*figures), table(headers, shown)
    )


def activation_section(part: ActivationPart, styles: Styles, number: int) -> str:
    """Shares of attention mass among tokens and phrases, by use, system and layer."""
    uses = list(dict.fromkeys(use for s in part.systems for use in s.uses))
    figures, rows = [], []
    for use in uses:
        names = [
            q
            for q in QUADRANTS
            if any(layer.joint.get(q) is not None for s in part.systems for layer in s.uses.get(use, ()))
        ]
        bars: list[svg.Bar] = []
        for system in part.systems:
            for i, layer in enumerate(system.uses.get(use, ())):
                label = f"{system.name}, {layer.layer:.0f}" if len(part.systems) > 1 else f"layer {layer.layer:.0f}"
                bars.append(svg.Bar(label, [layer.joint.get(q) or 0.0 for q in names], gap=i == 0 and bool(bars)))
                shares = [of.get(q) for of in (layer.mass, layer.activation) for q in QUADRANTS]
                cells = [None if share is None else TableCell(f"{share:.1f}", share) for share in shares]
                rows.append([system.name, use, int(layer.layer), *cells])
        figures.append(svg.bars(f"Attention mass, {use} (% by layer)", bars, names))
    tau = part.systems[0].tau
    short = [f"{a} → {b}" for a in "TP" for b in "TP"]
    headers = ["system", "attention", "layer", *(f"mass {s}" for s in short), *(f"active {s}" for s in short)]
    text = (
        f"Mean over {part.systems[0].sentences:,.0f} sentences, target forced. Bars: of all mass. Table: mass within the "
        f"queries of tokens (T) and of phrases (P), and cells above {tau:g}; in per cent."
    )
    return section(
        f"activation-{number}",
        f"Token and phrase attention: {part.name}",
        note(text),
        charts(*figures),
        details("The numbers", table(headers, rows)),
    )


SECTIONS: dict[str, Callable[[Any, Styles, int], str]] = {
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


def report_page(document: RunReport) -> str:
    """The whole page."""
    styles = {s.name: s.look for s in document.systems}
    speed = next((p for p in document.parts if isinstance(p, SpeedPart)), None)
    sections = [
        section("overview", "Overview", overview(document)),
        section("curves", "Learning curves", curves(document.systems)),
        *(SECTIONS[p.kind](p, styles, i) for i, p in enumerate(document.parts, 1) if p.kind in SECTIONS),
        speed_section(speed, [s for s in document.systems if s.runs]),
        section("provenance", "Configuration and provenance", provenance(document)),
        section("lacks", "Missing from this report", lacks(document)),
    ]
    present = [s for s in sections if s]
    head = f"<h1>{html_text(document.title)}</h1>{_lead(document)}{warning_box(document.warnings)}"
    body = f"<header>{head}</header>{_contents(present)}<main>{''.join(present)}</main>"
    return page(escape_controls(document.title), body, styles=["report.css"], scripts=["report.js"])


def overview(document: RunReport) -> str:
    """The figures of every system, one row each, without empty columns; each kind of them is of one part (`Summary`)."""
    rows = []
    several = any(s.summary.runs > 1 for s in document.systems)
    scores = next((p for p in document.parts if isinstance(p, ScoresPart) and p.of is None), None)
    metrics = [m.metric for m in scores.metrics] if scores else []
    base = scores.bootstrap.baseline if scores and scores.bootstrap else ""
    for system in document.systems:
        s = system.summary
        row: dict[str, object] = {
            "system": TableCell(system.name, html=svg.key(escape_controls(system.name), system.look))
        }
        row["runs"] = s.runs if several else None
        row["parameters"] = _mean(s.parameters, lambda v: f"{v:,.0f}")
        row["updates"] = _mean(s.updates, lambda v: f"{v:,.0f}")
        row["training"] = _mean(s.seconds, duration)
        row["best valid. perplexity"] = _with_deviation(s.valid_perplexity)
        row["best valid. BLEU"] = _with_deviation(s.valid_bleu)
        for metric in metrics:
            e = s.scores.get(metric)
            row[metric] = e and plus_minus(e.value, e.deviation)
            low, high = (e.low, e.high) if e else (None, None)
            if metric == metrics[0]:
                row[f"{metric} 95 %"] = None if low is None else TableCell(f"{low:.1f} … {high:.1f}", low)
        first = s.scores.get(metrics[0]) if metrics else None
        row[f"p vs. {base}"] = p_value(first.p) if first else None
        subset, contrast, aligned = s.subset, s.contrastive, s.alignment
        row["lines with phrases"] = subset and plus_minus(subset.value, subset.deviation)
        row["contrastive %"] = contrast and plus_minus(100 * contrast.accuracy, None, 1)
        row["AER %"] = aligned and TableCell(f"{100 * aligned.aer:.1f} (layer {aligned.layer:.0f})", aligned.aer)
        row["sentences / s"] = _mean(s.speed, lambda v: f"{v:,.1f}")
        rows.append(row)
    headers = [h for h in rows[0] if any(row[h] is not None for row in rows)] if rows else []
    shown = [[row[h] if row[h] is not None else "–" for h in headers] for row in rows]
    text = "± standard deviation over runs with other seeds. " if several else ""
    if metrics and len(rows) > 1:
        one_run = any(s.summary.runs == 1 for s in document.systems)
        text += f"p: two-sided, on {metrics[0]}" + (
            ", between these runs alone where a system has one. " if one_run else ". "
        )
        counts = [len(e.runs or [0]) for s in document.systems if (e := s.summary.scores.get(metrics[0]))]
        text += f"{TWO_SEEDS} " if compares_two_seeds(counts) else ""
    if "best valid. perplexity" in headers and "best valid. BLEU" in headers:
        text += "Best validation: of each curve by itself, so that the two may be of different checkpoints. "
    kinds = [(p.kind, isinstance(p, ScoresPart) and p.of is not None) for p in document.parts]
    if any(kinds.count((kind, of)) > 1 for kind, of in kinds if kind in ("scores", "contrastive", "alignment")):
        text += "Figures of one kind are all of its first section below; systems of other sections have –. "
    return table(headers, shown, name="Overview") + note(
        text + "–: not known; see the end of the page. A click on a heading sorts."
    )


def curves(systems: Sequence[SystemFacts]) -> str:
    """Loss, validation perplexity and BLEU by update and by wall time, learning rate and gradient norm."""
    found = curve_charts(systems)
    several = any(len(s.runs) > 1 for s in systems)
    band = "Lines of several runs are their mean, the band is one standard deviation. " if several else ""
    text = f"{band}Training values are means over intervals of updates; validation is of the checkpoint that was training then."
    losses = [svg.lines(chart, legend=len(found.loss) > 1) for chart in found.loss]
    main = charts(*losses, *map(svg.lines, (*found.validation, *found.by_time)))
    folded = details("Learning rate and gradient norm", charts(*map(svg.lines, found.steps)))
    return main + (note(text) if main else "") + folded


def provenance(document: RunReport) -> str:
    """Recipes, the table of runs, and what the report was made from; settings that all systems share are folded."""
    systems = [s for s in document.systems if s.runs]
    names = [s.name for s in systems]
    rows = document.configuration
    different = [[mono_cell(r.key), *r.values] for r in rows if not r.same]
    same = [[mono_cell(r.key), r.values[0]] for r in rows if r.same]
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
    runs = [
        [system.name, *(cell(run, run.facts or Provenance()) for cell in RUN_COLUMNS.values())]
        for system in systems
        for run in system.runs
    ]
    parts += ["<h3>Runs</h3>", table(["system", *RUN_COLUMNS], runs)] if runs else []
    files = [[key, mono_cell(value)] for key, value in document.about.items() if value is not None]
    parts += ["<h3>Made from</h3>", table(["", "what"], files, sortable=False)] if files else []
    return "".join(parts)


def warning_box(warnings: Sequence[str]) -> str:
    """The warnings in a box."""
    entries = "".join(f"<li>{html_text(warning)}</li>" for warning in warnings)
    return f'<ul class="panel" aria-label="Cautions">{entries}</ul>' if entries else ""


def mono_cell(text: str) -> TableCell:
    """A path or a checksum."""
    return TableCell(text, html=mono(text))


# The table of runs: the header and the cell of each column after the system.
RUN_COLUMNS: dict[str, Callable[[RunFacts, Provenance], object]] = {
    "folder": lambda run, _: mono_cell(run.folder),
    "checkpoint": lambda run, _: run.checkpoint or "–",
    "seed": lambda run, _: "–" if run.seed is None else str(run.seed),
    "phraseloom": lambda _, made: made.phraseloom or "–",
    "torch": lambda _, made: made.torch or "–",
    "Python": lambda _, made: made.python or "–",
    "machine": lambda _, made: made.machine or "–",
    "dataset": lambda _, made: mono_cell((made.dataset or "–")[:12]),
}


def lacks(document: RunReport) -> str:
    """What is missing, and why or how to get it."""
    rows = [[lack.system or "all", lack.what, lack.why] for lack in document.lacks]
    return (
        table(["system", "what", "why"], rows, sortable=False)
        if rows
        else note("Nothing that can be measured is missing.")
    )


def _lead(document: RunReport) -> str:
    systems = document.systems
    runs = sum(len(s.runs) for s in systems)
    count = f"{plural(len(systems), 'system')}, {plural(runs, 'run')}"
    bases = list(dict.fromkeys(base for part in document.parts if (base := _base(part)) is not None))
    base = f"; the base of comparisons is {bases[0]}" if len(bases) == 1 else ""
    if len(bases) > 1:
        base = f"; the sections have different bases of comparisons: {', '.join(bases)}"
    return f'<p class="soft">{html_text(count + base)}. Made by phraseloom {html_text(document.version)}.</p>'


def _base(part: Part) -> str | None:
    """The system with which a part compares the others; None if it compares none."""
    if isinstance(part, ScoresPart):
        return part.bootstrap.baseline if part.bootstrap and len(part.systems) > 1 else None
    if isinstance(part, ContrastivePart | PhenomenaPart):
        compared = any(e.difference is not None for group in part.groups for e in group.systems)
        return part.systems[0].name if compared else None
    return None


def _contents(sections: Sequence[str]) -> str:
    def entry(html: str) -> str:
        anchor = html.split('id="', 1)[1].split('"', 1)[0]
        title = html.split("<h2>", 1)[1].split("</h2>", 1)[0]
        return f'<a href="#{anchor}">{title}</a>'

    return f'<nav aria-label="Contents" class="contents no-print">{"".join(map(entry, sections))}</nav>'


def _mean(value: OverRuns | None, form: Callable[[float], str]) -> TableCell | None:
    return None if value is None else TableCell(form(value.mean), value.mean)


def _with_deviation(value: OverRuns | None) -> TableCell | None:
    return None if value is None else plus_minus(value.mean, value.deviation)
