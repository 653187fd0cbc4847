"""The report on runs as one plain document (JSON), format 1, from which the page is made.

    {"format": 1, "version", "title", "systems": [{"name", "look", "runs": [facts], "curves", "summary"}], "parts": [part],
     "configuration": [{"key", "values": [text of each system], "same"}], "about": {…}, "lacks": [{"system", "what", "why"}],
     "warnings": [text]}

`facts` are those of `runs.py`, a part one of `parts.py` (or `speed`), `summary` the figures of the first table, `about` the
files it was made of. There is no time in it: the same runs and texts give the same document, but for speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phraseloom import __version__
from phraseloom.errors import UsageError, plural
from phraseloom.report.parts import METHOD, ORDER, Part
from phraseloom.report.runs import over_runs

FORMAT = 1
OF_A_SEED = {"name", "training.seed"}
Document = dict[str, Any]
NOT_ASKED = {
    "scores": ("test scores", "give --test-source and --reference, or --outputs with --reference"),
    "contrastive": ("contrastive accuracy", "give --contrastive"),
    "alignment": ("alignment error rate", "give --test-source, --reference and --gold"),
    "entropy": ("attention entropy", "give --test-source and --reference"),
    "activation": ("activation shares", "give --test-source and --reference"),
    "fertility": ("fertility scores", "give --fertility-source and --fertility-labels"),
    "speed": ("speed of translation", "give --test-source without --outputs: it is measured while translating"),
}


def build(
    systems: Sequence[Mapping[str, Any]],
    parts: Sequence[Part] = (),
    *,
    lacks: Sequence[Mapping[str, Any]] = (),
    about: Mapping[str, Any] | None = None,
    title: str = "Report on runs",
) -> Document:
    """The document on systems as `runs.read_system` gives them (first: the base), with measured and added parts."""
    order = [*ORDER, "speed"]
    parts = sorted((_renamed(part, systems) for part in parts), key=lambda part: order.index(part["kind"]))
    names = list(dict.fromkeys([*(s["name"] for s in systems), *(e["name"] for p in parts for e in p["systems"])]))
    known = {s["name"]: s for s in systems}
    bare: dict[str, Any] = {"runs": [], "curves": {}}
    shown = [
        {"name": name, "look": i, **(known.get(name) or bare), "known": name in known} for i, name in enumerate(names)
    ]
    for system in shown:
        system["summary"] = _summary(system, parts)
    return {
        "format": FORMAT,
        "version": __version__,
        "title": title,
        "systems": shown,
        "parts": parts,
        "configuration": configuration(systems),
        "about": dict(about or {}),
        "warnings": warnings(systems),
        "lacks": [*(_missing(known.values())), *lacks, *_not_asked(parts, lacks)],
    }


def configuration(systems: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every key of the recipes with the value of each system; several values, where its runs differ, with commas."""
    flats = [[dict(leaves(run["config"] or {})) for run in system["runs"]] for system in systems]
    keys = list(dict.fromkeys(key for runs in flats for flat in runs for key in flat))
    rows = []
    for key in keys:
        values = [", ".join(dict.fromkeys(_said(flat.get(key)) for flat in runs)) for runs in flats]
        rows.append({"key": key, "values": values, "same": len(set(values)) == 1})
    return rows


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What a recipe says by dotted key; lists of sections are numbered from 0, other lists are one value. None is left out."""
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None:
        yield prefix, value


def warnings(systems: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes systems, or the runs that count as one system, hard to compare."""
    found = []
    for system in systems:
        rows = configuration([{"runs": [run]} for run in system["runs"]])
        different = [row["key"] for row in rows if not row["same"] and row["key"] not in OF_A_SEED]
        if different:
            keys = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
            found.append(
                f"The runs of {system['name']} differ in more than their seed ({keys}): ± is not that of seeds."
            )
        seeds = [run["seed"] for run in system["runs"]]
        if not different and len(set(seeds)) < len(seeds) and None not in seeds:
            found.append(f"Runs of {system['name']} have the same seed: they are no independent repetitions.")
    runs = [run for system in systems for run in system["runs"]]
    if len({run["facts"]["dataset"] for run in runs if run["facts"] and run["facts"].get("dataset")}) > 1:
        found.append(
            "Not all runs were trained on the same dataset: perplexities cannot be compared where subwords differ."
        )
    if len({run["output"] for run in runs if run["output"]}) > 1:
        found.append(
            "Not all models have the same kind of output: losses and perplexities of different ones do not compare."
        )
    return found


