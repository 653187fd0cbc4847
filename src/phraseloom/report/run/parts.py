"""The parts of a report: one plain form for each kind of result, whether it was just measured or is read from a JSON file.

A part is `{kind, name, origin, …, systems: [{name, …}]}` with only the numbers that a report shows. `read_part` makes it from a
file that another command wrote (`results.py`), the other functions from the measurements of `analysis/measurements.py`. The
numbers of several runs of one system become their mean and standard deviation.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phraseloom import results
from phraseloom.errors import DataError
from phraseloom.metrics.bleu import LENGTH_EDGES, make_scorer
from phraseloom.metrics.ratio import wilson
from phraseloom.report.evaluation import ByLength, evaluate
from phraseloom.report.run.runs import Missing, System, SystemFacts, average, deviation, mean, spread

if TYPE_CHECKING:
    from phraseloom.analysis.measurements import Material

Part = dict[str, Any]
METHOD = "union"  # by which words are linked in what is shown, as in paper 004
PLACES = ("segment", "inside", "split")
COMPARED = ("low", "high", "difference", "difference_low", "difference_high", "p", "one_seed")
CHANGED = ("difference", "won", "lost", "p")


def read_part(name: str, path: Path) -> Part:
    """The part in a JSON file. `name` is that of the system if the file is about one, else of what was measured.

    Raises FileProblem, CorruptError, and DataError, with the name of the command, for a file that a report does not show.
    """
    result = results.read(path)
    make = PARTS.get(type(result))
    if make is None:
        raise DataError(f"a report does not show what {result.command} writes", file=path)
    try:
        part = make(result, name)
    except (ValueError, IndexError) as error:  # lists of different lengths
        raise DataError(
            f"not a complete result of {result.command} ({error})", file=path, hint="write it again"
        ) from error
    return {"kind": result.kind, "name": name, "origin": path.name, **part}


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def scores(result: results.ScoresResult, name: str = "") -> Part:
    """`evaluate`: by system and metric the score, its interval and its comparison with the baseline."""
    boot = result.bootstrap
    tested = {(test.metric, test.system): test for test in boot.results} if boot else {}
    metrics = [
        {"metric": score.name, "signature": score.signature, "higher_is_better": score.name != "TER"}
        for score in result.systems[0].scores
    ]
    systems = [
        {
            "name": system.name,
            "scores": {
                score.name: {
                    **_fields(score, "value", "deviation", "runs"),
                    **_compared(tested.get((score.name, system.name))),
                }
                for score in system.scores
            },
        }
        for system in result.systems
    ]
    pairs = boot.pairs if boot else None
    return {
        "sentences": result.sentences,
        "of": result.lines and {"file": result.lines.file, "sentences": result.lines.of},
        "metrics": metrics,
        "systems": systems,
        "bootstrap": boot and _fields(boot, "samples", "seed", "baseline"),
        "pairs": None if pairs is None else [pair.model_dump(exclude_unset=True) for pair in pairs],
        "by_length": result.by_length and _lengths(result.by_length),
    }


def _compared(test: results.TestedScore | None) -> dict[str, Any]:
    return _fields(test, *COMPARED) if test else dict.fromkeys(COMPARED)


def _lengths(part: results.LengthScores) -> dict[str, Any]:
    groups = []
    for i, group in enumerate(part.systems[0].groups):
        entries = []
        for system in part.systems:
            score = system.groups[i].score
            values = {"value": None, "deviation": None} if score is None else _fields(score, "value", "deviation")
            entries.append({"name": system.name, **values, **_compared(system.groups[i].bootstrap)})
        groups.append({**_fields(group, "label", "sentences"), "systems": entries})
    signature = part.signature or next(g.score.signature for s in part.systems for g in s.groups if g.score)
    return {"metric": part.metric, "signature": signature, "groups": groups}


def contrastive(result: results.ContrastiveResult, name: str = "") -> Part:
    """`analyse contrastive`: groups of items by category and distance, each with every system."""
    groups = [
        {
            **_fields(group, "category", "distance", "items"),
            "systems": [_accuracy(s, "deviation") for s in group.systems],
        }
        for group in result.groups
    ]
    return {**_fields(result, "items", "distance"), "groups": groups, "systems": _names(result.groups[0].systems)}


def phenomena(result: results.PhenomenaResult, name: str = "") -> Part:
    """`analyse phenomena`: the accuracy of every system by phenomenon."""
    groups = [
        {**_fields(group, "phenomenon", "instances"), "systems": [_accuracy(system) for system in group.systems]}
        for group in result.phenomena
    ]
    return {**_fields(result, "sentences", "split"), "groups": groups, "systems": _names(result.phenomena[0].systems)}


def _accuracy(system: results.SystemAccuracy, *more: str) -> dict[str, Any]:
    low, high = system.interval
    fields = _fields(system, "accuracy", *more)
    return {"name": system.system, **fields, "low": low, "high": high, **_fields(system, *CHANGED)}


def _names(systems: Sequence[results.SystemAccuracy]) -> list[dict[str, str]]:
    return [{"name": system.system} for system in systems]


def alignment(result: results.AlignmentResult, name: str = "") -> Part:
    """`analyse alignment`: every layer, head (None: the mean) and method of each system, as fractions."""
    systems = [{"name": system.model, "settings": alignment_settings(system)} for system in result.systems]
    return {"gold": result.gold, "sentences": result.systems[0].settings[0].sentences, "systems": systems}


def alignment_settings(system: results.ModelAlignment) -> list[dict[str, Any]]:
    """One system of `analyse alignment`."""
    return [_fields(m, "layer", "head", "method", "aer", "precision", "recall") for m in system.settings]


def links(result: results.LinksResult, name: str = "") -> Part:
    """`align evaluate`."""
    systems = [_fields(system, "name", "aer", "precision", "recall", "f1") for system in result.systems]
    return {"gold": result.gold, "sentences": result.systems[0].sentences, "systems": systems}


def entropy(result: results.EntropyResult, name: str = "") -> Part:
    """`analyse entropy`: nats by layer over tokens, and over slots if there are any; means over steps."""
    return {"unit": result.unit, "systems": [entropy_of(system) for system in result.systems]}


def entropy_of(system: results.ModelEntropy) -> dict[str, Any]:
    """One system of `analyse entropy`."""
    readings = {"tokens": _reading(system.tokens), "slots": system.slots and _reading(system.slots)}
    return {"name": system.model, **_fields(system, "steps", "sentences", "own"), **readings}


def _reading(reading: results.EntropyReading) -> dict[str, Any]:
    layers = [layer.steps for layer in reading.layers]
    return {"layers": layers, "whole": reading.whole.steps, "uniform": reading.uniform.steps}


def activation(result: results.ActivationResult, name: str) -> Part:
    """`analyse activation` of the system `name`: shares in per cent by use and layer."""
    return {"systems": [activation_of(result, name)]}


def activation_of(result: results.ActivationResult, name: str) -> dict[str, Any]:
    """One system of `analyse activation`."""
    keys = ("layer", "joint", "mass", "activation", "orders")
    uses = {use: [_fields(layer, *keys) for layer in layers] for use, layers in result.uses.items()}
    return {"name": name, **_fields(result, "tau", "sentences"), "uses": uses}


def fertility(result: results.FertilityResult, name: str) -> Part:
    """`fertility evaluate` of the system `name`: precision, recall and F1 of each class."""
    return {"systems": [fertility_of(result, name)]}


def fertility_of(result: results.FertilityResult, name: str) -> dict[str, Any]:
    """One system of `fertility evaluate`."""
    keys = ("total", "precision", "recall", "f1")
    classes = {c: _fields(score, *keys) for c, score in result.classes.items()}
    gate = {c: _fields(score, *keys) for c, score in result.gate.items()}
    return {
        "name": name,
        **_fields(result, "sentences", "tokens", "accuracy", "loss"),
        "classes": classes,
        "gate": gate,
    }


def coverage(result: results.CoverageResult, name: str) -> Part:
    """`analyse coverage` of the system `name`: by use, layer and order the mass on gold phrases, compared with chance."""
    rows = [
        {
            "use": use,
            "layer": layer.layer,
            "order": entry.order,
            "covered": entry.covered.share.value,
            "chance": entry.covered.chance,
            "lift": entry.lift.value,
            "interval": entry.lift.interval,
        }
        for use, layers in result.uses.items()
        for layer in layers
        for entry in layer.orders
    ]
    return {**_fields(result, "phrases", "sentences"), "systems": [{"name": name, "rows": rows}]}


def segments(result: results.SegmentsResult, name: str) -> Part:
    """`analyse segments` of the system `name`: how many subwords a source subword writes, and known phrases by kind."""
    keys = (*PLACES, "chance", "posterior", "from_its_source")
    phrases = [
        {
            "kind": kind,
            "phrases": entry.phrases,
            "low": entry.interval[0],
            "high": entry.interval[1],
            **_fields(entry, *keys),
        }
        for kind, entry in (result.phrases or {}).items()
    ]
    lengths = [{"size": int(size), "count": count} for size, count in result.lengths.items()]
    return {
        "forced": result.left_out is not None,
        "sentences": sum(sentence is not None for sentence in result.sentences),
        "left_out": sum((result.left_out or {}).values()),
        "systems": [{"name": name, "lengths": lengths, "phrases": phrases}],
    }


def source_phrases(result: results.SourcePhrasesResult, name: str) -> Part:
    """`analyse phrases` of the system `name`: sizes of phrases, and by level the weight of their heaviest subword.

    `greatest`: the mean of the greatest weight over phrases of two or more subwords that have weights; `even`: the mean of
    1 / size. `shares[i][j]`: how much of level i decoder layer j reads.
    """
    phrases = [phrase for sentence in result.sentences for phrase in sentence]
    sizes = Counter(len(phrase.pieces) for phrase in phrases)
    levels = []
    for level in range(max((len(phrase.weights) for phrase in phrases), default=0)):
        several = [phrase.weights[level] for phrase in phrases if len(phrase.pieces) > 1]
        weighted = [weights for weights in several if weights is not None]
        if weighted:
            greatest = statistics.fmean(max(weights) for weights in weighted)
            even = statistics.fmean(1 / len(weights) for weights in weighted)
            levels.append({"level": level, "phrases": len(weighted), "greatest": greatest, "even": even})
    counts = [{"size": size, "count": count} for size, count in sorted(sizes.items())]
    system = {"name": name, "phrases": len(phrases), "sizes": counts, "levels": levels, "shares": result.shares}
    return {"sentences": sum(map(bool, result.sentences)), "cropped": result.cropped, "systems": [system]}


def neighbours(result: results.NeighboursResult, name: str = "") -> Part:
    """`analyse neighbours`: the neighbours of each token in one model or two, and how far two agree."""
    systems = []
    for i, model in enumerate(result.models):
        ranks = zip(*(token.neighbours[i] for token in result.tokens), strict=True)
        systems.append({"name": model, "cosines": [statistics.fmean(cosine for _, cosine in rank) for rank in ranks]})
    keys = ("overlap", "chance", "pairs", "pearson", "spearman")
    return {
        **_fields(result, "side", "neighbours", "candidates"),
        "agreement": _fields(result, *keys) if len(systems) == 2 else None,
        "tokens": [_fields(token, "piece", "count", "shared", "neighbours") for token in result.tokens],
        "systems": systems,
    }


PARTS: dict[type[results.CommandResult], Callable[[Any, str], Part]] = {
    results.ScoresResult: scores,
    results.ContrastiveResult: contrastive,
    results.AlignmentResult: alignment,
    results.LinksResult: links,
    results.EntropyResult: entropy,
    results.ActivationResult: activation,
    results.FertilityResult: fertility,
    results.CoverageResult: coverage,
    results.PhenomenaResult: phenomena,
    results.SegmentsResult: segments,
    results.SourcePhrasesResult: source_phrases,
    results.NeighboursResult: neighbours,
}
ORDER = tuple(kind for kind, cls in results.BY_KIND.items() if cls in PARTS)


MEASURED = "measured"
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
            others.append(Missing(system=system.name, what="everything about translations", why=NO_TRANSLATION))
        if not known.translates or not all(run.has_model for run in known.runs):
            continue
        own = replace(material, translate=material.translate and system.name not in translated)
        if not own.is_empty:
            by_system[system.name] = [measure_model(folder, own, device=device, say=say) for folder in system.folders]
    measured, lacks = split_lacks(by_system)
    return measured, others + lacks


def measured_parts(
    measured: Measured,
    translations: Mapping[str, Sequence[Sequence[str]]],
    test: ScoredOn | None,
    material: Material,
    *,
    edges: Sequence[int] = (),
    gold: str | None = None,
    say: Callable[[str], None] = print,
) -> list[Part]:
    """The parts of everything that was measured on `material`; `translations` are given, those of models are in `measured`.

    `edges`: upper edges of the bins of distances; `gold`: the name of the gold links.
    """
    translated = measured.get("translation", {})
    sentences = len(material.sources or [])
    parts: list[Part] = []
    whole = {name: [run.lines for run in runs] for name, runs in translated.items()} | dict(translations)
    if test is not None and whole:
        say("scores")
        parts += score_parts(whole, test)
    if translated:
        parts.append(speed_part(translated, sentences))
    if "contrastive" in measured:
        items = material.items or []
        name = ", ".join(dict.fromkeys(Path(item.file).name for item in items))
        parts.append(contrastive_part(measured["contrastive"], items, edges, name))
    return parts + layer_parts(measured, gold, sentences)


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


def score_parts(outputs: Mapping[str, Sequence[Sequence[str]]], test: ScoredOn) -> list[Part]:
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
    return [{"kind": "scores", "name": n, "origin": MEASURED, **scores(result)} for n, result in measured]


def speed_part(translated: Mapping[str, Sequence[Any]], sentences: int) -> Part:
    """The speed at which each system translated the test sources on this machine."""
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
    """Accuracy by category and distance. Systems with several runs have the mean, and no exact test."""
    from phraseloom.analysis.contrastive import contrastive_report

    keys = [(system, i) for system, runs in judged.items() for i in range(len(runs))]
    flat = {f"{i} {system}": judged[system][i] for system, i in keys}
    single = len(next(iter(judged.values()))) == 1
    groups = contrastive_report(items, flat, edges)
    for group in groups:
        entries: dict[str, list[dict[str, Any]]] = {}
        for (system, _), entry in zip(keys, group["systems"], strict=True):
            entries.setdefault(system, []).append(entry)
        group["systems"] = [_pooled(system, runs, group["items"], single) for system, runs in entries.items()]
    measured = any(item.distance is not None for item in items)
    value = {"items": len(items), "distance": "given" if measured else None, "groups": groups}
    result = results.ContrastiveResult.model_validate(value)
    return {"kind": "contrastive", "name": name, "origin": MEASURED, **contrastive(result)}


def _pooled(system: str, entries: Sequence[dict[str, Any]], items: int, tested: bool) -> dict[str, Any]:
    if len(entries) == 1 and tested:
        return {**entries[0], "system": system}
    values = [entry["accuracy"] for entry in entries]
    low, high = wilson(mean([entry["correct"] for entry in entries]), items)  # type: ignore[arg-type]
    return {"system": system, "accuracy": mean(values), "deviation": deviation(values), "interval": [low, high]}


def layer_parts(measured: Mapping[str, Mapping[str, Sequence[Any]]], gold: str | None, sentences: int) -> list[Part]:
    """The parts on alignment, entropy, activation and fertility that were measured."""
    forms: dict[str, tuple[dict[str, Any], Callable[[Any, str], dict[str, Any]]]] = {
        "alignment": (
            {"name": gold, "gold": gold, "sentences": sentences},
            lambda run, _: {"settings": alignment_settings(results.ModelAlignment.model_validate(run))},
        ),
        "entropy": (
            {"name": "reference, forced", "unit": "nats"},
            lambda run, _: entropy_of(results.ModelEntropy.model_validate(run)),
        ),
        "activation": (
            {"name": "reference, forced"},
            lambda run, name: activation_of(results.ActivationResult.model_validate(run), name),
        ),
        "fertility": (
            {"name": "labels"},
            lambda run, name: fertility_of(results.FertilityResult.model_validate(run), name),
        ),
    }
    parts = []
    for kind, (about, form) in forms.items():
        if kind in measured:
            systems = [_averaged(name, [form(run, name) for run in runs]) for name, runs in measured[kind].items()]
            parts.append({"kind": kind, **about, "systems": systems, "origin": MEASURED})
    return parts


def _averaged(name: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means over runs. `deviation` has the same shape; it is absent for one run."""
    if len(entries) == 1:
        return {**entries[0], "name": name}
    named = [{**entry, "name": name} for entry in entries]
    return {**average(named), "runs": len(entries), "deviation": spread(named)}
