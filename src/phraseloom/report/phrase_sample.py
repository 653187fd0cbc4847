"""What people found in the phrases of a system: shares of categories, accuracy of each system, and where phrases were found.

Park and Tsvetkov 2019, Table 6. Intervals and tests: `metrics/ratio.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phraseloom.errors import plural
from phraseloom.metrics.ratio import compare, wilson
from phraseloom.phrases.sample import BY, CATEGORIES, FOUND, REFERENCE, JudgedPhrase, Sheet
from phraseloom.report.markup import terminal

ALL = "all"


def tally(sheet: Sheet) -> dict[str, Any]:
    """Counts of a sheet as plain data.

    `categories`: for each, and for all, how many phrases, which share of those judged, for each system how many are correct
    (`accuracy` with Wilson's 95 % interval), and the first system against every other (`compare`). `found`: for each column of
    where phrases were found, all phrases by what was found, and those judged.
    """
    judged = [row for row in sheet.rows if row.correct is not None]
    used = [name for name in CATEGORIES if name != "other" or any(row.category == name for row in judged)]
    groups = {name: [row for row in judged if row.category == name] for name in used} | {ALL: judged}
    return {
        "systems": sheet.systems,
        "phrases": len(sheet.rows),
        "judged": len(judged),
        "categories": [_category(name, rows, len(judged), sheet.systems) for name, rows in groups.items()],
        "found": [_found(i, place, sheet) for i, place in enumerate(sheet.places)],
    }


def _category(name: str, rows: Sequence[JudgedPhrase], judged: int, systems: Sequence[str]) -> dict[str, Any]:
    verdicts = [[row.correct[i] for row in rows if row.correct is not None] for i in range(len(systems))]
    scores = [{"system": system, **_score(marks)} for system, marks in zip(systems, verdicts, strict=True)]
    against = [
        {"system": system, **compare(marks, verdicts[0])}
        for system, marks in zip(systems[1:], verdicts[1:], strict=True)
        if rows
    ]
    share = len(rows) / judged if judged else None
    return {"category": name, "phrases": len(rows), "share": share, "scores": scores, "first_against": against}


def _score(marks: Sequence[bool]) -> dict[str, Any]:
    low, high = wilson(sum(marks), len(marks))
    accuracy = sum(marks) / len(marks) if marks else None
    return {"correct": sum(marks), "accuracy": accuracy, "low": low, "high": high}


def _found(i: int, place: str, sheet: Sheet) -> dict[str, Any]:
    """Of the column of a system the verdicts are on that system, of the reference on the first system."""
    name = sheet.systems[0] if place == REFERENCE else place.removeprefix(BY)
    column = sheet.systems.index(name) if name in sheet.systems else None
    kinds = []
    for kind in FOUND:
        rows = [row for row in sheet.rows if row.found[i] == kind]
        marks = [] if column is None else [row.correct[column] for row in rows if row.correct is not None]
        kinds.append({"kind": kind, "phrases": len(rows), "judged": len(marks), "correct": sum(marks)})
    return {"place": place, "system": name, "kinds": kinds}


def render(found: Mapping[str, Any]) -> str:
    """The counts as text for a terminal, with a final newline."""
    open_rows = found["phrases"] - found["judged"]
    parts = [
        f"{found['judged']:,} of {plural(found['phrases'], 'phrase')} judged"
        + f", {open_rows:,} open" * bool(open_rows)
    ]
    if found["judged"]:
        parts.append(_categories(found))
    parts.append(_places(found))
    return "\n\n".join(parts) + "\n"


def _categories(found: Mapping[str, Any]) -> str:
    first, *others = found["systems"]
    headers = ["category", "phrases", "share"]
    for name in found["systems"]:
        headers += [name, "95 %"]
    headers += [f"p {first} / {name}" for name in others]
    rows: list[list[object]] = []
    for group in found["categories"]:
        meaning = CATEGORIES.get(group["category"])
        name = f"{group['category']} ({meaning})" if meaning else group["category"]
        row: list[object] = [name, group["phrases"], f"{group['share']:.0%}"]
        for score in group["scores"]:
            row += [score["accuracy"], f"{score['low']:.2f} … {score['high']:.2f}" if group["phrases"] else None]
        row += [f"{test['p']:.3f}" for test in group["first_against"]] or [None] * len(others)
        rows.append(row)
    notes = "accuracy: the share of correct translations, with Wilson's interval"
    notes += "; p: McNemar's exact test on the same phrases" if others else ""
    return f"{terminal(headers, rows)}\n\n{notes}"


def _places(found: Mapping[str, Any]) -> str:
    headers, columns = ["the words of the phrase"], []
    for place in found["found"]:
        headers += [place["place"]] + [f"judged {place['system']}"] * bool(found["judged"])
        columns.append(place["kinds"])
    rows: list[list[object]] = []
    for i, kind in enumerate(FOUND):
        row: list[object] = [kind]
        for kinds in columns:
            one = kinds[i]
            verdict = f"{one['correct']} of {one['judged']} correct" if one["judged"] else None
            row += [one["phrases"]] + [verdict] * bool(found["judged"])
        rows.append(row)
    return terminal(headers, rows)
