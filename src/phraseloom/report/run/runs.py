"""The facts and learning curves of a system: one or more runs that differ only in their seed, read from their folders.

On the command line a system is RUN, NAME=RUN or NAME=RUN,RUN,…; a run is a run folder, or a model folder, whose training is
unknown. Values that a folder lacks are None. Means over runs are those of single numbers, of whole JSON objects, and of curves:

    mean = Σ x / n;   the deviation is that of metrics/seeds.py (of a sample; None for one run)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pydantic

from phraseloom.config import read_yaml
from phraseloom.errors import CorruptError, FileProblem, UsageError
from phraseloom.files import read_json
from phraseloom.metrics.seeds import seed_deviation
from phraseloom.options.model import fill_stored
from phraseloom.reading import MIB, inside
from phraseloom.report.run.folders import RUN_CONFIG, describe
from phraseloom.report.run.history import Curve, RunHistory, is_finite, is_number, read_history, training_speed
from phraseloom.report.run.learning import unigram_level
from phraseloom.results import Number, ResultPart

FACTS = "run.json"
CURVES = {
    "nll": "training",
    "lr": "training",
    "grad_norm": "training",
    "perplexity": "validation",
    "bleu": "validation",
    "cosine_loss": "validation",
}

R = TypeVar("R", bound=ResultPart)


@dataclass(frozen=True)
class System:
    """A name and the folders of its runs; no folders if only translations are known."""

    name: str
    folders: tuple[Path, ...] = ()


class Missing(ResultPart):
    """What a report or a comparison lacks of a system (None: of all), and why."""

    system: str | None
    what: str
    why: str


class Provenance(ResultPart):
    """`run.json` of a run (training/run_folder.py): the versions and the machine it began with, and its dataset's sha256."""

    format: int = 1
    phraseloom: str | None = None
    torch: str | None = None
    python: str | None = None
    machine: str | None = None
    dataset: str | None = None


class BestValidation(ResultPart):
    """The best value of a validation metric and the update it is from."""

    value: Number
    update: int


class RunFacts(ResultPart):
    """What a run or model folder says of itself. None: unknown, such as all training facts of a model folder.

    `parts`: parameters by part of the model; `config`: the recipe of the run, of any version, else that of the model (with
    the start of versions before `model.init`);
    `unigram_perplexity`: see `learning.py`; `seconds`: wall time of training; `tokens_per_second`: of target subwords.
    """

    folder: str
    kind: Literal["run", "model", "checkpoint"]
    has_model: bool
    parameters: int | None
    parts: dict[str, int] | None
    languages: dict[str, str] | None
    output: str | None
    task: str | None
    seed: int | None
    config: dict[str, Any] | None
    facts: Provenance | None
    unigram_perplexity: Number | None
    updates: int | None
    checkpoint: str | None
    unreadable_lines: int
    seconds: Number | None
    tokens_per_second: Number | None
    valid_perplexity: BestValidation | None
    valid_bleu: BestValidation | None


class LearningCurve(ResultPart):
    """The mean of a value over runs by update. `deviation`: None for one run; `seconds`: wall time, None without timing."""

    updates: list[float]
    values: list[float]
    deviation: list[float] | None
    seconds: list[float] | None = None


class OverRuns(ResultPart):
    """A number of each run, their mean and standard deviation (None for one run)."""

    mean: Number
    deviation: Number | None
    values: list[Number]


