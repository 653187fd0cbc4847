"""The report on runs as one document (JSON), format 1, from which the page is made: `RunReport` writes and reads it.

The document has no time stamps: the same runs and texts give the same document, except for speed.

It also has the sections of the page on accuracy: contrastive items, phenomena, fertility classes, coverage of gold phrases.
"""

from __future__ import annotations

import os.path
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pydantic

from phraseloom import __version__
from phraseloom.errors import UsageError, plural
from phraseloom.report.charts import svg
from phraseloom.report.charts.places import by_distance, by_group
from phraseloom.report.markup import TableCell, charts, details, note, section, table
from phraseloom.report.run.learning import learned_nothing
from phraseloom.report.run.measured import ALL_OF_IT, NAMES, NO_TRANSLATION
from phraseloom.report.run.parts import (
    METHOD,
    ORDER,
    AlignmentPart,
    ComparedScore,
    ContrastivePart,
    CoveragePart,
    FertilityPart,
    GroupAccuracy,
    Part,
    PhenomenaPart,
    ScoresPart,
    ShownSystem,
    SpeedPart,
)
from phraseloom.report.run.runs import Missing, OverRuns, RunFacts, SystemFacts
from phraseloom.report.run.scores import Styles, p_value, plus_minus
from phraseloom.results import Number, ResultPart

FORMAT = 1
S = TypeVar("S", bound=ShownSystem)
OF_A_SEED = {"name", "training.seed"}
# What is measured, and the options that it needs.
NEEDS = {
    "scores": ("test scores", ("--reference", "--test-source or --outputs")),
    "contrastive": ("contrastive accuracy", ("--contrastive",)),
    "alignment": ("alignment error rate", ("--test-source", "--reference", "--gold")),
    "entropy": ("attention entropy", ("--test-source", "--reference")),
    "activation": ("activation shares", ("--test-source", "--reference")),
    "fertility": ("fertility scores", ("--fertility-source", "--fertility-labels")),
    "speed": ("speed of translation", ("--test-source without --outputs: it is measured while translating",)),
}
NO_MODEL = "not measured; no system is a translation model with a checkpoint of every run"


class BestLayer(ResultPart):
    """The decoder layer with the lowest alignment error rate (a fraction), heads averaged."""

    layer: Number
    method: str
    aer: Number


class Summary(ResultPart):
    """The figures of a system in the first table; None: unknown.

    The last five are those of the first part of their kind, and not set for a system that is not in it.
    `runs`: their number; `scores`: by metric; `subset`: the first metric on the lines of `--mwt`; `speed`: sentences / s.
    """

    runs: int
    seeds: list[int | None]
    parameters: OverRuns | None
    updates: OverRuns | None
    seconds: OverRuns | None
    tokens_per_second: OverRuns | None
    valid_perplexity: OverRuns | None
    valid_bleu: OverRuns | None
    scores: dict[str, ComparedScore] = pydantic.Field(default_factory=dict)
    subset: ComparedScore | None = None
    contrastive: GroupAccuracy | None = None
    alignment: BestLayer | None = None
    speed: OverRuns | None = None


class ReportedSystem(SystemFacts):
    """A system with its summary. `known`: a run or model folder of it was given, not translations alone."""

    known: bool
    summary: Summary


class RecipeRow(ResultPart):
    """A key of the recipes, the value of each system as text, and whether they are equal."""

    key: str
    values: list[str]
    same: bool


