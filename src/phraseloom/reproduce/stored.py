"""Stored tables: `table.json` and its sentence file give intervals and claims again, and rows to another run.

A stored table is judged by the claims of its present definition, recipes/tables/TABLE.yaml, where it is found. All else stays
as it was when the table was run. Without its sentences, a difference that the table has keeps its interval, and another one
has none.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from phraseloom.errors import CorruptError, PhraseloomError, UsageError
from phraseloom.files import read_json, require_folder, sha256_file
from phraseloom.metrics.seeds import SeedDifference, quantile
from phraseloom.report.charts.picture import INSTALL, has_matplotlib
from phraseloom.reproduce.budget import draw_budget
from phraseloom.reproduce.measure import MeasuredValue, scorer_of
from phraseloom.reproduce.result import Compared, Judge, Result, compare, of_sentences
from phraseloom.reproduce.sentences import TableSentences, read_sentences
from phraseloom.reproduce.table import JsonMetric, Scale, TableConfig, TextMetric, load_table
from phraseloom.reproduce.writing import (
    BUDGET,
    FORMAT,
    JSON,
    OLD_FORMATS,
    PICTURE,
    as_json,
    definition,
    read_table,
    stored_tables,
    write,
)

K = TypeVar("K")
T = TypeVar("T")
OF_TABLE, OF_ROWS = ("claims", "floor"), ("paper", "shares")
"""What a stored table has from its present definition."""
ADDED = "the row was added to the table after it was run"


def recompute(folder: Path, recipes: Path | None = None) -> Result:
    """Recompute a stored table from its own files and write it. Nothing is trained and no corpus is read.

    With `recipes`, the claims are those of its definition there, if there is one. Raises CorruptError if a file is damaged or
    does not fit the others.
    """
    result = read_result(folder, recipes)
    write(result, folder, pictures=[name for name in (PICTURE, BUDGET) if (folder / name).is_file()])
    return result


def read_result(folder: Path, recipes: Path | None = None) -> Result:
    """The result in a folder, with recomputed intervals and claims; without sentences, with the intervals that are stored.

    `recipes` as for `recompute`.
    """
    result = read_numbers(folder, recipes)
    compare(result)
    return result


def read_numbers(folder: Path, recipes: Path | None = None) -> Result:
    """The result in a folder, with its sentences and without intervals and claims. Raises as `recompute`."""
    path = require_folder(folder) / JSON
    content = read_json(path, "table")
    if isinstance(content, dict) and content.get("format") in OLD_FORMATS:
        raise _not_stored(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptError(f"not a table of format {FORMAT}", file=path, hint="reproduce TABLE writes it again")
    try:
        sentences = _sentences(folder, content["sentences"])
        result = _result(content, sentences)
        if sentences is None:
            result.stored = _stored_differences(result, content)
        current = None if recipes is None else _definition_of(result.name, recipes)
        if current is not None:
            result.table = _with_claims_of(current, result.table, result.scale)
        _check(result, path)
    except PhraseloomError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, pydantic.ValidationError) as error:
        raise CorruptError(f"not a complete table ({type(error).__name__})", file=path) from error
    return result


def judged_table(path: Path, recipes: Path | None) -> Mapping[str, Any]:
    """The content of a table.json, with the verdicts on the claims of its definition in `recipes`, if there is one.

    Only a table whose stored claims are others is judged again. Raises as `recompute`.
    """
    content = read_table(path)
    current = None if recipes is None else _definition_of(str(content.get("table")), recipes)
    if current is None:
        return content
    new, old = definition(current), content.get("definition")
    if not isinstance(old, dict):
        return content
    try:
        same = all(new.get(key) == old.get(key) for key in ("claims", "floor")) and _judged(new) == _judged(old)
    except (TypeError, AttributeError) as error:
        raise CorruptError(f"not a complete table ({type(error).__name__})", file=path) from error
    if same:
        return content
    return {**as_json(read_result(path.parent, recipes)), "sentences": content.get("sentences")}


def _judged(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What claims need to know of the rows of a definition: the paper's numbers, and which rows have the models of others."""
    rows = table.get("rows", {}).items()
    return {name: found for name, row in rows if (found := {key: row[key] for key in OF_ROWS if row.get(key)})}


