"""The judgements on a sheet of phrases: shares of categories, accuracy of each system, and where phrases were found.

Park and Tsvetkov 2019, Table 6. Intervals and tests: `metrics/ratio.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from phraseloom.errors import plural
from phraseloom.metrics.ratio import compare, wilson
from phraseloom.phrases.sample import BY, CATEGORIES, FOUND, REFERENCE, JudgedPhrase, Sheet
from phraseloom.report.markup import terminal
from phraseloom.results import (
    FoundPlace,
    FoundWords,
    JudgedAccuracy,
    JudgedCategory,
    JudgedComparison,
    PhraseSampleResult,
)

ALL = "all"


def tally(sheet: Sheet) -> PhraseSampleResult:
    """The counts of a sheet, for each category and for all."""
    judged = [row for row in sheet.rows if row.correct is not None]
    used = [name for name in CATEGORIES if name != "other" or any(row.category == name for row in judged)]
    groups = {name: [row for row in judged if row.category == name] for name in used} | {ALL: judged}
    return PhraseSampleResult(
        systems=sheet.systems,
        phrases=len(sheet.rows),
        judged=len(judged),
        categories=[_category(name, rows, len(judged), sheet.systems) for name, rows in groups.items()],
        found=[_place(i, place, sheet) for i, place in enumerate(sheet.places)],
    )


def _category(name: str, rows: Sequence[JudgedPhrase], judged: int, systems: Sequence[str]) -> JudgedCategory:
    verdicts = [[row.correct[i] for row in rows if row.correct is not None] for i in range(len(systems))]
    return JudgedCategory(
        category=name,
        phrases=len(rows),
        share=len(rows) / judged if judged else None,
        scores=[_score(system, marks) for system, marks in zip(systems, verdicts, strict=True)],
        first_against=[
            JudgedComparison(system=system, **compare(marks, verdicts[0]))
            for system, marks in zip(systems[1:], verdicts[1:], strict=True)
            if rows
        ],
    )


def _score(system: str, marks: Sequence[bool]) -> JudgedAccuracy:
    low, high = wilson(sum(marks), len(marks))
    accuracy = sum(marks) / len(marks) if marks else None
    return JudgedAccuracy(system=system, correct=sum(marks), accuracy=accuracy, low=low, high=high)


def _place(i: int, place: str, sheet: Sheet) -> FoundPlace:
    """Column i of the sheet. The verdicts are those on its system; on the first system if it is the reference."""
    name = sheet.systems[0] if place == REFERENCE else place.removeprefix(BY)
    column = sheet.systems.index(name) if name in sheet.systems else None
    kinds = []
    for kind in FOUND:
        rows = [row for row in sheet.rows if row.found[i] == kind]
        marks = [] if column is None else [row.correct[column] for row in rows if row.correct is not None]
        kinds.append(FoundWords(kind=kind, phrases=len(rows), judged=len(marks), correct=sum(marks)))
    return FoundPlace(place=place, system=name, kinds=kinds)


def render(result: PhraseSampleResult) -> str:
    """The counts as text for a terminal, with a final newline."""
    open_rows = result.phrases - result.judged
    parts = [
        f"{result.judged:,} of {plural(result.phrases, 'phrase')} judged" + f", {open_rows:,} open" * bool(open_rows)
    ]
    if result.judged:
        parts.append(_categories(result))
    parts.append(_places(result))
    return "\n\n".join(parts) + "\n"


def _categories(result: PhraseSampleResult) -> str:
    first, *others = result.systems
    headers = ["category", "phrases", "share"]
    for name in result.systems:
        headers += [name, "95 %"]
    headers += [f"p {first} / {name}" for name in others]
    rows: list[list[object]] = []
    for group in result.categories:
        meaning = CATEGORIES.get(group.category)
        name = f"{group.category} ({meaning})" if meaning else group.category
        row: list[object] = [name, group.phrases, f"{group.share:.0%}"]
        for score in group.scores:
            row += [score.accuracy, f"{score.low:.2f} … {score.high:.2f}" if group.phrases else None]
        row += [f"{test.p:.3f}" for test in group.first_against] or [None] * len(others)
        rows.append(row)
    notes = "accuracy: the share of correct translations, with Wilson's interval"
    notes += "; p: McNemar's exact test on the same phrases" if others else ""
    return f"{terminal(headers, rows)}\n\n{notes}"


def _places(result: PhraseSampleResult) -> str:
    headers = ["the words of the phrase"]
    for place in result.found:
        headers += [place.place] + [f"judged {place.system}"] * bool(result.judged)
    rows: list[list[object]] = []
    for i, kind in enumerate(FOUND):
        row: list[object] = [kind]
        for place in result.found:
            words = place.kinds[i]
            verdict = f"{words.correct} of {words.judged} correct" if words.judged else None
            row += [words.phrases] + [verdict] * bool(result.judged)
        rows.append(row)
    return terminal(headers, rows)