def _said(value: object) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _renamed(part: Part, systems: Sequence[Mapping[str, Any]]) -> Part:
    """The part with the report's names for systems that a file calls by the path of a run or of its translation."""
    names = {}
    for system in systems:
        for path in (*(run["folder"] for run in system["runs"]), *system.get("outputs", ())):
            names[str(path).rstrip("/")] = system["name"]

    def name(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {
                k: names.get(v.rstrip("/"), v)
                if k in ("name", "baseline", "system", "other") and isinstance(v, str)
                else name(v)
                for k, v in entry.items()
            }
        return [name(e) for e in entry] if isinstance(entry, list) else entry

    renamed: Part = {**name(part), "name": part["name"]}
    seen = [entry["name"] for entry in renamed["systems"]]
    if len(set(seen)) != len(seen):
        what = f"{part['name']}: two of its systems are runs of one system of this report"
        raise UsageError(what, hint="give the runs as systems of their own")
    return renamed


def _summary(system: Mapping[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
    """The figures of the first table; None for what is not known."""
    runs = system["runs"]
    found: dict[str, Any] = {"runs": len(runs), "seeds": [run["seed"] for run in runs]}
    keys = ("parameters", "updates", "seconds", "tokens_per_second", "valid_perplexity", "valid_bleu")
    found |= {key: over_runs(dict(system), key) for key in keys}
    for part in parts:
        entry = next((e for e in part["systems"] if e["name"] == system["name"]), None)
        if entry is None:
            continue
        if part["kind"] == "scores" and part["of"] is None:
            found.setdefault("scores", entry["scores"])
        elif part["kind"] == "scores":
            found.setdefault("subset", next(iter(entry["scores"].values())))
        elif part["kind"] == "contrastive":
            found.setdefault("contrastive", next(e for e in part["groups"][0]["systems"] if e["name"] == entry["name"]))
        elif part["kind"] == "alignment":
            means = [m for m in entry["settings"] if m["head"] is None]
            some = [m for m in means if m["method"] == METHOD] or means
            best = min(some, key=lambda m: m["aer"])
            found.setdefault("alignment", {k: best[k] for k in ("layer", "method", "aer")})
        elif part["kind"] == "speed":
            found.setdefault("speed", entry["sentences_per_second"])
    return found


def _missing(systems: Any) -> list[dict[str, Any]]:
    """What the folders of each system do not hold."""
    found = []
    for system in systems:
        name, runs, curves = system["name"], system["runs"], system["curves"]
        models = [run["folder"] for run in runs if run["kind"] != "run"]

        def lack(what: str, why: str, name: str = name) -> None:
            found.append({"system": name, "what": what, "why": why})

        if not runs:
            lack("everything but its translations", "no run or model folder of it was given")
            continue
        if models:
            lack("training, learning curves, machine", f"{', '.join(models)}: a model folder, not a run folder")
        elif "nll" not in curves and "perplexity" not in curves:
            lack("learning curves", "metrics.jsonl has no update yet")
        elif not any(key in curves for key in ("perplexity", "bleu")):
            lack("validation", "no validation was run yet")
        if "perplexity" in curves and "bleu" not in curves and translates(system):
            lack("validation BLEU", "the recipe did not ask for it (training.bleu_every: 0)")
        if any(curve["seconds"] is None for curve in curves.values()):
            lack("wall time", "timing.jsonl is missing or empty")
        for run in runs:
            if not run["has_model"]:
                lack("model", f"{run['folder']} has no checkpoint yet")
            if run["unreadable_lines"]:
                lack(
                    f"{plural(run['unreadable_lines'], 'line')} of the log", f"{run['folder']}: they could not be read"
                )
    return found


def translates(system: Mapping[str, Any]) -> bool:
    """Whether the runs of a system are models of translations, as far as is known."""
    return all(run["task"] in (None, "translation") for run in system["runs"])


def _not_asked(parts: Sequence[Part], lacks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    from phraseloom.report.measured import NAMES

    there = {part["kind"] for part in parts} | {k for k, name in NAMES.items() if any(n["what"] == name for n in lacks)}
    return [
        {"system": None, "what": what, "why": f"not measured; {how}"}
        for kind, (what, how) in NOT_ASKED.items()
        if kind not in there
    ]
