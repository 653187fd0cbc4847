"""The comparison of two systems as one document (JSON), format 1: `RunComparison` writes and reads it.

`difference` is always the second minus the first, and `values` has one for each system. The sentences whose translations differ
most are ranked by the difference of sentence chrF or of log P(reference | source) in nats if there is a reference, else by
100 − chrF of the second translation against the first. Systems with several runs have the means over their runs, and all their
translations are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

from phraseloom import __version__
from phraseloom.errors import PhraseloomError, plural
from phraseloom.metrics.bleu import make_scorer
from phraseloom.report.run.folders import INDEX
from phraseloom.report.run.parts import ScoresPart
from phraseloom.report.run.report import configuration, missing, warnings
from phraseloom.report.run.runs import (
    CURVES,
    LearningCurve,
    Missing,
    OverRuns,
    SystemFacts,
    common_updates,
    interval_width,
    mean,
    mean_curve,
)
from phraseloom.results import Number, ResultPart

FORMAT = 1
VERSIONS = {"phraseloom": "phraseloom", "torch": "torch", "python": "Python", "machine": "machine"}
TRAINING = {
    "parameters": "parameters",
    "updates": "updates",
    "seconds": "training time",
    "tokens_per_second": "target subwords / s in training",
    "valid_perplexity": "best validation perplexity",
    "valid_bleu": "best validation BLEU",
}
LOWER_IS_BETTER = {"nll", "perplexity"}
NO_DATASET = "the dataset folder of the recipe is not here"


class RecipeDifference(ResultPart):
    """A key of the recipes whose values differ."""

    key: str
    values: list[str]


class RecipeDifferences(ResultPart):
    """The keys that differ, and the number of those that do not."""

    different: list[RecipeDifference]
    same: int


class ComparedText(ResultPart):
    """A fact of both systems."""

    what: str
    values: list[str]
    same: bool


class ComparedNumber(ResultPart):
    """A number of `RunFacts` (`key`) of both systems; None: unknown."""

    key: str
    what: str
    values: list[OverRuns | None]
    difference: Number | None
    same: bool


class CurveRow(ResultPart):
    """Two curves at one update; deviations over runs, None for one run."""

    update: float
    values: list[float]
    deviations: list[float | None]
    difference: float


class ReachedValue(ResultPart):
    """The best value of the other system, and the first update at which this one is as good; None: never."""

    value: float
    update: float | None


class ComparedCurve(ResultPart):
    """The curves of both systems at their common updates."""

    key: str
    rows: list[CurveRow]
    reached: list[ReachedValue]


class SystemSentence(ResultPart):
    """The translations of a sentence by the runs of a system, their mean sentence chrF and log P in nats."""

    name: str
    translations: list[str]
    chrf: float | None
    log_prob: float | None
    phrases: str | None


class ComparedSentence(ResultPart):
    """A sentence, at `line` (from 1) of the text; `unlike`: 100 − chrF, without a reference."""

    line: int
    source: str | None
    reference: str | None
    chrf_difference: float | None
    unlike: float | None
    log_prob_difference: float | None
    systems: list[SystemSentence]

    @property
    def texts(self) -> dict[str, str]:
        """The source and the reference, if known."""
        texts = {"source": self.source, "reference": self.reference}
        return {what: text for what, text in texts.items() if text is not None}


class ComparedSentences(ResultPart):
    """Counts over all sentences, and the sentences that differ most.

    `better` (sentence chrF) and `likelier` (log P of the reference): of how many sentences the first, the second, and neither.
    """

    by: str
    sentences: int
    same_translation: int
    better: list[int] | None
    likelier: list[int] | None
    log_prob_of: Literal["reference", "own translation"]
    listed: list[ComparedSentence]


class RunComparison(ResultPart):
    """The document; `scores` and `sentences` are None without translations."""

    format: int
    version: str
    systems: list[SystemFacts]
    configuration: RecipeDifferences
    data: list[ComparedText]
    versions: list[ComparedText]
    training: list[ComparedNumber]
    curves: list[ComparedCurve]
    scores: ScoresPart | None
    sentences: ComparedSentences | None
    warnings: list[str]
    lacks: list[Missing]

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the keys of `SystemFacts` that were not set."""
        return self.model_dump(exclude_unset=True)


def build(
    systems: Sequence[SystemFacts],
    *,
    scores: ScoresPart | None = None,
    sentences: ComparedSentences | None = None,
    lacks: Sequence[Missing] = (),
) -> RunComparison:
    """The document on two systems."""
    rows = configuration([system.runs for system in systems])
    data, lost = _data(systems)
    return RunComparison(
        format=FORMAT,
        version=__version__,
        systems=[
            SystemFacts.model_validate({**system.model_dump(exclude_unset=True), "look": look})
            for look, system in enumerate(systems)
        ],
        configuration=RecipeDifferences(
            different=[RecipeDifference(key=row.key, values=row.values) for row in rows if not row.same],
            same=sum(row.same for row in rows),
        ),
        data=data,
        versions=[_row(name, [_facts(s, key) for s in systems]) for key, name in VERSIONS.items()],
        training=[_training(key, name, systems) for key, name in TRAINING.items()],
        curves=[c for key in ("perplexity", "bleu", "nll") if (c := _curve(key, systems))],
        scores=scores,
        sentences=sentences,
        warnings=warnings(systems),
        lacks=[*missing(systems), *lost, *lacks],
    )


