"""The facts and learning curves of a system: one or more runs that differ only in their seed, read from their folders.

On the command line a system is RUN, NAME=RUN or NAME=RUN,RUN,…; a run is a run folder, or a model folder, whose training is
unknown. Values that a folder lacks are None. Means over runs are those of single numbers, of whole JSON objects, and of curves:

    mean = Σ x / n,   deviation = √(Σ (x − mean)² / (n − 1))       (of a sample; None for one run)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phraseloom.config import read_yaml
from phraseloom.errors import FileProblem, UsageError
from phraseloom.files import read_json
from phraseloom.reading import MIB, inside
from phraseloom.report.run.folders import RUN_CONFIG, describe
from phraseloom.report.run.history import Curve, RunHistory, read_history, training_speed
from phraseloom.report.run.learning import unigram_level

FACTS = "run.json"
CURVES = {
    "nll": "training",
    "lr": "training",
    "grad_norm": "training",
    "perplexity": "validation",
    "bleu": "validation",
    "cosine_loss": "validation",
}
Facts = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A name and the folders of its runs; no folders if only translations are known."""

    name: str
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Missing:
    """What a report or a comparison lacks of a system (None: of all), and why."""

    system: str | None
    what: str
    why: str


def parse_systems(texts: Sequence[str]) -> list[System]:
    """The systems of a command line. Raises UsageError for a name or a folder that is repeated or empty."""
    systems: list[System] = []
    seen: set[Path] = set()
    names = _names(texts)
    for text, name in zip(texts, names, strict=True):
        parts = _folders(text)
        if not name or not all(parts):
            raise UsageError(f"{text!r}: a run is RUN, NAME=RUN or NAME=RUN,RUN", hint="give each run its folder")
        folders = tuple(Path(part) for part in parts)
        for folder in folders:
            if folder.resolve() in seen:
                raise UsageError(f"{folder} is given twice")
            seen.add(folder.resolve())
        if any(name == other.name for other in systems):
            raise UsageError(f"two systems are called {name}", hint="give them names: NAME=RUN")
        systems.append(System(name, folders))
    return systems


def _folders(text: str) -> list[str]:
    if Path(text).is_dir():
        return [text]
    return text.partition("=")[2].split(",") if "=" in text else text.split(",")


def _names(texts: Sequence[str]) -> list[str]:
    """The text before `=`, else the last part of the folder, or the whole text if that is not unique."""
    given = ["" if Path(t).is_dir() or "=" not in t else t.partition("=")[0].strip() for t in texts]
    ends = [Path(_folders(t)[0]).resolve().name for t in texts]
    return [
        (name if "=" in text and not Path(text).is_dir() else end if ends.count(end) == 1 else text)
        for text, name, end in zip(texts, given, ends, strict=True)
    ]


def read_system(system: System) -> dict[str, Any]:
    """`{name, runs, curves}`: the facts of every run, and their curves as one.

    Raises FileProblem or CorruptError for a folder that phraseloom did not write or that cannot be read.
    """
    histories = [read_history(folder) for folder in system.folders]
    runs = [_facts(folder, h) for folder, h in zip(system.folders, histories, strict=True)]
    return {"name": system.name, "runs": runs, "curves": curves_of(histories)}


def curves_of(histories: Sequence[RunHistory]) -> dict[str, Any]:
    """The curves of the runs as {key: {updates, values, deviation, seconds}}; seconds is None without timing."""
    result: dict[str, Any] = {}
    last = max((max([*h.training, *h.validation, 0]) for h in histories), default=0)
    for key, of in CURVES.items():
        curves = [h.curve(key, of=of) for h in histories]
        if key == "nll":
            curves = [c if len(c[0]) else h.curve("loss") for c, h in zip(curves, histories, strict=True)]
        if of == "training":
            curves = [thin(c, last) for c in curves]
        curve: dict[str, Any] = common_curve(curves)
        if curve["updates"]:
            clocks = [h.at_time(np.array(curve["updates"])) for h in histories]
            known = [c for c in clocks if c is not None]
            curve["seconds"] = np.mean(known, axis=0).tolist() if len(known) == len(histories) else None
            result[key] = curve
    return result


def _facts(folder: Path, history: RunHistory) -> Facts:
    description = describe(folder, verify=False)
    if description["kind"] not in ("run", "model", "checkpoint"):
        raise FileProblem(f"a run or a model was expected, but this is a {description['kind']} folder", file=folder)
    if description["problems"]:
        what = f"damaged: {description['problems'][0]}"
        raise FileProblem(what, file=folder, hint="phraseloom inspect describes the damage")
    model = description if description["kind"] != "run" else description.get("model_folder")
    config = _config(folder)
    made = _run_facts(folder)
    facts: Facts = {
        "folder": str(folder),
        "kind": description["kind"],
        "has_model": model is not None,
        "parameters": model and model["parameters"],
        "parts": model and {p["part"]: p["parameters"] for p in model["parts"]},
        "languages": model and model.get("languages"),
        "output": _output_kind(config if config is not None else _of_model(model)),
        "task": (model or {}).get("task") or (config or {}).get("task"),
        "seed": ((config or {}).get("training") or {}).get("seed"),
        "config": config if config is not None else _of_model(model),
        "facts": made,
        "unigram_perplexity": unigram_level(config, (made or {}).get("dataset")),
        "updates": description.get("updates"),
        "checkpoint": description.get("best") or description.get("last"),
        "unreadable_lines": history.unreadable,
    }
    return facts | training_speed(folder) | _best(history)


