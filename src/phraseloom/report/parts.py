"""What our verbs measure, in one plain form for each kind, whether it was measured just now or stands in a JSON file.

A part is `{kind, name, …, systems: [{name, …}]}` with only the numbers that a report shows. `read_part` makes one of a file
that `evaluate`, `analyse …`, `align evaluate` or `fertility evaluate` wrote; their forms are told apart by their keys. Of other
verbs' JSON it says that it cannot be shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phraseloom.errors import CorruptError, DataError
from phraseloom.files import read_json
from phraseloom.report.parts_phrases import neighbours, number, segments, source_phrases

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
