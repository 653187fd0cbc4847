"""Sections of the report page: scores with intervals and tests, speed, segments, source phrases, nearest embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phraseloom.errors import plural
from phraseloom.metrics.compare import few_sentences
from phraseloom.metrics.given import digits_of
from phraseloom.metrics.seeds import LEVEL, TWO_SEEDS, compares_two_seeds
from phraseloom.report.charts import svg
from phraseloom.report.charts.chart import Axes, Chart, Series
from phraseloom.report.charts.places import by_length
from phraseloom.report.markup import TableCell, charts, details, html_text, note, p_text, section, table
from phraseloom.report.run.parts import (
    PLACES,
    ListedToken,
    NeighboursPart,
    ScoresPart,
    SegmentsPart,
    SizeCount,
    SourcePhrasesPart,
    SpeedPart,
    SystemPhrases,
)
from phraseloom.report.run.runs import OverRuns

if TYPE_CHECKING:
    from phraseloom.report.run.report import ReportedSystem

Styles = Mapping[str, int]  # system → number of its colour and marker
TESTS = "p: two-sided, of no difference"
ONE_RUN = "Where a system has one run, this is between these two runs and says nothing about other seeds"


def plus_minus(value: float, deviation: float | None, digits: int = 2) -> TableCell:
    """`27.31 ± 0.12`; the deviation over runs if there are several."""
    text = f"{value:.{digits}f}"
    return TableCell(text if deviation is None else f"{text} ± {deviation:.{digits}f}", value)


def ends(low: float | None, high: float | None, sign: str = "", digits: int = 2) -> TableCell | None:
    """An interval as text, sorted by its lower end."""
    form = f"{sign}.{digits}f"
    return None if low is None or high is None else TableCell(f"{low:{form}} … {high:{form}}", low)


def p_value(p: float | None) -> TableCell | None:
    """p with four decimals."""
    return None if p is None else TableCell(p_text(p), p)


def score_section(part: ScoresPart, styles: Styles, number: int) -> str:
    """One test set or subset: dots, differences to the baseline, tables and signatures."""
    boot, several = part.bootstrap, len(part.systems) > 1
    chosen = part.of
    title = f"{'Some lines alone' if chosen else 'Translation quality'}: {part.name}"
    text = plural(part.sentences, "sentence") + (
        f", those of {chosen.file} among {chosen.sentences:,}" if chosen else ""
    )
    if boot:
        text += f". Intervals: 95 %, from {boot.samples:,} resamples of the sentences (seed {boot.seed}) and the seeds"
        text += f"; differences are paired, against {boot.baseline}; {TESTS}" if several else ""
    if any(e.deviation is not None for system in part.systems for e in system.scores.values()):
        text += ". ±: standard deviation over runs with other seeds, which is in the intervals"
    if any(e.one_seed for system in part.systems for e in system.scores.values()):
        text += f". {ONE_RUN}"
    text = " ".join([f"{text}.", *cautions(part)])
    digits = _digits(part)
    figures = [_dots(part, metric, styles, number) for metric, number in digits.items()]
    differences = [_difference_dots(part, metric, styles, number) for metric, number in digits.items()]
    signatures = "; ".join(f"{m.metric}: {m.signature}" for m in part.metrics)
    return section(
        f"scores-{number}",
        title,
        note(text),
        charts(*figures, *differences),
        _table(part),
        _pairs(part),
        note(signatures),
        _lengths(part, styles),
    )


def cautions(part: ScoresPart) -> list[str]:
    """Sentences on intervals and p that mean little: of two seeds, or of few sentences."""
    if part.bootstrap is None:
        return []
    counts = [len(score.runs or [0]) for system in part.systems for score in list(system.scores.values())[:1]]
    few = few_sentences(part.sentences)
    return [TWO_SEEDS] * compares_two_seeds(counts, pairs=bool(part.pairs)) + (
        [f"{few[0].upper()}{few[1:]}."] if few else []
    )


def _digits(part: ScoresPart) -> dict[str, int]:
    """Metric → decimal places of its scores."""
    return {m.metric: digits_of(m.signature, [s.scores[m.metric].value for s in part.systems]) for m in part.metrics}


def _dots(part: ScoresPart, metric: str, styles: Styles, digits: int) -> str:
    rows = [
        svg.Dot(s.name, e.value, e.low, e.high, styles[s.name]) for s in part.systems if (e := s.scores.get(metric))
    ]
    return svg.dots(metric + (" with 95 % intervals" if part.bootstrap else ""), rows, x=metric, digits=digits)


def _difference_dots(part: ScoresPart, metric: str, styles: Styles, digits: int) -> str:
    rows = [
        svg.Dot(s.name, e.difference, e.difference_low, e.difference_high, styles[s.name])
        for s in part.systems
        if (e := s.scores.get(metric)) and e.difference is not None
    ]
    base = part.bootstrap.baseline if part.bootstrap else ""
    return svg.dots(
        f"{metric}: difference to {base}", rows, x=f"{metric} − {metric} of {base}", zero=True, digits=digits
    )


def _table(part: ScoresPart) -> str:
    boot, rows, digits = part.bootstrap, [], _digits(part)
    compared = boot is not None and len(part.systems) > 1
    headers = ["system", "metric", "score"] + ["95 %"] * bool(boot)
    headers += ["difference", "95 % of it", "p"] if compared else []
    for metric in part.metrics:
        values = [s.scores[metric.metric].value for s in part.systems]
        best = max(values) if metric.higher_is_better else min(values)
        for system in part.systems:
            e, n = system.scores[metric.metric], digits[metric.metric]
            score = plus_minus(e.value, e.deviation, n)
            row: list[object] = [system.name, metric.metric]
            row.append(TableCell(score.text, score.value, strong=compared and e.value == best))
            row += [ends(e.low, e.high, digits=n)] if boot else []
            if compared and e.difference is not None:
                row.append(TableCell(f"{e.difference:+.{n}f}", e.difference))
                row += [ends(e.difference_low, e.difference_high, "+", n), p_value(e.p)]
            rows.append(row + [None] * (len(headers) - len(row)))
    return table(headers, rows, name="Scores")


def _pairs(part: ScoresPart) -> str:
    pairs = part.pairs or []
    if len(pairs) < 2:
        return ""
    digits = _digits(part)
    rows = [
        [
            f"{p.system} − {p.other}",
            p.metric,
            TableCell(f"{p.difference:+.{digits[p.metric]}f}", p.difference),
            ends(p.difference_low, p.difference_high, "+", digits[p.metric]),
            p_value(p.p),
            TableCell(p_text(p.p_holm) + (" *" if p.p_holm < LEVEL else ""), p.p_holm),
        ]
        for p in pairs
    ]
    headers = ["pair", "metric", "difference", "95 %", "p", "p after Holm"]
    return details(
        f"Every pair of systems ({len(pairs)})",
        table(headers, rows),
        note(f"* below {LEVEL} after Holm's correction for the number of pairs of a metric."),
    )


def _lengths(part: ScoresPart, styles: Styles) -> str:
    lengths = part.by_length
    if not lengths:
        return ""
    groups = [g for g in lengths.groups if any(e.value is not None for e in g.systems)]
    if not groups:
        return ""
    metric = lengths.metric
    found = by_length(lengths, part.bootstrap.baseline if part.bootstrap else None, styles)
    rows = [
        [
            g.label,
            g.sentences,
            e.name,
            None if e.value is None else plus_minus(e.value, e.deviation),
            ends(e.low, e.high),
            None if e.difference is None else TableCell(f"{e.difference:+.2f}", e.difference),
            ends(e.difference_low, e.difference_high, "+"),
            p_value(e.p),
        ]
        for g in groups
        for e in g.systems
    ]
    headers = ["source tokens", "sentences", "system", metric, "95 %", "difference", "95 % of it", "p"]
    small = any(e.value is not None and e.low is None for g in groups for e in g.systems) and part.bootstrap
    return (
        f"<h3>{html_text(metric)} by source length</h3>"
        + charts(*map(svg.lines, found))
        + details("The numbers by length", table(headers, rows))
        + (note("Groups of few sentences have no interval: resampling them says nothing.") if small else "")
    )


def speed_section(part: SpeedPart | None, systems: Sequence[ReportedSystem]) -> str:
    """Parameters, time of training and speed of translation."""
    speeds = {s.name: s for s in part.systems} if part else {}
    rows = []
    for system in systems:
        s, fast = system.summary, speeds.get(system.name)
        parameters, seconds, rate = s.parameters, s.seconds, s.tokens_per_second
        row: list[object] = [system.name, None if parameters is None else int(parameters.mean)]
        row.append(None if seconds is None else TableCell(duration(seconds.mean), seconds.mean))
        row.append(None if rate is None else TableCell(f"{rate.mean:,.0f}", rate.mean))
        if fast:
            row += [_rate(fast.sentences_per_second, 1), _rate(fast.tokens_per_second, 0), fast.beam]
        rows.append(row + [None] * (7 - len(row)))
    headers = [
        "system",
        "parameters",
        "training time",
        "target subwords / s in training",
        "sentences / s",
        "subwords / s",
        "beam",
    ]
    headers = headers if speeds else headers[:4]
    text = ""
    if part and part.systems:
        first = part.systems[0]
        threads = plural(first.workers, "thread")
        text = f"Translation: {plural(part.sentences, 'sentence')} at once on {first.device}, {threads}; measured once."
    warnings = [note(f"{s.name}: {w}") for s in speeds.values() for w in s.warnings]
    return section(
        "speed", "Size and speed", table(headers, [row[: len(headers)] for row in rows]), note(text), *warnings
    )


def _rate(value: OverRuns, digits: int) -> TableCell:
    text = f"{value.mean:,.{digits}f}"
    return TableCell(text if value.deviation is None else f"{text} ± {value.deviation:.{digits}f}", value.mean)


def duration(seconds: float) -> str:
    """`8 min 19 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(whole, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


LONGEST = 6  # larger sizes are part of the same bar
SHOWN = 20  # tokens that are visible at first


def segments_section(part: SegmentsPart, styles: Styles, number: int) -> str:
    """The lengths of segments, and whether known phrases are segments."""
    about = "given translations, forced" if part.forced else "the model's own translations"
    text = f"{plural(part.sentences, 'sentence')}, {about}" + (f"; {part.left_out:,} left out" if part.left_out else "")
    kinds, rows = [], []
    for system in part.systems:
        for entry in system.phrases:
            kind = entry.kind or "all"
            if entry.segment is not None:
                kinds.append(svg.Bar(kind, [100 * getattr(entry, place) for place in PLACES]))
            cells = [
                _percent(getattr(entry, key)) for key in ("chance", "inside", "split", "posterior", "from_its_source")
            ]
            interval = TableCell(f"{100 * entry.low:.1f} … {100 * entry.high:.1f}", entry.low)
            rows.append([system.name, kind, entry.phrases, _percent(entry.segment), interval, *cells])
    headers = ["system", "kind", "phrases", "one segment %", "95 %", "by chance %", "inside one %", "split %"]
    headers += ["posterior %", "from its source %"]
    legend = "Known phrases of two or more target words in the likeliest segmentation. Intervals: Wilson; by chance: the same "
    legend += "segments elsewhere in their sentence; posterior: p(the phrase is a segment | both sides)."
    return section(
        f"segments-{number}",
        f"Segments: {part.name}",
        note(text + "."),
        charts(
            _sizes("Subwords that a source subword writes (%)", {s.name: s.lengths for s in part.systems}),
            svg.bars("Known phrases (%)", kinds, ("one segment", "inside one", "split")) if kinds else "",
        ),
        table(headers, rows) + note(legend) if rows else "",
    )


def source_phrases_section(part: SourcePhrasesPart, styles: Styles, number: int) -> str:
    """The lengths of source phrases, the weight of their heaviest subword, and the levels that decoder layers read."""
    text = plural(part.sentences, "sentence") + (f", of which {part.cropped:,} were cropped" if part.cropped else "")
    rows = [
        [system.name, _level(entry.level), entry.phrases, _percent(entry.greatest), _percent(entry.even)]
        for system in part.systems
        for entry in system.levels
    ]
    headers = ["system", "level", "phrases", "greatest weight %", "1 / size %"]
    legend = (
        "Weight of the subword that counts most in its phrase, mean over phrases of two or more subwords; 1 / size: "
    )
    legend += "if all counted the same."
    return section(
        f"source_phrases-{number}",
        f"Source phrases: {part.name}",
        note(f"{text}; {plural(sum(s.phrases for s in part.systems), 'phrase')}."),
        charts(
            _sizes("Subwords of a phrase (%)", {s.name: s.sizes for s in part.systems}),
            *map(_levels_read, part.systems),
        ),
        table(headers, rows) + note(legend) if rows else "",
    )


def neighbours_section(part: NeighboursPart, styles: Styles, number: int) -> str:
    """Cosines of the nearest embeddings by rank, how far two models agree, and the neighbours themselves."""
    series = []
    for system in part.systems:
        points = [(float(rank), cosine) for rank, cosine in enumerate(system.cosines, 1)]
        tips = [f"{system.name}, neighbour {rank:.0f}: {cosine:.3f}" for rank, cosine in points]
        series.append(Series(system.name, points, styles[system.name], tips=tips))
    places = [(float(rank), str(rank)) for rank in range(1, part.neighbours + 1)]
    axes = Axes(x="neighbour, nearest first", y="cosine", places=places)
    text = f"{len(part.tokens):,} {part.side} tokens, neighbours among {part.candidates:,} pieces."
    counted, two = any(t.count is not None for t in part.tokens), part.agreement is not None
    headers = ["token", *["count"] * counted, *["shared"] * two, *(system.name for system in part.systems)]
    rows = [_token(token, counted=counted, two=two) for token in part.tokens]
    return section(
        f"neighbours-{number}",
        f"Nearest embeddings: {part.name}",
        note(text + _agreement(part)),
        charts(svg.lines(Chart("Mean cosine of neighbours", series, axes))),
        table(headers, rows[:SHOWN]),
        details(f"All {plural(len(rows), 'token')}", table(headers, rows)) if len(rows) > SHOWN else "",
    )


def _sizes(title: str, systems: Mapping[str, Sequence[SizeCount]]) -> str:
    """Stacked shares of sizes, one bar per system."""
    sizes = sorted({min(entry.size, LONGEST) for entries in systems.values() for entry in entries})
    rows = []
    for name, entries in systems.items():
        total = sum(entry.count for entry in entries)
        counts = [sum(e.count for e in entries if min(e.size, LONGEST) == size) for size in sizes]
        if total:
            rows.append(svg.Bar(name, [100 * count / total for count in counts]))
    return svg.bars(title, rows, [f"{size} and more" if size == LONGEST else str(size) for size in sizes])


def _levels_read(system: SystemPhrases) -> str:
    shares = system.shares or []
    layers = list(zip(*shares, strict=True))
    bars = [svg.Bar(f"decoder layer {j}", [100 * share for share in layer]) for j, layer in enumerate(layers, 1)]
    return svg.bars(
        "Levels of the encoder that a decoder layer reads (%)", bars, [_level(i) for i in range(len(shares))]
    )


def _level(level: int) -> str:
    return f"level {level}" if level else "embeddings"


def _agreement(part: NeighboursPart) -> str:
    agreement = part.agreement
    if agreement is None:
        return ""
    named = (("Pearson", agreement.pearson), ("Spearman", agreement.spearman))
    values = ", ".join(f"{name} {value:.3f}" for name, value in named if value is not None)
    cosines = f" Cosines of {plural(agreement.pairs, 'pair')} of tokens: {values}." if values else ""
    return (
        f" Overlap: {agreement.overlap:.3f} of {part.neighbours} neighbours are the same, by chance "
        f"{agreement.chance:.2g}.{cosines} *: a neighbour that only this model has."
    )


def _token(token: ListedToken, *, counted: bool, two: bool) -> list[object]:
    row: list[object] = [token.piece, *[token.count] * counted, *[token.shared] * two]
    for i, own in enumerate(token.neighbours):
        others = [{piece for piece, _ in pairs} for j, pairs in enumerate(token.neighbours) if j != i]
        marks = ["*" if any(piece not in pieces for pieces in others) else "" for piece, _ in own]
        row.append(", ".join(f"{mark}{piece} {cosine:.2f}" for mark, (piece, cosine) in zip(marks, own, strict=True)))
    return row


def _percent(share: float | None) -> TableCell | None:
    return None if share is None else TableCell(f"{100 * share:.1f}", share)