def _definition_of(name: str, recipes: Path) -> TableConfig | None:
    path = recipes / "tables" / f"{name}.yaml"
    return load_table(path) if Path(name).name == name and path.is_file() else None


def _with_claims_of(current: TableConfig, stored: TableConfig, scale: Scale) -> TableConfig:
    """The stored table with the claims, the floor, the paper's numbers and the shared models of its current definition.

    Rows and metrics that these claims need and the stored table lacks are added without numbers.
    """
    new, old = definition(current), definition(stored)
    floors = (floor.metric for floor in current.floors)
    metrics = {*floors, *(name for claim in current.claims for name in (claim.metric, claim.than_metric))}
    rows = {*stored.rows, *(row for claim in current.claims for row in claim.rows)} & current.rows.keys()
    while shared := {current.rows[row].shares for row in rows} - rows - {None}:
        rows |= {row for row in shared if row is not None}
    metrics |= {name for row in rows for task in current.tasks_of(row) or [""] for name in current.paper_of(row, task)}
    for key, needed in (("metrics", metrics), ("rows", rows), ("tasks", set(current.tasks))):
        there = old.get(key, {})
        old[key] = {k: there.get(k, v) for k, v in new.get(key, {}).items() if k in there or k in needed} | there
    for name, row in new["rows"].items():
        if name in stored.rows:
            kept = {key: value for key, value in old["rows"][name].items() if key not in OF_ROWS}
            old["rows"][name] = kept | {key: row[key] for key in OF_ROWS if key in row}
        elif name in old["rows"]:
            old["rows"][name] = {**row, "not_run": {**row.get("not_run", {}), scale: ADDED}}
    kept = {key: value for key, value in old.items() if key not in OF_TABLE}
    return TableConfig.model_validate(kept | {key: new[key] for key in OF_TABLE if key in new})


def _stored_differences(result: Result, content: Mapping[str, Any]) -> dict[Compared, SeedDifference]:
    """The differences of a stored table, to its baseline and of its claims."""
    table, judge = result.table, Judge(result)
    found = {}
    for row in content["rows"]:
        for metric, entry in row["metrics"].items():
            found[Compared(row["task"], metric, row["row"], table.baseline)] = entry["against_baseline"]
    claims = [claim for claim in table.claims if result.scale in claim.scales]
    for claim, judged in zip(claims, content["claims"], strict=True):
        for pair, comparison in zip(judge.pairs(claim), judged["comparisons"], strict=True):
            found[pair] = comparison["difference"]
    return {pair: _difference(entry) for pair, entry in found.items() if entry is not None}


def _difference(entry: Mapping[str, Any]) -> SeedDifference:
    """A stored difference. Old tables have an interval alone: it gives the standard error of a normal distribution, and p."""
    found = SeedDifference(**{**entry, "deviations": tuple(entry["deviations"])})
    if found.standard_error is not None or found.low is None or found.high is None or found.exact:
        return found
    error = (found.high - found.low) / (2 * quantile(None))
    found = replace(found, standard_error=error, how=f"{found.how}, p by the normal distribution")
    return replace(found, p=found.p_against(0.0))


def read_rows(folder: Path, table: TableConfig, name: str, scale: Scale) -> Result:
    """The result in a folder, for `take_rows`; of another table only the rows with the same name and label, and the metrics of
    this one.

    Raises UsageError if it is of another scale, if it lacks a task or metric of `table`, if that or the description of the
    scale is different, if it has none of its rows, or if its sentences are not stored; CorruptError as `recompute`.
    """
    path = folder / JSON
    stored = read_result(folder)
    if stored.stored is not None and any(
        of_sentences(stored.table.metrics[metric]) for _, _, metric in stored.measured
    ):
        raise _not_stored(path)
    if stored.scale != scale:
        raise UsageError(f"no rows for this table: it has scale {stored.scale}, not scale {scale}", file=path)
    then, now = _measured_at(stored.table, scale), _measured_at(table, scale)
    if others := [part for part in sorted(now) if then.get(part) != now[part]]:
        raise UsageError(f"no rows for this table: not the same: {', '.join(others)}", file=path, hint="run all rows")
    labels = {row: config.label for row, config in stored.table.rows.items()}
    same = {row for row, config in table.rows.items() if labels.get(row) == config.label}
    if stored.name == name and (others := sorted(labels.keys() & table.rows.keys() - same)):
        raise UsageError(
            f"no rows for this table: other labels now: {', '.join(others)}", file=path, hint="run all rows"
        )
    metrics = table.metrics_at(scale)
    stored.measured = {
        cell: numbers for cell, numbers in stored.measured.items() if cell[1] in same and cell[2] in metrics
    }
    stored.facts = {place: facts for place, facts in stored.facts.items() if place[1] in same}
    if not _seeds(stored):
        raise UsageError("no rows for this table: none that was run has the name and label of a row here", file=path)
    return stored


