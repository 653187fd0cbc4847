"""`phraseloom evaluate`: scores of translations with signatures, by source length, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from phraseloom.cli.options import ReportForm, ResampleSeed, check_form, grouped, once, rising_numbers
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import lines_of, name_of, note, warn
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import require_file
from phraseloom.replace import STDIN
from phraseloom.text.lines import LineReport, check_parallel

if TYPE_CHECKING:
    from phraseloom.metrics.bleu import Scorer
    from phraseloom.results import LengthScores

TOKENIZED = "BLEU-tok"
PAPER = "paper"  # the edges of P001, Figure 3


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The files that are scored."""

    hypotheses: Annotated[
        list[str],
        typer.Argument(
            metavar="HYP",
            help="Translations of a system: one file, or NAME=FILE,FILE with a file per seed. The first is the baseline; - is "
            "stdin.",
        ),
    ]
    reference: Annotated[
        list[str], typer.Option("-r", "--reference", metavar="FILE", help="Reference; repeat for several.")
    ]
    source: Annotated[
        str | None, typer.Option("-s", "--source", metavar="FILE", help="Source text, for --by-length.")
    ] = None
    lines: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Score only these lines: a file of line numbers from 1, one per line."),
    ] = None


@dataclass(frozen=True)
class ScoringOptions:
    """What is computed."""

    metrics: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Comma-separated: bleu, chrf, ter, tokenized, t2t-de (docs/evaluation.md)."),
    ] = "bleu,chrf,ter"
    scores: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE,…",
            help="Scores of another metric, one number per line: a file for each file of translations, in their order. "
            "Repeatable.",
        ),
    ] = None
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="Add BLEU on the given tokens, like Moses multi-bleu.perl.")
    ] = False
    tokenize: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="sacreBLEU's tokenizer for BLEU: 13a, intl, zh, char, none, ja-mecab, "
            "ko-mecab (not spm or flores200, which download files).",
        ),
    ] = "13a"
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")] = False
    by_length: Annotated[
        str | None,
        typer.Option(
            metavar="EDGES", help="BLEU by source length in tokens: edges such as 10,20,40; paper means 15,30,45."
        ),
    ] = None
    plot: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw BLEU by source length to a .png, .svg or .pdf file."),
    ] = None
    bootstrap: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Intervals and p from N resamples, such as 1000, and from the seeds."),
    ] = 0
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Compare all pairs of systems, not only each with the first.")
    ] = False
    seed: ResampleSeed = 12345

    def scorers(self) -> list[Scorer]:
        """The metrics. Raises UsageError for an unknown one, or none."""
        from phraseloom.metrics.bleu import CHOICE, make_scorer

        names = list(dict.fromkeys(n.strip().lower() for n in self.metrics.split(",") if n.strip()))
        names += ["tokenized"] if self.tokenized and "tokenized" not in names else []
        if not names and not self.scores:
            raise UsageError("--metrics names no metric", hint=f"choose from {CHOICE}")
        return [make_scorer(name, tokenize=self.tokenize, lowercase=self.lowercase) for name in names]


@grouped
def command(
    *,
    texts: TextOptions,
    scoring: ScoringOptions,
    output: ReportForm = "text",
    overwrite: Overwrite = False,
) -> None:
    """Score translations: BLEU, chrF and TER with signatures, BLEU by source length, paired bootstrap.

    All files have one sentence per line and the same number of lines. The text should be detokenised; use
    --tokenized if it is not. The bootstrap compares each system with the first (Koehn 2004); with --pairs, all
    pairs of systems. With one run per system, the comparison is between these two runs. With several seeds
    (NAME=FILE,FILE), it is about training: Welch's t over seeds and sentences. --plot without --by-length uses the
    length groups of the paper. With --lines, everything is computed on these lines only, including the bootstrap.

    Example: phraseloom evaluate --reference test.de --bootstrap 1000 baseline.de new.de

    Example: phraseloom evaluate -r test.de --bootstrap 1000 base=b1.de,b2.de,b3.de new=n1.de,n2.de,n3.de
    """
    from phraseloom import results
    from phraseloom.metrics.compare import few_sentences
    from phraseloom.report.evaluation import ByLength, evaluate, render

    runs = _runs(texts.hypotheses)
    files = [path for paths in runs.values() for path in paths]
    given_files = given_files_of(scoring.scores or [], files)
    score_files = [path for paths in given_files.values() for path in paths]
    inputs = [*files, *texts.reference, texts.source, texts.lines, *score_files]
    check_outputs({"--plot": scoring.plot}, inputs=inputs, overwrite=overwrite)
    check_form(output)
    scorers = scoring.scorers()
    bleu = _bleu([scorer.name for scorer in scorers], scoring.tokenized)
    edges = _check(texts, scoring, bleu)
    read = _read_texts(files, texts)
    by = None
    if edges and read.sources is not None and bleu is not None:
        by = ByLength(read.sources, edges, "none" if bleu == TOKENIZED else scoring.tokenize, bleu)
    result = evaluate(
        {name: [read.files[path] for path in paths] for name, paths in runs.items()},
        read.references,
        scorers,
        by_length=by,
        bootstrap=scoring.bootstrap,
        seed=scoring.seed,
        pairs=scoring.pairs,
        given=given_scores(given_files, [len(paths) for paths in runs.values()], read.total, texts.lines),
    )
    if result.bootstrap is not None and (few := few_sentences(result.sentences)):
        warn("evaluate", few)
    if texts.lines is not None:
        result = result.model_copy(update={"lines": results.LineSubset(file=texts.lines, of=read.total)})
    print(results.line(result) + "\n" if output == "json" else render(result), end="")
    if scoring.plot is not None and result.by_length is not None:
        _draw(result.by_length, scoring.plot)


