"""`phraseloom analyse contrastive`: how often a model finds the correct translation more likely than one with an error.

`ItemOptions` and `edges` read contrastive items in one of four forms, with or without trees, and the bins of distances.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.analysis.contrastive_items import Item, read_items, read_lingeval, read_parallel, read_set, with_trees
from phraseloom.cli.options import BySentence, Device, TableForm, grouped, once, options_of, require_json
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import warn
from phraseloom.errors import UsageError, escape_controls, plural
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import write_lines

if TYPE_CHECKING:
    from phraseloom.analysis.contrastive import JudgedItem
    from phraseloom.results import ContrastiveGroup, ContrastiveResult, SystemAccuracy

MOST_BINS = 1000
MOST_CHARTS = 12


@dataclass(frozen=True)
class ItemOptions:
    """The files of contrastive items, in one of four forms."""

    items: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with source, correct and wrong; optionally "
            "distance, and category or phenomenon. Repeatable.",
        ),
    ] = None
    sets: Annotated[
        list[Path] | None,
        typer.Option("--set", metavar="STEM", help="STEM.src.*, STEM.tgt.correct.*, STEM.tgt.incorrect.*. Repeatable."),
    ] = None
    lingeval: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="LingEval97's JSON: sentences with reference and errors, with distances."),
    ] = None
    source: Annotated[
        Path | None, typer.Option("-s", "--source", metavar="FILE", help="Sources, one line per item.")
    ] = None
    correct: Annotated[Path | None, typer.Option(metavar="FILE", help="Their correct translations.")] = None
    wrong: Annotated[Path | None, typer.Option(metavar="FILE", help="The same translations with one error each.")] = (
        None
    )
    distances: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --source: the distance of each item; a blank line for none."),
    ] = None
    category: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --source: the category of the items. With --lingeval: use only this error type."
        ),
    ] = None
    trees: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Parse trees of the sources: one file for each --items or --set, in the same order."
        ),
    ] = None

    def files(self) -> list[Path]:
        """Every file that is read."""
        single = [self.source, self.correct, self.wrong, self.lingeval, self.distances]
        of_sets = [path for stem in self.sets or [] for path in stem.parent.glob(f"{glob.escape(stem.name)}.*")]
        return [*(self.items or []), *filter(None, single), *(self.trees or []), *of_sets]

    def read(self) -> list[Item]:
        """The items of all files. Raises UsageError for anything but one of the four forms, DataError, FileProblem."""
        three = {"--source": self.source, "--correct": self.correct, "--wrong": self.wrong}
        self._check(three)
        if self.items:
            parts = [read_items(path) for path in self.items]
        elif self.sets:
            parts = [read_set(stem) for stem in self.sets]
        elif self.lingeval is not None:
            parts = [read_lingeval(self.lingeval, self.category)]
        else:
            files = (path for path in three.values() if path)
            parts = [read_parallel(*files, distances=self.distances, category=self.category or "")]
        if self.trees:
            if len(self.trees) != len(parts):
                what = f"{plural(len(self.trees), 'file')} of trees for {len(parts)} of items"
                raise UsageError(what, hint="give --trees once for each, in the same order")
            parts = [with_trees(part, path) for part, path in zip(parts, self.trees, strict=True)]
        return [item for part in parts for item in part]

    def _check(self, three: Mapping[str, Path | None]) -> None:
        """Raise UsageError unless exactly one form is given, with only its own options."""
        given = [option for option, path in three.items() if path is not None]
        forms = ["--items"] * bool(self.items) + ["--set"] * bool(self.sets)
        forms += ["--lingeval"] * bool(self.lingeval) + given[:1]
        if len(forms) != 1:
            what = f"{' and '.join(forms)} together" if forms else "no items"
            raise UsageError(what, hint="give --items, or --set, or --lingeval, or --source with --correct and --wrong")
        missing = [option for option in three if option not in given]
        if given and missing:
            raise UsageError(f"{given[0]} without {missing[0]}", hint="the three files go together")
        for option, value in (("--distances", self.distances), ("--category", self.category)):
            if value is not None and not given and (option, forms[0]) != ("--category", "--lingeval"):
                raise UsageError(f"{option} goes with --source, not with {forms[0]}")


def edges(text: str) -> list[int]:
    """`0-5,10,20` as [0, 1, 2, 3, 4, 5, 10, 20]: where bins end. Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        last = int(ends[2] or ends[1]) if ends else -1
        if not ends or last - int(ends[1]) >= MOST_BINS:
            break
        found += range(int(ends[1]), last + 1)
    else:
        if found and found == sorted(set(found)) and len(found) <= MOST_BINS:
            return found
    raise UsageError(
        f"--bins {text}: not at most {MOST_BINS} rising whole numbers from 0", hint="such as 0-15 or 0,2,5,10"
    )


