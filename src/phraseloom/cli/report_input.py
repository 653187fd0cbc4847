"""The options of `phraseloom report` that name its inputs, and how they are read; `diff` reads texts and translations alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.align.evaluate import GoldForm
from phraseloom.cli.options import ResampleSeed
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import require_file, require_regular_file, sha256_file
from phraseloom.text.lines import check_parallel, read_lines

if TYPE_CHECKING:
    from phraseloom.align.links import Gold
    from phraseloom.analysis.contrastive_items import Item
    from phraseloom.analysis.measurements import Material
    from phraseloom.report.run.measured import ScoredOn
    from phraseloom.report.run.parts import Part
    from phraseloom.report.run.runs import System, SystemFacts

TestReference = Annotated[
    Path | None, typer.Option("-r", "--reference", metavar="FILE", help="Their reference translations.")
]
TestTrees = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Parse trees of the sources, for models that take phrases from trees."),
]

TestTags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="TAG", help="A tag of the sources, such as <2de>, for models with tags; repeat for several."
    ),
]


@dataclass(frozen=True)
class ReportInputs:
    """The options of `report` that say what is measured, and on which files."""

    source: Annotated[
        Path | None,
        typer.Option("-s", "--test-source", metavar="FILE", help="Test source text, which the runs translate."),
    ] = None
    reference: TestReference = None
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="NAME=FILE: translations of a system (FILE,FILE for "
            "several runs), instead of translating. Repeatable.",
        ),
    ] = None
    trees: TestTrees = None
    tags: TestTags = None
    mwt: Annotated[
        Path | None,
        typer.Option(metavar="LINES", help="Also score these lines separately: a file of line numbers, one per line."),
    ] = None
    contrastive: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Contrastive items as for analyse contrastive --items. Repeatable."),
    ] = None
    bins: Annotated[str, typer.Option(metavar="EDGES", help="Upper edges of the distance bins.")] = "0-15"
    gold: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Gold links of the sources and their references.")
    ] = None
    form: GoldForm = field(default_factory=GoldForm)
    fertility_source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Source text, as for fertility evaluate.")
    ] = None
    fertility_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="Fertilities of its words.")] = None
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="NAME=FILE: JSON written by evaluate, analyse, align or fertility. Repeatable."
        ),
    ] = None
    metrics: Annotated[str, typer.Option(metavar="NAMES", help="Comma-separated, as for evaluate.")] = "bleu,chrf"
    scores: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE,…",
            help="Scores of each sentence by another program, such as COMET: one number per "
            "line, a file for each file of --outputs, in their order. Repeatable.",
        ),
    ] = None
    bootstrap: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of bootstrap resamples; 0 for no intervals.")
    ] = 1000
    seed: ResampleSeed = 12345
    most: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of pairs for entropy and activation, from the first.")
    ] = 500

    def given(self) -> set[str]:
        """The names of the given options that say on what to measure."""
        values = {
            "--test-source": self.source,
            "--reference": self.reference,
            "--outputs": self.outputs,
            "--gold": self.gold,
            "--contrastive": self.contrastive,
            "--fertility-source": self.fertility_source,
            "--fertility-labels": self.fertility_labels,
        }
        return {option for option, value in values.items() if value}

    def files(self, systems: Sequence[System]) -> list[Path]:
        """Every file and folder that is read, or that `--outputs` may name."""
        given = [self.source, self.reference, self.trees, self.mwt, *(self.contrastive or []), self.gold]
        given += [self.fertility_source, self.fertility_labels]
        added = [text.partition("=")[2] for text in self.add or []]
        scores = [file for text in self.scores or [] for file in text.partition("=")[2].split(",") if file]
        return [path for path in given if path] + [*map(Path, added + scores), *places_of(systems, self.outputs or [])]


@dataclass(frozen=True)
class ParallelText:
    """Parallel lines and their files; None for those that were not given."""

    sources: list[str] | None = None
    references: list[str] | None = None
    trees: list[str] | None = None
    gold: list[Gold] | None = None
    source_file: Path | None = None
    reference_file: Path | None = None
    trees_file: Path | None = None
    gold_name: str | None = None


@dataclass(frozen=True)
class ReadInputs:
    """What the files of `ReportInputs` contain, checked.

    `systems`: facts of each system (`report/run/runs.py`); `translations`: given ones, by system and run; `test`: how they are
    scored; `added`: parts of the report that other commands wrote.
    """

    systems: list[SystemFacts]
    text: ParallelText
    translations: dict[str, list[list[str]]]
    test: ScoredOn | None
    material: Material
    edges: list[int]
    added: list[Part]


def read_inputs(options: ReportInputs, systems: Sequence[System]) -> ReadInputs:
    """Read all inputs of a report, before anything is measured. Raises UsageError, DataError, FileProblem."""
    from phraseloom.report.run.measured import in_order
    from phraseloom.report.run.parts import read_part
    from phraseloom.report.run.runs import read_system

    for path in _texts(options).values():
        require_regular_file(path)  # the page names its checksum
    files = parse_outputs(options.outputs or [], systems)
    added = parse_added(options.add or [])
    text = read_texts(options.source, options.reference, options.trees, options.gold, options.form)
    fertility = _both(options.fertility_source, options.fertility_labels, "--fertility-source and --fertility-labels")
    items, edges = _read_items(options.contrastive or [], options.bins)
    test = _read_test(text, options)
    if files and test is None:
        raise UsageError("--outputs are scored against a reference", hint="give it with --reference")
    known = [
        read_system(system).model_copy(update={"outputs": [str(path) for path in files.get(system.name, ())]})
        for system in systems
    ]
    names = [system.name for system in systems]
    translations = in_order(read_outputs(files, text), names)
    if options.scores:
        test = _with_scores(test, options.scores, files, names, _translating(known, files, options.source))
    return ReadInputs(
        known,
        text,
        translations,
        test,
        _material(text, items, fertility, options),
        edges,
        [read_part(name, path) for name, path in added],
    )


def is_page(page: Path, endings: Sequence[str] = (".html", ".htm")) -> None:
    """Raise UsageError for a name without one of the `endings`."""
    if page.suffix.lower() not in endings:
        raise UsageError(f"{page.name!r} is not the name of a page", hint=f"it ends in {' or '.join(endings)}")


def places_of(systems: Sequence[System], outputs: Sequence[str]) -> list[Path]:
    """The folders of systems and the files that `--outputs` may name, which the page must not replace."""
    files = [text.partition("=")[2] for text in outputs]
    folders = [Path(folder) for system in systems for folder in system.folders]
    return folders + [Path(name) for text in files for name in {text, *text.split(",")} if name]


def named(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """`NAME=…` of an option, in order. Raises UsageError where a part is empty."""
    pairs = []
    for text in texts:
        name, equals, files = text.partition("=")
        if not (name.strip() and equals and files):
            raise UsageError(f"{option} {text}: not NAME=FILE", hint="write the name before the first =")
        pairs.append((name.strip(), files))
    return pairs


def parse_added(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """The names and existing files of `--add`."""

    return [(name, require_file(file, "result")) for name, file in named(texts, "--add")]


def parse_outputs(texts: Sequence[str], systems: Sequence[System]) -> dict[str, list[Path]]:
    """System → files of translations, one for each of its runs if it has any. Raises UsageError."""

    runs = {system.name: len(system.folders) for system in systems}
    result: dict[str, list[Path]] = {}
    for name, text in named(texts, "--outputs"):
        files = [text] if Path(text).is_file() else text.split(",")
        if name in result:
            raise UsageError(
                f"--outputs of {name} are given twice", hint="separate the files of several runs by commas"
            )
        if runs.get(name, len(files)) != len(files):
            raise UsageError(
                f"--outputs of {name} are {plural(len(files), 'file')}, but it has {plural(runs[name], 'run')}"
            )
        result[name] = [require_file(file, "translation") for file in files]
    return result


def lines_of(path: Path) -> list[str]:
    """The lines of a text. Raises DataError for invalid UTF-8."""

    return list(read_lines(path, invalid="stop"))


def read_texts(
    source: Path | None,
    reference: Path | None,
    trees: Path | None,
    gold: Path | None = None,
    form: GoldForm | None = None,
) -> ParallelText:
    """The given texts, which have the same number of lines. Raises UsageError, DataError, FileProblem."""

    if trees is not None and source is None:
        raise UsageError("--trees are those of test sources", hint="give them with --test-source")
    if gold is not None and (source is None or reference is None):
        raise UsageError("--gold links words of test sources and references", hint="give --test-source and --reference")
    files = {"source": source, "reference": reference, "trees": trees}
    lines = {name: lines_of(require_file(path, name)) for name, path in files.items() if path is not None}
    check_parallel({str(files[name]): texts for name, texts in lines.items()}) if lines else None
    links = None
    if gold is not None and source is not None and reference is not None:
        from phraseloom.cli.align.evaluate import read_gold_text

        links = read_gold_text(source, reference, gold, None, form or GoldForm()).gold
    return ParallelText(
        lines.get("source"),
        lines.get("reference"),
        lines.get("trees"),
        links,
        source,
        reference,
        trees,
        None if gold is None else gold.name,
    )


def _both(first: Path | None, second: Path | None, options: str) -> tuple[Path, Path] | None:
    """Two files that go together. Raises UsageError if only one is given, FileProblem if one does not exist."""

    if first is None and second is None:
        return None
    if first is None or second is None:
        raise UsageError(f"{options} go together")
    return require_file(first, "source text"), require_file(second, "file of fertilities")


def _read_items(paths: Sequence[Path], bins: str) -> tuple[list[Item], list[int]]:
    """The contrastive items of all files, and the upper edges of the distance bins."""
    from phraseloom.cli.analyse import contrastive

    edges = contrastive.edges(bins)
    return contrastive.ItemOptions(items=list(paths)).read() if paths else [], edges


def _read_test(text: ParallelText, options: ReportInputs) -> ScoredOn | None:
    """The reference and metrics that score translations; None without a reference. Raises UsageError, DataError."""
    from phraseloom.metrics.bleu import CHOICE, make_scorer, read_line_numbers
    from phraseloom.report.run.measured import ScoredOn

    names = list(dict.fromkeys(n.strip().lower() for n in options.metrics.split(",") if n.strip()))
    if not names:
        raise UsageError("--metrics names no metric", hint=f"choose from {CHOICE}")
    for name in names:
        make_scorer(name)
    if text.references is None or options.reference is None:
        if options.mwt is not None:
            raise UsageError("--mwt names lines of the reference", hint="give it with --reference")
        return None
    mwt, seed = options.mwt, options.seed
    subset = None if mwt is None else (mwt.name, read_line_numbers(mwt, len(text.references)))
    return ScoredOn(text.references, text.sources, names, options.bootstrap, seed, subset, options.reference.name)


def read_outputs(files: Mapping[str, Sequence[Path]], text: ParallelText) -> dict[str, list[list[str]]]:
    """System → lines of each run. Raises DataError if their number is not that of the text, or of each other."""
    result = {name: [lines_of(path) for path in paths] for name, paths in files.items()}
    outputs = [pair for name, paths in files.items() for pair in zip(paths, result[name], strict=True)]
    texts = [(text.reference_file, text.references), (text.source_file, text.sources), *outputs]
    first, expected = next(((file, len(lines)) for file, lines in texts if lines is not None), (None, 0))
    for path, lines in outputs:
        if len(lines) != expected:
            raise DataError(
                f"{plural(len(lines), 'line')}, but {first} has {expected}",
                file=path,
                hint="the files must be parallel, line by line",
            )
    return result


def _translating(systems: Sequence[SystemFacts], files: Mapping[str, object], source: Path | None) -> list[str]:
    """The systems whose models will translate the test sources."""
    return [
        system.name
        for system in systems
        if source is not None
        and system.name not in files
        and system.translates
        and all(run.has_model for run in system.runs)
    ]


def _with_scores(
    test: ScoredOn | None,
    scores: Sequence[str],
    files: Mapping[str, Sequence[Path]],
    systems: Sequence[str],
    others: Sequence[str],
) -> ScoredOn:
    """`test` with the scores of `--scores`, one file for each file of --outputs, in the order of `in_order`.

    Raises UsageError, DataError, FileProblem.
    """
    from phraseloom.cli.evaluate import given_files_of, given_scores
    from phraseloom.report.run.measured import in_order

    if not files or others:
        hint = f"add --outputs {others[0]}=FILE" if others else "give them with --outputs NAME=FILE"
        raise UsageError("--scores are those of given translations", hint=hint)
    assert test is not None
    given = given_files_of(scores, [str(path) for paths in files.values() for path in paths])
    runs = [len(paths) for paths in files.values()]
    rows = given_scores(given, runs, len(test.reference), None)
    of_systems = {metric: in_order(dict(zip(files, of, strict=True)), systems) for metric, of in rows.items()}
    return replace(test, given={metric: list(of.values()) for metric, of in of_systems.items()})


def _material(
    text: ParallelText, items: Sequence[Item], fertility: tuple[Path, Path] | None, options: ReportInputs
) -> Material:
    """The data on which models are measured."""
    from phraseloom.analysis.measurements import Material

    return Material(
        text.sources,
        text.references,
        text.trees,
        text.trees_file,
        text.gold,
        list(items) or None,
        fertility and fertility[0],
        fertility and fertility[1],
        (text.source_file or "source", text.reference_file or "reference"),
        options.most,
        tags=options.tags or (),
    )


def files_with_checksums(options: ReportInputs) -> dict[str, str | None]:
    """Name → `file name (first 12 digits of its sha256)` of the texts that were read."""

    return {what: f"{path.name} (sha256 {sha256_file(path)[:12]}…)" for what, path in _texts(options).items()}


def _texts(options: ReportInputs) -> dict[str, Path]:
    texts = {
        "test sources": options.source,
        "references": options.reference,
        "gold links": options.gold,
        "lines with phrases": options.mwt,
        "trees": options.trees,
    }
    return {what: path for what, path in texts.items() if path is not None}