def _measured_at(table: TableConfig, scale: Scale) -> dict[str, Any]:
    """What rows must have in common to be compared: tasks, metrics and the description of the scale."""
    metrics = table.metrics_at(scale).items()
    return {
        "tasks": set(table.tasks),
        f"scale {scale}": table.scales[scale].says,
        **{f"metric {name}": metric.model_dump(exclude={"title", "scales"}) for name, metric in metrics},
    }


def take_rows(result: Result, stored: Result) -> list[tuple[str, str]]:
    """Add the rows, and seeds of rows, that a result has no numbers of from a stored one, and compare all rows again.

    Returns each (task, row) of which something was added.
    """
    here, there = _seeds(result), _seeds(stored)
    taken = {place: more for place in result.places() if (more := there.get(place, set()) - here.get(place, set()))}
    for place, seeds in taken.items():
        for cell in (cell for cell in stored.measured if cell[:2] == place):
            _add(result.measured, stored.measured, cell, seeds)
        _add(result.facts, stored.facts, place, seeds)
        _add(result.curves, stored.curves, place, seeds)
        if place not in here:
            result.failures |= {place: stored.failures[place]} if place in stored.failures else {}
        result.counted |= {place: stored.counted[place]} if place in stored.counted else {}
    if taken:
        result.seeds = sorted({*result.seeds, *(seed for seeds in taken.values() for seed in seeds)})
        names = ", ".join(dict.fromkeys(row for _, row in taken))
        result.left_out.append(f"a comparison of minutes: runs of the rows {names} are those of a table stored before")
        for (task, row), seeds in _seeds(result).items():
            if missing := sorted(set(result.seeds) - seeds):
                where = f"{result.table.rows[row].label} {task}".strip()
                result.left_out.append(f"{where}, {_words(missing)}: not chosen (--seeds)")
        result.versions |= stored.versions
        result.commits |= stored.commits
    compare(result)
    return list(taken)


def measured_cells(result: Result) -> set[tuple[str, ...]]:
    """Task, row, metric and seed of every number of a result."""
    return {
        (*cell, str(seed))
        for cell, seeds in result.measured.items()
        for seed, measured in seeds.items()
        if measured.value is not None
    }


def stored_cells(path: Path) -> set[tuple[str, ...]]:
    """Task, row, metric and seed of every number of a table.json; none if it is not readable."""
    try:
        return {
            (row["task"], row["row"], metric, seed)
            for row in read_table(path)["rows"]
            for metric, entry in row["metrics"].items()
            for seed, value in entry["seeds"].items()
            if value is not None
        }
    except (PhraseloomError, KeyError, TypeError, AttributeError):
        return set()


