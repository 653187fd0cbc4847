"""Stored tables: `table.json` and its sentence file give intervals and claims again, and rows to another run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from phraseloom.errors import CorruptError, PhraseloomError, UsageError
from phraseloom.files import read_json, require_folder, sha256_file
from phraseloom.report.charts.picture import INSTALL, has_matplotlib
from phraseloom.reproduce.budget import draw_budget
from phraseloom.reproduce.measure import MeasuredValue, scorer_of
from phraseloom.reproduce.result import Result, compare
from phraseloom.reproduce.sentences import TableSentences, read_sentences
from phraseloom.reproduce.table import JsonMetric, Scale, TableConfig, TextMetric
from phraseloom.reproduce.writing import (
    BUDGET,
    FORMAT,
    JSON,
    OLD_FORMATS,
    PICTURE,
    definition,
    read_table,
    stored_tables,
    write,
)


def recompute(folder: Path) -> Result:
    """Recompute a stored table from its own files and write it. Nothing is trained and no corpus is read.

    Raises UsageError if its sentences are not stored, CorruptError if a file is damaged or does not fit the others.
    """
    result = read_result(folder)
    write(result, folder, pictures=[name for name in (PICTURE, BUDGET) if (folder / name).is_file()])
    return result


def read_result(folder: Path) -> Result:
    """The result in a folder, with recomputed intervals and claims."""
    path = require_folder(folder) / JSON
    content = read_json(path, "table")
    if isinstance(content, dict) and content.get("format") in OLD_FORMATS:
        raise _not_stored(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptError(f"not a table of format {FORMAT}", file=path, hint="reproduce TABLE writes it again")
    try:
        sentences = _sentences(folder, content["sentences"])
        result = _result(content, sentences)
    except PhraseloomError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, pydantic.ValidationError) as error:
        raise CorruptError(f"not a complete table ({type(error).__name__})", file=path) from error
    _check(result, path)
    compare(result)
    return result


def read_rows(folder: Path, table: TableConfig, name: str, scale: Scale, seeds: Sequence[int]) -> Result:
    """The result in a folder, for `take_rows`.

    Raises UsageError if it is of another table, definition, scale or seeds, or if its sentences are not stored;
    CorruptError as `recompute`.
    """
    stored, path = read_result(folder), folder / JSON
    wanted = (name, f"scale {scale}", "seeds " + ", ".join(map(str, seeds)))
    found = (stored.name, f"scale {stored.scale}", "seeds " + ", ".join(map(str, stored.seeds)))
    for this, that in zip(wanted, found, strict=True):
        if this != that:
            raise UsageError(f"no rows for this table: it has {that}, not {this}", file=path)
    if definition(stored.table) != definition(table):
        raise UsageError("no rows for this table: its definition has changed since", file=path, hint="run all rows")
    return stored


def take_rows(result: Result, stored: Result) -> list[tuple[str, str]]:
    """Add the rows that a result has no numbers of from a stored one, and compare all rows again.

    Returns the (task, row) that were added.
    """
    places = {name: {cell[:2] for cell in r.measured} for name, r in (("here", result), ("stored", stored))}
    taken = [place for place in result.places() if place in places["stored"] - places["here"]]
    result.measured |= {cell: seeds for cell, seeds in stored.measured.items() if cell[:2] in taken}
    result.facts |= {place: stored.facts[place] for place in taken if place in stored.facts}
    result.curves |= {place: stored.curves[place] for place in taken if place in stored.curves}
    result.counted |= {place: stored.counted[place] for place in taken if place in stored.counted}
    result.failures |= {place: stored.failures[place] for place in taken if place in stored.failures}
    if taken:
        names = ", ".join(dict.fromkeys(row for _, row in taken))
        result.left_out.append(f"a comparison of minutes: the rows {names} are those of a table stored before")
        result.versions |= stored.versions
        result.commits |= stored.commits
    compare(result)
    return taken


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
    """Raise CorruptError if stored sentences do not give the stored numbers, UsageError if a number has no sentences."""
    for (task, row, metric), seeds in result.measured.items():
        config = result.table.metrics[metric]
        of_sentences = isinstance(config, TextMetric) or (
            isinstance(config, JsonMetric) and config.by_sentence is not None
        )
        for seed, measured in seeds.items():
            if of_sentences and measured.value is not None and not measured.statistics:
                raise _not_stored(path)
            for label, rows in measured.statistics.items():
                value = measured.value.get(label) if isinstance(measured.value, dict) else measured.value
                assert measured.scorer is not None
                computed = measured.scorer.value(rows.sum(0))
                if value is None or not math.isclose(computed, value, rel_tol=1e-6, abs_tol=1e-6):
                    where = " ".join(filter(None, (task, row, metric, label))) + f", seed {seed}"
                    raise CorruptError(
                        f"the sentences of {where} give {computed:g}, the table says {value:g}", file=path
                    )