def _row(what: str, values: list[str]) -> ComparedText:
    return ComparedText(what=what, values=values, same=len(set(values)) == 1)


def _facts(system: SystemFacts, key: str) -> str:
    return ", ".join(dict.fromkeys(getattr(run.facts, key, None) or "–" for run in system.runs))


def _training(key: str, name: str, systems: Sequence[SystemFacts]) -> ComparedNumber:
    values = [system.over_runs(key) for system in systems]
    known = [v.mean for v in values if v is not None]
    difference = known[1] - known[0] if len(known) == 2 else None
    return ComparedNumber(key=key, what=name, values=values, difference=difference, same=difference == 0)


def _data(systems: Sequence[SystemFacts]) -> tuple[list[ComparedText], list[Missing]]:
    """Fingerprints, checksums of the files of the recipes, and sizes if the dataset is unchanged on this machine."""
    rows = [_row("dataset (sha256)", [_short(_facts(s, "dataset")) for s in systems])]
    lacks: list[Missing] = []
    columns: list[dict[str, str]] = []
    for system in systems:
        column: dict[str, str] = {}
        for run in system.runs[:1]:
            data = (run.config or {}).get("data")
            column |= _files(data) if isinstance(data, dict) else {}
            sizes, why = _sizes(data, run.facts.dataset if run.facts else None)
            column |= sizes
            if why:
                lacks.append(Missing(system=system.name, what="sizes of the data", why=why))
        columns.append(column)
    keys = list(dict.fromkeys(key for column in columns for key in column))
    return rows + [_row(key, [column.get(key, "–") for column in columns]) for key in keys], lacks


def _files(data: Mapping[str, Any]) -> dict[str, str]:
    result = {}
    for split in ("train", "valid", "test"):
        files = data.get(split) if isinstance(data.get(split), list) else []
        for side in ("source", "target", "text"):
            named = [f for f in files or [] if isinstance(f, dict) and f.get(side)]
            if named:
                texts = (f"{Path(str(f[side])).name} ({_short(str(f.get(f'{side}_sha256') or '–'))})" for f in named)
                result[f"{split}, {side}"] = ", ".join(texts)
    return result


def _sizes(data: Any, fingerprint: str | None) -> tuple[dict[str, str], str | None]:
    from phraseloom.data.corpus import Dataset
    from phraseloom.data.shards import read_index

    folder = Path(str(data["folder"])) if isinstance(data, dict) and data.get("folder") else None
    if folder is None or not (folder / INDEX).is_file():
        return {}, NO_DATASET
    try:
        if Dataset.open(folder, verify=False).fingerprint != fingerprint:
            return {}, f"{folder} is not the dataset that was trained on"
        index = read_index(folder)
    except PhraseloomError as error:
        return {}, str(error)
    result = {}
    for name, split in index.splits.items():
        counts = f"{plural(split.pairs, 'pair')}, {split.source_tokens:,} / {split.target_tokens:,} subwords"
        if "language" in index.config:
            counts = f"{plural(split.pairs, 'line')}, {split.target_tokens:,} subwords"
        dropped = sum(d.pairs for d in split.dropped.values())
        result[f"{name}, size"] = counts + (f"; {dropped:,} left out" if dropped else "")
    return result, None


def _short(checksum: str) -> str:
    return ", ".join(part if len(part) < 40 else f"{part[:12]}…" for part in checksum.split(", "))


def _curve(key: str, systems: Sequence[SystemFacts]) -> ComparedCurve | None:
    """The values of both systems at their common updates, and when each reached the best value of the other.

    Training values are means over intervals, the same ones for both systems.
    """
    runs = [system.run_curves(key) for system in systems]
    if key == "nll" and len({run.output for system in systems for run in system.runs if run.output}) > 1:
        return None  # losses of different kinds
    if not all(runs) or any(key not in system.curves for system in systems):
        return None
    common = common_updates([curve for curves in runs for curve in curves])
    width = interval_width(common) if CURVES[key] == "training" else 1.0
    rows = _rows(*(mean_curve(curves, common, width) for curves in runs))
    whole = [mean_curve(curves, common_updates(curves), width) for curves in runs]
    return ComparedCurve(key=key, rows=rows, reached=[_reached(key, whole[i], whole[1 - i]) for i in (0, 1)])