def _draw(lengths: LengthScores, output: str) -> None:
    """Draw scores by source length and, with resamples, the differences to the first system."""
    from phraseloom.metrics.compare import FEWEST
    from phraseloom.report.charts.picture import draw
    from phraseloom.report.charts.places import by_length, without_endings
    from phraseloom.report.run.parts import length_scores

    names = without_endings([system.name for system in lengths.systems])
    systems = [system.model_copy(update={"name": names[system.name]}) for system in lengths.systems]
    part = length_scores(lengths.model_copy(update={"systems": systems}))
    styles = {name: i for i, name in enumerate(names.values())}
    charts = by_length(part, next(iter(styles)) if lengths.samples is not None else None, styles)
    text = f"{lengths.metric}: {lengths.signature}"
    if lengths.samples is not None:
        text += f"\nwhiskers: central 95 % of {lengths.samples:,} resamples of the sentences of each group, seed {lengths.seed}"
        if any(group.score and not group.bootstrap for group in lengths.systems[0].groups):
            text += f"; hollow: fewer than {FEWEST} sentences, not resampled"
    if not any(chart.shown for chart in charts):
        raise DataError("no group of source lengths holds a sentence")
    draw(charts, output, title=charts[0].title, note=text)


def _bleu(names: Sequence[str], tokenized: bool) -> str | None:
    """The BLEU of these scores that is computed by length: with `tokenized`, or if it is the only one, that on given tokens."""
    preferred = (TOKENIZED, "BLEU") if tokenized else ("BLEU", TOKENIZED)
    return next((name for name in preferred if name in names), None)


def _check(texts: TextOptions, scoring: ScoringOptions, bleu: str | None) -> list[int]:
    """Check options that need others, before anything is read. Returns the edges of the length groups; `bleu` scores them."""
    from phraseloom.report.charts.picture import can_draw

    if scoring.pairs and (not scoring.bootstrap or len(texts.hypotheses) < 2):
        need = "at least two systems" if scoring.bootstrap else "resamples; give --bootstrap 1000"
        raise UsageError(f"--pairs needs {need}")
    if scoring.plot is not None:
        can_draw(scoring.plot, len(texts.hypotheses))
    only_plot = scoring.plot is not None and scoring.by_length is None
    edges = _edges(PAPER if only_plot else scoring.by_length)
    if edges and (texts.source is None or bleu is None):
        need = "the source text; give --source FILE" if texts.source is None else "bleu among --metrics, or --tokenized"
        raise UsageError(f"{'--plot' if only_plot else '--by-length'} needs {need}")
    return edges


def _runs(hypotheses: Sequence[str]) -> dict[str, list[str]]:
    """Name → files, one per run. A file is its own name, unless it does not exist and reads NAME=FILE,FILE; - is `stdin`."""
    from pathlib import Path

    runs: dict[str, list[str]] = {}
    for text in hypotheses:
        name, equals, files = text.partition("=")
        several = equals and name and not Path(text).exists()
        paths = [part for part in files.split(",") if part] if several else [text]
        name = name if several else name_of(text)
        if name in runs:
            raise UsageError(f"{name} is given twice")
        if not paths:
            raise UsageError(f"{text} names no file", hint="NAME=FILE,FILE: the translations of the seeds of a system")
        runs[name] = paths
    return runs


