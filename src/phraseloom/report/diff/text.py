"""The comparison of two systems (`diff.py`) as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phraseloom.errors import escape_controls, plural
from phraseloom.report.diff.diff import (
    ComparedCurve,
    ComparedNumber,
    ComparedSentence,
    ComparedSentences,
    ComparedText,
    ReachedValue,
    RunComparison,
    SystemSentence,
)
from phraseloom.report.markup import p_text, terminal
from phraseloom.report.run.parts import ScoresPart
from phraseloom.report.run.runs import OverRuns
from phraseloom.report.run.scores import ONE_RUN, cautions, duration

CURVES = {"perplexity": "Validation perplexity", "bleu": "Validation BLEU", "nll": "Training loss (nats per subword)"}
MOST_ROWS = 8


def render(document: RunComparison) -> str:
    """The text, with a final newline."""
    text = "\n\n".join(_blocks(document))
    return "\n".join(map(escape_controls, text.split("\n"))) + "\n"


def _blocks(document: RunComparison) -> Iterator[str]:
    names = [s.name for s in document.systems]
    yield "\n".join(
        f"{s.name}: {', '.join(run.folder for run in s.runs) or 'translations only'}" for s in document.systems
    )
    if document.warnings:
        yield "\n".join(f"! {warning}" for warning in document.warnings)
    config = document.configuration
    title = f"Configuration: {len(config.different)} keys differ, {config.same} are the same"
    rows = [[r.key, *r.values] for r in config.different]
    yield _titled(title, ["key", *names], rows)
    yield _compared("Data", document.data, names)
    yield _compared("Versions and machine", document.versions, names)
    training = [[r.what, *(value(r.key, v) for v in r.values), *change(r)] for r in document.training]
    yield _titled("Training", ["", *names, "difference", ""], [cells for cells in training if any(cells[1:])])
    for curve in document.curves:
        if curve.key != "nll" or len(document.curves) == 1:
            yield _curve(curve, names)
    if document.scores:
        yield _scores(document.scores)
    if document.sentences:
        yield from sentences(document.sentences, names)
    if document.lacks:
        lacks = [[lack.system or "both", lack.what, lack.why] for lack in document.lacks]
        yield _titled("Not compared", ["system", "what", "why"], lacks)


def _titled(title: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return f"{title}\n\n{terminal(headers, rows, indent=2)}" if rows else title


def _compared(title: str, rows: Sequence[ComparedText], names: Sequence[str]) -> str:
    """A column per system; one column if all values are the same."""
    if all(row.same for row in rows):
        return _titled(f"{title}: the same", ["", "both"], [[r.what, r.values[0]] for r in rows])
    return _titled(title, ["", *names, ""], [[r.what, *r.values, None if r.same else "≠"] for r in rows])


def value(key: str, number: OverRuns | None) -> str | None:
    """A mean over runs as text."""
    if number is None:
        return None
    if key == "seconds":
        return duration(number.mean)
    digits = 2 if key.startswith("valid") else 0
    text = f"{number.mean:,.{digits}f}"
    return text if number.deviation is None else f"{text} ± {number.deviation:,.{digits}f}"


def change(row: ComparedNumber) -> tuple[str | None, str | None]:
    """A difference as text, absolute and relative to the first value; None if unknown."""
    difference, first = row.difference, row.values[0]
    if not difference or first is None:
        return (None if difference is None else "0"), None
    unit = " s" if row.key == "seconds" else ""
    text = f"{difference:+,.{2 if row.key.startswith('valid') else 0}f}{unit}"
    return text, f"{100 * difference / first.mean:+.1f} %" if first.mean else None


def _curve(curve: ComparedCurve, names: Sequence[str]) -> str:
    rows = curve.rows
    step = -(-len(rows) // MOST_ROWS) if rows else 1
    sample = [row for i, row in enumerate(rows) if (len(rows) - 1 - i) % step == 0]
    cells = [[f"{r.update:,.0f}", *map(float, r.values), f"{r.difference:+.2f}"] for r in sample]
    text = _titled(f"{CURVES[curve.key]} by update", ["update", *names, "difference"], cells)
    if not rows:
        text += ": no update that both have"
    lines = [reached(names[i], names[1 - i], r) for i, r in enumerate(curve.reached)]
    return text + "\n\n" + "\n".join(f"  {line}" for line in lines)


def reached(name: str, other: str, target: ReachedValue) -> str:
    """The update at which a system reaches the best value of the other."""
    place = f"at update {target.update:,.0f}" if target.update is not None else "never"
    return f"{name} reaches the best of {other} ({target.value:.2f}) {place}"


def _scores(part: ScoresPart) -> str:
    rows = []
    for metric in part.metrics:
        for system in part.systems:
            e = system.scores[metric.metric]
            score = f"{e.value:.2f}" + (f" ± {e.deviation:.2f}" if e.deviation is not None else "")
            row: list[object] = [metric.metric, system.name, score]
            row.append(None if e.low is None else f"{e.low:.2f} … {e.high:.2f}")
            ends = None if e.difference_low is None else f"{e.difference_low:+.2f} … {e.difference_high:+.2f}"
            p = None if e.p is None else p_text(e.p)
            row += [None, None, None] if e.difference is None else [f"{e.difference:+.2f}", ends, p]
            rows.append(row)
    signatures = "\n".join(f"  {m.metric}: {m.signature}" for m in part.metrics)
    title = f"Scores on {plural(part.sentences, 'sentence')}"
    headers = ["metric", "system", "score", "95 %", "difference", "95 % of it", "p"]
    one_run = any(e.one_seed for system in part.systems for e in system.scores.values())
    notes = "".join(f"\n\n  {text}" for text in [f"{ONE_RUN}." * one_run, *cautions(part)] if text)
    return f"{_titled(title, headers, rows)}{notes}\n\n{signatures}"


def sentences(part: ComparedSentences, names: Sequence[str]) -> Iterator[str]:
    """The summary of all sentences, then each listed sentence."""
    yield summary(part, names)
    for sentence in part.listed:
        lines = [f"line {sentence.line}: {differences(sentence)}"]
        lines += [f"  {what}: {line}" for what, line in sentence.texts.items()]
        for system in sentence.systems:
            scores = numbers(system)
            lines += [f"  {system.name}{scores}: {text}" for text in dict.fromkeys(system.translations)]
            if system.phrases:
                lines.append(f"    phrases: {system.phrases}")
        yield "\n".join(lines)


def summary(part: ComparedSentences, names: Sequence[str]) -> str:
    """The counts over all sentences, a line each."""
    total = part.sentences
    lines = [f"{plural(total, 'sentence')}, {part.same_translation:,} with the same translation."]
    for counts, what in (
        (part.better, "sentence chrF is higher"),
        (part.likelier, "log P of the reference is higher"),
    ):
        if counts is not None:
            first, second, even = counts
            lines.append(f"{what[0].upper()}{what[1:]}: {names[0]} {first:,}, {names[1]} {second:,}, neither {even:,}.")
    how = "log P" if part.by == "log-prob" else "chrF" if part.better is not None else "unlikeness"
    listed = len(part.listed)
    return "\n".join([*lines, f"The {listed} with the greatest difference in {how}:"] if listed else lines)


def differences(sentence: ComparedSentence) -> str:
    """Such as `chrF +31.2, log P +4.05`."""
    signed = (("chrF", sentence.chrf_difference), ("log P", sentence.log_prob_difference))
    texts = [f"{name} {difference:+.2f}" for name, difference in signed if difference is not None]
    return ", ".join(texts if sentence.unlike is None else [f"unlike {sentence.unlike:.2f}", *texts])


def numbers(system: SystemSentence) -> str:
    """Such as ` (chrF 61.20, log P -12.40)`."""
    known = (("chrF", system.chrf), ("log P", system.log_prob))
    scores = [f"{name} {score:.2f}" for name, score in known if score is not None]
    return f" ({', '.join(scores)})" if scores else ""
