"""The sections of the report page on what is cut out of sentences, and on embeddings: segments, source phrases, neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phraseloom.errors import plural
from phraseloom.report import svg
from phraseloom.report.markup import TableCell, charts, details, note, section, table
from phraseloom.report.parts import Part
from phraseloom.report.parts_phrases import PLACES
from phraseloom.report.run_report_scores import Looks

LONGEST = 6  # sizes from here on are one part of a bar
SHOWN = 20  # tokens in sight; all of them are folded away


def segments_section(part: Part, looks: Looks, number: int) -> str:
    """How long segments are, and whether known phrases are segments."""
    about = "given translations, forced" if part["forced"] else "the model's own translations"
    text = f"{plural(part['sentences'], 'sentence')}, {about}" + (
        f"; {part['left_out']:,} left out" if part["left_out"] else ""
    )
    kinds, rows = [], []
    for system in part["systems"]:
        for entry in system["phrases"]:
            kind = entry["kind"] or "all"
            if entry["segment"] is not None:
                kinds.append(svg.Bar(kind, [100 * entry[place] for place in PLACES]))
            cells = [_percent(entry[key]) for key in ("chance", "inside", "split", "posterior", "from_its_source")]
            interval = TableCell(f"{100 * entry['low']:.1f} … {100 * entry['high']:.1f}", entry["low"])
            rows.append([system["name"], kind, entry["phrases"], _percent(entry["segment"]), interval, *cells])
    headers = ["system", "kind", "phrases", "one segment %", "95 %", "by chance %", "inside one %", "split %"]
    headers += ["posterior %", "from its source %"]
    said = "Known phrases of two and more target words in the likeliest segmentation. Intervals: Wilson; by chance: the same "
    said += "segments elsewhere in their sentence; posterior: p(the phrase is a segment | both sides)."
    return section(
        f"segments-{number}",
        f"Segments: {part['name']}",
        note(text + "."),
        charts(
            _sizes("Subwords that a source subword writes (%)", part, "lengths"),
            svg.bars("Known phrases (%)", kinds, ("one segment", "inside one", "split")) if kinds else "",
        ),
        table(headers, rows) + note(said) if rows else "",
    )


def source_phrases_section(part: Part, looks: Looks, number: int) -> str:
    """How long source phrases are, how much their weightiest subword counts, which levels decoder layers read."""
    text = plural(part["sentences"], "sentence") + (
        f", of which {part['cropped']:,} were cropped" if part["cropped"] else ""
    )
    rows = [
        [system["name"], _level(entry["level"]), entry["phrases"], _percent(entry["greatest"]), _percent(entry["even"])]
        for system in part["systems"]
        for entry in system["levels"]
    ]
    headers = ["system", "level", "phrases", "greatest weight %", "1 / size %"]
    said = "Weight of the subword that counts most in its phrase, mean over phrases of two and more subwords; 1 / size: if all "
    said += "counted the same."
    return section(
        f"source_phrases-{number}",
        f"Source phrases: {part['name']}",
        note(f"{text}; {plural(sum(s['phrases'] for s in part['systems']), 'phrase')}."),
        charts(_sizes("Subwords of a phrase (%)", part, "sizes"), *map(_levels_read, part["systems"])),
        table(headers, rows) + note(said) if rows else "",
    )


def neighbours_section(part: Part, looks: Looks, number: int) -> str:
    """Cosines of the nearest embeddings by rank, how far two models agree, and the neighbours themselves."""
    series = []
    for system in part["systems"]:
        points = [(float(rank), cosine) for rank, cosine in enumerate(system["cosines"], 1)]
        tips = [f"{system['name']}, neighbour {rank:.0f}: {cosine:.3f}" for rank, cosine in points]
        series.append(svg.Series(system["name"], points, looks[system["name"]], tips=tips))
    places = [(float(rank), str(rank)) for rank in range(1, part["neighbours"] + 1)]
    axes = svg.Axes(x="neighbour, nearest first", y="cosine", places=places)
    text = f"{len(part['tokens']):,} {part['side']} tokens, neighbours among {part['candidates']:,} pieces."
    counted, two = any(t["count"] is not None for t in part["tokens"]), part["agreement"] is not None
    headers = ["token", *["count"] * counted, *["shared"] * two, *(system["name"] for system in part["systems"])]
    rows = [_token(token, counted=counted, two=two) for token in part["tokens"]]
    return section(
        f"neighbours-{number}",
        f"Nearest embeddings: {part['name']}",
        note(text + _agreement(part)),
        charts(svg.lines("Mean cosine of neighbours", series, axes)),
        table(headers, rows[:SHOWN]),
        details(f"All {plural(len(rows), 'token')}", table(headers, rows)) if len(rows) > SHOWN else "",
    )


def _sizes(title: str, part: Part, key: str) -> str:
    """Stacked shares of sizes, one bar a system."""
    sizes = sorted({min(entry["size"], LONGEST) for system in part["systems"] for entry in system[key]})
    rows = []
    for system in part["systems"]:
        total = sum(entry["count"] for entry in system[key])
        counts = [sum(e["count"] for e in system[key] if min(e["size"], LONGEST) == size) for size in sizes]
        if total:
            rows.append(svg.Bar(system["name"], [100 * count / total for count in counts]))
    return svg.bars(title, rows, [f"{size} and more" if size == LONGEST else str(size) for size in sizes])


def _levels_read(system: Mapping[str, Any]) -> str:
    shares: Sequence[Sequence[float]] = system["shares"] or []
    layers = list(zip(*shares, strict=True))
    bars = [svg.Bar(f"decoder layer {j}", [100 * share for share in layer]) for j, layer in enumerate(layers, 1)]
    return svg.bars(
        "Levels of the encoder that a decoder layer reads (%)", bars, [_level(i) for i in range(len(shares))]
    )


def _level(level: int) -> str:
    return f"level {level}" if level else "embeddings"


def _agreement(part: Part) -> str:
    found = part["agreement"]
    if found is None:
        return ""
    named = (("Pearson", found["pearson"]), ("Spearman", found["spearman"]))
    values = ", ".join(f"{name} {value:.3f}" for name, value in named if value is not None)
    cosines = f" Cosines of {plural(found['pairs'], 'pair')} of tokens: {values}." if values else ""
    return (
        f" Overlap: {found['overlap']:.3f} of {part['neighbours']} neighbours are the same, by chance "
        f"{found['chance']:.2g}.{cosines} *: a neighbour that only this model has."
    )


def _token(token: Mapping[str, Any], *, counted: bool, two: bool) -> list[object]:
    row: list[object] = [token["piece"], *[token["count"]] * counted, *[token["shared"]] * two]
    for i, own in enumerate(token["neighbours"]):
        others = [{piece for piece, _ in some} for j, some in enumerate(token["neighbours"]) if j != i]
        marks = ["*" if any(piece not in there for there in others) else "" for piece, _ in own]
        row.append(", ".join(f"{mark}{piece} {cosine:.2f}" for mark, (piece, cosine) in zip(marks, own, strict=True)))
    return row


def _percent(share: float | None) -> TableCell | None:
    return None if share is None else TableCell(f"{100 * share:.1f}", share)
