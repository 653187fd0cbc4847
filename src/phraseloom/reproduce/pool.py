"""The same two rows in several stored tables, such as one at each schedule: their differences, and the mean of these.

The mean is that of `mean_of_comparisons` (metrics/seeds.py): the runs of all tables are independent, and every resample has the
same sentences in all tables. Where the two rows of a table have the same trained models, they are compared seed by seed. It is
an analysis after the fact, and decides no claim.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phraseloom.errors import UsageError
from phraseloom.metrics.seeds import TWO_SEEDS, SeedDifference, SeedScores, compare_seeds, mean_of_comparisons
from phraseloom.report.markup import terminal
from phraseloom.reproduce.claims import Draws, draw
from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.result import Result
from phraseloom.reproduce.stored import read_numbers
from phraseloom.reproduce.writing import p_in_words

HEADERS = ("task", "score", "table", "seeds", "", "difference (95 %)", "p")
AFTER = "An analysis after the fact; it decides no claim."
_Key = tuple[str, str]


@dataclass(frozen=True)
class PooledComparison:
    """The differences of two rows in each table (by its folder), and their mean, for one score of one task."""

    task: str
    score: str
    by_table: Mapping[str, tuple[SeedScores, SeedScores, SeedDifference]]
    mean: SeedDifference


def pool(folders: Sequence[str | Path], row: str, other: str) -> list[PooledComparison]:
    """`row` minus `other` in each of the stored tables, for each task and score that all of them have.

    Raises UsageError for tables that cannot be pooled, CorruptError for a damaged one.
    """
    results = {str(folder): read_numbers(Path(folder)) for folder in folders}
    if len(results) < 2:
        raise UsageError("one table has no mean over tables", hint="give --pool for each of several tables")
    if row == other:
        raise UsageError(f"--compare {row},{other}: a row is compared with another one")
    for folder, result in results.items():
        for name in (row, other):
            if name not in result.table.rows:
                rows = ", ".join(result.table.rows)
                raise UsageError(f"the table has no row {name}", file=folder, hint=f"its rows: {rows}")
    found = [_pooled(results, row, other, *place) for place in _places(results, row, other)]
    if not found:
        what = f"no task and score of {row} and {other}, with sentences, is in all of these tables"
        raise UsageError(what, hint="pool tables with the same tasks, scores and test sentences")
    return found


def pool_text(pooled: Sequence[PooledComparison], row: str, other: str) -> str:
    """The differences as a table for the terminal, with a line for the mean of each score."""
    lines: list[tuple[str, ...]] = []
    fewest = 3
    for comparison in pooled:
        for folder, (one, two, difference) in comparison.by_table.items():
            seeds = f"{len(one.scores)} and {len(two.scores)}"
            means = f"{one.scores.mean():.2f} − {two.scores.mean():.2f}"
            lines.append((comparison.task, comparison.score, folder, seeds, means, *_cells(difference)))
        lines.append((comparison.task, comparison.score, "mean", "", "", *_cells(comparison.mean)))
        fewest = min(fewest, comparison.mean.seeds or 1)
    notes = [
        AFTER,
        {1: "One seed of a row: these runs alone, and nothing about training.", 2: TWO_SEEDS}.get(fewest, ""),
    ]
    return "\n".join([f"{row} − {other}", "", terminal(HEADERS, lines), "", *filter(None, notes)]) + "\n"


def _cells(difference: SeedDifference) -> tuple[str, str]:
    ends = "" if difference.low is None else f" ({difference.low:+.2f} … {difference.high:+.2f})"
    return f"{difference.mean:+.2f}{ends}", p_in_words(difference.p)


def _places(results: Mapping[str, Result], row: str, other: str) -> Iterator[_Key]:
    """The tasks and metrics for which every table has both rows, by the same definition, and with as many sentences."""
    first, *rest = results.values()
    for task, of, metric in first.measured:
        cells = [(task, name, metric) for name in (row, other)]
        if of != row or any(cell not in result.measured for result in results.values() for cell in cells):
            continue
        definition = first.table.metrics.get(metric)
        sizes = {_size(measured) for r in results.values() for cell in cells for measured in r.measured[cell].values()}
        if (
            all(result.table.metrics.get(metric) == definition for result in rest)
            and len(sizes) == 1
            and None not in sizes
        ):
            yield task, metric


def _size(measured: MeasuredValue) -> int | None:
    rows = measured.statistics.get("")
    return None if rows is None else len(rows)


def _pooled(results: Mapping[str, Result], row: str, other: str, task: str, metric: str) -> PooledComparison:
    rows = {
        f"{folder}\n{name}": result.measured[task, name, metric]
        for folder, result in results.items()
        for name in (row, other)
    }
    _refuse_repeated(rows)
    draws = draw(rows)
    assert draws is not None
    by_table: dict[str, tuple[SeedScores, SeedScores, SeedDifference]] = {}
    pairs: list[tuple[SeedScores, SeedScores | float]] = []
    for folder, result in results.items():
        names = [f"{folder}\n{name}" for name in (row, other)]
        same_models = result.table.models_of(row) == result.table.models_of(other)
        if same_models and not (both := rows[names[0]].keys() & rows[names[1]].keys()):
            raise UsageError(f"{row} and {other} have the same models, and no seed in common", file=folder)
        one, two = (_scores(draws, name, rows[name], both if same_models else rows[name]) for name in names)
        pairs.append((one.minus(two), 0.0) if same_models else (one, two))
        by_table[folder] = (one, two, compare_seeds(*pairs[-1]))
    mean = mean_of_comparisons(pairs)
    title = next(iter(results.values())).table.metrics[metric].title
    return PooledComparison(task, title, by_table, mean)


def _scores(draws: Draws, name: str, measured: Mapping[int, MeasuredValue], seeds: Container[int]) -> SeedScores:
    numbers = {seed: float(measured[seed].value) for seed in sorted(measured) if seed in seeds}  # type: ignore[arg-type]
    return draws.of(name, numbers)


def _refuse_repeated(rows: Mapping[str, Mapping[int, MeasuredValue]]) -> None:
    """Raise UsageError if two tables have the same translations, so that they are not independent."""
    seen: dict[bytes, str] = {}
    for name, seeds in rows.items():
        folder, row = name.split("\n")
        for seed, measured in seeds.items():
            key = np.ascontiguousarray(measured.statistics[""]).tobytes()
            if (before := seen.setdefault(key, folder)) != folder:
                what = f"seed {seed} of {row} has the scores of a run in {before}: the tables share a training"
                raise UsageError(what, file=folder, hint="pool tables of different trainings")
