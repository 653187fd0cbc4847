"""The result of a table: every number with its seeds beside the paper's, differences to the baseline, the claims.

`Result` is what `table.json` holds; writing.py makes Markdown of it and picture.py a plot.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phraseloom import __version__
from phraseloom.errors import PhraseloomError
from phraseloom.reproduce import claims
from phraseloom.reproduce.claims import Comparison, Difference, JudgedClaim
from phraseloom.reproduce.measure import MeasuredValue, Meter, run_facts
from phraseloom.reproduce.records import Record, machine
from phraseloom.reproduce.steps import Step, Steps, StepScope, in_order
from phraseloom.reproduce.table import ClaimConfig, Scale, TableConfig

PARAMETERS = "parameters"
STALE = "made of a corpus that has changed since"
NOT_DONE = {
    "new": "not run yet",
    "stopped": "stopped, the same command goes on",
    "failed": "failed",
    "changed": f"{STALE}; not run anew yet",
}
Cell = tuple[str, str, str]  # task, row, metric


@dataclass
class Result:
    """What is known of a table at a scale after its steps have run."""

    table: TableConfig
    name: str
    scale: Scale
    seeds: Sequence[int]
    measured: dict[Cell, dict[int, MeasuredValue]] = field(default_factory=dict)
    facts: dict[tuple[str, str], dict[int, dict[str, float]]] = field(default_factory=dict)
    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    against: dict[Cell, Difference] = field(default_factory=dict)
    judged: list[JudgedClaim] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)
    versions: set[str] = field(default_factory=lambda: {__version__})

    def places(self) -> list[tuple[str, str]]:
        """(task, row) of the whole table in its order: all rows of a task, then the next."""
        tasks = list(self.table.tasks) or [""]
        return [(task, row) for task in tasks for row in self.table.rows if task in self.table.tasks_of(row)]

    def numbers(self, cell: Cell) -> list[float]:
        """The numbers of all seeds that have one (not of series)."""
        values = [m.value for m in self.measured.get(cell, {}).values()]
        return [float(v) for v in values if isinstance(v, float | int)]

    def series(self, cell: Cell) -> dict[str, list[float]]:
        """The numbers of all seeds by label."""
        found: dict[str, list[float]] = {}
        for measured in self.measured.get(cell, {}).values():
            for label, value in measured.value.items() if isinstance(measured.value, dict) else ():
                found.setdefault(label, []).append(value)
        return found

    def fact(self, task: str, row: str, key: str) -> list[float]:
        """What the run folders of all seeds say."""
        return [facts[key] for facts in self.facts.get((task, row), {}).values() if key in facts]


def collect(
    steps: Steps,
    name: str,
    seeds: Sequence[int],
    chosen: Iterable[tuple[str, str]],
    records: Mapping[str, Record],
    *,
    counted: Mapping[tuple[str, str], int],
) -> Result:
    """Measure every chosen (task, row) and seed, compare with the baseline, judge the claims.

    `counted`: the parameters of each (task, row), known without training.
    """
    table, scale = steps.table, steps.scale
    result = Result(table, name, scale, list(seeds), counted=dict(counted))
    meter = Meter(steps)
    machines: list[dict[str, Any]] = []
    for task, row in chosen:
        for seed in seeds:
            place = StepScope(task, row, seed)
            own = steps.steps_of(row, task, seed)
            _note_failures(result, (task, row), own, records, steps.portable)
            result.versions |= {str(records[s.identity].content.get("phraseloom", __version__)) for s in own}
            stale = any(records[s.identity].state == "changed" for s in in_order(own) if s.identity in records)
            machines += [
                r.content["machine"] for s in own if s.trains and "machine" in (r := records[s.identity]).content
            ]
            trained = None if stale else next((s for s in own if s.trains), None)
            if trained is not None and (trained.folder / "run").is_dir():
                facts = _facts(trained.folder / "run")
                result.facts.setdefault((task, row), {})[seed] = facts
            for key, metric in table.metrics_at(scale).items():
                measured = MeasuredValue(None, STALE) if stale else meter.measure(metric, place)
                measured = replace(measured, missing=steps.portable(measured.missing))
                result.measured.setdefault((task, row, key), {})[seed] = measured
    if machines:
        result.machine = machines[0]
    if any(machine != machines[0] for machine in machines):
        result.left_out.append(
            "a comparison of minutes: not all trainings were run on this machine, with these threads"
        )
    _compare(result)
    return result


def _facts(run: Path) -> dict[str, float]:
    try:
        return run_facts(run)
    except PhraseloomError:
        return {}


def _note_failures(
    result: Result,
    place: tuple[str, str],
    own: Sequence[Step],
    records: Mapping[str, Record],
    portable: Callable[[str], str],
) -> None:
    for step in own:
        record = records[step.identity]
        if record.state != "done":
            text = f"{step.title}: {portable(record.message) or NOT_DONE[record.state]}"
            if text not in result.failures.setdefault(place, []):
                result.failures[place].append(text)


def _compare(result: Result) -> None:
    """Differences to the baseline, and the claims; one bootstrap a metric and task serves both."""
    table = result.table
    judge = Judge(result)
    if table.baseline is not None:
        for task, row in result.places():
            for key in table.metrics_at(result.scale):
                if row == table.baseline or table.metrics[key].is_series:
                    continue
                found = judge.difference(task, key, row, table.baseline, None, None, None, None)
                if found is not None:
                    result.against[task, row, key] = found
    result.judged = [judge.claim(claim) for claim in table.claims if result.scale in claim.scales]


def _rows(result: Result, task: str, metric: str) -> dict[str, dict[int, MeasuredValue]]:
    """row → seed → measured, of one task and metric."""
    return {row: seeds for (t, row, m), seeds in result.measured.items() if (t, m) == (task, metric)}


@dataclass
class Judge:
    """Compares numbers of a result; the resamples of a task, metric and label are drawn once."""

    result: Result
    drawn: dict[tuple[str, str, str], claims.Draws] = field(default_factory=dict)

    def _draws(self, task: str, metric: str, label: str) -> claims.Draws:
        key = (task, metric, label)
        if key not in self.drawn:
            self.drawn[key] = claims.draw(_rows(self.result, task, metric), label)
        return self.drawn[key]

    def claim(self, claim: ClaimConfig) -> JudgedClaim:
        """All comparisons of a claim."""
        table, found = self.result.table, []
        for task in claim.tasks or list(table.tasks) or [""]:
            for row in claim.about:
                for other in claim.than or [None]:  # type: ignore[list-item]
                    if task in table.tasks_of(row) and (other is None or task in table.tasks_of(other)):
                        found += self._comparisons(claim, task, row, other)
        return JudgedClaim(claim, claims.together([c.verdict for c in found]), tuple(found))

    def _comparisons(self, claim: ClaimConfig, task: str, row: str, other: str | None) -> list[Comparison]:
        labels: Sequence[str | None] = claim.labels or self._labels(task, row, claim.metric) or [None]
        found = []
        for label in labels:
            if label is not None and label == claim.than_label:
                continue
            args = (claim.than_metric, label, claim.than_label, claim.value)
            difference = self.difference(task, claim.metric, row, other, *args)
            says = _words(claim, task, row, other, label)
            found.append(Comparison(says, difference, claims.verdict(claim, difference)))
        return found

    def _labels(self, task: str, row: str, metric: str) -> list[str]:
        return list(self.result.series((task, row, metric)))

    def difference(
        self,
        task: str,
        metric: str,
        row: str,
        other: str | None,
        than_metric: str | None,
        label: str | None,
        than_label: str | None,
        value: float | None,
    ) -> Difference | None:
        """One row (or label, or metric) less another one, or less a number; None where one is not measured."""
        if metric == PARAMETERS:
            counted = self.result.counted
            if (task, row) not in counted or (other is not None and (task, other) not in counted):
                return None
            return claims.exactly(counted[task, row] - (value or 0 if other is None else counted[task, other]))
        rows = _rows(self.result, task, metric)
        if row not in rows or (other is not None and other not in rows):
            return None
        first = self._draws(task, metric, label or "")
        against = first if value is not None else self._draws(task, than_metric or metric, than_label or label or "")
        if first.sentences == against.sentences:
            found = claims.of_sentences(first.of(row), against.of(other or row) if value is None else float(value))
            if found is not None:
                return found
        second = rows if than_metric is None else _rows(self.result, task, than_metric)
        differences = []
        for seed, measured in rows[row].items():
            one = _at(measured, label)
            subtracted: float | None = value
            if value is None:
                there = second.get(other or row, {}).get(seed)
                subtracted = None if there is None else _at(there, than_label or label)
            if one is not None and subtracted is not None:
                differences.append(one - subtracted)
        return claims.of_seeds(differences)


def _at(measured: MeasuredValue, label: str | None) -> float | None:
    value = measured.value
    if isinstance(value, dict):
        return value.get(label) if label is not None else None
    return value


def _words(claim: ClaimConfig, task: str, row: str, other: str | None, label: str | None) -> str:
    """A comparison in words: en-de: queryk > base."""
    sign = {1: ">", -1: "<", 0: "≈"}[claim.sign]
    left = row + (f" [{label}]" if label else "")
    if claim.value is not None:
        right = f"{claim.value:g}"
    elif claim.than_metric:
        left, right = f"{left} {claim.metric}", claim.than_metric
    elif claim.than_label:
        right = f"[{claim.than_label}]"
    else:
        right = str(other)
    by = f" by {claim.by:g}" if claim.by else f" within {claim.within:g}" if claim.within else ""
    return f"{task}: {left} {sign} {right}{by}".removeprefix(": ")


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None] | None:
    """The mean over seeds and, of two and more, their standard deviation."""
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
