"""The parts of a report from models and translations: they are measured here, and shown in the forms of `parts.py`.

`measure_systems` measures models (`analysis/measurements.py`), `measured_parts` makes the parts. The numbers of several runs of
one system become their mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from phraseloom import results
from phraseloom.metrics.bleu import LENGTH_EDGES, make_scorer
from phraseloom.metrics.compare import bootstrap_values
from phraseloom.metrics.ratio import Ratio, wilson
from phraseloom.metrics.seeds import SeedScores, compare_seeds, seed_deviation
from phraseloom.report.evaluation import ByLength, evaluate
from phraseloom.report.run.parts import (
    ActivationPart,
    AlignmentPart,
    ContrastivePart,
    EntropyPart,
    FertilityPart,
    Part,
    ReportPart,
    ScoresPart,
    ShownSystem,
    SpeedPart,
    SystemAlignment,
    SystemSpeed,
    activation_of,
    contrastive,
    entropy_of,
    fertility_of,
    scores,
)
from phraseloom.report.run.runs import Missing, OverRuns, System, SystemFacts, average, mean, spread

if TYPE_CHECKING:
    from phraseloom.analysis.measurements import Material

S = TypeVar("S", bound=ShownSystem)
T = TypeVar("T")
MEASURED = "measured"
ALL_OF_IT = "everything about translations"
NO_TRANSLATION = "it is a language model, which does not translate"
Runs = Sequence[Mapping[str, Any]]
Measured = dict[str, dict[str, list[Any]]]  # kind → system → measurement of each run
NAMES = {
    "translation": "translation",
    "contrastive": "contrastive accuracy",
    "alignment": "alignment error rate",
    "entropy": "attention entropy",
    "activation": "activation shares",
    "fertility": "fertility scores",
}


@dataclass(frozen=True)
class ScoredOn:
    """The reference and the metrics of translations. `subset`: a file, and the line numbers (from 0) that it names.

    `given`: scores of sentences by metric, for each run of each system (`metrics/given.py`).
    """

    reference: Sequence[str]
    source: Sequence[str] | None = None
    metrics: Sequence[str] = ("bleu", "chrf")
    samples: int = 1000
    seed: int = 12345
    subset: tuple[str, Sequence[int]] | None = None
    name: str = "test"
    given: Mapping[str, Sequence[Sequence[np.ndarray]]] = field(default_factory=dict)


def measure_systems(
    systems: Sequence[System],
    facts: Sequence[SystemFacts],
    material: Material,
    translated: Container[str],
    *,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> tuple[Measured, list[Missing]]:
    """The measurements by kind and system, and what is missing. Systems without a model are left out.

    `facts` are those of `runs.read_system`; systems in `translated` have translations, so that their models do not translate.
    """
    if material.is_empty:
        return {}, []
    from phraseloom.analysis.measurements import measure_model

    by_system: dict[str, Runs] = {}
    others: list[Missing] = []
    for system, known in zip(systems, facts, strict=True):
        if not known.translates:
            others.append(Missing(system=system.name, what=ALL_OF_IT, why=NO_TRANSLATION))
        if not known.translates or not all(run.has_model for run in known.runs):
            continue
        own = replace(material, translate=material.translate and system.name not in translated)
        if not own.is_empty:
            by_system[system.name] = [measure_model(folder, own, device=device, say=say) for folder in system.folders]
    measured, lacks = split_lacks(by_system)
    return measured, others + lacks


def measured_parts(
    measured: Measured,
    systems: Sequence[str],
    translations: Mapping[str, Sequence[Sequence[str]]],
    test: ScoredOn | None,
    material: Material,
    *,
    edges: Sequence[int] = (),
    gold: str | None = None,
    say: Callable[[str], None] = print,
) -> tuple[list[Part], list[Missing]]:
    """The parts of everything that was measured on `material`, and what cannot be shown.

    `translations` are given, those of models are in `measured`.

    `systems`: the names of all in their order; the first with translations is the baseline of the scores.
    `edges`: upper edges of the bins of distances; `gold`: the name of the gold links.
    """
    translated = measured.get("translation", {})
    sentences = len(material.sources or [])
    parts: list[Part] = []
    lines = {name: [run.lines for run in runs] for name, runs in translated.items()}
    whole = in_order(lines | dict(translations), systems)
    if test is not None and whole:
        say("scores")
        parts += score_parts(whole, test)
    if translated:
        parts.append(speed_part(translated, sentences))
    if "contrastive" in measured:
        items = material.items or []
        name = ", ".join(dict.fromkeys(Path(item.file).name for item in items))
        parts.append(contrastive_part(measured["contrastive"], items, edges, name))
    by_layer, lacks = layer_parts(measured, gold, sentences)
    return parts + by_layer, lacks


def in_order(by_name: Mapping[str, T], systems: Sequence[str]) -> dict[str, T]:
    """A mapping in the order of the systems, then all other names: the first of them is the baseline."""
    return {name: by_name[name] for name in [*systems, *by_name] if name in by_name}


def split_lacks(measured: Mapping[str, Runs]) -> tuple[Measured, list[Missing]]:
    """By kind and system the measurements that all runs of the system have; and what is missing, with the reasons."""
    present: Measured = {}
    lacks: list[Missing] = []
    for name, runs in measured.items():
        for kind in dict.fromkeys(kind for run in runs for kind in run):
            reasons = list(dict.fromkeys(run[kind].why for run in runs if kind in run and hasattr(run[kind], "why")))
            if reasons:
                lacks.append(Missing(system=name, what=NAMES[kind], why="; ".join(reasons)))
            elif all(kind in run for run in runs):
                present.setdefault(kind, {})[name] = [run[kind] for run in runs]
    return present, lacks


def score_parts(outputs: Mapping[str, Sequence[Sequence[str]]], test: ScoredOn) -> list[ScoresPart]:
    """The scores of all translations, and those on the lines of the subset."""
    scorers = [make_scorer(name) for name in test.metrics]
    options: dict[str, Any] = {"bootstrap": test.samples, "seed": test.seed, "pairs": True}
    has_bleu = any(scorer.name == "BLEU" for scorer in scorers)
    by = None if test.source is None or not has_bleu else ByLength(test.source, LENGTH_EDGES)
    measured = [(test.name, evaluate(outputs, [test.reference], scorers, by_length=by, given=test.given, **options))]
    if test.subset is not None:
        file, numbers = test.subset
        subset = {name: [[lines[i] for i in numbers] for lines in runs] for name, runs in outputs.items()}
        given = {metric: [[rows[list(numbers)] for rows in runs] for runs in of] for metric, of in test.given.items()}
        result = evaluate(subset, [[test.reference[i] for i in numbers]], scorers, given=given, **options)
        lines_of = results.LineSubset(file=file, of=len(test.reference))
        measured.append((file, result.model_copy(update={"lines": lines_of})))
    return [scores(result, name, MEASURED) for name, result in measured]


def speed_part(translated: Mapping[str, Sequence[Any]], sentences: int) -> SpeedPart:
    """The speed at which each system translated the test sources on this machine."""
    systems = []
    for name, runs in translated.items():
        rates = {
            "sentences_per_second": [sentences / run.seconds for run in runs],
            "tokens_per_second": [run.tokens / run.seconds for run in runs],
        }
        about = {"device": runs[0].device, "workers": runs[0].workers, "beam": runs[0].options["beam"]}
        values = {key: OverRuns(mean=mean(v), deviation=seed_deviation(v), values=v) for key, v in rates.items()}
        warnings = [warning for run in runs for warning in run.warnings]
        systems.append(SystemSpeed.model_validate({"name": name, **about, **values, "warnings": warnings}))
    return SpeedPart(kind="speed", name="translation", origin=MEASURED, sentences=sentences, systems=systems)


SAMPLES = 1000  # resamples of the items


def contrastive_part(
    judged: Mapping[str, Sequence[Any]], items: Sequence[Any], edges: Sequence[int], name: str
) -> ContrastivePart:
    """Accuracy by category and distance. Systems with several runs have the mean, and no exact test."""
    from phraseloom.analysis.contrastive import contrastive_report

    keys = [(system, i) for system, runs in judged.items() for i in range(len(runs))]
    flat = {f"{i} {system}": judged[system][i] for system, i in keys}
    single = all(len(runs) == 1 for runs in judged.values())
    groups = contrastive_report(items, flat, edges, by_sentence=not single)
    for group in groups:
        entries: dict[str, list[dict[str, Any]]] = {}
        for (system, _), entry in zip(keys, group["systems"], strict=True):
            entries.setdefault(system, []).append(entry)
        group["systems"] = [_pooled(system, runs, group["items"], single) for system, runs in entries.items()]
    measured = any(item.distance is not None for item in items)
    value = {"items": len(items), "distance": "given" if measured else None, "groups": groups}
    return contrastive(results.ContrastiveResult.model_validate(value), name, MEASURED)


def _pooled(system: str, entries: Sequence[dict[str, Any]], items: int, tested: bool) -> dict[str, Any]:
    """The mean accuracy of the runs of a system. Its interval has the variance of runs and of items (metrics/seeds.py).

    It is never narrower than Wilson's interval of the mean, because runs may all have every item right.
    """
    if len(entries) == 1:
        (only,) = entries
        numbers = {"accuracy": only["accuracy"], "deviation": None, "interval": only["interval"]}
        return {**(only if tested else numbers), "system": system}
    values = [entry["accuracy"] for entry in entries]
    statistics = [np.array(entry["by_sentence"], dtype=float) for entry in entries]
    sampled = bootstrap_values(Ratio(), statistics, samples=SAMPLES)
    found = compare_seeds(SeedScores(np.array(values), sampled))
    low, high = wilson(mean([entry["correct"] for entry in entries]), items)
    assert found.low is not None and found.high is not None
    interval = [max(0.0, min(low, found.low)), min(1.0, max(high, found.high))]
    return {"system": system, "accuracy": mean(values), "deviation": seed_deviation(values), "interval": interval}


def layer_parts(
    measured: Mapping[str, Mapping[str, Sequence[Any]]], gold: str | None, sentences: int
) -> tuple[list[Part], list[Missing]]:
    """The parts on alignment, entropy, activation and fertility that were measured, without the systems whose runs differ."""
    forms: dict[str, tuple[type[ReportPart], dict[str, Any], Callable[[Any, str], ShownSystem]]] = {
        "alignment": (
            AlignmentPart,
            {"name": gold, "gold": gold, "sentences": sentences},
            _alignment_of,
        ),
        "entropy": (
            EntropyPart,
            {"name": "reference, forced", "unit": "nats"},
            lambda run, _: entropy_of(results.ModelEntropy.model_validate(run)),
        ),
        "activation": (
            ActivationPart,
            {"name": "reference, forced"},
            lambda run, name: activation_of(results.ActivationResult.model_validate(run), name),
        ),
        "fertility": (
            FertilityPart,
            {"name": "labels"},
            lambda run, name: fertility_of(results.FertilityResult.model_validate(run), name),
        ),
    }
    parts: list[Any] = []
    lacks = []
    for kind, (cls, about, form) in forms.items():
        systems = []
        for name, runs in measured.get(kind, {}).items():
            if (system := _averaged(name, [form(run, name) for run in runs])) is not None:
                systems.append(system)
            else:
                lacks.append(
                    Missing(
                        system=name, what=NAMES[kind], why="its runs differ in layers or heads, so they have no mean"
                    )
                )
        if systems:
            parts.append(cls.model_validate({"kind": kind, **about, "systems": systems, "origin": MEASURED}))
    return parts, lacks


def _alignment_of(run: Mapping[str, Any], name: str) -> SystemAlignment:
    found = results.ModelAlignment.model_validate({"model": run["model"], "settings": run["settings"]})
    return SystemAlignment.model_validate({"settings": found.settings, "name": name, "cropped": run.get("cropped", 0)})


def _averaged(name: str, entries: Sequence[S]) -> S | None:
    """The means over runs, None if these have different shapes. `deviation` has the same shape; it is absent for one run."""
    named = [{**entry.model_dump(exclude_unset=True), "name": name} for entry in entries]
    try:
        several = {**average(named), "runs": len(named), "deviation": spread(named)} if len(named) > 1 else named[0]
    except ValueError:
        return None
    return type(entries[0]).model_validate(several)
