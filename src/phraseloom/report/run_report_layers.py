"""The sections of the report page on attention by layer: alignment, entropy, shares of tokens and phrases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phraseloom.errors import plural
from phraseloom.report import svg
from phraseloom.report.markup import TableCell, charts, details, note, section, table
from phraseloom.report.parts import METHOD, Part
from phraseloom.report.run_report_scores import Looks, plus_minus

QUADRANTS = ("token-to-token", "token-to-phrase", "phrase-to-token", "phrase-to-phrase")


def alignment_section(part: Part, looks: Looks, number: int) -> str:
    """Alignment error rate by layer: the mean of the heads, and the best head."""
    series, rows = [], []
    for system in part["systems"]:
        by_layer = list(_alignment_layers(system["settings"]))
        look = looks[system["name"]]
        means = [(layer, 100 * mean["aer"]) for layer, mean, _ in by_layer]
        tips = [f"{system['name']}, layer {layer}: {aer:.2f} %" for layer, aer in means]
        series.append(svg.Series(system["name"], means, look, tips=tips))
        bests = [(float(layer), 100 * best["aer"]) for layer, _, best in by_layer if best is not None]
        faint = [
            f"{system['name']}, layer {layer}, head {best['head']}: {100 * best['aer']:.2f} %"
            for layer, _, best in by_layer
            if best
        ]
        series.append(svg.Series(system["name"], bests, look, joined=False, faint=True, tips=faint))
        lowest = min(means, key=lambda pair: pair[1])[0]
        for layer, mean, best in by_layer:
            row: list[object] = [
                system["name"],
                layer,
                TableCell(f"{100 * mean['aer']:.2f}", mean["aer"], strong=layer == lowest),
            ]
            row += [TableCell(f"{100 * mean[k]:.2f}", mean[k]) for k in ("precision", "recall")]
            row += (
                [None, None]
                if best is None
                else [int(best["head"]), TableCell(f"{100 * best['aer']:.2f}", best["aer"])]
            )
            rows.append(row)
    axes = svg.Axes(
        x="decoder layer",
        y="AER (%)",
        places=_layers([layer for s in part["systems"] for layer in {m["layer"] for m in s["settings"]}]),
    )
    text = (
        f"Gold links of {part['gold']}, {part['sentences']:,.0f} sentences. Target forced, words linked by the {METHOD} of "
        "both directions; less is better. Lines: mean of the heads; pale marks: the head with the lowest rate, which was "
        "chosen on these sentences."
    )
    headers = ["system", "layer", "AER %", "precision %", "recall %", "best head", "its AER %"]
    if all(row[-1] is None for row in rows):
        headers, rows = headers[:-2], [row[:-2] for row in rows]
    return section(
        f"alignment-{number}",
        "Alignment error rate by layer",
        note(text),
        charts(svg.lines("Alignment error rate by decoder layer", series, axes)),
        table(headers, rows),
    )


def _alignment_layers(
    settings: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any] | None]]:
    some = [m for m in settings if m["method"] == METHOD] or list(settings)
    for layer in sorted({m["layer"] for m in some}):
        of = [m for m in some if m["layer"] == layer]
        heads = [m for m in of if m["head"] is not None]
        best = min(heads, key=lambda m: m["aer"]) if len(heads) > 1 else None
        yield int(layer), next(m for m in of if m["head"] is None), best


def links_section(part: Part, looks: Looks, number: int) -> str:
    """Links of files against gold links."""
    keys = ("aer", "precision", "recall", "f1")
    rows = [[s["name"], *(TableCell(f"{100 * s[k]:.2f}", s[k]) for k in keys)] for s in part["systems"]]
    text = f"Gold links of {part['gold']}, {plural(part['sentences'], 'sentence')}."
    return section(
        f"links-{number}",
        f"Word alignments: {part['name']}",
        note(text),
        table(["system", "AER %", "precision %", "recall %", "F1 %"], rows),
    )


def entropy_section(part: Part, looks: Looks, number: int) -> str:
    """Entropy of the cross-attention by layer, over tokens, and over slots where there are some."""
    figures, rows = [], []
    for over in ("tokens", "slots"):
        series = []
        for system in part["systems"]:
            reading = system[over]
            if reading is None:
                continue
            spread = (system.get("deviation") or {}).get(over)
            points = [(float(i), v) for i, v in enumerate(reading["layers"], 1)]
            low, high = [], []
            if spread:
                low, high = (
                    [v + sign * d for (_, v), d in zip(points, spread["layers"], strict=True)] for sign in (-1, 1)
                )
            tips = [f"{system['name']}, layer {i:.0f}: {v:.3f} nats" for i, v in points]
            series.append(svg.Series(system["name"], points, looks[system["name"]], low, high, tips=tips))
            cells = [
                plus_minus(v, d, 3)
                for v, d in zip(reading["layers"], spread["layers"] if spread else [None] * len(points), strict=True)
            ]
            rows.append(
                [
                    system["name"],
                    over,
                    cells,
                    plus_minus(reading["whole"], spread and spread["whole"], 3),
                    TableCell(f"{reading['uniform']:.3f}", reading["uniform"]),
                ]
            )
        layers = [x for s in series for x, _ in s.points]
        if series:
            axes = svg.Axes(x="decoder layer", y="entropy (nats)", places=_layers(layers), y_zero=True)
            figures.append(svg.lines(f"Entropy over {over} by decoder layer", series, axes))
    most = max(len(row[2]) for row in rows)
    headers = ["system", "over", *(f"layer {i}" for i in range(1, most + 1)), "all layers", "uniform"]
    shown = [
        [name, over, *cells, *[None] * (most - len(cells)), whole, even] for name, over, cells, whole, even in rows
    ]
    first = part["systems"][0]
    targets = "each model's own translations" if first["own"] else "the reference, forced"
    text = (
        f"Cross-attention, heads averaged, mean over the steps of {first['sentences']:,.0f} sentences ({targets}). uniform: "
        "attention spread evenly, the greatest there is over tokens."
    )
    return section(
        f"entropy-{number}", "Attention entropy by layer", note(text), charts(*figures), table(headers, shown)
    )


def activation_section(part: Part, looks: Looks, number: int) -> str:
    """Shares of attention mass among tokens and phrases, by use, system and layer."""
    uses = list(dict.fromkeys(use for s in part["systems"] for use in s["uses"]))
    figures, rows = [], []
    for use in uses:
        names = [
            q
            for q in QUADRANTS
            if any(layer["joint"].get(q) is not None for s in part["systems"] for layer in s["uses"].get(use, ()))
        ]
        some: list[svg.Bar] = []
        for system in part["systems"]:
            for i, layer in enumerate(system["uses"].get(use, ())):
                label = (
                    f"{system['name']}, {layer['layer']:.0f}"
                    if len(part["systems"]) > 1
                    else f"layer {layer['layer']:.0f}"
                )
                some.append(svg.Bar(label, [layer["joint"].get(q) or 0.0 for q in names], gap=i == 0 and bool(some)))
                row: list[object] = [system["name"], use, int(layer["layer"])]
                row += [
                    None if layer["mass"].get(q) is None else TableCell(f"{layer['mass'][q]:.1f}", layer["mass"][q])
                    for q in QUADRANTS
                ]
                row += [
                    None
                    if layer["activation"].get(q) is None
                    else TableCell(f"{layer['activation'][q]:.1f}", layer["activation"][q])
                    for q in QUADRANTS
                ]
                rows.append(row)
        figures.append(svg.bars(f"Attention mass, {use} (% by layer)", some, names))
    tau = part["systems"][0]["tau"]
    short = [f"{a} → {b}" for a in "TP" for b in "TP"]
    headers = ["system", "attention", "layer", *(f"mass {s}" for s in short), *(f"active {s}" for s in short)]
    text = (
        f"Mean over {part['systems'][0]['sentences']:,.0f} sentences, target forced. Bars: of all mass. Table: mass within the "
        f"queries of tokens (T) and of phrases (P), and cells above {tau:g}; in per cent."
    )
    return section(
        f"activation-{number}",
        f"Token and phrase attention: {part['name']}",
        note(text),
        charts(*figures),
        details("The numbers", table(headers, rows)),
    )


def _layers(layers: Sequence[float]) -> list[tuple[float, str]]:
    return [(float(n), str(n)) for n in range(1, int(max(layers, default=1)) + 1)]
