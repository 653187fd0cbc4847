"""The comparison of two systems as one plain document (JSON), format 1.

    {"format": 1, "version", "systems": [two, as of `runs.read_system`, with "look"], "lacks": [{"system", "what", "why"}],
     "configuration": {"different": [{"key", "values"}], "same": int},
     "data" | "versions" | "training": [{"what", "values", "same"}],
     "curves": [{"key", "rows": [{"update", "values", "deviations", "difference"}], "reached"}],
     "scores": part | null, "sentences": {…} | null, "warnings": [text]}

`difference` is always the second minus the first. `sentences` is the result of `compare_sentences`: the sentences whose
translations differ most. With a reference they are ranked by the difference of sentence chrF or of log P(reference | source) in
nats; without one by 100 − chrF of the second translation against the first. Systems with several runs have the means over their
runs, and all their translations are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from phraseloom import __version__
from phraseloom.errors import PhraseloomError, plural
from phraseloom.metrics.bleu import make_scorer
from phraseloom.report.run.folders import INDEX
from phraseloom.report.run.parts import Part
from phraseloom.report.run.report import configuration, missing, warnings
from phraseloom.report.run.runs import Missing, mean, over_runs

FORMAT = 1
Document = dict[str, Any]
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


def build(
    systems: Sequence[Mapping[str, Any]],
    *,
    scores: Part | None = None,
    sentences: Mapping[str, Any] | None = None,
    lacks: Sequence[Missing] = (),
) -> Document:
    """The document on two systems."""
    shown = [{**system, "look": i} for i, system in enumerate(systems)]
    rows = configuration(systems)
    data, lost = _data(systems)
    return {
        "format": FORMAT,
        "version": __version__,
        "systems": shown,
        "configuration": {
            "different": [{"key": row.key, "values": row.values} for row in rows if not row.same],
            "same": sum(row.same for row in rows),
        },
        "data": data,
        "versions": [_row(name, [_facts(s, key) for s in systems]) for key, name in VERSIONS.items()],
        "training": [_training(key, name, systems) for key, name in TRAINING.items()],
        "curves": [c for key in ("perplexity", "bleu", "nll") if (c := _curve(key, systems))],
        "scores": scores,
        "sentences": sentences,
        "warnings": warnings(systems),
        "lacks": [asdict(lack) for lack in (*missing(systems), *lost, *lacks)],
    }


def _row(what: str, values: Sequence[str]) -> dict[str, Any]:
    return {"what": what, "values": list(values), "same": len(set(values)) == 1}


def _facts(system: Mapping[str, Any], key: str) -> str:
    return ", ".join(dict.fromkeys(str((run["facts"] or {}).get(key) or "–") for run in system["runs"]))


def _training(key: str, name: str, systems: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over runs with their deviations, as numbers."""
    values = [over_runs(dict(system), key) for system in systems]
    known = [v["mean"] for v in values if v is not None]
    difference = known[1] - known[0] if len(known) == 2 else None
    return {"key": key, "what": name, "values": values, "difference": difference, "same": difference == 0}


def _data(systems: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Missing]]:
    """Fingerprints, checksums of the files of the recipes, and sizes if the dataset is unchanged on this machine."""
    rows = [_row("dataset (sha256)", [_short(_facts(s, "dataset")) for s in systems])]
    lacks: list[Missing] = []
    columns: list[dict[str, str]] = []
    for system in systems:
        column: dict[str, str] = {}
        for run in system["runs"][:1]:
            data = (run["config"] or {}).get("data")
            column |= _files(data) if isinstance(data, dict) else {}
            sizes, why = _sizes(data, (run["facts"] or {}).get("dataset"))
            column |= sizes
            if why:
                lacks.append(Missing(system["name"], "sizes of the data", why))
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


def _sizes(data: Any, fingerprint: Any) -> tuple[dict[str, str], str | None]:
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