def given_files_of(scores: Sequence[str], files: Sequence[str]) -> dict[str, list[str]]:
    """The files of `--scores` by the name of their metric. Raises UsageError, FileProblem."""

    result: dict[str, list[str]] = {}
    for text in scores:
        name, equals, paths = text.partition("=")
        own = [path for path in paths.split(",") if path]
        if not equals or not name.strip() or not own:
            raise UsageError(f"--scores {text}: not NAME=FILE", hint="such as COMET=baseline.comet,new.comet")
        if name in result or name.lower() in ("bleu", "chrf", "chrf2", "ter", "bleu-tok", "bleu-t2t"):
            raise UsageError(f"--scores: {name} is given twice, or is a metric of --metrics")
        if len(own) != len(files):
            what = f"{plural(len(own), 'file')} of scores for {plural(len(files), 'file')} of translations"
            raise UsageError(f"--scores {name}: {what}", hint="one for each, in the same order")
        result[name] = [str(require_file(path, "file of scores")) for path in own]
    return result


def given_scores(
    files: Mapping[str, Sequence[str]], runs: Sequence[int], total: int, lines: str | None
) -> dict[str, list[list[Any]]]:
    """By metric and system the rows of scores of each run: `total` of them, or those on `lines`."""
    from phraseloom.metrics.bleu import read_line_numbers
    from phraseloom.metrics.given import read_scores

    chosen = slice(None) if lines is None else list(read_line_numbers(lines, total))
    result: dict[str, list[list[Any]]] = {}
    for name, paths in files.items():
        rows = [read_scores(path, total)[chosen] for path in paths]
        ends = list(accumulate(runs))
        result[name] = [rows[end - size : end] for end, size in zip(ends, runs, strict=True)]
    return result


def _edges(text: str | None) -> list[int]:
    from phraseloom.metrics.bleu import LENGTH_EDGES

    if text is None:
        return []
    if text.strip().lower() == PAPER:
        return list(LENGTH_EDGES)
    return rising_numbers(text, "--by-length", "such as 15,30,45, or paper for these")


class ReadTexts(NamedTuple):
    """The lines that are scored: of each file of translations, of the references and of the source; `total` before --lines."""

    files: dict[str, list[str]]
    references: list[list[str]]
    sources: list[str] | None
    total: int


def _read_texts(hypotheses: Sequence[str], options: TextOptions) -> ReadTexts:
    """Read all texts, which have the same number of lines. Raises UsageError, DataError, FileProblem."""
    from phraseloom.metrics.bleu import read_line_numbers, take

    reference, source, lines = options.reference, options.source, options.lines
    once(hypotheses)
    if STDIN in (*reference, source, lines):
        raise UsageError("- (standard input) is only allowed for translations")
    kinds = [("hypothesis", hypotheses), ("reference", reference), ("source", [source] if source else [])]
    for kind, paths in [*kinds, ("line number", [lines] if lines else [])]:
        for path in paths:
            if path != STDIN:
                require_file(path, f"{kind} file")
    references = [_read(path) for path in reference]
    systems = {path: _read(path) for path in hypotheses}
    sources = _read(source) if source else None
    first = {reference[0]: references[0]}
    others = [*zip(reference, references, strict=True), *systems.items()]
    for name, text in others + ([(source, sources)] if source and sources is not None else []):
        check_parallel({**first, name: text})
    total = len(references[0])
    if lines is not None:
        chosen = read_line_numbers(lines, total)
        references = take(references, chosen)
        systems = dict(zip(systems, take(systems.values(), chosen), strict=True))
        sources = None if sources is None else take([sources], chosen)[0]
    named = [("references", *of) for of in zip(reference, references, strict=True)]
    for kind, name, text in [*named, *(("translations", *of) for of in systems.items())]:
        empty = sum(not line.strip() for line in text)
        if empty:
            note("evaluate", f"{name}: {empty} of {len(text)} {kind} are empty")
    return ReadTexts(systems, references, sources, total)


def _read(path: str) -> list[str]:
    """The lines of a file. Changes by the reader are noted on standard error."""

    report = LineReport()
    lines = list(lines_of(path, report))
    for count, what in ((report.bom, "byte order mark"), (report.crlf, "CRLF line ends")):
        if count:
            note("evaluate", f"{path}: read without its {what}" + (f" ({count})" if count > 1 else ""))
    if report.nul:
        note("evaluate", f"{path}: {plural(report.nul, 'line')} with NUL (first: line {report.first['nul']})")
    return lines