class RunReport(ResultPart):
    """The document. `about`: the files that were read, by use; `lacks`: what it could show and does not, with the reason."""

    format: int
    version: str
    title: str
    systems: list[ReportedSystem]
    parts: list[Part]
    configuration: list[RecipeRow]
    about: dict[str, str | None]
    warnings: list[str]
    lacks: list[Missing]

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the keys of `Summary` and `SystemFacts` that were not set."""
        return self.model_dump(exclude_unset=True)


def build(
    systems: Sequence[SystemFacts],
    parts: Sequence[Part] = (),
    *,
    lacks: Sequence[Missing] = (),
    about: Mapping[str, str | None] | None = None,
    title: str = "Report on runs",
    options: Container[str] = (),
) -> RunReport:
    """The document on systems as returned by `runs.read_system` (the first is the baseline), with measured and added parts.

    `options`: the names of the given options of `report` that say on what to measure.
    """
    order = [*ORDER, "speed"]
    parts = sorted((_renamed(part, systems) for part in parts), key=lambda part: order.index(part.kind))
    known = {system.name: system for system in systems}
    names = list(dict.fromkeys([*known, *(e.name for p in parts for e in p.systems)]))
    everything = [known.get(name) or SystemFacts(name=name, runs=[], curves={}) for name in names]
    shown = []
    for look, facts in enumerate(everything):
        own = {"look": look, "known": facts.name in known, "summary": _summary(facts, parts)}
        shown.append(ReportedSystem.model_validate({**facts.model_dump(exclude_unset=True), **own}))
    return RunReport(
        format=FORMAT,
        version=__version__,
        title=title,
        systems=shown,
        parts=parts,
        configuration=configuration([system.runs for system in systems]),
        about=dict(about or {}),
        warnings=[*learned_nothing(shown, parts), *warnings(systems)],
        lacks=[
            *missing(everything),
            *lacks,
            *_without_scores(parts, lacks, systems),
            *_not_measured(parts, lacks, systems, options),
        ],
    )


def configuration(systems: Sequence[Sequence[RunFacts]]) -> list[RecipeRow]:
    """Every key of the recipes with the value of each system. If its runs differ, their values are separated by commas."""
    flats = [[dict(leaves(run.config or {})) for run in runs] for runs in systems]
    keys = list(dict.fromkeys(key for runs in flats for flat in runs for key in flat))
    rows = []
    for key in keys:
        values = [", ".join(dict.fromkeys(_value_text(flat.get(key)) for flat in runs)) for runs in flats]
        rows.append(RecipeRow(key=key, values=values, same=len(set(values)) == 1))
    return rows


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a recipe by dotted key, without None. Sections in a list are numbered from 0; other lists are one value."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None:
        yield prefix, value


def warnings(systems: Sequence[SystemFacts]) -> list[str]:
    """Reasons why systems, or the runs of one system, are hard to compare."""
    result = []
    for system in systems:
        rows = configuration([[run] for run in system.runs])
        different = [row.key for row in rows if not row.same and row.key not in OF_A_SEED]
        if different:
            keys = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
            result.append(f"The runs of {system.name} differ in more than their seed ({keys}): ± is not that of seeds.")
        seeds = [run.seed for run in system.runs]
        if not different and len(set(seeds)) < len(seeds) and None not in seeds:
            result.append(f"Runs of {system.name} have the same seed: they are no independent repetitions.")
    runs = [run for system in systems for run in system.runs]
    if len({run.facts.dataset for run in runs if run.facts and run.facts.dataset}) > 1:
        result.append(
            "Not all runs were trained on the same dataset: perplexities cannot be compared where subwords differ."
        )
    if len({run.output for run in runs if run.output}) > 1:
        result.append(
            "Not all models have the same kind of output: losses and perplexities of different ones do not compare."
        )
    return result


def _value_text(value: object) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _renamed(part: Part, systems: Sequence[SystemFacts]) -> Part:
    """The part with the names of the report, if a file names a system by the path of its run or translation."""
    names = {}
    for system in systems:
        for path in (*(run.folder for run in system.runs), *system.outputs):
            names[path.rstrip("/")] = names[_resolved(path)] = system.name
    own = {system.name for system in systems}

    def known(text: str) -> str:
        return names.get(text.rstrip("/")) or (text if text in own else names.get(_resolved(text), text))

    def name(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {
                k: known(v) if k in ("name", "baseline", "system", "other") and isinstance(v, str) else name(v)
                for k, v in entry.items()
            }
        return [name(e) for e in entry] if isinstance(entry, list) else entry

    renamed = type(part).model_validate({**name(part.model_dump(exclude_unset=True)), "name": part.name})
    seen = [entry.name for entry in renamed.systems]
    if len(set(seen)) != len(seen):
        what = f"{part.name} has two systems that are runs of one system of this report"
        raise UsageError(what, hint="give each run as a system of its own")
    return renamed


def _resolved(path: str) -> str:
    """A path without links and dots; a name that cannot be one stays as it is."""
    try:
        return os.path.realpath(path)
    except ValueError:  # it has a NUL
        return path


def _summary(system: SystemFacts, parts: Sequence[Part]) -> Summary:
    """The figures of a system. Each kind is of one part for all systems: figures of other test sets do not compare."""
    summary: dict[str, Any] = {"runs": len(system.runs), "seeds": [run.seed for run in system.runs]}
    keys = ("parameters", "updates", "seconds", "tokens_per_second", "valid_perplexity", "valid_bleu")
    summary |= {key: system.over_runs(key) for key in keys}
    for part in _first_of_each_kind(parts):
        if isinstance(part, ScoresPart):
            for scored in _of(system, part.systems):
                if part.of is None:
                    summary["scores"] = scored.scores
                else:
                    summary["subset"] = next(iter(scored.scores.values()))
        elif isinstance(part, ContrastivePart):
            for accuracy in _of(system, part.groups[0].systems):
                summary["contrastive"] = accuracy
        elif isinstance(part, AlignmentPart):
            for aligned in _of(system, part.systems):
                means = [m for m in aligned.settings if m.head is None]
                best = min([m for m in means if m.method == METHOD] or means, key=lambda m: m.aer)
                summary["alignment"] = BestLayer(layer=best.layer, method=best.method, aer=best.aer)
        elif isinstance(part, SpeedPart):
            for fast in _of(system, part.systems):
                summary["speed"] = fast.sentences_per_second
    return Summary.model_validate(summary)


def _first_of_each_kind(parts: Sequence[Part]) -> list[Part]:
    """The first part of each kind; scores of some lines alone are a kind of their own."""
    firsts: dict[tuple[str, bool], Part] = {}
    for part in parts:
        firsts.setdefault((part.kind, isinstance(part, ScoresPart) and part.of is not None), part)
    return list(firsts.values())


def _of(system: SystemFacts, entries: Iterable[S]) -> list[S]:
    return [entry for entry in entries if entry.name == system.name]


def missing(systems: Iterable[SystemFacts]) -> list[Missing]:
    """What the folders of each system lack."""
    lacks = []
    for system in systems:
        name, runs = system.name, system.runs
        if not runs:
            what = "everything about its model and training"
            lacks.append(Missing(system=name, what=what, why="no run or model folder of it was given"))
            continue
        lacks += [Missing(system=name, what=what, why=why) for what, why in _missing_curves(system)]
        for run in runs:
            if not run.has_model:
                lacks.append(Missing(system=name, what="model", why=f"{run.folder} has no checkpoint yet"))
            if run.unreadable_lines:
                what = f"{plural(run.unreadable_lines, 'line')} of the log"
                lacks.append(Missing(system=name, what=what, why=f"{run.folder}: they could not be read"))
    return lacks


def _missing_curves(system: SystemFacts) -> Iterator[tuple[str, str]]:
    """The curves that a system lacks, and why."""
    curves = system.curves
    models = [run.folder for run in system.runs if run.kind != "run"]
    if models:
        yield "training, learning curves, machine", f"{', '.join(models)}: a model folder, not a run folder"
    elif "nll" not in curves and "perplexity" not in curves:
        yield "learning curves", _why_no_curve(system, ("nll", "loss"), "no update is in metrics.jsonl")
    elif "perplexity" not in curves and "bleu" not in curves:
        yield "validation", _why_no_curve(system, ("perplexity",), "no validation is in metrics.jsonl")
    elif (single := _why_single_point(system)) is not None:
        yield "a validation curve", f"{single}: the chart has a single marker"
    if "perplexity" in curves and "bleu" not in curves and system.translates:
        every = {str(((run.config or {}).get("training") or {}).get("bleu_every") or 0) for run in system.runs}
        nothing = f"no validation had BLEU yet (training.bleu_every: {', '.join(sorted(every))})"
        nothing = "the recipe did not ask for it (training.bleu_every: 0)" if every == {"0"} else nothing
        yield "validation BLEU", _why_no_curve(system, ("bleu",), nothing)
    if any(curve.seconds is None for curve in curves.values()):
        untimed = [run.folder for run in system.runs if run.seconds is None]
        where = f"{', '.join(untimed)}: " if untimed else ""
        yield "wall time", f"{where}timing.jsonl is missing or has no time"


def _why_no_curve(system: SystemFacts, keys: Sequence[str], nothing: str) -> str:
    """Why a system has no curve of the first key, which has the values of the others too; `nothing`: if no run logged it."""
    if system.run_curves(keys[0]):
        return "its runs have no update in common"
    return "none of its values is a finite number" if any(map(system.num_logged, keys)) else nothing


def _why_single_point(system: SystemFacts) -> str | None:
    """Why a validation curve of a system has one point; None if each has more."""
    for key, name in (("perplexity", "perplexity"), ("bleu", "BLEU")):
        curve = system.curves.get(key)
        if curve is None or len(curve.updates) > 1:
            continue
        if any(len(updates) > 1 for updates, _ in system.run_curves(key)):
            return "its runs have only one validated update in common"
        if system.num_logged(key) > 1:
            return f"only one validation has a finite {name}"
        return (
            "only one validation was run" if system.num_logged("perplexity") < 2 else f"only one validation had {name}"
        )
    return None


def _not_measured(
    parts: Sequence[Part], lacks: Sequence[Missing], systems: Sequence[SystemFacts], options: Container[str]
) -> list[Missing]:
    """What no part and no lack of a system is about, and the options that it still needs."""
    present = {part.kind for part in parts} | {
        k for k, name in NAMES.items() if any(lack.what == name for lack in lacks)
    }
    present |= {"speed"} if "translation" in present else set()
    able = any(system.translates and all(run.has_model for run in system.runs) for system in systems)
    result = []
    for kind, (what, needs) in NEEDS.items():
        if kind == "scores" and not able:
            needs = ("--reference", "--outputs")
        absent = [need for need in needs if not any(option in options for option in need.split(" or "))]
        give = f"give {' and '.join(absent)}"
        if kind in present or (able and not absent):
            continue
        if able:
            why = f"not measured; {give}"
        else:
            why = f"{NO_MODEL}; {give}" if kind == "scores" else NO_MODEL
        result.append(Missing(system=None, what=what, why=why))
    return result


def _without_scores(parts: Sequence[Part], lacks: Sequence[Missing], systems: Sequence[SystemFacts]) -> list[Missing]:
    """The systems that have no test scores where others have some, unless a lack says so."""
    scored = [{system.name for system in part.systems} for part in parts if isinstance(part, ScoresPart)]
    if not scored:
        return []
    told = {lack.system for lack in lacks if lack.what in (NEEDS["scores"][0], ALL_OF_IT)}
    why = {True: "not measured; give --test-source, or --outputs of this system", False: NO_TRANSLATION}
    return [
        Missing(system=system.name, what=NEEDS["scores"][0], why=why[system.translates])
        for system in systems
        if system.name not in told.union(*scored)
    ]


TESTS = "Intervals: Wilson; p: exact McNemar test against the first system."
SEVERAL = "Means over runs; intervals: of other runs and other items (Welch's t)."


def contrastive_section(part: ContrastivePart, styles: Styles, number: int) -> str:
    """Accuracy by distance, a chart for each category that has distances, and the table of all groups."""
    rows = [
        [
            "all" if g.category is None else g.category or "–",
            g.distance or "all",
            g.items,
            e.name,
            _percent(e.accuracy, e.deviation),
            TableCell(f"{100 * e.low:.1f} … {100 * e.high:.1f}", e.low),
            None if e.difference is None else TableCell(f"{100 * e.difference:+.1f}", e.difference),
            p_value(e.p),
        ]
        for g in part.groups
        for e in g.systems
    ]
    headers = ["category", "distance", "items", "system", "right %", "95 %", "difference", "p"]
    whole = [
        row for row, g in zip(rows, (g for g in part.groups for _ in g.systems), strict=True) if g.distance is None
    ]
    estimate = (
        " (distance estimated by the position of the first word that differs)" if part.distance == "position" else ""
    )
    tests = SEVERAL if any(e.deviation is not None for g in part.groups for e in g.systems) else TESTS
    text = f"{part.items:,} items{estimate}; right: the correct translation is likelier than the wrong one. {tests}"
    return section(
        f"contrastive-{number}",
        f"Contrastive accuracy: {part.name}",
        note(text),
        charts(*map(svg.lines, by_distance(part, styles))),
        table(headers, whole),
        details(f"All {plural(len(rows), 'row')}, by distance", table(headers, rows)) if len(whole) < len(rows) else "",
    )


def phenomena_section(part: PhenomenaPart, styles: Styles, number: int) -> str:
    """Accuracy of the phenomena of the built-in world."""
    rows = [
        [
            g.phenomenon,
            g.instances,
            e.name,
            _percent(e.accuracy),
            TableCell(f"{100 * e.low:.1f} … {100 * e.high:.1f}", e.low),
            p_value(e.p),
        ]
        for g in part.groups
        for e in g.systems
    ]
    groups = [(g.phenomenon, g.instances, g.systems) for g in part.groups]
    figure = svg.lines(by_group("Accuracy by phenomenon", groups, styles, "below: instances", joined=False))
    headers = ["phenomenon", "instances", "system", "right %", "95 %", "p"]
    text = f"{plural(part.sentences, 'sentence')} of {part.split}. {TESTS}"
    return section(f"phenomena-{number}", f"Phenomena: {part.name}", note(text), charts(figure), table(headers, rows))


def fertility_section(part: FertilityPart, styles: Styles, number: int) -> str:
    """Precision, recall and F1 of the classes of the fertility module."""
    rows = [
        [
            system.name,
            of,
            name,
            int(s.total),
            *(TableCell(f"{100 * share:.2f}", share) for share in (s.precision, s.recall, s.f1)),
        ]
        for system in part.systems
        for of, scored in (("fertility", system.classes), ("word or phrase", system.gate))
        for name, s in scored.items()
    ]
    headers = ["system", "about", "class", "tokens", "precision %", "recall %", "F1 %"]
    accuracy = "; ".join(f"{s.name}: accuracy {100 * s.accuracy:.2f} %, loss {s.loss:.4f}" for s in part.systems)
    return section(f"fertility-{number}", f"Fertility: {part.name}", table(headers, rows), note(accuracy + "."))


def coverage_section(part: CoveragePart, styles: Styles, number: int) -> str:
    """The share of attention to phrase slots that is on gold phrases."""
    rows = [
        [
            s.name,
            r.use,
            r.layer,
            r.order if isinstance(r.order, str) else int(r.order),
            *(None if share is None else TableCell(f"{100 * share:.1f}", share) for share in (r.covered, r.chance)),
            r.lift,
            None if not r.interval else TableCell("{:.2f} … {:.2f}".format(*r.interval), r.interval[0]),
        ]
        for s in part.systems
        for r in s.rows
    ]
    headers = ["system", "attention", "layer", "order", "on gold phrases %", "by chance %", "lift", "95 %"]
    return section(
        f"coverage-{number}",
        f"Gold phrases under phrase slots: {part.name}",
        note(f"{plural(part.phrases, 'phrase')} in {plural(part.sentences, 'sentence')}."),
        table(headers, rows),
    )


def _percent(value: float, deviation: float | None = None) -> TableCell:
    return TableCell(plus_minus(100 * value, None if deviation is None else 100 * deviation, 1).text, value)
