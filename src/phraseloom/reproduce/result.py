"""The result of a table: every number with its seeds, differences to the baseline, and the claims.

`table.json` stores a `Result`; writing.py writes it as JSON, Markdown and a plot.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from phraseloom import __version__
from phraseloom.errors import PhraseloomError
from phraseloom.metrics.bleu import Scorer
from phraseloom.metrics.seeds import SeedDifference, SeedScores, exact_difference, seed_deviation
from phraseloom.reproduce import claims
from phraseloom.reproduce.claims import Comparison, Draws, JudgedClaim
from phraseloom.reproduce.measure import MeasuredValue, Meter, ValidationCurves, run_facts, validation_curves
from phraseloom.reproduce.records import Record, machine, source_commit
from phraseloom.reproduce.steps import Step, Steps, StepScope, in_order
from phraseloom.reproduce.table import (
    ClaimConfig,
    FloorConfig,
    JsonMetric,
    MetricConfig,
    RunMetric,
    Scale,
    TableConfig,
    TextMetric,
)

PARAMETERS = "parameters"
NOT_STORED = "no interval: the sentences of this table are not stored"
STALE = "made of data that has changed since"
NOT_DONE = {
    "new": "not run yet",
    "stopped": "stopped; the same command resumes it",
    "failed": "failed",
    "changed": f"{STALE}; not repeated yet",
}
UNFINISHED = ("new", "stopped", "changed")
Cell = tuple[str, str, str]  # task, row, metric


@dataclass(frozen=True)
class Compared:
    """The two numbers of a comparison: a row, metric and label, and what they are compared with (see ClaimConfig)."""

    task: str
    metric: str
    row: str
    other: str | None = None
    label: str | None = None
    than_label: str | None = None
    than_metric: str | None = None
    value: float | None = None
    times: float = 1.0
    beyond: tuple[str, ...] = ()

    @property
    def rows(self) -> list[str]:
        """The rows that are compared."""
        return [self.row, *([] if self.other is None else [self.other]), *self.beyond]


@dataclass
class Result:
    """The numbers of a table at a scale after its steps have run."""

    table: TableConfig
    name: str
    scale: Scale
    seeds: Sequence[int]
    measured: dict[Cell, dict[int, MeasuredValue]] = field(default_factory=dict)
    facts: dict[tuple[str, str], dict[int, dict[str, float]]] = field(default_factory=dict)
    curves: dict[tuple[str, str], dict[int, ValidationCurves]] = field(default_factory=dict)
    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    failures: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    against: dict[Cell, SeedDifference] = field(default_factory=dict)
    judged: list[JudgedClaim] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)
    versions: set[str] = field(default_factory=lambda: {__version__})
    commits: set[str] = field(default_factory=set)
    stored: Mapping[Compared, SeedDifference] | None = None  # of a table whose sentences are not stored

    def places(self) -> list[tuple[str, str]]:
        """(task, row) of the whole table, all rows of one task after the other."""
        tasks = list(self.table.tasks) or [""]
        return [(task, row) for task in tasks for row in self.table.rows if task in self.table.tasks_of(row)]

    def numbers(self, cell: Cell) -> list[float]:
        """The numbers of all seeds that have one (not of series)."""
        values = [m.value for m in self.measured.get(cell, {}).values()]
        return [float(v) for v in values if isinstance(v, float | int)]

    def series(self, cell: Cell) -> dict[str, list[float]]:
        """The numbers of all seeds by label."""
        series: dict[str, list[float]] = {}
        for measured in self.measured.get(cell, {}).values():
            for label, value in measured.value.items() if isinstance(measured.value, dict) else ():
                series.setdefault(label, []).append(value)
        return series

    def length_ratios(self, cell: Cell) -> dict[int, float]:
        """Tokens of the translations / tokens of the reference, of each seed, if the number is BLEU of a text."""
        ratios: dict[int, float] = {}
        for seed, measured in self.measured.get(cell, {}).items():
            if isinstance(measured.scorer, Scorer) and "" in measured.statistics:
                ratio = measured.scorer.length_ratio(measured.statistics[""].sum(0))
                ratios |= {} if ratio is None else {seed: ratio}
        return ratios

    def fact(self, task: str, row: str, key: str) -> list[float]:
        """One fact of the run folders of all seeds."""
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
    """Measure every chosen (task, row) and seed, compare with the baseline, and judge the claims.

    `counted`: the parameters of each (task, row), known without training.
    """
    table, scale = steps.table, steps.scale
    result = Result(table, name, scale, list(seeds), counted=dict(counted))
    result.commits = {commit for commit in [source_commit()] if commit}
    meter = Meter(steps)
    machines: list[dict[str, Any]] = []
    for task, row in chosen:
        for seed in seeds:
            place = StepScope(task, row, seed)
            own = steps.steps_of(row, task, seed)
            _note_failures(result, (task, row), own, records, steps.portable)
            result.versions |= {str(records[s.identity].content.get("phraseloom", __version__)) for s in own}
            result.commits = result.commits.union(*(records[s.identity].commits for s in own))
            stale = any(records[s.identity].state == "changed" for s in in_order(own) if s.identity in records)
            machines += [
                r.content["machine"] for s in own if s.trains and "machine" in (r := records[s.identity]).content
            ]
            trained = None if stale else next((s for s in own if s.trains and s.name == "train"), None)
            if trained is not None and records[trained.identity].state == "done":
                facts, curves = _facts(trained.folder / "run")
                result.facts.setdefault((task, row), {})[seed] = facts
                if curves:
                    result.curves.setdefault((task, row), {})[seed] = curves
            for key, metric in table.metrics_at(scale).items():
                measured = _measured(meter, metric, place, records, stale=stale)
                if measured is not None:
                    measured = replace(measured, missing=steps.portable(measured.missing))
                    result.measured.setdefault((task, row, key), {})[seed] = measured
    if machines:
        result.machine = machines[0]
    if any(machine != machines[0] for machine in machines):
        result.left_out.append(
            "a comparison of minutes: not all trainings were run on this machine, with these threads"
        )
    compare(result)
    return result


def _measured(
    meter: Meter, metric: MetricConfig, place: StepScope, records: Mapping[str, Record], *, stale: bool
) -> MeasuredValue | None:
    """The metric of a row and seed, without a number if it is `stale` or a step that it reads is not done.

    So the last validation of a training that was stopped is not its result. None if the row does not have such a step.
    """
    needed = meter.steps.read_by(metric, place)
    if needed is None:
        return None
    if stale:
        return MeasuredValue(None, STALE)
    for step in needed:
        if (state := records[step.identity].state) != "done":
            return MeasuredValue(None, f"{step.title}: {NOT_DONE[state]}")
    return meter.measure(metric, place)


def _facts(run: Path) -> tuple[dict[str, float], ValidationCurves]:
    try:
        return run_facts(run), validation_curves(run)
    except PhraseloomError:
        return {}, {}


def _note_failures(
    result: Result,
    place: tuple[str, str],
    own: Sequence[Step],
    records: Mapping[str, Record],
    portable: Callable[[str], str],
) -> None:
    """Note why the steps of a row are not done, those that they need first."""
    for step in in_order([step for step in own if records[step.identity].state != "done"]):
        record = records[step.identity]
        if record.state != "done":
            message = "" if record.state == "stopped" else portable(record.message)  # the last line of its log
            text = f"{step.title}: {message or NOT_DONE[record.state]}"
            if text not in result.failures.setdefault(place, []):
                result.failures[place].append(text)


def compare(result: Result) -> None:
    """Compute the differences to the baseline and the claims, with one bootstrap per metric and task."""
    table = result.table
    judge = Judge(result)
    if table.baseline is not None:
        for task, row in result.places():
            for key in table.metrics_at(result.scale):
                if row == table.baseline or table.metrics[key].is_series:
                    continue
                difference = judge.difference(Compared(task, key, row, table.baseline))
                if difference is not None:
                    result.against[task, row, key] = difference
    result.judged = judge.verdicts()


def paper_result(table: TableConfig, name: str) -> Result:
    """The numbers of the paper as a result of three equal seeds, so that a claim can be compared with them."""
    result = Result(table, name, "paper", [1, 2, 3])
    for task, row in result.places():
        for metric, value in table.paper_of(row, task).items():
            number = {k: float(v) for k, v in value.items()} if isinstance(value, dict) else float(value)
            if metric == PARAMETERS:
                result.counted[task, row] = round(float(value))
            else:
                result.measured[task, row, metric] = {seed: MeasuredValue(number) for seed in result.seeds}
    return result


def _rows(result: Result, task: str, metric: str) -> dict[str, dict[int, MeasuredValue]]:
    """row → seed → measured, of one task and metric."""
    return {row: seeds for (t, row, m), seeds in result.measured.items() if (t, m) == (task, metric)}


@dataclass
class Judge:
    """Compares numbers of a result. The resamples of a task, metric and label are cached."""

    result: Result
    drawn: dict[tuple[str, str, str], Draws | None] = field(default_factory=dict)

    def verdicts(self) -> list[JudgedClaim]:
        """Every claim of the scale with its verdict."""
        scale = self.result.scale
        return claims.decide([self._gated(c) for c in self.result.table.claims if scale in c.scales])

    def _gated(self, claim: ClaimConfig) -> JudgedClaim:
        """A claim with its p, or the reason why there is no verdict."""
        comparisons = self.comparisons(claim)
        judged = claims.weigh(claim, [c for c, _ in comparisons])
        exact = claim.metric == PARAMETERS
        if judged.verdict == "not measured" and judged.p is None:
            return judged
        if self.result.scale == "tiny" and not exact:
            return replace(judged, verdict="path only", p=None, reason="")
        if not exact and not self._is_cost(claim.metric):
            places = [(task, some) for _, (task, rows) in comparisons for some in (rows[:2], rows[2:]) if some]
            floors = [floor for floor in (self.result.table.floor, claim.floor) if floor is not None]
            found = (self._not_learned(floor, *place) for floor in floors for place in places)
            reason = next(filter(None, found), None)
            if reason is not None:
                return replace(judged, verdict="not learned", p=None, reason=reason)
        return judged

    def _is_cost(self, metric: str) -> bool:
        """Whether a metric is a cost of training, which does not depend on what was learned."""
        config = self.result.table.metrics.get(metric)
        return isinstance(config, RunMetric) and config.read not in ("perplexity", "bleu")

    def _not_learned(self, floor: FloorConfig, task: str, rows: Sequence[str]) -> str | None:
        """Why these rows cannot be compared: the baseline, or all of them, are below the floor."""
        base = floor.row or self.result.table.baseline
        if base is None:
            return None
        shortfalls = [self._shortfall(floor, task, row) for row in rows]
        return self._shortfall(floor, task, base) or (shortfalls[0] if all(shortfalls) else None)

    def _shortfall(self, floor: FloorConfig, task: str, row: str) -> str | None:
        """How a row misses the floor; None if it reaches the floor or has no such number."""
        result = self.result
        cell = (task, row, floor.metric)
        series = result.series(cell)
        numbers = series.get(floor.label, []) if floor.label is not None else result.numbers(cell)
        values = [statistics.fmean(numbers)] if numbers else [statistics.fmean(v) for v in series.values() if v]
        bound = floor.bound(result.scale)
        if bound is None or not values or any(floor.reached(value, result.scale) for value in values):
            return None
        value = max(values) if floor.at_least else min(values)
        title = result.table.metrics[floor.metric].title
        where = f" {task}" if task else ""
        side = "below the floor of" if floor.at_least else "above the limit of"
        return f"{title} {value:.1f} of {row}{where} is {side} {bound:g}"

    def comparisons(self, claim: ClaimConfig) -> list[tuple[Comparison, tuple[str, list[str]]]]:
        """All comparisons of a claim, each with its task and rows."""
        return [
            (claims.compare(claim, _words(claim, pair), self.difference(pair)), (pair.task, pair.rows))
            for pair in self.pairs(claim)
        ]

    def pairs(self, claim: ClaimConfig) -> list[Compared]:
        """What a claim compares, in order."""
        table = self.result.table
        return [
            pair
            for task in claim.tasks or list(table.tasks) or [""]
            for row in claim.about
            for other in claim.than or [None]  # type: ignore[list-item]
            if all(task in table.tasks_of(each) for each in (row, other, *claim.beyond) if each is not None)
            for pair in self._labelled(claim, task, row, other)
        ]

    def _labelled(self, claim: ClaimConfig, task: str, row: str, other: str | None) -> list[Compared]:
        series = list(self.result.series((task, row, claim.metric)))
        than_label = _named(claim.than_label, series)
        labels: Sequence[str | None] = [_named(name, series) for name in claim.labels or series] or [None]
        value = None if claim.value is None else float(claim.value)
        return [
            Compared(
                task=task,
                metric=claim.metric,
                row=row,
                other=other,
                label=label,
                than_label=than_label,
                than_metric=claim.than_metric,
                value=value,
                times=claim.times,
                beyond=tuple(claim.beyond),
            )
            for label in labels
            if label is None or label != than_label
        ]

    def difference(self, pair: Compared) -> SeedDifference | None:
        """The difference of a pair; None if one of its numbers is not measured."""
        stored = self.result.stored
        if stored is not None and of_sentences(self.result.table.metrics.get(pair.metric)):
            return stored.get(pair) or self._without_sentences(pair)
        return self._estimated(pair)

    def _without_sentences(self, pair: Compared) -> SeedDifference | None:
        """The difference of the numbers alone."""
        found = self._estimated(pair)
        if found is None:
            return None
        fewest = found.seeds or 1
        deviations = found.deviations
        return SeedDifference(found.mean, deviations=deviations, one_seed=fewest < 2, how=NOT_STORED, seeds=fewest)

    def _estimated(self, pair: Compared) -> SeedDifference | None:
        task, row, other, label = pair.task, pair.row, pair.other, pair.label
        if pair.metric == PARAMETERS:
            return self._parameters(task, row, other, pair.value)
        if pair.value is not None:
            return self.rows(task, pair.metric, row, pair.value, label)
        if pair.than_metric is not None:
            return self._of(self._within(task, row, (pair.metric, label), (pair.than_metric, label)), 0.0)
        if pair.beyond:
            return self._interaction(pair)
        if pair.than_label is None:
            assert other is not None
            return self.rows(task, pair.metric, row, other, label, times=pair.times)
        places = ((pair.metric, label), (pair.metric, pair.than_label))
        gain = self._within(task, row, *places)
        return self._of(gain, 0.0 if other is None else self._within(task, other, *places))

    def rows(
        self, task: str, metric: str, row: str, other: str | float, label: str | None = None, *, times: float = 1.0
    ) -> SeedDifference | None:
        """The difference of one row to `times` another row, or to a number; None if one is not measured.

        Two rows of the same trainings are compared in pairs, over the seeds that both have.
        """
        if isinstance(other, str) and self.result.table.models_of(row) == self.result.table.models_of(other):
            both = set(self._numbers(task, metric, row, label)) & set(self._numbers(task, metric, other, label))
            mine, its = (self._scores(task, metric, each, label, both) for each in (row, other))
            if mine is None or its is None:
                return None
            gain = mine.scores.minus(its.scores.times(times))
            return self._of(Scored(gain, mine.drawable and its.drawable, None), 0.0)
        second = other if isinstance(other, float) else self._scores(task, metric, other, label)
        if isinstance(second, Scored) and times != 1.0:
            second = replace(second, scores=second.scores.times(times))
        return self._of(self._scores(task, metric, row, label), second)

    def _of(self, scored: Scored | None, other: Scored | float | None) -> SeedDifference | None:
        if scored is None or other is None:
            return None
        if isinstance(other, float):
            return claims.difference_of(scored.scores, other, drawable=scored.drawable)
        return claims.difference_of(scored.scores, other.scores, drawable=scored.drawable and other.drawable)

    def _interaction(self, pair: Compared) -> SeedDifference | None:
        """What a row gains over another, less what the first row of `beyond` gains over the second."""
        scored = [self._scores(pair.task, pair.metric, row, pair.label) for row in pair.rows]
        known = [s for s in scored if s is not None]
        if len(known) < 4:
            return None
        first, other, *beyond = (s.scores for s in known)
        drawable = all(s.drawable for s in known)
        return claims.difference_of(first, other, (beyond[0], beyond[1]), drawable=drawable)

    def _parameters(self, task: str, row: str, other: str | None, value: float | None) -> SeedDifference | None:
        counted = self.result.counted
        if (task, row) not in counted or (other is not None and (task, other) not in counted):
            return None
        return exact_difference(counted[task, row] - (value or 0 if other is None else counted[task, other]))

    def _draws(self, task: str, metric: str, label: str) -> Draws | None:
        key = (task, metric, label)
        if key not in self.drawn:
            config = self.result.table.metrics.get(metric)
            apart = isinstance(config, TextMetric | JsonMetric) and config.apart
            self.drawn[key] = claims.draw(_rows(self.result, task, metric), label, apart=apart)
        return self.drawn[key]

    def _numbers(self, task: str, metric: str, row: str, label: str | None) -> dict[int, float]:
        """The number of each seed that has one."""
        seeds = self.result.measured.get((task, row, metric), {})
        return {seed: value for seed, m in seeds.items() if (value := _at(m, label)) is not None}

    def _scores(
        self, task: str, metric: str, row: str, label: str | None, seeds: Container[int] | None = None
    ) -> Scored | None:
        """The numbers of a row and their resamples, of all seeds or only of `seeds`."""
        found = sorted(self._numbers(task, metric, row, label).items())
        numbers = {seed: value for seed, value in found if seeds is None or seed in seeds}
        if not numbers:
            return None
        draws = self._draws(task, metric, label or "")
        if draws is None or not draws.sentences:
            return Scored(SeedScores(np.array(list(numbers.values()))), draws is None, draws)
        return Scored(draws.of(row, numbers), True, draws)

    def _within(
        self, task: str, row: str, first: tuple[str, str | None], second: tuple[str, str | None]
    ) -> Scored | None:
        """The difference of two numbers of each run of a row, each a (metric, label)."""
        both = set(self._numbers(task, first[0], row, first[1])) & set(self._numbers(task, second[0], row, second[1]))
        scored = self._scores(task, first[0], row, first[1], both)
        other = self._scores(task, second[0], row, second[1], both)
        if scored is None or other is None:
            return None
        same = scored.draws is not None and other.draws is not None and scored.draws.group == other.draws.group
        fits = scored.drawable and other.drawable and (scored.draws is None) == (other.draws is None)
        if same and scored.draws is not None and other.draws is not None:
            fits = fits and scored.draws.sentences == other.draws.sentences
        if not fits:
            return Scored(SeedScores(scored.scores.scores - other.scores.scores), False, None)
        return Scored(scored.scores.minus(other.scores), True, None)


@dataclass(frozen=True)
class Scored:
    """The scores of a row. `drawable`: they can have an interval; `draws`: their resamples."""

    scores: SeedScores
    drawable: bool
    draws: Draws | None


def _named(label: str | None, series: Sequence[str]) -> str | None:
    """A label; `first` and `last` are the first and last labels of the series."""
    if label in ("first", "last") and series:
        return series[0 if label == "first" else -1]
    return label


def _at(measured: MeasuredValue, label: str | None) -> float | None:
    value = measured.value
    if isinstance(value, dict):
        return value.get(label) if label is not None else None
    return value


def _words(claim: ClaimConfig, pair: Compared) -> str:
    """A comparison in words, such as `en-de: queryk > base` or `gain of queryk over base, [>45] > [≤15]`."""
    sign = {1: ">", -1: "<", 0: "≈"}[claim.sign]
    left = pair.row + (f" [{pair.label}]" if pair.label else "")
    if pair.value is not None:
        right = f"{pair.value:g}"
    elif pair.than_metric:
        left, right = f"{left} {pair.metric}", pair.than_metric
    elif pair.beyond:
        left, right = f"gain of {left} over {pair.other}", " over ".join(pair.beyond)
    elif pair.than_label and pair.other is not None:
        left, right = f"gain of {pair.row} over {pair.other}, [{pair.label}]", f"[{pair.than_label}]"
    elif pair.than_label:
        right = f"[{pair.than_label}]"
    else:
        right = str(pair.other)
    right = f"{pair.times:g} times {right}" if pair.times != 1.0 else right
    by = f" by {claim.by:g}" if claim.by else f" within {claim.within:g}" if claim.within else ""
    return f"{pair.task}: {left} {sign} {right}{by}".removeprefix(": ")


def of_sentences(metric: MetricConfig | None) -> bool:
    """Whether a metric is computed from sentences, so that its interval needs them."""
    return isinstance(metric, TextMetric) or (isinstance(metric, JsonMetric) and metric.by_sentence is not None)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None] | None:
    """The mean over seeds, and the standard deviation of two or more."""
    if not values:
        return None
    return statistics.fmean(values), seed_deviation(values)