class SystemFacts(ResultPart):
    """The runs of a system and their curves, by key of `CURVES`.

    `look`: its colour and marker, from 0; `outputs`: files with its translations, one for each run.
    """

    name: str
    look: int = 0
    runs: list[RunFacts]
    curves: dict[str, LearningCurve]
    outputs: list[str] = pydantic.Field(default_factory=list)
    _histories: list[RunHistory] = pydantic.PrivateAttr(default_factory=list)

    @property
    def translates(self) -> bool:
        """Whether the runs are translation models (unknown tasks count as such)."""
        return all(run.task in (None, "translation") for run in self.runs)

    def over_runs(self, key: str) -> OverRuns | None:
        """The number `key` of `RunFacts` over runs; None if a run lacks it."""
        values = [getattr(run, key) for run in self.runs]
        if not values or None in values:
            return None
        values = [value.value if isinstance(value, BestValidation) else value for value in values]
        return OverRuns(mean=mean(values), deviation=seed_deviation(values), values=values)

    def run_curves(self, key: str) -> list[Curve]:
        """The curve of every run that has one, with all its updates; none if the facts were not read from run folders."""
        return run_curves(self._histories, key)

    def num_logged(self, key: str) -> int:
        """The most values of `key`, finite or not, in the log of a run."""
        logs = [h.validation if CURVES.get(key) == "validation" else h.training for h in self._histories]
        return max((sum(key in record for record in log.values()) for log in logs), default=0)


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


def read_system(system: System) -> SystemFacts:
    """The facts of every run, and their curves as one.

    Raises FileProblem or CorruptError for a folder that phraseloom did not write or that cannot be read.
    """
    histories = [read_history(folder) for folder in system.folders]
    runs = [_facts(folder, h) for folder, h in zip(system.folders, histories, strict=True)]
    facts = SystemFacts(name=system.name, runs=runs, curves=curves_of(histories))
    facts._histories = histories
    return facts


def curves_of(histories: Sequence[RunHistory]) -> dict[str, LearningCurve]:
    """The curves of the runs by key of `CURVES`, without empty ones. Those of training are thinned."""
    result: dict[str, LearningCurve] = {}
    for key, of in CURVES.items():
        curves = run_curves(histories, key)
        updates = common_updates(curves)
        width = interval_width(updates) if of == "training" else 1.0
        curve = mean_curve(curves, updates, width)
        if curve.updates:
            clocks = [h.at_time(np.array(curve.updates)) for h in histories]
            known = [c for c in clocks if c is not None]
            seconds = np.mean(known, axis=0).tolist() if len(known) == len(histories) else None
            result[key] = curve.model_copy(update={"seconds": seconds})
    return result


def run_curves(histories: Sequence[RunHistory], key: str) -> list[Curve]:
    """The curve `key` of `CURVES` of every run that has one."""
    curves = [h.curve(key, of=CURVES[key]) for h in histories]
    if key == "nll":
        curves = [c if len(c[0]) else h.curve("loss") for c, h in zip(curves, histories, strict=True)]
    return [c for c in curves if len(c[0])]


def _facts(folder: Path, history: RunHistory) -> RunFacts:
    description = describe(folder, verify=False)
    if description["kind"] not in ("run", "model", "checkpoint"):
        raise FileProblem(f"a run or a model was expected, but this is a {description['kind']} folder", file=folder)
    if description["problems"]:
        what = f"damaged: {description['problems'][0]}"
        raise FileProblem(what, file=folder, hint="phraseloom inspect describes the damage")
    model = description if description["kind"] != "run" else description.get("model_folder")
    config = _config(folder)
    made = _provenance(folder)
    facts = {
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
        "unigram_perplexity": unigram_level(config, made.dataset if made else None),
        "updates": description.get("updates"),
        "checkpoint": description.get("best") or description.get("last"),
        "unreadable_lines": history.unreadable,
        **training_speed(folder),
        **{f"valid_{key}": _best(history, key, choose) for key, choose in (("perplexity", min), ("bleu", max))},
    }
    return _checked(RunFacts, facts, folder)


def _checked(kind: type[R], value: Any, file: Path) -> R:
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as failure:
        first = failure.errors(include_url=False)[0]
        raise CorruptError(f"{'.'.join(map(str, first['loc'])) or 'facts'}: {first['msg']}", file=file) from failure


def _provenance(folder: Path) -> Provenance | None:
    """The content of `run.json`; None if there is no such file."""
    if not os.path.lexists(folder / FACTS):
        return None
    value = read_json(inside(folder, FACTS, "facts of the run"), "facts of the run", limit=MIB)
    return _checked(Provenance, value, folder / FACTS)