Estimate = Literal["position"]


DISTANCE = {None: "distance", "given": "distance", "position": "distance (estimate: position)"}
SCORES = ("model", "file", "line", "category", "distance", "log_prob_correct", "log_prob_wrong", "right")


ComparedModels = Annotated[
    list[Path],
    typer.Argument(metavar="MODEL", help="Model folders, run folders or checkpoints; the first is the baseline."),
]
DistanceEstimate = Annotated[
    Estimate | None,
    typer.Option(
        help="If no item has a distance, use an estimate. position: index of the first word that differs, from 0."
    ),
]
Bins = Annotated[str, typer.Option(metavar="EDGES", help="Upper edges of the distance bins, such as 0-5,10,20.")]
PlotFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Plot accuracy by distance: .png, .svg or .pdf.")]
ScoreFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the two log-probabilities of each item (TSV).")
]


@options_of(DecodingConfig, only=("batch_sentences", "workers", "tags"))
@grouped
def command(
    models: ComparedModels,
    *,
    inputs: ItemOptions,
    estimate_distance: DistanceEstimate = None,
    bins: Bins = "0-15",
    plot: PlotFile = None,
    scores: ScoreFile = None,
    output: TableForm = "table",
    options: dict[str, Any],
    by_sentence: BySentence = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Print how often models prefer a correct translation to the same translation with one error.

    Models score both. An item is right if the log-probability of the correct one is strictly greater; it is the sum
    over tokens, without length normalisation. Results are by category and distance, with 95 % intervals (Wilson).
    Each model is compared with the first by the exact McNemar test. Give the items by --items, by --set, by
    --lingeval, or by --source with --correct and --wrong.

    Example: phraseloom analyse contrastive runs/base runs/phrases --items worlds/small/contrastive.jsonl --plot
    by.svg

    Example: phraseloom analyse contrastive runs/base --lingeval lingeval97.json --category subj_verb_agreement

    Example: phraseloom analyse contrastive runs/base --set subj_verb_agreement.mt --estimate-distance position
    """
    check_outputs({"--plot": plot, "--scores": scores}, inputs=[*models, *inputs.files()], overwrite=overwrite)
    once(models)
    require_json(by_sentence, output == "json", "--output json")
    from phraseloom import results
    from phraseloom.analysis.contrastive import contrastive_report
    from phraseloom.analysis.contrastive_items import with_positions

    upper_edges = edges(bins)
    items = inputs.read()
    if estimate_distance is not None:
        items = with_positions(items)
    measured = any(item.distance is not None for item in items)
    kind = None if not measured else "given" if estimate_distance is None else estimate_distance
    _can_draw(plot, items)
    judged = _judge(models, items, device, options)
    groups = contrastive_report(items, judged, upper_edges, by_sentence=by_sentence)
    cropped = {name: of_model.cropped for name, of_model in judged.items()}
    content = {"items": len(items), "distance": kind, "groups": groups, "cropped": cropped}
    result = results.ContrastiveResult.model_validate(content)
    if scores is not None:
        _write_scores(scores, items, judged)
    if output == "json":
        print(results.line(result))
    else:
        print(_table(result.groups, DISTANCE[kind], several=len(models) > 1, markdown=output == "markdown"))
    if plot is not None:
        _draw(result, plot)


def _draw(result: ContrastiveResult, output: Path) -> None:
    """Draw accuracy by distance, a chart for each category that has distances."""
    from phraseloom.report.charts.picture import draw
    from phraseloom.report.charts.places import by_distance, last_parts
    from phraseloom.report.run.parts import contrastive

    part = contrastive(result, "", "")
    names = last_parts([system.name for system in part.systems])
    charts = by_distance(part, {system: i for i, system in enumerate(names)})
    renamed = [replace(c, series=[replace(s, name=names[s.name]) for s in c.series]) for c in charts]
    title = "Contrastive accuracy by distance"
    draw(renamed, output, title=title, note="95 % intervals (Wilson)", columns=1 if len(charts) == 1 else 2)


def _can_draw(plot: Path | None, items: Sequence[Item]) -> None:
    """Refuse a plot that would fail at the end, before the models run."""
    if plot is not None:
        from phraseloom.report.charts.picture import can_draw

        categories = {item.category for item in items if item.distance is not None}
        if len(categories) > MOST_CHARTS:
            hint = "give the items of fewer categories, or leave --plot out: the table has them all"
            raise UsageError(f"{len(categories)} categories have distances, a picture holds {MOST_CHARTS}", hint=hint)
        if not categories:
            hint = "--distances gives them, --estimate-distance position estimates them"
            raise UsageError("--plot draws accuracy by distance, and no item has one", hint=hint)
        can_draw(plot)


def _judge(
    models: Sequence[Path], items: Sequence[Item], device: str, options: dict[str, Any]
) -> dict[str, JudgedItem]:
    """Judge all items with every model; all models are loaded first. Print warnings about cropped and unusual items."""
    from phraseloom.analysis.contrastive import judge
    from phraseloom.cli.analyse.models import limits, load_models, warn_without_readers
    from phraseloom.phrases.source import count_flat

    blank = [item for item in items if item.blank]
    if blank:
        warn("analyse", f"{len(blank)} items have a blank text, the first is line {blank[0].line} of {blank[0].file}")
    all_have_trees = all(item.tree is not None for item in items)
    translators, readers = load_models(models, device, trees=all_have_trees, **options)
    warn_without_readers(all_have_trees and items[0].tree_file != items[0].file, readers)
    if all_have_trees and readers:
        flat = count_flat([item.source for item in items], [item.tree or "" for item in items])
        if flat:
            warn("analyse", f"{flat} items have no tree: all words are children of the root")
    judged = {}
    for model, translator in translators.items():
        judged[model] = result = judge(translator, items)
        if result.cropped:
            longer = f"texts of more than {limits(translator.config)}"
            warn("analyse", f"{model}: {result.cropped} items have {longer}, which were cropped")
        if any(result.same):
            what = "items are not distinguishable, both translations being the same subwords: counted as wrong"
            warn("analyse", f"{model}: {sum(result.same)} {what}")
    return judged


def _write_scores(path: Path, items: Sequence[Item], judged: Mapping[str, JudgedItem]) -> None:
    rows = ["\t".join(SCORES)]
    for name, result in judged.items():
        values = zip(items, result.correct, result.wrong, result.right, strict=True)
        for item, correct, wrong, right in values:
            distance = "" if item.distance is None else item.distance
            cells = (name, item.file, item.line, item.category, distance, f"{correct:.6f}", f"{wrong:.6f}", int(right))
            rows.append("\t".join(escape_controls(str(cell)) for cell in cells))
    write_lines(path, rows)


def _table(groups: Sequence[ContrastiveGroup], distance: str, *, several: bool, markdown: bool) -> str:
    """A row for each group and system, without empty columns."""
    from phraseloom.report import markup as tables

    named = any(group.category for group in groups)
    measured = any(group.distance for group in groups)
    headers = ["category"] * named + [distance] * measured + ["items", "system", "right %", "95 %"]
    headers += ["difference", "won:lost", "p"] if several else []
    rows: list[list[object]] = []
    for group in groups:
        label = "all" if group.category is None else group.category or "–"
        first = [label] * named + [group.distance or "all"] * measured + [group.items]
        for number, entry in enumerate(group.systems):
            low, high = (f"{100 * bound:.1f}" for bound in entry.interval)
            row: list[object] = [*([None] * len(first) if number else first)]
            row += [entry.system, f"{100 * entry.accuracy:.1f}", f"{low} … {high}"]
            if several:
                row += _comparison(entry) if number else [None] * 3
            rows.append(row)
    return (tables.markdown if markdown else tables.terminal)(headers, rows)


def _comparison(entry: SystemAccuracy) -> list[object]:
    from phraseloom.report.markup import p_text

    assert entry.difference is not None and entry.p is not None
    return [f"{100 * entry.difference:+.1f}", f"{entry.won}:{entry.lost}", p_text(entry.p)]
