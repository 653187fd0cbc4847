"""What our verbs measure, in one plain form for each kind, whether it was measured just now or stands in a JSON file.

A part is `{kind, name, …, systems: [{name, …}]}` with only the numbers that a report shows. `read_part` makes one of a file
that `evaluate`, `analyse …`, `align evaluate` or `fertility evaluate` wrote; their forms are told apart by their keys. Of other
verbs' JSON it says that it cannot be shown.

Parts of a report (parts.py) on what is cut out of sentences, and on embeddings: segments, source phrases, neighbours.

What `analysis/measurements.py` found for each run of each system, as the parts of a report (`parts.py`).

Numbers of runs of one system become their mean with the deviation; see `averages.py` and `evaluation.py`.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from phraseloom.errors import CorruptError, DataError
from phraseloom.files import read_json
from phraseloom.metrics.bleu import LENGTH_EDGES, make_scorer
from phraseloom.metrics.ratio import wilson
from phraseloom.report.evaluation import ByLength, evaluate
from phraseloom.report.run import parts
from phraseloom.report.run.runs import average, deviation, mean, spread

PLACES = ("segment", "inside", "split")
SHARES = ("chance", "posterior", "from_its_source")


def number(value: Any) -> float:
    """A number of a JSON file; TypeError for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a number expected, not {value!r}")
    return float(value)