def _run_facts(folder: Path) -> Any:
    """The content of `run.json`; None if there is no such file."""
    if not os.path.lexists(folder / FACTS):
        return None
    return read_json(inside(folder, FACTS, "facts of the run"), "facts of the run", limit=MIB)


def _config(folder: Path) -> dict[str, Any] | None:
    path = folder / RUN_CONFIG
    if not os.path.lexists(path):
        return None
    value, _ = read_yaml(inside(folder, RUN_CONFIG, "recipe of the run"))
    if not isinstance(value, dict):
        raise FileProblem("not a recipe", file=path)
    return value


def _of_model(model: dict[str, Any] | None) -> dict[str, Any] | None:
    return model and {"model": model.get("model"), "decoding": model.get("generation")}


def _output_kind(config: dict[str, Any] | None) -> str | None:
    """The kind of the output layer, such as softmax. Losses of different kinds cannot be compared."""
    model = (config or {}).get("model")
    output = model.get("output") if isinstance(model, dict) else None
    return output.get("kind") if isinstance(output, dict) else None


def _best(history: RunHistory) -> dict[str, Any]:
    """The lowest validation perplexity and the highest BLEU, each with its update."""
    result: dict[str, Any] = {}
    for name, choose in (("perplexity", min), ("bleu", max)):
        values = [(v[name], u) for u, v in sorted(history.validation.items()) if isinstance(v.get(name), int | float)]
        best = choose(values, key=lambda pair: pair[0]) if values else None
        result[f"valid_{name}"] = best and {"value": best[0], "update": best[1]}
    return result


def over_runs(system: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Mean, deviation and values of a number over runs; None if a run lacks it."""
    values = [run.get(key) for run in system["runs"]]
    values = [v["value"] if isinstance(v, dict) else v for v in values]
    if not values or any(v is None for v in values):
        return None
    return {"mean": mean(values), "deviation": deviation(values), "values": values}


def translates(system: Mapping[str, Any]) -> bool:
    """Whether the runs of a system are translation models (unknown tasks count as such)."""
    return all(run["task"] in (None, "translation") for run in system["runs"])


MOST_POINTS = 120


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample; None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def average(trees: Sequence[Any]) -> Any:
    """The mean of JSON values of one shape, number by number; other values are those of the first.

    A value is None if it is None in one of them. Raises ValueError for different shapes.
    """
    return _leafwise(trees, mean)


def spread(trees: Sequence[Any]) -> Any:
    """Like `average`, with the standard deviation instead of the mean."""
    return _leafwise(trees, deviation)


def _leafwise(trees: Sequence[Any], of: Callable[[Sequence[float]], float | None]) -> Any:
    first = trees[0]
    if any(tree is None for tree in trees):
        return None
    if isinstance(first, dict):
        if any(not isinstance(t, dict) or set(t) != set(first) for t in trees):
            raise ValueError("objects of different keys have no mean")
        return {key: _leafwise([t[key] for t in trees], of) for key in first}
    if isinstance(first, list | tuple):
        if len({len(t) for t in trees}) != 1:
            raise ValueError("lists of different lengths have no mean")
        return [_leafwise(items, of) for items in zip(*trees, strict=True)]
    if _is_number(first):
        return of(list(trees))
    return first


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def common_curve(curves: Sequence[Curve]) -> dict[str, list[float] | None]:
    """The mean curve of several runs at the updates that all of them have: updates, values, deviation."""
    curves = [c for c in curves if len(c[0])]
    if not curves:
        return {"updates": [], "values": [], "deviation": None}
    places = sorted(set.intersection(*(set(updates.tolist()) for updates, _ in curves)))
    rows = [[dict(zip(u.tolist(), v.tolist(), strict=True))[p] for p in places] for u, v in curves]
    columns = list(zip(*rows, strict=True))
    spreads = [deviation(c) or 0.0 for c in columns] if len(curves) > 1 else None
    return {"updates": places, "values": [mean(c) for c in columns], "deviation": spreads}


def thin(curve: Curve, last: float, *, points: int = MOST_POINTS) -> Curve:
    """The means of a noisy curve over at most `points` equal intervals of 0 … `last`, each placed at the end of its interval.

    Curves of runs of one length get the same places. A short curve is returned unchanged.
    """
    updates, values = curve
    if len(updates) <= points:
        return curve
    width = max(1.0, math.ceil(last / points))
    groups = np.ceil(updates / width)
    places = np.unique(groups)
    means = np.array([values[groups == g].mean() for g in places])
    return np.minimum(places * width, last), means