def _config(folder: Path) -> dict[str, Any] | None:
    path = folder / RUN_CONFIG
    if not os.path.lexists(path):
        return None
    value, _ = read_yaml(inside(folder, RUN_CONFIG, "recipe of the run"))
    if not isinstance(value, dict):
        raise FileProblem("not a recipe", file=path)
    return {**value, "model": fill_stored(value["model"])} if "model" in value else value


def _of_model(model: dict[str, Any] | None) -> dict[str, Any] | None:
    return model and {"model": model.get("model"), "decoding": model.get("generation")}


def _output_kind(config: dict[str, Any] | None) -> str | None:
    """The kind of the output layer, such as softmax. Losses of different kinds cannot be compared."""
    model = (config or {}).get("model")
    output = model.get("output") if isinstance(model, dict) else None
    return output.get("kind") if isinstance(output, dict) else None


def _best(history: RunHistory, key: str, choose: Callable[..., Any]) -> BestValidation | None:
    """The value of the best validation by `choose`, min or max; None without a finite one."""
    values = [(v[key], u) for u, v in sorted(history.validation.items()) if is_finite(v.get(key))]
    if not values:
        return None
    value, update = choose(values, key=lambda pair: pair[0])
    return BestValidation(value=value, update=update)


MOST_POINTS = 120


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def average(trees: Sequence[Any]) -> Any:
    """The mean of JSON values of one shape, number by number; other values are those of the first.

    A value is None if it is None in one of them. Raises ValueError for different shapes.
    """
    return _leafwise(trees, mean)


def spread(trees: Sequence[Any]) -> Any:
    """Like `average`, with the standard deviation instead of the mean."""
    return _leafwise(trees, seed_deviation)


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
    if is_number(first):
        return of(list(trees))
    return first


def common_curve(curves: Sequence[Curve]) -> LearningCurve:
    """The mean curve of several runs at the updates that all of them have, without wall time."""
    curves = [c for c in curves if len(c[0])]
    if not curves:
        return LearningCurve(updates=[], values=[], deviation=None)
    places = common_updates(curves)
    columns = np.array([at_updates(c, places)[1] for c in curves]).T.tolist()
    spreads = [seed_deviation(c) or 0.0 for c in columns] if len(curves) > 1 else None
    return LearningCurve(updates=places.tolist(), values=[mean(c) for c in columns], deviation=spreads)


def mean_curve(curves: Sequence[Curve], updates: np.ndarray, width: float) -> LearningCurve:
    """The mean curve of several runs at these updates, which all of them have, over intervals of `width` (`thin`)."""
    return common_curve([thin(at_updates(c, updates), width) for c in curves])


def common_updates(curves: Sequence[Curve]) -> np.ndarray:
    """The updates that all curves have, in order."""
    return reduce(np.intersect1d, (updates for updates, _ in curves)) if curves else np.zeros(0)


def at_updates(curve: Curve, updates: np.ndarray) -> Curve:
    """The points of a curve at these updates."""
    kept = np.isin(curve[0], updates)
    return curve[0][kept], curve[1][kept]


def interval_width(updates: np.ndarray, *, points: int = MOST_POINTS) -> float:
    """The width for `thin` that makes at most `points` intervals of these updates; 1 (no change) if they are few."""
    return float(math.ceil(updates[-1] / points)) if len(updates) > points else 1.0


def thin(curve: Curve, width: float) -> Curve:
    """The means of a noisy curve over intervals of `width` updates, each placed at the end of its interval.

    The last interval has what is left too, up to the last update. Only curves with the same updates compare after this: their
    means are over the same updates, and placed alike.
    """
    updates, values = curve
    if width <= 1 or not len(updates):
        return curve
    last = updates[-1]
    most = max(1.0, last // width)
    places, group = np.unique(np.minimum(np.ceil(updates / width), most), return_inverse=True)
    means = np.bincount(group, weights=values) / np.bincount(group)
    return np.where(places == most, last, places * width), means
