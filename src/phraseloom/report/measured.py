"""What `analysis/measurements.py` found for each run of each system, as the parts of a report (`parts.py`).

Numbers of runs of one system become their mean with the deviation; see `averages.py` and `evaluation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phraseloom.metrics.accuracy import wilson
from phraseloom.metrics.bleu import LENGTH_EDGES, make_scorer
from phraseloom.report import parts
from phraseloom.report.averages import average, deviation, mean, spread
from phraseloom.report.evaluation import ByLength, evaluate
from phraseloom.report.parts import Part

MEASURED = "measured"
Runs = Sequence[Mapping[str, Any]]
Lacks = list[dict[str, str | None]]
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
    """What translations are scored on, by which metrics; `subset`: the lines (from 0) with phrases, and their file."""

    reference: Sequence[str]
    source: Sequence[str] | None = None
    metrics: Sequence[str] = ("bleu", "chrf")
    samples: int = 1000
    seed: int = 12345
    subset: tuple[str, Sequence[int]] | None = None
    name: str = "test"


def split_lacks(measured: Mapping[str, Runs]) -> tuple[dict[str, dict[str, list[Any]]], Lacks]:
    """By kind and system what every run of it has; and what is lacking, with the reasons."""
    found: dict[str, dict[str, list[Any]]] = {}
    lacks: Lacks = []
    for name, runs in measured.items():
        for kind in dict.fromkeys(kind for run in runs for kind in run):
            reasons = list(dict.fromkeys(run[kind].why for run in runs if kind in run and hasattr(run[kind], "why")))
            if reasons:
                lacks.append({"system": name, "what": NAMES[kind], "why": "; ".join(reasons)})
            elif all(kind in run for run in runs):
                found.setdefault(kind, {})[name] = [run[kind] for run in runs]
    return found, lacks


def score_parts(outputs: Mapping[str, Sequence[Sequence[str]]], test: ScoredOn) -> list[Part]:
    """BLEU and the like of all translations, and of the lines of the subset alone."""
    scorers = [make_scorer(name) for name in test.metrics]
    options: dict[str, Any] = {"bootstrap": test.samples, "seed": test.seed, "pairs": True}
    has_bleu = any(scorer.name == "BLEU" for scorer in scorers)
    by = None if test.source is None or not has_bleu else ByLength(test.source, LENGTH_EDGES)
    whole = evaluate(outputs, [test.reference], scorers, by_length=by, **options)
    found = [{"kind": "scores", "name": test.name, "origin": MEASURED, **parts.scores(whole)}]
    if test.subset is not None:
        file, chosen = test.subset
        some = {name: [[lines[i] for i in chosen] for lines in runs] for name, runs in outputs.items()}
        report = evaluate(some, [[test.reference[i] for i in chosen]], scorers, **options)
        report["lines"] = {"file": file, "of": len(test.reference)}
        found.append({"kind": "scores", "name": file, "origin": MEASURED, **parts.scores(report)})
    return found


def speed_part(translated: Mapping[str, Sequence[Any]], sentences: int) -> Part:
    """How fast each system translated the test sources, on this machine."""
    systems = []
    for name, runs in translated.items():
        rates = {
            "sentences_per_second": [sentences / run.seconds for run in runs],
            "tokens_per_second": [run.tokens / run.seconds for run in runs],
        }
        first = runs[0]
        about = {"device": first.device, "workers": first.workers, "beam": first.options["beam"]}
        values = {key: {"mean": mean(v), "deviation": deviation(v), "values": v} for key, v in rates.items()}
        systems.append({"name": name, **about, **values, "warnings": [w for run in runs for w in run.warnings]})
    return {"kind": "speed", "name": "translation", "origin": MEASURED, "sentences": sentences, "systems": systems}


def contrastive_part(
    judged: Mapping[str, Sequence[Any]], items: Sequence[Any], edges: Sequence[int], name: str
) -> Part:
    """Accuracy by category and distance; systems of several runs have the mean and no exact test."""
    from phraseloom.analysis.contrastive import contrastive_report

    keys = [(system, i) for system, runs in judged.items() for i in range(len(runs))]
    flat = {f"{i} {system}": judged[system][i] for system, i in keys}
    single = len(next(iter(judged.values()))) == 1
    groups = contrastive_report(items, flat, edges)
    for group in groups:
        entries: dict[str, list[dict[str, Any]]] = {}
        for (system, _), entry in zip(keys, group["systems"], strict=True):
            entries.setdefault(system, []).append(entry)
        group["systems"] = [_pooled(system, some, group["items"], single) for system, some in entries.items()]
    measured = any(item.distance is not None for item in items)
    value = {"items": len(items), "distance": "given" if measured else None, "groups": groups}
    return {"kind": "contrastive", "name": name, "origin": MEASURED, **parts.contrastive(value)}


def _pooled(system: str, entries: Sequence[dict[str, Any]], items: int, tested: bool) -> dict[str, Any]:
    if len(entries) == 1 and tested:
        return {**entries[0], "system": system}
    values = [entry["accuracy"] for entry in entries]
    low, high = wilson(mean([entry["correct"] for entry in entries]), items)  # type: ignore[arg-type]
    return {"system": system, "accuracy": mean(values), "deviation": deviation(values), "interval": [low, high]}


def layer_parts(found: Mapping[str, Mapping[str, Sequence[Any]]], gold: str | None, sentences: int) -> list[Part]:
    """Alignment, entropy, activation and fertility, where they were measured."""
    made: list[Part] = []
    if "alignment" in found:
        keys = ("layer", "head", "method", "aer", "precision", "recall")
        systems = [
            _averaged(name, [{"settings": [{k: m[k] for k in keys} for m in run["settings"]]} for run in runs])
            for name, runs in found["alignment"].items()
        ]
        made.append({"kind": "alignment", "name": gold, "gold": gold, "sentences": sentences, "systems": systems})
    if "entropy" in found:
        systems = [_averaged(name, [parts.entropy_of(run) for run in runs]) for name, runs in found["entropy"].items()]
        made.append({"kind": "entropy", "name": "reference, forced", "unit": "nats", "systems": systems})
    for kind, of in (("activation", parts.activation_of), ("fertility", parts.fertility_of)):
        if kind in found:
            systems = [_averaged(name, [of(run, name) for run in runs]) for name, runs in found[kind].items()]
            made.append(
                {"kind": kind, "name": "reference, forced" if kind == "activation" else "labels", "systems": systems}
            )
    return [{**part, "origin": MEASURED} for part in made]


def _averaged(name: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Numbers over runs; `deviation` has the same shape, and is not there for one run."""
    if len(entries) == 1:
        return {**entries[0], "name": name}
    named = [{**entry, "name": name} for entry in entries]
    return {**average(named), "runs": len(entries), "deviation": spread(named)}
