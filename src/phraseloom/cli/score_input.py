"""The input of `phraseloom score`, scored window by window: pairs (translation model) or lines (language model)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from phraseloom.cli.options import ParallelFile, penalty
from phraseloom.cli.streams import standard_input, windows
from phraseloom.decoding.long_lines import CroppedLines
from phraseloom.errors import DataError, plural
from phraseloom.text.lines import LineReport, count_lines, read_lines
from phraseloom.text.vocabulary import UNK

if TYPE_CHECKING:
    from phraseloom.decoding.scoring import Score

Window = list[tuple["Score", str | None]]


class ScoredText(NamedTuple):
    """Scores with their raw text (None if the perplexity leaves it out), the piece for unknown tokens, and a function that
    gives the warnings once everything is read."""

    windows: Iterator[Window]
    unknown: str
    warnings: Callable[[], list[str]]


def of_lines(model: Path, source: Path | None, *, device: str, options: dict[str, Any]) -> ScoredText:
    """The lines of a file or of standard input, under a language model."""
    from phraseloom.decoding.generator import TextGenerator

    generator, report = TextGenerator.from_pretrained(model, device=device, **options), LineReport()
    size, cropped = generator.config.window, CroppedLines("line")

    def run() -> Iterator[Window]:
        read = windows(standard_input(), size, report=report) if source is None else _from_file(source, size, report)
        for lines in read:
            scores = generator.score(lines)
            for score in scores:
                cropped.note(score.cropped)
            yield [(score, None if score.cropped else line) for score, line in zip(scores, lines, strict=True)]

    def warnings() -> list[str]:
        return cropped.warnings(generator.config) + report.warnings()

    return ScoredText(run(), generator.side.vocabulary.piece(UNK), warnings)


def of_pairs(
    model: Path,
    source: Path | None,
    target: Path | None,
    *,
    trees: Path | None = None,
    ensemble: Sequence[Path] = (),
    device: str,
    options: dict[str, Any],
    changes: dict[str, Any],
) -> ScoredText:
    """The pairs of two files or of standard input, with the `trees` of the sources; `changes` to the length penalty.

    `ensemble`: models that score together with `model`.

    Perplexity leaves out a pair of two blank lines, whose probability is 1, and cropped pairs, whose words were not all scored.
    """
    from phraseloom.decoding.translator import Translator

    if source is not None and target is not None:
        _same_length(source, target)
        if trees is not None:
            _same_length(source, trees)
    beside = None if trees is None else ParallelFile(trees, "trees", "tree file")
    translator, report = Translator.from_pretrained(model, ensemble=ensemble, device=device, **options), LineReport()
    translator = translator.with_options(**penalty(translator.config, **changes))
    translator.require_trees(trees is not None)
    size, of_target = translator.config.window, LineReport()
    read = (
        _from_stdin(size, report)
        if source is None or target is None
        else _pairs(source, target, size, report, of_target)
    )
    cropped = CroppedLines("pair")

    def run() -> Iterator[Window]:
        for sources, targets in read:
            of_sources = None if beside is None else beside.take(len(sources))
            with contextlib.nullcontext() if beside is None else beside.places():
                scores = translator.score(sources, targets, trees=of_sources)
            for score in scores:
                cropped.note(score.cropped)
            yield [
                (score, t if (s.strip() or t.strip()) and not score.cropped else None)
                for score, s, t in zip(scores, sources, targets, strict=True)
            ]
        if beside is not None:
            beside.finish()

    def warnings() -> list[str]:
        named = report.warnings(source or "input") + of_target.warnings(target or "input")
        return cropped.warnings(translator.config) + named

    return ScoredText(run(), translator.tokenizer.target.vocabulary.piece(UNK), warnings)


def _same_length(source: Path, target: Path) -> None:
    counts = count_lines(source), count_lines(target)
    if counts[0] != counts[1]:
        raise DataError(
            f"{plural(counts[0], 'line')}, but {target} has {counts[1]}",
            file=source,
            hint="the files must be parallel line by line",
        )


def _from_file(source: Path, size: int, report: LineReport) -> Iterator[list[str]]:
    lines = read_lines(source, invalid="replace", report=report)
    while window := list(islice(lines, size)):
        yield window


def _pairs(
    source: Path, target: Path, size: int, report: LineReport, of_target: LineReport
) -> Iterator[tuple[list[str], list[str]]]:
    pairs = zip(
        read_lines(source, invalid="replace", report=report),
        read_lines(target, invalid="replace", report=of_target),
        strict=True,
    )
    while window := list(islice(pairs, size)):
        yield [s for s, _ in window], [t for _, t in window]


def _from_stdin(size: int, report: LineReport) -> Iterator[tuple[list[str], list[str]]]:
    before = 0
    for lines in windows(standard_input(), size, report=report):
        parts = [line.split("\t") for line in lines]
        bad = next((i for i, p in enumerate(parts) if len(p) != 2), None)
        if bad is not None:
            raise DataError(
                f"{len(parts[bad])} tab-separated fields instead of 2",
                file="stdin",
                line=before + bad + 1,
                hint="write SOURCE<tab>TARGET",
            )
        before += len(lines)
        yield [p[0] for p in parts], [p[1] for p in parts]