def segments(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Of `analyse segments`, about the system `name`: how many subwords a source subword writes, and known phrases by kind."""
    forced = "left_out" in value
    lengths = [{"size": int(size), "count": int(count)} for size, count in value["lengths"].items()]
    phrases = []
    for kind, entry in value.get("phrases", {}).items():
        low, high = (number(end) for end in entry["interval"])
        shares = {key: _share(entry[key]) for key in (*PLACES, *SHARES)}
        phrases.append({"kind": str(kind), "phrases": int(entry["phrases"]), "low": low, "high": high, **shares})
    return {
        "forced": forced,
        "sentences": sum(one is not None for one in value["sentences"]),
        "left_out": sum(map(int, value["left_out"].values())) if forced else 0,
        "systems": [{"name": name, "lengths": lengths, "phrases": phrases}],
    }


def source_phrases(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Of `analyse phrases`, about the system `name`: sizes of phrases, and by level how much their weightiest subword counts.

    `greatest`: the mean over phrases of two and more subwords that have weights of the greatest weight, `even`: of 1 / size.
    `shares[i][j]`: how much of level i decoder layer j reads.
    """
    phrases = [phrase for sentence in value["sentences"] for phrase in sentence]
    sizes = Counter(len(phrase["pieces"]) for phrase in phrases)
    levels = []
    for level in range(max((len(phrase["weights"]) for phrase in phrases), default=0)):
        found = [phrase["weights"][level] for phrase in phrases if len(phrase["pieces"]) > 1]
        weighed = [[number(w) for w in weights] for weights in found if weights is not None]
        if weighed:
            greatest = statistics.fmean(max(weights) for weights in weighed)
            even = statistics.fmean(1 / len(weights) for weights in weighed if weights)
            levels.append({"level": level, "phrases": len(weighed), "greatest": greatest, "even": even})
    shares = None if value["shares"] is None else [[number(share) for share in row] for row in value["shares"]]
    counts = [{"size": size, "count": count} for size, count in sorted(sizes.items())]
    return {
        "sentences": sum(bool(sentence) for sentence in value["sentences"]),
        "cropped": int(value["cropped"]),
        "systems": [{"name": name, "phrases": len(phrases), "sizes": counts, "levels": levels, "shares": shares}],
    }


def neighbours(value: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Of `analyse neighbours`: the neighbours of each token in one model or two, and how far two agree."""
    tokens = [
        {"piece": str(t["piece"]), "count": t["count"], "shared": t.get("shared"), "neighbours": _near(t["neighbours"])}
        for t in value["tokens"]
    ]
    systems = []
    for i, model in enumerate(value["models"]):
        ranks = zip(*(token["neighbours"][i] for token in tokens), strict=True)
        systems.append({"name": str(model), "cosines": [statistics.fmean(c for _, c in some) for some in ranks]})
    keys = ("overlap", "chance", "pairs", "pearson", "spearman")
    return {
        "side": str(value["side"]),
        "neighbours": int(value["neighbours"]),
        "candidates": int(value["candidates"]),
        "agreement": {key: value[key] for key in keys} if len(systems) == 2 else None,
        "tokens": tokens,
        "systems": systems,
    }


def _near(models: Sequence[Any]) -> list[list[list[Any]]]:
    return [[[str(piece), number(cosine)] for piece, cosine in some] for some in models]


def _share(value: Any) -> float | None:
    return None if value is None else number(value)


Part = dict[str, Any]
LINE_MAX_BYTES = 2**20
METHOD = "union"  # by which words are linked in what is shown, as in paper 004
COMPARED = ("low", "high", "difference", "difference_low", "difference_high", "p", "one_seed")
CHANGED = ("difference", "won", "lost", "p")


class Kind(NamedTuple):
    """What a kind is called in messages, the keys that its JSON has, and how a part is made of (JSON, name)."""

    verb: str
    keys: tuple[str, ...]
    make: Callable[[Mapping[str, Any], str], Part]
    inside: str = ""


def read_part(name: str, path: Path) -> Part:
    """The part in a JSON file. `name`: the system, where the file is about one; else what was measured.

    Raises FileProblem, CorruptError, and DataError for what a report does not show: with the verb, where one of ours wrote it.
    """
    try:
        value = read_json(path, "result")
    except CorruptError as error:
        _refuse_known(_first_line(path), path, error)
        raise
    for kind_name, kind in KINDS.items():
        if not isinstance(value, dict) or not set(kind.keys) <= set(value) or not _holds(value, kind.inside):
            continue
        try:
            part = kind.make(value, name)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"it looks like what {kind.verb} writes, but is not whole ({type(error).__name__}: {error})"
            raise DataError(reason, file=path, hint="write it again") from error
        return {"kind": kind_name, "name": name, "origin": path.name, **part}
    _refuse_known(value, path)
    verbs = ", ".join(kind.verb for kind in KINDS.values())
    raise DataError("not the JSON of a verb that a report can show", file=path, hint=f"known are those of {verbs}")


def _refuse_known(value: Any, path: Path, cause: Exception | None = None) -> None:
    """DataError with the verb for JSON that one of our verbs wrote and a report has no place for."""
    if isinstance(value, list) and value:
        value = value[0]
    for verb, keys, hint in NOT_SHOWN:
        if isinstance(value, dict) and set(keys) <= set(value):
            raise DataError(f"a report does not show what {verb} writes", file=path, hint=hint) from cause


def _first_line(path: Path) -> Any:
    """The first of several JSON values, one a line; None where it is none."""
    with path.open("rb") as handle:
        line = handle.read(LINE_MAX_BYTES).partition(b"\n")[0]
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _holds(value: Mapping[str, Any], key: str) -> bool:
    """Whether the first of the systems has a key."""
    systems = value.get("systems")
    return not key or (
        isinstance(systems, list) and bool(systems) and isinstance(systems[0], dict) and key in systems[0]
    )


def scores(value: Mapping[str, Any], name: str = "") -> Part:
    """Of `evaluate`: by system and metric the score, its interval and its comparison with the base."""
    tested = {(r["metric"], r["system"]): r for r in value.get("bootstrap", {}).get("results", [])}
    metrics = [
        {"metric": s["name"], "signature": str(s["signature"]), "higher_is_better": s["name"] != "TER"}
        for s in value["systems"][0]["scores"]
    ]
    systems = []
    for system in value["systems"]:
        entry = {}
        for s in system["scores"]:
            found = tested.get((s["name"], system["name"]), {})
            about = {"value": number(s["value"]), "deviation": s.get("deviation"), "runs": s.get("runs")}
            entry[s["name"]] = {**about, **{k: found.get(k) for k in COMPARED}}
        systems.append({"name": str(system["name"]), "scores": entry})
    boot = value.get("bootstrap")
    chosen = value.get("lines")
    return {
        "sentences": int(value["sentences"]),
        "of": None if chosen is None else {"file": str(chosen["file"]), "sentences": int(chosen["of"])},
        "metrics": metrics,
        "systems": systems,
        "bootstrap": None if boot is None else {k: boot[k] for k in ("samples", "seed", "baseline")},
        "pairs": None if boot is None else boot.get("pairs"),
        "by_length": _lengths(value["by_length"]) if value.get("by_length") else None,
    }


def _lengths(value: Mapping[str, Any]) -> dict[str, Any]:
    groups = []
    for i, group in enumerate(value["systems"][0]["groups"]):
        entries = []
        for system in value["systems"]:
            of = system["groups"][i]
            score, found = of["score"], of.get("bootstrap") or {}
            entry = {"name": str(system["name"]), "value": None if score is None else number(score["value"])}
            entry["deviation"] = (score or {}).get("deviation")
            entries.append({**entry, **{k: found.get(k) for k in COMPARED}})
        groups.append({"label": str(group["label"]), "sentences": int(group["sentences"]), "systems": entries})
    signature = value.get("signature") or next(
        g["score"]["signature"] for s in value["systems"] for g in s["groups"] if g["score"]
    )
    return {"metric": value["metric"], "signature": str(signature), "groups": groups}


def contrastive(value: Mapping[str, Any], name: str = "") -> Part:
    """Of `analyse contrastive`: groups of items by category and distance, each with every system."""
    groups = []
    for group in value["groups"]:
        entries = [
            {
                "name": str(e["system"]),
                "accuracy": number(e["accuracy"]),
                "deviation": e.get("deviation"),
                "low": number(e["interval"][0]),
                "high": number(e["interval"][1]),
                **{k: e.get(k) for k in CHANGED},
            }
            for e in group["systems"]
        ]
        place = {"category": group["category"], "distance": group["distance"], "items": int(group["items"])}
        groups.append({**place, "systems": entries})
    names = [{"name": entry["name"]} for entry in groups[0]["systems"]]
    return {"items": int(value["items"]), "distance": value["distance"], "groups": groups, "systems": names}


def alignment(value: Mapping[str, Any], name: str = "") -> Part:
    """Of `analyse alignment`: every layer, head (None: the mean) and method of each system, in shares of 1."""
    keys = ("layer", "head", "method", "aer", "precision", "recall")
    systems = [
        {"name": str(s["model"]), "settings": [{k: m[k] for k in keys} for m in s["settings"]]}
        for s in value["systems"]
    ]
    sentences = value["systems"][0]["settings"][0]["sentences"]
    return {"gold": str(value["gold"]), "sentences": sentences, "systems": systems}


def links(value: Mapping[str, Any], name: str = "") -> Part:
    """Of `align evaluate`."""
    keys = ("aer", "precision", "recall", "f1")
    systems = [{"name": str(s["name"]), **{k: number(s[k]) for k in keys}} for s in value["systems"]]
    return {"gold": str(value["gold"]), "sentences": int(value["systems"][0]["sentences"]), "systems": systems}


def entropy(value: Mapping[str, Any], name: str = "") -> Part:
    """Of `analyse entropy`: nats by layer over tokens, and over slots where there are some; means over steps."""
    return {"unit": "nats", "systems": [entropy_of(s) for s in value["systems"]]}


def entropy_of(system: Mapping[str, Any]) -> dict[str, Any]:
    """One system of `analyse entropy`."""
    readings = {over: _reading(system[over]) for over in ("tokens", "slots")}
    counts = {k: int(system[k]) for k in ("steps", "sentences")}
    return {"name": str(system["model"]), **counts, "own": bool(system["own"]), **readings}


def _reading(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if value is None:
        return None
    layers = [number(layer["steps"]) for layer in value["layers"]]
    return {"layers": layers, "whole": number(value["whole"]["steps"]), "uniform": number(value["uniform"]["steps"])}


def activation(value: Mapping[str, Any], name: str) -> Part:
    """Of `analyse activation`, about the system `name`: shares in per cent by use and layer."""
    return {"systems": [activation_of(value, name)]}


def activation_of(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One system of `analyse activation`."""
    keys = ("layer", "joint", "mass", "activation", "orders")
    uses = {use: [{k: layer[k] for k in keys} for layer in layers] for use, layers in value["uses"].items()}
    return {"name": name, "tau": number(value["tau"]), "sentences": int(value["sentences"]), "uses": uses}


def fertility(value: Mapping[str, Any], name: str) -> Part:
    """Of `fertility evaluate`, about the system `name`: precision, recall and F1 of each class."""
    return {"systems": [fertility_of(value, name)]}


def fertility_of(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One system of `fertility evaluate`."""
    keys = ("total", "precision", "recall", "f1")
    scored = {of: {c: {k: s[k] for k in keys} for c, s in value[of].items()} for of in ("classes", "gate")}
    counts = {k: int(value[k]) for k in ("sentences", "tokens")}
    return {"name": name, **counts, "accuracy": number(value["accuracy"]), "loss": number(value["loss"]), **scored}


def coverage(value: Mapping[str, Any], name: str) -> Part:
    """Of `analyse coverage`, about the system `name`: by use, layer and order the mass on gold phrases against chance."""
    rows: list[dict[str, Any]] = [
        {
            "use": use,
            "layer": layer["layer"],
            "order": entry["order"],
            "covered": entry["covered"]["share"]["value"],
            "chance": entry["covered"]["chance"],
            "lift": entry["lift"]["value"],
            "interval": entry["lift"]["interval"],
        }
        for use, layers in value["uses"].items()
        for layer in layers
        for entry in layer["orders"]
    ]
    return {
        "phrases": int(value["phrases"]),
        "sentences": int(value["sentences"]),
        "systems": [{"name": name, "rows": rows}],
    }


def phenomena(value: Mapping[str, Any], name: str = "") -> Part:
    """Of `analyse phenomena`: the accuracy of every system by phenomenon."""
    groups: list[dict[str, Any]] = []
    for group in value["phenomena"]:
        entries = [
            {
                "name": str(e["system"]),
                "accuracy": number(e["accuracy"]),
                "low": number(e["interval"][0]),
                "high": number(e["interval"][1]),
                **{k: e.get(k) for k in CHANGED},
            }
            for e in group["systems"]
        ]
        groups.append(
            {"phenomenon": str(group["phenomenon"]), "instances": int(group["instances"]), "systems": entries}
        )
    names = [{"name": e["name"]} for e in groups[0]["systems"]]
    return {"sentences": int(value["sentences"]), "split": str(value["split"]), "groups": groups, "systems": names}


KINDS: dict[str, Kind] = {
    "scores": Kind("evaluate", ("sentences", "systems"), scores, "scores"),
    "contrastive": Kind("analyse contrastive", ("items", "groups"), contrastive),
    "alignment": Kind("analyse alignment", ("gold", "systems"), alignment, "settings"),
    "links": Kind("align evaluate", ("gold", "systems"), links, "aer"),
    "entropy": Kind("analyse entropy", ("unit", "systems"), entropy, "tokens"),
    "activation": Kind("analyse activation", ("tau", "uses"), activation),
    "fertility": Kind("fertility evaluate", ("classes", "gate", "confusion"), fertility),
    "coverage": Kind("analyse coverage", ("phrases", "uses", "left_out"), coverage),
    "phenomena": Kind("analyse phenomena", ("phenomena", "split"), phenomena),
    "segments": Kind("analyse segments", ("lengths", "sentences"), segments),
    "source_phrases": Kind("analyse phrases", ("sentences", "shares", "cropped"), source_phrases),
    "neighbours": Kind("analyse neighbours", ("models", "candidates", "tokens"), neighbours),
}
# What other verbs write: the verb, keys that tell its JSON, and what to do with it instead.
NOT_SHOWN: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("explain", ("format", "models", "sentences"), "explain -o FILE.html makes its page"),
    ("report", ("format", "parts", "lacks"), "give the report what this one was made of"),
    ("diff", ("format", "curves", "data"), "diff -o FILE.html makes its page"),
    ("reproduce", ("format", "table", "claims"), "its table.md shows it"),
    ("embeddings check", ("file", "tables", "problems"), None),
    ("embeddings nearest", ("file", "phrases_only", "neighbours"), None),
    ("phrases sample --tally", ("judged", "categories", "found"), None),
    ("score", ("subwords", "word_perplexity"), None),
    ("score", ("log_prob", "token_log_probs", "cropped"), None),
    ("translate", ("id", "text", "tokens"), "give --outputs NAME=FILE the translations as text"),
    ("generate", ("id", "prompt", "samples"), None),
    ("inspect", ("kind", "folder", "problems"), "give the report the folder itself"),
    ("doctor", ("what", "state", "text"), None),
)
ORDER: Sequence[str] = tuple(KINDS)


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
