"""The numbers of a row and seed: from texts, from the JSON of commands, from run folders.

If the steps of a number have not run, the number is missing, with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from phraseloom.errors import CorruptError, DataError, PhraseloomError
from phraseloom.files import read_json
from phraseloom.metrics.bleu import T2T, Scorer, bleu_by_length, count_tokens, make_scorer, read_line_numbers, take
from phraseloom.metrics.compare import Summed
from phraseloom.metrics.ratio import Ratio
from phraseloom.report.run.folders import describe_model
from phraseloom.report.run.history import RunHistory, is_finite, is_number, read_history, training_speed
from phraseloom.reproduce.steps import StepNotMade, Steps, StepScope
from phraseloom.reproduce.table import JsonMetric, MetricConfig, ReachedMetric, RunMetric, TextMetric
from phraseloom.text.lines import read_lines

Value = float | dict[str, float]
ValidationCurves = dict[str, list[list[float | None]]]
"""By `perplexity` and `bleu`, [update, seconds of training or None, value] of each validation of a run."""


@dataclass(frozen=True)
class MeasuredValue:
    """One number (or series) of one row and seed.

    `statistics`: the counts of its sentences for the bootstrap, by label ("" for a single number).
    `hypotheses`: the scored lines, if the number is a score of text.
    """

    value: Value | None
    missing: str = ""
    signature: str = ""
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)
    scorer: Summed | None = None
    hypotheses: tuple[str, ...] = ()


def scorer_of(metric: TextMetric | JsonMetric) -> Scorer | Ratio:
    """The scorer that computes a number from the summed counts of sentences, which does not depend on their language."""
    if isinstance(metric, TextMetric):
        return make_scorer("tokenized" if metric.kind == "t2t" else metric.kind, tokenize=metric.tokenize)
    return Ratio(metric.form, metric.factor)


@dataclass
class Meter:
    """Measures metrics. Scorers and references are cached."""

    steps: Steps
    _scorers: dict[tuple[str, str], Scorer] = field(default_factory=dict)
    _texts: dict[str, list[str]] = field(default_factory=dict)

    def measure(self, metric: MetricConfig, place: StepScope) -> MeasuredValue | None:
        """The metric of a row, task and seed; None if it reads a step that is not made for this row."""
        try:
            if isinstance(metric, TextMetric):
                return self._text(metric, place)
            if isinstance(metric, JsonMetric):
                return self._json(metric, place)
            if isinstance(metric, RunMetric):
                return _run(metric, Path(self.steps.fill(metric.folder, place)))
            if isinstance(metric, ReachedMetric):
                return MeasuredValue(
                    reached(Path(self.steps.fill(metric.folder, place)), metric.read, metric.perplexity)
                )
            seconds = [_seconds(Path(self.steps.fill(path, place))) for path in metric.reads]
            return MeasuredValue(seconds[0] / (seconds[1] if len(seconds) > 1 else 1.0))
        except StepNotMade:
            return None
        except PhraseloomError as error:
            return MeasuredValue(None, str(error))

    def _text(self, metric: TextMetric, place: StepScope) -> MeasuredValue:
        kind = metric.kind if metric.language is None else T2T + self.steps.fill(metric.language, place)
        key = (kind, metric.tokenize)
        scorer = self._scorers.setdefault(key, make_scorer(kind, tokenize=metric.tokenize))
        path = self.steps.fill(metric.hypotheses, place)
        hypotheses = list(read_lines(path))
        reference = self._lines(self.steps.fill(metric.reference, place))
        if metric.lines is not None:
            chosen = read_line_numbers(self.steps.fill(metric.lines, place), len(reference))
            hypotheses, reference = take([hypotheses, reference], chosen)
        statistics = scorer.statistics(hypotheses, [reference])
        if metric.source is None or metric.edges is None:
            value = scorer.value(statistics.sum(0))
            return MeasuredValue(value, "", scorer.signature, {"": statistics}, scorer, tuple(hypotheses))
        source = self._lines(self.steps.fill(metric.source, place))
        lengths = count_tokens(source, tokenize=metric.tokenize)
        edges = [int(edge) for edge in self.steps.fill(metric.edges, place).split(",")]
        groups = [g for g in bleu_by_length(scorer, statistics, lengths, edges=edges) if g.score is not None]
        values = {g.label: g.score.value for g in groups if g.score is not None}
        rows = {g.label: statistics[g.holds(lengths)] for g in groups}
        return MeasuredValue(values, "", scorer.signature, rows, scorer, tuple(hypotheses))

    def _lines(self, path: str) -> list[str]:
        if path not in self._texts:
            self._texts[path] = list(read_lines(path))
        return self._texts[path]

    def _json(self, metric: JsonMetric, place: StepScope) -> MeasuredValue:
        path = Path(self.steps.fill(metric.file, place))
        at = self.steps.fill(metric.at, place)
        content = read_json(path, "report")
        selected = list(select(content, split(at)))
        numbers = [(item, value) for item, value in selected if is_number(value)]
        if len(numbers) != len(selected) or not selected:
            raise CorruptError(f"no number at {at}", file=path)
        if metric.label is None and len(numbers) > 1:
            raise CorruptError(f"{len(numbers)} numbers at {at}, where one is expected", file=path)
        values = {_label(item, metric.label, n): metric.factor * v for n, (item, v) in enumerate(numbers, 1)}
        value: Value = values if metric.label is not None else values[""]
        if metric.by_sentence is None:
            return MeasuredValue(value)
        scorer = Ratio(metric.form, metric.factor)
        by_sentence = self.steps.fill(metric.by_sentence, place)
        rows = list(select(content, split(by_sentence)))
        labelled = ((_label(item, metric.label, n), v) for n, (item, v) in enumerate(rows, 1))
        statistics = {label: _sums(v) for label, v in labelled if label in values}
        for label, number in values.items():
            sums = statistics.get(label)
            if sums is None or not math.isclose(scorer.value(sums.sum(0)), number, rel_tol=1e-6, abs_tol=1e-9):
                raise CorruptError(f"the sums at {by_sentence} do not give the numbers at {at}", file=path)
        return MeasuredValue(value, "", "", statistics, scorer)


def split(path: str) -> list[str]:
    """The parts of a path, split at full stops outside brackets."""
    return [part for part in re.split(r"\.(?![^\[]*\])", path) if part]


def select(value: Any, path: list[str]) -> Iterator[tuple[Any, Any]]:
    """(the last list entry on the way, the value) for everything that matches the path; see `JsonMetric`."""
    yield from _select(value, None, path)


def _select(value: Any, item: Any, path: list[str]) -> Iterator[tuple[Any, Any]]:
    if not path:
        yield item, value
        return
    key, tail = path[0], path[1:]
    if key == "*" or key.startswith("["):
        entries = value if isinstance(value, list) else []
        if isinstance(value, dict):
            entries = [{"key": name, "value": inner} for name, inner in value.items()]
            tail = ["value", *tail]
        conditions = [part.partition("=")[::2] for part in key.strip("[]").split(",")] if key != "*" else []
        for entry in entries:
            if all(isinstance(entry, dict) and _text(entry.get(name)) == text for name, text in conditions):
                yield from _select(entry, entry, tail)
    elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
        yield from _select(value[int(key)], item, tail)
    elif isinstance(value, dict) and key in value:
        yield from _select(value[key], item, tail)


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _sums(rows: Any) -> np.ndarray:
    """[[numerator, denominator], …] of sentences as an array; an empty array for anything else."""
    try:
        sums = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros((0, 2))
    return sums if sums.ndim == 2 and sums.shape[1] == 2 else np.zeros((0, 2))


def _label(item: Any, name: str | None, number: int) -> str:
    """The label of an entry of a series: its key of that name (null: all), or its number from 1; "" for a single number."""
    if name is None:
        return ""
    if not isinstance(item, dict) or name not in item:
        return str(number)
    return "all" if item[name] is None else str(item[name])


def run_facts(run: Path) -> dict[str, float]:
    """The facts of a run folder: updates, seconds, best validation, parameters; tokens and pairs per second.

    `epochs_to_best` (the first is 1) and `seconds_to_best`: of training until the validation whose model is `best`. A fact that
    the run does not say is left out.
    """
    history = read_history(run)
    facts: dict[str, float] = {}
    if history.training or history.validation:
        facts["updates"] = max([*history.training, *history.validation])
    facts |= {name: value for name, value in training_speed(run).items() if value is not None}
    facts |= _counted(history)
    for key in ("perplexity", "bleu"):
        _, values = history.curve(key, of="validation")
        if len(values):
            facts[key] = float(values.max() if key == "bleu" else values.min())
    if (run / "best").exists():
        facts["parameters"] = float(describe_model(run / "best", verify=False).get("parameters") or 0)
    return facts


def _counted(history: RunHistory) -> dict[str, float]:
    """What the logs of a run say about pairs, epochs and time; runs of earlier versions did not count pairs."""
    facts: dict[str, float] = {}
    known, seconds = history.clock()
    counted, examples = history.curve("examples")
    if len(known) and len(counted) == len(history.training) > 0:
        facts["pairs_per_second"] = float(examples[counted <= known[-1]].sum() / seconds[-1])
    best = max(history.best, default=None)
    if best in history.training and is_finite(history.training[best].get("epoch")):
        facts["epochs_to_best"] = history.training[best]["epoch"] + 1.0
    if best is not None and len(known) and best <= known[-1]:
        facts["seconds_to_best"] = float(np.interp(best, known, seconds))
    return facts


def validation_curves(run: Path) -> ValidationCurves:
    """The validations of a run folder; a key without any is left out."""
    history = read_history(run)
    curves: ValidationCurves = {}
    for key in ("perplexity", "bleu"):
        updates, values = history.curve(key, of="validation")
        times = history.at_time(updates)
        seconds = [None] * len(updates) if times is None else [round(float(t), 1) for t in times]
        if len(updates):
            curves[key] = [[float(u), s, float(v)] for u, s, v in zip(updates, seconds, values, strict=True)]
    return curves


def _run(metric: RunMetric, run: Path) -> MeasuredValue:
    facts = run_facts(run)
    if metric.read not in facts:
        return MeasuredValue(None, f"{run}: the run has no {metric.read}")
    return MeasuredValue(facts[metric.read])


def reached(run: Path, read: str, perplexity: float) -> float:
    """The updates of a run, or its validation BLEU, when validation perplexity first reached `perplexity`.

    Log perplexity and BLEU are interpolated linearly over updates. Raises DataError if the perplexity was never reached, or if
    no BLEU is known at that update.
    """
    updates, values = read_history(run).curve("perplexity", of="validation")
    below = np.flatnonzero(values <= perplexity)
    if not len(below):
        best = f"the best was {values.min():.2f}" if len(values) else "the run has no validation"
        raise DataError(f"validation perplexity {perplexity:g} was not reached: {best}", file=run)
    last, update = int(below[0]), float(updates[below[0]])
    if last:
        before, after, target = np.log([values[last - 1], values[last], perplexity])
        update = float(updates[last - 1] + (updates[last] - updates[last - 1]) * (before - target) / (before - after))
    if read == "updates":
        return update
    scored, bleu = read_history(run).curve("bleu", of="validation")
    if not len(scored) or not scored[0] <= update <= scored[-1]:
        raise DataError(f"no validation BLEU around update {update:.0f}", file=run, hint="set training.bleu_every")
    return float(np.interp(update, scored, bleu))


def _seconds(record: Path) -> float:
    """Wall time of a finished step, from its record. Raises CorruptError, DataError, FileProblem."""
    content = read_json(record, "record of a step")
    if not isinstance(content, dict) or not is_number(content.get("seconds")):
        raise CorruptError("no seconds in the record of a step", file=record)
    if content.get("status") != "done" or content["seconds"] <= 0:
        raise DataError("the step is not done, so its time is not known", file=record)
    return float(content["seconds"])