def _seeds(result: Result) -> dict[tuple[str, str], set[int]]:
    """The seeds of each (task, row), also those whose number is missing."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for (task, row, _), measured in result.measured.items():
        seeds.setdefault((task, row), set()).update(measured)
    for place, facts in result.facts.items():
        seeds.setdefault(place, set()).update(facts)
    return seeds


def _add(mine: dict[K, dict[int, T]], theirs: Mapping[K, Mapping[int, T]], key: K, seeds: Container[int]) -> None:
    """Add what another result has of these seeds, in the order of the seeds."""
    more = {seed: value for seed, value in theirs.get(key, {}).items() if seed in seeds}
    if more:
        mine[key] = dict(sorted((more | mine.get(key, {})).items()))


def _words(seeds: Sequence[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))


def draw_pictures(folder: Path) -> list[Path]:
    """Draw `budget.svg` beside each SCALE/TABLE/table.json of a folder, from that file alone; the paths of those drawn.

    Tables of scale tiny are left out, because they say nothing about quality.
    Raises UsageError without a table or matplotlib, CorruptError for a damaged table.
    """
    if not has_matplotlib():
        raise UsageError("pictures need matplotlib", hint=INSTALL)
    drawn = []
    for path in stored_tables(require_folder(folder)):
        if path.parent.parent.name == "tiny":
            continue
        try:
            result = _result(dict(read_table(path)), None)
        except (KeyError, TypeError, ValueError, AttributeError, pydantic.ValidationError) as error:
            raise CorruptError(f"not a complete table ({type(error).__name__})", file=path) from error
        picture = path.with_name(BUDGET)
        if draw_budget(result, picture):
            drawn.append(picture)
    return drawn


def _not_stored(path: Path) -> UsageError:
    hint = "reproduce TABLE writes them, from the existing steps"
    return UsageError("the sentences of this table are not stored", file=path, hint=hint)


def _sentences(folder: Path, entry: dict[str, str] | None) -> TableSentences | None:
    if entry is None:
        return None
    path = folder / Path(entry["file"]).name
    sentences = read_sentences(path)
    if sha256_file(path) != entry["sha256"]:
        raise CorruptError(f"not the file that {JSON} was written with", file=path, hint="reproduce TABLE writes both")
    return sentences


def _result(content: dict[str, Any], sentences: TableSentences | None) -> Result:
    table = TableConfig.model_validate(content["definition"])
    result = Result(table, content["table"], content["scale"], content["seeds"], machine=content["machine"])
    result.versions, result.left_out = set(content["phraseloom"]), list(content["left_out"])
    result.commits = set(content.get("commits", []))
    arrays = {} if sentences is None else sentences.arrays()
    hypotheses = [] if sentences is None else sentences.hypotheses
    lines = {((h.task, h.row, metric), h.seed): tuple(h.lines) for h in hypotheses for metric in h.metrics}
    for row in content["rows"]:
        place = (row["task"], row["row"])
        if row["failures"]:
            result.failures[place] = list(row["failures"])
        if row["parameters"] is not None:
            result.counted[place] = row["parameters"]
        if row["run"]:
            result.facts[place] = {int(seed): dict(facts) for seed, facts in row["run"].items()}
        if row.get("validation"):
            result.curves[place] = {int(seed): dict(curves) for seed, curves in row["validation"].items()}
        for key, entry in row["metrics"].items():
            metric, cell = table.metrics[key], (*place, key)
            seeds = result.measured.setdefault(cell, {})
            for seed, value in ((int(name), value) for name, value in entry["seeds"].items()):
                for number in value.values() if isinstance(value, dict) else [value]:
                    if not (number is None or isinstance(number, int | float)):
                        raise TypeError(f"{number!r} is no number")
                seeds[seed] = MeasuredValue(
                    value,
                    entry["missing"].get(str(seed), ""),
                    (entry["signature"] or "") if value is not None else "",
                    arrays.get((cell, seed), {}),
                    scorer_of(metric) if isinstance(metric, TextMetric | JsonMetric) else None,
                    lines.get((cell, seed), ()),
                )
    return result


def _check(result: Result, path: Path) -> None:
    """Raise CorruptError if stored sentences do not give the stored numbers, or some have none."""
    if result.stored is not None:
        return
    for (task, row, metric), seeds in result.measured.items():
        for seed, measured in seeds.items():
            if of_sentences(result.table.metrics[metric]) and measured.value is not None and not measured.statistics:
                raise _not_stored(path)
            for label, rows in measured.statistics.items():
                value = measured.value.get(label) if isinstance(measured.value, dict) else measured.value
                assert measured.scorer is not None
                computed = measured.scorer.value(rows.sum(0))
                if value is None or not math.isclose(computed, value, rel_tol=1e-6, abs_tol=1e-6):
                    where = " ".join(filter(None, (task, row, metric, label))) + f", seed {seed}"
                    says = "nothing" if value is None else f"{value:g}"
                    raise CorruptError(f"the sentences of {where} give {computed:g}, the table says {says}", file=path)