def _rows(*curves: LearningCurve) -> list[CurveRow]:
    """Two curves with the same updates, row by row."""
    rows = []
    for i, update in enumerate(curves[0].updates):
        values = [curve.values[i] for curve in curves]
        spreads = [curve.deviation[i] if curve.deviation else None for curve in curves]
        rows.append(CurveRow(update=update, values=values, deviations=spreads, difference=values[1] - values[0]))
    return rows


def _reached(key: str, curve: LearningCurve, other: LearningCurve) -> ReachedValue:
    sign = 1 if key in LOWER_IS_BETTER else -1
    target = min(sign * v for v in other.values)
    points = zip(curve.updates, curve.values, strict=True)
    return ReachedValue(value=sign * target, update=next((u for u, v in points if sign * v <= target), None))


@dataclass(frozen=True)
class SystemSide:
    """The translations of one system, run by run, with log-probabilities (of the reference, else of its own lines).

    `phrases`: the phrase links of the first run as text, one per line; None if they were not requested or do not exist.
    """

    name: str
    runs: Sequence[Sequence[str]]
    log_probs: Sequence[Sequence[float]] = ()
    phrases: Sequence[str] | None = None


def sentence_chrf(lines: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each line."""
    scorer = make_scorer("chrf")
    return [scorer.value(row) for row in scorer.statistics(lines, [references])]


def compare_sentences(
    sides: Sequence[SystemSide],
    sources: Sequence[str] | None,
    references: Sequence[str] | None,
    *,
    by: str = "chrf",
    most: int = 10,
) -> ComparedSentences:
    """Counts over all sentences, and the `most` sentences with the greatest difference, greatest first.

    Ties are in the order of the text; sentences without a difference are not listed.
    """
    number = len(sides[0].runs[0])
    log_probs = [_means(side.log_probs) if side.log_probs else None for side in sides]
    chrf = [_means([sentence_chrf(lines, references) for lines in side.runs]) for side in sides] if references else None
    if chrf is not None:
        unlike = [b - a for a, b in zip(*chrf, strict=True)]
    else:
        first, second = sides[0].runs[0], sides[1].runs[0]
        likeness = sentence_chrf(second, first)  # 0 of two empty lines
        unlike = [0.0 if a == b else 100 - value for a, b, value in zip(first, second, likeness, strict=True)]
    gaps = None
    if log_probs[0] is not None and log_probs[1] is not None:
        gaps = [b - a for a, b in zip(log_probs[0], log_probs[1], strict=True)]
    key = gaps if by == "log-prob" and gaps is not None else unlike
    order = sorted((i for i in range(number) if abs(key[i]) > 1e-9), key=lambda i: -abs(key[i]))[:most]
    same = sum(set(a) == set(b) for a, b in zip(*(list(zip(*s.runs, strict=True)) for s in sides), strict=True))
    listed = [
        ComparedSentence(
            line=i + 1,
            source=None if sources is None else sources[i],
            reference=None if references is None else references[i],
            chrf_difference=unlike[i] if chrf is not None else None,
            unlike=None if chrf is not None else unlike[i],
            log_prob_difference=None if gaps is None else _finite(gaps[i]),
            systems=[
                _entry(side, i, None if chrf is None else chrf[n][i], log_probs[n]) for n, side in enumerate(sides)
            ],
        )
        for i in order
    ]
    return ComparedSentences(
        by=by if key is not unlike or by == "chrf" else "chrf",
        sentences=number,
        same_translation=same,
        better=_better(unlike) if chrf is not None else None,
        likelier=None if gaps is None or references is None else _better(gaps),
        log_prob_of="reference" if references is not None else "own translation",
        listed=listed,
    )


def _finite(value: float) -> float | None:
    """None for the log P of a target that a segmental model cannot write, and for differences from it."""
    return value if math.isfinite(value) else None


def _means(runs: Sequence[Sequence[float]]) -> list[float]:
    return [mean(values) for values in zip(*runs, strict=True)]


def _better(differences: Sequence[float]) -> list[int]:
    first, second = sum(d < -1e-9 for d in differences), sum(d > 1e-9 for d in differences)
    return [first, second, len(differences) - first - second]


def _entry(side: SystemSide, i: int, chrf: float | None, log_probs: Sequence[float] | None) -> SystemSentence:
    return SystemSentence(
        name=side.name,
        translations=[lines[i] for lines in side.runs],
        chrf=chrf,
        log_prob=None if log_probs is None else _finite(log_probs[i]),
        phrases=None if side.phrases is None else side.phrases[i],
    )


def marked(first: str, second: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The words of two lines as runs of (text, whether it is only in this line)."""
    a, b = first.split(), second.split()
    sides: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for what, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for side, words in zip(sides, (a[i:j], b[k:m]), strict=True):
            if words:
                side.append((" ".join(words), what != "equal"))
    return sides