def _curve(key: str, systems: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The values of both systems at their common updates, and when each reached the best value of the other."""
    curves = [system["curves"].get(key) for system in systems]
    if any(curve is None for curve in curves):
        return None
    places = [{u: i for i, u in enumerate(curve["updates"])} for curve in curves]
    rows = []
    for update in (u for u in places[0] if u in places[1]):
        at = [by_update[update] for by_update in places]
        values = [curve["values"][i] for curve, i in zip(curves, at, strict=True)]
        spreads = [curve["deviation"] and curve["deviation"][i] for curve, i in zip(curves, at, strict=True)]
        rows.append({"update": update, "values": values, "deviations": spreads, "difference": values[1] - values[0]})
    return {"key": key, "rows": rows, "reached": [_reached(key, curves[i], curves[1 - i]) for i in (0, 1)]}


def _reached(key: str, curve: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The first update at which a curve is as good as the best value of the other; None if it never is."""
    sign = 1 if key in LOWER_IS_BETTER else -1
    target = min(sign * v for v in other["values"])
    points = zip(curve["updates"], curve["values"], strict=True)
    return {"value": sign * target, "update": next((u for u, v in points if sign * v <= target), None)}


BY = ("chrf", "log-prob")


@dataclass(frozen=True)
class SystemSide:
    """The translations of one system, run by run, with log-probabilities (of the reference, else of its own lines).

    `phrases`: the phrase links of the first run as text, one per line; None if they were not requested or do not exist.
    """

    name: str
    runs: Sequence[Sequence[str]]
    log_probs: Sequence[Sequence[float]] = ()
    phrases: Sequence[str] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


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
) -> dict[str, Any]:
    """Counts over all sentences, and the `most` sentences with the greatest difference, greatest first.

    Ties are in the order of the text; sentences without a difference are not listed.
    """
    number = len(sides[0].runs[0])
    log_probs = [_means(side.log_probs) if side.log_probs else None for side in sides]
    chrf = [_means([sentence_chrf(lines, references) for lines in side.runs]) for side in sides] if references else None
    if chrf is not None:
        unlike = [b - a for a, b in zip(*chrf, strict=True)]
    else:
        unlike = [100 - value for value in sentence_chrf(sides[1].runs[0], sides[0].runs[0])]
    gaps = None
    if log_probs[0] is not None and log_probs[1] is not None:
        gaps = [b - a for a, b in zip(log_probs[0], log_probs[1], strict=True)]
    key = gaps if by == "log-prob" and gaps is not None else unlike
    order = sorted((i for i in range(number) if abs(key[i]) > 1e-9), key=lambda i: -abs(key[i]))[:most]
    same = sum(set(a) == set(b) for a, b in zip(*(list(zip(*s.runs, strict=True)) for s in sides), strict=True))
    listed = [
        {
            "line": i + 1,
            "source": None if sources is None else sources[i],
            "reference": None if references is None else references[i],
            "chrf_difference": unlike[i] if chrf is not None else None,
            "unlike": None if chrf is not None else unlike[i],
            "log_prob_difference": None if gaps is None else gaps[i],
            "systems": [
                _entry(side, i, None if chrf is None else chrf[n][i], log_probs[n]) for n, side in enumerate(sides)
            ],
        }
        for i in order
    ]
    return {
        "by": by if key is not unlike or by == "chrf" else "chrf",
        "sentences": number,
        "same_translation": same,
        "better": _better(unlike) if chrf is not None else None,
        "likelier": None if gaps is None or references is None else _better(gaps),
        "log_prob_of": "reference" if references is not None else "own translation",
        "listed": listed,
    }


def _means(runs: Sequence[Sequence[float]]) -> list[float]:
    return [mean(values) for values in zip(*runs, strict=True)]


def _better(differences: Sequence[float]) -> list[int]:
    """The number of times that the first has more, the second has more, and neither."""
    first, second = sum(d < -1e-9 for d in differences), sum(d > 1e-9 for d in differences)
    return [first, second, len(differences) - first - second]


def _entry(side: SystemSide, i: int, chrf: float | None, log_probs: Sequence[float] | None) -> dict[str, Any]:
    return {
        "name": side.name,
        "translations": [lines[i] for lines in side.runs],
        "chrf": chrf,
        "log_prob": None if log_probs is None else log_probs[i],
        "phrases": None if side.phrases is None else side.phrases[i],
    }


def marked(first: str, second: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The words of two lines as runs of (text, whether it is only in this line)."""
    a, b = first.split(), second.split()
    sides: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for what, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for side, words in zip(sides, (a[i:j], b[k:m]), strict=True):
            if words:
                side.append((" ".join(words), what != "equal"))
    return sides
